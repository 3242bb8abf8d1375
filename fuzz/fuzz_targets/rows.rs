//! Rows and documents of every task that reads files. The first byte chooses the reader; the lowest bit of the second one says whether bad
//! rows are left out.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use spattn_fuzz::readers::{DOCUMENTS, READERS};
use spattn_fuzz::{choice, folder, open_task, put};

fuzz_target!(|input: &[u8]| -> Corpus {
    let Some((which, rest)) = choice(input, READERS.len() + DOCUMENTS.len()) else { return Corpus::Reject };
    let Some((skip_bad, bytes)) = choice(rest, 2) else { return Corpus::Reject };
    let reader = READERS.iter().chain(DOCUMENTS).nth(which).expect("one of them");
    let dir = folder();
    put(dir.path(), reader.file, bytes);
    open_task(reader.task, dir.path(), skip_bad == 1);
    Corpus::Keep
});
