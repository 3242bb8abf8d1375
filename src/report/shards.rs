//! Checks whether a run's shards are complete: which ones are missing, come from different splits, or did not finish.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::Value;

use super::merge::source::Source;
use spattn_eval::plan::shard_statement::Stated;
use spattn_eval::records::manifest_keys::IDENTITY;
use spattn_eval::records::record::Record;

/// The most missing shards that are named.
const NAMED: usize = 8;

/// A run's folder, the shards that it holds, and its records.
type Run<'a> = (&'a Source, Vec<Stated>, &'a [Record]);

/// Notes about the shards among some runs, one line each. `records` are those of the runs.
pub fn notes(sources: &[Source], records: &[Vec<Record>]) -> Vec<String> {
    let mut matrices: BTreeMap<String, Vec<Run>> = BTreeMap::new();
    for (source, records) in sources.iter().zip(records) {
        let stated = all_stated(&source.manifest);
        if !stated.is_empty() {
            matrices.entry(matrix(&source.manifest)).or_default().push((source, stated, records));
        }
    }
    let of_matrix = |runs: &Vec<Run>| {
        let unfinished: Vec<String> =
            runs.iter().filter_map(|(source, stated, _)| unfinished(source, stated)).collect();
        missing(runs).into_iter().chain(unfinished).collect::<Vec<_>>()
    };
    matrices.values().flat_map(of_matrix).collect()
}

/// Whether runs together have all records of their matrix. `false` if their manifests do not state how many that are.
fn are_whole(runs: &[Run]) -> bool {
    let stated: BTreeSet<Option<usize>> = runs.iter().flat_map(|(_, stated, _)| stated).map(|s| s.whole).collect();
    let known = if stated.len() == 1 { stated.first().copied().flatten() } else { None };
    let Some(whole) = known else { return false };
    let name = |r: &'_ Record| [r.key.clone(), r.model.to_string(), r.task.to_string()];
    let all: HashSet<[String; 3]> = runs.iter().flat_map(|(_, _, records)| records.iter().map(name)).collect();
    all.len() == whole
}

/// The shards in a run's folder: the one that it started with, and any that it was resumed with.
fn all_stated(manifest: &Value) -> Vec<Stated> {
    let resumed = manifest["resumed"].as_array().into_iter().flatten();
    let mut all: BTreeMap<(usize, usize), Stated> = BTreeMap::new();
    for stated in std::iter::once(manifest).chain(resumed).filter_map(Stated::of) {
        let known = all.entry((stated.of, stated.index)).or_insert(stated);
        // A folder may be resumed with a smaller matrix than it started with. Then the number of records in all shards is unknown.
        known.whole = known.whole.filter(|whole| Some(*whole) == stated.whole);
        known.records = known.records.max(stated.records);
    }
    all.into_values().collect()
}

/// What all shards of a run have in common, as text.
fn matrix(manifest: &Value) -> String {
    format!("{}\n{}", manifest[IDENTITY], manifest["config"])
}

/// A note on shards that a run lacks; `None` if it is complete.
fn missing(runs: &[Run]) -> Option<String> {
    let mut splits: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for stated in runs.iter().flat_map(|(_, stated, _)| stated) {
        splits.entry(stated.of).or_default().insert(stated.index);
    }
    let here = splits.iter().flat_map(|(of, shards)| shards.iter().map(move |index| format!("{index}/{of}")));
    let here: Vec<String> = here.collect();
    let is_whole = splits.iter().any(|(of, shards)| shards.len() == *of);
    match (splits.len(), is_whole) {
        (1, true) => None,
        // The missing shards have no records.
        (1, false) if are_whole(runs) => None,
        (_, false) if are_whole(runs) => Some(format!(
            "shards from several splits of one run ({}) make up all of it; what occurs twice counts once",
            listed(&here)
        )),
        (_, true) => Some(format!(
            "a run is given whole, and parts of it again from other splits (shards {}); what occurs twice counts once",
            listed(&here)
        )),
        (1, false) => {
            let (of, shards) = splits.pop_first()?;
            let lacking: Vec<String> =
                (1..=of).filter(|index| !shards.contains(index)).take(NAMED + 1).map(|i| format!("{i}/{of}")).collect();
            let (word, are) = if of - shards.len() == 1 { ("shard", "is") } else { ("shards", "are") };
            let lacking = several(&lacking, of - shards.len());
            Some(format!(
                "{word} {lacking} of a run {are} missing ({} here): {} not in any of these numbers",
                listed(&here),
                if of - shards.len() == 1 { "its examples are" } else { "their examples are" }
            ))
        }
        _ => Some(format!(
            "shards from several splits of one run ({}) share examples, which count once, and lack others, which are not in any of these numbers",
            listed(&here)
        )),
    }
}

/// The first few of some names, and how many others there are. `count` is the number of all.
fn several(names: &[String], count: usize) -> String {
    let shown = &names[..names.len().min(NAMED)];
    let more = count.saturating_sub(shown.len());
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

fn listed(names: &[String]) -> String {
    several(names, names.len())
}

/// A note on a run with fewer records than expected.
fn unfinished(source: &Source, stated: &[Stated]) -> Option<String> {
    let expected = stated.iter().try_fold(0usize, |sum, stated| Some(sum.saturating_add(stated.records?)))?;
    let shards: Vec<String> = stated.iter().map(|Stated { index, of, .. }| format!("{index}/{of}")).collect();
    let is_sharded = stated.iter().any(|stated| stated.of > 1);
    let shards = if is_sharded { format!(" (shard {})", listed(&shards)) } else { String::new() };
    (source.records < expected).then(|| {
        format!(
            "{}{shards} has {} of its {expected} records: it did not finish, or parts of it failed",
            source.name, source.records
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use spattn_eval::plan::contexts::Shard;
    use spattn_eval::records::testing::record;

    /// A shard's folder, without some of its records.
    fn source(shard: &str, lacking: usize) -> Source {
        let mut manifest = json!({"identity": {"model": "builtin"}, "config": {"samples": 30}});
        Stated::new(Shard::parse(shard).unwrap(), 30, 90).put(&mut manifest);
        Source { name: shard.replace('/', "-of-"), dir: "shard".into(), manifest, records: 30 - lacking }
    }

    /// The notes on runs for which only the number of records is known.
    fn notes(sources: &[Source]) -> Vec<String> {
        super::notes(sources, &vec![Vec::new(); sources.len()])
    }

    fn told(shards: &[&str]) -> Vec<String> {
        notes(&shards.iter().map(|shard| source(shard, 0)).collect::<Vec<_>>())
    }

    #[test]
    fn the_records_decide_whether_a_run_is_whole() {
        let records =
            |samples: std::ops::Range<usize>| samples.map(|i| record("vt", "full", i, 1.0)).collect::<Vec<_>>();
        let said = |shards: [&str; 2], all: [Vec<Record>; 2]| super::notes(&shards.map(|shard| source(shard, 0)), &all);
        let whole = said(["1/2", "2/3"], [records(0..50), records(40..90)]);
        assert_eq!(
            whole,
            ["shards from several splits of one run (1/2, 2/3) make up all of it; what occurs twice counts once"]
        );
        let lacking = said(["1/2", "2/3"], [records(0..50), records(40..89)]);
        assert!(lacking[0].contains("share examples, which count once, and lack others"), "{lacking:?}");
        // The third shard has no records.
        assert_eq!(said(["1/3", "2/3"], [records(0..50), records(50..90)]), [""; 0]);
        assert!(
            said(["1/3", "2/3"], [records(0..50), records(50..89)])[0].starts_with("shard 3/3 of a run is missing")
        );
        // A run that was resumed with other methods does not tell the number of records in all shards.
        let mut grown = source("1/2", 0);
        grown.manifest["resumed"] = json!([{"shard": {"index": 1, "of": 2, "records": 60, "whole": 180}}]);
        let said = super::notes(&[grown, source("2/3", 0)], &[records(0..50), records(40..90)]);
        assert!(said[0].contains("lack others"), "{said:?}");
    }

    #[test]
    fn missing_shards_are_named() {
        assert_eq!(told(&["1/3", "2/3", "3/3"]), [""; 0]);
        assert_eq!(told(&["1/1"]), [""; 0]);
        assert_eq!(
            told(&["3/3", "1/3"]),
            ["shard 2/3 of a run is missing (1/3, 3/3 here): its examples are not in any of these numbers"]
        );
        assert_eq!(
            told(&["2/3"]),
            ["shards 1/3, 3/3 of a run are missing (2/3 here): their examples are not in any of these numbers"]
        );
        assert!(told(&["7/100000"])[0].starts_with("shards 1/100000, 2/100000,"), "{:?}", told(&["7/100000"]));
        assert!(told(&["7/100000"])[0].contains(" and 99991 more of a run are missing"), "{:?}", told(&["7/100000"]));
    }

    #[test]
    fn shards_of_several_splits_are_told() {
        assert_eq!(
            told(&["1/2", "2/3"]),
            [
                "shards from several splits of one run (1/2, 2/3) share examples, which count once, and lack others, which are \
              not in any of these numbers"
            ]
        );
        let whole = told(&["1/2", "2/2", "1/3"]);
        assert!(whole[0].starts_with("a run is given whole, and parts of it again"), "{whole:?}");
        assert!(told(&["1/1", "1/3"])[0].contains("counts once"));
        assert_eq!(told(&["1/3", "1/3", "2/3", "3/3"]), [""; 0], "a shard that is there twice is no other split");
    }

    #[test]
    fn other_matrices_are_other_runs() {
        let mut other = source("2/2", 0);
        other.manifest["config"]["samples"] = json!(31);
        let notes = notes(&[source("1/2", 0), other]);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes.iter().all(|note| note.contains("missing")), "{notes:?}");
    }

    #[test]
    fn a_run_that_did_not_end_is_told() {
        let said = notes(&[source("1/2", 0), source("2/2", 4)]);
        assert_eq!(said, ["2-of-2 (shard 2/2) has 26 of its 30 records: it did not finish, or parts of it failed"]);
        assert!(notes(&[source("1/1", 1)])[0].starts_with("1-of-1 has 29 of its 30 records"));
        // One run started with more methods than it was resumed with. The other was resumed as another shard, and holds both.
        let mut resumed = source("1/3", 1);
        let less = json!({"shard": {"index": 1, "of": 3, "records": 10}});
        resumed.manifest["resumed"] = json!([less]);
        assert!(notes(&[resumed.clone(), source("2/3", 0), source("3/3", 0)])[0].contains("29 of its 30 records"));
        resumed.manifest["resumed"] = json!([{"shard": {"index": 2, "of": 3, "records": 10}}]);
        resumed.records = 40;
        assert_eq!(notes(&[resumed, source("3/3", 0)]), [""; 0]);
    }

    #[test]
    fn folders_from_before_are_known_by_their_commands() {
        let before = |shard: &str| Source {
            manifest: json!({"identity": {}, "config": {}, "command": ["spattn", "eval", "--shard", shard]}),
            ..source(shard, 25)
        };
        assert!(notes(&[before("1/3"), before("2/3")])[0].starts_with("shard 3/3 of a run is missing"));
        assert_eq!(notes(&[before("1/2"), before("2/2")]), [""; 0], "how many records they were to make is not known");
        assert_eq!(notes(&[Source { manifest: json!({}), ..source("1/1", 0) }]), [""; 0]);
    }
}
