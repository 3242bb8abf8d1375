//! Tests of the command line tool: the rows that it writes, and invalid input, which it refuses with one line and status 2.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LFS_POINTER: &str = "version https://git-lfs.github.com/spec/v1\n\
    oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";

/// The expected message, the arguments, and the files with their contents.
type Mistake = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Cases of invalid input. `TOKENIZER` stands for the built-in model's tokenizer.
const ROWS: &[Mistake] = &[
    ("not provided", "", &[]),
    ("cannot read nowhere.json", "--tokenizer nowhere.json --plan p.txt", &[("p.txt", "1024 1\n")]),
    ("t.json: not a tokenizer", "--tokenizer t.json --plan p.txt", &[("p.txt", "1024 1\n"), ("t.json", "{}")]),
    ("p.txt:1: not a batch: `x`", "--tokenizer TOKENIZER --plan p.txt", &[("p.txt", "x\n")]),
    (
        "p.txt:2: not a batch: `1024 99999999999`",
        "--tokenizer TOKENIZER --plan p.txt",
        &[("p.txt", "1024 1\n1024 99999999999\n")],
    ),
    ("unknown family of training rows `nia`", "--tokenizer TOKENIZER --plan p.txt", &[("p.txt", "1024 1 nia\n")]),
    ("invalid value 'x' for '--from <N>'", "--tokenizer t.json --plan p.txt --from x", &[]),
    ("invalid value '-1' for '--seed <S>'", "--tokenizer t.json --plan p.txt --seed -1", &[]),
    ("a value is required for '--out <FILE>'", "--tokenizer t.json --plan p.txt --out", &[]),
    ("cannot read", "--tokenizer TOKENIZER --plan p.txt --books nowhere", &[("p.txt", "1024 1\n")]),
    (
        "there is no text in books",
        "--tokenizer TOKENIZER --plan p.txt --books books",
        &[("p.txt", "1024 1\n"), ("books/a.txt", "short")],
    ),
    (
        "books/a.txt: a Git LFS pointer, not the file itself",
        "--tokenizer TOKENIZER --plan p.txt --books books",
        &[("p.txt", "1024 1\n"), ("books/a.txt", LFS_POINTER)],
    ),
    ("p.txt: a Git LFS pointer, not the file itself", "--tokenizer TOKENIZER --plan p.txt", &[("p.txt", LFS_POINTER)]),
    ("cannot read /dev/zero: it is a device, not a file", "--tokenizer TOKENIZER --plan /dev/zero", &[]),
    (
        "cannot read /dev/zero: it is a device, not a file",
        "--tokenizer /dev/zero --plan p.txt",
        &[("p.txt", "1024 1\n")],
    ),
];

fn tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/builtin/tokenizer.json")
}

/// Runs the tool in a folder with these files. Returns the exit status, standard output and standard error.
fn run(args: &str, files: &[(&str, &str)]) -> (Option<i32>, Vec<u8>, String) {
    let dir = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let args = args.replace("TOKENIZER", &tokenizer().display().to_string());
    let mut command = Command::new(env!("CARGO_BIN_EXE_train-rows"));
    let output = command.current_dir(dir.path()).args(args.split_whitespace()).output().unwrap();
    (output.status.code(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn every_mistake_is_refused_with_what_is_wrong() {
    for (said, args, files) in ROWS.iter().copied() {
        let (status, _, error) = run(args, files);
        assert_eq!(status, Some(2), "{args}: {error}");
        assert!(error.contains(said), "{args}: {error}");
        assert!(!error.contains("panicked") && error.starts_with("error: "), "{args}: {error}");
    }
}

#[test]
fn a_part_of_a_plan_gives_the_rows_of_the_whole() {
    let plan = ("p.txt", "256 2\n512 1\n256 3\n");
    let (status, whole, error) = run("--tokenizer TOKENIZER --plan p.txt --seed 7", &[plan]);
    assert_eq!(status, Some(0), "{error}");
    let (_, part, _) = run("--tokenizer TOKENIZER --plan p.txt --seed 7 --from 2", &[plan]);
    let header = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let bytes = |rows: usize, length: usize| 12 + rows * (1 + 3 * length);
    assert_eq!(whole.len(), header + bytes(2, 256) + bytes(1, 512) + bytes(3, 256));
    assert_eq!(part[..header], whole[..header]);
    assert_eq!(part[header..], whole[whole.len() - bytes(3, 256)..]);
}

/// Training can only continue with the same rows as long as the code that makes them does not change.
#[test]
fn rows_of_every_family_are_those_of_the_release() {
    let families = ["niah", "vt", "cwe", "fwe", "qa", "kv", "passkey", "copy"];
    let plan: String = families.iter().map(|family| format!("1024 6 {family}\n")).collect();
    let (status, rows, error) = run("--tokenizer TOKENIZER --plan p.txt", &[("p.txt", &(plan + "2048 12\n"))]);
    assert_eq!(status, Some(0), "{error}");
    assert_eq!(spattn_tasks::digest::of(&rows), "0598517b307a235e6a3d31456bf5e4df");
}
