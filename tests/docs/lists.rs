//! Every list on a page equals the registry that it is about: methods, models, tasks, configs, analyses, papers, commands.

use std::collections::{BTreeSet, HashMap};
use std::process::Command;

use spattn::analyze::ANALYSES;
use spattn::attention::methods::{CALIBRATIONS, METHODS, SelectionPlace, configure};
use spattn::attention::{Policy, Role, expand_grid};
use spattn::eval::config::shipped::SHIPPED;
use spattn::model::families::FAMILIES;
use spattn::model::source::shape_names;
use spattn::tasks::published::DataSet;
use spattn::tasks::{TaskInfo, catalog};
use spattn_lab::papers::PAPERS;

use super::{Page, golden_model, markdown_under, page};

/// The most bytes of pages that readers see first.
const MOST_BYTES: [(&str, usize); 2] = [("README.md", 12_288), ("ARCHITECTURE.md", 7_168)];

#[test]
fn pages_that_are_read_first_are_short() {
    for (name, most) in MOST_BYTES {
        let bytes = page(name).text.len();
        assert!(bytes <= most, "{name} has {bytes} bytes, of {most}: move something to docs/");
    }
}

#[test]
fn every_page_is_in_the_index() {
    let index = page("docs/README.md").text;
    let decisions = page("docs/decisions/README.md").text;
    for page in markdown_under("docs") {
        let name = page.name.strip_prefix("docs/").unwrap();
        let (list, entry) = match name.strip_prefix("decisions/") {
            Some(title) if title != "README.md" => (&decisions, title),
            _ => (&index, name),
        };
        assert!(name == "README.md" || list.contains(&format!("]({entry})")), "no index has docs/{name}");
    }
}

/// The arXiv numbers in a text, such as `2406.10774`.
fn publications(text: &str) -> BTreeSet<&str> {
    text.match_indices("arXiv:").map(|(at, prefix)| &text[at + prefix.len()..][..10]).collect()
}

#[test]
fn every_method_has_its_formula_its_reference_and_how_it_was_checked() {
    let text = page("docs/methods.md").text;
    let formulas = text.split("\n## ").find(|part| part.starts_with("What each computes")).unwrap();
    let publication = text.split("\n## ").find(|part| part.starts_with("Against their publications")).unwrap();
    let entries: HashMap<&str, &str> = formulas
        .split("\n- **`")
        .skip(1)
        .map(|entry| entry.split_once("`**").unwrap_or_else(|| panic!("`{entry}` has no name")))
        .collect();
    for method in METHODS {
        let entry =
            entries.get(method.name).unwrap_or_else(|| panic!("docs/methods.md has no formula of {}", method.name));
        let (theirs, ours) = (publications(method.reference), publications(entry));
        assert_eq!(ours, theirs, "references of {}", method.name);
        assert!(publication.contains(&format!("`{}`", method.name)), "{} is not held to its publication", method.name);
    }
    assert_eq!(entries.len(), METHODS.len(), "methods that there are not");
    let beside = formulas.split("\n### ").find(|part| part.starts_with("References, oracles, floors")).unwrap();
    for method in METHODS {
        let is_beside = beside.contains(&format!("\n- **`{}`**", method.name));
        assert_eq!(is_beside, method.role != Role::Method, "{} is a {}", method.name, method.role.name());
    }
}

#[test]
fn the_readme_counts_methods_right() {
    let text = page("README.md").text;
    assert!(text.contains(&format!("{} methods", METHODS.len())), "there are {} methods", METHODS.len());
}

/// A page's paragraph or list entry that begins with a text.
fn paragraph<'a>(page: &'a Page, begin: &str) -> &'a str {
    let mut parts = page.text.split("\n\n").flat_map(|part| part.trim_start_matches("- ").split("\n- "));
    let found = parts.find(|part| part.starts_with(begin));
    found.unwrap_or_else(|| panic!("{}: no paragraph begins with `{begin}`", page.name))
}

/// The page of downloads has a row for each data set, with the registry's size and hosts.
#[test]
fn the_page_of_downloads_says_where_each_data_set_comes_from() {
    let text = page("docs/downloads.md").text;
    let host = |url: &str| url.split('/').nth(2).unwrap().to_owned();
    let mut rows = Vec::new();
    for set in DataSet::all() {
        let hosts: BTreeSet<String> = set.files.iter().filter_map(|file| file.url.as_deref()).map(host).collect();
        let from = match set.is_downloadable() {
            true => hosts.into_iter().collect::<Vec<_>>().join(", "),
            false => "by hand".to_owned(),
        };
        rows.push(format!("| `{}` | {} | {from} | {} |", set.name, set.size(), set.files.len()));
    }
    let expected = rows.join("\n");
    assert!(text.contains(&format!("|---|---|---|---|\n{expected}\n\n")), "the table should be\n{expected}");
    for variable in
        ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "SPATTN_DATA", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_TOKEN"]
    {
        assert!(text.contains(&format!("`{variable}")), "{variable} is not named");
    }
}

#[test]
fn pages_name_every_family_of_models() {
    let (models, readme) = (page("docs/models.md"), page("README.md"));
    for text in
        [paragraph(&models, "| family | `architectures` |"), paragraph(&readme, "A folder in Hugging Face layout")]
    {
        for family in FAMILIES {
            assert!(text.contains(family.name), "{} is not named: {text}", family.name);
        }
    }
}

/// The row of each family names all golden checkpoints of its class, and there is at least one.
#[test]
fn the_page_of_models_says_what_was_held_to_the_reference() {
    let mut checkpoints: HashMap<String, BTreeSet<String>> = HashMap::new();
    for name in golden_model::names() {
        let config = std::fs::read_to_string(golden_model::root().join(&name).join("config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap();
        let class = config["architectures"][0].as_str().unwrap().to_owned();
        checkpoints.entry(class).or_default().insert(name);
    }
    let models = page("docs/models.md");
    let table = paragraph(&models, "| family | `architectures` |");
    for family in FAMILIES {
        let begin = format!(" | `{}` | ", family.class);
        let row = table.lines().find_map(|row| row.split_once(&begin));
        let (_, held) = row.unwrap_or_else(|| panic!("no row has `{}`", family.class));
        let said: BTreeSet<String> = code_in(held).into_iter().collect();
        assert_eq!(checkpoints.get(family.class), Some(&said), "{}", family.name);
    }
}

#[test]
fn pages_and_help_name_every_shape() {
    let (models, bench) = (page("docs/models.md"), page("docs/bench.md"));
    let help = Command::new(env!("CARGO_BIN_EXE_spattn")).args(["bench", "attention", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for text in [paragraph(&models, "Shapes: "), paragraph(&bench, "`--shape` names heads: "), help.as_str()] {
        for shape in shape_names() {
            assert!(text.contains(shape), "{shape} is not named: {text}");
        }
    }
}

#[test]
fn the_page_of_tasks_has_every_family() {
    let tasks = page("docs/tasks.md");
    let table = paragraph(&tasks, "| family |");
    for task in catalog() {
        let family = task.name.split(['/', ':']).next().unwrap();
        let is_there = [format!("`{family}`"), format!("`{family}/"), format!("`{family}:")]
            .iter()
            .any(|name| table.contains(name));
        assert!(is_there, "the table of docs/tasks.md has no `{family}`");
    }
}

/// The names in the second cell of a table's row that begins with `row`: its spans of code that are names.
fn names_in_row(page: &Page, row: &str) -> BTreeSet<String> {
    let line = page.text.lines().find(|line| line.starts_with(row)).unwrap_or_else(|| panic!("{}: {row}", page.name));
    line[row.len()..].split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn pages_say_where_each_method_selects_on_a_gpu() {
    let at = |place: &str| -> BTreeSet<String> {
        let methods = METHODS.iter().filter(|method| method.selection_place().name() == place);
        methods.map(|method| method.name.to_owned()).collect()
    };
    let gpu = page("docs/gpu.md");
    let on_gpu = at(SelectionPlace::Device.name());
    assert!(on_gpu.len() > 10, "{on_gpu:?}");
    assert_eq!(names_in_row(&gpu, "| on the GPU; a step waits for nothing |"), on_gpu);
    assert_eq!(names_in_row(&page("README.md"), "| tokens are selected | there |"), on_gpu);
    let nowhere = at(SelectionPlace::Nowhere.name());
    assert_eq!(names_in_row(&gpu, "| nowhere: only static tokens are attended, or decoding is dense |"), nowhere);
    let once = "| on the host, once: after the prompt, by scores that the GPU computes; steps attend the lists, which are on the GPU (layers with a window of their own attend all of it) |";
    assert_eq!(names_in_row(&gpu, once), at(SelectionPlace::HostOnce.name()));
    let by_positions = at(SelectionPlace::HostWithoutQueries.name());
    assert_eq!(
        names_in_row(&gpu, "| on the host, by positions alone: nothing is downloaded in a step |"),
        by_positions
    );
    assert_eq!(names_in_row(&gpu, "| on the host, by the same code as on the CPU |"), BTreeSet::new());
}

#[test]
fn what_no_kernel_does_is_named_with_its_reason() {
    let text = page("docs/gpu.md").text;
    for (spec, named, reason) in [
        ("topk:pick=sample", "`pick=sample`", "selecting by a sample of the rest has no GPU implementation"),
        ("loki:rescore=exact", "`rescore`", "selecting by a second score has no GPU implementation"),
        ("sparq:storage=1xK", "`storage=1xK`", "its GPU implementation does not support storage=1xK"),
        ("oracle_sampling:draw_from=all", "`draw_from=all`", "its GPU implementation does not support draw_from=all"),
        (
            "oracle_sampling:proposal=value_norm",
            "`proposal=value_norm`",
            "its GPU implementation does not support proposal=value_norm",
        ),
        ("magicpig:simple_lsh=true", "`simple_lsh=true`", "its GPU implementation does not support simple_lsh=true"),
        ("hip:top_r=4", "`top_r`", "its GPU implementation does not support top_r=4"),
        ("hip:chunks=aligned", "`chunks=aligned`", "its GPU implementation does not support chunks=aligned"),
        ("hip:n_e=3", "`n_e`", "its GPU implementation does not support n_e=3"),
        ("hip:self_extend=2", "`self_extend`", "it attends tokens at other positions than their own"),
        ("knn", "| the others |", "it has no GPU implementation"),
    ] {
        let method = configure(&expand_grid(spec).unwrap().remove(0), &Policy::default()).unwrap();
        let reasons = method.method.device_form().err().unwrap_or_else(|| panic!("{spec} has a form"));
        assert_eq!(reasons.iter().map(ToString::to_string).collect::<Vec<_>>(), [reason], "{spec}");
        assert!(text.contains(named), "docs/gpu.md says nothing of {named}");
    }
}

// ---- tables of names ----

/// The part of a page below a heading, up to the next heading of the same level.
fn section<'a>(page: &'a Page, heading: &str) -> &'a str {
    let mut parts = page.text.split("\n## ");
    let found = parts.find_map(|part| part.strip_prefix(heading)?.strip_prefix('\n'));
    found.unwrap_or_else(|| panic!("{}: no heading `{heading}`", page.name))
}

/// The names in code in the first cells of a table's rows, in order. For links, this is their text.
fn first_cells(table: &str) -> Vec<String> {
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")).filter(|row| row.starts_with(['`', '[']));
    rows.flat_map(|row| code_in(row.split(" | ").next().unwrap())).collect()
}

/// The spans of code in a text.
fn code_in(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The names that `a_{b,c}_d` stands for.
fn with_braces_expanded(name: &str) -> Vec<String> {
    let Some((before, (choices, after))) = name.split_once('{').and_then(|(b, rest)| Some((b, rest.split_once('}')?)))
    else {
        return vec![name.to_owned()];
    };
    choices.split(',').map(|choice| format!("{before}{choice}{after}")).collect()
}

/// The names of a family's tasks, without the family's name.
fn tasks_of(family: &str) -> BTreeSet<String> {
    let name = |task: TaskInfo| Some(task.name.strip_prefix(family)?.strip_prefix('/')?.to_owned());
    catalog().into_iter().filter_map(name).collect()
}

/// A number in digits, or up to twelve in words.
fn number(word: &str) -> Option<usize> {
    const WORDS: [&str; 13] =
        ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
    word.parse().ok().or_else(|| WORDS.iter().position(|known| *known == word))
}

/// The number before `word`, in the line of a page that contains `begin`.
fn number_before(page: &Page, begin: &str, word: &str) -> usize {
    let line = page.text.lines().find(|line| line.contains(begin)).unwrap_or_else(|| panic!("{}: {begin}", page.name));
    let rest = &line[line.find(begin).unwrap() + begin.len()..];
    let before = rest.split_once(&format!(" {word}")).unwrap_or_else(|| panic!("{}: no `{word}`", page.name)).0;
    let last = before.split([' ', '|']).next_back().unwrap();
    number(last).unwrap_or_else(|| panic!("{}: `{last}` is no number", page.name))
}

#[test]
fn the_page_of_analyses_has_a_section_for_each() {
    let analyze = page("docs/analyze.md");
    let headings = analyze.text.lines().filter_map(|line| line.strip_prefix("## ")?.split_once(": "));
    let named: Vec<&str> = headings.map(|(name, _)| name).collect();
    assert_eq!(named, ANALYSES.iter().map(|analysis| analysis.name).collect::<Vec<_>>());
}

#[test]
fn the_page_of_sweeps_has_every_shipped_config() {
    let sweeps = page("docs/sweeps.md");
    let listed: BTreeSet<String> = first_cells(section(&sweeps, "Shipped matrices")).into_iter().collect();
    assert_eq!(listed, SHIPPED.iter().map(|config| config.name.to_owned()).collect());
}

#[test]
fn the_page_of_calibration_has_every_calibration() {
    let calibration = page("docs/calibration.md");
    let kinds: Vec<&str> = CALIBRATIONS.iter().map(|calibration| calibration.kind).collect();
    assert_eq!(first_cells(paragraph(&calibration, "| method | what it learns |")), kinds);
    assert_eq!(
        number_before(&page("docs/README.md"), "| [Calibration](calibration.md) | what", "methods"),
        kinds.len()
    );
}

#[test]
fn pages_name_and_count_the_papers() {
    let first = paragraph(&page("docs/papers.md"), "Each table and figure of ").to_owned();
    for paper in &PAPERS {
        let name =
            paper.title.split(" (").next().unwrap().split(" over ").next().unwrap().trim_end_matches(" attention");
        assert!(first.contains(name), "{name} is not named: {first}");
    }
    for (name, begin) in
        [("README.md", "| `spattn reproduce` | tables and figures of"), ("docs/README.md", "| [Papers](")]
    {
        assert_eq!(number_before(&page(name), begin, "papers"), PAPERS.len(), "{name}");
    }
}

#[test]
fn the_readme_names_every_command() {
    let help = Command::new(env!("CARGO_BIN_EXE_spattn")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let list = help.split("\nCommands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = list.lines().filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let commands: BTreeSet<&str> = names.map(|line| line.split(' ').next().unwrap()).collect();
    assert!(commands.len() > 10, "{commands:?}");
    let readme = page("README.md");
    let table = first_cells(section(&readme, "The commands"));
    let named: BTreeSet<&str> = table.iter().map(|name| name.trim_start_matches("spattn ")).collect();
    // Commands that print something about the program itself.
    let others = BTreeSet::from(["completions", "help"]);
    assert_eq!(named, &commands - &others);
}

#[test]
fn the_page_of_benches_has_every_kind() {
    let help = Command::new(env!("CARGO_BIN_EXE_spattn")).args(["bench", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let kinds = help.split("Possible values:").nth(1).unwrap().split("\n\n").next().unwrap();
    let kinds: Vec<&str> = kinds.lines().filter_map(|line| line.trim().strip_prefix("- ")?.split(':').next()).collect();
    assert!(kinds.len() > 3, "{kinds:?}");
    let bench = page("docs/bench.md").text;
    for kind in kinds {
        assert!(bench.contains(&format!("spattn bench {kind} ")), "docs/bench.md has no example of `{kind}`");
    }
}

#[test]
fn the_page_of_tasks_has_every_task_with_depths() {
    let tasks = page("docs/tasks.md");
    let listed: BTreeSet<String> = first_cells(section(&tasks, "Tasks with depths")).into_iter().collect();
    let has_depths = |task: &TaskInfo| task.parameters.iter().any(|(key, _)| key == "steps");
    let with_depths: BTreeSet<String> = catalog().into_iter().filter(has_depths).map(|task| task.name).collect();
    assert_eq!(listed, with_depths);
    let families: BTreeSet<&str> = with_depths.iter().map(|name| name.split('/').next().unwrap()).collect();
    let row = tasks.text.lines().find(|line| line.contains("](#tasks-with-depths)")).unwrap();
    assert_eq!(code_in(row).iter().map(String::as_str).collect::<BTreeSet<_>>(), families);
}

#[test]
fn the_page_of_tasks_names_every_set() {
    let tasks = page("docs/tasks.md");
    for family in ["infinitebench", "scbench", "zeroscrolls", "loogle"] {
        let begin = format!("| `{family}/NAME`: ");
        let row = tasks.text.lines().find_map(|line| line.strip_prefix(&begin)).unwrap_or_else(|| panic!("no {begin}"));
        let names = code_in(row.split(" | ").next().unwrap());
        let names: BTreeSet<String> = names.iter().flat_map(|name| with_braces_expanded(name)).collect();
        assert_eq!(names, tasks_of(family), "{family}");
    }
    assert_eq!(tasks_of("scbench_multi_turn"), tasks_of("scbench"));
    let choices = paragraph(&tasks, "`mcq/NAME` (");
    let named = code_in(choices.split(';').next().unwrap()).split_off(1);
    assert_eq!(named.into_iter().collect::<BTreeSet<_>>(), tasks_of("mcq"));
    for name in tasks_of("gen") {
        assert!(choices.contains(&format!("`gen/{name}`")), "gen/{name} is not named: {choices}");
    }
}

#[test]
fn the_page_of_tasks_counts_right() {
    let tasks = page("docs/tasks.md");
    let published = catalog().into_iter().filter(|task| task.stands_in_for.is_none());
    let ruler = published.filter(|task| task.name.starts_with("ruler/")).count();
    for (begin, word, count) in [
        ("| `ruler/NAME` |", "synthetic tasks", ruler),
        ("| [`longbench/NAME`, `longbench_e/NAME`](#longbench) |", "sets", tasks_of("longbench").len()),
        ("| [`infinitebench/NAME`](", "sets", tasks_of("infinitebench").len()),
        ("| [`scbench/NAME`, ", "tasks of", tasks_of("scbench").len()),
        ("| [`zeroscrolls/NAME`](", "sets", tasks_of("zeroscrolls").len()),
    ] {
        assert_eq!(number_before(&tasks, begin, word), count, "{begin}");
    }
}
