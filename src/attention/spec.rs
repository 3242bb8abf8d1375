//! Spec strings: `name:key=value,...` with grids `{a,b}` and ranges `a..b/step`, and typed parameters.

use std::fmt::Display;
use std::str::FromStr;

use crate::error::{UsageError, nearest};

/// A method's name with raw parameters, in the order given; no grid is left in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodSpec {
    /// Name as written.
    pub name: String,
    /// `(key, value)` as written.
    pub params: Vec<(String, String)>,
}

/// Expands one spec with grids and ranges into the specs it stands for, leftmost key varying slowest.
///
/// `magicpig:K={8,9},L=75..150/25` gives eight specs.
pub fn expand_grid(text: &str) -> Result<Vec<MethodSpec>, UsageError> {
    let malformed = |why: &str| {
        UsageError::new(format!("method spec `{text}`: {why}"))
            .hint("write name or name:key=value,key={a,b},key=a..b/step")
    };
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    if name.is_empty() {
        return Err(malformed("the name is missing"));
    }
    let mut specs = vec![MethodSpec { name: name.to_owned(), params: Vec::new() }];
    for pair in split_outside_braces(rest).ok_or_else(|| malformed("braces do not match"))? {
        let (key, value) = pair.split_once('=').ok_or_else(|| malformed(&format!("`{pair}` is not key=value")))?;
        if specs[0].params.iter().any(|(k, _)| k == key) {
            return Err(malformed(&format!("`{key}` is given twice")));
        }
        let values = expand_value(value).map_err(|why| malformed(&why))?;
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

fn split_outside_braces(text: &str) -> Option<Vec<&str>> {
    let (mut depth, mut start, mut parts) = (0usize, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    if !text.is_empty() {
        parts.push(&text[start..]);
    }
    (depth == 0).then_some(parts)
}

fn expand_value(value: &str) -> Result<Vec<String>, String> {
    if let Some(list) = value.strip_prefix('{').and_then(|v| v.strip_suffix('}')) {
        let mut values = Vec::new();
        for item in list.split(',') {
            values.extend(expand_value(item)?);
        }
        return Ok(values);
    }
    if value.is_empty() {
        return Err("a value is empty".to_owned());
    }
    match value.split_once("..") {
        Some((first, rest)) => expand_range(value, first, rest),
        None => Ok(vec![value.to_owned()]),
    }
}

/// `a..b/step`, both ends included; numbers keep as many decimals as the most precise of the three.
fn expand_range(text: &str, first: &str, rest: &str) -> Result<Vec<String>, String> {
    const MOST_VALUES: usize = 10_000;
    let (last, step) = rest.split_once('/').unwrap_or((rest, "1"));
    let number = |s: &str| s.parse::<f64>().map_err(|_| format!("range `{text}` is not a..b or a..b/step"));
    let (a, b, by) = (number(first)?, number(last)?, number(step)?);
    if by.is_nan() || by <= 0.0 || b < a || (b - a) / by > MOST_VALUES as f64 {
        return Err(format!("range `{text}` is empty, endless or larger than {MOST_VALUES} values"));
    }
    let decimals = [first, last, step].iter().map(|s| s.split_once('.').map_or(0, |(_, d)| d.len())).max().unwrap_or(0);
    let count = ((b - a) / by + 1e-9).floor() as usize + 1;
    Ok((0..count).map(|i| format!("{:.*}", decimals, a + i as f64 * by)).collect())
}

/// Raw parameters being read by a method; knows which keys were asked for, to refuse the others.
#[derive(Debug)]
pub struct Params {
    method: String,
    given: Vec<(String, String)>,
    known: Vec<&'static str>,
    canonical: Vec<(&'static str, String)>,
}

impl Params {
    /// Starts reading a spec's parameters.
    pub fn new(spec: &MethodSpec) -> Self {
        Self { method: spec.name.clone(), given: spec.params.clone(), known: Vec::new(), canonical: Vec::new() }
    }

    /// Adds `defaults` for keys that were not given (a preset). `k` and `ratio` stand for one key.
    pub fn fill(&mut self, defaults: &[(&str, &str)]) {
        let budget = |key: &str| key == "k" || key == "ratio";
        for (key, value) in defaults {
            if !self.given.iter().any(|(k, _)| k == key || budget(k) && budget(key)) {
                self.given.push(((*key).to_owned(), (*value).to_owned()));
            }
        }
    }

    /// Takes `key` out as text, without making it part of the canonical form.
    pub fn take(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        let at = self.given.iter().position(|(k, _)| k == key)?;
        Some(self.given.remove(at).1)
    }

    /// The value of `key`, or `default`; becomes part of the canonical form.
    pub fn get<T: FromStr + Display>(&mut self, key: &'static str, default: T) -> Result<T, UsageError> {
        let value = match self.take(key) {
            Some(text) => text.parse().map_err(|_| self.bad_value(key, &text, std::any::type_name::<T>()))?,
            None => default,
        };
        self.canonical.push((key, value.to_string()));
        Ok(value)
    }

    /// Like [`Self::get`] for whole numbers from 1.
    pub fn get_positive(&mut self, key: &'static str, default: usize) -> Result<usize, UsageError> {
        let value = self.get(key, default)?;
        if value == 0 {
            return Err(self.bad_value(key, "0", "at least 1"));
        }
        Ok(value)
    }

    /// Like [`Self::get_positive`], but part of the canonical form only if it differs from `default`.
    pub fn get_minor(&mut self, key: &'static str, default: usize) -> Result<usize, UsageError> {
        let value = self.get_positive(key, default)?;
        if value == default {
            self.canonical.pop();
        }
        Ok(value)
    }

    /// Like [`Self::get`], but part of the canonical form only if it differs from `default`.
    pub fn get_unless_default<T>(&mut self, key: &'static str, default: T) -> Result<T, UsageError>
    where
        T: FromStr + Display + PartialEq + Copy,
    {
        let value = self.get(key, default)?;
        if value == default {
            self.canonical.pop();
        }
        Ok(value)
    }

    /// Like [`Self::get`], but part of the canonical form only if it differs from `default`; for types
    /// whose error text is `expected`.
    pub fn get_minor_as<T: FromStr + Display + PartialEq>(
        &mut self,
        key: &'static str,
        default: T,
        expected: &str,
    ) -> Result<T, UsageError> {
        let Some(text) = self.take(key) else { return Ok(default) };
        let value: T = text.parse().map_err(|_| self.bad_value(key, &text, expected))?;
        if value != default {
            self.canonical.push((key, value.to_string()));
        }
        Ok(value)
    }

    /// One of `choices`, the first being the default; part of the canonical form unless it is the default.
    pub fn choice(&mut self, key: &'static str, choices: &[&'static str]) -> Result<&'static str, UsageError> {
        let chosen = match self.take(key) {
            Some(text) => *choices
                .iter()
                .find(|c| **c == text)
                .ok_or_else(|| self.bad_value(key, &text, &format!("one of {}", choices.join(", "))))?,
            None => choices[0],
        };
        if chosen != choices[0] {
            self.canonical.push((key, chosen.to_owned()));
        }
        Ok(chosen)
    }

    /// A budget of tokens: `k` tokens, or `ratio` of the context; `default` if neither is given.
    pub fn budget(&mut self, default: Budget) -> Result<Budget, UsageError> {
        let (k, ratio) = (self.take("k"), self.take("ratio"));
        let budget = match (k, ratio) {
            (Some(_), Some(_)) => {
                return Err(UsageError::new(format!("method `{}`: give k or ratio, not both", self.method)));
            }
            (Some(k), None) => match k.parse::<usize>() {
                Ok(k) if k > 0 => Budget::Tokens(k),
                _ => return Err(self.bad_value("k", &k, "a whole number from 1")),
            },
            (None, Some(ratio)) => match ratio.parse::<f64>() {
                Ok(r) if r > 0.0 && r <= 1.0 => Budget::Ratio(r),
                _ => return Err(self.bad_value("ratio", &ratio, "above 0 and at most 1")),
            },
            (None, None) => default,
        };
        match budget {
            Budget::Tokens(k) => self.canonical.push(("k", k.to_string())),
            Budget::Ratio(r) => self.canonical.push(("ratio", r.to_string())),
        }
        Ok(budget)
    }

    /// "parameter `key=value` of `method` should be ...".
    pub fn bad_value(&self, key: &str, value: &str, expected: &str) -> UsageError {
        let expected = match expected {
            "usize" | "u64" => "a whole number",
            "f32" | "f64" => "a number",
            "bool" => "true or false",
            other => other,
        };
        UsageError::new(format!("method `{}`: `{key}={value}` is out of range", self.method))
            .hint(format!("`{key}` should be {expected}"))
    }

    /// Ends reading: an error if a key was given that nobody asked for, else the canonical pairs.
    pub fn finish(self) -> Result<Vec<(&'static str, String)>, UsageError> {
        let Some((key, _)) = self.given.first() else { return Ok(self.canonical) };
        let hint = match nearest(key, &self.known) {
            Some(near) => format!("did you mean `{near}`? `spattn list methods` shows all parameters"),
            None if self.known.is_empty() => "it takes none here".to_owned(),
            None => format!("its parameters: {}", self.known.join(", ")),
        };
        Err(UsageError::new(format!("method `{}` has no parameter `{key}`", self.method)).hint(hint))
    }
}

/// How many tokens a method may pick beyond the static ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// So many tokens.
    Tokens(usize),
    /// This share of the tokens in context, rounded up.
    Ratio(f64),
}

impl Budget {
    /// Tokens to pick when `context` tokens are in context.
    pub fn tokens(self, context: usize) -> usize {
        match self {
            Budget::Tokens(k) => k,
            Budget::Ratio(r) => (r * context as f64).ceil() as usize,
        }
    }
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
    fn malformed_specs_are_one_readable_line() {
        for text in ["", ":k=1", "m:k", "m:k=", "m:k={1", "m:k=1}", "m:k=5..1", "m:k=1..2/0", "m:k=a..b", "m:k=1,k=2"] {
            let e = expand_grid(text).unwrap_err();
            assert!(e.hint.is_some() && !e.what.contains('\n'), "{text}");
        }
    }

    #[test]
    fn unknown_parameters_name_the_nearest() {
        let spec = &expand_grid("quest:pagesize=16").unwrap()[0];
        let mut params = Params::new(spec);
        params.get("page_size", 16usize).unwrap();
        let e = params.finish().unwrap_err();
        assert!(e.what.contains("pagesize") && e.hint.unwrap().contains("page_size"));
    }
}
