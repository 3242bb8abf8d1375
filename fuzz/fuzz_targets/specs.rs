//! Values on the command line: methods, tasks, layers, protocols, shards, models, data, calibrations, pivot tables.
#![no_main]

use std::path::Path;

use libfuzzer_sys::{Corpus, fuzz_target};
use spattn::attention::methods::{configure, starts_command};
use spattn::attention::{DenseLayers, Policy, expand_grid};
use spattn::eval::calibration::calibrate::CalibrationOrder;
use spattn::eval::config::protocol::Protocol;
use spattn::eval::plan::contexts::Shard;
use spattn::model::data::DataSource;
use spattn::model::source::ModelSource;
use spattn::report::pivot::Layout;
use spattn::tasks::metrics::Metric;
use spattn::tasks::metrics::datasets::Dataset;
use spattn::tasks::{TaskOptions, resolve};
use spattn_fuzz::{choice, read, read_usage};

/// The most specs of a grid that are configured.
const CONFIGURED: usize = 20;
/// Tasks that read files of the user, of any kind and size.
const READS_FILES: [&str; 3] = ["jsonl:", "file:", "file="];

fuzz_target!(|input: &[u8]| -> Corpus {
    let Some((which, text)) = choice(input, 9) else { return Corpus::Reject };
    let Ok(text) = std::str::from_utf8(text) else { return Corpus::Reject };
    match which {
        0 => methods(text),
        1 if READS_FILES.iter().any(|part| text.contains(part)) => return Corpus::Reject,
        1 => tasks(text),
        2 => layers(text),
        3 => drop(read_usage(text.parse::<Protocol>())),
        4 => drop(read_usage(Shard::parse(text)).inspect(|shard| assert!(shard.index < shard.count))),
        5 => drop(read_usage(ModelSource::parse(text))),
        6 => drop(read_usage(DataSource::parse(Path::new(text)))),
        7 => drop(read_usage(CalibrationOrder::parse(&text.split(' ').map(str::to_owned).collect::<Vec<_>>()))),
        _ => names(text),
    }
    Corpus::Keep
});

/// A method's recorded label is read as the same method.
fn methods(text: &str) {
    // What a fuzzer writes is no command to run.
    let specs = read_usage(expand_grid(text)).unwrap_or_default();
    for spec in specs.iter().filter(|spec| !starts_command(spec)).take(CONFIGURED) {
        let Some(method) = read_usage(configure(spec, &Policy::default())) else { continue };
        let label = method.label();
        let again = expand_grid(&label).unwrap_or_else(|e| panic!("{label}: {e}"));
        let [again] = again.as_slice() else { panic!("{label} is a grid") };
        let again = configure(again, &Policy::default()).unwrap_or_else(|e| panic!("{label}: {e}"));
        assert_eq!(again.label(), label);
    }
}

fn tasks(text: &str) {
    for task in read(resolve(&[text.to_owned()], &TaskOptions::default())).unwrap_or_default() {
        assert!(!task.name().is_empty() && task.cells() > 0);
        let _ = (task.available(), task.is_sized(), task.notes());
    }
}

fn layers(text: &str) {
    let Some(layers) = read_usage(DenseLayers::parse(text)) else { return };
    let _ = ((0..33).any(|layer| layers.contains(layer, 32)), layers.highest());
    assert_eq!(DenseLayers::parse(&layers.to_string()).as_ref(), Ok(&layers), "{text}");
}

fn names(text: &str) {
    let _ = (read_usage(Metric::parse(text)), read_usage(Dataset::parse(text)));
    let list: Vec<String> = text.split(',').map(str::to_owned).collect();
    let (rows, columns) = list.split_at(list.len() / 2);
    let _ = read_usage(Layout::parse(rows, columns, &["score".to_owned()], &[]));
}
