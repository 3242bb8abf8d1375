//! What an item runs under the chosen variant and model (an evaluation, an analysis, calibrations), and the folder of its records.

use std::path::PathBuf;

use anyhow::Result;

use super::args::{RUNS, ReproduceArgs};
use super::real_file::RealFile;
use crate::report::papers::slug;
use spattn_base::error::UsageError;
use spattn_eval::config::settings::Settings;
use spattn_lab::papers::item::{Item, Variant};
use spattn_lab::papers::learning::Learning;
use spattn_lab::papers::real_models::{REAL_MODELS, RealModel};
use spattn_lab::papers::run_of::{BUILTIN, RunOf};
use spattn_lab::papers::seen::Observing;
use spattn_model::source::recorded;

/// The runs of an item.
#[derive(Debug)]
pub(super) struct ItemRun {
    pub variant: Variant,
    /// The only model, by its name in tables; `None` if the paper's own models are run.
    pub model: Option<String>,
    pub real: Option<RealFile>,
    pub settings: Option<Settings>,
    /// The settings of the run in which each method's steps are timed alone.
    pub latency: Option<Settings>,
    /// The settings of the run of random tokens, which gives the floor of the scores.
    pub floor: Option<Settings>,
    /// The settings of the runs that add examples of some methods.
    pub more: Vec<Settings>,
    pub observing: Option<Observing>,
    pub learning: Option<Learning>,
    pub folder: PathBuf,
    /// Why parts of the item are not run.
    pub left_out: Option<String>,
}

impl ItemRun {
    /// The run as the judgement of claims identifies it.
    pub(super) fn run_of(&self) -> RunOf<'_> {
        RunOf { variant: self.variant, model: self.model.as_deref() }
    }

    /// Whether there is nothing to run.
    pub(super) fn is_empty(&self) -> bool {
        self.settings.is_none() && self.observing.is_none() && self.learning.is_none()
    }

    /// Leaves out lengths beyond `most`, the length that the model was trained for.
    fn within(mut self, most: usize, title: &str) -> Self {
        let mut beyond = Vec::new();
        let mut keep = |lengths: &mut Vec<usize>| {
            beyond.extend(lengths.iter().copied().filter(|length| *length > most));
            lengths.retain(|length| *length <= most);
            !lengths.is_empty()
        };
        let run_fits = self.settings.as_mut().and_then(|run| run.lengths.as_mut()).is_none_or(&mut keep);
        let floor_fits = self.floor.as_mut().and_then(|run| run.lengths.as_mut()).is_none_or(&mut keep);
        let latency_fits = self.latency.as_mut().and_then(|run| run.lengths.as_mut()).is_none_or(&mut keep);
        self.more.retain_mut(|run| run.lengths.as_mut().is_none_or(&mut keep));
        let seen_fits = self.observing.as_mut().is_none_or(|observing| keep(&mut observing.lengths));
        let learned_fits = self.learning.as_ref().is_none_or(|learning| learning.length <= most);
        beyond.extend(self.learning.as_ref().map(|learning| learning.length).filter(|_| !learned_fits));
        self.settings = self.settings.filter(|_| run_fits);
        self.latency = self.latency.filter(|_| latency_fits);
        self.floor = self.floor.filter(|_| floor_fits);
        self.observing = self.observing.filter(|_| seen_fits);
        self.learning = self.learning.filter(|_| learned_fits);
        if !beyond.is_empty() {
            let lengths: Vec<String> = beyond.iter().map(ToString::to_string).collect();
            self.left_out = Some(format!("{title} was trained for {most} tokens; left out: {}", lengths.join(", ")));
        }
        self
    }
}

impl ReproduceArgs {
    /// The chosen variant.
    pub(super) fn variant(&self) -> Variant {
        match (self.builtin, &self.real) {
            (true, _) => Variant::Builtin,
            (_, Some(_)) => Variant::Real,
            _ => Variant::Paper,
        }
    }

    /// The pretrained model for `--real`: the named one, else the item's own, else the first of the list.
    fn real_model(&self, item: &Item) -> Result<&'static RealModel, UsageError> {
        let named = self.real.as_deref().filter(|name| !name.is_empty());
        let of_run = item.settings(Variant::Real).and_then(|settings| settings.model?.0.into_iter().next());
        let of_others = item.observing(Variant::Real).map(|observing| observing.model.clone());
        let of_others = of_others.or_else(|| item.learning(Variant::Real).map(|learning| learning.model.clone()));
        match named.map(str::to_owned).or(of_run).or(of_others) {
            Some(name) => RealModel::find(&name),
            None => Ok(&REAL_MODELS[0]),
        }
    }

    /// The file of the pretrained model, which is hashed only once.
    fn real_file(&self, item: &Item) -> Result<RealFile, UsageError> {
        if let Some(source) = &self.model {
            return self.files.of("", || Ok(RealFile::of_flag(source)));
        }
        let model = self.real_model(item)?;
        self.files.of(model.name, || RealFile::of_list(model, !self.draw_only))
    }

    /// What an item runs.
    ///
    /// # Errors
    /// If a pretrained model's file is missing or has another hash.
    pub(super) fn item_run(&self, name: &str, item: &Item) -> Result<ItemRun, UsageError> {
        let variant = self.variant();
        // An item without a run on a pretrained model needs no file.
        let real = if variant == Variant::Real && item.is_run(variant) { Some(self.real_file(item)?) } else { None };
        let model = match (variant, &real, &self.model) {
            (Variant::Builtin, ..) => Some(BUILTIN.to_owned()),
            (_, Some(file), _) => Some(file.title.clone()),
            (_, None, Some(model)) => Some(recorded(model)),
            _ => None,
        };
        let source = real.as_ref().map(|file| file.source.clone()).or_else(|| self.model.clone());
        let with_model = |settings: Settings| Settings {
            model: source.clone().map(Into::into).or(settings.model.clone()),
            ..settings
        };
        let of = |own: &String| source.clone().unwrap_or_else(|| own.clone());
        let observing = item.observing(variant).cloned().map(|own| {
            let samples = self.samples.map(|samples| samples.next_multiple_of(own.together));
            Observing { model: of(&own.model), samples: samples.unwrap_or(own.samples), ..own }
        });
        let run = ItemRun {
            variant,
            settings: item.settings(variant).map(with_model),
            latency: item.latency_settings(variant).map(with_model),
            floor: item.floor_settings(variant).map(with_model),
            // `--samples N` gives every method N examples.
            more: match self.samples {
                Some(_) => Vec::new(),
                None => item.more_settings(variant).into_iter().map(with_model).collect(),
            },
            observing,
            learning: item.learning(variant).cloned().map(|own| Learning { model: of(&own.model), ..own }),
            folder: self.folder_of_run(name, variant, model.as_deref()),
            left_out: None,
            model,
            real,
        };
        Ok(match run.real.clone().and_then(|file| Some((file.most_tokens()?, file.title))) {
            Some((most, title)) => run.within(most, &title),
            None => run,
        })
    }

    /// The folder of a run's records. Each model has its own.
    fn folder_of_run(&self, name: &str, variant: Variant, model: Option<&str>) -> PathBuf {
        let runs = self.out.join(RUNS).join(variant.name());
        match model.filter(|_| variant != Variant::Builtin) {
            Some(model) => runs.join(slug(model)).join(name),
            None => runs.join(name),
        }
    }
}
