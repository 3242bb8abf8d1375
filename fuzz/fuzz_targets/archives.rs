//! Zip archives, gzip and Parquet, in the places where tasks look for them.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use spattn_fuzz::{choice, folder, open_task, put};

/// A file, and the task that reads it.
const PLACES: [(&str, &str); 8] = [
    ("data.zip", "longbench/qasper"),
    ("rows.zip", "jsonl:{}/rows.zip/a/rows.jsonl"),
    ("wikitext-2-raw-v1.zip", "ppl/wikitext2:scored=8"),
    ("winogrande/winogrande_1.1.zip", "mcq/winogrande"),
    ("book.txt.gz", "ppl/file:{}/book.txt.gz:scored=8"),
    ("rows.parquet", "jsonl:{}/rows.parquet"),
    ("arc_easy/test.parquet", "mcq/arc_easy"),
    ("gsm8k/test.parquet", "gen/gsm8k_cot"),
];

fuzz_target!(|input: &[u8]| -> Corpus {
    let Some((which, bytes)) = choice(input, PLACES.len()) else { return Corpus::Reject };
    let (file, task) = PLACES[which];
    let dir = folder();
    put(dir.path(), file, bytes);
    open_task(task, dir.path(), false);
    Corpus::Keep
});
