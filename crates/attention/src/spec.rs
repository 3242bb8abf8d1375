//! Method specs: `name:key=value,...` with grids `{a,b}` and ranges `a..b/step`, and typed access to their parameters.
//!
//! The module `spec_text` splits the text of a spec and handles quotes in it.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::kv::MOST_TOKENS;
use crate::spec_text::{COMMAND, begins_method, command_of, outside_quotes, split_at_commas, unquoted};
use crate::{Budget, Tuned};
use spattn_base::error::{UsageError, nearest};

/// A method's name with raw parameters, in the given order; grids are already expanded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodSpec {
    /// Name as written.
    pub name: String,
    /// `(key, value)` as written.
    pub params: Vec<(String, String)>,
    /// The method that reads the prompt: the one written before a `+` or `>`.
    pub reader: Option<Box<MethodSpec>>,
}

impl MethodSpec {
    /// The spec of a method with its default parameters.
    pub fn bare(name: &str) -> Self {
        Self { name: name.to_owned(), params: Vec::new(), reader: None }
    }
}

/// The most specs that one grid may expand to.
const MOST_SPECS: usize = 10_000;

/// Expands a spec with grids and ranges into single specs; the leftmost key varies slowest.
///
/// `magicpig:K={8,9},L=75..150/25` expands to eight specs. `hip:k={256,512}+full` expands to two, each with a method that reads the prompt
/// and one that decodes; `hip:k={256,512}>full` is the same.
///
/// # Errors
/// If it is malformed, or expands to more than 10,000 specs.
pub fn expand_grid(text: &str) -> Result<Vec<MethodSpec>, UsageError> {
    let Some((reader, decoder)) = reader_and_decoder(text) else { return expand_one(text) };
    if reader_and_decoder(decoder).is_some() {
        return Err(UsageError::new(format!("method spec `{}` has more than two methods", shortened(text)))
            .hint("one method reads the prompt, another decodes: hip:k=512+full"));
    }
    let (readers, decoders) = (expand_one(reader)?, expand_one(decoder)?);
    check_count(text, readers.len().saturating_mul(decoders.len()))?;
    let with = |reader: &MethodSpec| {
        let reader = Box::new(reader.clone());
        decoders.iter().map(move |decoder| MethodSpec { reader: Some(reader.clone()), ..decoder.clone() })
    };
    Ok(readers.iter().flat_map(with).collect())
}

/// Splits at a `+`, which no shell interprets, or at the `>` of canonical names. A `+` within a value, as in `dense_layers=0+50%`, is not
/// followed by the name of a method, because names start with two letters.
fn reader_and_decoder(text: &str) -> Option<(&str, &str)> {
    let is_between = |(at, sign): &(usize, char)| match sign {
        '>' => true,
        '+' => begins_method(&text[at + 1..]),
        _ => false,
    };
    let (at, _) = outside_quotes(text).find(is_between)?;
    Some((&text[..at], &text[at + 1..]))
}

/// Returns an error if a grid expands to too many specs.
fn check_count(text: &str, count: usize) -> Result<(), UsageError> {
    if count <= MOST_SPECS {
        return Ok(());
    }
    let what = format!("method spec `{}`: its grids stand for {count} settings or more", shortened(text));
    Err(UsageError::new(what)
        .hint(format!("a spec may stand for {MOST_SPECS} at most: take fewer values, or run it in parts")))
}

/// Like [`expand_grid`], for one method.
fn expand_one(text: &str) -> Result<Vec<MethodSpec>, UsageError> {
    let malformed = |why: &str| {
        UsageError::new(format!("method spec `{}`: {why}", shortened(text)))
            .hint("write name or name:key=value,key={a,b},key=a..b/step")
    };
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    if name.is_empty() {
        return Err(malformed("the name is missing"));
    }
    let mut specs = vec![MethodSpec::bare(name)];
    let has_odd_quote = rest.matches('"').count() % 2 == 1;
    let unmatched = if has_odd_quote { "quotes do not match" } else { "braces do not match" };
    let parts = split_at_commas(rest).ok_or_else(|| malformed(unmatched))?;
    for (place, part) in parts.into_iter().enumerate() {
        let (key, values) = match command_of(part).filter(|_| place == 0) {
            Some(command) => (COMMAND, Ok(vec![command.to_owned()])),
            None => {
                let pair = part.split_once('=');
                let (key, value) = pair.ok_or_else(|| malformed(&format!("`{part}` is not key=value")))?;
                (key, expand_value(value))
            }
        };
        if specs[0].params.iter().any(|(k, _)| k == key) {
            return Err(malformed(&format!("`{key}` is given twice")));
        }
        let values = values.map_err(|why| malformed(&format!("`{key}`: {why}")))?;
        check_count(text, specs.len().saturating_mul(values.len()))?;
        specs = specs
            .iter()
            .flat_map(|spec| {
                values.iter().map(|value| {
                    let mut spec = spec.clone();
                    spec.params.push((key.to_owned(), value.clone()));
                    spec
                })
            })
            .collect();
    }
    Ok(specs)
}

/// Shortens a spec for an error message, because a grid may be very long.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 120;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn expand_value(value: &str) -> Result<Vec<String>, String> {
    let Some(list) = value.strip_prefix('{').and_then(|v| v.strip_suffix('}')) else { return expand_item(value) };
    if outside_quotes(list).any(|(_, c)| matches!(c, '{' | '}')) {
        return Err(format!("`{value:.40}` has braces within braces"));
    }
    let items = split_at_commas(list).filter(|items| !items.is_empty()).ok_or("a value is empty")?;
    let mut values = Vec::new();
    for item in items {
        values.extend(expand_item(item)?);
        if values.len() > MOST_SPECS {
            return Err(format!("the grid has more than {MOST_SPECS} values"));
        }
    }
    Ok(values)
}

/// Expands a value without braces, or one item within braces. A quoted value is taken literally, and `..` before a `/` is part of a path.
fn expand_item(value: &str) -> Result<Vec<String>, String> {
    if value.is_empty() || value == "\"\"" {
        return Err("a value is empty".to_owned());
    }
    if let Some(text) = unquoted(value) {
        return Ok(vec![text.to_owned()]);
    }
    if value.contains('"') {
        return Err("quotes must enclose a whole value".to_owned());
    }
    if value.contains(['{', '}']) {
        return Err("braces must enclose a whole value, without others inside".to_owned());
    }
    match value.split_once("..") {
        Some((first, rest)) if !rest.starts_with('/') => expand_range(value, first, rest),
        _ => Ok(vec![value.to_owned()]),
    }
}

/// Expands `a..b/step`, both ends included. Numbers get as many decimals as the most precise of the three.
fn expand_range(text: &str, first: &str, rest: &str) -> Result<Vec<String>, String> {
    // An `f64` cannot represent more.
    const MOST_DECIMALS: usize = 17;
    let (last, step) = rest.split_once('/').unwrap_or((rest, "1"));
    let number = |s: &str| s.parse::<f64>().map_err(|_| format!("range `{text}` is not a..b or a..b/step"));
    let (a, b, by) = (number(first)?, number(last)?, number(step)?);
    let decimals = [first, last, step].iter().map(|s| s.split_once('.').map_or(0, |(_, d)| d.len())).max().unwrap_or(0);
    if decimals > MOST_DECIMALS {
        return Err(format!("a range has a number of more than {MOST_DECIMALS} decimals"));
    }
    let is_finite = [a, b, by].iter().all(|x| x.is_finite());
    if !is_finite || by <= 0.0 || b < a || (b - a) / by >= MOST_SPECS as f64 {
        return Err(format!("range `{text}` is empty, endless or larger than {MOST_SPECS} values"));
    }
    let count = ((b - a) / by + 1e-9).floor() as usize + 1;
    Ok((0..count).map(|i| format!("{:.*}", decimals, a + i as f64 * by)).collect())
}

/// A parameter with its value, as a method reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its key in a spec.
    pub key: &'static str,
    /// Its value, given or default.
    pub value: String,
    /// Whether it is part of the canonical form: the setting of the budget always is, others only if they are not the default.
    pub is_named: bool,
}

/// A parameter as listed to users.
pub struct ParamInfo {
    /// Key in a spec.
    pub key: &'static str,
    /// Default value.
    pub default: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
}

/// Raw parameters that a method reads; keeps track of the keys read, to reject the others.
#[derive(Debug)]
pub struct Params {
    method: String,
    given: Vec<(String, String)>,
    preset: Vec<(String, String)>,
    known: Vec<&'static str>,
    settings: Vec<Setting>,
    /// Whether the budget that was read is in tokens, so that it can be distributed over layers.
    has_layer_budgets: bool,
}

impl Params {
    /// Name of the method.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Starts reading a spec's parameters.
    pub fn new(spec: &MethodSpec) -> Self {
        Self {
            method: spec.name.clone(),
            given: spec.params.clone(),
            preset: Vec::new(),
            known: Vec::new(),
            settings: Vec::new(),
            has_layer_budgets: false,
        }
    }

    /// Sets the values of a preset, which apply to keys that the spec does not give.
    pub fn fill(&mut self, preset: &[(&str, &str)]) {
        self.preset = preset.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    }

    /// Takes the text of `key` without making it part of the canonical form.
    pub fn take(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        let take_from = |pairs: &mut Vec<(String, String)>| {
            let at = pairs.iter().position(|(k, _)| k == key)?;
            Some(pairs.remove(at).1)
        };
        let (given, preset) = (take_from(&mut self.given), take_from(&mut self.preset));
        given.or(preset)
    }

    /// Whether the spec or its preset gives `key`.
    pub fn is_given(&self, key: &str) -> bool {
        self.given.iter().chain(&self.preset).any(|(k, _)| k == key)
    }

    /// Takes the one of `keys` that is given; if the spec gives one, those of the preset are ignored.
    fn take_one_of(&mut self, keys: &[&'static str]) -> Result<Option<(&'static str, String)>, UsageError> {
        if self.given.iter().any(|(key, _)| keys.contains(&key.as_str())) {
            self.preset.retain(|(key, _)| !keys.contains(&key.as_str()));
        }
        let mut taken: Vec<_> = keys.iter().filter_map(|key| Some((*key, self.take(key)?))).collect();
        if taken.len() > 1 {
            let [(first, _), (second, _), ..] = taken.as_slice() else {
                unreachable!("at least two budgets were given")
            };
            return Err(UsageError::new(format!("method `{}`: give {first} or {second}, not both", self.method))
                .hint("one of them sets the budget"));
        }
        Ok(taken.pop())
    }

    fn parse<T: FromStr>(&self, key: &str, text: &str, expected: &str) -> Result<T, UsageError> {
        text.parse().map_err(|_| self.bad_value(key, text, expected))
    }

    fn parse_share(&self, key: &str, text: &str) -> Result<f64, UsageError> {
        let share: Option<f64> = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
        share.ok_or_else(|| self.bad_value(key, text, "above 0 and at most 1 (0.05 is 5 %)"))
    }

    pub(super) fn parse_within(
        &self,
        key: &str,
        text: &str,
        range: RangeInclusive<usize>,
    ) -> Result<usize, UsageError> {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            self.bad_value(key, text, &format!("a whole number from {} to {}", range.start(), range.end()))
        })
    }

    /// Reads the value of `key`, or `default`; it becomes part of the canonical form. `expected` describes valid values in error messages.
    pub fn get<T: FromStr + Display>(
        &mut self,
        key: &'static str,
        default: T,
        expected: &str,
    ) -> Result<T, UsageError> {
        let value = match self.take(key) {
            Some(text) => self.parse(key, &text, expected)?,
            None => default,
        };
        self.note(key, &value);
        Ok(value)
    }

    /// Like [`Self::get`] for whole numbers from 1 to [`MOST_TOKENS`].
    pub fn get_positive(&mut self, key: &'static str, default: usize) -> Result<usize, UsageError> {
        self.get_within(key, default, 1..=MOST_TOKENS)
    }

    /// Like [`Self::get`] for whole numbers in a range.
    pub fn get_within(
        &mut self,
        key: &'static str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> Result<usize, UsageError> {
        let value = self.take(key).map_or(Ok(default), |text| self.parse_within(key, &text, range))?;
        self.note(key, &value);
        Ok(value)
    }

    /// Like [`Self::get_positive`], but part of the canonical form only if it differs from `default`.
    pub fn get_minor(&mut self, key: &'static str, default: usize) -> Result<usize, UsageError> {
        self.get_minor_within(key, default, 1..=MOST_TOKENS)
    }

    /// Like [`Self::get_within`], but part of the canonical form only if it differs from `default`.
    pub fn get_minor_within(
        &mut self,
        key: &'static str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> Result<usize, UsageError> {
        let value = self.take(key).map_or(Ok(default), |text| self.parse_within(key, &text, range))?;
        self.note_unless_default(key, &value, &default);
        Ok(value)
    }

    /// Like [`Self::get`], but part of the canonical form only if it differs from `default`.
    pub fn get_minor_as<T: FromStr + Display + PartialEq>(
        &mut self,
        key: &'static str,
        default: T,
        expected: &str,
    ) -> Result<T, UsageError> {
        let given = self.take(key).map(|text| self.parse(key, &text, expected)).transpose()?;
        let is_named = given.as_ref().is_some_and(|value| *value != default);
        let value = given.unwrap_or(default);
        self.settings.push(Setting { key, value: value.to_string(), is_named });
        Ok(value)
    }

    /// Reads one of `choices`, the first of which is the default; part of the canonical form unless it is the default.
    pub fn choice(&mut self, key: &'static str, choices: &[&'static str]) -> Result<&'static str, UsageError> {
        let text = self.take(key).unwrap_or_else(|| choices[0].to_owned());
        let chosen = choices.iter().copied().find(|choice| *choice == text);
        let chosen = chosen.ok_or_else(|| self.bad_value(key, &text, &format!("one of {}", choices.join(", "))))?;
        self.note_unless_default(key, &chosen, &choices[0]);
        Ok(chosen)
    }

    /// Records a value that is always part of the canonical form.
    pub(super) fn note(&mut self, key: &'static str, value: &impl Display) {
        self.settings.push(Setting { key, value: value.to_string(), is_named: true });
    }

    /// Records a value that is part of the canonical form only if it differs from `default`.
    pub(super) fn note_unless_default<T: Display + PartialEq>(&mut self, key: &'static str, value: &T, default: &T) {
        self.settings.push(Setting { key, value: value.to_string(), is_named: value != default });
    }

    /// Reads a budget of tokens: `k` tokens, `ratio` of the context, or a `density`; `default` if none is given.
    pub fn budget(&mut self, default: Budget) -> Result<Budget, UsageError> {
        self.budget_of_at_least(1, default)
    }

    /// Like [`budget`](Self::budget), for methods that also accept `k=0`: they then attend only static tokens.
    pub fn budget_from_zero(&mut self, default: Budget) -> Result<Budget, UsageError> {
        self.budget_of_at_least(0, default)
    }

    /// Like [`budget_from_zero`](Self::budget_from_zero), for methods that evict once, when the prefix ends: they also accept the share of
    /// the prefix that is kept.
    pub fn budget_of_evicting(&mut self, default: Budget) -> Result<Budget, UsageError> {
        match self.keep_instead_of(&BUDGET_KEYS)? {
            None => self.budget_from_zero(default),
            Some(share) => {
                self.has_layer_budgets = true;
                Ok(Budget::Kept(share))
            }
        }
    }

    /// Reads the share of the prefix that is kept, if given. It replaces `others`, of which the spec must give none.
    pub fn keep_instead_of(&mut self, others: &[&str]) -> Result<Option<f64>, UsageError> {
        let other = self.given.iter().find(|(key, _)| others.contains(&key.as_str())).map(|(key, _)| key.clone());
        match (self.given.iter().any(|(key, _)| key == KEEP.key), other) {
            (true, Some(other)) => {
                return Err(UsageError::new(format!(
                    "method `{}`: give {other} or {}, not both",
                    self.method, KEEP.key
                ))
                .hint("one of them sets the budget"));
            }
            (true, None) => self.preset.retain(|(key, _)| !others.contains(&key.as_str())),
            (false, Some(_)) => self.preset.retain(|(key, _)| key != KEEP.key),
            (false, None) => {}
        }
        let Some(text) = self.take(KEEP.key) else { return Ok(None) };
        let share = self.parse_share(KEEP.key, &text)?;
        self.note(KEEP.key, &share);
        Ok(Some(share))
    }

    /// Whether the budget is in tokens, which a [`Schedule`](crate::Schedule) can distribute over layers.
    pub(super) fn has_layer_budgets(&self) -> bool {
        self.has_layer_budgets
    }

    /// Records that the method distributes its budget over layers by its own rule.
    pub(super) fn deals_to_layers_itself(&mut self) {
        self.has_layer_budgets = false;
    }

    fn budget_of_at_least(&mut self, least: usize, default: Budget) -> Result<Budget, UsageError> {
        self.has_layer_budgets = true;
        let budget = match self.take_one_of(&BUDGET_KEYS)? {
            None => default,
            Some((key @ "k", text)) => Budget::Tokens(self.parse_within(key, &text, least..=MOST_TOKENS)?),
            Some((key @ "ratio", text)) => Budget::Ratio(self.parse_share(key, &text)?),
            Some((key, text)) => Budget::Density(self.parse_share(key, &text)?),
        };
        match budget {
            Budget::Tokens(k) => self.note("k", &k),
            Budget::Ratio(ratio) => self.note("ratio", &ratio),
            Budget::Density(density) => self.note(DENSITY, &density),
            Budget::Kept(share) => self.note(KEEP.key, &share),
        }
        Ok(budget)
    }

    /// Reads a budget in the method's own terms, `key`, or a `density` to solve it for; `default` if neither is given. `expected` describes
    /// valid values of `key` in error messages.
    pub fn tuned<T: FromStr + Display>(
        &mut self,
        key: &'static str,
        default: T,
        expected: &str,
    ) -> Result<Tuned<T>, UsageError> {
        let tuned = match self.take_one_of(&[key, DENSITY])? {
            None => Tuned::Value(default),
            Some((DENSITY, text)) => Tuned::Density(self.parse_share(DENSITY, &text)?),
            Some((key, text)) => Tuned::Value(self.parse(key, &text, expected)?),
        };
        match &tuned {
            Tuned::Value(value) => self.note(key, value),
            Tuned::Density(density) => self.note(DENSITY, density),
        }
        Ok(tuned)
    }

    /// Like [`Self::tuned`], for whole numbers in a range.
    pub fn tuned_within<T>(
        &mut self,
        key: &'static str,
        default: T,
        range: RangeInclusive<usize>,
    ) -> Result<Tuned<T>, UsageError>
    where
        T: FromStr + Display,
    {
        let given = self.given.iter().chain(&self.preset).find(|(k, _)| k == key);
        if let Some((_, text)) = given {
            self.parse_within(key, text, range.clone())?;
        }
        self.tuned(key, default, &format!("a whole number from {} to {}", range.start(), range.end()))
    }

    /// The error for a value that is not as `expected`.
    pub fn bad_value(&self, key: &str, value: &str, expected: &str) -> UsageError {
        UsageError::new(format!("method `{}`: `{key}={value}` is out of range", self.method))
            .hint(format!("`{key}` should be {expected}"))
    }

    /// The keys read so far.
    pub fn known(&self) -> &[&'static str] {
        &self.known
    }

    /// Ends reading: returns all settings in the order of reading, or an error if a given key was not read.
    pub fn finish(self) -> Result<Vec<Setting>, UsageError> {
        let Some((key, _)) = self.given.first().or(self.preset.first()) else { return Ok(self.settings) };
        let hint = match nearest(key, &self.known) {
            _ if key == "compression_ratio" && self.known.contains(&DENSITY) => {
                format!(
                    "{DENSITY}=0.5 is the share of the context that is attended; nothing is evicted once and for all"
                )
            }
            Some(near) => format!("did you mean `{near}`? `spattn list methods NAME` shows all parameters"),
            None if self.known.is_empty() => "it has no parameters here".to_owned(),
            None => format!("its parameters: {}", self.known.join(", ")),
        };
        Err(UsageError::new(format!("method `{}` has no parameter `{key}`", self.method)).hint(hint))
    }
}

/// The key that sets the budget of any method.
pub(super) const DENSITY: &str = "density";

/// The parameter of methods that evict once: the share of the prefix that is kept. It is 1 minus kvpress' `compression_ratio`.
pub(super) const KEEP: ParamInfo = ParamInfo {
    key: "keep",
    default: "-",
    about: "instead of the method's own budget: share of the prefix kept, sinks and windows included, above 0 to 1; what follows the \
            prefix is kept as well",
};

/// The keys that set how many tokens are selected; at most one of them is given.
const BUDGET_KEYS: [&str; 3] = ["k", "ratio", DENSITY];

/// All settings except the one that sets how many tokens are selected.
pub(super) fn beside_budget(settings: &[Setting]) -> impl Iterator<Item = &Setting> {
    settings.iter().filter(|setting| setting.key != KEEP.key && !BUDGET_KEYS.contains(&setting.key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Vec<String> {
        let join = |s: MethodSpec| s.params.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",");
        expand_grid(text).unwrap().into_iter().map(join).collect()
    }

    #[test]
    fn grids_and_ranges_multiply() {
        assert_eq!(labels("topk"), [""]);
        assert_eq!(labels("m:K={8,9},L=75..150/25").len(), 8);
        assert_eq!(labels("m:K={8,9},L=1..2"), ["K=8,L=1", "K=8,L=2", "K=9,L=1", "K=9,L=2"]);
        assert_eq!(labels("m:r=0.1..0.3/0.1"), ["r=0.1", "r=0.2", "r=0.3"]);
        assert_eq!(labels("m:k={1..3,64}"), ["k=1", "k=2", "k=3", "k=64"]);
    }

    #[test]
    fn a_reader_is_parted_by_a_plus_as_well() {
        for (plus, canonical) in [
            ("hip+topk", "hip>topk"),
            ("hip:k={1,2},b_k=2+topk:k=3..4", "hip:k={1,2},b_k=2>topk:k=3..4"),
            ("hip:dense_layers=0+50%+topk:dense_layers=1+50%", "hip:dense_layers=0+50%>topk:dense_layers=1+50%"),
        ] {
            let specs = expand_grid(plus).unwrap();
            assert!(specs.iter().all(|spec| spec.reader.is_some()), "{plus}");
            assert_eq!(specs, expand_grid(canonical).unwrap(), "{plus}");
        }
        for value in ["topk:dense_layers=0+50%", "topk:schedule=4+2+1+1", "topk:schedule=1+x"] {
            assert_eq!(expand_grid(value).unwrap()[0].reader, None, "{value}");
        }
    }

    #[test]
    fn a_reader_stands_before_the_method_that_decodes() {
        let specs = expand_grid("hip:k={1,2},b_k=2>topk:k=3..4").unwrap();
        let of = |s: &MethodSpec| {
            let reader = s.reader.as_ref().unwrap();
            (reader.name.clone(), reader.params[0].1.clone(), s.name.clone(), s.params[0].1.clone())
        };
        let all: Vec<_> = specs.iter().map(of).collect();
        let expected = [("1", "3"), ("1", "4"), ("2", "3"), ("2", "4")];
        let expected = expected.map(|(reads, decodes)| ("hip".into(), reads.into(), "topk".into(), decodes.into()));
        assert_eq!(all, expected);
        for text in ["hip>", ">topk", "a>b>c", "hip:k=1..200>topk:k=1..200"] {
            assert!(expand_grid(text).unwrap_err().hint.is_some(), "{text}");
        }
    }

    #[test]
    fn a_value_in_quotes_is_taken_as_it_is() {
        let only = |text: &str| expand_grid(text).unwrap().remove(0).params;
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let command = "python3 my.py --x=1..5, {a} a>b c+de";
        let expected = pairs(&[("cmd", command), ("density", "0.1")]);
        assert_eq!(only(&format!("external:cmd=\"{command}\",density=0.1")), expected);
        assert_eq!(only(&format!("external:\"{command}\",density=0.1")), expected);
        assert_eq!(only("external:../my.py,k=3"), pairs(&[("cmd", "../my.py"), ("k", "3")]));
        assert_eq!(only("external:cmd=../my.py,k=3"), pairs(&[("cmd", "../my.py"), ("k", "3")]));
        assert_eq!(
            labels("m:cmd={\"a b\",\"c,d\"},k=1..2"),
            ["cmd=a b,k=1", "cmd=a b,k=2", "cmd=c,d,k=1", "cmd=c,d,k=2"]
        );
        let read_by_another = expand_grid("hip:k=2+external:\"a+bc\"").unwrap().remove(0);
        assert_eq!((read_by_another.reader.unwrap().name, read_by_another.name), ("hip".into(), "external".into()));
        for text in ["m:cmd=\"a", "m:cmd=\"a\"b", "m:cmd=\"\"", "m:k=1,my.py", "m:my.py,cmd=\"x\"", "m:k={}"] {
            assert!(expand_grid(text).unwrap_err().hint.is_some(), "{text}");
        }
    }

    #[test]
    fn malformed_specs_are_one_readable_line() {
        for text in ["", ":k=1", "m:k", "m:k=", "m:k={1", "m:k=1}", "m:k=5..1", "m:k=1..2/0", "m:k=a..b", "m:k=1,k=2"] {
            let e = expand_grid(text).unwrap_err();
            assert!(e.hint.is_some() && !e.what.contains('\n'), "{text}");
        }
    }

    #[test]
    fn grids_too_large_are_refused_before_they_are_made() {
        assert_eq!(expand_grid("m:k=1..100,j=1..100").unwrap().len(), 10_000);
        for text in ["m:k=1..10000,sink=1..10000", "m:k={1..9999,1..9999}", "m:k=1..1e9", "m:k=NaN..NaN", "m:k=1..inf"]
        {
            let e = expand_grid(text).unwrap_err();
            assert!(e.what.contains("10000") || e.hint.unwrap().contains("10000"), "{text}: {}", e.what);
        }
        let deep = format!("m:k={}1{}", "{".repeat(100_000), "}".repeat(100_000));
        assert!(expand_grid(&deep).unwrap_err().what.contains("braces"));
        let precise = format!("m:k=1..2/0.{}1", "0".repeat(70_000));
        assert!(expand_grid(&precise).unwrap_err().what.contains("decimals"));
    }

    #[test]
    fn numbers_have_bounds_that_errors_name() {
        let read = |text: &str, range| Params::new(&expand_grid(text).unwrap()[0]).get_within("n", 3, range);
        assert_eq!((read("m", 1..=9), read("m:n=9", 1..=9)), (Ok(3), Ok(9)));
        for text in ["m:n=0", "m:n=10", "m:n=-1", "m:n=1.5", "m:n=x", "m:n=99999999999999999999"] {
            let e = read(text, 1..=9).unwrap_err();
            assert_eq!(e.hint.as_deref(), Some("`n` should be a whole number from 1 to 9"), "{text}");
        }
    }

    #[test]
    fn unknown_parameters_name_the_nearest() {
        let spec = &expand_grid("quest:pagesize=16").unwrap()[0];
        let mut params = Params::new(spec);
        params.get("page_size", 16usize, "a whole number").unwrap();
        let e = params.finish().unwrap_err();
        assert!(e.what.contains("pagesize") && e.hint.unwrap().contains("page_size"));
    }
    #[test]
    fn what_is_given_displaces_the_budget_of_a_preset() {
        let read = |text: &str| {
            let mut params = Params::new(&expand_grid(text).unwrap()[0]);
            params.fill(&[("k", "9")]);
            let budget = params.budget(Budget::Tokens(1))?;
            params.finish().map(|settings| (budget, settings[0].key))
        };
        assert_eq!(read("m").unwrap(), (Budget::Tokens(9), "k"));
        assert_eq!(read("m:ratio=0.5").unwrap(), (Budget::Ratio(0.5), "ratio"));
        assert_eq!(read("m:density=0.5").unwrap(), (Budget::Density(0.5), "density"));
        assert!(read("m:density=0.5,k=3").unwrap_err().what.contains("k or density, not both"));
        for text in ["m:density=0", "m:density=1.1", "m:density=x", "m:density=NaN"] {
            assert!(read(text).unwrap_err().hint.unwrap().contains("above 0 and at most 1"), "{text}");
        }
    }

    #[test]
    fn what_is_kept_takes_the_place_of_another_budget() {
        let read = |text: &str, preset: &[(&str, &str)]| {
            let mut params = Params::new(&expand_grid(text).unwrap()[0]);
            params.fill(preset);
            let budget = params.budget_of_evicting(Budget::Tokens(1))?;
            params.finish().map(|settings| (budget, settings.len()))
        };
        assert_eq!(read("m:keep=0.25", &[("k", "9")]).unwrap(), (Budget::Kept(0.25), 1));
        assert_eq!(read("m", &[("keep", "0.5")]).unwrap(), (Budget::Kept(0.5), 1));
        assert_eq!(read("m:ratio=0.1", &[("keep", "0.5")]).unwrap(), (Budget::Ratio(0.1), 1));
        assert_eq!(read("m", &[]).unwrap(), (Budget::Tokens(1), 1));
        assert!(read("m:keep=0.5,density=0.5", &[]).unwrap_err().what.contains("density or keep, not both"));
        for text in ["m:keep=0", "m:keep=1.5", "m:keep=x"] {
            assert!(read(text, &[]).unwrap_err().hint.unwrap().contains("above 0 and at most 1"), "{text}");
        }
    }

    #[test]
    fn a_budget_in_a_methods_own_terms_may_be_a_density() {
        let read = |text: &str| {
            let mut params = Params::new(&expand_grid(text).unwrap()[0]);
            params.fill(&[("window", "9")]);
            params.tuned("window", 5usize, "a whole number")
        };
        assert_eq!(read("m").unwrap(), Tuned::Value(9));
        assert_eq!(read("m:window=3").unwrap(), Tuned::Value(3));
        assert_eq!(read("m:density=0.1").unwrap(), Tuned::Density(0.1));
        assert!(read("m:density=0.1,window=3").unwrap_err().what.contains("window or density"));
    }
}
