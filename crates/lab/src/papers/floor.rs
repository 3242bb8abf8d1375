//! The floor of scores: where dense attention scores hardly more than guessing, a comparison of methods means nothing.
//!
//! The rule: scores at tasks and lengths are not judged if dense attention scores less than [`LEAST_SCORE`] there, or if the 95 % interval
//! of its score reaches what guessing scores. That is chance for questions with options, or the method `random` on common examples, where
//! it was run. Perplexities, costs and errors have no floor.

use spattn_eval::config::settings::Settings;
use spattn_eval::records::record::Record;
use spattn_eval::summary::cells::SummaryCell;
use spattn_stats::Estimate;
use spattn_stats::several::mean_of;

use super::numbers::{short, with_interval};

/// The least score of dense attention, in percent, at which methods are compared.
pub const LEAST_SCORE: f64 = 10.0;

/// The most examples of each task on which `random` is run for the floor alone. It answers at length and finds nothing, so it takes longer
/// than other methods.
pub const FLOOR_SAMPLES: usize = 50;

/// Returns the settings of a run of random tokens, on no more examples than the floor needs.
pub fn for_floor(settings: Settings) -> Settings {
    let samples = settings.samples.map_or(FLOOR_SAMPLES, |samples| samples.min(FLOOR_SAMPLES));
    Settings { samples: Some(samples), ..settings }
}

/// The method whose score is the floor.
pub(super) const RANDOM: &str = "random";

/// The percentage that guessing scores at tasks whose questions have options.
const CHANCES: [(&str, f64); 21] = [
    ("gen/mmlu_flan_cot", 25.0),
    ("infinitebench/code_debug", 25.0),
    ("infinitebench/longbook_choice_eng", 25.0),
    ("longbench_v2", 25.0),
    ("longbench_v2/easy", 25.0),
    ("longbench_v2/hard", 25.0),
    ("longbench_v2/long", 25.0),
    ("longbench_v2/medium", 25.0),
    ("longbench_v2/short", 25.0),
    ("longbench_v2_no_context", 25.0),
    ("mcq/arc_challenge", 25.0),
    ("mcq/arc_easy", 25.0),
    ("mcq/boolq", 50.0),
    ("mcq/hellaswag", 25.0),
    ("mcq/mmlu", 25.0),
    ("mcq/openbookqa", 25.0),
    ("mcq/piqa", 50.0),
    ("mcq/winogrande", 50.0),
    ("scbench/choice_eng", 25.0),
    ("scbench_multi_turn/choice_eng", 25.0),
    ("zeroscrolls/quality", 25.0),
];

/// Returns what guessing scores at a task, in percent; `None` if there are no options to choose from.
fn chance(task: &str) -> Option<f64> {
    let name = task.split(':').next().unwrap_or(task);
    CHANCES.iter().find(|(known, _)| *known == name).map(|(_, chance)| *chance)
}

/// Returns why scores are not judged; `None` if dense attention is above the floor. `dense` and `random` are the cells of both methods at
/// the same tasks and lengths; `random` may be empty.
pub(super) fn why_at_floor(dense: &[&SummaryCell<'_>], random: &[&SummaryCell<'_>]) -> Option<String> {
    let score = |cell: &&SummaryCell<'_>| spattn_stats::score(&cell.sample(|r: &Record| r.score));
    let dense_score = mean_of(&dense.iter().map(score).collect::<Option<Vec<_>>>()?)?.scaled(100.0);
    let chance = mean_chance(dense.iter().map(|cell| &*cell.head().task));
    reason(&dense_score, chance, above_random(dense, random).as_ref())
}

/// Returns why scores of tasks that can be guessed are not judged, from dense attention's score there in percent; `None` if it scores more,
/// or if one of the tasks cannot be guessed.
pub(super) fn why_at_chance(dense: &Estimate, tasks: &[String]) -> Option<String> {
    let chance = mean_chance(tasks.iter().map(String::as_str))?;
    reason(dense, Some(chance), None)
}

/// Returns what guessing scores on average over tasks; `None` if one of them cannot be guessed, or if there are no tasks.
fn mean_chance<'a>(tasks: impl Iterator<Item = &'a str>) -> Option<f64> {
    let chances = tasks.map(chance).collect::<Option<Vec<f64>>>()?;
    (!chances.is_empty()).then(|| chances.iter().sum::<f64>() / chances.len() as f64)
}

/// Returns dense attention's score less that of `random` on common examples, in percent.
fn above_random(dense: &[&SummaryCell<'_>], random: &[&SummaryCell<'_>]) -> Option<Estimate> {
    let place = |cell: &SummaryCell<'_>| (cell.head().task.to_string(), cell.head().length);
    let difference = |cell: &&SummaryCell<'_>| {
        let other = random.iter().find(|other| place(other) == place(cell))?;
        let pairs: Vec<_> = cell.pairs(other).into_iter().map(|(context, a, b)| (context, a.score - b.score)).collect();
        spattn_stats::difference(&spattn_stats::Sample::new(pairs))
    };
    Some(mean_of(&dense.iter().map(difference).collect::<Option<Vec<_>>>()?)?.scaled(100.0))
}

fn reason(dense: &Estimate, chance: Option<f64>, above_random: Option<&Estimate>) -> Option<String> {
    let scores = match dense.ends.map(|ends| with_interval(dense.mean, ends)) {
        Some((mean, Some((low, high)))) => format!("{mean} [{low} {high}]"),
        Some((mean, None)) => mean,
        None => short(dense.mean),
    };
    let says = |than: String| Some(format!("dense attention scores {scores} there, {than}"));
    if dense.mean < LEAST_SCORE {
        return says(format!("less than {LEAST_SCORE}"));
    }
    if let Some(chance) = chance.filter(|chance| dense.low().is_none_or(|low| low <= *chance)) {
        return says(format!("and guessing {}", short(chance)));
    }
    let is_no_better = above_random.is_some_and(|above| above.low().is_none_or(|low| low <= 0.0));
    if is_no_better { says("no more than random tokens beyond noise".to_owned()) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tokens_run_on_the_first_examples_alone() {
        let samples = |own: Option<usize>| for_floor(Settings { samples: own, ..Settings::default() }).samples;
        assert_eq!([None, Some(7), Some(50), Some(250)].map(samples), [50, 7, 50, 50].map(Some));
    }

    fn estimate(mean: f64, half: f64) -> Estimate {
        Estimate { mean, ends: Some((mean - half, mean + half)) }
    }

    #[test]
    fn the_floor_is_a_low_score_or_one_that_guessing_reaches() {
        let of = |dense: Estimate, chance: Option<f64>, above: Option<Estimate>| {
            reason(&dense, chance, above.as_ref()).is_some()
        };
        assert!(of(estimate(9.9, 1.0), None, None) && !of(estimate(10.1, 9.0), None, None));
        assert!(of(estimate(30.0, 6.0), Some(25.0), None) && !of(estimate(30.0, 4.0), Some(25.0), None));
        assert!(of(estimate(30.0, 6.0), None, Some(estimate(5.0, 6.0))));
        assert!(!of(estimate(30.0, 6.0), None, Some(estimate(5.0, 4.0))));
        let text = reason(&estimate(3.0, 2.0), None, None).unwrap();
        assert_eq!(text, "dense attention scores 3.00 [1.00 5.00] there, less than 10");
        assert_eq!((chance("mcq/piqa:shots=3"), chance("ruler/vt")), (Some(50.0), None));
    }

    #[test]
    fn what_guessing_scores_is_known_of_all_tasks_with_options() {
        const OF_OPTIONS: [&str; 4] = ["choice", "correct_letter", "first_letter", "function_choice"];
        let has_options = |task: &spattn_tasks::TaskInfo| {
            let metric = task.metric.map(|metric| metric.name());
            task.about.contains(" options")
                || task.name.starts_with("mcq/")
                || metric.is_some_and(|name| OF_OPTIONS.contains(&name))
        };
        let (known, unknown): (Vec<_>, Vec<_>) =
            spattn_tasks::catalog().into_iter().filter(has_options).partition(|task| chance(&task.name).is_some());
        assert!(unknown.is_empty(), "{:?}", unknown.iter().map(|task| &task.name).collect::<Vec<_>>());
        assert_eq!(known.len(), CHANCES.len(), "each entry is of a task");
    }

    #[test]
    fn a_mean_over_tasks_is_at_chance_where_its_interval_reaches_the_mean_of_the_chances() {
        let tasks = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let both = tasks(&["gen/mmlu_flan_cot", "mcq/piqa"]);
        assert!(why_at_chance(&estimate(40.0, 3.0), &both).unwrap().ends_with("and guessing 37.5"));
        assert_eq!(why_at_chance(&estimate(40.0, 2.0), &both), None);
        assert_eq!(why_at_chance(&estimate(5.0, 2.0), &tasks(&["mcq/piqa", "ruler/vt"])), None);
    }
}
