use super::*;
use proptest::prelude::*;
use std::fs::File;
use std::io::Write;
use std::path::Path;

fn file(bytes: &[u8]) -> (tempfile::TempDir, RowSource) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    std::fs::write(&path, bytes).unwrap();
    (dir, RowSource::File(path))
}

fn has_x(row: &Row) -> Result<bool, UsageError> {
    Ok(row.required("x")? != "unwanted")
}

const MIXED: &[u8] =
    b"\xef\xbb\xbf{\"x\": \"1\"}\n\n{\"x\": 2}\n{\"x\": \"unwanted\"}\r\nnonsense\n\xff\xfe\n{\"x\": \"3\"}";

#[test]
fn tables_have_the_rows_that_their_writer_gave_them() {
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tables");
    let all = |path: &Path| {
        let rows = Rows::open(RowSource::open(path).unwrap(), false, |_| Ok(true)).unwrap();
        (0..rows.len()).map(|i| rows.read(i).unwrap().fields).collect::<Vec<_>>()
    };
    for name in ["ARC-Easy/test", "all/test", "data/validation", "main/test"] {
        let table = tables.join(format!("{name}-00000-of-00001.parquet"));
        let rows = all(&table);
        assert!(!rows.is_empty() && rows == all(&table.with_extension("jsonl")), "{name}: {rows:?}");
    }
    let error = RowSource::open(&tables.join("zstd.parquet")).unwrap_err();
    assert!(error.what.contains("zstd.parquet: ") && error.hint.unwrap().contains("Snappy"), "{}", error.what);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    for bytes in [&b""[..], b"PAR1", b"{\"x\": 1}\n"] {
        std::fs::write(&path, bytes).unwrap();
        assert!(RowSource::open(&path).unwrap_err().what.contains("x.parquet: "));
    }
    assert!(RowSource::open(&dir.path().join("none.parquet")).is_err());
}

#[test]
fn malformed_rows_are_counted_and_named_before_anything_runs() {
    let (_dir, source) = file(MIXED);
    let error = Rows::open(source, false, has_x).unwrap_err().downcast::<UsageError>().unwrap();
    assert!(
        error.what.contains("rows.jsonl:3: the field `x` is not text; 2 more of 6 rows are malformed (lines 5, 6)"),
        "{error}"
    );
    assert!(error.hint.unwrap().contains("--skip-bad"));
}

#[test]
fn skipping_them_is_noted() {
    let (_dir, source) = file(MIXED);
    let rows = Rows::open(source, true, has_x).unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows.read(0).unwrap().required("x").unwrap(), "1");
    let last = rows.read(1).unwrap();
    assert_eq!(last.required("x").unwrap(), "3");
    assert!(last.place.ends_with("rows.jsonl:7"));
    assert!(rows.note().unwrap().contains("3 malformed rows are left out (lines 3, 5, 6)"));
    assert!(rows.read(2).is_err());
}

#[test]
fn one_row_is_counted_as_one() {
    let (_dir, source) = file(b"{\"x\": \"1\"}\n3\n");
    let rows = Rows::open(source.clone(), true, has_x).unwrap();
    assert!(rows.note().unwrap().contains(": 1 malformed row is left out (line 2); the first: "));
    let (_dir, source) = file(b"{\"x\": \"1\"}\n3\n4\n");
    let error = Rows::open(source, false, has_x).unwrap_err().to_string();
    assert!(error.ends_with("; 1 more of 3 rows is malformed (line 3)"), "{error}");
}

#[test]
fn a_field_that_is_there_twice_is_refused() {
    for (row, twice) in [
        ("{\"x\": \"1\", \"x\": \"2\"}", true),
        ("{\"x\": \"1\", \"y\": 2, \"\\u0079\": 3}", true),
        ("{\"x\": \"1\", \"X\": \"2\"}", false),
        ("{\"x\": \"1\", \"y\": {\"x\": [\"x\"]}}", false),
    ] {
        let (_dir, source) = file(row.as_bytes());
        let error = Rows::open(source, false, has_x).err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(error.contains("is given twice"), twice, "{row}: {error}");
    }
}

#[test]
fn lines_that_end_in_cr_alone_are_told() {
    for bytes in
        [&b"{\"x\": \"1\"}\r{\"x\": \"2\"}\r"[..], b"{\"x\": \"1\"}\r\r{\"x\": \"2\"}", b"\r{\"x\": 1} \r {}\r"]
    {
        let (_dir, source) = file(bytes);
        let error = Rows::open(source, false, has_x).unwrap_err().downcast::<UsageError>().unwrap();
        assert!(error.what.ends_with("rows.jsonl:1: lines end in CR alone, not in LF or CR LF"), "{error}");
        assert!(error.hint.unwrap().contains("tr '\\r' '\\n'"));
    }
    for (bytes, what) in
        [(&b"{\"x\": \"1\"} {\"x\": \"2\"}\r\n"[..], "trailing characters"), (b"{\"x\": \"a\rb\"}", "control")]
    {
        let (_dir, source) = file(bytes);
        let error = Rows::open(source, false, has_x).unwrap_err().to_string();
        assert!(error.contains("not JSON: ") && error.contains(what), "{error}");
    }
    let (_dir, source) = file(b"{\"x\": \"1\"}\r\n{\"x\": \"2\"}\r\n");
    assert_eq!(Rows::open(source, false, has_x).unwrap().len(), 2);
}

#[test]
fn a_file_without_a_usable_row_is_refused_even_then() {
    for bytes in [&b""[..], b"\n \n", b"{}", b"\0\0"] {
        let (_dir, source) = file(bytes);
        assert!(Rows::open(source, true, has_x).is_err());
    }
}

/// Writes an archive with one member.
fn archive(path: &Path, member: &str, bytes: &[u8]) {
    let mut zip = zip::ZipWriter::new(File::create(path).unwrap());
    zip.start_file(member, zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(bytes).unwrap();
    zip.finish().unwrap();
}

#[test]
fn rows_in_an_archive_are_those_of_the_file() {
    let (dir, plain) = file(MIXED);
    let path = dir.path().join("data.zip");
    archive(&path, "data/rows.jsonl", MIXED);
    assert_eq!(RowSource::zipped(&path, "data/other.jsonl"), Ok(None));
    assert_eq!(RowSource::zipped(&path.with_extension("none"), "data/rows.jsonl"), Ok(None));
    let (torn, whole) = (path.with_extension("torn"), std::fs::read(&path).unwrap());
    std::fs::write(&torn, &whole[..whole.len() / 2]).unwrap();
    let error = RowSource::zipped(&torn, "data/rows.jsonl").unwrap_err();
    assert!(error.what.contains("cannot read") && error.hint.unwrap().contains("damaged"), "{}", error.what);
    let zipped = RowSource::zipped(&path, "data/rows.jsonl").unwrap().unwrap();
    assert_eq!(zipped.file_name(), plain.file_name());
    let (plain, zipped) = (Rows::open(plain, true, has_x).unwrap(), Rows::open(zipped, true, has_x).unwrap());
    assert_eq!(plain.len(), zipped.len());
    for index in 0..plain.len() {
        assert_eq!(plain.read(index).unwrap().fields, zipped.read(index).unwrap().fields);
    }
}

#[test]
fn lines_without_rows_are_not_read_for_ever() {
    let row = b"{\"x\": \"1\"}\n";
    let empty = |count: usize| [&row[..], &vec![b'\n'; count], row].concat();
    // The lines of a file, and the end of the error, if there is one.
    let malformed = vec![&b"x\n"[..]; MOST_MALFORMED + 1].concat();
    for (bytes, said) in [
        (empty(MOST_EMPTY), None),
        (empty(MOST_EMPTY + 1), Some("more than 1000000 empty lines")),
        ([malformed.as_slice(), row].concat(), Some("more than 100000 malformed rows")),
    ] {
        let (dir, plain) = file(&bytes);
        let path = dir.path().join("data.zip");
        archive(&path, "rows.jsonl", &bytes);
        for source in [plain, RowSource::zipped(&path, "rows.jsonl").unwrap().unwrap()] {
            let opened = Rows::open(source, true, has_x);
            match said {
                None => assert_eq!(opened.unwrap().len(), 2),
                Some(said) => assert!(opened.unwrap_err().to_string().ends_with(said)),
            }
        }
    }
}

#[test]
fn a_line_that_would_fill_the_memory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.zip");
    archive(&path, "data/rows.jsonl", &vec![b' '; LONGEST_LINE as usize + 2]);
    assert!(path.metadata().unwrap().len() < 1 << 20);
    let zipped = RowSource::zipped(&path, "data/rows.jsonl").unwrap().unwrap();
    let error = Rows::open(zipped, true, has_x).unwrap_err().to_string();
    assert!(error.ends_with("rows.jsonl:1: longer than 64 MiB"), "{error}");
}

proptest! {
    /// No bytes cause a panic, and every usable row can be read again.
    #[test]
    fn any_bytes_can_be_opened(bytes in proptest::collection::vec(prop_oneof![
        any::<u8>(), proptest::sample::select(b"\n\r{}[]\":,\\ux1 ".to_vec()),
    ], 0..300)) {
        let (_dir, source) = file(&bytes);
        if let Ok(rows) = Rows::open(source, true, |_| Ok(true)) {
            for index in 0..rows.len() {
                rows.read(index).unwrap();
            }
        }
    }

    /// Rows that are cut or changed at one byte cause no panic.
    #[test]
    fn damaged_rows_are_errors_and_no_panics(cut in 0usize..60, at in 0usize..60, byte in any::<u8>()) {
        let mut bytes = br#"{"x": "caf\u00e9 \ud83d\ude00", "y": [1, 2.5e3, null], "z": {"a": true}}"#.to_vec();
        let last = bytes.len() - 1;
        bytes[at.min(last)] = byte;
        bytes.truncate(bytes.len() - cut.min(last));
        let (_dir, source) = file(&bytes);
        let _ = Rows::open(source, false, has_x);
    }
}
