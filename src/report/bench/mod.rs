//! The tables, CSV, JSON, page and figures of a benchmark.
//!
//! Rows with the same operation, shape, device and batch form one scene, with its own table and figures. Rows of other programs (peers) are
//! marked everywhere.

mod columns;
mod files;
mod latency;
mod roofline;
mod scene;
mod series;
mod speedup;
mod table;

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

pub use self::files::{COLUMNS, csv, is_bench, json, markdown, read};
pub use self::table::table;
use super::plots::Figure;
use spattn_lab::bench::Bench;

/// All figures of a benchmark, in the order to look at them: time against context if there are several contexts, time against density if a
/// method has several densities, the roofline if operations were counted, and speed-ups over `full`. Each operation, shape, device and
/// batch has its own; the file names contain what differs between them. A figure higher than a page continues in `name-2.svg` and so on.
///
/// # Errors
/// If a drawing fails, for which text output gives no cause.
pub fn figures(bench: &Bench) -> Result<Vec<Figure>> {
    let scenes = scene::scenes(bench);
    let all = |draw: &dyn Fn(&scene::Scene) -> Option<Result<Vec<Figure>>>| {
        scenes.iter().filter_map(draw).collect::<Result<Vec<_>>>().map(|figures| figures.concat())
    };
    Ok([
        all(&|scene| latency::against_context(scene, &scenes))?,
        all(&|scene| latency::against_density(scene, &scenes))?,
        all(&|scene| roofline::figure(scene, &scenes, &bench.roof))?,
        all(&|scene| speedup::figure(scene, &scenes))?,
    ]
    .concat())
}

/// Writes `bench.json`, `bench.csv`, `bench.md`, `manifest.json` and the figures (`plots/*.svg`, `plots/*.png`) into a folder, which is
/// created if needed. Returns the paths of the files.
///
/// # Errors
/// If a file cannot be written.
pub fn write(bench: &Bench, manifest: &Value, folder: &Path) -> Result<Vec<PathBuf>> {
    let figures = figures(bench)?;
    let files = vec![
        ("bench.json", json(bench)?),
        (files::ROWS, csv(bench)?),
        ("bench.md", markdown(bench, &figures)),
        (files::MANIFEST, serde_json::to_string_pretty(manifest)? + "\n"),
    ];
    super::write_files(files, &figures, folder)
}

/// Writes the page (`bench.md`) and the figures of a stored benchmark into a folder. Returns the paths of the files.
///
/// # Errors
/// If a file cannot be written.
pub fn draw(bench: &Bench, folder: &Path) -> Result<Vec<PathBuf>> {
    let figures = figures(bench)?;
    super::write_files(vec![("bench.md", markdown(bench, &figures))], &figures, folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_lab::bench::{BenchRow, Roof};

    /// Attention of one layer over 4K tokens on the processor, in 100 µs, with all else unknown.
    pub fn row(method: &str, params: &str) -> BenchRow {
        BenchRow {
            op: "attention".into(),
            shape: "llama3-8b".into(),
            device: "cpu".into(),
            dtype: "f32".into(),
            threads: 2,
            context: 4096,
            batch: 1,
            layers: 1,
            method: method.into(),
            params: params.into(),
            solved: String::new(),
            peer: false,
            density: 1.0,
            time_us: 100.0,
            time_low_us: None,
            time_high_us: None,
            rounds: 9,
            spread: 0.01,
            speedup_vs_full: None,
            bytes: 0,
            limit_bytes: 0,
            gbps: 0.0,
            flops: 0,
            gflops: 0.0,
            bandwidth_share: None,
            limit_share: None,
            score_us: None,
            score_low_us: None,
            score_high_us: None,
            pick_us: None,
            select_us: None,
            select_low_us: None,
            select_high_us: None,
            attend_us: None,
            attend_low_us: None,
            attend_high_us: None,
            weights_us: None,
            weights_low_us: None,
            weights_high_us: None,
            index_ms: None,
            aux_bits: None,
            aux_bytes: None,
            bus_bytes: None,
            bus_gbps: None,
            link_share: None,
            host_bytes: None,
            host_gbps: None,
            host_share: None,
        }
    }

    /// On a machine that reads 20 · 10⁹ bytes and computes 200 · 10⁹ operations per second.
    pub fn bench(rows: Vec<BenchRow>) -> Bench {
        Bench {
            rows,
            roof: Roof { read_gbps: 20.0, peak_gflops: 200.0, is_tiled: false, link_gbps: None, host_gbps: None },
            notes: Vec::new(),
        }
    }

    /// With a requested density that is met.
    pub fn sparse(method: &str, density: f64, context: usize) -> BenchRow {
        BenchRow { density, context, ..row(method, &format!("density={density}")) }
    }

    pub fn full(context: usize) -> BenchRow {
        BenchRow { context, speedup_vs_full: Some(1.0), ..row("full", "") }
    }

    pub fn peer(context: usize) -> BenchRow {
        BenchRow { context, peer: true, ..row("torch_sdpa_bf16", "") }
    }

    fn names(rows: Vec<BenchRow>) -> Vec<String> {
        figures(&bench(rows)).unwrap().into_iter().map(|figure| figure.file).collect()
    }

    #[test]
    fn figures_are_of_what_there_is() {
        assert!(names(vec![]).is_empty());
        assert!(
            names(vec![full(4096)]).is_empty(),
            "one context, no sparse setting, no operations, nothing beside full"
        );
        assert_eq!(names(vec![full(4096), full(8192)]), ["latency_vs_context.svg"]);
        assert_eq!(
            names(vec![full(4096), sparse("quest", 0.05, 4096), sparse("quest", 0.1, 4096)]),
            ["latency_vs_density.svg"]
        );
        let one_each = vec![full(4096), sparse("quest", 0.05, 4096), sparse("topk", 0.1, 4096)];
        assert!(names(one_each).is_empty(), "no method has two densities");
        assert_eq!(names(vec![BenchRow { flops: 10, bytes: 10, gflops: 1.0, ..full(4096) }]), ["roofline.svg"]);
        let faster = BenchRow { speedup_vs_full: Some(3.0), ..sparse("quest", 0.05, 4096) };
        assert_eq!(names(vec![full(4096), faster]), ["speedup.svg"]);
    }

    #[test]
    fn several_scenes_are_told_apart_by_file_name() {
        let of =
            |op: &str, batch| [4096, 8192].map(|context| BenchRow { op: op.into(), batch, ..full(context) }).to_vec();
        assert_eq!(
            names([of("attention", 1), of("attention", 8)].concat()),
            ["latency_vs_context_batch1.svg", "latency_vs_context_batch8.svg"]
        );
        assert_eq!(
            names([of("attention", 1), of("prefill", 1)].concat()),
            ["latency_vs_context_attention.svg", "latency_vs_context_prefill.svg"]
        );
    }

    #[test]
    fn a_folder_has_every_file() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("out");
        let paths = write(&bench(vec![full(4096), full(8192)]), &serde_json::json!({"seed": 1}), &place).unwrap();
        let names = ["bench.json", "bench.csv", "bench.md", "manifest.json"].map(|name| place.join(name));
        let plots = ["latency_vs_context.svg", "latency_vs_context.png"].map(|name| place.join("plots").join(name));
        assert_eq!(paths, [names.to_vec(), plots.to_vec()].concat());
        let read = |path: &Path| std::fs::read(path).unwrap();
        assert_eq!(read(&paths[3]), b"{\n  \"seed\": 1\n}\n");
        assert!(read(&paths[4]).starts_with(b"<svg") && read(&paths[5])[1..].starts_with(b"PNG"));
    }

    #[test]
    fn a_stored_bench_is_drawn_to_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let solved = BenchRow { solved: "K=9".into(), time_low_us: Some(2.5), aux_bytes: Some(7), ..peer(8192) };
        let bench = Bench { notes: vec!["a note, \"quoted\"".into()], ..bench(vec![full(4096), full(8192), solved]) };
        let machine = serde_json::json!({"read_gbps": 20.0, "peak_gflops": 200.0});
        let manifest = serde_json::json!({"machine": machine, "notes": bench.notes});
        let first = write(&bench, &manifest, folder.path()).unwrap();
        assert!(is_bench(folder.path()));
        let stored = super::read(folder.path()).unwrap();
        assert_eq!(stored, bench);
        let out = tempfile::tempdir().unwrap();
        let again = draw(&stored, out.path()).unwrap();
        assert_eq!(again.len(), 3, "the page and a figure of two forms");
        for path in again {
            let name = path.strip_prefix(out.path()).unwrap();
            let own = first.iter().find(|path| path.ends_with(name)).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(own).unwrap(), "{name:?}");
        }
    }
}
