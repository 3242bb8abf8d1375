use super::*;
use std::fs::File;

/// A tokenizer with one token for each byte of text and one in front.
struct Bytes;

impl TextEncoder for Bytes {
    fn encode(&self, text: &str) -> Result<TextTokens> {
        Ok(TextTokens { ids: text.bytes().map(u32::from).collect(), ends: (1..=text.len()).collect() })
    }

    fn front(&self) -> &[u32] {
        &[1]
    }
}

fn task(options: &str, texts: &[&str]) -> Box<dyn Task> {
    let dir = tempfile::tempdir().unwrap();
    for (i, text) in texts.iter().enumerate() {
        std::fs::write(dir.path().join(format!("{i}.txt")), text).unwrap();
    }
    std::fs::write(dir.path().join("notes.md"), "no text of ours").unwrap();
    let name = format!("ppl/file:{}{options}", dir.path().display());
    Perplexity.make(&name, &TaskOptions::default()).unwrap()
}

fn windows(task: &dyn Task, length: usize) -> Vec<(String, String)> {
    let task = task.likelihood().unwrap();
    let text = |ids: &[u32]| ids.iter().map(|id| char::from(*id as u8)).collect::<String>();
    (0..task.available(length, &Bytes).unwrap())
        .map(|i| task.passage(length, i, 0, &Bytes).unwrap())
        .map(|p| {
            assert_eq!((p.prompt[0], p.prompt.len() + p.continuations[0].tokens.len()), (1, length));
            (text(&p.prompt[1..]), text(&p.continuations[0].tokens))
        })
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn windows_follow_each_other_and_stay_within_their_text() {
    let task = task(":scored=2", &["abcdefghijk", "0123456"]);
    let expected = pairs(&[("ab", "cd"), ("01", "23"), ("ef", "gh")]);
    assert_eq!(windows(task.as_ref(), 5), expected);
    assert_eq!(windows(task.as_ref(), 12), pairs(&[("abcdefghi", "jk")]));
}

#[test]
fn a_stride_lets_windows_overlap() {
    let task = task(":scored=2,stride=2", &["abcdefgh"]);
    assert_eq!(windows(task.as_ref(), 5), pairs(&[("ab", "cd"), ("cd", "ef"), ("ef", "gh")]));
    assert!(task.name().ends_with(":scored=2,stride=2"), "{}", task.name());
}

#[test]
fn wikitext_is_read_as_lm_eval_reads_it_if_asked_and_counted_as_it_stands() {
    let file = " = A = \n \n one , two @-@ three \n";
    let passage = |options: &str| {
        let task = task(options, &[file]);
        let passage = task.likelihood().unwrap().passage(task_length(task.as_ref()), 0, 0, &Bytes).unwrap();
        (task.name().to_owned(), passage)
    };
    let (name, read) = passage(":scored=15,detokenize=true");
    assert!(name.ends_with(":scored=15,detokenize=true"), "{name}");
    let scored = &read.continuations[0];
    let text: String = scored.tokens.iter().map(|id| char::from(*id as u8)).collect();
    assert_eq!(text, "one, two-three\n");
    assert_eq!((scored.bytes, scored.words), (file.len() - file.find("one").unwrap(), 5));
    let (name, plain) = passage(":scored=15,detokenize=false");
    assert!(name.ends_with(":scored=15"), "{name}");
    assert_eq!((plain.continuations[0].bytes, plain.continuations[0].words), (15, 3));
    let hash = |source: &str| source.rsplit_once("sha256 ").map(|(_, hash)| hash.to_owned()).unwrap();
    assert_eq!(hash(&plain.source), hash(&read.source), "the file is the same");
    for (name, what) in
        [("ppl/wikitext2:detokenize=yes", "true or false"), ("ppl/pg19:detokenize=true", "plain text already")]
    {
        let error = Perplexity.make(name, &TaskOptions::default()).err().unwrap();
        assert!(error.to_string().contains(what), "{name}: {error}");
    }
}

/// The length of a window that holds the whole text of a task with one text.
fn task_length(task: &dyn Task) -> usize {
    let task = task.likelihood().unwrap();
    (1..200).rev().find(|length| task.available(*length, &Bytes).is_ok()).unwrap()
}

#[test]
fn words_count_where_they_begin() {
    let text = "one two  thr\u{e9}e";
    assert_eq!(words_beginning(text, 0, text.len()), 3);
    assert_eq!(words_beginning(text, 1, 5), 1, "the rest of a word is none");
    assert_eq!(words_beginning(text, 3, 4), 0);
    assert_eq!((0..text.len()).map(|at| words_beginning(text, at, at + 1)).sum::<usize>(), 3);
}

#[test]
fn what_does_not_fit_is_said() {
    let error = |task: &dyn Task, length: usize| {
        let error = task.likelihood().unwrap().available(length, &Bytes).unwrap_err();
        error.downcast::<UsageError>().unwrap().what
    };
    let short = task("", &["abc"]);
    assert!(error(short.as_ref(), 256).contains("no context before 256 scored"));
    assert!(error(short.as_ref(), 300).contains("has 3 tokens"));
    for (name, what) in [
        ("ppl/file:", "names no text"),
        ("ppl/file:/nowhere.txt", "cannot read /nowhere.txt"),
        ("ppl/wikitext2", "needs a text"),
        ("ppl/wikitext2:scored=0", "from 1"),
        ("ppl/wikitext2:score=4", "unknown option"),
    ] {
        let error = Perplexity.make(name, &TaskOptions::default()).err().unwrap();
        assert!(error.to_string().contains(what), "{name}: {error}");
    }
}

#[test]
fn packed_text_is_unpacked() {
    use std::io::Write as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("book.txt.gz");
    let mut packed = flate2::write::GzEncoder::new(File::create(&path).unwrap(), flate2::Compression::fast());
    packed.write_all("\u{feff}abcdef".as_bytes()).unwrap();
    packed.finish().unwrap();
    let task = Perplexity.make(&format!("ppl/file:{}:scored=1", path.display()), &TaskOptions::default()).unwrap();
    assert_eq!(task.name(), "ppl/file:book:scored=1");
    assert_eq!(windows(task.as_ref(), 4), pairs(&[("ab", "c"), ("de", "f")]));
}

#[test]
fn packed_text_that_would_fill_the_memory_is_refused() {
    use std::io::Write as _;
    let (most, path) = (2 << 20, Path::new("book.txt.gz"));
    for (length, fits) in [(most, true), (most + 1, false), (64 << 20, false)] {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(&vec![b'a'; length as usize]).unwrap();
        let packed = packer.finish().unwrap();
        match unpack(&mut MultiGzDecoder::new(&packed[..]), most, path) {
            Ok(bytes) => assert!(fits && bytes.len() as u64 == length, "{length}"),
            Err(error) => {
                assert!(!fits && error.what == "cannot read book.txt.gz: longer than 2 MiB unpacked", "{error}");
                assert!(error.hint.unwrap().contains("unpack it"));
            }
        }
    }
}

#[test]
fn known_texts_are_found_in_the_data_folder() {
    use std::io::Write as _;
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("pg19/test")).unwrap();
    std::fs::write(dir.path().join("wiki.test.raw"), "abcd").unwrap();
    std::fs::write(dir.path().join("pg19/test/1.txt"), "efgh").unwrap();
    let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
    // The same text in the published archive; its file has the same name, and so the same source in records.
    let zipped = tempfile::tempdir().unwrap();
    let mut zip = zip::ZipWriter::new(File::create(zipped.path().join("wikitext-2-raw-v1.zip")).unwrap());
    zip.start_file("wikitext-2-raw/wiki.test.raw", zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(b"abcd").unwrap();
    zip.finish().unwrap();
    let of = |folder: &Path| {
        let options = TaskOptions { data: Some(folder.to_owned()), ..TaskOptions::default() };
        let task = Perplexity.make("ppl/wikitext2:scored=2", &options).unwrap();
        format!("{:?}", task.likelihood().unwrap().passage(5, 0, 0, &Bytes).unwrap())
    };
    assert_eq!(of(zipped.path()), of(dir.path()));
    for (name, window) in [("ppl/wikitext2:scored=2", ("ab", "cd")), ("ppl/pg19:scored=2", ("ef", "gh"))] {
        assert_eq!(Perplexity.expand(name, &options), Some(vec![name.to_owned()]));
        let task = Perplexity.make(name, &options).unwrap();
        assert_eq!((task.name(), windows(task.as_ref(), 5)), (name, pairs(&[window])));
    }
    assert_eq!(Perplexity.expand("ppl/wikitext", &options), None);
}
