//! `report.html`: the whole report in one file that needs no network and no server.
//!
//! The template `page/page.{html,css,js}` gets the data: summary rows and warnings as JSON, figures as SVG, and the samples as compressed
//! columns, so that tens of thousands of them load at once. Text of models and data sets is never markup: it is inserted as JSON and shown
//! as text.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::{Compression, GzBuilder};
use rayon::prelude::*;
use serde::ser::{Serialize, SerializeStruct, Serializer};
use serde_json::{Value, json};

use super::format::{capital, detectable, distinct};
use super::markdown::counted;
use super::merge::Source;
use super::parameters::ShownParams;
use super::plots::{Figure, Figures};
use super::{Report, excess, heading, kv_type, overview, sampling, verdict};
use spattn_base::privacy;
use spattn_base::text::in_line;
use spattn_eval::records::fidelity::four_digits;
use spattn_eval::records::prompts::{self, PROMPTS};
use spattn_eval::records::record::Record;
use spattn_eval::records::store::identities;
use spattn_eval::summary::column_value::ColumnUnit;
use spattn_eval::summary::columns::{Better, OnPage, SummaryColumn, SummaryRow, on_page};
use spattn_tasks::stand_ins;

const HTML: &str = include_str!("page/page.html");
const CSS: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Renders the page. `samples` comes from [`samples`].
///
/// # Errors
/// None in practice; the writers' signatures have one.
pub fn render(report: &Report, figures: &Figures, samples: &str) -> Result<String> {
    let models = distinct(report.rows.iter().map(|r| r.model.as_str()));
    let title = if models.is_empty() { "no results".to_owned() } else { models.join(", ") };
    let (title, figures, facts) = (escaped(&title), drawings(figures), in_script(&facts(report)?));
    let verdict = verdict::html::render(&report.verdicts, |at| report.ranking(at));
    let parts = [
        ("title", title.as_str()),
        ("style", CSS),
        ("verdict", &verdict),
        ("figures", &figures),
        ("report", &facts),
        ("samples", samples),
        ("script", SCRIPT),
    ];
    // The template is read in one pass, so that inserted text is not searched for placeholders.
    let mut page = String::new();
    let mut rest = HTML;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        page.push_str(before);
        page.extend(parts.iter().find(|(part, _)| *part == name).map(|(_, text)| *text));
        rest = after;
    }
    Ok(page + rest)
}

/// The data that the tables show.
fn facts(report: &Report) -> Result<Value> {
    let warnings: Vec<Value> = report
        .warnings
        .iter()
        .map(|w| {
            let mut warning = json!(w);
            warning["text"] = json!(w.to_string());
            warning
        })
        .collect();
    let tasks = distinct(report.rows.iter().map(|r| r.task.as_str()));
    let names = ShownParams::of_rows(&report.rows);
    let rows: Vec<Value> = report
        .rows
        .iter()
        .map(|r| {
            let mut row = json!(r);
            row["timed_apart"] = json!(r.is_timed_apart);
            row["shown_params"] = json!(names.in_row(&r.method, &r.params));
            row["excess"] = json!(excess::sentences(r));
            row
        })
        .collect();
    let kv_type = kv_type::of_all(report).map(|of| format!("Keys and values in {of}"));
    let heading = [Some(heading::line(report)), kv_type, sampling::line(report)];
    let heading = heading.into_iter().flatten().collect::<Vec<_>>().join(". ");
    let sources = report.sources.iter().map(|s| json!({"name": s.name, "records": s.records, "manifest": s.manifest}));
    Ok(json!({
        "heading": heading,
        "means": overview::means(&report.rows),
        "columns": columns(),
        "rows": rows,
        "warnings": warnings,
        "notes": report.notes,
        "stand_ins": stand_ins(tasks).into_iter().collect::<BTreeMap<_, _>>(),
        "sources": sources.collect::<Vec<_>>(),
        "records": report.records.len(),
        "detectable": detectable(report.rows.iter().map(|r| (r.contexts, r.detectable))),
        "said_once": names.line(),
        "excess": excess::lines(&report.rows, &names),
        "kv_types": kv_types(report),
    }))
}

/// The type of keys and values, a line for each model with shares of them. If there are several models, the line begins with the name.
fn kv_types(report: &Report) -> Vec<String> {
    let models = distinct(report.rows.iter().map(|r| r.model.as_str()));
    let line = |model: &&str| {
        let of: Vec<SummaryRow> = report.rows.iter().filter(|row| row.model == *model).cloned().collect();
        let line = capital(&kv_type::line(report, &of)?) + ".";
        Some(if models.len() > 1 { format!("{model}: {line}") } else { line })
    };
    models.iter().filter_map(line).collect()
}

/// The columns that the table offers: key, heading, explanation, number format, better direction, whether shown at first.
fn columns() -> Vec<Value> {
    let form = |column: &SummaryColumn| match column.unit {
        ColumnUnit::Text => "text",
        ColumnUnit::Bytes => "kilobytes",
        ColumnUnit::Share => "percent",
        _ => "number",
    };
    let better = |column: &SummaryColumn| match column.better {
        Some(Better::More) => 1,
        Some(Better::Less) => -1,
        None => 0,
    };
    let column = |(column, choice): (&SummaryColumn, OnPage)| {
        json!({"key": column.name, "label": column.heading, "about": column.about(), "form": form(column),
            "better": better(column), "shown": choice == OnPage::Shown})
    };
    on_page().into_iter().map(column).collect()
}

/// JSON that cannot end the script that it is inserted in.
fn in_script(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

fn escaped(text: &str) -> String {
    in_line(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The most bytes of one figure, and of all figures, in the page; others stay separate files. Heat maps by layer and head grow with the
/// model and the number of methods.
const FIGURE_BYTES: usize = 400_000;
const ALL_FIGURES_BYTES: usize = 4_000_000;

/// The first figures, a part to unfold with the others, and lines that name figures that were left out.
fn drawings(figures: &Figures) -> String {
    let mut left = ALL_FIGURES_BYTES;
    let drawn = |f: &Figure| {
        let size = f.svg.len();
        if size > FIGURE_BYTES.min(left) {
            return beside(f);
        }
        left -= size;
        figure(f)
    };
    let drawn: Vec<String> = figures.drawn().map(drawn).collect();
    let (first, others) = drawn.split_at(figures.first.len());
    let mut html = first.concat();
    let lines = [("plots-left-out", figures.left_out_line()), ("plots-not-drawn", figures.not_drawn_line())];
    let said = lines.into_iter().filter_map(|(id, line)| Some(format!("<p id=\"{id}\">{}</p>\n", escaped(&line?))));
    html.extend(said);
    if !others.is_empty() {
        let count = counted(others.len());
        html +=
            &format!("<details id=\"plots-more\"><summary>{count}</summary><div>{}</div></details>\n", others.concat());
    }
    html
}

/// The entry of a figure that is too large for the page.
fn beside(figure: &Figure) -> String {
    let Figure { file, title, svg } = figure;
    let (id, title) = (escaped(file.trim_end_matches(".svg")), escaped(title));
    let kilobytes = svg.len().div_ceil(1000);
    format!(
        "<figure id=\"plot-{id}\" data-title=\"{title}\"><p><a href=\"plots/{id}.svg\">{title}</a>: {kilobytes} kB, \
         too large for this page</p><figcaption>plots/{id}.svg, <a href=\"plots/{id}.png\">.png</a></figcaption></figure>\n"
    )
}

fn figure(figure: &Figure) -> String {
    let Figure { file, title, svg } = figure;
    let (id, title) = (escaped(file.trim_end_matches(".svg")), escaped(title));
    // The drawing scales with the page, up to its own size. The links work if the files are beside the page; otherwise the page's script
    // saves the drawing.
    let svg = svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{title}\" "), 1);
    format!(
        "<figure id=\"plot-{id}\" data-title=\"{title}\">{svg}<figcaption><span>{title}</span> \
         <a href=\"plots/{id}.svg\">SVG</a> <a href=\"plots/{id}.png\">PNG</a></figcaption></figure>\n"
    )
}

/// The samples as compressed text. The same records give the same text.
///
/// # Errors
/// None in practice; the writer's signature has one.
pub fn samples(report: &Report) -> Result<String> {
    let prompts = Prompts::of(report)?;
    packed(&Samples::new(report, &prompts))
}

/// The most bytes of prompts in a page; further prompts stay in files.
const PROMPT_BYTES: usize = 32 << 20;

/// The stored prompts of runs, by the path of their file.
#[derive(Default)]
struct Prompts {
    texts: BTreeMap<PathBuf, String>,
}

impl Prompts {
    fn file(report: &Report, record: &Record) -> Option<PathBuf> {
        let may_show = |source: &&Source| {
            !privacy::is_left_out() || identities(&source.manifest).iter().all(|i| i["system_prompt"].is_null())
        };
        let dirs = report.sources.iter().filter(may_show).map(|source| source.dir.as_path());
        let model = report.full_models.and_then(|names| names.get(&record.model)).unwrap_or(&record.model);
        prompts::find_of_model(dirs, model, record)
    }

    fn of(report: &Report) -> Result<Self> {
        let (mut kept, mut bytes) = (Self::default(), 0);
        if !report.sources.iter().any(|source| source.dir.join(PROMPTS).is_dir()) {
            return Ok(kept);
        }
        for record in report.cells.iter().flat_map(|cell| cell.records.iter()) {
            let Some(file) = Self::file(report, record).filter(|file| !kept.texts.contains_key(file)) else { continue };
            let text = prompts::read(&file)?;
            bytes += text.len();
            if bytes > PROMPT_BYTES {
                break;
            }
            kept.texts.insert(file, text);
        }
        Ok(kept)
    }

    fn text(&self, report: &Report, record: &Record) -> Option<&str> {
        if self.texts.is_empty() {
            return None;
        }
        self.texts.get(&Self::file(report, record)?).map(String::as_str)
    }
}

fn packed(value: &impl Serialize) -> Result<String> {
    // One write, because the compressed bytes depend on how the input is divided.
    let mut writer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    writer.write_all(&serde_json::to_vec(value)?)?;
    Ok(STANDARD.encode(writer.finish()?))
}

/// The samples, column by column. Each example and each text is stored once.
#[derive(serde::Serialize, Default)]
struct Samples<'a> {
    /// All texts. Text columns hold indices into this list.
    texts: Vec<&'a str>,
    examples: Examples,
    records: Records<'a>,
}

#[derive(serde::Serialize, Default)]
struct Examples {
    model: Vec<u32>,
    protocol: Vec<u32>,
    task: Vec<u32>,
    length: Vec<usize>,
    seed: Vec<u64>,
    sample: Vec<usize>,
    depth: Vec<Option<f64>>,
    source: Vec<u32>,
    question: Vec<u32>,
    /// The whole prompt, if it was stored.
    prompt: Vec<Option<u32>>,
    references: Vec<Vec<u32>>,
    prompt_tokens: Vec<usize>,
    prefix_tokens: Vec<usize>,
    prefill_s: Vec<f64>,
}

/// The columns of records that need a lookup. The others are read from the records during serialisation.
#[derive(Default)]
struct Records<'a> {
    all: Vec<&'a Record>,
    example: Vec<u32>,
    method: Vec<u32>,
    params: Vec<u32>,
    prediction: Vec<u32>,
}

impl Records<'_> {
    fn column<T: Send>(&self, of: impl Fn(&Record) -> T + Sync) -> Vec<T> {
        self.all.par_iter().map(|r| of(r)).collect()
    }
}

impl Serialize for Records<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut to = serializer.serialize_struct("Records", 16)?;
        to.serialize_field("example", &self.example)?;
        to.serialize_field("method", &self.method)?;
        to.serialize_field("params", &self.params)?;
        to.serialize_field("prediction", &self.prediction)?;
        to.serialize_field("score", &self.column(|r| four_digits(r.score)))?;
        to.serialize_field("perplexity", &self.column(|r| u8::from(!r.measure.is_score())))?;
        to.serialize_field("stopped", &self.column(|r| u8::from(r.stopped)))?;
        to.serialize_field("new_tokens", &self.column(|r| r.new_tokens))?;
        to.serialize_field("density", &self.column(|r| four_digits(r.density)))?;
        to.serialize_field("cost1", &self.column(|r| r.cost1.map(four_digits)))?;
        to.serialize_field("cost2", &self.column(|r| four_digits(r.cost2)))?;
        to.serialize_field("kv_bytes_per_token", &self.column(|r| r.kv_bytes_per_token.map(four_digits)))?;
        to.serialize_field("index_s", &self.column(|r| four_digits(r.index_s)))?;
        to.serialize_field("decode_s", &self.column(|r| four_digits(r.decode_s)))?;
        to.serialize_field("steps", &self.column(|r| r.steps))?;
        let output_error = |r: &Record| r.fidelity.as_ref().map(|f| four_digits(f.mean_error()));
        to.serialize_field("output_error", &self.column(output_error))?;
        to.end()
    }
}

/// The key of an example.
type ExampleKey<'a> = (&'a str, &'a str, &'a str, usize, u64, usize);

#[derive(Default)]
struct Places<'a> {
    texts: HashMap<&'a str, u32>,
    examples: HashMap<ExampleKey<'a>, u32>,
}

impl<'a> Samples<'a> {
    /// The samples in the order of the summary, one record for each example and setting.
    fn new(report: &Report<'a>, prompts: &'a Prompts) -> Self {
        let (mut samples, mut places) = (Self::default(), Places::default());
        for record in report.cells.iter().flat_map(|cell| cell.records.iter().copied()) {
            let example = samples.example(record, || prompts.text(report, record), &mut places);
            samples.record(record, example, &mut places);
        }
        samples
    }

    // The index of a text. Indices have 32 bits, because a page cannot hold more texts.
    fn text(&mut self, text: &'a str, places: &mut Places<'a>) -> u32 {
        *places.texts.entry(text).or_insert_with(|| {
            self.texts.push(text);
            (self.texts.len() - 1) as u32
        })
    }

    fn example(&mut self, r: &'a Record, prompt: impl Fn() -> Option<&'a str>, places: &mut Places<'a>) -> u32 {
        let key = (r.model.as_str(), r.protocol.as_str(), r.task.as_str(), r.length, r.seed, r.sample);
        if let Some(place) = places.examples.get(&key) {
            return *place;
        }
        let place = self.examples.task.len() as u32;
        places.examples.insert(key, place);
        let [model, protocol, task, source, question] =
            [&r.model, &r.protocol, &r.task, &r.source, &r.question].map(|text| self.text(text, places));
        let references = r.references.iter().map(|text| self.text(text, places)).collect();
        let prompt = prompt().map(|text| self.text(text, places));
        let e = &mut self.examples;
        e.model.push(model);
        e.protocol.push(protocol);
        e.task.push(task);
        e.length.push(r.length);
        e.seed.push(r.seed);
        e.sample.push(r.sample);
        e.depth.push(r.depth);
        e.source.push(source);
        e.question.push(question);
        e.prompt.push(prompt);
        e.references.push(references);
        e.prompt_tokens.push(r.prompt_tokens);
        e.prefix_tokens.push(r.prefix_tokens);
        e.prefill_s.push(four_digits(r.prefill_s));
        place
    }

    fn record(&mut self, r: &'a Record, example: u32, places: &mut Places<'a>) {
        let [method, params, prediction] = [&r.method, &r.params, &r.prediction].map(|text| self.text(text, places));
        let to = &mut self.records;
        to.all.push(r);
        to.example.push(example);
        to.method.push(method);
        to.params.push(params);
        to.prediction.push(prediction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_eval::records::testing::record;

    #[test]
    fn text_of_records_is_never_markup() {
        let hostile = "</script><script>alert(1)</script>";
        let made = Record { model: hostile.into(), prediction: hostile.into(), ..record("vt", "topk", 0, 1.0) };
        let page = render(&Report::new(&[made], &[]), &Figures::default(), "").unwrap();
        assert!(!page.contains(hostile));
        assert!(page.contains("&lt;/script&gt;") && page.contains("\\u003c/script>"));
        assert!(!page.contains("{{"), "all parts are filled in");
    }

    #[test]
    fn examples_and_texts_are_there_once() {
        let records = [record("vt", "full", 0, 1.0), record("vt", "topk", 0, 0.0), record("vt", "topk", 1, 0.0)];
        let report = Report::new(&records, &[]);
        let prompts = Prompts::default();
        let samples = Samples::new(&report, &prompts);
        assert_eq!(samples.examples.sample, [0, 1]);
        assert_eq!(samples.examples.prompt, [None, None]);
        assert_eq!(samples.records.example, [0, 0, 1]);
        assert_eq!(samples.texts.iter().filter(|t| **t == "answer").count(), 1);
    }

    #[test]
    fn prompts_that_were_kept_are_in_the_page_once() {
        let temp = tempfile::tempdir().unwrap();
        let records = [record("vt", "full", 0, 1.0), record("vt", "topk", 0, 0.0), record("vt", "topk", 1, 0.0)];
        let r = &records[0];
        prompts::keep(temp.path(), &prompts::file_name(&r.model, &r.task, r.length, r.seed, 0), "all of it").unwrap();
        let (name, dir, manifest) = ("run".to_owned(), temp.path().to_owned(), Value::Null);
        let sources = [Source { name, dir, manifest, records: 3 }];
        let report = Report { sources: &sources, ..Report::new(&records, &[]) };
        let prompts = Prompts::of(&report).unwrap();
        let samples = Samples::new(&report, &prompts);
        let place = samples.texts.iter().position(|text| *text == "all of it").unwrap() as u32;
        assert_eq!(samples.examples.prompt, [Some(place), None]);
    }

    #[test]
    fn figures_that_are_too_large_stay_files() {
        let figure = |file: &str, bytes: usize| Figure {
            file: format!("{file}.svg"),
            title: format!("Title of {file}"),
            svg: format!("<svg width=\"1\">{}</svg>", " ".repeat(bytes)),
        };
        let drawings = |drawn: Vec<Figure>| drawings(&Figures { first: drawn, ..Figures::default() });
        let page = drawings(vec![figure("small", 10), figure("huge", FIGURE_BYTES)]);
        assert!(page.contains("<svg role=\"img\" aria-label=\"Title of small\""));
        assert!(page.contains("<a href=\"plots/huge.svg\">Title of huge</a>: 401 kB, too large"));
        assert_eq!(page.matches("<figure id=").count(), 2, "both are found by their titles");
        let many: Vec<Figure> = (0..30).map(|i| figure(&i.to_string(), FIGURE_BYTES - 100)).collect();
        let page = drawings(many);
        assert!(page.len() < ALL_FIGURES_BYTES + 20_000 && page.matches("<svg ").count() == 10);
    }

    #[test]
    fn what_comes_first_is_shown_and_the_rest_is_behind_a_line() {
        let figure = |file: &str| Figure { file: format!("{file}.svg"), title: file.into(), svg: "<svg></svg>".into() };
        let left_out = vec![("flat<.svg".to_owned(), "100".to_owned())];
        let page = drawings(&Figures {
            first: vec![figure("first")],
            others: vec![figure("second"), figure("third")],
            left_out,
            ..Figures::default()
        });
        let (shown, behind) = page.split_once("<details id=\"plots-more\"><summary>2 more plots</summary>").unwrap();
        assert!(shown.contains("plot-first") && !shown.contains("plot-second"));
        assert!(behind.contains("plot-second") && behind.contains("plot-third") && behind.ends_with("</details>\n"));
        assert!(shown.contains("with one value only are left out: flat&lt;.svg (100).</p>"), "{shown}");
    }

    #[test]
    fn an_empty_report_is_a_page_too() {
        assert!(render(&Report::new(&[], &[]), &Figures::default(), "").unwrap().contains("no results"));
    }
}
