//! A claim of a paper as an item states it, and the settings of a run that differ from the paper's.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::claims::Test;
use super::experiment::Experiment;
use super::variant::Variant;
use spattn_base::error::UsageError;

/// A paper's statement about its numbers.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The statement, paraphrased in plain words.
    pub says: String,
    /// A short quote of the paper's own words.
    pub quote: Option<String>,
    /// Where the paper makes the statement: `§5.2`, `Table 1, caption`.
    #[serde(rename = "where")]
    pub place: Option<String>,
    /// Its test.
    pub test: Option<Test>,
    /// What is missing to test the claim.
    pub missing: Option<String>,
    /// Why the claim follows from the method's definition, so that numbers that agree with it are no finding.
    pub by_construction: Option<String>,
    /// A slip of the paper that concerns the claim.
    pub slip: Option<String>,
    /// The reason for the verdict, if it was investigated.
    #[serde(default)]
    pub because: Because,
    /// What was tried to find out why the numbers contradict the claim.
    #[serde(default, rename = "experiment")]
    pub experiments: Vec<Experiment>,
}

/// Reasons for verdicts, by what was run. A text alone is that for the built-in model and the times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Because {
    /// On the paper's own model.
    pub paper: Option<String>,
    /// On the built-in model.
    pub builtin: Option<String>,
    /// On a small pretrained model.
    pub real: Option<String>,
    /// Of the times that were taken on a GPU.
    pub times: Option<String>,
}

/// The table form of [`Because`].
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Reasons {
    paper: Option<String>,
    builtin: Option<String>,
    real: Option<String>,
    times: Option<String>,
}

impl<'de> Deserialize<'de> for Because {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrTable;
        impl<'de> Visitor<'de> for TextOrTable {
            type Value = Because;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a text, or a table such as {{ builtin = \"...\", real = \"...\" }}")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Because, E> {
                let text = Some(text.to_owned());
                Ok(Because { builtin: text.clone(), times: text, ..Because::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Because, A::Error> {
                let Reasons { paper, builtin, real, times } = Reasons::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Because { paper, builtin, real, times })
            }
        }
        deserializer.deserialize_any(TextOrTable)
    }
}

impl Claim {
    /// Checks that there is a test or a reason why there is none, and that no text is empty.
    ///
    /// # Errors
    /// If something is missing or superfluous, which the error names.
    pub(super) fn check(&self) -> Result<(), UsageError> {
        let within = |e: UsageError| UsageError { what: format!("the claim `{}`{}", self.says, e.what), ..e };
        let wrong = |what: &str, hint: &str| Err(within(UsageError::new(what).hint(hint)));
        match (&self.test, &self.missing) {
            (None, None) => {
                return wrong(" has no `test`", "say with `missing` what it would take, if it cannot be tested");
            }
            (Some(_), Some(_)) => return wrong(" has both `test` and `missing`", "give one of them"),
            _ => {}
        }
        if self.quote.is_some() && self.place.is_none() {
            return wrong(" has a `quote` and no `where`", "say where the paper has it: where = \"§5.2\"");
        }
        let texts = [
            ("quote", &self.quote),
            ("where", &self.place),
            ("by_construction", &self.by_construction),
            ("slip", &self.slip),
        ];
        if let Some((key, _)) = texts.iter().find(|(_, text)| text.as_ref().is_some_and(|text| text.trim().is_empty()))
        {
            return wrong(&format!(": `{key}` is empty"), "write a text, or leave the key out");
        }
        if self.test.is_none() && !self.experiments.is_empty() {
            return wrong(
                " has an `experiment` and no `test`",
                "an experiment explains a verdict: give the claim a test",
            );
        }
        let checked = self.test.iter().map(Test::check).chain(self.experiments.iter().map(Experiment::check));
        checked
            .into_iter()
            .collect::<Result<(), _>>()
            .map_err(|e| within(UsageError { what: format!(": {}", e.what), ..e }))
    }

    /// Returns the claim's own test and those of its experiments.
    pub(super) fn tests(&self) -> impl Iterator<Item = &Test> {
        self.test.iter().chain(self.experiments.iter().map(|experiment| &experiment.test))
    }
}

/// A setting of a run that differs from the paper's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Differs {
    /// The setting, by its key in the run or as a method's parameter: `local`, `samples`, `tail`.
    pub setting: String,
    /// Its value in the paper.
    pub paper: String,
    /// Its value here.
    pub here: String,
    /// Why it differs.
    pub because: String,
    /// The run, or the times, whose setting differs; all runs and the times if not given.
    pub variant: Option<Measuring>,
}

/// What settings belong to: one of an item's runs, or its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measuring {
    /// The run at the paper's own setting.
    Paper,
    /// The run on the built-in model.
    Builtin,
    /// The run on a small pretrained model.
    Real,
    /// The times that were taken on a GPU.
    Times,
}

impl From<Variant> for Measuring {
    fn from(variant: Variant) -> Self {
        match variant {
            Variant::Paper => Self::Paper,
            Variant::Builtin => Self::Builtin,
            Variant::Real => Self::Real,
        }
    }
}

impl Differs {
    /// Whether the difference concerns the settings of `measuring`.
    pub fn is_about(&self, measuring: impl Into<Measuring>) -> bool {
        let measuring = measuring.into();
        self.variant.is_none_or(|own| own == measuring)
    }

    /// Checks that no text is empty, and that the two values differ.
    ///
    /// # Errors
    /// If one of them fails; the error names the key.
    pub(super) fn check(&self) -> Result<(), UsageError> {
        let Self { setting, paper, here, because, .. } = self;
        let texts = [("setting", setting), ("paper", paper), ("here", here), ("because", because)];
        if let Some((key, _)) = texts.iter().find(|(_, text)| text.trim().is_empty()) {
            return Err(UsageError::new(format!("[[differs]] `{setting}`: `{key}` is empty")).hint("write a text"));
        }
        match paper == here {
            false => Ok(()),
            true => Err(UsageError::new(format!("[[differs]] `{setting}` does not differ: both are {paper}"))
                .hint("a setting that is as published needs no entry")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(more: &str) -> Claim {
        toml::from_str(&format!("says = 'a'\n{more}")).unwrap()
    }

    #[test]
    fn reasons_are_by_variant_and_a_text_is_about_the_built_in_model_and_times() {
        let text = claim("missing = 'x'\nbecause = 'why'").because;
        assert_eq!(text, Because { builtin: Some("why".into()), times: Some("why".into()), ..Because::default() });
        let table = claim("missing = 'x'\nbecause = { real = 'r', builtin = 'b' }").because;
        assert_eq!(table, Because { builtin: Some("b".into()), real: Some("r".into()), ..Because::default() });
        let error = toml::from_str::<Claim>("says = 'a'\nbecause = { reel = 'r' }").unwrap_err().to_string();
        assert!(error.contains("reel"), "{error}");
        assert!(toml::from_str::<Claim>("says = 'a'\nbecause = 3").is_err());
    }

    #[test]
    fn claims_have_a_test_or_what_is_missing_and_quotes_have_a_place() {
        let refused = |more: &str| claim(more).check().unwrap_err().what;
        assert_eq!(refused(""), "the claim `a` has no `test`");
        let test = "test = { between = { rows = ['r'], columns = ['c'], at_least = 1 } }";
        assert_eq!(refused(&format!("{test}\nmissing = 'x'")), "the claim `a` has both `test` and `missing`");
        assert_eq!(refused("missing = 'x'\nquote = 'q'"), "the claim `a` has a `quote` and no `where`");
        assert_eq!(refused("missing = 'x'\nby_construction = ' '"), "the claim `a`: `by_construction` is empty");
        let whole = claim(&format!("{test}\nquote = 'q'\nwhere = '§5.2'\nby_construction = 'it is so'\nslip = 's'"));
        assert!(whole.check().is_ok());
        assert_eq!((whole.place.as_deref(), whole.slip.as_deref()), (Some("§5.2"), Some("s")));
    }

    #[test]
    fn a_difference_has_two_values_and_a_reason() {
        let differs = |text: &str| toml::from_str::<Differs>(text).unwrap();
        let local = differs("setting = 'local'\npaper = '24'\nhere = '64'\nbecause = 'b'\nvariant = 'real'");
        assert!(local.check().is_ok() && local.is_about(Variant::Real) && !local.is_about(Variant::Builtin));
        let of_all = Differs { variant: None, ..local.clone() };
        assert!(of_all.is_about(Variant::Paper) && of_all.is_about(Variant::Real));
        assert!(Differs { here: "24".into(), ..local.clone() }.check().unwrap_err().what.contains("does not differ"));
        assert!(Differs { because: " ".into(), ..local }.check().unwrap_err().what.contains("`because` is empty"));
    }
}
