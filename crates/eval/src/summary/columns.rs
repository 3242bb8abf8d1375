//! [`COLUMNS`]: the columns of the summary, each in one row, and [`SummaryRow`], which has a field for each.
//!
//! A row of `summary_columns!` is a column's field, its unit, its rule for means over tasks, its heading and what it is.
//! `summary.csv`, JSON, the means, tables, the page, `--value` and `docs/columns.md` are made from these rows. How a
//! value comes from the records is in `summarize`, how numbers look to a reader in `report::format`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::column_value::{AsColumnValue, ColumnUnit, ColumnValue};
use super::over_tasks::{Common, Joint, Mean, Never, OverTasks, Sum};
use crate::records::record::is_reference;
use crate::records::timing::Latency;
use spattn_attention::Role;
use spattn_stats::several::{detectable_of, mean_of};
use spattn_stats::{Estimate, LEAST_CONTEXTS};
use spattn_tasks::likelihood::Measure;

/// Which values of a column are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Greater ones.
    More,
    /// Lesser ones.
    Less,
}

/// A column of the summary.
pub struct SummaryColumn {
    /// Name in CSV and JSON; a contract with scripts.
    pub name: &'static str,
    /// What it is, in one or two sentences of Markdown for readers of tables.
    about: &'static str,
    /// Its unit.
    pub unit: ColumnUnit,
    /// Heading in tables and on the page, with its unit there; `None` where it is in files only.
    pub heading: Option<&'static str>,
    /// Which values are better, if any are; of perplexities lesser scores and differences are.
    pub better: Option<Better>,
    /// Its value in a row.
    pub value: fn(&SummaryRow) -> ColumnValue<'_>,
    /// Name of its rule for means over tasks.
    over_tasks: fn() -> &'static str,
    /// Applies that rule: from rows of several tasks to the row of their mean.
    set_mean: fn(&[&SummaryRow], &mut SummaryRow),
}

impl SummaryColumn {
    /// What it is, in one or two sentences for readers of tables; names of files and flags stand between backticks.
    pub fn about(&self) -> &'static str {
        self.about.trim()
    }

    /// Whether it holds names.
    pub fn is_text(&self) -> bool {
        self.unit == ColumnUnit::Text
    }

    /// Whether it is an end of the interval of another column.
    pub fn is_end(&self) -> bool {
        self.name.ends_with("_low") || self.name.ends_with("_high")
    }
}

/// Defines [`SummaryRow`] and [`COLUMNS`] from rows of the form
/// `/// what it is` `name: type = Unit, rule over tasks, "heading" (Better);` of which heading and better may be absent.
macro_rules! summary_columns {
    ($($(#[doc = $about:literal])+ $name:ident: $type:ty = $unit:ident, $rule:expr $(, $heading:literal $(($better:ident))?)?;)+) => {
        /// One line of `summary.csv`: a method on a task at a length, under one protocol; or the mean of such lines.
        ///
        /// The order of the fields is the order of the columns, which is a contract. Scores, intervals and
        /// differences are in percent.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct SummaryRow {
            $($(#[doc = $about])+ pub $name: $type,)+
            /// All parameters by key, as far as the records have them; not a column.
            #[serde(skip)]
            pub settings: BTreeMap<String, String>,
            /// Whether most rows of its task and length were timed under other conditions; not a column.
            #[serde(skip)]
            pub is_timed_apart: bool,
        }

        /// All columns, in the order of files. New ones are only ever appended.
        pub static COLUMNS: &[SummaryColumn] = &[$(SummaryColumn {
            name: stringify!($name),
            about: concat!($($about),+),
            unit: ColumnUnit::$unit,
            heading: summary_columns!(@optional $($heading)?),
            better: summary_columns!(@optional $($(Better::$better)?)?),
            value: |row| row.$name.column_value(),
            over_tasks: || OverTasks::<SummaryRow, $type>::name(&$rule),
            set_mean: |rows, mean| mean.$name = OverTasks::<SummaryRow, $type>::value(&$rule, rows, |row| &row.$name),
        },)+];
    };
    (@optional) => { None };
    (@optional $value:expr) => { Some($value) };
}

summary_columns! {
    /// Model id as given: `builtin`, a folder, a hub id.
    model: String = Text, Common, "model";
    /// Full name of the task; in a row of means, the number of tasks.
    task: String = Text, Never, "task";
    /// Requested length in tokens; 0 if a file determines it.
    length: usize = Tokens, Common, "length";
    /// Name of the method, without parameters.
    method: String = Text, Common, "method";
    /// Parameters of the method that are not at their default, as `key=value,...`.
    params: String = Text, Common, "params";
    /// Where sparse attention started: `decode`, `question`, `last:N` or `prefill`.
    protocol: String = Text, Common, "sparse from";
    /// Number of examples; tables have in brackets the number of contexts, where several examples share one.
    n: usize = Count, Sum, "n";
    /// Mean score with its 95 % interval; if `measure` is `perplexity`, the perplexity over all scored tokens: the exponential of their mean negative log-likelihood.
    score: f64 = Percent, Joint(|rows| Some(mean_score(rows)?.mean)), "score" (More);
    /// Lower end of the 95 % interval of `score`; empty if all examples have one context.
    ci_low: Option<f64> = Percent, Joint(|rows| mean_score(rows)?.low());
    /// Upper end of it.
    ci_high: Option<f64> = Percent, Joint(|rows| mean_score(rows)?.high());
    /// Mean difference of the score to dense attention (`full`) on the same examples, with its paired 95 % interval; empty if `full` was not run. Each interval is for one comparison, so about one in twenty misses the true difference.
    delta_full: Option<f64> = Percent, Joint(|rows| Some(mean_delta(rows)?.mean)), "Δ full" (More);
    /// Lower end of the paired 95 % interval of `delta_full`; empty for `full` itself.
    delta_low: Option<f64> = Percent, Joint(|rows| mean_delta(rows)?.low());
    /// Upper end of it.
    delta_high: Option<f64> = Percent, Joint(|rows| mean_delta(rows)?.high());
    /// Tokens attended over tokens in context: mean over steps, query heads and all layers, dense ones too. Tables have in brackets the density asked for, where the sparse layers missed it by more than 5 %.
    density: f64 = Ratio, Mean, "density" (Less);
    /// FLOPs of finding tokens, relative to those of dense attention; empty if nobody counted them, as of a method in another process.
    cost1: Option<f64> = Ratio, Mean, "cost1" (Less);
    /// FLOPs of attending the tokens found, relative to those of dense attention.
    cost2: f64 = Ratio, Mean, "cost2" (Less);
    /// FLOPs of finding and attending tokens (`cost1` + `cost2`), relative to those of dense attention.
    cost_total: Option<f64> = Share, Mean, "FLOPs %" (Less);
    /// Memory of the index: bits per indexed token and KV head, mean over the sparse layers; empty if nobody counted them.
    aux_bits: Option<f64> = Bits, Mean, "aux bits" (Less);
    /// Bytes of K, V and index read per token after the prefix, over all layers; empty if there was no such token, or nobody counted them.
    kv_bytes_per_token: Option<f64> = Bytes, Mean, "KB/token" (Less);
    /// Norm of the difference to exact attention's output, relative to the norm of that output; only with `--fidelity`.
    output_error: Option<f64> = Ratio, Mean, "output error" (Less);
    /// Share of the k tokens with the largest logits that were attended, where k is the number attended; only with `--fidelity`.
    recall: Option<f64> = Ratio, Mean, "recall" (More);
    /// Time of the prefill; equal for methods that share a prefix.
    prefill_s: f64 = Seconds, Mean, "prefill s" (Less);
    /// Time of a decode step with its 95 % interval over examples. With `--latency solo` it is a latency: the mean time of a step that runs this method alone, on all threads, in the median of five turns (a mean, since a method may select once for several steps). Else it is the method's share of steps that run all methods together. A `*` marks times taken under other conditions than most around them. Empty if there were no steps.
    decode_ms_per_token: Option<f64> = Milliseconds, Joint(|rows| Some(mean_step_ms(rows)?.mean)), "ms/token" (Less);
    /// Bytes of K and V that the method still stores at the end: those of the whole context without evicted tokens.
    kv_bytes_held: Option<f64> = Bytes, Mean, "KB held" (Less);
    /// Requested density, if the budget was given as a density; compare it with `density_sparse_layers`.
    density_target: Option<f64> = Ratio, Common;
    /// As `density`, over the sparse layers (those that are not dense by policy).
    density_sparse_layers: f64 = Ratio, Mean;
    /// Smallest density of a query head in the sparse layers: mean over examples.
    density_min: Option<f64> = Ratio, Mean;
    /// Median density over the query heads of the sparse layers.
    density_median: Option<f64> = Ratio, Mean;
    /// Largest density of a query head in the sparse layers.
    density_max: Option<f64> = Ratio, Mean;
    /// As `density_min`, of the output error.
    output_error_min: Option<f64> = Ratio, Mean;
    /// As `density_median`, of the output error.
    output_error_median: Option<f64> = Ratio, Mean;
    /// As `density_max`, of the output error.
    output_error_max: Option<f64> = Ratio, Mean;
    /// As `density_min`, of the recall.
    recall_min: Option<f64> = Ratio, Mean;
    /// As `density_median`, of the recall.
    recall_median: Option<f64> = Ratio, Mean;
    /// As `density_max`, of the recall.
    recall_max: Option<f64> = Ratio, Mean;
    /// Exact attention weight of the tokens that were not attended; only with `--fidelity`.
    dropped_mass: Option<f64> = Ratio, Mean, "dropped mass" (Less);
    /// As `density_min`, of the dropped mass.
    dropped_mass_min: Option<f64> = Ratio, Mean;
    /// As `density_median`, of the dropped mass.
    dropped_mass_median: Option<f64> = Ratio, Mean;
    /// As `density_max`, of the dropped mass.
    dropped_mass_max: Option<f64> = Ratio, Mean;
    /// The measure in `score`, its interval and its difference: `score`, or `perplexity`, where less is better.
    measure: Measure = Text, Common;
    /// Perplexity per word instead of per token; only where perplexity is measured.
    word_perplexity: Option<f64> = Perplexity, Never, "word ppl" (Less);
    /// Negative log-likelihood per byte of text; only where perplexity is measured.
    bits_per_byte: Option<f64> = FineBits, Never, "bits/byte" (Less);
    /// KL divergence of the next token's distribution from that of `full`, mean over scored tokens; only where perplexity is measured.
    kl_mean: Option<f64> = Nats, Never, "KL" (Less);
    /// 99th percentile of that KL divergence over scored tokens.
    kl_p99: Option<f64> = Nats, Never, "KL p99" (Less);
    /// Share of scored tokens at which the most probable token is that of `full`; only where perplexity is measured.
    same_top: Option<f64> = Percent, Never, "same top %" (More);
    /// Share of questions whose right option is the most likely one; only where options are scored.
    acc: Option<f64> = Percent, Mean, "acc %" (More);
    /// As `acc`, by log-likelihood per character.
    acc_norm: Option<f64> = Percent, Mean, "acc_norm %" (More);
    /// Tokens whose K and V an evicting method still stores at the end, mean over layers and KV heads; a KV head stores what any of its query heads keeps. Empty if nothing was evicted.
    kv_tokens_held: Option<f64> = Tokens, Mean, "tokens held" (Less);
    /// Time of building the index, with no sharing between methods.
    index_s: f64 = Seconds, Mean, "index s" (Less);
    /// Lower end of the 95 % interval of `decode_ms_per_token` over examples.
    decode_ms_low: Option<f64> = Milliseconds, Joint(|rows| mean_step_ms(rows)?.low());
    /// Upper end of it.
    decode_ms_high: Option<f64> = Milliseconds, Joint(|rows| mean_step_ms(rows)?.high());
    /// Conditions under which times were measured; empty if the records do not have them.
    timed: Option<String> = Text, Common;
    /// Number of contexts that the examples ask about. Contexts are independent, so intervals are computed over them.
    contexts: usize = Count, Sum;
    /// True difference to `full`, in points, that 80 % of such runs would find significant; only for scores.
    detectable: Option<f64> = Percent, Joint(mean_detectable), "detectable Δ";
    /// Bytes that all heads and layers share (hyperplanes), counted as if each KV head read them for each token; not part of `kv_bytes_per_token`.
    shared_bytes_per_token: Option<f64> = Bytes, Mean, "KB shared" (Less);
    /// Bytes of scores and counts that selection writes and reads again, per token after the prefix; not part of `kv_bytes_per_token`.
    select_bytes_per_token: Option<f64> = Bytes, Mean, "KB scanned" (Less);
    /// Of the tokens attended in sparse layers, the share that follows the prefix and does not count towards the budget.
    free_share: Option<f64> = Ratio, Mean, "free";
    /// Meaning of `decode_ms_per_token`: `shared`, a method's share of steps that run all methods, or `solo`, the mean step that runs the method alone; empty in old records.
    latency: Option<Latency> = Text, Common;
    /// Of a shared step, the time of selecting tokens; empty if it was not measured separately.
    select_ms_per_token: Option<f64> = Milliseconds, Mean;
    /// Of a shared step, the time of attention.
    attend_ms_per_token: Option<f64> = Milliseconds, Mean;
    /// Of a shared step, the remaining time, mostly products with the weights.
    weights_ms_per_token: Option<f64> = Milliseconds, Mean;
    /// Tokens selected over tokens in context, without static tokens and dense layers; empty in old records, as are the next five columns.
    picked_density: Option<f64> = Ratio, Mean;
    /// `cost1` without dense layers.
    cost1_sparse_layers: Option<f64> = Ratio, Mean;
    /// `cost2` without dense layers.
    cost2_sparse_layers: Option<f64> = Ratio, Mean;
    /// `cost2` without dense layers and static tokens.
    cost2_picked: Option<f64> = Ratio, Mean;
    /// `cost1` without dense layers and projections onto shared hyperplanes.
    cost1_published: Option<f64> = Ratio, Mean;
    /// Bytes that all heads share, stored once; `shared_bytes_per_token` counts reading them for each token.
    shared_bytes_resident: Option<f64> = Bytes, Mean;
    /// Bytes of K, V and index that a step reads, relative to those of dense attention on the same examples; empty if `full` was not run, or if no token followed the prefix.
    bytes_share: Option<f64> = Share, Mean, "read %" (Less);
    /// Memory of the index, relative to that of the keys and values that it is an index of; empty in records from before the size of keys and values was stored.
    index_share: Option<f64> = Share, Mean, "index %" (Less);
    /// Bytes of K and V that a token found in the faster memory, over all layers: in pages with `--kv-tier disk`, in the GPU's memory with `--kv-tier host` and `--kv-memory`.
    fetched_memory_per_token: Option<f64> = Bytes, Mean, "memory KB";
    /// Bytes of K and V in the pages that a token fetched from disk, over all layers, if the method had the memory for pages to itself; only with `--kv-tier disk`.
    fetched_disk_per_token: Option<f64> = Bytes, Mean, "disk KB" (Less);
    /// Share of what was fetched that was in the faster memory, of pages with `--kv-tier disk`, of bytes with `--kv-tier host` and `--kv-memory`: mean over examples.
    page_hits: Option<f64> = Share, Mean, "hits %" (More);
    /// Bytes of K and V that a token fetched over the bus from host memory to the GPU, over all layers; only with `--kv-tier host`.
    fetched_bus_per_token: Option<f64> = Bytes, Mean, "bus KB" (Less);
    /// Of the tokens that the layers behind the first would have selected by their own queries, the share that was not selected ahead; only of methods that select ahead (`double_sparsity:offload=true`).
    missed_share: Option<f64> = Share, Mean, "missed %" (Less);
}

/// A column that tables show.
pub struct InTables {
    /// Its name.
    pub name: &'static str,
    /// When it is shown.
    pub shown: ShownIf,
    /// Whether tables of means over tasks show it: they leave out what depends on how long answers are.
    pub of_means: bool,
}

/// When a table shows a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownIf {
    /// In every table.
    Always,
    /// If any row has a value of this column.
    AnyHas(&'static str),
    /// If any row was timed alone (`--latency solo`): shares of common steps are no latencies.
    AnyTimedAlone,
}

impl ShownIf {
    /// Whether a table of these rows shows the column.
    pub fn holds(self, rows: &[SummaryRow]) -> bool {
        match self {
            Self::Always => true,
            Self::AnyHas(name) => find(name).is_some_and(|c| rows.iter().any(|r| (c.value)(r).number().is_some())),
            Self::AnyTimedAlone => rows.iter().any(SummaryRow::is_timed_alone),
        }
    }
}

const fn always(name: &'static str) -> InTables {
    InTables { name, shown: ShownIf::Always, of_means: false }
}

const fn of_means(name: &'static str) -> InTables {
    InTables { name, shown: ShownIf::Always, of_means: true }
}

const fn with(column: &'static str, name: &'static str) -> InTables {
    InTables { name, shown: ShownIf::AnyHas(column), of_means: false }
}

/// Shown with its own values, in tables of means too.
const fn where_known(name: &'static str) -> InTables {
    InTables { name, shown: ShownIf::AnyHas(name), of_means: true }
}

/// Columns of tables (terminal, Markdown, LaTeX), in their order: what was achieved, then what it cost.
pub const IN_TABLES: &[InTables] = &[
    always("n"),
    of_means("score"),
    of_means("delta_full"),
    of_means("density"),
    of_means("cost_total"),
    where_known("bytes_share"),
    where_known("index_share"),
    where_known("fetched_disk_per_token"),
    where_known("page_hits"),
    where_known("fetched_bus_per_token"),
    where_known("missed_share"),
    InTables { name: "decode_ms_per_token", shown: ShownIf::AnyTimedAlone, of_means: false },
    with("kv_tokens_held", "kv_tokens_held"),
    with("bits_per_byte", "word_perplexity"),
    with("bits_per_byte", "bits_per_byte"),
    with("bits_per_byte", "kl_mean"),
    with("bits_per_byte", "kl_p99"),
    with("bits_per_byte", "same_top"),
    with("acc", "acc"),
    with("acc", "acc_norm"),
    with("output_error", "output_error"),
    with("output_error", "recall"),
    with("output_error", "dropped_mass"),
];

/// Columns of tables in the order in which they are left out where room is short; those that are not here always stay.
pub const LEFT_OUT_FIRST: &[&str] = &[
    "bytes_share",
    "kl_p99",
    "word_perplexity",
    "dropped_mass",
    "acc_norm",
    "cost_total",
    "index_share",
    "fetched_disk_per_token",
    "fetched_bus_per_token",
    "missed_share",
    "recall",
    "kv_tokens_held",
    "same_top",
    "kl_mean",
    "output_error",
    "decode_ms_per_token",
    "page_hits",
    "acc",
    "bits_per_byte",
    "n",
];

/// Whether the page shows a column before a reader chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnPage {
    /// It does.
    Shown,
    /// A reader can choose it.
    Offered,
}

/// Columns that the page offers, in its order, and whether it shows them at first. What has a heading and is not here comes
/// after these and is offered.
const PAGE_ORDER: &[(&str, OnPage)] = &[
    ("method", OnPage::Shown),
    ("params", OnPage::Shown),
    ("task", OnPage::Shown),
    ("length", OnPage::Shown),
    ("model", OnPage::Offered),
    ("protocol", OnPage::Offered),
    ("n", OnPage::Shown),
    ("score", OnPage::Shown),
    ("delta_full", OnPage::Shown),
    ("density", OnPage::Shown),
    ("cost_total", OnPage::Shown),
    ("bytes_share", OnPage::Shown),
    ("index_share", OnPage::Shown),
    ("cost1", OnPage::Offered),
    ("cost2", OnPage::Offered),
    ("aux_bits", OnPage::Offered),
    ("kv_bytes_per_token", OnPage::Offered),
    ("shared_bytes_per_token", OnPage::Offered),
    ("select_bytes_per_token", OnPage::Offered),
    ("fetched_disk_per_token", OnPage::Shown),
    ("fetched_memory_per_token", OnPage::Offered),
    ("page_hits", OnPage::Shown),
    ("fetched_bus_per_token", OnPage::Shown),
    ("missed_share", OnPage::Shown),
    ("free_share", OnPage::Offered),
    ("kv_bytes_held", OnPage::Offered),
    ("kv_tokens_held", OnPage::Shown),
    ("decode_ms_per_token", OnPage::Offered),
    ("index_s", OnPage::Offered),
    ("prefill_s", OnPage::Offered),
    ("output_error", OnPage::Shown),
    ("recall", OnPage::Offered),
    ("dropped_mass", OnPage::Offered),
    ("word_perplexity", OnPage::Shown),
    ("bits_per_byte", OnPage::Offered),
    ("kl_mean", OnPage::Shown),
    ("kl_p99", OnPage::Offered),
    ("same_top", OnPage::Offered),
    ("detectable", OnPage::Offered),
    ("acc", OnPage::Offered),
    ("acc_norm", OnPage::Shown),
];

/// The column of a name.
pub fn find(name: &str) -> Option<&'static SummaryColumn> {
    COLUMNS.iter().find(|column| column.name == name)
}

/// The columns that the page offers, all that have a heading, and whether it shows them at first.
pub fn on_page() -> Vec<(&'static SummaryColumn, OnPage)> {
    let is_placed = |column: &SummaryColumn| PAGE_ORDER.iter().any(|(name, _)| *name == column.name);
    let first = PAGE_ORDER.iter().filter_map(|(name, choice)| Some((find(name)?, *choice)));
    let others = COLUMNS.iter().filter(|column| !is_placed(column)).map(|column| (column, OnPage::Offered));
    first.chain(others).filter(|(column, _)| column.heading.is_some()).collect()
}

/// Mean of the scores of several rows, each of the same weight, in percent.
pub fn mean_score(rows: &[&SummaryRow]) -> Option<Estimate> {
    mean_of(&rows.iter().map(|r| Estimate { mean: r.score, ends: r.ci_low.zip(r.ci_high) }).collect::<Vec<_>>())
}

/// Mean of the differences to dense attention on common examples, in points; `None` if a row has none. With so few contexts that no test
/// keeps its error rate, its interval never leaves 0 out.
pub fn mean_delta(rows: &[&SummaryRow]) -> Option<Estimate> {
    let of_row = |r: &&SummaryRow| Some(Estimate { mean: r.delta_full?, ends: r.delta_low.zip(r.delta_high) });
    let mean = mean_of(&rows.iter().map(of_row).collect::<Option<Vec<_>>>()?)?;
    let contexts: usize = rows.iter().map(|row| row.contexts).sum();
    match contexts < LEAST_CONTEXTS && rows.iter().all(|row| row.measure.is_score()) {
        true => Some(Estimate { ends: mean.ends.map(|(low, high)| (low.min(0.0), high.max(0.0))), ..mean }),
        false => Some(mean),
    }
}

/// Mean of the milliseconds a step of several rows, each of the same weight; `None` if a row has none.
fn mean_step_ms(rows: &[&SummaryRow]) -> Option<Estimate> {
    let of_row =
        |r: &&SummaryRow| Some(Estimate { mean: r.decode_ms_per_token?, ends: r.decode_ms_low.zip(r.decode_ms_high) });
    mean_of(&rows.iter().map(of_row).collect::<Option<Vec<_>>>()?)
}

/// The difference to dense attention, in points, that can be told from noise in such a mean; `None` if a row has none.
pub fn mean_detectable(rows: &[&SummaryRow]) -> Option<f64> {
    detectable_of(&rows.iter().map(|r| r.detectable).collect::<Vec<_>>())
}

impl SummaryRow {
    /// Whether it is of the [reference](is_reference).
    pub fn is_reference(&self) -> bool {
        is_reference(&self.method, &self.params)
    }

    /// What the method is in comparisons.
    pub fn role(&self) -> Role {
        Role::of_setting(&self.method, &self.params)
    }

    /// Whether its time of a step is a latency: of steps that ran the method alone.
    pub fn is_timed_alone(&self) -> bool {
        self.latency == Some(Latency::Solo) && self.decode_ms_per_token.is_some()
    }

    /// The mean over rows of one setting on several tasks; its task is without a name. Each column is what its rule makes
    /// of them, and nothing is carried over from one of the rows.
    pub fn mean_over_tasks(rows: &[&Self]) -> Self {
        let mut mean = Self::default();
        COLUMNS.iter().for_each(|column| (column.set_mean)(rows, &mut mean));
        // These two are no columns.
        let is_common = |key: &String, value: &String| rows.iter().all(|row| row.settings.get(key) == Some(value));
        let settings = rows.first().into_iter().flat_map(|row| &row.settings);
        mean.settings =
            settings.filter(|(key, value)| is_common(key, value)).map(|(k, v)| (k.clone(), v.clone())).collect();
        mean.is_timed_apart = rows.iter().any(|row| row.is_timed_apart || row.timed != rows[0].timed);
        mean
    }
}

/// The list of columns as a Markdown table.
pub fn as_markdown() -> String {
    let line = |column: &SummaryColumn| {
        let SummaryColumn { name, about, unit, heading, over_tasks, .. } = column;
        let heading = heading.unwrap_or_default();
        format!("| `{name}` | {} | {heading} | {} | {} |\n", unit.name(), over_tasks(), about.trim())
    };
    let head = "| column | unit | heading | over tasks | what it is |\n|---|---|---|---|---|\n";
    head.to_owned() + &COLUMNS.iter().map(line).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::testing::record;
    use crate::summary::summarize::summarize;

    #[test]
    fn columns_are_the_fields_of_a_row() {
        let row = &summarize(&[record("ruler/vt", "topk", 0, 1.0)], &[])[0];
        let fields = serde_json::to_value(row).unwrap();
        let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
        assert_eq!(fields.as_object().unwrap().keys().collect::<Vec<_>>(), names);
        let values = |column: &SummaryColumn| match ((column.value)(row), &fields[column.name]) {
            (ColumnValue::Text(text), value) => value.as_str().unwrap_or_default() == text,
            (ColumnValue::Count(count), value) => value.as_u64() == Some(count as u64),
            (ColumnValue::Number(number), value) => value.as_f64() == number,
        };
        COLUMNS.iter().for_each(|column| assert!(values(column), "{}", column.name));
    }

    #[test]
    fn a_mean_over_four_contexts_tells_no_difference() {
        let of = |task: &str, method: &str, n: usize| -> Vec<_> {
            (0..n).map(|i| record(task, method, i, f64::from(u8::from(method == "full")))).collect()
        };
        let mean = |n: usize| {
            let tasks = ["a", "b"].map(|task| [of(task, "full", n), of(task, "topk", n)].concat()).concat();
            let rows = summarize(&tasks, &[]);
            mean_delta(&rows.iter().filter(|row| row.method == "topk").collect::<Vec<_>>()).unwrap()
        };
        // Two of two and two of two are four pairs, of which the exact test tells nothing; ten are enough.
        assert_eq!((mean(2).mean, mean(2).high()), (-100.0, Some(0.0)));
        assert!(mean(5).high() < Some(0.0), "{:?}", mean(5));
    }

    #[test]
    fn the_page_of_columns_is_the_list() {
        let page = include_str!("../../../../docs/columns.md");
        let found: String = page.lines().filter(|line| line.starts_with('|')).map(|line| format!("{line}\n")).collect();
        let expected = as_markdown();
        for (found, expected) in found.lines().zip(expected.lines()) {
            assert_eq!(found, expected, "docs/columns.md, and COLUMNS in crates/eval/src/summary/columns.rs");
        }
        assert_eq!(
            found.lines().count(),
            expected.lines().count(),
            "docs/columns.md has to have this table:\n{expected}"
        );
    }

    #[test]
    fn lists_for_readers_are_of_columns_with_headings() {
        let has_heading = |name: &str| find(name).is_some_and(|column| column.heading.is_some());
        let in_tables: Vec<&str> = IN_TABLES.iter().map(|shown| shown.name).collect();
        let names = in_tables.iter().chain(PAGE_ORDER.iter().map(|(name, _)| name));
        names.for_each(|name| assert!(has_heading(name), "{name}"));
        for shown in IN_TABLES {
            let ShownIf::AnyHas(name) = shown.shown else { continue };
            assert!(find(name).is_some(), "{name}");
        }
        LEFT_OUT_FIRST.iter().for_each(|name| assert!(in_tables.contains(name), "{name}"));
        assert_eq!(on_page().len(), COLUMNS.iter().filter(|column| column.heading.is_some()).count());
    }
}
