//! A run's folder: `manifest.json` and `samples.jsonl`, read and drawn as by `spattn report`, without PNG files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spattn::eval::records::manifest_keys::MANIFEST;
use spattn::eval::records::store::SAMPLES;
use spattn::report::pivot::{self, Layout};
use spattn::report::table::Form;
use spattn::report::{Report, csv, json, latex, markdown, merge, page, plots, table};
use spattn_fuzz::{files, folder, put, read, read_usage};

const LAYOUTS: [(&str, &str); 3] = [("method", "task"), ("k", "length"), ("model", "protocol")];

fuzz_target!(|input: &[u8]| {
    let parts = files(input);
    let dir = folder();
    for (runs, run) in parts.chunks(2).take(2).enumerate() {
        let run_dir = dir.path().join(format!("run{runs}"));
        for (file, bytes) in [MANIFEST, SAMPLES].into_iter().zip(run) {
            put(&run_dir, file, bytes);
        }
    }
    let Some(merged) = read(merge::read(&[dir.path().to_owned()])) else { return };
    let report = Report::of(&merged);
    let _ = (read(csv::render(&report.rows)), read(json::render(&report.rows)));
    let narrow = Form { width: Some(60), no_intervals: false };
    let _ = (table::render(&report, narrow), latex::summary(&report, false));
    let figures = read(plots::figures(&report, plots::MOST_PAGES)).unwrap_or_default();
    let samples = read(page::samples(&report)).unwrap_or_default();
    let _ = (markdown::render(&report, &[], &figures), read(page::render(&report, &figures, &samples)));
    for (rows, columns) in LAYOUTS {
        let names = |name: &str| vec![name.to_owned()];
        let values = ["score", "delta"].map(str::to_owned);
        let Some(layout) = read_usage(Layout::parse(&names(rows), &names(columns), &values, &report.rows)) else {
            continue;
        };
        let tables = pivot::tables(&report, &layout);
        let _ = (
            table::pivot(&tables, narrow),
            markdown::pivot(&tables),
            latex::pivot(&tables, true),
            read(pivot::csv(&tables)),
        );
    }
});
