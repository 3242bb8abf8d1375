//! Settings of a training: its parameters, the presets that publications give, and how an artefact names them.

use std::collections::BTreeMap;

use crate::calibration::collector::TextKind;
use crate::kv::MOST_TOKENS;
use crate::methods::Preset;
use crate::methods::hash_attention::kind::{NAME, NETS, NetKind, PRESETS, TEXT, TRAINING, text_name};
use crate::methods::hash_attention::training::{LossMean, LossRule, Wanted};
use crate::{MethodSpec, Params};
use spattn_base::error::UsageError;

/// Largest number of steps on a chunk that can be requested.
const MOST_STEPS: usize = 10_000;
/// Largest number of bits of the random signatures that nets are compared with.
const MOST_PLANES: usize = 4096;

/// Presets of the training, with the settings that the method's preset of the same name does not have. The first is the default.
const TRAININGS: [(&str, &[(&str, &str)]); 3] = [("tuned", &[]), ("paper", &PUBLISHED), ("repo", &OF_CODE)];

const PUBLISHED: [(&str, &str); 12] = published("64");
const OF_CODE: [(&str, &str); 12] = published("32");

/// Steps and labels are those of HashAttention §4.2, the rest those of the authors' `train_hashattention.py`.
const fn published(top: &str) -> [(&str, &str); 12] {
    [
        (TEXT, "general"),
        ("steps", "1"),
        ("queries", "128"),
        ("top", top),
        ("rate", "0.001"),
        ("decay", "none"),
        ("standardise", "false"),
        ("alpha", "20"),
        ("beta", "0"),
        ("mass", "0"),
        ("scale", "1"),
        ("mean", "pairs"),
    ]
}

/// Settings that a training takes from the method's preset of the same name.
const SHARED: [&str; 5] = ["bits", "label", "key_nets", "sink", "local"];

/// Settings of a preset of the training.
fn preset_values(name: &str) -> Vec<(&'static str, &'static str)> {
    let of_training = TRAININGS.iter().filter(|(n, _)| *n == name).flat_map(|(_, values)| values.iter().copied());
    let of_method = PRESETS.iter().filter(|p: &&Preset| p.name == name).flat_map(|p| p.values.iter().copied());
    of_training.chain(of_method.filter(|(key, _)| SHARED.contains(key))).collect()
}

/// The [`TRAINING`] setting of an artefact that was trained with a preset.
pub(in super::super) fn training_of(preset: &str) -> String {
    let spec = MethodSpec { params: vec![("preset".to_owned(), preset.to_owned())], ..MethodSpec::bare(NAME) };
    Settings::read(&mut Params::new(&spec)).expect("presets are within range").training()
}

/// One of the keys with the largest scores of a query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Largest {
    pub(super) key: u32,
    /// Its share of the sum over all wanted keys: of `a`, or of `a·‖v‖`.
    pub(super) share: f32,
}

/// Settings of a training.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) kind: NetKind,
    /// The text to read if none is given; otherwise the kind of the given text.
    pub(super) text: TextKind,
    /// Whether the user asked for this kind of text.
    pub(super) asks_for_text: bool,
    pub(super) steps: usize,
    pub(super) queries: usize,
    pub(super) top: usize,
    pub(super) rate: f32,
    pub(super) alpha: f32,
    pub(super) beta: f32,
    /// Share of the wanted tokens' weight that is distributed by attention.
    pub(super) mass: f32,
    pub(super) rule: LossRule,
    /// Whether the rate falls linearly to 0.
    pub(super) decays: bool,
    pub(super) standardises: bool,
    /// Number of first and of last tokens that are attended anyway.
    pub(super) sink: usize,
    pub(super) local: usize,
    /// Bits of the random signatures to compare with on held-out text.
    pub(super) against: Widths,
}

/// Numbers of bits, written with `+` between them; if empty, the bits of the nets.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Widths(pub(super) Vec<usize>);

impl std::str::FromStr for Widths {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let width = |text: &str| text.parse().ok().filter(|bits| (1..=MOST_PLANES).contains(bits)).ok_or(());
        Ok(Self(text.split('+').map(width).collect::<Result<_, _>>()?))
    }
}

impl std::fmt::Display for Widths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let texts: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(if texts.is_empty() { "-".to_owned() } else { texts.join("+") }.as_str())
    }
}

impl Settings {
    pub(super) fn read(params: &mut Params) -> Result<Self, UsageError> {
        let asks_for_text = params.is_given(TEXT);
        let preset = params.choice("preset", &["tuned", "paper", "repo"])?;
        params.fill(&preset_values(preset));
        let kind = NetKind::read(params)?;
        let text = match params.choice(TEXT, &["tasks", "general"])? {
            "general" => TextKind::General,
            _ => TextKind::Tasks,
        };
        let positive = |params: &mut Params, key: &'static str, default: f32| {
            let value = params.get(key, default, "a number above 0")?;
            match value > 0.0 && value.is_finite() {
                true => Ok(value),
                false => Err(params.bad_value(key, &value.to_string(), "a number above 0")),
            }
        };
        let (steps, queries) = (params.get_within("steps", 16, 1..=MOST_STEPS)?, params.get_positive("queries", 64)?);
        let (top, rate) = (params.get_positive("top", 64)?, positive(params, "rate", 4e-3)?);
        let (alpha, scale) = (positive(params, "alpha", 20.0)?, positive(params, "scale", 0.3)?);
        let beta: f32 = params.get("beta", 0.0, "a number from 0")?;
        if !(beta >= 0.0 && beta.is_finite()) {
            return Err(params.bad_value("beta", &beta.to_string(), "a number from 0"));
        }
        let mass: f32 = params.get("mass", 0.8, "a number from 0 to 1")?;
        if !(0.0..=1.0).contains(&mass) {
            return Err(params.bad_value("mass", &mass.to_string(), "a number from 0 to 1"));
        }
        let decays = params.choice("decay", &["linear", "none"])? == "linear";
        let standardises = params.choice("standardise", &["true", "false"])? == "true";
        let mean = match params.choice("mean", &["weights", "pairs"])? {
            "pairs" => LossMean::Pairs,
            _ => LossMean::Weights,
        };
        let (sink, local) =
            (params.get_within("sink", 4, 0..=MOST_TOKENS)?, params.get_within("local", 64, 0..=MOST_TOKENS)?);
        let expected = "numbers from 1 to 4096 with + between them";
        let against = params.get_minor_as("against", Widths(Vec::new()), expected)?;
        let rule = LossRule { scale, mean };
        Ok(Self {
            kind,
            text,
            asks_for_text,
            steps,
            queries,
            top,
            rate,
            alpha,
            beta,
            mass,
            rule,
            decays,
            standardises,
            sink,
            local,
            against,
        })
    }

    /// Refuses a given text that is not of the kind that the user asked for.
    pub(super) fn check_text(&self, params: &Params, read: TextKind) -> Result<(), UsageError> {
        if !self.asks_for_text || self.text == read {
            return Ok(());
        }
        let (asked, given) = (text_name(self.text), text_name(read));
        Err(UsageError::new(format!("`{}:{TEXT}={asked}`, and the text that is given is `{given}`", params.method()))
            .hint(format!("leave `{TEXT}` out: what is learned from a given text is named by it")))
    }

    /// The wanted keys of a query with their weights, whose mean is `α + β·context` (eq. 4).
    pub(super) fn weigh(&self, wanted: &[Largest], context: usize) -> Vec<Wanted> {
        let all = self.alpha + self.beta * context as f32;
        // Shares sum to 1, so the mean weight stays the same.
        let by_share = self.mass * wanted.len() as f32;
        let weight = |w: &Largest| Wanted { key: w.key, weight: all * (1.0 - self.mass + by_share * w.share) };
        wanted.iter().map(weight).collect()
    }

    /// The settings that the nets depend on, beside their kind and text. Settings that were added later are left out at
    /// their original values, so that earlier artefacts compare as equal.
    pub(super) fn training(&self) -> String {
        let Self { steps, queries, top, rate, alpha, beta, mass, rule, sink, local, .. } = self;
        let mut text = format!(
            "steps={steps},queries={queries},top={top},rate={rate},alpha={alpha},beta={beta},mass={mass},scale={}",
            rule.scale
        );
        if rule.mean == LossMean::Pairs {
            text += ",mean=pairs";
        }
        if !self.standardises {
            text += ",standardise=false";
        }
        if (*sink, *local) != (4, 64) {
            text += &format!(",sink={sink},local={local}");
        }
        text + if self.decays { "; Adam, rate falling linearly to 0" } else { "; Adam, rate as it is" }
    }

    /// The settings of an artefact ([`ArtefactInfo::settings`](crate::calibration::artefact::ArtefactInfo::settings)).
    pub(super) fn told(&self) -> BTreeMap<String, String> {
        let mut told = BTreeMap::from([
            (NETS.to_owned(), self.kind.to_string()),
            (TRAINING.to_owned(), self.training()),
            ("vectors".to_owned(), "after RoPE, as cached".to_owned()),
        ]);
        // Artefacts without this setting were trained on text like the tasks.
        if self.text == TextKind::General {
            told.insert(TEXT.to_owned(), text_name(self.text).to_owned());
        }
        told
    }
}
