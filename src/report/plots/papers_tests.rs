//! Tests of a paper's table as a drawing.

use super::*;
use spattn_eval::records::testing::record;
use spattn_lab::papers::judging::judge;
use spattn_lab::papers::measure::Evidence;
use spattn_lab::papers::run_of::RunOf;

/// Draws an item with some rows (name and method), over rows or columns.
fn drawn(plot: &str, rows: &[(&str, &str)]) -> Vec<Figure> {
    drawn_of("ruler/vt", plot, rows)
}

/// Does the same for another task.
fn drawn_of(task: &str, plot: &str, rows: &[(&str, &str)]) -> Vec<Figure> {
    let mut text = format!("title = 't'\n{plot}\n[run]\nmodel = 'x/y'\ntasks = ['{task}']\n[builtin]\n");
    for (name, method) in rows {
        text += &format!("[[row]]\nname = '{name}'\nmethod = '{method}'\n");
    }
    text += "[[column]]\nname = 'VT'\n[[column]]\nname = 'CWE'\n";
    for (name, _) in rows {
        text += &format!("[[published]]\nrow = '{name}'\nvalues = {{ VT = 50, CWE = 60 }}\n");
    }
    let item = Item::parse(&text, "item.toml").unwrap();
    figures(&judge("p/t", &item, RunOf::AS_NAMED, Evidence::default()).unwrap(), &item, "plot.svg").unwrap()
}

/// Scores in place of the paper's perplexities are not perplexities, and share no axis with them.
#[test]
fn measured_numbers_have_their_own_quantity() {
    let text = "title = 't'\n[run]\nmodel = 'x/y'\ntasks = ['ppl/pg19']\n[builtin]\ntasks = ['ruler/vt']\n\
                [[row]]\nname = 'Full'\nmethod = 'full'\n[[column]]\nname = '8k'\n[[column]]\nname = '32k'\n\
                [[published]]\nrow = 'Full'\nvalues = { 8k = 7.5, 32k = 7.2 }\n";
    let item = Item::parse(text, "item.toml").unwrap();
    let records: Vec<_> = (0..20).map(|i| record("ruler/vt", "full", i, 1.0)).collect();
    let run = RunOf { variant: Variant::Builtin, model: Some("builtin") };
    let measured = judge("p/t", &item, run, Evidence { records: &records, ..Evidence::default() }).unwrap();
    let drawn = figures(&measured, &item, "plot-real.svg").unwrap().remove(0);
    assert_eq!(
        (drawn.title.as_str(), drawn.file.as_str()),
        ("p/t: score, %, measured on built-in 11M", "plot-real.svg")
    );
    assert!(!drawn.svg.contains("published") && drawn.svg.contains("filled: measured on built-in 11M"));
    let published = judge("p/t", &item, run, Evidence::default()).unwrap();
    let drawn = figures(&published, &item, "plot.svg").unwrap().remove(0);
    assert!(drawn.title == "p/t: perplexity" && !drawn.svg.contains("filled:"));
}

/// The note on marks takes as many lines as it needs.
#[test]
fn the_note_on_marks_stays_on_the_page() {
    let text = "title = 't'\n[run]\nmodel = 'x/y'\ntasks = ['ruler/vt']\n[builtin]\n[[row]]\nname = 'Full'\nmethod = 'full'\n\
                [[column]]\nname = '8k'\n[[published]]\nrow = 'Full'\nvalues = { 8k = 75 }\n";
    let item = Item::parse(text, "item.toml").unwrap();
    let records: Vec<_> = (0..20).map(|i| record("ruler/vt", "full", i, 1.0)).collect();
    let run = RunOf { variant: Variant::Builtin, model: Some("builtin") };
    let measured = judge("p/t", &item, run, Evidence { records: &records, ..Evidence::default() }).unwrap();
    let svg = figures(&measured, &item, "plot.svg").unwrap().remove(0).svg;
    let lines: Vec<&str> = svg.lines().skip_while(|line| !line.starts_with("filled: ")).collect();
    let is_text = |line: &&&str| !line.starts_with('<');
    let note: Vec<&str> = lines.iter().filter(is_text).copied().collect();
    assert_eq!(note.join(" "), "filled: measured on built-in 11M, with 95 % interval; hollow and dashed: published");
    let widest = note.iter().map(|line| line.chars().count()).max().unwrap() as i32;
    assert!(note.len() == 2 && LEFT + widest * (CHARACTER - 1) <= LEAST_WIDTH, "{note:?}");
}

/// Columns without numbers are not drawn if others have some.
#[test]
fn a_figure_shows_the_columns_that_have_numbers() {
    let text = "title = 't'\n[run]\nmodel = 'x/y'\ntasks = ['ppl/pg19']\n[builtin]\ntasks = ['ruler/vt']\n\
                [[row]]\nname = 'Full'\nmethod = 'full'\n[[column]]\nname = 'PPL'\nbuiltin = { missing = 'x' }\n\
                [[column]]\nname = 'Cost'\nvalue = 'density'\n";
    let item = Item::parse(text, "item.toml").unwrap();
    let records: Vec<_> = (0..20).map(|i| record("ruler/vt", "full", i, 1.0)).collect();
    let run = RunOf { variant: Variant::Builtin, model: Some("builtin") };
    let measured = judge("p/t", &item, run, Evidence { records: &records, ..Evidence::default() }).unwrap();
    let drawn = figures(&measured, &item, "plot.svg").unwrap().remove(0);
    assert_eq!(drawn.title, "p/t: density, measured on built-in 11M");
}

#[test]
fn perplexities_are_no_scores() {
    let rows = [("Quest", "quest"), ("Ours", "magicpig")];
    let titles = ["ruler/vt", "ppl/wikitext2"].map(|task| drawn_of(task, "", &rows).remove(0).title);
    assert_eq!(titles, ["p/t: score, %", "p/t: perplexity"]);
    let ours = [("Quest", "quest"), ("Ours", "magicpig'\nmodel = 'builtin")];
    assert_eq!(drawn_of("ppl/wikitext2", "", &ours).remove(0).title, "p/t: perplexity; score, %");
}

/// Rows of two different quantities have no common axis.
#[test]
fn a_figure_shows_one_quantity() {
    let text = "title = 't'\nplot = { columns = ['A', 'B'] }\n[run]\nmodel = 'x/y'\n[builtin]\ntasks = ['ruler/vt']\n\
                [[row]]\nname = 'scores'\n[[row]]\nname = 'densities'\nvalue = 'density'\n\
                [[column]]\nname = 'A'\nmethod = 'full'\n[[column]]\nname = 'B'\nmethod = 'topk:k=8'\n";
    let item = Item::parse(text, "item.toml").unwrap();
    let records: Vec<_> = (0..20).map(|i| record("ruler/vt", "full", i, 1.0)).collect();
    let run = RunOf { variant: Variant::Builtin, model: Some("builtin") };
    let measured = judge("p/t", &item, run, Evidence { records: &records, ..Evidence::default() }).unwrap();
    let drawn = figures(&measured, &item, "plot.svg").unwrap().remove(0);
    assert!(drawn.svg.contains("\nscores\n") && !drawn.svg.contains("\ndensities\n"));
}

/// A row without a number takes no space, and ends the line.
#[test]
fn a_figure_shows_the_rows_that_have_numbers() {
    let text = |number: &str| {
        let mut text =
            "title = 't'\nplot = { columns = ['VT'], over_rows = true }\n[run]\nmodel = 'x/y'\ntasks = ['ruler/vt']\n\
                        [[column]]\nname = 'VT'\n"
                .to_owned();
        for (name, k, value) in [("few", 8, "VT = 50"), ("some", 9, number), ("many", 10, "VT = 70")] {
            text += &format!(
                "[[row]]\nname = '{name}'\nmethod = 'topk:k={k}'\n[[published]]\nrow = '{name}'\nvalues = {{ {value} }}\n"
            );
        }
        text
    };
    let drawn = |text: &str| {
        let item = Item::parse(text, "item.toml").unwrap();
        figures(&judge("p/t", &item, RunOf::AS_NAMED, Evidence::default()).unwrap(), &item, "plot.svg")
            .unwrap()
            .remove(0)
            .svg
    };
    let (all, without) = (drawn(&text("VT = 60")), drawn(&text("")));
    let has = |svg: &str, name: &str| svg.contains(&format!("\n{name}\n"));
    assert!(["few", "some", "many"].iter().all(|name| has(&all, name)));
    assert!(has(&without, "few") && !has(&without, "some") && has(&without, "many"));
    let dashes = |svg: &str| svg.matches("<polyline").count();
    assert!(dashes(&all) > dashes(&without) + 5, "{} {}", dashes(&all), dashes(&without));
}

fn colours(svg: &str) -> Vec<String> {
    let hollow = |look: SeriesLook| {
        let colour = look.colour();
        format!("fill=\"#{:02X}{:02X}{:02X}\"", colour.0, colour.1, colour.2)
    };
    let known = ["quest", "magicpig", "topk"];
    let has = |name: &&str| svg.contains(&hollow(of_lines(&[Some(name)])[0]));
    known.iter().filter(|name| has(name)).map(|name| (*name).to_owned()).collect()
}

#[test]
fn rows_that_are_methods_have_their_colours() {
    let [page] = &drawn("", &[("Quest", "quest"), ("Ours", "magicpig")])[..] else { panic!("one page") };
    assert_eq!(colours(&page.svg), ["quest", "magicpig"]);
    let [page] = &drawn(
        "plot = { columns = ['VT'], over_rows = true }",
        &[("A", "quest"), ("B", "topk:k=8"), ("C", "topk:k=9")],
    )[..] else {
        panic!("one page")
    };
    assert_eq!(colours(&page.svg), ["quest", "topk"], "points of one line too");
}

#[test]
fn lines_join_neighbours_that_belong_together() {
    // Drawn over rows: faint lines between published numbers consist of many dashes.
    let of = |rows: &[(&str, &str)]| drawn("plot = { columns = ['VT'], over_rows = true }", rows).remove(0).svg;
    let dashes = |svg: &str| svg.matches("<polyline").count();
    let bare = dashes(&of(&[("A", "quest:page=16"), ("B", "topk:k=8"), ("C", "hip")]));
    let joined = dashes(&of(&[("A", "quest:page=16"), ("B", "quest:page=32"), ("C", "hip")]));
    assert!(joined > bare + 5, "{joined} {bare}");
    let average = dashes(&of(&[("A", "quest:page=16"), ("Avg.", "quest:page=32"), ("C", "quest")]));
    assert_eq!(average, bare, "an average is no neighbour, on neither side");
    let two = dashes(&of(&[("A", "quest:page=16,ratio=0.1"), ("B", "quest:page=32,ratio=0.2"), ("C", "hip")]));
    assert_eq!(two, bare, "two parameters are no step of one quantity");
    let names: Vec<String> = (0..10).map(|i| format!("r{i}").repeat(14)).collect();
    let mut breaks = vec![Break::None; 10];
    breaks[5] = Break::Row;
    let axis = Axis::from_zero(1.0);
    let drawing = Drawing { title: "t", note: "n", axis, names, breaks, series: Vec::new() };
    assert_eq!(drawing.rows(), [0..3, 3..5, 5..8, 8..10], "no row has two models");
}

#[test]
fn names_of_the_runs_own_rows_have_what_tells_them_apart() {
    let names = [
        "Llama, Full",
        "full on built-in 11M",
        "quest page=16, ratio=0.25, tail=indexed on built-in 11M",
        "quest page=16, ratio=0.5, tail=indexed on built-in 11M",
        "topk k=8, tail=indexed on built-in 11M",
        "topk k=8, tail=indexed on another model",
    ];
    let short = ["Llama, Full", "full", "quest ratio=0.25", "quest ratio=0.5", "topk k=8, tail=indexed", names[5]];
    assert_eq!(short_names(&names, " on built-in 11M"), short);
}

#[test]
fn many_columns_go_on_below_and_on_other_pages() {
    let names: Vec<String> = (0..70).map(|i| format!("row{i}x")).collect();
    let rows: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "quest")).collect();
    let pages = drawn("plot = { columns = ['VT'], over_rows = true }", &rows);
    assert!(pages.len() > 1 && pages[1].file == "plot-2.svg" && pages[1].title.contains("(2 of"), "{}", pages.len());
    let sizes = |svg: &str, key: &str| -> i32 {
        svg.split(&format!(" {key}=\"")).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
    };
    for page in &pages {
        assert!(sizes(&page.svg, "width") <= MOST_WIDTH && sizes(&page.svg, "height") <= MOST_HEIGHT);
    }
    let on = |name: &String| pages.iter().filter(|page| page.svg.contains(&format!("\n{name}\n"))).count();
    assert!(names.iter().all(|name| on(name) == 1), "each once");
}

#[test]
fn a_table_of_two_parameters_is_a_heat_map() {
    let mut text = "title = 't'\nplot = { columns = ['S'], grid = { down = 'K', across = 'L', of = 'sampled, %' } }\n\
                    [run]\nmodel = 'x/y'\ntasks = ['ruler/vt']\n[[column]]\nname = 'S'\n"
        .to_owned();
    for (name, number) in [("(7,75)", 14), ("(7,100)", 17), ("(8,75)", 6), ("(8,100)", 8), ("Full", 99)] {
        text += &format!(
            "[[row]]\nname = '{name}'\nmethod = 'full'\n[[published]]\nrow = '{name}'\nvalues = {{ S = {number} }}\n"
        );
    }
    let item = Item::parse(&text, "item.toml").unwrap();
    let outcome = judge("p/t", &item, RunOf::AS_NAMED, Evidence::default()).unwrap();
    let [page] = &figures(&outcome, &item, "plot.svg").unwrap()[..] else { panic!("one page") };
    let texts: Vec<&str> = page.svg.lines().collect();
    for text in ["14", "17", "6", "8", "75", "100", "K", "L", "Full: 99 published"] {
        assert!(texts.contains(&text), "{text}");
    }
    assert!(!page.svg.contains("<polyline"), "no line joins them");
}
