//! Verdicts: whether a method loses at most a limit against dense attention, for each model, protocol and length.
//!
//! A [`VerdictTable`] has one verdict for each setting of a method, on the mean over the tasks that all settings have, and one for each of
//! these tasks. The rule is that of [`spattn_stats::verdict`]: paired differences on the same examples, over contexts. The settings of a
//! table are one family of comparisons, and all pairs of a setting and a task are another.
//!
//! Oracles and floors are not judged, because nobody would deploy them. Their losses are in the table. Verdicts are worded elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::cells::SummaryCell;
use super::columns::{SummaryRow, mean_score};
use super::paired;
use crate::records::record::Record;
use crate::records::timing::Latency;
use spattn_attention::Role;
use spattn_stats::verdict::{Judgement, Limit, Prospect, Verdict};
use spattn_stats::{CONFIDENCE, Estimate, Level, mean};

/// If dense attention has a lower score, in points, there is nothing to lose.
const LEAST_DENSE: f64 = 5.0;
/// A requested share is missed if the attended share differs from it by more than this part of it.
const MISSED: f64 = 0.1;

/// What methods are held to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct VerdictRule {
    /// The largest loss that counts as none: points of a score, or percent of dense attention's perplexity.
    pub limit: f64,
    /// The confidence with which all verdicts of a table hold together: a share.
    pub confidence: f64,
    /// Whether verdicts hold at all looks together, as is needed if examples were added until verdicts were certain.
    pub is_any_time: bool,
}

impl Default for VerdictRule {
    fn default() -> Self {
        Self { limit: 1.0, confidence: CONFIDENCE, is_any_time: false }
    }
}

/// The verdict on a setting, over all tasks or on one task. Losses are in points, or in percent of dense attention's perplexity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Finding {
    /// The loss is within the limit.
    Safe {
        /// An upper bound of the loss.
        loss_at_most: f64,
    },
    /// The loss is beyond the limit.
    NotSafe {
        /// A lower bound of the loss.
        loss_at_least: f64,
    },
    /// There are too few examples to tell.
    TooFew {
        /// About how many contexts of each task would tell; `None` if more than anybody would run. If it is unknown what they would show,
        /// at least so many.
        contexts_needed: Option<usize>,
        /// What they would show: `safe`, `not_safe` or `unknown`.
        #[serde(serialize_with = "prospect_name")]
        would_show: Prospect,
    },
    /// Dense attention's own score is so low that a method can hardly lose anything.
    NothingToLose,
    /// The setting is an oracle or a floor, or dense attention was not run.
    NotJudged,
}

/// The budget that the user asked for, by which settings are grouped. The attended density may differ.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub enum AskedBudget {
    /// A share of the context, by `density` or `ratio`.
    Share(f64),
    /// A number of tokens, by `k`.
    Tokens(f64),
    /// The budget follows from the method's own parameters.
    Own,
}

/// A setting of a method, with its verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JudgedSetting {
    /// The method's name.
    pub method: String,
    /// Its parameters.
    pub params: String,
    /// `method`, `oracle` or `floor`.
    #[serde(serialize_with = "role_name")]
    pub role: Role,
    /// The budget asked for.
    #[serde(serialize_with = "budget_name")]
    pub budget: AskedBudget,
    /// The share attended in layers that are not dense, if a share was asked for and missed by more than a tenth.
    pub attended_instead: Option<f64>,
    /// The verdict on the mean over the tasks.
    #[serde(flatten)]
    pub finding: Finding,
    /// The mean score, or perplexity.
    pub score: f64,
    /// The mean loss against dense attention on the same examples.
    pub loss: Option<f64>,
    /// The lower end of the loss's interval, which holds for all settings of the table together.
    pub loss_low: Option<f64>,
    /// The upper end of that interval.
    pub loss_high: Option<f64>,
    /// The verdict on each task, if there are several.
    pub tasks: Vec<JudgedTask>,
    /// The share of the tokens in context that were attended.
    pub density: f64,
    /// The memory of the index, in percent of the keys and values of the tokens that it covers; `None` if the model's shape is unknown, or
    /// the index was not counted.
    pub memory_percent: Option<f64>,
    /// The bytes read for each token, in percent of what dense attention reads.
    pub bytes_percent: Option<f64>,
    /// Milliseconds of a decode step that runs alone; only with `--latency solo`.
    pub solo_ms: Option<f64>,
}

/// The verdict on one task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JudgedTask {
    /// The task's name.
    pub task: String,
    /// The verdict.
    #[serde(flatten)]
    pub finding: Finding,
    /// The mean loss.
    pub loss: Option<f64>,
}

/// Dense attention's own result.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DenseScore {
    /// The mean score over the tasks, or perplexity.
    pub score: f64,
    /// Milliseconds of a decode step that runs alone; only with `--latency solo`.
    pub solo_ms: Option<f64>,
}

/// The verdicts of one model under one protocol at one length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VerdictTable {
    /// The model's id.
    pub model: String,
    /// Where sparse attention starts.
    pub protocol: String,
    /// Length in tokens; 0 if files determine it.
    pub length: usize,
    /// The tasks that were averaged.
    pub tasks: Vec<String>,
    /// Whether the scores are perplexities, and losses are in percent of dense attention's perplexity.
    pub is_perplexity: bool,
    /// What methods were held to.
    pub rule: VerdictRule,
    /// The number of settings that were judged, by which the error probability is divided.
    pub comparisons: usize,
    /// Dense attention's score; `None` if it was not run.
    pub full: Option<DenseScore>,
    /// Tasks on which dense attention has nothing to lose.
    pub nothing_to_lose_on: Vec<String>,
    /// The number of examples of the task with fewest.
    pub examples: usize,
    /// The number of examples of the task with most. It is larger if a run was interrupted, or if files have different numbers of rows.
    pub most_examples: usize,
    /// The number of contexts of the task with fewest. It is smaller than that of examples if some share a context.
    pub contexts: usize,
    /// The settings, in the order of the summary.
    pub settings: Vec<JudgedSetting>,
    /// The number of settings that lack some of the tasks, and are not in the table.
    pub left_out: usize,
}

impl AskedBudget {
    fn of(record: &Record) -> Self {
        let settings = record.settings();
        let number = |key: &str| settings.get(key)?.parse::<f64>().ok();
        match (number("density").or_else(|| number("ratio")), number("k")) {
            (Some(share), _) => Self::Share(share),
            (_, Some(tokens)) => Self::Tokens(tokens),
            _ => Self::Own,
        }
    }

    /// The budget as a heading: `5 %`, `64 tokens`.
    pub fn name(self) -> String {
        match self {
            Self::Share(share) => format!("{} %", (share * 1e4).round() / 100.0),
            Self::Tokens(tokens) => format!("{tokens} tokens"),
            Self::Own => "own".to_owned(),
        }
    }
}

fn role_name<S: serde::Serializer>(role: &Role, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(role.name())
}

fn prospect_name<S: serde::Serializer>(prospect: &Prospect, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(match prospect {
        Prospect::Safe => "safe",
        Prospect::NotSafe => "not_safe",
        Prospect::Unknown => "unknown",
    })
}

fn budget_name<S: serde::Serializer>(budget: &AskedBudget, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&budget.name())
}

impl JudgedSetting {
    /// Whether it can be recommended: safe on the mean, and on no task proven to be not safe.
    pub fn is_recommended(&self) -> bool {
        matches!(self.finding, Finding::Safe { .. }) && self.unsafe_tasks().next().is_none()
    }

    /// The tasks on which it is proven to be not safe.
    pub fn unsafe_tasks(&self) -> impl Iterator<Item = &JudgedTask> {
        self.tasks.iter().filter(|task| matches!(task.finding, Finding::NotSafe { .. }))
    }
}

impl VerdictTable {
    /// Whether some examples share a context.
    pub fn has_shared_contexts(&self) -> bool {
        self.contexts < self.examples
    }

    /// For each setting with too few examples, the number of contexts of each task that would tell, if known.
    pub fn open(&self) -> Vec<Option<usize>> {
        let needed = |setting: &JudgedSetting| match setting.finding {
            Finding::TooFew { contexts_needed, .. } => Some(contexts_needed),
            _ => None,
        };
        self.judged().filter_map(needed).collect()
    }

    /// The settings that are judged: those that are methods.
    pub fn judged(&self) -> impl Iterator<Item = &JudgedSetting> {
        self.settings.iter().filter(|setting| setting.role == Role::Method)
    }
}

// ---- from rows and cells to tables ----

/// A row of the summary with its cell.
#[derive(Clone, Copy)]
struct Line<'r, 'a> {
    row: &'r SummaryRow,
    cell: &'r SummaryCell<'a>,
}

/// Bits of the key and the value of a token and KV head, by model.
pub type KvBits = BTreeMap<String, f64>;

/// Judges settings. Returns tables in the order of the summary; none for scenes without a sparse method. `rows` and `cells` correspond.
pub fn judge(rows: &[SummaryRow], cells: &[SummaryCell], rule: VerdictRule, kv_bits: &KvBits) -> Vec<VerdictTable> {
    let lines: Vec<Line> = rows.iter().zip(cells).map(|(row, cell)| Line { row, cell }).collect();
    let (mut scenes, mut places) = (Vec::<Vec<Line>>::new(), BTreeMap::new());
    for line in lines {
        let place = *places.entry(Scene::of(line.row)).or_insert(scenes.len());
        match scenes.get_mut(place) {
            Some(of) => of.push(line),
            None => scenes.push(vec![line]),
        }
    }
    scenes.iter().filter_map(|lines| table(lines, rule, kv_bits)).collect()
}

/// What the settings of a table share. Perplexities of different texts are not averaged, so each text has its own table.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Scene<'r> {
    model: &'r str,
    protocol: &'r str,
    length: usize,
    text: Option<&'r str>,
}

impl<'r> Scene<'r> {
    fn of(row: &'r SummaryRow) -> Self {
        let text = (!row.measure.is_score()).then_some(row.task.as_str());
        Self { model: &row.model, protocol: &row.protocol, length: row.length, text }
    }
}

/// Makes a table; `None` if there is no sparse method.
fn table(lines: &[Line], rule: VerdictRule, kv_bits: &KvBits) -> Option<VerdictTable> {
    let (mut settings, mut places) = (Vec::<Vec<Line>>::new(), BTreeMap::new());
    for line in lines.iter().filter(|line| !line.row.is_reference()) {
        let place = *places.entry((&line.row.method, &line.row.params)).or_insert(settings.len());
        match settings.get_mut(place) {
            Some(of) => of.push(*line),
            None => settings.push(vec![*line]),
        }
    }
    let dense: Vec<Line> = lines.iter().copied().filter(|line| line.row.is_reference()).collect();
    let tasks = common_tasks(&settings, &dense)?;
    let all = settings.len();
    settings.iter_mut().for_each(|of| of.retain(|line| tasks.contains(&line.row.task)));
    settings.retain(|of| of.len() == tasks.len());
    let left_out = all - settings.len();
    let dense: Vec<Line> = dense.into_iter().filter(|line| tasks.contains(&line.row.task)).collect();
    let dense = (dense.len() == tasks.len()).then_some(dense);
    let comparisons = settings.iter().filter(|of| of[0].row.role() == Role::Method).count();
    let head = settings.first()?.first()?.row;
    let kv_bits = kv_bits.get(&head.model).copied();
    let judge = Judge { rule, comparisons, tasks: tasks.len(), kv_bits, dense: dense.as_deref() };
    let counted = settings.iter().flatten().chain(dense.iter().flatten());
    Some(VerdictTable {
        model: head.model.clone(),
        protocol: head.protocol.clone(),
        length: head.length,
        is_perplexity: !head.measure.is_score(),
        rule,
        comparisons,
        full: dense.as_deref().and_then(dense_score),
        nothing_to_lose_on: dense.iter().flatten().filter(|l| is_low(l.row)).map(|l| l.row.task.clone()).collect(),
        examples: counted.clone().map(|line| line.row.n).min()?,
        most_examples: counted.clone().map(|line| line.row.n).max()?,
        contexts: counted.map(|line| line.row.contexts).min()?,
        settings: settings.iter().filter_map(|of| judge.setting(of)).collect(),
        left_out,
        tasks,
    })
}

/// The tasks that dense attention and all settings have; if there are none, those of the setting with most. `None` if there are no
/// settings.
fn common_tasks(settings: &[Vec<Line>], dense: &[Line]) -> Option<Vec<String>> {
    let of = |lines: &[Line]| lines.iter().map(|line| line.row.task.clone()).collect::<BTreeSet<String>>();
    let sets: Vec<BTreeSet<String>> = settings.iter().map(|lines| of(lines)).collect();
    let with_dense = |set: &BTreeSet<String>| -> BTreeSet<String> {
        let common = set & &of(dense);
        if common.is_empty() { set.clone() } else { common }
    };
    let common = sets.iter().cloned().reduce(|a, b| &a & &b)?;
    let largest = || sets.iter().rev().max_by_key(|set| set.len()).cloned().unwrap_or_default();
    let chosen = with_dense(&if common.is_empty() { largest() } else { common });
    let lines = settings.iter().flatten();
    let mut ordered: Vec<String> = Vec::new();
    for line in lines.filter(|line| chosen.contains(&line.row.task)) {
        if !ordered.contains(&line.row.task) {
            ordered.push(line.row.task.clone());
        }
    }
    Some(ordered)
}

fn is_low(row: &SummaryRow) -> bool {
    row.measure.is_score() && row.score < LEAST_DENSE
}

fn dense_score(dense: &[Line]) -> Option<DenseScore> {
    let rows: Vec<&SummaryRow> = dense.iter().map(|line| line.row).collect();
    Some(DenseScore { score: mean_score(&rows)?.mean, solo_ms: solo_ms(&rows) })
}

fn solo_ms(rows: &[&SummaryRow]) -> Option<f64> {
    let of_row = |row: &&SummaryRow| row.decode_ms_per_token.filter(|_| row.latency == Some(Latency::Solo));
    Some(mean(&rows.iter().map(of_row).collect::<Option<Vec<f64>>>()?))
}

/// Judges the settings of a table.
struct Judge<'j, 'r, 'a> {
    rule: VerdictRule,
    comparisons: usize,
    tasks: usize,
    /// Bits of the key and the value of a token and KV head, if known.
    kv_bits: Option<f64>,
    /// Dense attention on the tasks of the table.
    dense: Option<&'j [Line<'r, 'a>]>,
}

impl Judge<'_, '_, '_> {
    fn setting(&self, of: &[Line]) -> Option<JudgedSetting> {
        let (head, rows) = (of.first()?, of.iter().map(|line| line.row).collect::<Vec<_>>());
        let role = head.row.role();
        let judged = self.judgement(of, self.comparisons);
        let is_low = self
            .dense
            .and_then(dense_score)
            .is_some_and(|full| head.row.measure.is_score() && full.score < LEAST_DENSE);
        let tasks = if of.len() > 1 { of.iter().map(|line| self.task(line, role)).collect() } else { Vec::new() };
        let loss = judged.map(|judged| judged.loss);
        let budget = AskedBudget::of(head.cell.head());
        Some(JudgedSetting {
            method: head.row.method.clone(),
            params: head.row.params.clone(),
            role,
            budget,
            attended_instead: attended_instead(budget, &rows),
            finding: finding(judged, role, is_low, self.tasks),
            score: mean_score(&rows)?.mean,
            loss: loss.map(|loss| loss.mean),
            loss_low: loss.and_then(|loss| loss.low()),
            loss_high: loss.and_then(|loss| loss.high()),
            tasks,
            density: mean(&rows.iter().map(|row| row.density).collect::<Vec<_>>()),
            memory_percent: self.memory_percent(&rows),
            bytes_percent: self.bytes_percent(&rows),
            solo_ms: solo_ms(&rows),
        })
    }

    /// The memory of the index, in percent of keys and values. `None` if the model's shape is unknown, or the index was not counted.
    fn memory_percent(&self, rows: &[&SummaryRow]) -> Option<f64> {
        let aux_bits: Vec<f64> = rows.iter().map(|row| row.aux_bits).collect::<Option<_>>()?;
        Some(100.0 * mean(&aux_bits) / self.kv_bits?)
    }

    fn task(&self, line: &Line, role: Role) -> JudgedTask {
        let judged = self.judgement(std::slice::from_ref(line), self.comparisons * self.tasks);
        let is_low = self.dense_on(&[line]).is_some_and(|dense| is_low(dense[0].row));
        JudgedTask {
            task: line.row.task.clone(),
            finding: finding(judged, role, is_low, 1),
            loss: judged.map(|judged| judged.loss.mean),
        }
    }

    /// The lines of dense attention on the tasks of `of`, in the same order.
    fn dense_on(&self, of: &[&Line]) -> Option<Vec<&Line<'_, '_>>> {
        let dense = self.dense?;
        of.iter().map(|line| dense.iter().find(|dense| dense.row.task == line.row.task)).collect()
    }

    fn judgement(&self, of: &[Line], comparisons: usize) -> Option<Judgement> {
        let lines: Vec<&Line> = of.iter().collect();
        let dense = self.dense_on(&lines)?;
        let (ours, full): (Vec<_>, Vec<_>) =
            (of.iter().map(|line| line.cell).collect(), dense.iter().map(|line| line.cell).collect());
        let level = Level::with(self.rule.confidence, comparisons);
        match of.first()?.row.measure.is_score() {
            true => {
                let limit = Limit { loss: self.rule.limit / 100.0, level };
                let differences = paired::score_differences(&ours, &full)?;
                let judged = match self.rule.is_any_time {
                    true => limit.judge_at_any_time(&differences),
                    false => limit.judge(&differences),
                };
                judged.map(in_points)
            }
            // No such bounds are known for perplexities.
            false if self.rule.is_any_time => None,
            false => {
                let rise = paired::difference(&ours, &full, level)?.scaled(100.0 / dense.first()?.row.score);
                Some(Limit { loss: self.rule.limit, level }.judge_interval(rise, of[0].row.contexts))
            }
        }
    }

    fn bytes_percent(&self, rows: &[&SummaryRow]) -> Option<f64> {
        let sum = |rows: &mut dyn Iterator<Item = &SummaryRow>| -> Option<f64> {
            rows.map(|row| row.kv_bytes_per_token).sum::<Option<f64>>()
        };
        let (own, full) = (sum(&mut rows.iter().copied())?, sum(&mut self.dense?.iter().map(|line| line.row))?);
        (full > 0.0).then(|| 100.0 * own / full)
    }
}

/// The attended share, if it differs too much from the share that was asked for.
fn attended_instead(budget: AskedBudget, rows: &[&SummaryRow]) -> Option<f64> {
    let AskedBudget::Share(share) = budget else { return None };
    let attended = mean(&rows.iter().map(|row| row.density_sparse_layers).collect::<Vec<_>>());
    ((attended / share - 1.0).abs() > MISSED).then_some(attended)
}

/// Converts losses from shares to points.
fn in_points(judged: Judgement) -> Judgement {
    let verdict = match judged.verdict {
        Verdict::Safe { loss_at_most } => Verdict::Safe { loss_at_most: 100.0 * loss_at_most },
        Verdict::NotSafe { loss_at_least } => Verdict::NotSafe { loss_at_least: 100.0 * loss_at_least },
        few => few,
    };
    let loss: Estimate = judged.loss.scaled(100.0);
    Judgement { loss, verdict, ..judged }
}

fn finding(judged: Option<Judgement>, role: Role, is_low: bool, tasks: usize) -> Finding {
    let Some(judged) = judged.filter(|_| role == Role::Method) else { return Finding::NotJudged };
    match judged.verdict {
        Verdict::NotSafe { loss_at_least } => Finding::NotSafe { loss_at_least },
        _ if is_low => Finding::NothingToLose,
        Verdict::Safe { loss_at_most } => Finding::Safe { loss_at_most },
        Verdict::TooFew { contexts_needed, would_show } => {
            Finding::TooFew { contexts_needed: contexts_needed.map(|contexts| contexts.div_ceil(tasks)), would_show }
        }
    }
}

#[cfg(test)]
mod tests;
