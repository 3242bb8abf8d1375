//! The settings of an item's run as its page lists them: each as published, or with the difference to the paper.

use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::claim::{Differs, Measuring};
use super::floor::for_floor;
use super::item::{Item, Variant};
use super::more::MoreExamples;
use super::run_of::BUILTIN;
use spattn_base::error::UsageError;
use spattn_eval::config::settings::Settings;

/// A setting of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingLine {
    /// Its key.
    pub setting: String,
    /// Its value here.
    pub here: String,
    /// How it differs from the paper's setting; `None` if it does not.
    pub differs: Option<Difference>,
}

/// Settings of this program, about which papers say nothing.
const OWN_SETTINGS: [&str; 5] = ["analyses", "seed", "queries", "together", "fidelity"];

impl SettingLine {
    /// Whether it is a setting of this program, about which papers say nothing.
    pub fn is_own(&self) -> bool {
        OWN_SETTINGS.contains(&self.setting.as_str())
    }
}

/// The paper's value of a setting, and why the value here is another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The paper's value.
    pub paper: String,
    /// The reason; `None` if none is given.
    pub because: Option<String>,
}

/// The setting that names the tasks.
const TASKS: &str = "tasks";
/// The setting whose reason applies to the methods of all rows and columns.
pub const METHODS: &str = "methods";
/// The beginning of the name of a setting that holds a row's or column's method.
const METHOD_OF: &str = "method of ";

/// The beginning of the name of a setting that holds the further examples of some rows or columns.
pub const SAMPLES_OF: &str = "samples of ";

/// The value of a setting that is not given.
const DEFAULT: &str = "not set";

/// Returns all settings of a variant's run; empty if it has no run. The paper's settings are those of `[run]`, except where `[[differs]]`
/// states others. A setting that the paper leaves open is listed as open for every run with methods of the paper's run.
pub fn setting_lines(item: &Item, variant: Variant) -> Vec<SettingLine> {
    let (here, paper) = (settings(item, variant), settings(item, Variant::Paper));
    if here.is_empty() {
        return Vec::new();
    }
    let mut lines: Vec<SettingLine> = Vec::new();
    let keys = here.keys().chain(paper.keys().filter(|key| !here.contains_key(*key)));
    for key in keys {
        let (own, published) = (value(&here, key), value(&paper, key));
        let differs = own != published && !paper.is_empty();
        let differs = differs.then_some(Difference { paper: published, because: None });
        lines.push(SettingLine { setting: key.clone(), here: own, differs });
    }
    lines.extend(methods(item, variant));
    lines.extend(item.floor_settings(variant).and_then(floor));
    lines.extend(item.more.of(variant).into_iter().flatten().map(more));
    state(&mut lines, item.differs.iter().filter(|differs| differs.is_about(variant)));
    let is_of_paper = |differs: &&Differs| differs.variant == Some(Measuring::Paper) && variant != Variant::Paper;
    let mut methods = lines.iter().filter(|line| line.setting.starts_with(METHOD_OF)).peekable();
    let has_own_methods = methods.peek().is_some() && methods.all(|line| line.differs.is_some());
    for stated in item.differs.iter().filter(is_of_paper) {
        let difference = Difference { paper: stated.paper.clone(), because: Some(stated.because.clone()) };
        match lines.iter_mut().find(|line| line.setting == stated.setting && stated.setting != METHODS) {
            Some(SettingLine { differs: Some(_), .. }) => {}
            Some(line) => line.differs = Some(difference),
            // The setting belongs to methods of the paper's run, which this run does not have.
            None if has_own_methods => {}
            None => lines.push(SettingLine {
                setting: stated.setting.clone(),
                here: stated.here.clone(),
                differs: Some(difference),
            }),
        }
    }
    for stated in item.differs.iter().filter(|differs| differs.setting == METHODS && differs.is_about(variant)) {
        let unexplained = lines.iter_mut().filter(|line| line.setting.starts_with(METHOD_OF));
        unexplained.filter_map(|line| line.differs.as_mut()).for_each(|differs| {
            differs.because.get_or_insert_with(|| stated.because.clone());
        });
    }
    lines
}

/// Returns the settings of an item's times: the GPU, the commands, and what differs from the paper; empty if it has no times.
///
/// # Errors
/// If a table of times cannot be read.
pub fn setting_lines_of_times(item: &Item) -> Result<Vec<SettingLine>, UsageError> {
    let Some(bench) = &item.bench else { return Ok(Vec::new()) };
    let own = |setting: &str, here: String| SettingLine { setting: setting.to_owned(), here, differs: None };
    let mut lines = vec![own("device", bench.read()?.machine().to_owned())];
    lines.extend(bench.commands.iter().map(|command| own("command", format!("`{command}`"))));
    state(&mut lines, item.differs.iter().filter(|differs| differs.is_about(Measuring::Times)));
    Ok(lines)
}

/// Adds stated differences to the lines of their settings, or adds lines for them. Tasks keep the names that results have.
fn state<'a>(lines: &mut Vec<SettingLine>, stated: impl Iterator<Item = &'a Differs>) {
    for Differs { setting, paper, here, because, .. } in stated {
        let differs = Some(Difference { paper: paper.clone(), because: Some(because.clone()) });
        match lines.iter_mut().find(|line| line.setting == *setting) {
            Some(line) if line.setting == TASKS && line.here != DEFAULT => line.differs = differs,
            Some(line) => (line.here, line.differs) = (here.clone(), differs),
            None => lines.push(SettingLine { setting: setting.clone(), here: here.clone(), differs }),
        }
    }
}

/// Returns the settings of a run, its analyses and its calibrations, by key.
fn settings(item: &Item, variant: Variant) -> Map<String, Json> {
    let mut all = Map::new();
    item.settings(variant).iter().for_each(|run| add_to(&mut all, json(run)));
    if variant == Variant::Builtin && !all.is_empty() {
        all.entry("model").or_insert_with(|| BUILTIN.into());
    }
    if variant == Variant::Real {
        // The page names the type of the stored run instead.
        all.remove("dtype");
    }
    let mut add = |found: Json| add_to(&mut all, found);
    item.observing(variant).iter().for_each(|observing| add(json(observing)));
    item.learning(variant).iter().for_each(|learning| add(json(learning)));
    all
}

/// Adds the keys of an object, except texts, methods and keys that are not set.
fn add_to(all: &mut Map<String, Json>, found: Json) {
    let Json::Object(map) = found else { return };
    all.extend(map.into_iter().filter(|(key, value)| key != "about" && key != "methods" && !is_unset(value)));
}

fn json(value: &impl Serialize) -> Json {
    serde_json::to_value(value).unwrap_or_default()
}

fn is_unset(value: &Json) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

fn value(settings: &Map<String, Json>, key: &str) -> String {
    settings.get(key).map_or(DEFAULT.to_owned(), text)
}

fn text(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Array(all) => all.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// Returns the line of the method that determines the floor of scores.
fn floor(settings: Settings) -> Option<SettingLine> {
    let Settings { methods, samples, .. } = for_floor(settings);
    let here = format!("{}, {} examples of each task", methods?.join(", "), samples?);
    let because = Some("where dense attention scores no more than random tokens, nothing is judged".to_owned());
    Some(SettingLine {
        setting: "floor".to_owned(),
        here,
        differs: Some(Difference { paper: DEFAULT.to_owned(), because }),
    })
}

/// Returns the line of the further examples of some rows or columns.
fn more(more: &MoreExamples) -> SettingLine {
    let places = [
        more.tasks.as_ref().map(|tasks| tasks.join(", ")),
        more.lengths.as_ref().map(|lengths| lengths.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    ];
    let places: Vec<String> = places.into_iter().flatten().collect();
    let at = if places.is_empty() { String::new() } else { format!(" ({})", places.join(" at ")) };
    let because = Some("so that claims about them can be told".to_owned());
    SettingLine {
        setting: format!("{SAMPLES_OF}{}", more.of.join(", ")),
        here: format!("{}{at}", more.samples),
        differs: Some(Difference { paper: DEFAULT.to_owned(), because }),
    }
}

/// Returns a line for each row's or column's method.
fn methods(item: &Item, variant: Variant) -> impl Iterator<Item = SettingLine> {
    item.lines().filter_map(move |line| {
        let select = line.select(variant);
        let here = select.method.filter(|_| select.missing.is_none())?;
        let paper = line.method.clone().unwrap_or_else(|| DEFAULT.to_owned());
        let differs = (here != paper).then_some(Difference { paper, because: None });
        Some(SettingLine { setting: format!("{METHOD_OF}{}", line.name), here, differs })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{ACROSS, ITEMS};
    use super::*;
    use spattn_tasks::{TaskOptions, resolve_each};

    #[test]
    fn every_setting_is_as_published_or_differs() {
        let item = Item::parse(
            "
title = 'a'
[run]
model = 'x/y'
tasks = ['ruler/vt']
samples = 50
chat = false
[real]
tasks = ['ruler/vt']
samples = 100
[[row]]
name = 'Full'
method = 'full'
[[row]]
name = 'Top'
method = 'topk:k=64'
real = { method = 'topk:k=8' }
[[differs]]
setting = 'samples'
paper = '50'
here = '100'
because = 'to tell more'
[[differs]]
setting = 'local'
paper = '24'
here = '64'
because = 'of the code'
variant = 'real'
[[differs]]
setting = 'methods'
paper = '64 tokens'
here = '8 tokens'
because = 'prompts are short'
variant = 'real'
",
            "item.toml",
        )
        .unwrap();
        let lines = setting_lines(&item, Variant::Real);
        let of = |setting: &str| lines.iter().find(|line| line.setting == setting).unwrap();
        let differs = |setting: &str| of(setting).differs.clone();
        assert_eq!(differs("tasks"), None);
        let told = |paper: &str, because: Option<&str>| {
            Some(Difference { paper: paper.to_owned(), because: because.map(str::to_owned) })
        };
        assert_eq!(differs("samples"), told("50", Some("to tell more")));
        assert_eq!((of("chat").here.as_str(), differs("chat")), (DEFAULT, told("false", None)));
        assert_eq!(differs("method of Full"), None);
        assert_eq!(differs("method of Top"), told("topk:k=64", Some("prompts are short")));
        assert_eq!((of("local").here.as_str(), differs("local")), ("64", told("24", Some("of the code"))));
        let paper = setting_lines(&item, Variant::Paper);
        assert!(paper.iter().all(|line| line.setting != "local"));
        assert_eq!(paper.iter().filter(|line| line.differs.is_some()).count(), 1, "{paper:?}");
        assert_eq!(setting_lines(&item, Variant::Builtin), []);
    }

    #[test]
    fn items_of_papers_say_why_a_setting_differs() {
        let mut silent = Vec::new();
        let of_papers = ITEMS.iter().filter(|shipped| shipped.paper() != ACROSS);
        for (shipped, variant) in of_papers.flat_map(|shipped| Variant::ALL.map(|variant| (shipped, variant))) {
            let lines = setting_lines(&shipped.parse().unwrap(), variant);
            let has_no_reason = |line: &&SettingLine| line.differs.as_ref().is_some_and(|it| it.because.is_none());
            let settings = lines.iter().filter(has_no_reason).map(|line| &line.setting);
            silent.extend(settings.map(|setting| format!("{}, {variant:?}: {setting}", shipped.name)));
        }
        assert!(silent.is_empty(), "{silent:#?}");
    }

    /// A page names a run's tasks twice: in the settings, and as the results have them.
    #[test]
    fn tasks_have_the_names_that_results_have() {
        let item = Item::parse(
            "
title = 'a'
[real]
tasks = ['ruler/vt', 'ruler/cwe']
[[row]]
name = 'Full'
method = 'full'
[[differs]]
setting = 'tasks'
paper = 'WikiText-2'
here = 'two tasks of RULER'
because = 'prompts of the same lengths'
",
            "item.toml",
        )
        .unwrap();
        let lines = setting_lines(&item, Variant::Real);
        let tasks = lines.iter().find(|line| line.setting == TASKS).unwrap();
        assert_eq!(tasks.here, "ruler/vt, ruler/cwe");
        assert_eq!(tasks.differs.as_ref().unwrap().paper, "WikiText-2");

        let mut other = Vec::new();
        for shipped in ITEMS {
            let item = shipped.parse().unwrap();
            let mut written: BTreeSet<String> = BTreeSet::new();
            for variant in Variant::ALL {
                written.extend(item.settings(variant).and_then(|run| run.tasks).unwrap_or_default());
                written.extend(item.observing(variant).map(|seen| seen.tasks.clone()).unwrap_or_default());
                written.extend(item.lines().filter_map(|line| line.select(variant).tasks).flatten());
                let more = item.more.of(variant).into_iter().flatten();
                written.extend(more.filter_map(|more| more.tasks.clone()).flatten());
            }
            for task in written {
                let named = resolve_each(std::slice::from_ref(&task), &TaskOptions::default()).unwrap();
                // A group stands for several tasks.
                let [(name, _)] = named.as_slice() else { continue };
                other.extend((*name != task).then(|| format!("{}: {task} is {name} in results", shipped.name)));
            }
        }
        assert!(other.is_empty(), "{other:#?}");
    }

    #[test]
    fn times_have_settings_of_their_own() {
        let text = "
title = 'a'
[builtin]
tasks = ['ruler/vt']
[bench]
tables = ['hip_table5']
commands = ['spattn bench decode -c 32K']
[[row]]
name = 'Top'
method = 'topk:k=64'
[[differs]]
setting = 'device'
paper = 'an RTX 4090'
here = 'an H200, one sequence'
because = 'the GPU that was timed'
variant = 'times'
[[differs]]
setting = 'baseline'
paper = 'vLLM'
here = 'our own'
because = 'the same steps'
[[differs]]
setting = 'lengths'
paper = '8,192'
here = '2,048'
because = 'minutes'
variant = 'builtin'
";
        let item = Item::parse(text, "item.toml").unwrap();
        let shown = |lines: Vec<SettingLine>| -> Vec<(String, String, bool)> {
            lines.into_iter().map(|line| (line.setting, line.here, line.differs.is_some())).collect()
        };
        let line = |setting: &str, here: &str, differs: bool| (setting.to_owned(), here.to_owned(), differs);
        assert_eq!(
            shown(setting_lines_of_times(&item).unwrap()),
            [
                line("device", "an H200, one sequence", true),
                line("command", "`spattn bench decode -c 32K`", false),
                line("baseline", "our own", true),
            ]
        );
        let run = shown(setting_lines(&item, Variant::Builtin));
        assert!(run.contains(&line("baseline", "our own", true)) && run.contains(&line("lengths", "2,048", true)));
        assert!(run.iter().all(|(setting, ..)| setting != "device"), "{run:?}");
        // Without a stated difference, the device is the GPU of the table.
        let bare = Item::parse(&text.replace("'device'", "'host'"), "item.toml").unwrap();
        assert_eq!(shown(setting_lines_of_times(&bare).unwrap())[0], line("device", "NVIDIA H200", false));
        let without = Item::parse(
            &text.replace("[bench]\ntables = ['hip_table5']\ncommands = ['spattn bench decode -c 32K']", ""),
            "item.toml",
        );
        assert!(without.unwrap_err().what.contains("[[differs]] `device` is about times, and there is no [bench]"));
    }

    const WITH_OPEN_SETTINGS: &str = "
title = 'a'
[run]
model = 'x/y'
tasks = ['ruler/vt']
lengths = [4096]
samples = 50
[real]
tasks = ['ruler/vt']
lengths = [4096]
samples = 20
[[row]]
name = 'Top'
method = 'topk:k=64'
[[differs]]
setting = 'lengths'
paper = 'not stated'
here = '4,096'
because = 'the length of its tables'
variant = 'paper'
[[differs]]
setting = 'samples'
paper = 'not stated'
here = '50'
because = 'enough for an interval'
variant = 'paper'
[[differs]]
setting = 'samples'
paper = 'not stated'
here = '20'
because = 'the time of one GPU'
variant = 'real'
[[differs]]
setting = 'methods'
paper = 'a budget that is not in the text'
here = '64 tokens'
because = 'as in its code'
variant = 'paper'
";

    /// A value that the paper does not state is not as published, on whichever model it is run.
    #[test]
    fn what_the_paper_leaves_open_is_said_of_every_run_that_fills_it_in() {
        let item = Item::parse(WITH_OPEN_SETTINGS, "item.toml").unwrap();
        let lines = setting_lines(&item, Variant::Real);
        let of = |setting: &str| {
            let line = lines.iter().find(|line| line.setting == setting).unwrap();
            let because = line.differs.as_ref().and_then(|differs| differs.because.clone());
            (line.here.clone(), because)
        };
        let told = |here: &str, because: &str| (here.to_owned(), Some(because.to_owned()));
        assert_eq!(of("lengths"), told("4096", "the length of its tables"));
        assert_eq!(of("samples"), told("20", "the time of one GPU"));
        assert_eq!(of(METHODS), told("64 tokens", "as in its code"));
        // A run with other methods has its own budget.
        let text =
            WITH_OPEN_SETTINGS.replace("method = 'topk:k=64'", "method = 'topk:k=64'\nreal = { method = 'topk:k=8' }");
        let lines = setting_lines(&Item::parse(&text, "item.toml").unwrap(), Variant::Real);
        assert!(lines.iter().all(|line| line.setting != METHODS), "{lines:?}");
    }
}
