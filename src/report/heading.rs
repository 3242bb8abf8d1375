//! The line that says what was run, where, when and by which build, from the records and their runs' manifests.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Report;
use super::format::{distinct, tokens};
use spattn_eval::records::record::REFERENCE;

/// The most tasks that are listed by name.
const FEW: usize = 4;
/// The number of digits shown of a commit.
const COMMIT_DIGITS: usize = 7;

/// The heading line; empty for an empty report.
pub fn line(report: &Report) -> String {
    if report.rows.is_empty() {
        return String::new();
    }
    let models = distinct(report.rows.iter().map(|r| format!("`{}`", r.model)));
    let on = places(report);
    let parts = [
        format!("{}{}", tasks(report), lengths(report)),
        format!("{} each", counted_range(report.rows.iter().map(|r| r.n), "example")),
        format!("{}{}", models.join(", "), if on.is_empty() { on } else { format!(" on {on}") }),
        methods(report),
        format!("sparse from {}", distinct(report.rows.iter().map(|r| r.protocol.as_str())).join(", ")),
        dates(report),
        builds(report),
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

pub(super) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn counted_range(numbers: impl Iterator<Item = usize> + Clone, what: &str) -> String {
    let (least, most) = (numbers.clone().min().unwrap_or(0), numbers.max().unwrap_or(0));
    if least == most { counted(most, what) } else { format!("{least} to {}", counted(most, what)) }
}

/// The number of tasks, the suite if all are of one, and their names if they are few.
fn tasks(report: &Report) -> String {
    let tasks = distinct(report.rows.iter().map(|r| r.task.as_str()));
    if let [task] = tasks.as_slice() {
        return (*task).to_owned();
    }
    let suites = distinct(tasks.iter().map(|task| task.split_once('/').map_or("", |(suite, _)| suite)));
    let suite = if let [suite] = suites.as_slice() { *suite } else { "" };
    let shown = |task: &str| task.strip_prefix(suite).map_or(task, |rest| rest.trim_start_matches('/')).to_owned();
    let kind = if suite == "ruler" { "RULER" } else { suite };
    let count =
        if kind.is_empty() { format!("{} tasks", tasks.len()) } else { format!("{} {kind} tasks", tasks.len()) };
    let names: Vec<String> = tasks.iter().map(|task| shown(task)).collect();
    if names.len() <= FEW { format!("{count} ({})", names.join(", ")) } else { count }
}

fn lengths(report: &Report) -> String {
    let lengths: BTreeSet<usize> = report.rows.iter().map(|r| r.length).filter(|length| *length > 0).collect();
    let names: Vec<String> = lengths.into_iter().map(tokens).collect();
    if names.is_empty() { String::new() } else { format!(" at {} tokens", names.join(", ")) }
}

fn methods(report: &Report) -> String {
    let sparse = || report.rows.iter().filter(|r| r.method != REFERENCE);
    let methods = distinct(sparse().map(|r| r.method.as_str())).len();
    let settings = distinct(sparse().map(|r| (r.method.as_str(), r.params.as_str()))).len();
    match settings {
        0 => "dense attention only".to_owned(),
        n if n == methods => counted(n, "sparse method"),
        n => format!("{} in {n} settings", counted(methods, "sparse method")),
    }
}

// ---- facts from the manifests ----

/// The identities in a manifest, one for each model and protocol.
pub(super) fn identities(manifest: &Value) -> Vec<&Value> {
    match &manifest["identity"] {
        Value::Array(several) => several.iter().collect(),
        Value::Null => Vec::new(),
        one => vec![one],
    }
}

/// The engine, and the machine if it is known.
fn places(report: &Report) -> String {
    let of_run = |manifest: &Value| {
        let is_cuda = identities(manifest).iter().any(|i| i["engine"].as_str().is_some_and(|e| e.starts_with("cuda")));
        let engine = match (identities(manifest).is_empty(), is_cuda) {
            (true, _) => return None,
            (_, true) => "a GPU",
            (_, false) => "the CPU",
        };
        let machine = &manifest["machine"];
        let simd = machine["simd"].as_str().filter(|_| !is_cuda).map(str::to_owned);
        let threads = machine["threads"].as_u64().map(|n| counted(n as usize, "thread"));
        let known: Vec<String> =
            machine["cpu"].as_str().map(str::to_owned).into_iter().chain(simd).chain(threads).collect();
        Some(if known.is_empty() { engine.to_owned() } else { format!("{engine} ({})", known.join(", ")) })
    };
    distinct(report.sources.iter().filter_map(|s| of_run(&s.manifest))).join(" and ")
}

/// The day of the run; for several runs, the first and last day.
fn dates(report: &Report) -> String {
    let day = |manifest: &Value| Some(manifest["created"].as_str()?.split('T').next()?.to_owned());
    let days: BTreeSet<String> = report.sources.iter().filter_map(|s| day(&s.manifest)).collect();
    match (days.first(), days.last()) {
        (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
        (Some(day), _) => day.clone(),
        _ => String::new(),
    }
}

/// The versions and commits of the program, if the manifests state them.
fn builds(report: &Report) -> String {
    let of_run = |manifest: &Value| {
        let program = &manifest["program"];
        let version = program["version"].as_str()?;
        let commit = program["commit"].as_str().map(short);
        Some(format!("spattn {version}{}", commit.map_or(String::new(), |commit| format!(" ({commit})"))))
    };
    distinct(report.sources.iter().filter_map(|s| of_run(&s.manifest))).join(" and ")
}

/// The first digits of a commit. A final `+`, which marks changed files, stays.
fn short(commit: &str) -> String {
    let digits: String = commit.chars().take_while(|c| *c != '+').take(COMMIT_DIGITS).collect();
    digits + if commit.ends_with('+') { "+" } else { "" }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::merge::Source;
    use spattn_eval::records::record::Record;
    use spattn_eval::records::testing::record;

    fn source(created: &str, program: Value, identity: Value) -> Source {
        let machine = json!({"cpu": "Some CPU", "simd": "avx2", "threads": 2});
        let manifest = json!({"created": created, "program": program, "identity": identity, "machine": machine});
        Source { name: created.into(), dir: created.into(), manifest, records: 1 }
    }

    #[test]
    fn the_line_says_what_was_run_where_when_and_by_which_build() {
        let records = ["ruler/vt", "ruler/cwe"].map(|task| {
            [
                record(task, "full", 0, 1.0),
                record(task, "full", 1, 1.0),
                record(task, "topk", 0, 1.0),
                record(task, "topk", 1, 1.0),
            ]
        });
        let records = records.concat();
        let program = json!({"version": "0.1.0", "commit": "c4c38b2aaaaa+"});
        let sources = [source("2026-11-20T10:00:00Z", program, json!({"model": "builtin"}))];
        let report = Report { sources: &sources, ..Report::new(&records, &[]) };
        assert_eq!(
            line(&report),
            "2 RULER tasks (vt, cwe) at 4K tokens, 2 examples each, `builtin` on the CPU (Some CPU, avx2, 2 threads), \
             1 sparse method, sparse from question, 2026-11-20, spattn 0.1.0 (c4c38b2+)"
        );
    }

    #[test]
    fn runs_of_several_days_and_engines_are_all_told_of() {
        let records = [Record { length: 0, ..record("mine", "full", 0, 1.0) }];
        let program = json!({"version": "0.1.0"});
        let sources = [
            source("2026-11-21T00:00:00Z", program.clone(), json!([{"engine": "cuda 4"}])),
            source("2026-11-19T00:00:00Z", program, json!({})),
        ];
        let report = Report { sources: &sources, ..Report::new(&records, &[]) };
        let said = line(&report);
        assert!(
            said.starts_with("mine, 1 example each, `builtin` on a GPU (Some CPU, 2 threads) and the CPU"),
            "{said}"
        );
        assert!(
            said.ends_with("dense attention only, sparse from question, 2026-11-19 to 2026-11-21, spattn 0.1.0"),
            "{said}"
        );
    }

    #[test]
    fn without_manifests_the_records_are_what_is_known() {
        let records = [record("ruler/vt", "full", 0, 1.0)];
        let said = line(&Report::new(&records, &[]));
        assert_eq!(
            said,
            "ruler/vt at 4K tokens, 1 example each, `builtin`, dense attention only, sparse from question"
        );
        assert_eq!(line(&Report::new(&[], &[])), "");
    }
}
