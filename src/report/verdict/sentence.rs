//! The sentence above a table of verdicts: what to use, what not, and how to decide the rest.

use spattn_eval::summary::verdicts::{Finding, JudgedSetting, VerdictTable};

use super::words;

/// The most settings of a kind that are named.
const NAMED: usize = 4;

/// The sentence. Names of settings are between backticks.
pub fn sentence(table: &VerdictTable) -> String {
    let Some(full) = table.full else {
        return "Full attention was not run, so no method can be judged.".to_owned();
    };
    if table.judged().next().is_none() {
        return "Only oracles and floors were run: nothing to judge.".to_owned();
    }
    let is = |kind: fn(&JudgedSetting) -> bool| table.judged().filter(|s| kind(s)).collect::<Vec<&JudgedSetting>>();
    let safe = is(JudgedSetting::is_recommended);
    let in_the_mean = is(|s| matches!(s.finding, Finding::Safe { .. }) && !s.is_recommended());
    let lost = is(|s| matches!(s.finding, Finding::NotSafe { .. }));
    let mut open = is(|s| matches!(s.finding, Finding::TooFew { .. }));
    let idle = is(|s| s.finding == Finding::NothingToLose);
    let mut parts = Vec::new();
    if !idle.is_empty() {
        parts.push(format!("Full attention itself scores {}: nothing to lose.", words::score(table, full.score)));
    } else if !table.nothing_to_lose_on.is_empty() {
        let on = table.nothing_to_lose_on.join(", ");
        parts.push(format!("Full attention itself scores almost nothing on {on}: nothing to lose there."));
    }
    parts.extend(few_documents(table));
    parts.extend(recommended(table, &safe));
    if safe.is_empty() && idle.is_empty() {
        parts.push(none_safe(table, !open.is_empty(), !in_the_mean.is_empty()));
    }
    parts.extend(listed("Not safe", &in_the_mean, |s| but_on(table, s)));
    parts.extend(listed(if safe.is_empty() { "Proven worse" } else { "Do not use" }, &lost, |s| loses(table, s)));
    // The best come first; among equally good ones, the cheapest.
    let loss = |setting: &JudgedSetting| (1e6 * setting.loss.unwrap_or(f64::INFINITY)).round();
    open.sort_by(|a, b| loss(a).total_cmp(&loss(b)).then(cost(a).total_cmp(&cost(b))));
    parts.extend(listed("Undecided", &open, |s| undecided(table, s)));
    if safe.is_empty() && in_the_mean.is_empty() && idle.is_empty() {
        parts.push(next_step(table, open.first().copied()));
    }
    parts.join(" ")
}

/// What to do if no setting is safe.
fn next_step(table: &VerdictTable, best: Option<&JudgedSetting>) -> String {
    let tune = "`spattn tune`, which looks for the smallest budget of a method that is safe";
    match best {
        // `spattn tune` does not support perplexities.
        Some(best) if table.is_perplexity => {
            format!("Next: more texts, or a larger budget; best so far is `{}`.", words::name(table, best))
        }
        Some(best) => {
            let more = if table.has_shared_contexts() { "documents" } else { "examples" };
            format!("Next: more {more} (best so far: `{}`), or {tune}.", words::name(table, best))
        }
        None if table.is_perplexity => "Next: a larger budget.".to_owned(),
        None => format!("Next: a larger budget, or {tune}."),
    }
}

fn none_safe(table: &VerdictTable, is_open: bool, is_in_the_mean: bool) -> String {
    let examples = words::asked(table);
    let of_each = words::of_each_task(table);
    match (is_open, is_in_the_mean) {
        (true, _) => format!("{examples}{of_each} cannot prove any setting safe."),
        (false, true) => "No setting is safe on every task.".to_owned(),
        (false, false) => "No setting is safe.".to_owned(),
    }
}

/// Says that all questions are about very few documents, whose number is what counts.
fn few_documents(table: &VerdictTable) -> Option<String> {
    if !table.has_shared_contexts() || table.contexts >= spattn_stats::LEAST_CONTEXTS {
        return None;
    }
    Some(match table.contexts {
        1 => format!("All {} questions are about one document, so there is one independent sample.", table.examples),
        n => format!("{} questions are about {n} documents, so there are {n} independent samples.", table.examples),
    })
}

/// The safe setting that reads the fewest bytes, and the other safe ones.
fn recommended(table: &VerdictTable, safe: &[&JudgedSetting]) -> Option<String> {
    let first = safe.iter().copied().min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
    let Finding::Safe { loss_at_most } = first.finding else { return None };
    let unit = if table.is_perplexity { " %" } else { "" };
    let reads = first.bytes_percent.map_or(String::new(), |percent| format!(", reads {} of the bytes", whole(percent)));
    let memory = first.memory_percent.map_or(String::new(), |percent| format!(", memory +{}", whole(percent)));
    let attends = words::attended(first).map_or(String::new(), |attended| format!(" ({attended})"));
    let use_it = format!(
        "Use `{}`{attends}: safe, loses at most {}{unit}{reads}{memory}.",
        words::name(table, first),
        words::at_most(loss_at_most)
    );
    let others: Vec<&JudgedSetting> = safe.iter().copied().filter(|setting| !std::ptr::eq(*setting, first)).collect();
    let also = listed("Also safe", &others, |setting| {
        let attended = words::attended(setting).map_or(String::new(), |attended| format!(" ({attended})"));
        format!("`{}`{attended}", words::name(table, setting))
    });
    Some([Some(use_it), also].into_iter().flatten().collect::<Vec<_>>().join(" "))
}

/// The cost of a setting: the bytes that it reads in percent, or else the tokens that it attends.
fn cost(setting: &JudgedSetting) -> f64 {
    setting.bytes_percent.unwrap_or(100.0 * setting.density)
}

/// A percentage for readers, as a whole number from 10 on.
pub fn whole(percent: f64) -> String {
    if percent == 0.0 || percent >= 9.95 { format!("{percent:.0} %") } else { format!("{percent:.1} %") }
}

fn listed(what: &str, settings: &[&JudgedSetting], one: impl Fn(&JudgedSetting) -> String) -> Option<String> {
    let named: Vec<String> = settings.iter().take(NAMED).map(|setting| one(setting)).collect();
    let more = settings.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(", and {more} more") };
    (!named.is_empty()).then(|| format!("{what}: {}{more}.", named.join(", ")))
}

fn loses(table: &VerdictTable, setting: &JudgedSetting) -> String {
    let name = words::name(table, setting);
    let Finding::NotSafe { loss_at_least } = setting.finding else { return format!("`{name}`") };
    let attended = first_of_all(setting);
    format!("`{name}` ({attended}{}, at least {})", change(table, setting.loss), words::at_least(loss_at_least))
}

/// What was attended, if not what the name says, to precede other words on the setting.
fn first_of_all(setting: &JudgedSetting) -> String {
    words::attended(setting).map_or(String::new(), |attended| format!("{attended}; "))
}

/// A loss as a signed change of the score, or of the perplexity in percent.
fn change(table: &VerdictTable, loss: Option<f64>) -> String {
    let signed = |x: f64| {
        let text = if x.abs() >= 9.95 { format!("{x:+.0}") } else { format!("{x:+.1}") };
        if text.trim_start_matches(['+', '-', '0', '.']).is_empty() { "0".to_owned() } else { text.replace('-', "−") }
    };
    match (loss, table.is_perplexity) {
        (None, _) => String::new(),
        (Some(loss), true) => format!("{} %", signed(loss)),
        (Some(loss), false) => signed(-loss),
    }
}

fn undecided(table: &VerdictTable, setting: &JudgedSetting) -> String {
    let (first, last) = match table.is_perplexity {
        true => (setting.loss_low, setting.loss_high),
        false => (setting.loss_high, setting.loss_low),
    };
    let range = match first.and(last) {
        Some(_) => format!(", from {} to {}", change(table, first), change(table, last)),
        None => String::new(),
    };
    let needed = words::needed(table, setting.finding, setting.loss, words::of_each_task(table));
    let needed = needed.map_or(String::new(), |needed| format!("; {needed}"));
    let attended = first_of_all(setting);
    format!("`{}` ({attended}{}{range}{needed})", words::name(table, setting), change(table, setting.loss))
}

fn but_on(table: &VerdictTable, setting: &JudgedSetting) -> String {
    let tasks: Vec<String> = setting
        .unsafe_tasks()
        .map(|task| match task.finding {
            Finding::NotSafe { loss_at_least } => {
                format!("{}, where it loses at least {}", task.task, words::at_least(loss_at_least))
            }
            _ => task.task.clone(),
        })
        .collect();
    format!("`{}` is safe in the mean, but not on {}", words::name(table, setting), tasks.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::verdict::testing::{run, table};
    use spattn_eval::records::record::Record;

    #[test]
    fn the_sentence_says_what_is_proven_and_what_is_open() {
        let of = |method: &str, params: &str, lost| run("mine", method, params, lost, 20);
        let table = table(
            &[
                of("full", "", 7),
                of("quest", "density=0.05", 18),
                of("double_sparsity", "density=0.05", 18),
                of("quest", "density=0.2", 8),
            ],
            1.0,
        );
        let said = sentence(&table);
        assert!(said.starts_with("20 examples cannot prove any setting safe. Proven worse: "), "{said}");
        assert!(said.contains("`quest 5 %` (−55, at least 2"), "{said}");
        assert!(said.contains("`double_sparsity 5 %` (−55, at least 2"), "{said}");
        assert!(said.contains("Undecided: `quest 20 %` (−5.0, from −"), "{said}");
        assert!(
            said.contains(" would show it is not safe). Next: more examples (best so far: `quest 20 %`), or "),
            "{said}"
        );
    }

    #[test]
    fn what_is_safe_is_recommended_the_cheapest_first() {
        let n = 800;
        let of = |method: &str, density: f64, lost| -> Vec<Record> {
            let cost = |r: Record| Record { kv_bytes_per_token: Some(1000.0 * density), ..r };
            run("vt", method, &format!("density={density}"), lost, n).into_iter().map(cost).collect()
        };
        let table =
            table(&[run("vt", "full", "", 0, n), of("h2o", 0.2, 0), of("loki", 0.1, 0), of("quest", 0.05, 200)], 1.0);
        assert_eq!(
            sentence(&table),
            "Use `loki 10 %`: safe, loses at most 0.8, reads 10 % of the bytes, memory +12 %. Also safe: `h2o 20 %`. Do not use: `quest 5 %` \
             (−25, at least 21)."
        );
    }

    #[test]
    fn safe_in_the_mean_alone_is_said() {
        let table = table(
            &[
                run("a", "full", "", 0, 400),
                run("b", "full", "", 0, 400),
                run("a", "quest", "", 64, 400),
                run("b", "quest", "", 0, 400),
            ],
            11.0,
        );
        assert_eq!(
            sentence(&table),
            "No setting is safe on every task. Not safe: `quest` is safe in the mean, but not on a, where it loses at least 12."
        );
    }

    #[test]
    fn where_nothing_can_be_judged_the_sentence_says_why() {
        let low = table(&[run("a", "full", "", 485, 500), run("a", "quest", "", 488, 500)], 1.0);
        assert_eq!(sentence(&low), "Full attention itself scores 3.0: nothing to lose.");
        let alone = table(&[run("a", "quest", "", 0, 20)], 1.0);
        assert_eq!(sentence(&alone), "Full attention was not run, so no method can be judged.");
        let oracle = table(&[run("a", "full", "", 0, 20), run("a", "topk", "", 0, 20)], 1.0);
        assert_eq!(sentence(&oracle), "Only oracles and floors were run: nothing to judge.");
    }

    #[test]
    fn questions_about_one_document_are_one_sample() {
        let about_one = |method: &str, lost| -> Vec<Record> {
            run("mine", method, "", lost, 20).into_iter().map(|r| Record { context: Some(0), ..r }).collect()
        };
        let said = sentence(&table(&[about_one("full", 0), about_one("quest", 5)], 10.0));
        assert!(
            said.starts_with(
                "All 20 questions are about one document, so there is one independent sample. 20 examples cannot"
            ),
            "{said}"
        );
        assert!(
            said.contains("Undecided: `quest` (−25; at least 5 documents needed). Next: more documents ("),
            "{said}"
        );
    }

    #[test]
    fn of_what_is_undecided_the_best_comes_first_and_is_named_as_the_next_step() {
        let of = |lost: usize| run("vt", "quest", &format!("density=0.{lost:02}"), 11 - lost, 40);
        let runs: Vec<Vec<Record>> = (5..=10).map(of).chain([run("vt", "full", "", 0, 40)]).collect();
        let said = sentence(&table(&runs, 1.0));
        let undecided = said.split("Undecided: ").nth(1).unwrap_or_default();
        assert!(undecided.starts_with("`quest 10 %` (−2.5, ") && said.contains("best so far: `quest 10 %`)"), "{said}");
        let costly = |bytes: f64, runs: Vec<Record>| -> Vec<Record> {
            runs.into_iter().map(|r| Record { kv_bytes_per_token: Some(bytes), ..r }).collect()
        };
        let alike = [
            run("vt", "full", "", 0, 40),
            costly(500.0, run("vt", "h2o", "density=0.4", 2, 40)),
            costly(200.0, run("vt", "quest", "density=0.2", 2, 40)),
        ];
        assert!(sentence(&table(&alike, 1.0)).contains("best so far: `quest 20 %`)"), "the cheapest of equal ones");
        let lost = [run("vt", "full", "", 0, 40), run("vt", "quest", "density=0.05", 30, 40)];
        assert!(sentence(&table(&lost, 1.0)).ends_with(
            "Next: a larger budget, or `spattn tune`, which looks for the smallest budget of a method that is safe."
        ));
    }
}
