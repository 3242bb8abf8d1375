//! Recognises files that this program wrote by their content, where no list names them: how the text begins, which keys it has,
//! or how its bytes are packed. A file's name proves nothing.

use std::path::Path;

use serde_json::Value;

use spattn_base::disk::read_here;
use spattn_base::given::MARK;

/// The most bytes of a file that is read as a whole.
const MOST_BYTES: u64 = 256 << 20;
/// How many bytes at the start of a file are examined otherwise.
const BEGINNING: u64 = 4096;

/// How to recognise this program's files of a name.
enum Sign {
    /// The file starts with one of these texts.
    Begins(&'static [&'static str]),
    /// All of these texts are near the start of the file.
    Holds(&'static [&'static str]),
    /// The file is a JSON object with all of these keys.
    Keys(&'static [&'static str]),
    /// The file is an SVG with this program's first lines: a size and a white background.
    Figure,
    /// The file is a PNG drawn from the SVG beside it: twice its size, and nothing but pixels.
    Pixels,
    /// The file is a compressed prompt, without a time and a name.
    Packed,
    /// The file is a table of a report, or one that an analysis's page links to.
    Table,
    /// The file has tensors with this program's metadata.
    Tensors,
}

use Sign::{Begins, Figure, Holds, Keys, Packed, Pixels, Table, Tensors};

/// The first line of every page about papers.
pub const PAPERS_PAGE: &str = "<!-- Made by `spattn reproduce`. -->";
const OF_LATEX: Sign = Begins(&["% Needs \\usepackage{array,booktabs,siunitx}"]);

/// The signs by file name. The first fitting entry counts; `*` stands for any name without a folder.
const SIGNS: [(&str, Sign); 39] = [
    // A run that failed before its first record leaves an empty file, which also counts as ours.
    ("samples.jsonl", Begins(&["{\"key\""])),
    ("manifest.json", Keys(&["program"])),
    ("summary.csv", Begins(&["model,task,length,method,params,protocol,n,score,ci_low,"])),
    ("summary.md", Begins(&["# Results\n\n- model: "])),
    ("summary.tex", OF_LATEX),
    ("summary.json", Holds(&["[\n  {\n    \"model\": ", "\n    \"protocol\": "])),
    ("verdict.json", Keys(&["verdicts"])),
    ("depths.csv", Begins(&["model,task,length,depth,method,params,protocol,"])),
    ("metrics.csv", Begins(&["model,task,length,method,params,protocol,metric,"])),
    ("report.html", Holds(&[" – spattn</title>"])),
    ("attempts.jsonl", Begins(&["{\"started\":", "{\"failed\":", "{\"ended\":"])),
    ("tune.json", Keys(&["run"])),
    ("tune.csv", Begins(&["method,parameter,value,spec,", "K,L,density_predicted,", "schedule,value,layer,"])),
    ("tune.md", Begins(&["# The smallest budgets\n", "# K and L\n", "# Budgets by layer\n"])),
    ("measured.jsonl", Begins(&["{\"of\":"])),
    ("bench.json", Holds(&["[\n  {\n    \"op\": \"", "\n    \"shape\": "])),
    ("bench.csv", Begins(&["op,shape,device,dtype,"])),
    ("bench.md", Begins(&["# Bench\n\nOn this machine "])),
    ("analyze.json", Keys(&["manifest", "analyses"])),
    ("analyze.md", Begins(&["# What attention looks like\n"])),
    ("result.json", Keys(&["name", "variant", "ran"])),
    ("table.csv", Begins(&["row,column,published,measured,"])),
    ("result-*.json", Keys(&["name", "variant", "ran"])),
    ("manifest-*.json", Keys(&["program"])),
    ("log.csv", Begins(&["begun,item,run,model,commit,"])),
    ("RESULTS.md", Begins(&["# The papers, reproduced"])),
    ("plan.json", Keys(&["cells", "shards", "submissions"])),
    ("matrix.toml", Begins(&["# The matrix as it was planned"])),
    ("sweep.sbatch", Holds(&["#!/bin/bash\n", "spattn"])),
    ("tables/*.tex", OF_LATEX),
    ("table.tex", OF_LATEX),
    ("tables/*.md", Holds(&["**", " by ", "**\n\n| "])),
    ("tables/*.json", Holds(&["[\n  {\n    \"model\": ", "\n    \"protocol\": ", "\"measure\": "])),
    ("tables/*.csv", Table),
    ("prompts/*.gz", Packed),
    ("*.md", Begins(&[PAPERS_PAGE])),
    ("*.svg", Figure),
    ("*.png", Pixels),
    ("*.safetensors", Tensors),
];
/// Whether a file's content shows that this program wrote it.
pub fn is_shown(dir: &Path, name: &str) -> bool {
    match SIGNS.iter().find(|(pattern, _)| fits(name, pattern)) {
        Some((_, sign)) => sign.is_at(dir, name),
        // The result of a unit of a paper's item.
        None => name.ends_with(".json") && Keys(&["identity", "program"]).is_at(dir, name),
    }
}

fn fits(name: &str, pattern: &str) -> bool {
    let Some((folder, ending)) = pattern.split_once('*') else { return name == pattern };
    // Figures of runs are in `plots/`; a paper's figure is beside its table.
    let is_below = folder.is_empty() || name.starts_with(folder);
    is_below && name.ends_with(ending)
}

/// Whether this program's page of an analysis links to the table `name`.
fn is_linked(dir: &Path, name: &str) -> bool {
    const PAGE: &str = "analyze.md";
    let page = read_here(&dir.join(PAGE), MOST_BYTES).unwrap_or_default();
    is_shown(dir, PAGE) && String::from_utf8_lossy(&page).contains(&format!("]({name})"))
}

impl Sign {
    fn is_at(&self, dir: &Path, name: &str) -> bool {
        let read = |most| read_here(&dir.join(name), most).unwrap_or_default();
        match self {
            Begins(texts) => {
                let bytes = read(BEGINNING);
                let text = String::from_utf8_lossy(bytes.strip_prefix(MARK).unwrap_or(&bytes)).replace("\r\n", "\n");
                texts.iter().any(|begin| text.starts_with(begin)) || name == "samples.jsonl" && is_empty(dir, name)
            }
            Holds(texts) => {
                let bytes = read(BEGINNING);
                let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
                texts.iter().all(|held| text.contains(held)) || name.ends_with(".json") && text.trim() == "[]"
            }
            Keys(keys) => {
                let bytes = read(MOST_BYTES);
                let value = serde_json::from_slice::<Value>(bytes.strip_prefix(MARK).unwrap_or(&bytes));
                value.is_ok_and(|value| keys.iter().all(|key| !value[*key].is_null()))
            }
            Figure => size(&String::from_utf8_lossy(&read(BEGINNING))).is_some(),
            Pixels => {
                let drawn = name.strip_suffix("png").map(|stem| dir.join(format!("{stem}svg")));
                let drawn = drawn.and_then(|path| read_here(&path, BEGINNING).ok()).unwrap_or_default();
                let size = size(&String::from_utf8_lossy(&drawn));
                size.is_some_and(|(width, height)| pixels(&read(MOST_BYTES)) == Some((2 * width, 2 * height)))
            }
            Table => Begins(&["model,protocol,measure,"]).is_at(dir, name) || is_linked(dir, name),
            Packed => {
                let stem = name.strip_suffix(".txt.gz").and_then(|stem| stem.rsplit_once('-'));
                let is_named =
                    stem.is_some_and(|(_, hash)| hash.len() == 8 && hash.bytes().all(|b| b.is_ascii_hexdigit()));
                is_named && read(10) == *b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
            }
            Tensors => read(BEGINNING).get(8..).is_some_and(|head| head.starts_with(b"{\"__metadata__\":{\"spattn\":")),
        }
    }
}

fn is_empty(dir: &Path, name: &str) -> bool {
    std::fs::metadata(dir.join(name)).is_ok_and(|file| file.len() == 0)
}

/// The width and height of a figure, if its first two lines are this program's.
fn size(svg: &str) -> Option<(u32, u32)> {
    let mut lines = svg.lines();
    let (first, second) = (lines.next()?, lines.next()?);
    let mut numbers = first.strip_prefix("<svg width=\"")?.split('"');
    let (width, height) = (numbers.next()?, numbers.nth(1)?);
    let head = format!("\" viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\">");
    let white = format!(
        "<rect x=\"0\" y=\"0\" width=\"{width}\" height=\"{height}\" opacity=\"1\" fill=\"#FFFFFF\" stroke=\"none\"/>"
    );
    (first.ends_with(&head) && second == white).then(|| width.parse().ok().zip(height.parse().ok())).flatten()
}

/// The width and height of a PNG with four channels that contains nothing but pixels: no program name, no print density.
fn pixels(png: &[u8]) -> Option<(u32, u32)> {
    let number = |at: usize| Some(u32::from_be_bytes(png.get(at..at + 4)?.try_into().ok()?));
    if !png.starts_with(b"\x89PNG\r\n\x1a\n") || png.get(24..26)? != [8, 6] {
        return None;
    }
    let mut at = 8;
    while at < png.len() {
        if ![b"IHDR", b"IDAT", b"IEND"].contains(&png.get(at + 4..at + 8)?.try_into().ok()?) {
            return None;
        }
        at += 12 + number(at)? as usize;
    }
    number(16).zip(number(20))
}
