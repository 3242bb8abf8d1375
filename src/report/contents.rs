//! The contents of a report: records, their summary, means, and the runs that they come from.

use std::collections::BTreeMap;

use serde_json::Value;

use super::means::{self, MeanTable};
use super::merge::{Merged, Source};
use super::plots::{MOST_PAGES, depths};
use super::ranking;
use spattn_eval::records::interning::InternedStr;
use spattn_eval::records::manifest_keys::UNTIL_CERTAIN;
use spattn_eval::records::record::Record;
use spattn_eval::summary::cells::{self, SummaryCell};
use spattn_eval::summary::columns::SummaryRow;
use spattn_eval::summary::self_checks;
use spattn_eval::summary::summarize;
use spattn_eval::summary::verdicts::{self, KvBits, VerdictRule, VerdictTable};
use spattn_eval::summary::warnings::Warning;

/// The bits of a token's key and value in one KV head, by model, for models whose manifests state their shapes.
fn kv_bits(sources: &[Source], full_models: Option<&BTreeMap<InternedStr, InternedStr>>) -> KvBits {
    let of_model = |model: &Value| {
        let number = |key: &str| model[key].as_f64().filter(|number| *number > 0.0);
        let heads = number("layers")? * number("kv_heads")?;
        Some((model["id"].as_str()?.to_owned(), 8.0 * number("kv_bytes_per_token")? / heads))
    };
    let of_source = |source: &Source| -> Vec<(String, f64)> {
        match &source.manifest["model"] {
            Value::Array(models) => models.iter().filter_map(of_model).collect(),
            one => of_model(one).into_iter().collect(),
        }
    };
    let mut bits: KvBits = sources.iter().flat_map(of_source).collect();
    for (short, full) in full_models.into_iter().flatten() {
        if let Some(of_full) = bits.get(full.as_str()).copied() {
            bits.insert(short.to_string(), of_full);
        }
    }
    bits
}

/// Everything that a report is drawn from.
#[derive(Debug, Clone, PartialEq)]
pub struct Report<'a> {
    /// The records.
    pub records: &'a [Record],
    /// The summary of the records.
    pub rows: Vec<SummaryRow>,
    /// The records of each row of the summary.
    pub cells: Vec<SummaryCell<'a>>,
    /// Means over tasks.
    pub means: Vec<MeanTable>,
    /// The scores by length and depth, for tasks whose depth can be chosen.
    pub depths: Vec<depths::DepthScore>,
    /// What the self-checks found in the records.
    pub warnings: Vec<Warning>,
    /// The verdicts on whether methods are safe.
    pub verdicts: Vec<VerdictTable>,
    /// The runs that the records come from, if they are known.
    pub sources: &'a [Source],
    /// Notes on how the runs were merged.
    pub notes: &'a [String],
    /// The models that records name by a short name, each with its full name in the runs.
    pub full_models: Option<&'a BTreeMap<InternedStr, InternedStr>>,
    /// The most pages that are drawn of each kind of plot.
    pub most_pages: usize,
}

impl<'a> Report<'a> {
    /// Summarises and checks records. `order` lists the methods and parameters in the user's order.
    pub fn new(records: &'a [Record], order: &[(String, String)]) -> Self {
        let cells = cells::group(records, order);
        let rows = summarize::rows(&cells);
        Self {
            means: means::over_tasks(&rows, &cells),
            records,
            depths: depths::cells(records, order),
            warnings: self_checks::check_cells(&cells),
            verdicts: verdicts::judge(&rows, &cells, VerdictRule::default(), &KvBits::new()),
            rows,
            cells,
            sources: &[],
            notes: &[],
            full_models: None,
            most_pages: MOST_PAGES,
        }
    }

    /// The report of merged runs.
    pub fn of(merged: &'a Merged) -> Self {
        let report = Self {
            sources: &merged.sources,
            notes: &merged.notes,
            full_models: Some(&merged.full_models),
            ..Self::new(&merged.records, &merged.order)
        };
        report.judged_by(VerdictRule::default())
    }

    /// The same report, judged by another rule. If a run added examples until verdicts were reached, they hold at every look.
    pub fn judged_by(self, rule: VerdictRule) -> Self {
        let is_added_to = self.sources.iter().any(|source| source.manifest[UNTIL_CERTAIN] == true);
        let rule = VerdictRule { is_any_time: rule.is_any_time || is_added_to, ..rule };
        let kv_bits = kv_bits(self.sources, self.full_models);
        Self { verdicts: verdicts::judge(&self.rows, &self.cells, rule, &kv_bits), ..self }
    }

    /// The lines below a table of verdicts that compare methods with each other.
    pub fn ranking(&self, verdict: usize) -> Vec<String> {
        ranking::lines(&self.verdicts[verdict], &self.rows, &self.cells)
    }

    /// The means over tasks for a row's model and protocol, by length.
    pub fn means_of(&self, row: &SummaryRow) -> impl Iterator<Item = &MeanTable> {
        let place = (row.model.clone(), row.protocol.clone());
        self.means.iter().filter(move |t| t.rows.iter().any(|r| (&r.model, &r.protocol) == (&place.0, &place.1)))
    }
}
