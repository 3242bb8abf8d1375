//! How each published data set is scored: LongBench's `dataset2metric` and RULER's task table.

use super::Metric;
use crate::error::UsageError;

/// How predictions for one data set are cleaned and scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dataset {
    /// Name as published, such as `hotpotqa` or `niah_single_1`.
    pub name: &'static str,
    /// Family: `longbench` or `ruler`.
    pub family: &'static str,
    /// Name of the metric.
    metric: &'static str,
    /// Whether only the first line of the prediction counts (LongBench `eval.py`).
    pub first_line: bool,
}

const fn longbench(name: &'static str, metric: &'static str) -> Dataset {
    Dataset { name, family: "longbench", metric, first_line: false }
}

const fn first_line(name: &'static str, metric: &'static str) -> Dataset {
    Dataset { name, family: "longbench", metric, first_line: true }
}

const fn ruler(name: &'static str, metric: &'static str) -> Dataset {
    Dataset { name, family: "ruler", metric, first_line: false }
}

/// LongBench's 21 data sets and RULER's 13 tasks, in their published order.
pub static DATASETS: [Dataset; 34] = [
    longbench("narrativeqa", "qa_f1"),
    longbench("qasper", "qa_f1"),
    longbench("multifieldqa_en", "qa_f1"),
    longbench("multifieldqa_zh", "qa_f1_zh"),
    longbench("hotpotqa", "qa_f1"),
    longbench("2wikimqa", "qa_f1"),
    longbench("musique", "qa_f1"),
    longbench("dureader", "rouge_l_zh"),
    longbench("gov_report", "rouge_l"),
    longbench("qmsum", "rouge_l"),
    longbench("multi_news", "rouge_l"),
    longbench("vcsum", "rouge_l_zh"),
    first_line("trec", "classification"),
    first_line("triviaqa", "qa_f1"),
    first_line("samsum", "rouge_l"),
    first_line("lsht", "classification"),
    longbench("passage_retrieval_en", "retrieval"),
    longbench("passage_count", "count"),
    longbench("passage_retrieval_zh", "retrieval_zh"),
    longbench("lcc", "code_sim"),
    longbench("repobench-p", "code_sim"),
    ruler("niah_single_1", "string_match_all"),
    ruler("niah_single_2", "string_match_all"),
    ruler("niah_single_3", "string_match_all"),
    ruler("niah_multikey_1", "string_match_all"),
    ruler("niah_multikey_2", "string_match_all"),
    ruler("niah_multikey_3", "string_match_all"),
    ruler("niah_multivalue", "string_match_all"),
    ruler("niah_multiquery", "string_match_all"),
    ruler("vt", "string_match_all"),
    ruler("cwe", "string_match_all"),
    ruler("fwe", "string_match_all"),
    ruler("qa_1", "string_match_part"),
    ruler("qa_2", "string_match_part"),
];

impl Dataset {
    /// The data set of that name; `longbench/` or `ruler/` before it is allowed, and `_e` after a LongBench name
    /// (LongBench-E is scored alike).
    ///
    /// # Errors
    /// If there is none; the hint names the nearest.
    pub fn parse(name: &str) -> Result<&'static Dataset, UsageError> {
        let (family, bare) = name.split_once('/').map_or((None, name), |(family, bare)| (Some(family), bare));
        DATASETS
            .iter()
            .find(|d| family.is_none_or(|family| family == d.family) && d.is_called(bare))
            .ok_or_else(|| UsageError::unknown("data set", name, DATASETS.iter().map(|d| d.name)))
    }

    /// How it is scored.
    ///
    /// # Errors
    /// If that metric is not built in.
    pub fn metric(&self) -> Result<Metric, UsageError> {
        Metric::parse(self.metric)
    }

    /// The prediction as the published evaluation cleans it before `metric`.
    pub fn postprocess(&self, metric: Metric, prediction: &str) -> String {
        let kept = match self.first_line {
            true => prediction.trim_start_matches('\n').split('\n').next().unwrap_or(""),
            false => prediction,
        };
        metric.postprocess(kept)
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
    fn only_metrics_that_need_a_segmenter_are_missing() {
        let missing: Vec<_> = DATASETS.iter().filter(|d| d.metric().is_err()).map(|d| d.name).collect();
        assert_eq!(missing, ["multifieldqa_zh", "dureader", "vcsum"]);
    }

    #[test]
    fn only_some_data_sets_keep_the_first_line() {
        let text = "\n\nfirst \nsecond";
        assert_eq!(Dataset::parse("trec").unwrap().postprocess(Metric::Classification, text), "first ");
        assert_eq!(Dataset::parse("qasper").unwrap().postprocess(Metric::QaF1, text), text);
    }
}
