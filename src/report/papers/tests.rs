use std::fs;

use serde_json::json;

use super::*;
use spattn_eval::records::record::Record;
use spattn_eval::records::testing::record;
use spattn_lab::papers::claims::ClaimVerdict;
use spattn_lab::papers::findings::PaperFinding;
use spattn_lab::papers::item::{Item, Variant};
use spattn_lab::papers::judging::judge;
use spattn_lab::papers::measure::Evidence;
use spattn_lab::papers::outcome::ItemOutcome;
use spattn_lab::papers::run_of::RunOf;
use spattn_lab::papers::seen::AnalysisTables;

const ITEM: &str = "
title = 'a table'
slip = 'the last column is in percent'
[run]
model = 'x/Big-7B'
tasks = ['ruler/vt']
lengths = [16384]
samples = 50
[builtin]
lengths = [1024]
samples = 40
[real]
lengths = [4096]
samples = 40
[[row]]
name = 'Full'
method = 'full'
[[row]]
name = 'Top'
method = 'topk:k=64'
builtin.method = 'topk:k=8'
real.method = 'topk:k=8'
[[row]]
name = 'Gone'
method = 'quest'
missing = 'no such pages'
[[column]]
name = '16K'
tasks = ['ruler/vt']
length = 16384
builtin = { length = 1024 }
real = { length = 1024 }
[[column]]
name = 'Cost'
value = 'density'
percent = true
[[published]]
row = 'Full'
values = { 16K = 90.5, Cost = 100 }
[[published]]
row = 'Top'
values = { 16K = 70, Cost = 2.5 }
[[differs]]
setting = 'samples'
paper = '50'
here = '40'
because = 'as many as there are'
[[claim]]
says = 'dense is above'
quote = 'dense wins'
where = 'Table 1'
because = { builtin = 'it is small' }
test = { above = { rows = ['Full'], than = ['Top'], columns = ['16K'], by = 30 } }
[[claim]]
says = 'dense is above what is not there'
test = { above = { rows = ['Full'], than = ['Gone'], columns = ['16K'] } }
[[claim]]
says = 'dense attends all'
by_construction = 'that is what dense means'
test = { between = { rows = ['Full'], columns = ['Cost'], at_least = 99 } }
[[claim]]
says = 'something else'
missing = 'a wind tunnel'
";

fn records(model: &str) -> Vec<Record> {
    let of = |method: &str, params: &str, i: usize, score: f64, density: f64| Record {
        params: params.into(),
        model: model.into(),
        length: 1024,
        density,
        ..record("ruler/vt", method, i, score)
    };
    (0..40)
        .flat_map(|i| [of("full", "", i, 1.0, 1.0), of("topk", "k=8", i, f64::from(u8::from(i % 4 == 0)), 0.05)])
        .collect()
}

fn outcome(variant: Variant, model: &str) -> ItemOutcome {
    let item = Item::parse(ITEM, "item.toml").unwrap();
    let records = records(model);
    let run = RunOf { variant, model: Some(model) };
    let judged = judge("magicpig/table-1", &item, run, Evidence { records: &records, ..Evidence::default() }).unwrap();
    let ran = [("tasks", "ruler/vt"), ("lengths", "1024")];
    let ran = ran.map(|(what, value)| (what.to_owned(), value.to_owned())).to_vec();
    ItemOutcome { ran, command: "spattn reproduce magicpig/table-1 --builtin".to_owned(), ..judged }
}

fn results(outcomes: Vec<ItemOutcome>) -> ItemResults {
    ItemResults { name: "magicpig/table-1".to_owned(), item: Item::parse(ITEM, "item.toml").unwrap(), outcomes }
}

const REAL: &str = "Qwen2.5-Coder-0.5B-Instruct";

/// The page of a small item must equal the stored one. `UPDATE_PAGES=1` writes that anew.
#[test]
fn the_page_of_an_item_is_as_it_was() {
    let results = results(vec![outcome(Variant::Builtin, "builtin"), outcome(Variant::Real, REAL)]);
    let page = item_page::item_page(&results, &drawn(&results).unwrap());
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/paper_item.md");
    if std::env::var_os("UPDATE_PAGES").is_some() {
        fs::write(&golden, &page).unwrap();
    }
    assert_eq!(page, fs::read_to_string(golden).unwrap());
}

#[test]
fn measured_numbers_carry_the_model_that_was_run() {
    let results = results(vec![outcome(Variant::Builtin, "builtin"), outcome(Variant::Real, REAL)]);
    let page = item_page::item_page(&results, &drawn(&results).unwrap());
    let has = |text: &str| assert!(page.contains(text), "{text}\n{page}");
    has(
        "| | 16K: paper (Big-7B) | 1K here: measured (built-in 11M, 1K) | Cost: paper (Big-7B) | Cost: measured (built-in 11M, 1K) |",
    );
    has("1K here: measured (Qwen2.5-Coder-0.5B-Instruct, 1K)");
    has("| Full | 90.5 | 100.0 [91.2 100.0] | 100 | 100 |");
    has("| Top | 70 | 25.00 [12.69 41.20] | 2.5 | 5 |");
    has(
        "| 1. dense is above | do not support it | holds (1K, n = 40 of ruler/vt) | holds (Qwen2.5-Coder-0.5B-Instruct, 1K, n = 40 of ruler/vt) | – |",
    );
    has("| 3. dense attends all | support it | by construction (1K, n = 40 of ruler/vt) |");
    has("| 4. something else | no numbers to test | not tested | not tested | – |");
    has("> “dense wins” (Table 1)");
    has("| samples | 40 | differs (paper: 50): as many as there are |");
    has("- slip of the paper: the last column is in percent");
    assert_eq!(page.matches("- why: it is small").count(), 1, "a reason is of its run alone");
    let csv = table::csv(&results).unwrap();
    assert!(csv.starts_with("row,column,published,measured,ci_low,ci_high,n,variant,model\nFull,16K,90.5,100,91.1"));
    assert!(csv.contains(&format!(",40,real,{REAL}\n")) && csv.contains("\nGone,Cost,,,,,,,\n"), "{csv}");
}

#[test]
fn what_a_run_does_not_have_is_not_listed() {
    let mut without = outcome(Variant::Real, REAL);
    without.ran = vec![("tasks".to_owned(), "ruler/vt".to_owned()), ("lengths".to_owned(), String::new())];
    let page = rendered(&results(vec![without]), ItemForm::Markdown).unwrap();
    assert!(page.contains("\n- tasks: ruler/vt\n") && !page.contains("lengths:"), "{page}");
    assert!(page.contains("holds (Qwen2.5-Coder-0.5B-Instruct, n = 40 of ruler/vt)"), "{page}");
}

#[test]
fn results_of_several_runs_are_side_by_side_in_one_folder() {
    let dir = tempfile::tempdir().unwrap();
    let both = results(vec![outcome(Variant::Builtin, "builtin"), outcome(Variant::Real, REAL)]);
    write_item(&both, dir.path(), MoreFiles::default()).unwrap();
    let folder = dir.path().join("magicpig/table-1");
    for file in ["result.json", "result-real-qwen2.5-coder-0.5b-instruct.json", "plot.svg", "README.md", "table.csv"] {
        assert!(folder.join(file).exists(), "{file}");
    }
    assert!(folder.join("plot-real-qwen2.5-coder-0.5b-instruct.svg").exists());
    let before = fs::read(folder.join("result.json")).unwrap();
    let again = ItemResults::read(dir.path(), "magicpig/table-1", both.item.clone()).unwrap();
    assert_eq!(again.outcomes.iter().map(|o| o.variant.as_str()).collect::<Vec<_>>(), ["builtin", "real"]);
    // Without a list of written files, as in a clone, the folder counts as this program's.
    fs::remove_file(folder.join(".written")).unwrap();
    write_item(&again, dir.path(), MoreFiles::default()).unwrap();
    assert_eq!(fs::read(folder.join("result.json")).unwrap(), before, "what is the same is not written again");
}

#[test]
fn a_result_whose_rows_were_renamed_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let both = results(vec![outcome(Variant::Builtin, "builtin"), outcome(Variant::Real, REAL)]);
    write_item(&both, dir.path(), MoreFiles::default()).unwrap();
    let of = |file: &str| fs::read_to_string(dir.path().join("magicpig/table-1").join(file)).unwrap();
    let files = ["result.json", "result-real-qwen2.5-coder-0.5b-instruct.json"];
    let before = files.map(of);
    let renamed =
        ITEM.replace("name = '16K'", "name = '16 K'").replace("16K =", "'16 K' =").replace("['16K']", "['16 K']");
    let renamed = Item::parse(
        &renamed.replace("name = 'Cost'", "name = 'C'").replace("Cost =", "C =").replace("['Cost']", "['C']"),
        "item.toml",
    )
    .unwrap();
    let drawn = ItemResults::read(dir.path(), "magicpig/table-1", renamed).unwrap();
    assert_eq!(drawn.outcomes.iter().filter(|outcome| outcome.is_measured()).count(), 0);
    write_item(&drawn, dir.path(), MoreFiles::default()).unwrap();
    assert_eq!(files.map(of), before);
    assert!(of("README.md").contains("The paper's numbers"));
}

#[test]
fn a_run_that_measured_nothing_is_drawn_as_no_other_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut nothing = outcome(Variant::Real, REAL);
    nothing.rows.iter_mut().flat_map(|row| &mut row.cells).for_each(|cell| cell.measured = None);
    let folder = dir.path().join("magicpig/table-1");
    store(&nothing, &folder).unwrap();
    let read = ItemResults::read(dir.path(), "magicpig/table-1", results(Vec::new()).item).unwrap();
    assert!(read.outcomes.iter().all(|outcome| outcome.model.is_empty()), "the paper's numbers alone");
    write_item(&read, dir.path(), MoreFiles::default()).unwrap();
    let page = fs::read_to_string(folder.join("README.md")).unwrap();
    assert!(page.contains("The paper's numbers") && !page.contains("Qwen"), "{page}");
}

#[test]
fn an_item_of_times_alone_is_drawn_again_in_a_clone() {
    let dir = tempfile::tempdir().unwrap();
    let shipped = ITEMS.iter().find(|item| item.name == "double-sparsity/figure-5").unwrap();
    let read = || ItemResults::read(dir.path(), shipped.name, shipped.parse().unwrap()).unwrap();
    let page = || {
        write_item(&read(), dir.path(), MoreFiles::default()).unwrap();
        fs::read_to_string(dir.path().join(shipped.name).join("README.md")).unwrap()
    };
    let first = page();
    for line in [
        "## Settings of the times on a GPU",
        "| device | an H200 | differs (paper: an A10G and an A100): the GPU that was timed |",
        "| command | `spattn bench attention --shape llama-2-7b ",
        " --device cuda` | not given in the item |",
    ] {
        assert!(first.contains(line), "{line}\n{first}");
    }
    let folder = dir.path().join(shipped.name);
    assert!(folder.join("result-times.json").exists() && !folder.join("result.json").exists());
    fs::remove_file(folder.join(".written")).unwrap();
    assert_eq!(page(), first);
}

#[test]
fn the_pages_of_papers_are_drawn_again_in_a_clone() {
    let dir = tempfile::tempdir().unwrap();
    write_item(&results(vec![outcome(Variant::Builtin, "builtin")]), dir.path(), MoreFiles::default()).unwrap();
    write_pages(dir.path()).unwrap();
    fs::remove_file(dir.path().join(".written")).unwrap();
    write_pages(dir.path()).unwrap();
    fs::remove_file(dir.path().join(".written")).unwrap();
    fs::write(dir.path().join("magicpig.md"), "# Mine\n").unwrap();
    assert!(write_pages(dir.path()).unwrap_err().to_string().contains("spattn did not write it"));
}

/// Conclusions are on the front page and the papers' pages only where all results are.
#[test]
fn conclusions_stand_where_all_results_are() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/papers");
    let findings = PaperFindings::shipped().unwrap();
    let first = format!("1. {}", spattn_base::text::in_markdown(&findings.findings[0]));
    let page = |pages: &[(String, String)], name: &str| pages.iter().find(|(own, _)| own == name).unwrap().1.clone();
    let whole = pages(&committed).unwrap();
    let front = page(&whole, "README.md");
    let places = ["What is known now, over all papers:\n", &first, "### At equal bytes"].map(|part| front.find(part));
    assert!(places[0].is_some() && places.is_sorted(), "what is known comes first: {places:?}");
    // A folder with one item and all its results.
    let dir = tempfile::tempdir().unwrap();
    let name = ITEMS.iter().find(|item| committed.join(item.name).join("result.json").is_file()).unwrap().name;
    fs::create_dir_all(dir.path().join(name)).unwrap();
    for file in fs::read_dir(committed.join(name))
        .unwrap()
        .flatten()
        .filter(|file| file.file_name().to_string_lossy().starts_with("result"))
    {
        fs::copy(file.path(), dir.path().join(name).join(file.file_name())).unwrap();
    }
    let part = pages(dir.path()).unwrap();
    assert!(!page(&part, "README.md").contains("What is known now") && !page(&part, "README.md").contains(&first));
    // The page of a paper has the answer if all its items are there.
    let paper = &PAPERS[0];
    let answered = PaperFindings {
        papers: vec![PaperFinding {
            name: paper.name.to_owned(),
            question: "Is it so?".to_owned(),
            answer: Some("It is.".to_owned()),
            figure: None,
        }],
        findings: Vec::new(),
    };
    let drawn_of = |out: &Path| -> Vec<paper_page::Drawn> {
        let own = ITEMS.iter().filter(|item| item.paper() == paper.name && out.join(item.name).is_dir());
        let read = |item: &spattn_lab::papers::Shipped| {
            let results = ItemResults::read(out, item.name, item.parse().unwrap()).unwrap();
            let figures = drawn(&results).unwrap();
            (results, figures)
        };
        own.map(read).collect()
    };
    let whole = drawn_of(&committed);
    let has_answer = |all: &[paper_page::Drawn]| {
        let page = paper_page::paper_page(paper, &answered, all).unwrap();
        assert!(page.contains("**The question.** Is it so?"), "{page}");
        page.contains("**The answer.** It is.")
    };
    assert!(has_answer(&whole) && !has_answer(&whole[1..]), "one item less");
}

#[test]
fn the_number_of_examples_that_was_chosen_is_shown_as_such() {
    let few = ItemOutcome { samples: Some(2), ..outcome(Variant::Builtin, "builtin") };
    let page = |outcomes| rendered(&results(outcomes), ItemForm::Markdown).unwrap();
    let told = page(vec![few.clone()]);
    assert!(
        told.contains("| samples | 2 | differs (paper: 50): chosen by --samples; the item's own run has 40 |"),
        "{told}"
    );
    let own = page(vec![outcome(Variant::Builtin, "builtin")]);
    assert!(own.contains("| samples | 40 | differs (paper: 50): as many as there are |"), "{own}");
    let real = |model: &str, samples| ItemOutcome { samples, ..outcome(Variant::Real, model) };
    let two = page(vec![real(REAL, Some(7)), real("SmolLM2-135M-Instruct", None)]);
    assert!(
        two.contains(&format!("| samples | 7 ({REAL}), 40 (SmolLM2-135M-Instruct) | differs (paper: 50): chosen")),
        "{two}"
    );
}

#[test]
fn an_item_is_written_for_latex_and_as_pixels_if_asked() {
    let dir = tempfile::tempdir().unwrap();
    let both = results(vec![outcome(Variant::Builtin, "builtin"), outcome(Variant::Real, REAL)]);
    write_item(&both, dir.path(), MoreFiles::default()).unwrap();
    let folder = dir.path().join("magicpig/table-1");
    assert!(!folder.join("table.tex").exists() && !folder.join("plot.png").exists());
    write_item(&both, dir.path(), MoreFiles { latex: true, png: true }).unwrap();
    assert_eq!(&fs::read(folder.join("plot.png")).unwrap()[1..4], b"PNG");
    assert!(folder.join("plot-real-qwen2.5-coder-0.5b-instruct.png").exists());
    let tex = fs::read_to_string(folder.join("table.tex")).unwrap();
    for part in [
        "% Needs \\usepackage{array,booktabs,siunitx}",
        "\\caption{MagicPIG, Table 1: a table, on the built-in model (11M parameters)}",
        "setting & {\\shortstack{16K:\\\\paper\\\\(Big-7B)}} & \\multicolumn{2}{c}",
        "Full & 90.5 & 100.0 & [$91.2$, $100.0$] & 100 & 100 \\\\",
        "Top & 70 & 25.00 & [$12.69$, $41.20$] & 2.5 & 5 \\\\",
        "Measured numbers are of n = 40 of ruler/\\allowbreak{}vt, with 95 \\% intervals.",
    ] {
        assert!(tex.contains(part), "{part} is missing in\n{tex}");
    }
    assert!(!tex.contains("Gone"), "a row without numbers");
    assert_eq!(tex.matches("\\label{").count(), tex.matches("\\caption{").count());
    // Without a list of written files, as in a clone, they count as this program's.
    fs::remove_file(folder.join(".written")).unwrap();
    write_item(&both, dir.path(), MoreFiles { latex: true, png: true }).unwrap();
    let json: serde_json::Value = serde_json::from_str(&rendered(&both, ItemForm::Json).unwrap()).unwrap();
    assert_eq!((json[0]["variant"].as_str(), json[1]["model"].as_str()), (Some("builtin"), Some(REAL)));
    assert!(rendered(&both, ItemForm::Csv).unwrap().starts_with("row,column,published"));
}

/// An item of several tasks. Its columns are of one task, of two and of all.
const COUNTED: &str = "
title = 'counts'
[builtin]
tasks = ['ruler/vt', 'ruler/cwe', 'ruler/fwe']
lengths = [1024, 2048]
[[row]]
name = 'Full'
method = 'full'
[[row]]
name = 'Top'
method = 'topk:k=8'
[[column]]
name = 'one'
tasks = ['ruler/vt']
length = 1024
[[column]]
name = 'two'
tasks = ['ruler/cwe', 'ruler/fwe']
[[column]]
name = 'all'
[[claim]]
says = 'a'
test = { above = { rows = ['Full'], than = ['Top'], columns = ['one'] } }
[[claim]]
says = 'b'
test = { above = { rows = ['Full'], than = ['Top'], columns = ['two'] } }
[[claim]]
says = 'c'
test = { above = { rows = ['Full'], than = ['Top'], columns = ['all', 'one'] } }
";

/// The verdicts of [`COUNTED`] with so many examples of its three tasks, and its results.
fn counted_verdicts(counts: [usize; 3]) -> (Vec<String>, ItemResults) {
    let item = Item::parse(COUNTED, "item.toml").unwrap();
    let one = |task: &str, length: usize, i: usize| {
        let of = |method: &str, params: &str, score: f64| Record {
            params: params.into(),
            length,
            ..record(task, method, i, score)
        };
        [of("full", "", 1.0), of("topk", "k=8", 0.0)]
    };
    let tasks = ["ruler/vt", "ruler/cwe", "ruler/fwe"].into_iter().zip(counts);
    let examples = tasks.flat_map(|(task, n)| (0..2 * n).map(move |i| (task, 1024 * (1 + i % 2), i / 2)));
    let records: Vec<Record> = examples.flat_map(|(task, length, i)| one(task, length, i)).collect();
    let run = RunOf { variant: Variant::Builtin, model: Some("builtin") };
    let judged = judge("p/counts", &item, run, Evidence { records: &records, ..Evidence::default() }).unwrap();
    let ran = [("tasks", "ruler/cwe, ruler/fwe, ruler/vt"), ("lengths", "1024, 2048")];
    let ran = ran.map(|(what, value)| (what.to_owned(), value.to_owned())).to_vec();
    let results = ItemResults { name: "p/counts".to_owned(), item, outcomes: vec![ItemOutcome { ran, ..judged }] };
    let told = (0..3).map(|claim| words::verdict(&results, &results.outcomes[0], claim)).collect();
    (told, results)
}

#[test]
fn a_verdict_says_of_how_many_examples_of_which_tasks_its_cells_are() {
    let (same, results) = counted_verdicts([40, 40, 40]);
    assert_eq!(
        same,
        [
            "holds (1K, n = 40 of ruler/vt)",
            "holds (1K–2K, n = 40 of each of 2 tasks)",
            "holds (1K–2K, n = 40 of each of 3 tasks)"
        ]
    );
    let latex = table::latex(&results);
    assert!(latex.contains("Measured numbers are of n = 40 of each of 3 tasks, with 95"), "{latex}");
    let (several, results) = counted_verdicts([40, 16, 30]);
    assert_eq!(
        several[1..],
        ["holds (1K–2K, n = 16 to 30 of each of 2 tasks)", "holds (1K–2K, n = 16 to 40 of each of 3 tasks)"]
    );
    // An older result has only the least number.
    let mut older = results;
    let cells = older.outcomes[0].rows.iter_mut().flat_map(|row| &mut row.cells);
    cells.filter_map(|cell| cell.measured.as_mut()).for_each(|number| number.most = None);
    let told = words::verdict(&older, &older.outcomes[0], 1);
    assert_eq!(told, "holds (1K–2K, n = 16 or more of each of 2 tasks)");
}

const LOOKED: &str = "
title = 'prompts'
[analyze.builtin]
model = 'builtin'
analyses = ['geometry']
tasks = ['ruler/vt', 'ruler/cwe']
lengths = [1024]
samples = 20
together = 5
[[row]]
name = 'keys'
found = { table = 'by_layer', column = 'k' }
[[row]]
name = 'keys of VT'
tasks = ['ruler/vt']
found = { table = 'by_layer', column = 'k' }
[[row]]
name = 'drawn'
counts = 'drawn tokens'
found = { table = 'by_layer', column = 'sink' }
[[column]]
name = 'cosine'
[[claim]]
says = 'a'
test = { between = { rows = ['keys'], columns = ['cosine'], at_least = 0 } }
[[claim]]
says = 'b'
test = { between = { rows = ['keys of VT'], columns = ['cosine'], at_least = 0 } }
[[claim]]
says = 'c'
test = { between = { rows = ['drawn'], columns = ['cosine'], at_least = 0 } }
";

/// Units of five prompts each, with numbers over prompts and over tokens drawn by the analysis.
fn looked(drawn: bool) -> ItemResults {
    let unit = |(task, unit): (&str, usize)| -> AnalysisTables {
        let drawn = if drawn { json!({ "sink": 32 }) } else { json!({}) };
        let rows = json!([[["0"], [0.5 + unit as f64 / 100.0, 0.25]]]);
        let table =
            json!({ "name": "by_layer", "keys": ["layer"], "columns": ["k", "sink"], "rows": rows, "drawn": drawn });
        let unit = json!({ "identity": null, "program": null, "model": "builtin", "task": task, "length": 1024, "unit": unit,
            "documents": 5, "tables": [table] });
        serde_json::from_value(unit).unwrap()
    };
    let seen: Vec<AnalysisTables> =
        ["ruler/vt", "ruler/cwe"].into_iter().flat_map(|task| (0..4).map(move |i| (task, i))).map(unit).collect();
    let item = Item::parse(LOOKED, "item.toml").unwrap();
    let run = RunOf { variant: Variant::Builtin, model: Some("builtin") };
    let judged = judge("p/looked", &item, run, Evidence { seen: &seen, ..Evidence::default() }).unwrap();
    let ran = [
        ("prompts of", "ruler/cwe, ruler/vt"),
        ("lengths", "1024"),
        ("prompts", "40, 5 at a time; queries of the last token"),
    ];
    let ran = ran.map(|(what, value)| (what.to_owned(), value.to_owned())).to_vec();
    ItemResults { name: "p/looked".to_owned(), item, outcomes: vec![ItemOutcome { ran, ..judged }] }
}

#[test]
fn a_number_of_prompts_is_what_the_rows_analysis_measured() {
    let told = |results: &ItemResults| {
        (0..3).map(|claim| words::verdict(results, &results.outcomes[0], claim)).collect::<Vec<_>>()
    };
    let results = looked(true);
    assert_eq!(
        told(&results),
        [
            "holds (1K, 20 prompts of each of 2 tasks, 5 at a time)",
            "holds (1K, 20 prompts of ruler/vt, 5 at a time)",
            "holds (1K, 32 drawn tokens)"
        ]
    );
    let latex = table::latex(&results);
    assert!(latex.contains("are of 20 prompts of each of 2 tasks, 5 at a time; 32 drawn tokens, with 95"), "{latex}");
    assert!(table::csv(&results).unwrap().contains("\ndrawn,cosine,,0.25,0.25,0.25,32,builtin,"));
    // An older result does not state how many tokens were drawn.
    let older = looked(false);
    assert_eq!(told(&older)[2], "holds (1K)");
    assert!(table::csv(&older).unwrap().contains("\ndrawn,cosine,,0.25,0.25,0.25,,builtin,"));
}

#[test]
fn rows_that_correlate_and_layers_are_counted_as_such() {
    let mut results = looked(true);
    results.outcomes[0].ran.push(("learned".to_owned(), "loki".to_owned()));
    assert_eq!(words::verdict(&results, &results.outcomes[0], 0), "holds (1K, 4 layers)");
    let rows = vec!["keys".to_owned()];
    results.item.rows[0].correlation =
        Some(spattn_lab::papers::derived::Correlation { x: "cosine".into(), y: "cosine".into(), rows });
    assert_eq!(words::verdict(&results, &results.outcomes[0], 0), "holds (1K, 4 rows)");
}

#[test]
fn what_was_made_earlier_is_made_again_with_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let one = results(vec![outcome(Variant::Builtin, "builtin")]);
    write_item(&one, dir.path(), MoreFiles { latex: true, png: true }).unwrap();
    let folder = dir.path().join("magicpig/table-1");
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    let (tex, pixels) = (read("table.tex"), read("plot.png"));
    fs::write(folder.join("plot.png"), "old").unwrap();
    let both = results(vec![outcome(Variant::Builtin, "builtin"), outcome(Variant::Real, REAL)]);
    write_item(&both, dir.path(), MoreFiles::default()).unwrap();
    let now = String::from_utf8(read("table.tex")).unwrap();
    assert!(now.as_bytes() != tex && now.contains(REAL), "{now}");
    assert_eq!(read("plot.png"), pixels);
    // A file that somebody else wrote is left alone.
    let other = tempfile::tempdir().unwrap();
    fs::create_dir_all(other.path().join("magicpig/table-1")).unwrap();
    fs::write(other.path().join("magicpig/table-1/table.tex"), "mine").unwrap();
    write_item(&both, other.path(), MoreFiles::default()).unwrap();
    assert_eq!(fs::read_to_string(other.path().join("magicpig/table-1/table.tex")).unwrap(), "mine");
}

#[test]
fn the_front_page_names_what_was_run_in_its_folder_alone() {
    let findings = PaperFindings::shipped().unwrap();
    let page = |outcomes: Vec<ItemOutcome>| {
        let results = results(outcomes);
        let figures = drawn(&results).unwrap();
        paper_page::front_page(&findings, &[(results, figures)])
    };
    let small = "SmolLM2-135M-Instruct";
    let both = page(vec![outcome(Variant::Builtin, "builtin"), outcome(Variant::Real, small)]);
    assert!(
        both.contains(
            "on the built-in model (11M parameters, trained on RULER's templates) and on a pretrained model (SmolLM2"
        ),
        "{both}"
    );
    assert!(!both.contains("Qwen") && !both.contains("times on a GPU"), "{both}");
    let two = page(vec![outcome(Variant::Real, small), outcome(Variant::Real, REAL)]);
    assert!(
        two.contains(
            "was measured here: on pretrained models (SmolLM2-135M-Instruct (135M parameters, GGUF Q4_1) and Qwen2.5-"
        ),
        "{two}"
    );
    assert!(!two.contains("on the built-in model (11M parameters, trained"), "{two}");
    let item = Item::parse(ITEM, "item.toml").unwrap();
    let none = judge("magicpig/table-1", &item, RunOf::AS_NAMED, Evidence::default()).unwrap();
    assert!(page(vec![none]).contains("Nothing was measured here yet."));
}

#[test]
fn each_pretrained_model_is_counted_by_itself() {
    let mut small = outcome(Variant::Real, "SmolLM2-135M-Instruct");
    small.claims.iter_mut().for_each(|claim| claim.measured = ClaimVerdict::DoesNotHold);
    let both = results(vec![outcome(Variant::Real, REAL), small]);
    let figures = drawn(&both).unwrap();
    let page = paper_page::front_page(&PaperFindings::shipped().unwrap(), &[(both, figures)]);
    // A claim that holds on one model does not hide that it fails on the other.
    for line in [
        "- pretrained, Qwen2.5-Coder-0.5B-Instruct: of 1 claims 1 hold, 0 hold in part, 0 do not hold, and 0 cannot be told",
        "- pretrained, SmolLM2-135M-Instruct: of 4 claims 0 hold, 0 hold in part, 4 do not hold, and 0 cannot be told",
        "\n| pretrained, SmolLM2-135M-Instruct | 0 | 0 | 4 | 0 | 0 | 0 |\n",
    ] {
        assert!(page.contains(line), "{line} in {page}");
    }
}

#[test]
fn what_does_not_hold_is_listed_with_the_model_that_was_run() {
    let failing = |model: &str| {
        let mut all = outcome(Variant::Real, model);
        all.claims[0].measured = ClaimVerdict::DoesNotHold;
        all
    };
    let page = |outcomes: Vec<ItemOutcome>| {
        let results = results(outcomes);
        let figures = drawn(&results).unwrap();
        paper_page::paper_page(&PAPERS[0], &PaperFindings::shipped().unwrap(), &[(results, figures)]).unwrap()
    };
    let row = |model: &str| format!("| dense is above | {model} | nothing yet | open |\n");
    let both = page(vec![failing(REAL), failing("SmolLM2-135M-Instruct")]);
    assert!(both.contains("| item | claim | model | tried | points to |\n"), "{both}");
    assert!(both.contains(&row(REAL)) && both.contains(&row("SmolLM2-135M-Instruct")), "{both}");
    let second = page(vec![outcome(Variant::Real, REAL), failing("SmolLM2-135M-Instruct")]);
    assert!(!second.contains(&row(REAL)) && second.contains(&row("SmolLM2-135M-Instruct")), "{second}");
}

#[test]
fn the_front_page_counts_claims_by_verdict() {
    let both = results(vec![outcome(Variant::Builtin, "builtin"), outcome(Variant::Real, REAL)]);
    let figures = drawn(&both).unwrap();
    let all = vec![(both, figures)];
    let findings = PaperFindings::shipped().unwrap();
    let page = paper_page::front_page(&findings, &all);
    assert!(!page.contains("What is known now") && page.contains("What was run here, a part of"), "{page}");
    assert!(
        page.contains("- [MagicPIG, Table 1](magicpig/table-1/README.md): a table; measured on the built-in model (11M parameters), Qwen2.5-Coder"),
        "{page}"
    );
    assert!(page.contains("## 4 claims of 1 tables and figures"), "{page}");
    assert!(
        page.contains("| the paper's own numbers | 1 | 0 | 1 | 0 | 0 | 2 |\n| built-in 11M | 1 | 0 | 0 | 0 | 1 | 2 |"),
        "{page}"
    );
    let paper = paper_page::paper_page(&PAPERS[0], &findings, &all).unwrap();
    assert!(
        paper.contains("| [Table 1](magicpig/table-1/README.md) | dense is above | do not support it |"),
        "{paper}"
    );
    assert_eq!(paper_page::paper_page(&PAPERS[1], &findings, &all), None);
}
