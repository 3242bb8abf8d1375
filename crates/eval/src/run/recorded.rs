//! On resume, checks that stored records answer the present questions. Rows, data, metrics, limits and chat templates may have changed
//! under the same names, and records of different questions must not enter one mean.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use rayon::prelude::*;
use serde_json::Value;

use crate::examples::question_digest;
use crate::plan::planner::Planner;
use crate::program::Program;
use crate::records::loaded::LoadedRecords;
use crate::records::manifest_keys::INPUTS;
use crate::records::record::Record;
use spattn_attention::Configured;
use spattn_base::error::UsageError;

const HINT: &str = "put back what was changed, or use --overwrite or another --out folder";

/// The place of an example: index of its task, length, seed and sample.
type Place = (usize, usize, u64, usize);

impl Planner<'_> {
    /// Checks that a folder's records belong to the examples that this matrix would make. Generated tasks are skipped if this program made
    /// them from the same data; all other recorded examples are made again and compared. `manifest` is the stored one.
    ///
    /// # Errors
    /// A [`UsageError`] that names the first record that differs, and the difference.
    pub fn check_recorded(&self, dir: &Path, manifest: &Value, records: &[Record], program: &Program) -> Result<()> {
        let own: Vec<&Record> = records.iter().filter(|r| *r.model == *self.model.id).collect();
        let is_same_program = programs(manifest).all(|recorded| program.is(recorded));
        let changed = |task: usize| {
            let task = &self.tasks[task];
            // Examples from files are quick to make, so they are always compared.
            !task.is_sized() || !is_same_program || manifest[INPUTS][task.name()] != *task.inputs()
        };
        let to_compare: Vec<bool> = (0..self.tasks.len()).map(changed).collect();
        let mut examples: BTreeMap<Place, Vec<&Record>> = BTreeMap::new();
        for record in own {
            let task = self.tasks.iter().position(|task| task.name() == &*record.task);
            if let Some(task) = task.filter(|task| to_compare[*task]) {
                examples.entry((task, record.length, record.seed, record.sample)).or_default().push(record);
            }
        }
        let examples: Vec<_> = examples.into_iter().collect();
        let first = examples.par_iter().find_map_first(|(place, records)| self.compared(dir, *place, records).err());
        first.map_or(Ok(()), Err)
    }

    /// Compares the records of an example with the example as it is made now.
    fn compared(&self, dir: &Path, (task, length, seed, sample): Place, records: &[&Record]) -> Result<()> {
        let name = self.tasks[task].name();
        let of = self.tasks[task].as_ref();
        let material = self.make_example(of, length, sample, seed).with_context(|| {
            format!("{}: {name}, example {sample} is recorded, but can no longer be made", dir.display())
        })?;
        match records.iter().find_map(|record| question_digest::difference(record, &material)) {
            None => Ok(()),
            Some(what) => {
                let example = format!("{name}, example {sample}");
                Err(UsageError::new(format!("{}: {example} is not what was recorded: {what}", dir.display()))
                    .hint(HINT)
                    .into())
            }
        }
    }

    /// Leaves out records of another revision of a method than this program has, and notes it. The records stay in their file, where
    /// reports keep them apart, and their examples run again.
    pub fn leave_out_other_forms(&self, loaded: &mut LoadedRecords) {
        let form_of = |r: &Record| {
            let is_it = |m: &&Configured| m.name == *r.method && m.params == *r.params;
            self.config.methods.iter().find(is_it).map(|method| method.revision)
        };
        let is_other = |r: &Record| form_of(r).is_some_and(|form| form != r.revision);
        let others: BTreeSet<String> = loaded.records.iter().filter(|r| is_other(r)).map(label).collect();
        for label in others {
            loaded.notices.push(format!(
                "the code of `{label}` has changed since it was recorded: it is run again, and reports keep the two apart"
            ));
        }
        loaded.records.retain(|r| !is_other(r));
    }
}

/// The method of a record as a user would write it.
fn label(r: &Record) -> String {
    if r.params.is_empty() { r.method.to_string() } else { format!("{}:{}", r.method, r.params) }
}

/// The programs that wrote to a folder, from its manifest.
fn programs(manifest: &Value) -> impl Iterator<Item = &Value> {
    let resumed = manifest["resumed"].as_array().into_iter().flatten();
    std::iter::once(manifest).chain(resumed).map(|manifest| &manifest["program"])
}
