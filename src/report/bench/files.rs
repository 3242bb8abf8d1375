//! `bench.csv`, `bench.json` and `bench.md`.

use std::fmt::Write as _;

use std::path::Path;

use anyhow::{Context, Result};
use csv::StringRecord;
use serde_json::Value;

use super::columns::{columns, legend, method_name, notes, roof_line};
use super::scene::{Scene, scenes};
use crate::report::csv::finished;
use crate::report::format::tokens;
use crate::report::json;
use crate::report::markdown::{line, rule};
use crate::report::plots::Figure;
use spattn_base::error::UsageError;
use spattn_base::text::{in_markdown, of_cell};
use spattn_lab::bench::{Bench, BenchRow, Roof};

/// The file of the rows, and the manifest.
pub(super) const ROWS: &str = "bench.csv";
pub(super) const MANIFEST: &str = "manifest.json";

/// The columns of `bench.csv`: the fields of [`BenchRow`](spattn_lab::bench::BenchRow), in their order.
pub const COLUMNS: [&str; 48] = [
    "op",
    "shape",
    "device",
    "dtype",
    "threads",
    "context",
    "batch",
    "layers",
    "method",
    "params",
    "solved",
    "peer",
    "density",
    "time_us",
    "time_low_us",
    "time_high_us",
    "rounds",
    "spread",
    "speedup_vs_full",
    "bytes",
    "limit_bytes",
    "gbps",
    "flops",
    "gflops",
    "bandwidth_share",
    "limit_share",
    "score_us",
    "score_low_us",
    "score_high_us",
    "pick_us",
    "select_us",
    "select_low_us",
    "select_high_us",
    "attend_us",
    "attend_low_us",
    "attend_high_us",
    "weights_us",
    "weights_low_us",
    "weights_high_us",
    "index_ms",
    "aux_bits",
    "aux_bytes",
    "bus_bytes",
    "bus_gbps",
    "link_share",
    "host_bytes",
    "host_gbps",
    "host_share",
];

/// The rows as CSV with a heading line. Missing values are empty, numbers have all digits.
///
/// # Errors
/// None in practice; the writer's signature has one.
pub fn csv(bench: &Bench) -> Result<String> {
    // The writer takes its own headings from the first row, which may not exist.
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.write_record(COLUMNS)?;
    for row in &bench.rows {
        writer.serialize(row)?;
    }
    finished(writer)
}

/// The rows as an indented array of objects with the CSV's names, and a final newline. Missing values are `null`.
///
/// # Errors
/// None in practice; the writer's signature has one.
pub fn json(bench: &Bench) -> Result<String> {
    json::render(&bench.rows)
}

/// Whether a folder holds a benchmark.
pub fn is_bench(folder: &Path) -> bool {
    folder.join(ROWS).is_file() && folder.join(MANIFEST).is_file()
}

/// The benchmark in a folder: rows from `bench.csv`, the machine's limits and notes from `manifest.json`.
///
/// # Errors
/// If a file cannot be read, or is not part of a benchmark.
pub fn read(folder: &Path) -> Result<Bench> {
    let text = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let wrong = |name: &str, why: &dyn std::fmt::Display| {
        UsageError::new(format!("{}: {why}", folder.join(name).display()))
            .hint("spattn bench --out DIR writes both bench.csv and manifest.json")
    };
    let rows = text(ROWS)?;
    let rows = rows_of(&rows).map_err(|e| {
        let line = e.position().map_or_else(String::new, |at| format!("line {} ", at.line()));
        wrong(ROWS, &format!("{line}is not a row of a bench"))
    })?;
    let manifest: Value =
        serde_json::from_str(&text(MANIFEST)?).map_err(|e| wrong(MANIFEST, &format!("not valid JSON: {e}")))?;
    let machine = &manifest["machine"];
    let reached = |key: &str| {
        machine[key]
            .as_f64()
            .ok_or_else(|| wrong(MANIFEST, &format!("`machine.{key}` is missing: this is not the manifest of a bench")))
    };
    let roof = Roof {
        read_gbps: reached("read_gbps")?,
        peak_gflops: reached("peak_gflops")?,
        is_tiled: manifest["bench"]["matmul_precision"] == "bf16",
        link_gbps: serde_json::from_value(machine["link_gbps"].clone()).unwrap_or_default(),
        host_gbps: machine["host_gbps"].as_f64(),
    };
    let notes = manifest["notes"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    Ok(Bench { rows, roof, notes: notes.collect() })
}

fn rows_of(text: &str) -> Result<Vec<BenchRow>, csv::Error> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let headings = reader.headers()?.clone();
    let row = |record: Result<StringRecord, csv::Error>| {
        let record = record?;
        let mut cells: StringRecord = record.iter().map(of_cell).collect();
        cells.set_position(record.position().cloned());
        cells.deserialize(Some(&headings))
    };
    reader.records().map(row).collect()
}

/// The page: the machine's limits, a table for each operation, shape, device, batch and context, the meaning of the columns, notes, and
/// links to the files and figures (paths relative to the page).
pub fn markdown(bench: &Bench, plots: &[Figure]) -> String {
    let scenes = scenes(bench);
    let mut page = format!("# Bench\n\nOn this machine {}.\n", in_markdown(&roof_line(bench)));
    page.extend(scenes.iter().map(section));
    page.push_str("\n## How to read it\n\n");
    let lines = legend(&scenes).into_iter().chain(notes(bench));
    page.extend(lines.map(|line| format!("- {}\n", in_markdown(&line))));
    page.push_str("\n## Files\n\n");
    for (file, about) in [
        ("bench.csv", "the rows with all their fields"),
        ("bench.json", "the same rows"),
        ("manifest.json", "how they were made"),
    ] {
        let _ = writeln!(page, "- [{file}]({file}): {about}");
    }
    for Figure { file, title, .. } in plots {
        let _ = write!(page, "\n![{}](plots/{file})\n", in_markdown(title));
    }
    page
}

fn section(scene: &Scene) -> String {
    let columns = columns(&scene.rows);
    let mut text = format!("\n## {}\n\n{}\n", in_markdown(&scene.title()), in_markdown(&scene.conditions()));
    for context in scene.contexts() {
        let _ = write!(text, "\n### {} tokens\n\n", tokens(context));
        text.push_str(&line(["method", "params"].into_iter().chain(columns.iter().map(|column| column.heading))));
        text.push_str(&rule(2, columns.len()));
        for row in scene.at(context) {
            let name = [method_name(row), row.all_params()];
            text.push_str(&line(name.into_iter().chain(columns.iter().map(|column| (column.cell)(row)))));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::{bench, full, peer, row, sparse};
    use super::*;
    use spattn_lab::bench::BenchRow;

    #[test]
    fn csv_has_every_field_under_its_name() {
        let row = BenchRow {
            density: 0.05,
            time_us: 123.456,
            time_low_us: Some(120.5),
            speedup_vs_full: Some(3.25),
            bytes: 8192,
            limit_bytes: 4096,
            gbps: 14.5,
            flops: 1000,
            gflops: 2.5,
            bandwidth_share: Some(0.725),
            attend_us: Some(80.0),
            aux_bits: Some(32.0),
            aux_bytes: Some(4096),
            solved: "p=0.9".into(),
            ..row("quest", "density=0.05,page=16")
        };
        let text = csv(&bench(vec![row])).unwrap();
        let expected = "op,shape,device,dtype,threads,context,batch,layers,method,params,solved,peer,density,time_us,time_low_us,\
            time_high_us,rounds,spread,speedup_vs_full,bytes,limit_bytes,gbps,flops,gflops,bandwidth_share,limit_share,\
            score_us,score_low_us,score_high_us,pick_us,select_us,select_low_us,select_high_us,attend_us,attend_low_us,\
            attend_high_us,weights_us,weights_low_us,weights_high_us,index_ms,aux_bits,aux_bytes,\
            bus_bytes,bus_gbps,link_share,host_bytes,host_gbps,host_share\n\
            attention,llama3-8b,cpu,f32,2,4096,1,1,quest,\"density=0.05,page=16\",p=0.9,false,0.05,123.456,120.5,,9,0.01,3.25,8192,\
            4096,14.5,1000,2.5,0.725,,,,,,,,,80.0,,,,,,,32.0,4096,,,,,,\n";
        assert_eq!(text, expected);
        assert_eq!(csv(&bench(vec![])).unwrap().lines().count(), 1, "headings alone");
    }

    #[test]
    fn headings_are_the_fields() {
        let value = serde_json::to_value(full(4096)).unwrap();
        assert_eq!(value.as_object().unwrap().keys().collect::<Vec<_>>(), COLUMNS);
    }

    #[test]
    fn json_has_the_keys_that_scripts_rely_on() {
        let text = json(&bench(vec![full(4096), peer(4096)])).unwrap();
        let rows: Vec<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(&text).unwrap();
        assert!(rows.len() == 2 && text.starts_with("[\n  {\n    \"op\": \"attention\",\n"), "{text}");
        for key in [
            "op",
            "shape",
            "context",
            "batch",
            "method",
            "params",
            "density",
            "time_us",
            "time_low_us",
            "time_high_us",
            "speedup_vs_full",
            "bytes",
            "gbps",
            "bandwidth_share",
            "limit_share",
        ] {
            assert!(rows.iter().all(|row| row.contains_key(key)), "{key}");
        }
        assert_eq!((&rows[0]["context"], &rows[1]["time_low_us"]), (&4096.into(), &serde_json::Value::Null));
        assert_eq!(json(&bench(vec![])).unwrap(), "[]\n");
    }

    #[test]
    fn the_page_has_every_part() {
        let figure = Figure { file: "speedup.svg".into(), title: "Speed-up".into(), svg: String::new() };
        let loose = BenchRow { spread: 0.4, ..sparse("quest", 0.05, 4096) };
        let page = markdown(&bench(vec![full(4096), loose, peer(4096)]), &[figure]);
        for part in [
            "# Bench\n\nOn this machine the read bandwidth is 20.0 GB/s, ",
            "\n## attention, llama3-8b, batch 1, cpu\n\nf32, 2 threads, 1 layer\n\n### 4K tokens\n\n\
             | method | params | density | time | ×full | GB/s | bandwidth % | limit % |\n\
             |---|---|---:|---:|---:|---:|---:|---:|\n\
             | full |  | 1.00 | 100 µs | 1.00 |  |  |  |\n\
             | quest | density=0.05 | 0.0500 | 100 µs |  |  |  |  |\n\
             | torch_sdpa_bf16 (peer) |  | 1.00 | 100 µs |  |  |  |  |\n",
            "- the time of 1 row varies by more than 10 %: quest density=0.05 at 4K\n",
            "- [bench.csv](bench.csv): ",
            "\n![Speed-up](plots/speedup.svg)\n",
        ] {
            assert!(page.contains(part), "{part} is missing in\n{page}");
        }
    }
}
