//! `spattn report --format lm-eval`: results in the files of lm-evaluation-harness, for its own tools.
//!
//! Each model and method has a folder with `results_TIME.json` and, for each task, `samples_TASK_TIME.jsonl`. Tasks and metrics have
//! lm-eval's names if it has the task. What lm-eval has no fields for (densities, costs) is only in `samples.jsonl`. The same records give
//! the same files.
//!
//! `scripts/check_lm_eval_format.py` checks the files against lm-eval itself.

mod names;
mod results;
mod samples;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use self::results::{ModelFacts, TaskFile};
use super::by_method::{MethodRecords, OfModel};
use super::merge::Merged;
use spattn_eval::records::prompts;
use spattn_eval::records::record::Record;
use spattn_model::checksum::sha256_hex;

/// The files of runs in another program's format, and notes on what the files lack.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Exported {
    /// The path of each file, below the folder to write to, and its text.
    pub files: Vec<(String, String)>,
    /// Notes for the user, one line each.
    pub notes: Vec<String>,
}

/// Makes the files of all records.
///
/// # Errors
/// If a stored prompt cannot be read.
pub fn export(merged: &Merged) -> Result<Exported> {
    let mut exported = Exported::default();
    let groups = MethodRecords::all(merged);
    let protocols: BTreeSet<&str> = groups.iter().map(|group| &*group.head.protocol).collect();
    let mut without_prompt = 0;
    for group in &groups {
        let protocol = (protocols.len() > 1).then_some(&*group.head.protocol);
        let name = names::model(&group.head.model, &group.label(), protocol);
        let folder = names::folder(&name);
        let of_model = OfModel::find(&merged.sources, &group.head.model);
        let time = names::time(
            of_model.as_ref().and_then(|m| m.manifest["created"].as_str()).unwrap_or("1970-01-01T00:00:00Z"),
        );
        let mut tasks: Vec<TaskFile<'_>> = Vec::new();
        for (ours, records) in &group.tasks {
            let name = free_name(ours, &tasks);
            let metrics = results::metrics(records);
            let (mut text, mut hashes) = (String::new(), String::new());
            for (doc_id, record) in records.iter().enumerate() {
                let prompt = stored_prompt(merged, record)?;
                without_prompt += usize::from(prompt.is_none());
                for sample in samples::lines(record, doc_id, prompt.as_deref(), &metrics) {
                    text += &format!("{}\n", sample.line);
                    hashes += &sample.hashes;
                }
            }
            exported.files.push((format!("{folder}/samples_{name}_{time}.jsonl"), text));
            tasks.push(TaskFile { name, ours, records, metrics, hash: sha256_hex(hashes.as_bytes()) });
        }
        let facts = ModelFacts { name: &name, folder: &folder, of_model: of_model.as_ref() };
        exported.files.push((format!("{folder}/results_{time}.json"), results::text(group, &tasks, &facts)));
    }
    if without_prompt > 0 {
        exported.notes.push(format!(
            "{without_prompt} of {} samples have the question in place of the prompt, which was not stored: run with --keep-prompts",
            merged.records.len()
        ));
    }
    Ok(exported)
}

/// The name of a task in lm-eval, or our own name if another task of the group has that one.
fn free_name(ours: &str, tasks: &[TaskFile<'_>]) -> String {
    let name = names::task(ours);
    match tasks.iter().any(|task| task.name == name) {
        false => name,
        true => ours.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect(),
    }
}

/// The prompt of a record, if a run stored it.
fn stored_prompt(merged: &Merged, record: &Record) -> Result<Option<String>> {
    let dirs = merged.sources.iter().map(|source| -> &Path { &source.dir });
    prompts::find(dirs, record).map(|path| prompts::read(&path)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::merge::Source;
    use serde_json::{Value, json};
    use spattn_eval::records::testing::record;
    use spattn_tasks::metrics::Metric;

    fn merged(records: Vec<Record>) -> Merged {
        let manifest = json!({
            "created": "2026-11-21T10:55:37Z",
            "program": {"name": "spattn", "version": "0.1.0", "commit": "abc"},
            "identity": {"model": "builtin", "dtype": "bf16", "tokens": {"chat_template_sha256": "f00"}},
            "model": {"context_limit": 32768},
        });
        let sources = vec![Source { name: "run".to_owned(), dir: "nowhere".into(), manifest, records: records.len() }];
        Merged { records, sources, ..Merged::default() }
    }

    #[test]
    fn each_model_with_a_method_has_a_folder_of_its_results_and_samples() {
        let of = |task: &str, method: &str, params: &str, sample: usize| Record {
            metric: Some(Metric::StringMatchAll),
            model: "builtin".into(),
            length: 1024,
            params: params.into(),
            ..record(task, method, sample, 1.0)
        };
        let merged = merged(vec![
            of("ruler/niah_single_1", "full", "", 0),
            of("ruler/niah_single_1", "quest", "page=16", 0),
            of("ruler/vt", "full", "", 0),
            of("ruler/vt", "full", "", 1),
        ]);
        let exported = export(&merged).unwrap();
        let names: Vec<&str> = exported.files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "builtin+full/samples_niah_single_1_2026-11-21T10-55-37.000000.jsonl",
                "builtin+full/samples_ruler_vt_2026-11-21T10-55-37.000000.jsonl",
                "builtin+full/results_2026-11-21T10-55-37.000000.json",
                "builtin+quest__page=16/samples_niah_single_1_2026-11-21T10-55-37.000000.jsonl",
                "builtin+quest__page=16/results_2026-11-21T10-55-37.000000.json",
            ]
        );
        assert_eq!(exported.files[1].1.lines().count(), 2);
        assert!(exported.notes[0].contains("4 of 4 samples"), "{:?}", exported.notes);
        let results: Value = serde_json::from_str(&exported.files[2].1).unwrap();
        for key in [
            "results",
            "group_subtasks",
            "configs",
            "versions",
            "n-shot",
            "higher_is_better",
            "n-samples",
            "config",
            "git_hash",
            "date",
            "max_length",
            "task_hashes",
            "model_source",
            "model_name",
            "model_name_sanitized",
            "system_instruction",
            "system_instruction_sha",
            "fewshot_as_multiturn",
            "chat_template",
            "chat_template_sha",
            "total_evaluation_time_seconds",
        ] {
            assert!(results.get(key).is_some(), "{key}");
        }
        assert_eq!(results["date"], 1_795_258_537);
        assert_eq!((&results["git_hash"], &results["config"]["model_dtype"]), (&json!("abc"), &json!("bf16")));
        assert_eq!(results["chat_template_sha"], "f00");
        assert_eq!(results["n-samples"]["ruler_vt"], json!({"original": 2, "effective": 2}));
        assert_eq!(results["configs"]["ruler_vt"]["metric_list"][0]["metric"], "1024");
        assert_eq!(results["configs"]["ruler_vt"]["output_type"], "generate_until");
        assert_eq!(results["higher_is_better"]["ruler_vt"], json!({"1024": true}));
        assert_eq!(exported, export(&merged).unwrap(), "the same records give the same files");
    }

    #[test]
    fn two_of_our_tasks_with_one_name_there_have_files_of_their_own() {
        let of = |task: &str| Record { metric: Some(Metric::ExactMatch), ..record(task, "full", 0, 1.0) };
        let exported = export(&merged(vec![of("mcq/mmlu:shots=0"), of("mcq/mmlu:shots=5")])).unwrap();
        let names: Vec<&str> = exported.files.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names[0].contains("/samples_mmlu_") && names[1].contains("/samples_mcq_mmlu_shots_5_"), "{names:?}");
    }
}
