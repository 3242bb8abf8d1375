//! What `--dry-run` says of the verdicts: whether so many examples can lead to one, and how many could.

use serde_json::{Value, json};

use crate::cli::verdict_flags::LookBounds;
use spattn_attention::Role;
use spattn_eval::plan::planner::{PlanCell, Planner, RunPlan};
use spattn_eval::records::record::REFERENCE;
use spattn_eval::summary::outlook::{MOST_EXAMPLES, VerdictOutlook, of_perplexity, of_scores};
use spattn_eval::summary::verdicts::VerdictRule;
use spattn_tasks::Task;

/// The number of examples of each task if none is given (`configs/quick.toml`).
const DEFAULT_SAMPLES: usize = 10;

/// The outlook for the verdicts at a length, or of a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LengthOutlook {
    /// The length in tokens; 0 if files determine it.
    length: usize,
    /// The task, if it is judged alone.
    text: Option<String>,
    rule: VerdictRule,
    comparisons: usize,
    outlook: VerdictOutlook,
    /// The examples asked for: `-n`, or the most that may be added.
    samples: Option<usize>,
    /// The fewest examples that a task has, if a file has no more.
    rows: Option<usize>,
    /// Whether several tasks are averaged.
    is_mean: bool,
    /// The smallest `-n` with which a method that loses nothing can be called safe; `None` if files have too few examples, or if no
    /// number is known to suffice.
    samples_needed: Option<usize>,
    /// The contexts of each task that this takes.
    of_each: Option<usize>,
}

/// The outlooks in which a verdict cannot be reached, by length; none if no method is judged.
pub(super) fn outlooks(
    planner: &Planner<'_>,
    plan: &RunPlan,
    asked: VerdictRule,
    until: Option<LookBounds>,
) -> Vec<LengthOutlook> {
    let methods = &planner.config.methods;
    let comparisons = methods.iter().filter(|method| method.role() == Role::Method).count();
    if comparisons == 0 || !methods.iter().any(|method| method.label() == REFERENCE) {
        return Vec::new();
    }
    let rule = VerdictRule { is_any_time: until.is_some(), ..asked };
    let is_text = |cell: &&PlanCell| !is_scored(planner.tasks[cell.place.task].as_ref());
    let (texts, scored): (Vec<&PlanCell>, Vec<&PlanCell>) = plan.cells.iter().partition(is_text);
    let mut scenes: Vec<Vec<&PlanCell>> = texts.into_iter().map(|cell| vec![cell]).collect();
    let first_of_scores = scenes.len();
    for cell in scored {
        match scenes[first_of_scores..].iter_mut().find(|scene| scene[0].place.length == cell.place.length) {
            Some(scene) => scene.push(cell),
            None => scenes.push(vec![cell]),
        }
    }
    let scene = |cells: Vec<&PlanCell>| Scene { planner, cells, rule, comparisons, until }.outlook();
    scenes.into_iter().filter_map(scene).filter(LengthOutlook::lacks_anything).collect()
}

fn is_scored(task: &dyn Task) -> bool {
    task.likelihood().is_none_or(|task| task.measure() == spattn_tasks::likelihood::Measure::Score)
}

/// The cells that are judged together.
struct Scene<'s> {
    planner: &'s Planner<'s>,
    cells: Vec<&'s PlanCell>,
    rule: VerdictRule,
    comparisons: usize,
    until: Option<LookBounds>,
}

impl Scene<'_> {
    fn outlook(&self) -> Option<LengthOutlook> {
        let examples = self.cells.iter().map(|cell| cell.examples()).fold(0, usize::saturating_add);
        if examples > MOST_EXAMPLES {
            return None;
        }
        let tasks: Vec<&dyn Task> =
            self.cells.iter().map(|cell| self.planner.tasks[cell.place.task].as_ref()).collect();
        let places: Vec<Vec<usize>> =
            self.cells.iter().zip(&tasks).map(|(cell, task)| self.sizes(cell, *task)).collect();
        let contexts: usize = places.iter().map(Vec::len).sum();
        let outlook = match is_scored(tasks[0]) {
            true => of_scores(&places, self.rule, self.comparisons),
            false => of_perplexity(contexts, self.rule, self.comparisons),
        }?;
        let asked = self.planner.config.samples;
        let needed = outlook.contexts_needed;
        // A file with fewer examples than were asked for has no more; nor has a file with exactly as many.
        let grows = self.cells.iter().zip(&tasks).all(|(cell, task)| {
            let (has, asked) = (cell.examples(), asked.saturating_mul(task.cells()));
            has >= asked && task.available().is_none_or(|all| all > has)
        });
        let samples = |needed: usize| (needed as f64 * asked as f64 / contexts as f64).ceil() as usize;
        Some(LengthOutlook {
            length: self.cells[0].place.length,
            text: (!is_scored(tasks[0])).then(|| tasks[0].name().to_owned()),
            rule: self.rule,
            comparisons: self.comparisons,
            outlook,
            rows: self.cells.iter().map(|cell| cell.examples()).min().filter(|_| !grows),
            is_mean: self.cells.len() > 1,
            samples: if self.until.is_some() { self.until.and_then(|until| until.samples) } else { Some(asked) },
            samples_needed: needed.filter(|_| grows).map(samples),
            of_each: needed.map(|needed| needed.div_ceil(places.len())),
        })
    }

    /// The number of examples of each context. Generated tasks have different contexts under each seed, files the same ones.
    fn sizes(&self, cell: &PlanCell, task: &dyn Task) -> Vec<usize> {
        let seeds = self.planner.config.seeds.len();
        let is_generated = task.available().is_none() && task.likelihood().is_none();
        let (times, each) = if is_generated { (seeds, 1) } else { (1, seeds) };
        let sizes: Vec<usize> = cell.contexts.iter().map(|context| context.len() * each).collect();
        sizes.repeat(times)
    }
}

impl LengthOutlook {
    /// Whether a verdict cannot be reached. If examples are added, the most that may be added decides.
    fn lacks_anything(&self) -> bool {
        match self.rule.is_any_time {
            true => self.samples.zip(self.samples_needed).is_some_and(|(most, needed)| most < needed),
            false => !self.outlook.can_be_safe,
        }
    }

    /// The outlook as one line.
    pub(super) fn line(&self) -> String {
        let percent = if self.text.is_some() {
            " %"
        } else if self.rule.limit == 1.0 {
            " point"
        } else {
            " points"
        };
        let sure = (1e4 * self.rule.confidence).round() / 100.0;
        let together = if self.comparisons > 1 {
            format!(" for all {} settings together", self.comparisons)
        } else {
            String::new()
        };
        let held = format!("within {}{percent}, {sure} % sure{together}", self.rule.limit);
        let flag = if self.rule.is_any_time { "--max-samples" } else { "-n" };
        let each = if self.is_mean { " of each task" } else { "" };
        let n = match (self.rows, self.samples) {
            (Some(1), _) => "with 1 example in the file".to_owned(),
            (Some(rows), _) => format!("with {rows} examples in the file"),
            // The default number is shown without a flag.
            (None, Some(n)) if n == DEFAULT_SAMPLES && !self.rule.is_any_time => format!("with {n} examples{each}"),
            (None, n) => n.map_or(String::new(), |n| format!("with {flag} {n}")),
        };
        let can = match (self.outlook.can_be_not_safe, self.rule.is_any_time) {
            (false, false) => format!("{n} every verdict will be \"too few examples\""),
            _ => format!("{n} no method can be called safe, only not safe"),
        };
        let enough = match (self.samples_needed, self.of_each) {
            (Some(needed), _) => format!("a method that loses nothing can be called safe from {flag} {needed} on"),
            (None, Some(needed)) => format!(
                "a method that loses nothing could be called safe from {needed} documents{each} on, and a file has no more"
            ),
            (None, None) => "a method that loses nothing could not be called safe with 100,000 examples".to_owned(),
        };
        format!("note: {can} ({held}): {enough}")
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "length": self.length,
            "task": self.text,
            "limit": self.rule.limit,
            "confidence": self.rule.confidence,
            "settings": self.comparisons,
            "can_be_safe": self.outlook.can_be_safe,
            "can_be_not_safe": self.outlook.can_be_not_safe,
            "samples_needed": self.samples_needed,
        })
    }
}

/// The lines of a plan. Lengths with equal lines share one.
pub(super) fn lines<'o>(outlooks: impl Iterator<Item = &'o LengthOutlook>) -> String {
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    for outlook in outlooks {
        let (line, place) = (outlook.line(), outlook.text.clone());
        match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, places)) => places.extend(place),
            None => lines.push((line, place.into_iter().collect())),
        }
    }
    let shown = |(line, places): (String, Vec<String>)| match places.is_empty() {
        true => format!("{line}\n"),
        false => format!("{line} [{}]\n", places.join(", ")),
    };
    lines.into_iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(outlook: VerdictOutlook, samples_needed: Option<usize>) -> LengthOutlook {
        let rule = VerdictRule { limit: 5.0, ..VerdictRule::default() };
        let (length, text, of_each) = (1024, None, outlook.contexts_needed);
        let (rows, is_mean) = (None, false);
        LengthOutlook {
            length,
            text,
            rule,
            comparisons: 3,
            outlook,
            rows,
            is_mean,
            samples: Some(2),
            samples_needed,
            of_each,
        }
    }

    const NOTHING: VerdictOutlook =
        VerdictOutlook { can_be_safe: false, can_be_not_safe: false, contexts_needed: Some(73) };

    #[test]
    fn a_line_names_the_number_and_what_it_is_for() {
        let line = told(NOTHING, Some(37)).line();
        let held = "within 5 points, 95 % sure for all 3 settings together";
        assert_eq!(
            line,
            format!(
                "note: with -n 2 every verdict will be \"too few examples\" ({held}): a method that loses nothing can be called safe from -n 37 on"
            )
        );
        let few = told(VerdictOutlook { can_be_not_safe: true, ..NOTHING }, None).line();
        assert!(
            few.contains("no method can be called safe, only not safe") && few.contains("from 73 documents"),
            "{few}"
        );
        // A flag that the user did not give is not named, and none is named for a file with fewer rows.
        assert!(include_str!("../../../configs/quick.toml").contains(&format!("\nsamples = {DEFAULT_SAMPLES}\n")));
        let of_file = LengthOutlook { rows: Some(11), samples: Some(40), ..told(NOTHING, None) }.line();
        assert!(of_file.starts_with("note: with 11 examples in the file every verdict"), "{of_file}");
        let usual = LengthOutlook { samples: Some(DEFAULT_SAMPLES), is_mean: true, ..told(NOTHING, Some(381)) }.line();
        assert!(
            usual.starts_with("note: with 10 examples of each task every") && usual.contains("from -n 381 on"),
            "{usual}"
        );
        let two = [told(NOTHING, Some(37)), LengthOutlook { length: 2048, ..told(NOTHING, Some(37)) }];
        assert_eq!(lines(two.iter()), format!("{line}\n"), "the same is said once");
        let text = LengthOutlook { text: Some("ppl:a".to_owned()), ..told(NOTHING, Some(5)) };
        assert!(
            lines([&text].into_iter()).contains("within 5 %") && lines([&text].into_iter()).ends_with("on [ppl:a]\n")
        );
    }

    #[test]
    fn where_examples_are_added_the_bound_counts() {
        let at_any_time = |samples, needed| {
            let rule = VerdictRule { is_any_time: true, ..VerdictRule::default() };
            LengthOutlook { rule, samples, ..told(NOTHING, needed) }.lacks_anything()
        };
        assert_eq!(
            [(None, Some(9)), (Some(8), Some(9)), (Some(9), Some(9))].map(|(s, n)| at_any_time(s, n)),
            [false, true, false]
        );
    }
}
