//! Self-checks: warnings about records with suspicious numbers.
//!
//! Most wrong numbers in this field come from prompts, lengths, stop tokens and scorers, not from methods, and are visible in the records.
//! No warning stops a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rayon::prelude::*;
use serde::Serialize;

use super::cells::{Cell, group, merit, place};
use super::times::{Times, prevailing};
use crate::eval::records::interning::InternedStr;
use crate::eval::records::record::REFERENCE;
use crate::eval::records::record::Record;
use crate::eval::records::timing::TimingConditions;
use spattn_model::source::RANDOM;
use spattn_stats::several::greatest_discovery;
use spattn_stats::{Estimate, ratios};
use spattn_tasks::likelihood::Measure;

/// What a warning is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The weights are random, so scores mean nothing.
    RandomWeights,
    /// Too few examples to compare methods on a task.
    FewExamples,
    /// Prompts that do not begin with exactly one BOS token, on a model whose tokenizer or template adds one.
    Bos,
    /// Examples that fill less than 95 % of the requested length, or are longer.
    Length,
    /// Some samples were recorded several times, by runs that differ.
    RepeatedSamples,
    /// Empty predictions.
    EmptyPredictions,
    /// The dense score is too low to tell methods apart.
    LowReference,
    /// A sparse method is better than dense beyond noise.
    AboveReference,
    /// A larger budget scores worse beyond noise.
    NotMonotone,
    /// A requested density was missed by more than a quarter.
    DensityMissed,
    /// Prompts whose middle was cut out.
    Cut,
    /// Rows that were timed under other conditions than most rows near them.
    TimedApart,
    /// Generations that reached the token limit where dense ones stop.
    Truncated,
    /// Most attended tokens were not selected: they belong to the tail.
    FreeTokens,
    /// A method whose publications all keep some layers dense was run without dense layers.
    NoDenseLayers,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Check::RandomWeights => "random_weights",
            Check::FewExamples => "few_examples",
            Check::Bos => "bos",
            Check::Length => "length",
            Check::RepeatedSamples => "repeated_samples",
            Check::EmptyPredictions => "empty_predictions",
            Check::LowReference => "low_reference",
            Check::AboveReference => "above_reference",
            Check::NotMonotone => "not_monotone",
            Check::DensityMissed => "density_missed",
            Check::Cut => "cut",
            Check::TimedApart => "timed_apart",
            Check::Truncated => "truncated",
            Check::FreeTokens => "free_tokens",
            Check::NoDenseLayers => "no_dense_layers",
        })
    }
}

/// A warning to consider before trusting a number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Warning {
    /// What it is about.
    pub code: Check,
    /// Model id; this and the next two are empty if the warning is about all records.
    pub model: String,
    /// Protocol.
    pub protocol: String,
    /// Full task name.
    pub task: String,
    /// The requested length in tokens; 0 if a file fixes it.
    pub length: usize,
    /// The method's name without parameters, if it is about one method.
    pub method: Option<String>,
    /// Canonical parameters, if it is about one setting.
    pub params: Option<String>,
    /// One readable line with the numbers, without model, protocol, task, length and method.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_general() {
            return f.write_str(&self.message);
        }
        f.write_str(&self.task)?;
        if self.length > 0 {
            write!(f, " at {}", self.length)?;
        }
        if let Some(method) = &self.method {
            write!(f, ", {method}")?;
        }
        if let Some(params) = self.params.as_deref().filter(|params| !params.is_empty()) {
            write!(f, ":{params}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl Warning {
    /// Whether it is about all records, not about one task.
    pub fn is_general(&self) -> bool {
        self.task.is_empty()
    }
}

/// From this many on, warnings of one kind are grouped.
pub const MANY: usize = 4;

/// The warnings in short: each one, or, of a kind with many, only the first with their number.
pub fn in_short(warnings: &[Warning]) -> Vec<(Check, String)> {
    let (mut of_kind, mut seen, mut told) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
    warnings.iter().for_each(|warning| *of_kind.entry(warning.code).or_insert(0) += 1);
    for warning in warnings {
        let (all, is_first) = (of_kind[&warning.code], seen.insert(warning.code));
        if all < MANY {
            told.push((warning.code, warning.to_string()));
        } else if is_first {
            told.push((warning.code, format!("{warning}; and {} more that are `{}`", all - 1, warning.code)));
        }
    }
    told
}

/// The least share of the length that examples of a sized task should fill.
const LEAST_FILL: f64 = 0.95;
/// The share of empty predictions from which on they cause a warning.
const EMPTY_SHARE: f64 = 0.05;
/// The dense score below which methods cannot be told apart.
const LEAST_REFERENCE: f64 = 0.5;
/// The share of generations at the token limit from which on they cause a warning.
const TRUNCATED_SHARE: f64 = 0.5;
/// The method whose publications all use dense layers, and that loses much without them.
const MAGICPIG: &str = "magicpig";
/// One of this many layers is dense there.
const PUBLISHED_STEP: usize = 16;
/// The share of tokens attended in addition to the budget from which on they cause a warning.
const FREE_SHARE: f64 = 0.5;
/// The share by which a requested density may be missed.
const DENSITY_TOLERANCE: f64 = 0.25;
/// The factor from which on a density or an output error counts as larger.
const LARGER: f64 = 1.02;
/// The most layers that one warning names.
const MOST_LAYERS: usize = 4;
/// If only larger losses than this share can be detected, there are too few examples.
pub const FEW_TELL: f64 = 0.5;
/// The loss that the recommended number of examples would detect: about the smallest that papers emphasise.
const TOLD: f64 = 0.1;

/// All warnings about the records, in the order of the summary (`order` as there). The order of the records does not matter.
pub fn check(records: &[Record], order: &[(String, String)]) -> Vec<Warning> {
    check_cells(&group(records, order))
}

/// All warnings about the records of cells, in the order of the summary.
pub fn check_cells(cells: &[Cell]) -> Vec<Warning> {
    let real = Discoveries::among(cells);
    let general = random_weights(cells).into_iter().chain(few_examples(cells));
    let of_places: Vec<Vec<Warning>> = by_place(cells).into_par_iter().map(|cells| check_place(cells, &real)).collect();
    general.chain(of_places.into_iter().flatten()).collect()
}

/// The cells of each model, protocol, task and length.
fn by_place<'b, 'a>(cells: &'b [Cell<'a>]) -> Vec<&'b [Cell<'a>]> {
    cells.chunk_by(|a, b| place(a.head()) == place(b.head())).collect()
}

fn check_place(cells: &[Cell], real: &Discoveries) -> Vec<Warning> {
    let full = cells.iter().find(|cell| cell.head().method == REFERENCE);
    let of_all = [bos(cells), length(cells), cut(cells), full.and_then(low_reference)];
    let mut warnings: Vec<Warning> = of_all.into_iter().flatten().collect();
    for cell in cells {
        let of_cell = [repeated(cell), empty(cell), density_missed(cell), free_tokens(cell), no_dense_layers(cell)];
        warnings.extend(of_cell.into_iter().flatten());
        if let Some(full) = full {
            warnings.extend([truncated(cell, full), above(cell, full, real)].into_iter().flatten());
        }
    }
    warnings.extend(timed_apart(cells));
    warnings.extend(not_monotone(cells, real));
    warnings
}

fn at_place(code: Check, r: &Record, message: String) -> Warning {
    let [model, protocol, task] = [&r.model, &r.protocol, &r.task].map(|text| text.as_str().to_owned());
    Warning { code, model, protocol, task, length: r.length, method: None, params: None, message }
}

fn of_cell(code: Check, cell: &Cell, message: String) -> Warning {
    let r = cell.head();
    Warning { method: Some(r.method.to_string()), params: Some(r.params.to_string()), ..at_place(code, r, message) }
}

/// One record for each example, from any method.
fn examples<'a>(cells: &[Cell<'a>]) -> Vec<&'a Record> {
    // The last record of each, in the order of the cells.
    let mut records: Vec<&Record> = cells.iter().rev().flat_map(|cell| &cell.records).copied().collect();
    records.sort_by_key(|r| (r.seed, r.sample));
    records.dedup_by_key(|r| (r.seed, r.sample));
    records
}

fn bos(cells: &[Cell]) -> Option<Warning> {
    let all = examples(cells);
    let wrong: Vec<usize> = all.iter().filter_map(|r| r.bos_tokens).filter(|n| *n != 1).collect();
    let (least, most) = (wrong.iter().min()?, wrong.iter().max()?);
    let count = if least == most { format!("{least}") } else { format!("{least} to {most}") };
    let message = format!("{} of {} prompts have {count} BOS tokens instead of one", wrong.len(), all.len());
    Some(at_place(Check::Bos, all[0], message))
}

fn length(cells: &[Cell]) -> Option<Warning> {
    let all = examples(cells);
    let asked = all.first()?.length as f64;
    // For prompts that are cut, the length is a limit and need not be filled.
    let fills = all.iter().filter(|r| r.length > 0 && r.max_new_tokens > 0 && r.cut_tokens.is_none());
    let fills: Vec<f64> = fills.map(|r| (r.prompt_tokens + r.max_new_tokens) as f64 / asked).collect();
    let wrong = fills.iter().filter(|fill| **fill < LEAST_FILL || **fill > 1.0).count();
    if wrong == 0 {
        return None;
    }
    let least = fills.iter().copied().fold(f64::INFINITY, f64::min);
    let most = fills.iter().copied().fold(0.0, f64::max);
    let message = format!(
        "{wrong} of {} examples fill less than 95 % or more than 100 % of {asked} tokens (from {:.1} % to {:.1} %)",
        fills.len(),
        100.0 * least,
        100.0 * most
    );
    Some(at_place(Check::Length, all[0], message))
}

fn cut(cells: &[Cell]) -> Option<Warning> {
    let all = examples(cells);
    let cut: Vec<usize> = all.iter().filter_map(|r| r.cut_tokens).filter(|tokens| *tokens > 0).collect();
    let most = cut.iter().max()?;
    let limit = match all[0].length {
        0 => "the model's context".to_owned(),
        length => format!("{length} tokens"),
    };
    let message = format!(
        "{} of {} prompts were cut in the middle to fit {limit} (by up to {most} tokens)",
        cut.len(),
        all.len()
    );
    Some(at_place(Check::Cut, all[0], message))
}

fn low_reference(full: &Cell) -> Option<Warning> {
    if !full.measure().is_score() {
        return None;
    }
    let score = full.mean(|r| r.score);
    (score < LEAST_REFERENCE).then(|| {
        let message = format!(
            "the dense score is {:.1} % (below {:.0} %): differences between methods say little here",
            100.0 * score,
            100.0 * LEAST_REFERENCE
        );
        of_cell(Check::LowReference, full, message)
    })
}

fn timed_apart(cells: &[Cell]) -> Option<Warning> {
    let around = prevailing(cells);
    let apart: Vec<Times> = cells.iter().map(|cell| Times::of(cell, around)).filter(|times| times.is_apart).collect();
    let said = |conditions: Option<&TimingConditions>| {
        conditions.map_or("not recorded".to_owned(), TimingConditions::to_string)
    };
    let message = format!(
        "the times of {} of {} rows were taken under other conditions and cannot be compared with the rest ({}; the \
         rest: {})",
        apart.len(),
        cells.len(),
        said(apart.first()?.conditions.as_ref()),
        said(around)
    );
    Some(at_place(Check::TimedApart, cells[0].head(), message))
}

fn repeated(cell: &Cell) -> Option<Warning> {
    (cell.repeated > 0).then(|| {
        let message = format!(
            "{} records repeat one of the {} samples under another key and are left out; were different runs merged?",
            cell.repeated,
            cell.records.len()
        );
        of_cell(Check::RepeatedSamples, cell, message)
    })
}

fn empty(cell: &Cell) -> Option<Warning> {
    if cell.head().likelihood.is_some() {
        return None; // Nothing was to be generated.
    }
    let n = cell.records.len();
    let empty = cell.records.iter().filter(|r| r.prediction.trim().is_empty()).count();
    (empty as f64 >= EMPTY_SHARE * n as f64 && empty > 0)
        .then(|| of_cell(Check::EmptyPredictions, cell, format!("{empty} of {n} predictions are empty")))
}

fn density_missed(cell: &Cell) -> Option<Warning> {
    let target = cell.head().density_target()?;
    let achieved = cell.mean(|r| r.density_sparse_layers);
    let deviation = achieved / target - 1.0;
    (deviation.abs() > DENSITY_TOLERANCE).then(|| {
        let reason = match deviation > 0.0 {
            true => {
                "; sink, window and question alone may be too many for this length, or steps attend more widely than \
                 the prefix's last queries, by which parameters are solved"
            }
            false => "",
        };
        let message = format!(
            "a density of {target} was asked for, {achieved:.4} was attended in layers that are not dense \
             ({:+.0} %){reason}",
            100.0 * deviation
        );
        of_cell(Check::DensityMissed, cell, message)
    })
}

fn free_tokens(cell: &Cell) -> Option<Warning> {
    let shares: Vec<f64> = cell.records.iter().filter_map(|r| r.free_share).collect();
    let share = if shares.is_empty() { 0.0 } else { spattn_stats::mean(&shares) };
    if share < FREE_SHARE {
        return None;
    }
    let message = format!(
        "{:.0} % of the tokens attended followed the prefix and were attended beside the budget; --tail indexed makes them \
         candidates, where the method can",
        100.0 * share
    );
    Some(of_cell(Check::FreeTokens, cell, message))
}

/// Warns about a method that is always published with dense layers, on a model so deep that these would be several.
fn no_dense_layers(cell: &Cell) -> Option<Warning> {
    let r = cell.head();
    let is_dense = |density: &f64| *density >= 1.0;
    if &*r.method != MAGICPIG || r.density_by_layer.len() <= PUBLISHED_STEP || r.density_by_layer.iter().any(is_dense) {
        return None;
    }
    let message = format!(
        "none of {} layers was dense, and no publication of {MAGICPIG} runs so; preset=paper leaves layers 0, 16, 32 and 48 dense, as far as \
         a model has them (dense_layers=0-48/16)",
        r.density_by_layer.len()
    );
    Some(of_cell(Check::NoDenseLayers, cell, message))
}

fn truncated(cell: &Cell, full: &Cell) -> Option<Warning> {
    let cut = |cell: &Cell| cell.mean(|r| f64::from(u8::from(!r.stopped)));
    let (ours, dense) = (cut(cell), cut(full));
    (ours > TRUNCATED_SHARE && dense <= TRUNCATED_SHARE).then(|| {
        let message = format!(
            "{:.0} % of generations ran into the token limit without an EOS (dense: {:.0} %)",
            100.0 * ours,
            100.0 * dense
        );
        of_cell(Check::Truncated, cell, message)
    })
}

fn above(cell: &Cell, full: &Cell, real: &Discoveries) -> Option<Warning> {
    real.above.filter(|most| gain_p(cell, full).is_some_and(|p| p <= *most))?;
    let gain = gain(cell, full)?;
    let (low, high) = gain.ends?;
    let message = match cell.measure() {
        Measure::Score => format!(
            "better than dense beyond noise: {:+.1} points (95 % interval {low:+.1} to {high:+.1}); look for a flaw in the \
             prompt",
            gain.mean
        ),
        Measure::Perplexity => format!(
            "better than dense beyond noise: {:.4} nats a token less (95 % interval {low:.4} to {high:.4}); is the text \
             longer than the model can use?",
            gain.mean
        ),
    };
    Some(of_cell(Check::AboveReference, cell, message))
}

// ---- noise ----

/// The points (or nats per token) by which `a` is better than `b` on common examples.
fn gain(a: &Cell, b: &Cell) -> Option<Estimate> {
    let differences = a.differences(b, merit);
    match a.measure() {
        Measure::Score => spattn_stats::difference(&differences).map(|gain| gain.scaled(100.0)),
        Measure::Perplexity => ratios::mean_interval(&differences),
    }
}

/// The probability that noise alone makes `a` this much better than `b`; `None` with too few common examples.
fn gain_p(a: &Cell, b: &Cell) -> Option<f64> {
    let differences = a.differences(b, merit);
    if differences.contexts() < spattn_stats::LEAST_CONTEXTS {
        return None;
    }
    match a.measure() {
        Measure::Score => spattn_stats::gain_p(&differences),
        Measure::Perplexity => ratios::gain_p(&differences),
    }
}

/// The largest p-values that count as a discovery, given how many comparisons of each kind the records allow.
struct Discoveries {
    /// For sparse methods over dense ones.
    above: Option<f64>,
    /// For smaller budgets over larger ones.
    falls: Option<f64>,
}

impl Discoveries {
    fn among(cells: &[Cell]) -> Self {
        let above = |cells: &&[Cell]| -> Vec<f64> {
            let Some(full) = cells.iter().find(|cell| cell.head().method == REFERENCE) else { return Vec::new() };
            let others = cells.par_iter().filter(|cell| cell.head().method != REFERENCE);
            others.filter_map(|cell| gain_p(cell, full)).collect()
        };
        let falls = |cells: &&[Cell]| -> Vec<f64> {
            let steps = ladders(cells).into_values().flat_map(|cells| steps(&cells)).collect::<Vec<_>>();
            steps.into_par_iter().filter_map(|(low, high)| gain_p(low, high)).collect()
        };
        let places = by_place(cells);
        let discoveries = |of: &(dyn Fn(&&[Cell]) -> Vec<f64> + Sync)| {
            greatest_discovery(&places.par_iter().flat_map_iter(of).collect::<Vec<_>>())
        };
        Self { above: discoveries(&above), falls: discoveries(&falls) }
    }
}

/// Whether there are too few examples to compare methods on a task: one warning for all records.
fn few_examples(cells: &[Cell]) -> Option<Warning> {
    let compared: Vec<usize> = by_place(cells)
        .into_iter()
        .filter(|cells| cells.len() > 1 && cells[0].measure().is_score())
        .filter_map(|cells| cells.iter().map(|cell| cell.sample(|r| r.score).contexts()).min())
        .collect();
    let tells = |n: usize, least: f64| spattn_stats::nearest_detectable(n as f64).is_some_and(|told| told <= least);
    let few: Vec<usize> = compared.iter().copied().filter(|n| !tells(*n, FEW_TELL)).collect();
    let (least, most) = (*few.iter().min()?, *few.iter().max()?);
    let n = if least == most { format!("n = {least}") } else { format!("n = {least} to {most}") };
    let which = match few.len() == compared.len() {
        true => String::new(),
        false => format!(" for {} of {} tasks and lengths", few.len(), compared.len()),
    };
    let told = match spattn_stats::nearest_detectable(most as f64) {
        None => "no difference".to_owned(),
        Some(told) => format!("no difference below {:.0} points", 100.0 * told),
    };
    // Rounded to a number that people use.
    let enough = (1..).map(|tens| 10 * tens).find(|n| tells(*n, 1.05 * TOLD))?;
    let message = format!(
        "{n}{which}: on one task {told} can be told from noise; n = {enough} would tell {:.0} points",
        100.0 * TOLD
    );
    let [model, protocol, task] = [const { String::new() }; 3];
    Some(Warning { code: Check::FewExamples, model, protocol, task, length: 0, method: None, params: None, message })
}

/// Models with random weights.
fn random_weights(cells: &[Cell]) -> Vec<Warning> {
    let models: BTreeSet<&InternedStr> =
        cells.iter().map(|cell| &cell.head().model).filter(|id| id.starts_with(RANDOM)).collect();
    let warning = |model: &InternedStr| {
        let message =
            format!("{model} has random weights: times and memory are those of its shape, scores mean nothing");
        let [protocol, task] = [const { String::new() }; 2];
        let model = model.to_string();
        Warning { code: Check::RandomWeights, model, protocol, task, length: 0, method: None, params: None, message }
    };
    models.into_iter().map(warning).collect()
}

// ---- budgets ----

/// For each method and each numeric parameter that varies alone: the worst case of a larger density with a lower score beyond noise.
fn not_monotone(cells: &[Cell], real: &Discoveries) -> Vec<Warning> {
    ladders(cells).into_iter().filter_map(|(ladder, cells)| worst_step(&ladder, &cells, real)).collect()
}

fn ladders<'b, 'a>(cells: &'b [Cell<'a>]) -> BTreeMap<Ladder, Vec<&'b Cell<'a>>> {
    let mut ladders: BTreeMap<Ladder, Vec<&Cell>> = BTreeMap::new();
    for cell in cells {
        for ladder in ladders_of(cell.head()) {
            ladders.entry(ladder).or_default().push(cell);
        }
    }
    ladders
}

/// Settings of a method that differ in one parameter only.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Ladder {
    method: String,
    varied: String,
    /// The other parameters.
    fixed: BTreeMap<String, String>,
}

fn ladders_of(r: &Record) -> Vec<Ladder> {
    let settings = r.settings();
    let is_numeric = |value: &String| value.trim_end_matches('%').parse::<f64>().is_ok();
    let ladder = |varied: &String| {
        let mut fixed = settings.clone();
        fixed.remove(varied);
        Ladder { method: r.method.to_string(), varied: varied.clone(), fixed }
    };
    settings.iter().filter(|(_, value)| is_numeric(value)).map(|(key, _)| ladder(key)).collect()
}

fn mean_density(cell: &Cell) -> f64 {
    cell.mean(|r| r.density)
}

/// The most settings of a ladder for which all pairs are compared.
const ALL_COMPARED: usize = 64;

/// Pairs of a smaller and a larger budget. For many settings, only those 1, 2, 4, 8 and so on apart in order, so that their number grows no
/// faster than n log n.
fn steps<'b, 'a>(cells: &[&'b Cell<'a>]) -> Vec<(&'b Cell<'a>, &'b Cell<'a>)> {
    let mut sorted: Vec<(f64, &Cell)> = cells.iter().map(|cell| (mean_density(cell), *cell)).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let is_few = sorted.len() <= ALL_COMPARED;
    let apart: Vec<usize> = (1..sorted.len()).filter(|apart| is_few || apart.is_power_of_two()).collect();
    // Parameters such as a seed or a page size may not change the density: only a real step in budget counts.
    let above = |(at, (density, low)): (usize, &(f64, &'b Cell<'a>))| {
        let (least, low) = (LARGER * density, *low);
        let larger = apart.iter().filter_map(|apart| sorted.get(at + apart));
        larger.filter(|(density, _)| *density > least).map(|(_, high)| (low, *high)).collect::<Vec<_>>()
    };
    sorted.iter().enumerate().flat_map(above).collect()
}

fn worst_step(ladder: &Ladder, cells: &[&Cell], real: &Discoveries) -> Option<Warning> {
    let most = real.falls?;
    let mut worst: Option<(Estimate, &Cell, &Cell)> = None;
    for (low, high) in steps(cells) {
        if gain_p(low, high).is_none_or(|p| p > most) {
            continue;
        }
        if let Some(fall) = gain(low, high)
            && worst.as_ref().is_none_or(|(worst, ..)| fall.low() > worst.low())
        {
            worst = Some((fall, low, high));
        }
    }
    let (fall, low, high) = worst?;
    let ends = fall.ends?;
    let (of_low, of_high, loss) = match low.measure() {
        Measure::Score => (
            format!("score falls as the density grows with {}: {:.1} %", ladder.varied, low.score()),
            format!("{:.1} %", high.score()),
            format!("{:.1} points (95 % interval {:.1} to {:.1})", fall.mean, ends.0, ends.1),
        ),
        Measure::Perplexity => (
            format!("perplexity rises as the density grows with {}: {:.3}", ladder.varied, low.score()),
            format!("{:.3}", high.score()),
            format!("{:.4} nats a token (95 % interval {:.4} to {:.4})", fall.mean, ends.0, ends.1),
        ),
    };
    let message = format!(
        "{of_low} at density {:.4} ({}), {of_high} at {:.4}, a loss of {loss}{}",
        mean_density(low),
        low.head().params,
        mean_density(high),
        where_errors_rise(low, high).unwrap_or_default(),
    );
    Some(of_cell(Check::NotMonotone, high, message))
}

/// The layers whose outputs are further from exact attention's at the larger budget; `None` unless all records of both settings have errors
/// of the same layers (`--fidelity`).
///
/// This distinguishes two causes of a fall: either the attention became worse (the largest logits of a head that attends widely are a
/// biased sample of its tokens, MagicPIG section 3), or it became better and the model still answers worse.
fn where_errors_rise(low: &Cell, high: &Cell) -> Option<String> {
    let (low, high) = (errors_by_layer(low)?, errors_by_layer(high)?);
    if low.len() != high.len() {
        return None;
    }
    let risen: Vec<String> = (low.iter().zip(&high).enumerate())
        .filter(|(_, (low, high))| **high > LARGER * **low)
        .map(|(layer, (low, high))| format!("layer {layer} ({low:.2} to {high:.2})"))
        .collect();
    let more = match risen.len().saturating_sub(MOST_LAYERS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(match risen.is_empty() {
        true => "; output error rises in no layer".into(),
        false => format!("; output error rises in {}{more}", risen[..risen.len().min(MOST_LAYERS)].join(", ")),
    })
}

/// The mean output error of every layer over the records; `None` if a record has none, or has another depth.
fn errors_by_layer(cell: &Cell) -> Option<Vec<f64>> {
    let depth = cell.head().fidelity.as_ref()?.output_error.len();
    let known = |r: &Record| r.fidelity.as_ref().is_some_and(|f| f.output_error.len() == depth);
    let of_layer = |layer: usize| cell.mean(|r| r.fidelity.as_ref().map_or(0.0, |f| f.output_error[layer]));
    cell.records.iter().all(|r| known(r)).then(|| (0..depth).map(of_layer).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::records::fidelity::Fidelity;
    use crate::eval::records::record::tests::record;

    const TASK: &str = "ruler/vt";

    fn samples(method: &str, params: &str, score: impl Fn(usize) -> f64) -> Vec<Record> {
        let make = |i| Record {
            params: params.into(),
            key: format!("{method}{params}{i}"),
            ..record(TASK, method, i, score(i))
        };
        (0..20).map(make).collect()
    }

    fn codes(records: &[Record]) -> Vec<Check> {
        check(records, &[]).into_iter().map(|w| w.code).collect()
    }

    #[test]
    fn of_a_long_ladder_few_pairs_are_compared_and_of_a_short_one_all() {
        let of = |settings: usize| -> Vec<Record> {
            let record = |i: usize| Record {
                params: format!("k={i}").into(),
                density: i as f64,
                ..record(TASK, "quest", 0, 1.0)
            };
            (1..=settings).map(record).collect()
        };
        let pairs = |settings| {
            let records = of(settings);
            let cells = group(&records, &[]);
            steps(&cells.iter().collect::<Vec<_>>()).len()
        };
        assert!((1900..=64 * 63 / 2).contains(&pairs(64)), "{}", pairs(64));
        // Ten distances, the shortest of which are no real step between large budgets.
        assert!((4 * 600..=10 * 600).contains(&pairs(600)), "{}", pairs(600));
    }

    #[test]
    fn times_that_cannot_be_compared_are_told_of_once() {
        let under = |fidelity| {
            Some(TimingConditions {
                fidelity,
                together: 2,
                latency: None,
                threads: 2,
                simd: "avx2".into(),
                cpu: None,
                gpu: None,
                select_on: None,
            })
        };
        let records = ["full", "topk", "quest"].map(|method| Record {
            conditions: under(method == "quest").map(Into::into),
            ..record("ruler/vt", method, 0, 1.0)
        });
        let timed = |records: &[Record]| -> Vec<Warning> {
            check(records, &[]).into_iter().filter(|w| w.code == Check::TimedApart).collect()
        };
        let warnings = timed(&records);
        assert_eq!(warnings.len(), 1);
        let told = "1 of 3 rows were taken under other conditions and cannot be compared with the rest (2 together on 2 \
                    threads, with --fidelity, avx2";
        assert!(warnings[0].message.contains(told), "{}", warnings[0].message);
        assert!(timed(&records[..2]).is_empty());
    }

    #[test]
    fn tokens_attended_beside_the_budget_are_told_of_where_they_are_most_of_what_was_attended() {
        let with = |share: &dyn Fn(usize) -> Option<f64>| -> Vec<String> {
            let mut records = samples("quest", "k=8", |_| 1.0);
            records.iter_mut().enumerate().for_each(|(i, record)| record.free_share = share(i));
            let told = check(&records, &[]).into_iter().filter(|w| w.code == Check::FreeTokens);
            told.map(|warning| warning.message).collect()
        };
        // A quarter of the examples have no share: the mean is over the others.
        let mostly = with(&|i| (i % 4 > 0).then_some(if i % 2 == 0 { 0.5 } else { 0.7 }));
        assert_eq!(mostly.len(), 1);
        assert!(mostly[0].starts_with("63 % of the tokens attended followed the prefix"), "{}", mostly[0]);
        assert!(with(&|_| Some(0.49)).is_empty());
        assert!(with(&|_| None).is_empty());
    }

    #[test]
    fn a_method_without_the_dense_layers_of_its_publications_is_told_of() {
        let told = |method: &str, by_layer: Vec<f64>| -> Vec<String> {
            let mut records = samples(method, "K=10,L=150", |_| 1.0);
            records.iter_mut().for_each(|record| record.density_by_layer = by_layer.clone());
            let told = check(&records, &[]).into_iter().filter(|w| w.code == Check::NoDenseLayers);
            told.map(|warning| warning.to_string()).collect()
        };
        let warnings = told("magicpig", vec![0.05; 24]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let says = "ruler/vt at 4096, magicpig:K=10,L=150: none of 24 layers was dense, and no publication of magicpig runs so; preset=paper";
        assert!(warnings[0].starts_with(says), "{}", warnings[0]);
        // One dense layer, another method, and a model so shallow that the published rule keeps only the first layer dense.
        assert!(told("magicpig", [vec![1.0], vec![0.05; 23]].concat()).is_empty());
        assert!(told("quest", vec![0.05; 24]).is_empty());
        assert!(told("magicpig", vec![0.05; 16]).is_empty());
    }

    #[test]
    fn random_weights_are_told_of_whatever_they_score() {
        let of = |model: &str| {
            let records: Vec<Record> =
                samples("full", "", |_| 1.0).into_iter().map(|r| Record { model: model.into(), ..r }).collect();
            check(&records, &[]).into_iter().filter(|w| w.code == Check::RandomWeights).collect::<Vec<_>>()
        };
        let told = of("random:llama-3.1-8b");
        assert_eq!(told.len(), 1);
        assert!(told[0].to_string().contains("random:llama-3.1-8b") && told[0].to_string().contains("mean nothing"));
        assert!(of("builtin").is_empty() && of("org/random:x").is_empty());
    }

    #[test]
    fn a_clean_run_has_no_warnings() {
        let mut records = samples("full", "", |_| 1.0);
        records.extend(samples("topk", "k=8", |i| f64::from(u8::from(i % 3 > 0))));
        assert_eq!(codes(&records), []);
        assert_eq!(codes(&[]), []);
    }

    /// Records of `n` examples of a task, all right under all methods.
    fn right(task: &str, n: usize) -> Vec<Record> {
        let of = |method: &'static str| (0..n).map(move |i| (method, i));
        of("full").chain(of("topk")).map(|(method, i)| record(task, method, i, 1.0)).collect()
    }

    #[test]
    fn too_few_examples_are_said_once_with_the_number_that_would_do() {
        let lines =
            |records: &[Record]| -> Vec<String> { check(records, &[]).iter().map(Warning::to_string).collect() };
        let two = [right("ruler/vt", 2), right("ruler/cwe", 2), right("ruler/fwe", 2)].concat();
        assert_eq!(
            lines(&two),
            ["n = 2: on one task no difference can be told from noise; n = 60 would tell 10 points"]
        );
        let mixed = [right("ruler/vt", 5), right("ruler/cwe", 9), right("ruler/fwe", 10)].concat();
        assert_eq!(
            lines(&mixed),
            [
                "n = 5 to 9 for 2 of 3 tasks and lengths: on one task no difference below 53 points can be told from noise; \
              n = 60 would tell 10 points"
            ]
        );
        assert_eq!(lines(&right("ruler/vt", 10)), [""; 0]);
        let alone: Vec<Record> = two.iter().filter(|r| r.method == "full").cloned().collect();
        assert_eq!(lines(&alone), [""; 0], "nothing is compared");
        // Two samples with ten depths each are two contexts.
        let mut depths = right("needle/number", 20);
        depths.iter_mut().for_each(|r| r.context = Some(r.sample / 10 * 10));
        assert!(lines(&depths)[0].starts_with("n = 2: "));
    }

    #[test]
    fn of_many_methods_one_is_better_by_chance() {
        // Half of the dense answers are right. One method gains six of them and loses none. That is beyond noise for one of two methods,
        // but expected by chance for the best of many.
        let of = |methods: usize| {
            let mut records = samples("full", "", |i| f64::from(u8::from(i < 10)));
            records.extend(samples("topk", "k=0", |i| f64::from(u8::from(i < 16))));
            for k in 1..methods {
                records.extend(samples("topk", &format!("k={k}"), |i| f64::from(u8::from(i < 10))));
            }
            codes(&records)
        };
        assert_eq!(of(2), [Check::AboveReference]);
        assert_eq!(of(40), []);
    }

    #[test]
    fn of_many_ladders_one_falls_by_chance() {
        let of = |pages: usize| {
            let mut records = samples("full", "", |_| 1.0);
            for (page, k) in (1..=pages).flat_map(|page| [(page, 1), (page, 2)]) {
                let lost = if (page, k) == (1, 2) { 6 } else { 0 };
                let mut more = samples("quest", &format!("k={k},page=p{page}"), |i| f64::from(u8::from(i >= lost)));
                more.iter_mut().for_each(|r| r.density = 0.1 * k as f64);
                records.extend(more);
            }
            codes(&records)
        };
        assert_eq!(of(1), [Check::NotMonotone]);
        assert_eq!(of(40), []);
    }

    #[test]
    fn many_warnings_of_a_kind_are_one_line() {
        let of = |code, task: &str| Warning {
            task: task.into(),
            ..at_place(code, &record(TASK, "full", 0, 1.0), "a number".into())
        };
        let few = [of(Check::Cut, "a"), of(Check::Bos, "b"), of(Check::Cut, "c"), of(Check::Cut, "d")];
        let lines: Vec<String> = in_short(&few).into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines, few.clone().map(|w| w.to_string()));
        let many = [&few[..], &[of(Check::Cut, "e")]].concat();
        let first = format!("{}; and 3 more that are `cut`", few[0]);
        assert_eq!(in_short(&many), [(Check::Cut, first), (Check::Bos, few[1].to_string())]);
        assert_eq!(in_short(&[]), []);
    }

    #[test]
    fn prompts_are_checked_once_an_example() {
        let mut records = samples("full", "", |_| 1.0);
        records.extend(samples("topk", "k=8", |_| 1.0));
        for r in records.iter_mut().filter(|r| r.sample < 2) {
            r.bos_tokens = Some(3);
            r.prompt_tokens = 3000;
        }
        let warnings = check(&records, &[]);
        assert_eq!(warnings[0].to_string(), "ruler/vt at 4096: 2 of 20 prompts have 3 BOS tokens instead of one");
        assert_eq!((warnings.len(), warnings[1].code), (2, Check::Length));
        assert!(
            warnings[1].message.contains("2 of 20 examples") && warnings[1].message.contains("from 74.2 % to 99.9 %")
        );
    }

    #[test]
    fn what_is_at_a_bound_is_on_the_side_that_the_bound_says() {
        let dense = |change: &dyn Fn(&mut Record)| {
            let mut records = samples("full", "", |_| 1.0);
            records.iter_mut().for_each(change);
            codes(&records)
        };
        // Of 4000 tokens, 40 are for the answer: 95 % need 3760 more, 100 % need 3960.
        let filled = |tokens: usize| dense(&|r| (r.length, r.prompt_tokens, r.prefix_tokens) = (4000, tokens, 0));
        assert_eq!([3760, 3960].map(filled), [[]; 2]);
        assert_eq!([3759, 3961].map(filled), [[Check::Length]; 2]);
        let right = |n: usize| codes(&samples("full", "", |i| f64::from(u8::from(i < n))));
        assert_eq!((right(10), right(9)), (vec![], vec![Check::LowReference]), "from half right on");
        let silent = |n: usize| dense(&|r| r.prediction = if r.sample < n { "" } else { "x" }.into());
        assert_eq!((silent(0), silent(1)), (vec![], vec![Check::EmptyPredictions]), "from 5 % on");
        assert_eq!(dense(&|r| r.free_share = Some(0.5)), [Check::FreeTokens], "from half on");
        let running = |n: usize| {
            let mut records = [samples("full", "", |_| 1.0), samples("topk", "k=8", |_| 1.0)].concat();
            records.iter_mut().for_each(|r| r.stopped = r.method == "full" || r.sample >= n);
            codes(&records)
        };
        assert_eq!((running(10), running(11)), (vec![], vec![Check::Truncated]), "more than half");
    }

    #[test]
    fn unsized_tasks_have_no_length_to_fill() {
        let mut records = samples("full", "", |_| 1.0);
        records.iter_mut().for_each(|r| r.length = 0);
        assert_eq!(codes(&records), []);
    }

    #[test]
    fn cut_prompts_are_counted_and_need_not_fill_their_length() {
        let mut records = samples("full", "", |_| 1.0);
        for r in &mut records {
            r.cut_tokens = Some(if r.sample < 3 { 100 + r.sample } else { 0 });
            r.prompt_tokens = 2000;
        }
        let warnings = check(&records, &[]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert_eq!(
            warnings[0].to_string(),
            "ruler/vt at 4096: 3 of 20 prompts were cut in the middle to fit 4096 tokens (by up to 102 tokens)"
        );
        records.iter_mut().for_each(|r| r.length = 0);
        assert_eq!(
            check(&records, &[])[0].to_string(),
            "ruler/vt: 3 of 20 prompts were cut in the middle to fit the model's context (by up to 102 tokens)"
        );
    }

    #[test]
    fn empty_and_truncated_generations_are_counted_by_method() {
        let mut records = samples("full", "", |_| 1.0);
        records.extend(samples("topk", "k=8", |_| 1.0));
        for r in records.iter_mut().filter(|r| r.method == "topk") {
            r.stopped = false;
            r.prediction = if r.sample < 3 { " \n".into() } else { "x".into() };
        }
        let warnings = check(&records, &[]);
        assert_eq!(warnings.iter().map(|w| w.code).collect::<Vec<_>>(), [Check::EmptyPredictions, Check::Truncated]);
        assert_eq!(warnings[0].to_string(), "ruler/vt at 4096, topk:k=8: 3 of 20 predictions are empty");
        records.iter_mut().for_each(|r| r.stopped = false);
        assert_eq!(codes(&records), [Check::EmptyPredictions]);
    }

    #[test]
    fn sparse_above_a_low_dense_score_raises_both_alarms() {
        let mut records = samples("full", "", |i| if i < 8 { 1.0 } else { 0.0 });
        records.extend(samples("topk", "k=8", |i| if i < 16 { 1.0 } else { 0.0 }));
        assert_eq!(codes(&records), [Check::LowReference, Check::AboveReference]);
    }

    #[test]
    fn a_falling_score_is_reported_for_the_worst_step_of_one_parameter() {
        // Of equal ones, the first.
        for second in [17, 18] {
            let mut records = samples("full", "", |_| 1.0);
            for (k, density, right) in [(8, 0.01, 18), (16, 0.02, second), (32, 0.04, 6), (64, 0.08, 19)] {
                let mut of_k = samples("topk", &format!("k={k},page=16"), |i| f64::from(u8::from(i < right)));
                of_k.iter_mut().for_each(|r| r.density = density);
                records.extend(of_k);
            }
            let warnings = check(&records, &[]);
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert_eq!(warnings[0].params.as_deref(), Some("k=32,page=16"));
            let told = "score falls as the density grows with k: 90.0 % at density 0.0100";
            assert!(warnings[0].message.starts_with(told), "{}", warnings[0].message);
        }
    }

    #[test]
    fn a_density_that_was_missed_is_said() {
        let mut records = samples("full", "", |_| 1.0);
        records.extend(samples("topk", "density=0.041", |_| 1.0));
        records.extend(samples("magicpig", "K=8,density=0.03", |_| 1.0));
        let warnings = check(&records, &[]);
        assert_eq!(warnings.len(), 1, "0.05 was attended: {warnings:?}");
        assert_eq!(warnings[0].method.as_deref(), Some("magicpig"));
        assert!(warnings[0].message.starts_with("a density of 0.03 was asked for, 0.0500 was attended"));
        assert!(warnings[0].message.contains("(+67 %)"));
    }

    #[test]
    fn less_perplexity_is_better() {
        use crate::eval::records::record::tests::perplexity;
        let of = |method: &str, density: f64, nats: f64| -> Vec<Record> {
            let params = format!("k={density}");
            let make =
                |i| Record { density, params: params.as_str().into(), ..perplexity(method, i, nats + i as f64 / 9.0) };
            (0..20).map(make).collect()
        };
        let full = of("full", 1.0, 5.0);
        let worse = [full.clone(), of("topk", 0.1, 5.5), of("topk", 0.2, 5.2)].concat();
        assert_eq!(
            codes(&worse),
            [],
            "a high perplexity is no low score, and less with more budget is as it should be"
        );
        let better = check(&[full.clone(), of("topk", 0.1, 4.9)].concat(), &[]);
        assert_eq!(better.iter().map(|w| w.code).collect::<Vec<_>>(), [Check::AboveReference]);
        assert!(better[0].message.contains("0.1000 nats a token less"), "{}", better[0]);
        let rising = check(&[full, of("topk", 0.1, 5.2), of("topk", 0.2, 5.5)].concat(), &[]);
        assert_eq!(rising.iter().map(|w| w.code).collect::<Vec<_>>(), [Check::NotMonotone]);
        assert!(rising[0].message.starts_with("perplexity rises as the density grows with k"), "{}", rising[0]);
    }

    #[test]
    fn a_fall_names_the_layers_whose_attention_got_worse() {
        let with_errors = |k: usize, score: f64, errors: &[f64]| {
            let mut records = samples("topk", &format!("k={k}"), |_| score);
            for r in &mut records {
                r.density = k as f64 / 100.0;
                r.fidelity = Some(Box::new(Fidelity {
                    output_error: errors.to_vec(),
                    recall: vec![1.0; errors.len()],
                    dropped_mass: Vec::new(),
                    spread: None,
                    heads: None,
                }));
            }
            records
        };
        let message = |low: &[f64], high: &[f64]| {
            let records = [samples("full", "", |_| 1.0), with_errors(8, 1.0, low), with_errors(16, 0.5, high)].concat();
            let warnings = check(&records, &[]);
            assert_eq!(warnings.iter().map(|w| w.code).collect::<Vec<_>>(), [Check::NotMonotone]);
            let (_, interval) = warnings[0].message.split_once("95 % interval").expect("an interval");
            let (_, after) = interval.split_once(')').expect("its end");
            after.to_owned()
        };
        assert_eq!(message(&[0.65, 0.2], &[0.74, 0.1]), "; output error rises in layer 0 (0.65 to 0.74)");
        assert_eq!(message(&[0.65, 0.2], &[0.6, 0.1]), "; output error rises in no layer");
        assert_eq!(message(&[0.0, 0.2], &[0.0, 0.1]), "; output error rises in no layer", "a dense layer has none");
        assert_eq!(message(&[0.65], &[0.6, 0.1]), "", "of another depth");
        assert!(message(&[0.1; 6], &[0.2; 6]).ends_with("layer 3 (0.10 to 0.20) and 2 more"));
    }

    #[test]
    fn runs_merged_by_mistake_are_noticed() {
        let mut records = samples("full", "", |_| 1.0);
        let again: Vec<_> = records.iter().map(|r| Record { key: format!("z{}", r.key), ..r.clone() }).collect();
        records.extend(again);
        assert_eq!(codes(&records), [Check::RepeatedSamples]);
    }
}
