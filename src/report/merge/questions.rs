//! Keeps tasks apart that have the same name in several runs but ask different questions. Names come from files, and many files have the
//! same name. Questions are compared example by example.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Source;
use spattn_eval::records::interning::InternedStr;
use spattn_eval::records::manifest_keys::INPUTS;
use spattn_eval::records::record::Record;

/// A model and a task.
type Named = (InternedStr, InternedStr);

/// The key of an example within a task: length, seed and sample.
type Example = (usize, u64, usize);

/// A task in one run.
struct Asked<'a> {
    /// One record of each example.
    examples: HashMap<Example, &'a Record>,
    /// The digest of the task's data, if the run recorded it.
    inputs: Option<&'a str>,
}

/// How the questions of a task in two runs are related.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relation {
    /// All common examples are equal. If there are none, the data are the same, as far as is known.
    Same,
    /// They have no common example, and different data, for example shards of a file that grew in between.
    Unknown,
    /// A common example differs.
    Different,
}

impl Asked<'_> {
    fn relation(&self, other: &Self) -> Relation {
        let mut common = self.examples.iter().filter_map(|(example, own)| Some((own, other.examples.get(example)?)));
        let is_same_data = self.inputs.is_none() || other.inputs.is_none() || self.inputs == other.inputs;
        match common.next() {
            None if is_same_data => Relation::Same,
            None => Relation::Unknown,
            Some((own, theirs)) if own.asks_as(theirs) && common.all(|(own, theirs)| own.asks_as(theirs)) => {
                Relation::Same
            }
            Some(_) => Relation::Different,
        }
    }

    /// Whether a task can be merged with those of other runs: it differs from none, and is the same as at least one.
    fn goes_with<'a>(&self, others: impl Iterator<Item = &'a Self>) -> bool
    where
        Self: 'a,
    {
        let relations: Vec<Relation> = others.map(|other| self.relation(other)).collect();
        relations.contains(&Relation::Same) && !relations.contains(&Relation::Different)
    }
}

/// Adds the run's name to tasks that ask different questions under the same name, and notes it.
pub(super) fn tell_apart(sources: &[Source], loaded: &mut [Vec<Record>], notes: &mut Vec<String>) {
    let mut labels: Vec<HashMap<Named, InternedStr>> = vec![HashMap::new(); loaded.len()];
    let mut models: Vec<BTreeMap<InternedStr, InternedStr>> = vec![BTreeMap::new(); loaded.len()];
    notes.extend(contradictions(sources, loaded));
    for (named, runs) in asked(sources, loaded) {
        let groups = groups(&runs);
        if groups.len() < 2 {
            continue;
        }
        if let Some(values) = asked_otherwise(&runs, &groups) {
            let names: Vec<&str> = groups.iter().map(|group| sources[group[0]].name.as_str()).collect();
            notes.push(format!(
                "`{}` has the same questions in {}, with {}: the runs have separate rows, and no mean counts a document twice",
                named.1,
                names.join(", "),
                values.join(" and ")
            ));
            for (group, value) in groups.iter().zip(values) {
                let label = InternedStr::from(format!("{} ({value})", named.0));
                for run in group {
                    models[*run].entry(named.0.clone()).or_insert_with(|| label.clone());
                }
            }
            continue;
        }
        let name_of = |group: &Vec<usize>| sources[group[0]].name.as_str();
        let names: Vec<&str> = groups.iter().map(name_of).collect();
        let differs =
            if is_edited(&runs) { "has different answers for the same questions" } else { "has different questions" };
        notes.push(format!("`{}` {differs} in {}: each is shown as a separate task", named.1, names.join(", ")));
        for (group, name) in groups.iter().zip(names) {
            let label = InternedStr::from(format!("{} ({name})", named.1));
            group.iter().for_each(|run| drop(labels[*run].insert(named.clone(), label.clone())));
        }
    }
    for (records, models) in loaded.iter_mut().zip(&models).filter(|(_, models)| !models.is_empty()) {
        for r in records {
            if let Some(label) = models.get(&r.model) {
                r.model = label.clone();
            }
        }
    }
    for (records, labels) in loaded.iter_mut().zip(labels).filter(|(_, labels)| !labels.is_empty()) {
        for r in records {
            if let Some(label) = labels.get(&(r.model.clone(), r.task.clone())) {
                r.task = label.clone();
            }
        }
    }
}

/// The values that tell groups of runs apart if they have the same questions but other limits or metrics: one for each group, for example
/// `max_new_tokens=24`. `None` if the questions differ. Such runs are settings of one task. As two tasks, a mean over them would count
/// each document twice.
fn asked_otherwise(runs: &BTreeMap<usize, Asked>, groups: &[Vec<usize>]) -> Option<Vec<String>> {
    let firsts: Vec<&Asked> = groups.iter().map(|group| &runs[&group[0]]).collect();
    let first = firsts.first()?;
    let is_same_text = |other: &&Asked| {
        let both = || first.examples.iter().filter_map(|(example, own)| Some((own, other.examples.get(example)?)));
        both().next().is_some() && both().all(|(own, theirs)| own.asks_the_same_text_as(theirs))
    };
    if !firsts[1..].iter().all(is_same_text) {
        return None;
    }
    let mut ones: Vec<&Record> = Vec::new();
    for asked in &firsts {
        ones.push(asked.examples.iter().min_by_key(|(example, _)| **example)?.1);
    }
    let settings = |r: &&Record| {
        [
            ("max_new_tokens", r.max_new_tokens.to_string()),
            ("metric", r.metric.map_or(String::new(), |metric| metric.to_string())),
            ("first_line", r.first_line.to_string()),
        ]
    };
    let all: Vec<_> = ones.iter().map(settings).collect();
    let value = |own: &[(&str, String); 3]| {
        let differs = |at: &usize| all.iter().any(|other| other[*at] != all[0][*at]);
        let values: Vec<String> =
            (0..own.len()).filter(differs).map(|at| format!("{}={}", own[at].0, own[at].1)).collect();
        values.join(", ")
    };
    let values: Vec<String> = all.iter().map(value).collect();
    // Only if each group has its own value do the values tell them apart.
    let distinct: BTreeSet<&String> = values.iter().collect();
    (distinct.len() == values.len()).then_some(values)
}

/// Notes about runs in which records of one example answer different questions, as when another run's file was put into the folder.
fn contradictions(sources: &[Source], loaded: &[Vec<Record>]) -> Vec<String> {
    let mut notes = Vec::new();
    for (source, records) in sources.iter().zip(loaded) {
        let mut first: HashMap<(&str, &str, Example), &Record> = HashMap::new();
        let mut tasks = BTreeSet::new();
        for r in records {
            let example = (r.model.as_str(), r.task.as_str(), (r.length, r.seed, r.sample));
            if !first.entry(example).or_insert(r).asks_as(r) {
                tasks.insert(r.task.as_str());
            }
        }
        notes.extend(tasks.into_iter().map(|task| {
            format!(
                "records of `{task}` in {} answer different questions under the same number: their scores cannot be compared",
                source.name
            )
        }));
    }
    notes
}

/// The tasks that several runs have, and their examples in each run.
fn asked<'a>(sources: &'a [Source], loaded: &'a [Vec<Record>]) -> BTreeMap<Named, BTreeMap<usize, Asked<'a>>> {
    let mut all: BTreeMap<Named, BTreeMap<usize, Asked>> = BTreeMap::new();
    for (run, records) in loaded.iter().enumerate() {
        // Adjacent records mostly have the same task.
        for records in records.chunk_by(|a, b| a.model == b.model && a.task == b.task) {
            let named = (records[0].model.clone(), records[0].task.clone());
            let inputs = sources[run].manifest[INPUTS][&*records[0].task].as_str();
            let task = all.entry(named).or_default();
            let asked = task.entry(run).or_insert_with(|| Asked { examples: HashMap::new(), inputs });
            for r in records {
                asked.examples.entry((r.length, r.seed, r.sample)).or_insert(r);
            }
        }
    }
    all.retain(|_, runs| runs.len() > 1);
    all
}

/// Whether the runs differ only in the references of examples.
fn is_edited(runs: &BTreeMap<usize, Asked>) -> bool {
    let mut count = 0;
    for (one, other) in runs.values().zip(runs.values().skip(1)) {
        let both = one.examples.iter().filter_map(|(example, own)| Some((*own, *other.examples.get(example)?)));
        for (own, theirs) in both.filter(|(own, theirs)| !own.asks_as(theirs)) {
            if !own.has_another_key(theirs) {
                return false;
            }
            count += 1;
        }
    }
    count > 0
}

/// Groups of runs that can be merged. Each is in the order of the runs.
fn groups(runs: &BTreeMap<usize, Asked>) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (run, asked) in runs {
        match groups.iter_mut().find(|group| asked.goes_with(group.iter().map(|other| &runs[other]))) {
            Some(group) => group.push(*run),
            None => groups.push(vec![*run]),
        }
    }
    groups
}
