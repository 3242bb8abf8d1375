//! Self-checks: warnings about records with suspicious numbers.
//!
//! Most wrong numbers in this field come from prompts, lengths, stop tokens and scorers rather than from methods, and are visible
//! in the records. Self-checks never stop a run. Those that compare settings with each other are in `comparisons`.

use std::collections::BTreeSet;

use rayon::prelude::*;

use super::cells::{SummaryCell, by_place, group};
use super::comparisons::{Discoveries, above, not_monotone};
use super::summarize;
use super::times::{RowTimes, prevailing};
use super::warnings::{Check, Warning};
use crate::records::interning::InternedStr;
use crate::records::record::{Record, Thought};
use crate::records::timing::TimingConditions;
use spattn_model::source::RANDOM;

/// The least share of the requested length that examples of a sized task should fill.
const LEAST_FILL: f64 = 0.95;
/// The share of empty predictions, or of unfinished thoughts, from which on there is a warning.
const EMPTY_SHARE: f64 = 0.05;
/// A dense score below this is too low to tell methods apart.
const LEAST_REFERENCE: f64 = 0.5;
/// The share of generations at the token limit above which there is a warning.
const TRUNCATED_SHARE: f64 = 0.5;
/// A method that all publications use with dense layers, and that loses much without them.
const MAGICPIG: &str = "magicpig";
/// In publications, one of this many layers is dense.
const PUBLISHED_STEP: usize = 16;
/// The share of tokens attended in addition to the budget from which on there is a warning.
const FREE_SHARE: f64 = 0.5;
/// The relative error of a requested density above which there is a warning.
const DENSITY_TOLERANCE: f64 = 0.25;
/// If examples cannot even show a loss of half of them, they are too few.
pub const FEW_TELL: f64 = 0.5;
/// The loss that the recommended number of examples would detect, about the smallest that papers emphasise.
const TOLD: f64 = 0.1;

/// All warnings about the records, in the order of the summary (`order` as there). The order of the records does not matter.
pub fn check(records: &[Record], order: &[(String, String)]) -> Vec<Warning> {
    check_cells(&group(records, order))
}

/// All warnings about the records of cells, in the order of the summary.
pub fn check_cells(cells: &[SummaryCell]) -> Vec<Warning> {
    let real = Discoveries::among(cells);
    let general = random_weights(cells).into_iter().chain(few_examples(cells));
    let of_places: Vec<Vec<Warning>> = by_place(cells).into_par_iter().map(|cells| check_place(cells, &real)).collect();
    general.chain(of_places.into_iter().flatten()).collect()
}

fn check_place(cells: &[SummaryCell], real: &Discoveries) -> Vec<Warning> {
    let full = cells.iter().find(|cell| cell.head().is_reference());
    let of_all = [bos(cells), length(cells), cut(cells), full.and_then(low_reference)];
    let mut warnings: Vec<Warning> = of_all.into_iter().flatten().collect();
    for cell in cells {
        let of_cell = [
            repeated(cell),
            empty(cell),
            unfinished(cell),
            density_missed(cell),
            free_tokens(cell),
            no_dense_layers(cell),
        ];
        warnings.extend(of_cell.into_iter().flatten());
        if let Some(full) = full {
            warnings.extend([truncated(cell, full), above(cell, full, real)].into_iter().flatten());
        }
    }
    warnings.extend(timed_apart(cells));
    warnings.extend(not_monotone(cells, real));
    warnings
}

/// One record of each example, of any method.
fn examples<'a>(cells: &[SummaryCell<'a>]) -> Vec<&'a Record> {
    // In reverse, because duplicates after the first are dropped: the last cell's record is kept.
    let mut records: Vec<&Record> = cells.iter().rev().flat_map(|cell| &cell.records).copied().collect();
    records.sort_by_key(|r| (r.seed, r.sample));
    records.dedup_by_key(|r| (r.seed, r.sample));
    records
}

fn bos(cells: &[SummaryCell]) -> Option<Warning> {
    let all = examples(cells);
    let wrong: Vec<usize> = all.iter().filter_map(|r| r.bos_tokens).filter(|n| *n != 1).collect();
    let (least, most) = (wrong.iter().min()?, wrong.iter().max()?);
    let count = if least == most { format!("{least}") } else { format!("{least} to {most}") };
    let message = format!(
        "{} of {} prompts begin with {count} BOS tokens, and the tokenizer adds one: check the chat template",
        wrong.len(),
        all.len()
    );
    Some(Warning::of_task(Check::Bos, all[0], message))
}

fn length(cells: &[SummaryCell]) -> Option<Warning> {
    let all = examples(cells);
    let asked = all.first()?.length as f64;
    // The length is a limit for prompts that are cut, and need not be filled.
    let fills = all.iter().filter(|r| r.length > 0 && r.max_new_tokens > 0 && r.cut_tokens.is_none());
    let fills: Vec<f64> = fills
        .map(|r| (r.prompt_tokens + r.max_new_tokens - thought_limit(r).min(r.max_new_tokens)) as f64 / asked)
        .collect();
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
    Some(Warning::of_task(Check::Length, all[0], message))
}

fn cut(cells: &[SummaryCell]) -> Option<Warning> {
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
    Some(Warning::of_task(Check::Cut, all[0], message))
}

fn low_reference(full: &SummaryCell) -> Option<Warning> {
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
        Warning::of_cell(Check::LowReference, full, message)
    })
}

fn timed_apart(cells: &[SummaryCell]) -> Option<Warning> {
    let around = prevailing(cells);
    let apart: Vec<RowTimes> =
        cells.iter().map(|cell| RowTimes::of(cell, around)).filter(|times| times.is_apart).collect();
    let said = |conditions: Option<&TimingConditions>| {
        conditions.map_or("not recorded".to_owned(), TimingConditions::to_string)
    };
    let message = format!(
        "the times of {} of {} rows were measured under other conditions and cannot be compared with the rest ({}; the rest: {})",
        apart.len(),
        cells.len(),
        said(apart.first()?.conditions.as_ref()),
        said(around)
    );
    Some(Warning::of_task(Check::TimedApart, cells[0].head(), message))
}

fn repeated(cell: &SummaryCell) -> Option<Warning> {
    (cell.repeated > 0).then(|| {
        let message = format!(
            "{} records repeat one of the {} samples under another key and are left out; were different runs merged?",
            cell.repeated,
            cell.records.len()
        );
        Warning::of_cell(Check::RepeatedSamples, cell, message)
    })
}

fn empty(cell: &SummaryCell) -> Option<Warning> {
    if cell.head().likelihood.is_some() {
        return None; // Nothing was to be generated.
    }
    let n = cell.records.len();
    let empty = cell.records.iter().filter(|r| r.prediction.trim().is_empty()).count();
    (empty as f64 >= EMPTY_SHARE * n as f64 && empty > 0)
        .then(|| Warning::of_cell(Check::EmptyPredictions, cell, format!("{empty} of {n} predictions are empty")))
}

/// Whether an answer is empty because all of its tokens were spent on a thought.
fn is_unfinished(answer: &InternedStr, thought: Option<&Thought>, stopped: bool) -> bool {
    !stopped && answer.is_empty() && thought.is_some_and(|thought| !thought.text.is_empty())
}

/// How many of the tokens of an answer's limit are for a thought.
fn thought_limit(record: &Record) -> usize {
    record.thought.as_ref().map_or(0, |thought| thought.limit)
}

fn unfinished(cell: &SummaryCell) -> Option<Warning> {
    let of_record = |r: &&Record| match r.repeats.is_empty() {
        true => vec![is_unfinished(&r.prediction, r.thought.as_deref(), r.stopped)],
        false => r.repeats.iter().map(|a| is_unfinished(&a.prediction, a.thought.as_deref(), a.stopped)).collect(),
    };
    let answers: Vec<bool> = cell.records.iter().flat_map(of_record).collect();
    let unfinished = answers.iter().filter(|is_unfinished| **is_unfinished).count();
    (unfinished as f64 >= EMPTY_SHARE * answers.len() as f64 && unfinished > 0).then(|| {
        let message = format!(
            "{unfinished} of {} answers ended within the thought, at {} tokens; raise --thinking-tokens",
            answers.len(),
            thought_limit(cell.head())
        );
        Warning::of_cell(Check::UnfinishedThoughts, cell, message)
    })
}

fn density_missed(cell: &SummaryCell) -> Option<Warning> {
    let target = cell.head().density_target()?;
    let achieved = cell.mean(|r| r.density_sparse_layers);
    let deviation = achieved / target - 1.0;
    (deviation.abs() > DENSITY_TOLERANCE).then(|| {
        let reason = if deviation > 0.0 { why_more(cell, target, achieved) } else { String::new() };
        let message = format!(
            "{} % of the tokens were asked for, and {} % were attended ({:+.0} %, in layers that are not dense){reason}",
            percent(target),
            percent(achieved),
            100.0 * deviation
        );
        Warning::of_cell(Check::DensityMissed, cell, message)
    })
}

/// Says why more was attended than asked for, and what helps.
fn why_more(cell: &SummaryCell, target: f64, achieved: f64) -> String {
    let picked: Vec<f64> = cell.records.iter().filter_map(|r| r.comparable?.picked_density).collect();
    let is_known = picked.len() == cell.records.len();
    let floor = if is_known { (achieved - spattn_stats::mean(&picked)).max(0.0) } else { 0.0 };
    let tail = cell.mean(|r| r.free_share.unwrap_or(0.0) * r.density_sparse_layers).min(floor);
    let mut text = String::new();
    if floor > target {
        let parts = match tail > 0.0 {
            true => format!(
                "sink and recent window are {} % of these contexts, question and answer {} %",
                percent(floor - tail),
                percent(tail)
            ),
            false => format!("sink and recent window are {} % of these contexts", percent(floor)),
        };
        text += &format!(
            ": {parts}, all attended in any case: no method can attend less than {} % here. For {} %: {}",
            percent(floor),
            percent(target),
            less_static(tail > 0.0)
        );
    } else if cell.records.iter().any(|r| r.solved.is_some()) {
        text += ": the method's parameter is set once a prompt, for its last tokens, and let later tokens attend more";
    } else if is_known {
        text += &format!(
            ": {} % are sink, recent window, question and answer, which are attended in any case, and the rest is picked in whole blocks",
            percent(floor)
        );
    }
    if floor <= target { text + "; a smaller density comes closer, or longer prompts" } else { text }
}

/// Advice on how to make fewer tokens static.
pub fn less_static(has_tail: bool) -> &'static str {
    match has_tail {
        true => {
            "--local 16 --tail indexed (a smaller window, and the method picks among question and answer, too), or longer prompts"
        }
        false => "--local 16 (a smaller window), or longer prompts",
    }
}

/// Formats a share in percent with at most three digits.
pub fn percent(share: f64) -> String {
    let decimals = if share < 0.1 { 2 } else { 1 };
    let text = format!("{:.decimals$}", 100.0 * share);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn free_tokens(cell: &SummaryCell) -> Option<Warning> {
    let shares: Vec<f64> = cell.records.iter().filter_map(|r| r.free_share).collect();
    let share = if shares.is_empty() { 0.0 } else { spattn_stats::mean(&shares) };
    if share < FREE_SHARE {
        return None;
    }
    let message = format!(
        "{:.0} % of the attended tokens follow the context (question, answer or scored text), and the budget does not count them; --tail indexed counts them, where the method can",
        100.0 * share
    );
    Some(Warning::of_cell(Check::FreeTokens, cell, message))
}

/// Warns about a method that is published only with dense layers, if it has none on a model deep enough for several.
fn no_dense_layers(cell: &SummaryCell) -> Option<Warning> {
    let r = cell.head();
    let is_dense = |density: &f64| *density >= 1.0;
    if &*r.method != MAGICPIG || r.density_by_layer.len() <= PUBLISHED_STEP || r.density_by_layer.iter().any(is_dense) {
        return None;
    }
    let message = format!(
        "none of {} layers was dense, unlike in all publications of {MAGICPIG}; preset=paper keeps layers 0, 16, 32 and 48 dense, if the model has them (dense_layers=0-48/16)",
        r.density_by_layer.len()
    );
    Some(Warning::of_cell(Check::NoDenseLayers, cell, message))
}

fn truncated(cell: &SummaryCell, full: &SummaryCell) -> Option<Warning> {
    let cut = |cell: &SummaryCell| cell.mean(|r| f64::from(u8::from(!r.stopped)));
    let (ours, dense) = (cut(cell), cut(full));
    (ours > TRUNCATED_SHARE && dense <= TRUNCATED_SHARE).then(|| {
        let message = format!(
            "{:.0} % of the answers were cut off at the token limit (full attention: {:.0} %)",
            100.0 * ours,
            100.0 * dense
        );
        Warning::of_cell(Check::Truncated, cell, message)
    })
}

/// Warns if there are too few examples to tell methods apart on a task: one warning for all records.
fn few_examples(cells: &[SummaryCell]) -> Option<Warning> {
    let compared: Vec<(usize, usize)> = by_place(cells)
        .into_iter()
        .filter(|cells| cells.len() > 1 && cells[0].measure().is_score())
        .filter_map(|cells| cells.iter().map(|cell| (cell.sample(|r| r.score).contexts(), cell.records.len())).min())
        .collect();
    let tells = |n: usize, least: f64| spattn_stats::nearest_detectable(n as f64).is_some_and(|told| told <= least);
    let few: Vec<(usize, usize)> = compared.iter().copied().filter(|(n, _)| !tells(*n, FEW_TELL)).collect();
    let (least, most) = (few.iter().min()?.0, few.iter().max()?.0);
    // Rounded up to tens.
    let enough = (1..).map(|tens| 10 * tens).find(|n| tells(*n, 1.05 * TOLD))?;
    let which = match few.len() == compared.len() {
        true => String::new(),
        false => format!(" for {} of {} tasks and lengths", few.len(), compared.len()),
    };
    let told = told(cells, &few, most);
    let points = 100.0 * TOLD;
    let is_shared = few.iter().all(|(contexts, examples)| examples > contexts);
    let message = match few.iter().max().filter(|_| is_shared) {
        Some((1, examples)) => format!(
            "All {examples} questions are about one document{which}, so there is one independent sample; take about {enough} documents \
             (they would detect a loss of {points:.0} points)"
        ),
        Some((contexts, examples)) => format!(
            "{examples} questions are about {contexts} documents{which}, so there are {contexts} independent samples; on one task {told}; \
             take about {enough} documents (they would detect a loss of {points:.0} points)"
        ),
        None => {
            let n = match (least, most) {
                (1, 1) => "1 example".to_owned(),
                (least, most) if least == most => format!("{least} examples"),
                (least, most) => format!("{least} to {most} examples"),
            };
            format!(
                "only {n}{which}: on one task {told}; take about {enough} (they would detect a loss of {points:.0} points)"
            )
        }
    };
    Some(Warning::general(Check::FewExamples, String::new(), message))
}

/// Says what so few examples cannot tell on one task: the same numbers as in the line about what is detectable, over the rows with
/// as few.
fn told(cells: &[SummaryCell], few: &[(usize, usize)], most: usize) -> String {
    let of_place = |cells: &&[SummaryCell]| -> Vec<f64> {
        let Some(full) = cells.iter().find(|cell| cell.head().is_reference()) else { return Vec::new() };
        cells.iter().filter_map(|cell| summarize::detectable(cell, full)).collect()
    };
    let is_few = |cells: &&[SummaryCell]| {
        let size = cells.iter().map(|cell| (cell.sample(|r| r.score).contexts(), cell.records.len())).min();
        size.is_some_and(|size| few.contains(&size))
    };
    let of_rows: Vec<f64> = by_place(cells).iter().filter(|cells| is_few(cells)).flat_map(of_place).collect();
    let nearest = || spattn_stats::nearest_detectable(most as f64).map(|told| 100.0 * told);
    let least = of_rows.iter().copied().reduce(f64::min).or_else(nearest);
    let largest = of_rows.iter().copied().reduce(f64::max).or_else(nearest);
    match (least.map(|x| format!("{x:.0}")), largest.map(|x| format!("{x:.0}"))) {
        (Some(least), Some(largest)) if least == largest => format!("no loss below {least} points can be detected"),
        (Some(least), Some(largest)) => {
            format!("no loss below {least} to {largest} points, by row, can be detected")
        }
        _ => "no loss can be detected".to_owned(),
    }
}

/// Warns about models with random weights.
fn random_weights(cells: &[SummaryCell]) -> Vec<Warning> {
    let models: BTreeSet<&InternedStr> =
        cells.iter().map(|cell| &cell.head().model).filter(|id| id.starts_with(RANDOM)).collect();
    let warning = |model: &InternedStr| {
        let message =
            format!("{model} has random weights: times and memory are valid for its shape, but scores are meaningless");
        Warning::general(Check::RandomWeights, model.to_string(), message)
    };
    models.into_iter().map(warning).collect()
}

#[cfg(test)]
mod tests;
