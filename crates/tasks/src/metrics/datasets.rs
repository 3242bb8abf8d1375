//! How each published data set is scored: LongBench's `dataset2metric` and RULER's task table.

use super::{Metric, first_line};
use spattn_base::error::UsageError;

/// How predictions for one data set are cleaned and scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dataset {
    /// Name as published, such as `hotpotqa` or `niah_single_1`.
    pub name: &'static str,
    /// Family: `longbench` or `ruler`.
    pub family: &'static str,
    /// The metric of its predictions.
    pub metric: Metric,
    /// Whether only the first line of the prediction counts (LongBench `eval.py`).
    pub first_line: bool,
    /// Other metrics that published figures use.
    pub also: &'static [Metric],
}

const fn longbench(name: &'static str, metric: Metric) -> Dataset {
    Dataset { name, family: "longbench", metric, first_line: false, also: &[] }
}

const fn longbench_first_line(name: &'static str, metric: Metric) -> Dataset {
    Dataset { first_line: true, ..longbench(name, metric) }
}

/// A data set of code, whose published similarity depends on whether an optional package is installed.
const fn longbench_code(name: &'static str) -> Dataset {
    Dataset { also: &[Metric::CodeSimLevenshtein], ..longbench(name, Metric::CodeSim) }
}

const fn ruler(name: &'static str, metric: Metric) -> Dataset {
    Dataset { name, family: "ruler", metric, first_line: false, also: &[] }
}

/// LongBench's 21 data sets and RULER's 13 tasks, in their published order.
pub static DATASETS: [Dataset; 34] = [
    longbench("narrativeqa", Metric::QaF1),
    longbench("qasper", Metric::QaF1),
    longbench("multifieldqa_en", Metric::QaF1),
    longbench("multifieldqa_zh", Metric::QaF1Zh),
    longbench("hotpotqa", Metric::QaF1),
    longbench("2wikimqa", Metric::QaF1),
    longbench("musique", Metric::QaF1),
    longbench("dureader", Metric::RougeLZh),
    longbench("gov_report", Metric::RougeL),
    longbench("qmsum", Metric::RougeL),
    longbench("multi_news", Metric::RougeL),
    longbench("vcsum", Metric::RougeLZh),
    longbench_first_line("trec", Metric::Classification),
    longbench_first_line("triviaqa", Metric::QaF1),
    longbench_first_line("samsum", Metric::RougeL),
    longbench_first_line("lsht", Metric::Classification),
    longbench("passage_retrieval_en", Metric::Retrieval),
    longbench("passage_count", Metric::Count),
    longbench("passage_retrieval_zh", Metric::RetrievalZh),
    longbench_code("lcc"),
    longbench_code("repobench-p"),
    ruler("niah_single_1", Metric::StringMatchAll),
    ruler("niah_single_2", Metric::StringMatchAll),
    ruler("niah_single_3", Metric::StringMatchAll),
    ruler("niah_multikey_1", Metric::StringMatchAll),
    ruler("niah_multikey_2", Metric::StringMatchAll),
    ruler("niah_multikey_3", Metric::StringMatchAll),
    ruler("niah_multivalue", Metric::StringMatchAll),
    ruler("niah_multiquery", Metric::StringMatchAll),
    ruler("vt", Metric::StringMatchAll),
    ruler("cwe", Metric::StringMatchAll),
    ruler("fwe", Metric::StringMatchAll),
    ruler("qa_1", Metric::StringMatchPart),
    ruler("qa_2", Metric::StringMatchPart),
];

/// A length range of LongBench-E: rows are grouped by their `length`, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthRange {
    /// Name as published.
    pub name: &'static str,
    /// The exclusive upper bound; `None` if there is none.
    below: Option<u64>,
}

/// The ranges by which scores of LongBench-E are reported.
pub static LENGTH_RANGES: [LengthRange; 3] = [
    LengthRange { name: "0-4k", below: Some(4000) },
    LengthRange { name: "4-8k", below: Some(8000) },
    LengthRange { name: "8k+", below: None },
];

impl LengthRange {
    /// The range that contains this length.
    pub fn of(length: u64) -> &'static LengthRange {
        let last = &LENGTH_RANGES[LENGTH_RANGES.len() - 1];
        LENGTH_RANGES.iter().find(|range| range.below.is_some_and(|below| length < below)).unwrap_or(last)
    }
}

impl Dataset {
    /// The data set with this name. The name may begin with `longbench/` or `ruler/`, and a LongBench name may end with `_e`
    /// (LongBench-E is scored the same way).
    ///
    /// # Errors
    /// If no data set has this name; the hint suggests the nearest one.
    pub fn parse(name: &str) -> Result<&'static Dataset, UsageError> {
        let (family, bare) = name.split_once('/').map_or((None, name), |(family, bare)| (Some(family), bare));
        DATASETS
            .iter()
            .find(|d| family.is_none_or(|family| family == d.family) && d.is_called(bare))
            .ok_or_else(|| UsageError::unknown("data set", name, DATASETS.iter().map(|d| d.name)))
    }

    /// The prediction as the published evaluation cleans it before it is scored.
    pub fn postprocess(&self, prediction: &str) -> String {
        self.metric.postprocess(if self.first_line { first_line(prediction) } else { prediction })
    }

    fn is_called(&self, name: &str) -> bool {
        name == self.name || (self.family == "longbench" && name.strip_suffix("_e") == Some(self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_data_set_is_found_by_its_name() {
        for dataset in &DATASETS {
            assert_eq!(Dataset::parse(dataset.name), Ok(dataset));
            assert_eq!(Dataset::parse(&format!("{}/{}", dataset.family, dataset.name)), Ok(dataset));
        }
        assert_eq!(Dataset::parse("hotpotqa_e").unwrap().name, "hotpotqa");
        assert!(Dataset::parse("ruler/hotpotqa").is_err());
    }

    #[test]
    fn ranges_meet_at_their_ends() {
        let name = |length| LengthRange::of(length).name;
        assert_eq!([0, 3999, 4000, 7999, 8000, u64::MAX].map(name), ["0-4k", "0-4k", "4-8k", "4-8k", "8k+", "8k+"]);
    }

    #[test]
    fn only_some_data_sets_keep_the_first_line() {
        let text = "\n\nfirst \nsecond";
        assert_eq!(Dataset::parse("trec").unwrap().postprocess(text), "first ");
        assert_eq!(Dataset::parse("qasper").unwrap().postprocess(text), text);
    }
}
