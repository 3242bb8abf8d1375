//! What a manifest says about its shard: the index, and how many records the shard will make.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::contexts::Shard;
use super::planner::{Planner, RunPlan, ShardedCell};

/// The manifest's key for the statement.
const SHARD: &str = "shard";

/// A shard as a manifest describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stated {
    /// The shard's index, from 1.
    pub index: usize,
    /// The number of shards.
    pub of: usize,
    /// The number of records that the shard will make; `None` in old manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<usize>,
    /// The number of records that all shards together will make; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<usize>,
}

impl Stated {
    /// Makes the statement for a shard that will make `records` of the `whole` records.
    pub fn new(shard: Shard, records: usize, whole: usize) -> Self {
        Self { index: shard.index + 1, of: shard.count, records: Some(records), whole: Some(whole) }
    }

    /// Writes the statement into a manifest.
    pub fn put(self, manifest: &mut Value) {
        if let Some(fields) = manifest.as_object_mut() {
            fields.insert(SHARD.to_owned(), serde_json::to_value(self).unwrap_or_default());
        }
    }

    /// Reads the statement from a run's manifest, or from an entry that a resumed run added to it. Old manifests have only the command
    /// line; `None` if that does not give a shard either.
    pub fn of(manifest: &Value) -> Option<Self> {
        let stated = serde_json::from_value(manifest[SHARD].clone()).ok();
        stated.filter(|s: &Self| (1..=s.of).contains(&s.index)).or_else(|| Self::of_command(manifest))
    }

    fn of_command(manifest: &Value) -> Option<Self> {
        const FLAG: &str = "--shard";
        let words: Vec<&str> = manifest["command"].as_array()?.iter().filter_map(Value::as_str).collect();
        let given = words.iter().zip(1usize..).find_map(|(word, next)| match word.strip_prefix(FLAG)? {
            "" => words.get(next).copied(),
            rest => rest.strip_prefix('='),
        });
        let shard = Shard::parse(given?).ok()?;
        Some(Self { index: shard.index + 1, of: shard.count, records: None, whole: None })
    }
}

/// The number of records that this shard's plan makes.
pub fn records(planner: &Planner<'_>, plan: &RunPlan) -> usize {
    let of_cell =
        |cell: &super::planner::PlanCell| cell.examples().saturating_mul(planner.records_of_example(plan, cell.place));
    plan.cells.iter().map(of_cell).fold(0, usize::saturating_add)
}

/// The number of records that all shards together make.
///
/// # Errors
/// If files cannot be read.
pub fn whole(planner: &Planner<'_>, plan: &RunPlan) -> Result<usize> {
    let of_cell = |cell: &ShardedCell| {
        let sizes = cell.sizes(planner.shard.count);
        let examples = sizes.iter().map(|size| size.examples).fold(0, usize::saturating_add);
        examples.saturating_mul(planner.records_of_example(plan, cell.place))
    };
    let dealt = planner.dealt_to_run()?;
    let is_run = |cell: &&ShardedCell| cell.failure().is_none();
    Ok(dealt.iter().filter(is_run).map(of_cell).fold(0, usize::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_manifest_says_its_shard_and_one_from_before_its_command() {
        let mut manifest = json!({"command": ["spattn", "eval", "--shard", "2/5"]});
        let before = Stated { index: 2, of: 5, records: None, whole: None };
        assert_eq!(Stated::of(&manifest), Some(before));
        Stated::new(Shard { index: 2, count: 3 }, 40, 120).put(&mut manifest);
        let stated = Stated { index: 3, of: 3, records: Some(40), whole: Some(120) };
        assert_eq!(Stated::of(&manifest), Some(stated));
        let of_command = |words: &[&str]| Stated::of(&json!({ "command": words }));
        assert_eq!(of_command(&["spattn", "sweep", "--shard=2/5", "-q"]), Some(before));
        for words in [&["spattn", "eval"][..], &["spattn", "--shard"], &["--shard", "6/5"], &["--shards=2/5"]] {
            assert_eq!(of_command(words), None, "{words:?}");
        }
        for odd in [json!({}), json!(null), json!({"shard": {"index": 4, "of": 3}}), json!({"shard": "1/3"})] {
            assert_eq!(Stated::of(&odd), None, "{odd}");
        }
    }
}
