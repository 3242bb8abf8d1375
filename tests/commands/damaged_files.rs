//! Files that fuzzers found (`fuzz/`), byte for byte, and similar ones.

use std::fs;
use std::path::Path;

use spattn::tasks::rows::RowSource;

/// A table of the tests of rows, with the byte at `at` changed to `to`.
fn changed(name: &str, at: usize, to: u8) -> Vec<u8> {
    let table =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/tables/{name}-00000-of-00001.parquet"));
    let mut bytes = fs::read(table).unwrap();
    bytes[at] = to;
    bytes
}

#[test]
fn a_table_that_makes_its_reader_panic_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    // The position of a column becomes negative.
    fs::write(&path, changed("data/validation", 1315, 5)).unwrap();
    let error = RowSource::open(&path).unwrap_err();
    assert!(error.what.contains("rows.parquet: it is damaged: ") && error.hint.is_some(), "{error}");
}

#[test]
fn a_table_whose_dictionary_would_fill_the_memory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    // The third dictionary has 24 bytes, but claims to have 63 texts.
    fs::write(&path, changed("data/validation", 233, 126)).unwrap();
    let error = RowSource::open(&path).unwrap_err();
    assert!(error.what.contains("rows.parquet: a dictionary of 24 bytes states 63 values"), "{error}");

    // The file that the fuzzer found claims a thousand million texts, and has other damage.
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/damaged/dictionary.parquet");
    let error = RowSource::open(&table).unwrap_err();
    assert!(error.what.contains("dictionary.parquet: ") && !error.what.contains('\n'), "{error}");
}

/// The peak memory of this process in MiB, if the system reports it.
fn peak() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok()).unwrap_or(0) >> 10
}

#[test]
fn a_page_that_states_two_gibibytes_takes_no_room_for_them() {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/damaged/unpacked.parquet");
    let error = RowSource::open(&table).unwrap_err();
    assert!(error.what.contains("unpacked.parquet: ") && !error.what.contains('\n'), "{error}");
    assert!(peak() < 512, "{} MiB", peak());
}

#[test]
fn a_table_with_any_byte_changed_is_read_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    let length = changed("main/test", 0, b'P').len();
    for at in 0..length {
        for to in [0, 5, 0x7f, 0x80, 0xff] {
            fs::write(&path, changed("main/test", at, to)).unwrap();
            if let Err(error) = RowSource::open(&path) {
                assert!(error.what.contains("rows.parquet: ") && !error.what.contains('\n'), "{at} {to}: {error}");
            }
        }
    }
}
