//! The candidates of a method: values of one parameter, from the smallest budget to the largest, evenly spaced on a logarithmic scale.

use spattn_attention::methods::configure;
use spattn_attention::{Configured, MethodSpec, Policy, expand_grid};
use spattn_base::error::UsageError;

/// The parameter that is tuned by default. Every method has it.
pub const DENSITY: &str = "density";
/// The default range of densities.
const DENSITIES: &str = "0.01..0.5";

/// The parameter to tune, as the user gave it.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The parameter.
    pub parameter: &'a str,
    /// `FROM..TO`, from the smallest budget to the largest. Only the density has a default.
    pub range: Option<&'a str>,
    /// The number of candidates.
    pub steps: usize,
}

/// The candidates of one method.
#[derive(Debug, Clone)]
pub struct Ladder {
    /// The method's spec without the tuned parameter.
    pub base: String,
    /// The tuned parameter.
    pub parameter: String,
    /// The candidates, from the smallest budget to the largest.
    pub candidates: Vec<Candidate>,
}

/// A method with one value of the tuned parameter.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The value.
    pub value: f64,
    /// The value as written in the spec.
    pub text: String,
    /// The spec as `eval` accepts it.
    pub spec: String,
    /// The label of its records.
    pub label: String,
    /// The configured method.
    pub method: Configured,
}

/// Returns the ladders for some specs, each of which may be a grid. Equal specs share a ladder.
///
/// # Errors
/// If a spec or the range cannot be read, a spec already sets the tuned parameter, or the method rejects a value.
pub fn ladders(specs: &[String], asked: Asked<'_>, policy: &Policy) -> Result<Vec<Ladder>, UsageError> {
    let values = values(asked)?;
    let mut ladders: Vec<Ladder> = Vec::new();
    for text in specs {
        for spec in expand_grid(text)? {
            let ladder = ladder(&spec, asked.parameter, &values, policy)?;
            if ladders.iter().all(|other| other.base != ladder.base) {
                ladders.push(ladder);
            }
        }
    }
    Ok(ladders)
}

fn ladder(spec: &MethodSpec, parameter: &str, values: &[String], policy: &Policy) -> Result<Ladder, UsageError> {
    let base = written(spec);
    if spec.params.iter().any(|(key, _)| key == parameter) {
        return Err(UsageError::new(format!("`{base}` sets `{parameter}` already"))
            .hint(format!("leave `{parameter}` out of the spec, or tune another parameter with --parameter")));
    }
    let mut candidates: Vec<Candidate> = Vec::new();
    for text in values {
        let mut spec = spec.clone();
        spec.params.push((parameter.to_owned(), text.clone()));
        let method = configure(&spec, policy)?;
        let (label, spec) = (method.label(), written(&spec));
        if candidates.iter().all(|other| other.label != label) {
            let value = text.parse().unwrap_or(f64::NAN);
            candidates.push(Candidate { value, text: text.clone(), spec, label, method });
        }
    }
    Ok(Ladder { base, parameter: parameter.to_owned(), candidates })
}

/// Writes a spec as users do.
pub(super) fn written(spec: &MethodSpec) -> String {
    let reader = spec.reader.as_ref().map_or(String::new(), |reader| format!("{}>", written(reader)));
    let params: Vec<String> = spec.params.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let params = if params.is_empty() { String::new() } else { format!(":{}", params.join(",")) };
    format!("{reader}{}{params}", spec.name)
}

/// Returns the values as text: the ends as given, whole numbers between whole ends, three significant digits otherwise.
fn values(asked: Asked<'_>) -> Result<Vec<String>, UsageError> {
    let Asked { parameter, range, steps } = asked;
    let range = match (range, parameter) {
        (Some(range), _) => range,
        (None, DENSITY) => DENSITIES,
        (None, _) => {
            return Err(UsageError::new(format!("the range of `{parameter}` is not given"))
                .hint("give the smallest and the largest budget: --range 16..1024"));
        }
    };
    let wrong = |why: &str| {
        UsageError::new(format!("--range: `{range:.60}` {why}")).hint(
            "write FROM..TO, from the smallest budget to the largest: 0.01..0.5, or 12..4 if a smaller value is a larger budget",
        )
    };
    let (from, to) = range.split_once("..").ok_or_else(|| wrong("is not a range"))?;
    let number = |text: &str| text.parse::<f64>().ok().filter(|x| x.is_finite() && *x > 0.0);
    let (Some(first), Some(last)) = (number(from), number(to)) else {
        return Err(wrong("does not lie between two numbers above 0"));
    };
    if first == last {
        return Err(wrong("has a single value"));
    }
    let is_whole = [from, to].iter().all(|text| text.parse::<u64>().is_ok());
    let between = |step: usize| {
        let x = first * (last / first).powf(step as f64 / (steps - 1) as f64);
        if is_whole { format!("{x:.0}") } else { three_digits(x) }
    };
    let inner = (1..steps - 1).map(between);
    let mut values: Vec<String> = std::iter::once(from.to_owned()).chain(inner).chain([to.to_owned()]).collect();
    values.dedup();
    Ok(values)
}

/// Writes a number with three significant digits.
fn three_digits(x: f64) -> String {
    let decimals = (2 - x.log10().floor() as i32).clamp(0, 17) as usize;
    let text = format!("{x:.decimals$}");
    if decimals == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(spec: &str, parameter: &str, range: Option<&str>, steps: usize) -> Result<Vec<String>, UsageError> {
        let found = ladders(&[spec.to_owned()], Asked { parameter, range, steps }, &Policy::default())?;
        Ok(found.iter().flat_map(|ladder| ladder.candidates.iter().map(|c| c.spec.clone())).collect())
    }

    #[test]
    fn values_are_evenly_spread_on_a_logarithmic_scale() {
        let of = |parameter, range, steps| read("topk", parameter, Some(range), steps).unwrap();
        assert_eq!(of("k", "16..256", 5), ["topk:k=16", "topk:k=32", "topk:k=64", "topk:k=128", "topk:k=256"]);
        assert_eq!(of("ratio", "0.01..0.1", 3), ["topk:ratio=0.01", "topk:ratio=0.0316", "topk:ratio=0.1"]);
        assert_eq!(of("k", "1..3", 12), ["topk:k=1", "topk:k=2", "topk:k=3"], "each value once");
        assert_eq!(
            read("magicpig:L=75", "K", Some("10..8"), 3).unwrap(),
            ["magicpig:L=75,K=10", "magicpig:L=75,K=9", "magicpig:L=75,K=8"]
        );
        let densities = read("quest:page={16,32}", DENSITY, None, 12).unwrap();
        assert_eq!((densities.len(), densities[0].as_str()), (24, "quest:page=16,density=0.01"));
        assert_eq!(densities[23], "quest:page=32,density=0.5");
    }

    #[test]
    fn candidates_are_what_eval_makes_of_their_specs() {
        let asked = Asked { parameter: "k", range: Some("64..512"), steps: 4 };
        for ladder in ladders(&["hip>topk:sink=8".to_owned()], asked, &Policy::default()).unwrap() {
            for candidate in &ladder.candidates {
                let again = configure(&expand_grid(&candidate.spec).unwrap()[0], &Policy::default()).unwrap();
                assert_eq!(again.label(), candidate.label);
            }
        }
    }

    #[test]
    fn what_cannot_be_tuned_is_said() {
        let wrong = |spec, parameter, range| read(spec, parameter, range, 12).unwrap_err().to_string();
        assert!(wrong("topk", "k", None).contains("the range of `k` is not given"));
        assert!(wrong("topk:k=3", "k", Some("1..9")).contains("sets `k` already"));
        assert!(wrong("topk:ratio=0.1", DENSITY, None).contains("ratio or density, not both"));
        assert!(wrong("quest", "pgae", Some("1..9")).contains("no parameter `pgae`"));
        assert!(wrong("full", DENSITY, None).contains("no parameter `density`"));
        for range in ["", "1", "0..1", "-1..2", "1..", "a..b", "2..2", "1..inf", "NaN..1"] {
            assert!(wrong("topk", DENSITY, Some(range)).starts_with("--range: "), "{range}");
        }
    }
}
