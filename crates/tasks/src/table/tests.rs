use std::io::Write as _;

use super::pages::{after_differences, unpack};
use super::parquet_fields::PAGE;
use super::thrift::Skimmed;
use super::*;
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::reader::ChunkReader;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

const TEXTS: &str = "message t { required binary x (UTF8); }";
const LISTS: &str = "message t { repeated binary x (UTF8); }";
const NUMBERS: &str = "message t { repeated int32 x; }";

fn properties() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_compression(Compression::SNAPPY)
}

/// A table with one column.
fn table(schema: &str, with: WriterPropertiesBuilder, write: impl FnOnce(&mut SerializedColumnWriter)) -> Arc<File> {
    let file = Arc::new(tempfile::tempfile().unwrap());
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(file.try_clone().unwrap(), schema, Arc::new(with.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    write(&mut column);
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    file
}

fn texts(schema: &str, with: WriterPropertiesBuilder, texts: &[&str], repetitions: Option<&[i16]>) -> Arc<File> {
    let texts: Vec<ByteArray> = texts.iter().map(|text| ByteArray::from(*text)).collect();
    let definitions = repetitions.map(|levels| vec![1; levels.len()]);
    table(schema, with, |column| {
        let written = column.typed::<ByteArrayType>().write_batch(&texts, definitions.as_deref(), repetitions);
        assert_eq!(written.unwrap(), texts.len());
    })
}

fn limits(file: &Arc<File>) -> Limits {
    Limits::of_file(file.metadata().unwrap().len())
}

/// The text of the error that the file is too large.
#[track_caller]
fn too_large(file: &Arc<File>, limits: &Limits) -> String {
    lines_within(file, limits).unwrap_err().downcast::<TooLarge>().unwrap().to_string()
}

#[test]
fn every_encoding_that_is_read_gives_the_same_rows() {
    let some: Vec<String> = (0..3000).map(|i| format!("text {} of {i}", i % 7)).collect();
    let some: Vec<&str> = some.iter().map(String::as_str).collect();
    let expected: String = some.iter().map(|text| format!("{{\"x\":\"{text}\"}}\n")).collect();
    let encodings = [Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY];
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        for packing in [Compression::SNAPPY, Compression::UNCOMPRESSED] {
            for encoding in encodings {
                let with = || properties().set_writer_version(version).set_compression(packing);
                let with = with().set_dictionary_enabled(false).set_encoding(encoding);
                for schema in [TEXTS, "message t { optional binary x (UTF8); }"] {
                    let levels = vec![1; some.len()];
                    let file = match schema == TEXTS {
                        true => texts(schema, with.clone(), &some, None),
                        false => table(schema, with.clone(), |column| {
                            let texts: Vec<ByteArray> = some.iter().map(|text| ByteArray::from(*text)).collect();
                            column.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None).unwrap();
                        }),
                    };
                    let lines = lines_within(&file, &limits(&file)).unwrap();
                    assert!(lines == expected.as_bytes(), "{version:?} {packing} {encoding} {schema}");
                }
            }
        }
    }
}

#[test]
fn lists_of_several_pages_are_read() {
    // Rows of one to five texts, with few texts on each page.
    let starts: Vec<i16> = (0..4000).map(|i| i16::from(![0, 1, 5, 8, 9].contains(&(i % 12)))).collect();
    let some = vec!["abc"; starts.len()];
    let with = properties().set_data_page_row_count_limit(7).set_write_batch_size(5);
    let file = texts(LISTS, with, &some, Some(&starts));
    let lines = lines_within(&file, &limits(&file)).unwrap();
    let lengths = String::from_utf8(lines).unwrap().lines().map(|line| line.matches("abc").count()).collect::<Vec<_>>();
    assert_eq!(lengths[..6], [1, 4, 3, 1, 3, 1]);
    assert_eq!(lengths.iter().sum::<usize>(), some.len());
}

#[test]
fn a_text_repeated_in_a_list_is_counted_before_it_is_copied() {
    let text = "x".repeat(1 << 13);
    let mut starts = vec![1; 9000];
    starts[0] = 0;
    let file = texts(LISTS, properties(), &vec![text.as_str(); starts.len()], Some(&starts));
    assert!(file.metadata().unwrap().len() < 3000);
    assert_eq!(too_large(&file, &limits(&file)), "row 1: its texts are longer than 64 MiB");
    let file = texts(TEXTS, properties(), &["\u{1}\u{1}"], None);
    let of = |row| Limits { row, ..limits(&file) };
    assert_eq!(too_large(&file, &of(1)), "row 1: its texts are longer than 1 bytes");
    assert_eq!(too_large(&file, &of(20)), "row 1: as JSON, it is longer than 20 bytes");
    assert!(lines_within(&file, &of(21)).is_ok());
}

#[test]
fn values_repeated_in_a_list_are_counted_before_they_are_read() {
    let most = limits(&Arc::new(tempfile::tempfile().unwrap())).list_values as usize;
    let of = |length: usize| {
        let mut levels = vec![1; length];
        levels[0] = 0;
        table(NUMBERS, properties(), |column| {
            let numbers = vec![7; length];
            column.typed::<Int32Type>().write_batch(&numbers, Some(&vec![1; length]), Some(&levels)).unwrap();
        })
    };
    let file = of(most + 1);
    assert!(file.metadata().unwrap().len() < 3000);
    let error = too_large(&file, &limits(&file));
    assert_eq!(error, format!("more than {most} values on the pages of a row's lists"));
    let (file, low) = (of(100), |list_values| Limits { list_values, ..limits(&of(1)) });
    assert!(lines_within(&file, &low(100)).is_ok() && lines_within(&file, &low(99)).is_err());
}

#[test]
fn repeated_rows_end_somewhere() {
    let file = texts(TEXTS, properties(), &["a long text, at times"; 1000], None);
    let of = |rows, bytes| Limits { rows, bytes, ..limits(&file) };
    let length = lines_within(&file, &of(1000, u64::MAX)).unwrap().len() as u64;
    assert_eq!(too_large(&file, &of(999, u64::MAX)), "more than 999 rows");
    assert!(lines_within(&file, &of(1000, length)).is_ok());
    let error = too_large(&file, &of(1000, length - 1));
    assert_eq!(error, format!("its rows are longer than {} bytes as JSON", length - 1));
}

#[test]
fn pages_that_state_more_than_they_hold_are_refused() {
    // 2^31 - 1 in Snappy's encoding of lengths.
    let error = unpack(b"ab", b"\xff\xff\xff\xff\x07abc").unwrap_err();
    assert!(error.to_string().contains("a page of 8 bytes states 2147483647 unpacked ones"), "{error}");
    let packed = snap::raw::Encoder::new().compress_vec(&[b'a'; 1 << 20]).unwrap();
    assert_eq!(unpack(b"ab", &packed).unwrap().len(), 2 + (1 << 20));
    assert_eq!(unpack(b"ab", b"").unwrap(), b"ab");

    // Blocks of 128 values in 4 parts, the number of values, the first value; then the block's least difference
    // and bit widths.
    assert_eq!(after_differences(b"\x80\x01\x04\x02\x00\x00\x00\x00\x00\x00rest"), Some(&b"rest"[..]));
    assert_eq!(after_differences(b"\x80\x01\x04\x01\x00rest"), Some(&b"rest"[..]));
    assert_eq!(after_differences(b"\x80\x01\x04\xff\xff\xff\xff\x07\x00\x00\x00\x00\x00\x00rest"), None);
    assert_eq!(after_differences(b"\x80\x01\x00\x02\x00\x00\x00\x00\x00\x00rest"), None);
    assert_eq!(after_differences(b"\x80\x01\x04\x02\x00\x00\x01\x00\x00\x00abc"), None);
}

#[test]
fn values_that_are_stated_but_not_there_are_refused() {
    // A list in an unknown field.
    const LIST: &[u8] = b"\xa9\xf1\xff\xff\xff\xff\x07";
    let written = |bytes: &[u8]| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Arc::new(file)
    };
    let error_of = |footer: &[u8]| {
        let file = written(&[b"PAR1", footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat());
        lines_within(&file, &limits(&file)).unwrap_err().to_string()
    };
    // A reader would skip more than eighty thousand million values.
    let error = error_of(&[&LIST.repeat(40)[..], b"\x00"].concat());
    assert_eq!(error, "its footer declares more values than it has bytes for");
    // A reader would take the number for the length of a column's name, and read on beyond the footer.
    let error = error_of(b"\x29\x1c\x45\x02\x00\x00");
    assert_eq!(error, "its footer has a value whose type the Parquet format does not allow there");

    // The same in a page header, in place of the end of a valid one.
    let honest = texts(TEXTS, properties(), &["a long text, and no other"], None);
    let mut bytes = honest.get_bytes(0, honest.metadata().unwrap().len() as usize).unwrap().to_vec();
    let mut skimmed = Skimmed::new(&bytes[4..]);
    skimmed.structure(PAGE, 0).unwrap();
    let end = bytes.len() - skimmed.bytes.len();
    bytes[end - 1..][..LIST.len()].copy_from_slice(LIST);
    let file = written(&bytes);
    let error = lines_within(&file, &limits(&file)).unwrap_err().to_string();
    assert_eq!(error, "the header of a page of the column \"x\" declares more values than it has bytes for");
}

#[test]
fn columns_that_state_too_much_are_refused() {
    let file = table("message t { required binary x (DECIMAL(2000000000, 1999999999)); }", properties(), |column| {
        column.typed::<ByteArrayType>().write_batch(&[ByteArray::from("1")], None, None).unwrap();
    });
    let error = lines_within(&file, &limits(&file)).unwrap_err().to_string();
    assert!(error.contains("the column \"x\" states numbers of 2000000000 digits"), "{error}");
}
