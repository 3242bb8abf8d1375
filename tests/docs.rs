//! The README and the pages of `docs/` are true: their links work, their commands run, their lists are complete (`docs/lists.rs`). The
//! numbers that the papers' pages state are those measured (`docs/findings.rs`), and their results can be checked (`docs/results.rs`).
//!
//! A code block that begins with `sh` is run by a shell in a folder for the page, in the order of the page. The program is there as
//! `spattn` and in place of `cargo run`. A block `sh needs=...` needs something that a test does not have (a model, a GPU, a cluster, the
//! internet, numpy, minutes): the program parses its commands without running them. A block with `file=NAME` is written to the page's
//! folder.

#[path = "docs/cells.rs"]
mod cells;
#[path = "docs/findings.rs"]
mod findings;
#[path = "golden_model/names.rs"]
mod golden_model;
#[path = "docs/lists.rs"]
mod lists;
#[path = "docs/results.rs"]
mod results;

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use spattn::attention::methods::{configure, starts_command};
use spattn::attention::{Policy, expand_grid};
use spattn::tasks::{catalog, groups};
use tempfile::TempDir;

/// What a block may state that it needs.
const NEEDS: [&str; 6] = ["model", "gpu", "cluster", "internet", "minutes", "numpy"];

// ---- pages ----

/// A Markdown file of this repository.
struct Page {
    /// Path from the repository's root.
    name: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page(name: &str) -> Page {
    let text = fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    Page { name: name.to_owned(), text }
}

fn markdown_under(folder: &str) -> Vec<Page> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "md") {
                found.push(page(entry.strip_prefix(root()).unwrap().to_str().unwrap()));
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The README and the pages of `docs/`. Their commands are run.
fn manual() -> Vec<Page> {
    [page("README.md")].into_iter().chain(markdown_under("docs")).collect()
}

/// All pages whose links are checked. A release of the crate contains no results.
fn linked() -> Vec<Page> {
    let results = ["results/reference", "results/papers"].into_iter().filter(|folder| root().join(folder).is_dir());
    let readmes = results.flat_map(markdown_under).filter(|page| page.name.ends_with("README.md"));
    manual().into_iter().chain([page("ARCHITECTURE.md"), page("models/builtin/MODEL_CARD.md")]).chain(readmes).collect()
}

// ---- blocks ----

/// A fenced block of code.
#[derive(Debug, PartialEq)]
struct Block {
    /// Line of the fence, from 1.
    line: usize,
    /// The words after the fence.
    info: Vec<String>,
    text: String,
}

impl Block {
    fn value(&self, key: &str) -> Option<&str> {
        self.info.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    fn is_shell(&self) -> bool {
        self.info.first().is_some_and(|language| ["sh", "console"].contains(&language.as_str()))
    }
}

/// The blocks of a page, and the page's text without them.
fn blocks(text: &str) -> (Vec<Block>, String) {
    let (mut found, mut rest, mut open): (Vec<Block>, String, Option<Block>) = (Vec::new(), String::new(), None);
    for (i, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(info), None) => {
                let info = info.split_whitespace().map(str::to_owned).collect();
                open = Some(Block { line: i + 1, info, text: String::new() });
            }
            (None, Some(block)) => block.text += &format!("{line}\n"),
            (None, None) => rest += &format!("{line}\n"),
        }
    }
    assert!(open.is_none(), "a block is not closed");
    (found, rest)
}

// ---- links ----

/// The targets of a page's links and images, except in its blocks.
fn links(text: &str) -> Vec<&str> {
    let within = |begin: &'static str, end: char| {
        let spans = text.split('`').step_by(2);
        let rests = spans.flat_map(move |span| span.match_indices(begin).map(move |(at, _)| &span[at + begin.len()..]));
        rests.filter_map(move |rest| rest.split_once(end)).map(|(link, _)| link)
    };
    within("](", ')').chain(within("src=\"", '"')).collect()
}

/// The anchors that GitHub makes from a page's headings. Repeated ones are numbered.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut seen, mut anchors) = (HashMap::<String, usize>::new(), BTreeSet::new());
    let without_blocks = blocks(text).1;
    for heading in without_blocks.lines().filter(|line| line.starts_with('#')) {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let before = seen.entry(anchor.clone()).or_default();
        anchors.insert(if *before == 0 { anchor } else { format!("{anchor}-{before}") });
        *before += 1;
    }
    anchors
}

/// The fault of a link, if it has one.
fn broken(page: &Page, link: &str) -> Option<String> {
    if link.starts_with("https://") {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = match path {
        "" => root().join(&page.name),
        path => root().join(Path::new(&page.name).parent().unwrap()).join(path),
    };
    if !target.exists() {
        return Some(format!("{}: there is no `{path}`", page.name));
    }
    let text = anchor.map(|anchor| (anchor, fs::read_to_string(&target).unwrap_or_default()));
    text.filter(|(anchor, text)| !anchors(text).contains(*anchor))
        .map(|(anchor, _)| format!("{}: `{path}` has no heading `#{anchor}`", page.name))
}

#[test]
fn links_lead_somewhere() {
    let (mut wrong, mut followed) = (Vec::new(), 0);
    for page in linked() {
        let text = blocks(&page.text).1;
        let links = links(&text);
        followed += links.len();
        wrong.extend(links.iter().filter_map(|link| broken(&page, link)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(followed > 100, "links are found: {followed}");
}

#[test]
fn a_broken_link_is_told() {
    let page = Page { name: "docs/a.md".to_owned(), text: "# One `two`, three!\n\n# Same\n# Same\n".to_owned() };
    assert_eq!(anchors(&page.text).into_iter().collect::<Vec<_>>(), ["one-two-three", "same", "same-1"]);
    for (link, is_whole) in [
        ("https://example.org/nothing", true),
        ("../README.md", true),
        ("../README.md#reading-the-table", true),
        ("methods.md#combining", true),
        ("../README.md#no-such-heading", false),
        ("no-such-page.md", false),
    ] {
        assert_eq!(broken(&page, link).is_none(), is_whole, "{link}");
    }
    assert_eq!(links("[a](b.md#c) `[d](e)` ![f](g.svg) <img src=\"h.svg\">"), ["b.md#c", "g.svg", "h.svg"]);
}

// ---- commands ----

/// The words of a command, as a shell splits them.
type Words = Vec<String>;

/// The commands of a block. Quoted words stay whole, comments are left out, and lines that end in `\` are continued.
fn commands(text: &str) -> Vec<Words> {
    let (mut found, mut words, mut word, mut quote) = (Vec::new(), Words::new(), None::<String>, None);
    let joined = text.replace("\\\n", " ");
    let mut letters = joined.chars().peekable();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (letter, Some(end)) if letter == end => quote = None,
            (letter, Some(_)) => word.get_or_insert_default().push(letter),
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            ('#', None) if word.is_none() => while letters.next_if(|letter| *letter != '\n').is_some() {},
            ('\n' | ';' | '|' | '&', None) => {
                words.extend(word.take());
                found.push(std::mem::take(&mut words));
            }
            (space, None) if space.is_whitespace() => words.extend(word.take()),
            (letter, None) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    found.push(words);
    found.retain(|words| !words.is_empty());
    found
}

/// The arguments of a command that runs the program; `None` for other commands.
fn arguments(words: &[String]) -> Option<&[String]> {
    let runs_it = |words: &[String]| words.starts_with(&["cargo", "run"].map(str::to_owned));
    match words.split_first()? {
        (program, rest) if program == "spattn" => Some(rest),
        _ if runs_it(words) => words.iter().position(|word| word == "--").map(|at| &words[at + 1..]),
        _ => None,
    }
}

/// The fault of a command that is not run, as far as the program can tell without a model, by its flags and values, methods and parameters,
/// and tasks.
fn misspelt(arguments: &[String]) -> Option<String> {
    let words: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    if let Err(error) = spattn::cli::check_arguments(&words) {
        return Some(error);
    }
    let is_calibration = arguments[0] == "calibrate";
    let given = |flags: [&str; 2]| {
        let after = arguments.windows(2).filter(move |pair| flags.contains(&pair[0].as_str()));
        after.map(|pair| pair[1].clone()).collect::<Vec<_>>()
    };
    let methods = if is_calibration { Vec::new() } else { given(["-m", "--method"]) };
    let specs = methods.iter().map(|method| expand_grid(method).map_err(|e| e.to_string()));
    let wrong = specs.flat_map(|specs| match specs {
        Ok(specs) => {
            // Checking such a spec would start its command.
            let ours = specs.iter().filter(|spec| !starts_command(spec));
            ours.filter_map(|spec| configure(spec, &Policy::default()).err()?.to_string().into()).collect()
        }
        Err(error) => vec![error],
    });
    let tasks = given(["-t", "--task"]);
    let unknown = tasks.iter().flat_map(|tasks| tasks.split(',')).filter(|task| !is_task(task));
    wrong.chain(unknown.map(|task| format!("there is no task {task}"))).next()
}

/// Whether a task or a group has this name, or it is a task from a file.
fn is_task(name: &str) -> bool {
    let bare = name.split(':').next().unwrap_or_default();
    ["jsonl", "ppl/file"].contains(&bare)
        || catalog().iter().any(|task| task.name == bare)
        || groups().iter().any(|(group, _)| *group == bare)
}

#[test]
fn commands_are_read_as_a_shell_reads_them() {
    let text = "spattn eval -m 'topk:k={1,2}'  # \"words\"\nspattn a \\\n  b && cargo run --release -- c | head -1\n";
    let words = commands(text);
    let expected: [&[&str]; 4] = [
        &["spattn", "eval", "-m", "topk:k={1,2}"],
        &["spattn", "a", "b"],
        &["cargo", "run", "--release", "--", "c"],
        &["head", "-1"],
    ];
    assert_eq!(words, expected);
    let given: Vec<_> = words.iter().filter_map(|words| arguments(words)).collect();
    assert_eq!(given, [&["eval", "-m", "topk:k={1,2}"][..], &["a", "b"], &["c"]]);
    let told = |command: &str| misspelt(arguments(&commands(command)[0]).unwrap());
    assert_eq!(told("spattn eval --device cuda -t ruler/vt -m 'topk:k={1,2}' -m hip:k=64"), None);
    for wrong in [
        "spattn evall",
        "spattn eval --lenght 4K",
        "spattn eval -m topk:kk=3",
        "spattn eval -m tpok",
        "spattn eval -t ruler/vtt",
        "spattn bench attention --batch none",
    ] {
        assert!(told(wrong).is_some(), "{wrong}");
    }
}

#[test]
fn commands_that_need_more_than_there_is_are_spelt_right() {
    let (mut wrong, mut read) = (Vec::new(), 0);
    for page in manual() {
        for block in blocks(&page.text).0.iter().filter(|block| block.is_shell()) {
            let Some(needs) = block.value("needs") else { continue };
            assert!(NEEDS.contains(&needs), "{}:{}: needs={needs}", page.name, block.line);
            for command in commands(&block.text) {
                let Some(arguments) = arguments(&command) else { continue };
                read += 1;
                wrong
                    .extend(misspelt(arguments).map(|why| format!("{}:{}: {command:?}: {why}", page.name, block.line)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read > 30, "commands are found: {read}");
}

#[test]
fn every_command_of_the_program_is_in_a_block_that_is_checked() {
    for page in manual() {
        for block in blocks(&page.text).0.iter().filter(|block| !block.is_shell()) {
            // In a Cargo.toml, such a line is not a command.
            let is_command = |line: &str| {
                line.starts_with("cargo run") || line.starts_with("spattn ") && !line.starts_with("spattn = ")
            };
            let begins = block.text.lines().any(is_command);
            assert!(!begins, "{}:{}: a block of commands begins with ```sh", page.name, block.line);
        }
    }
}

// ---- commands that are run ----

/// A folder to put first in PATH. It has this program as `spattn`, and as a replacement for `cargo run`.
fn programs() -> TempDir {
    let programs = TempDir::new().unwrap();
    let spattn = env!("CARGO_BIN_EXE_spattn");
    let example = Path::new(spattn).with_file_name("examples").join("my_method");
    // `cargo test` builds the example, but `cargo test --test docs` does not.
    assert!(example.is_file(), "{} is not there: cargo build --release --example my_method", example.display());
    let cargo = format!(
        "case \"$*\" in\n\
         *'--example my_method -- '*) while [ \"$1\" != -- ]; do shift; done; shift; exec '{}' \"$@\";;\n\
         'run --release -- '*) shift 3; exec '{spattn}' \"$@\";;\n\
         *) echo \"a page runs cargo $*\" >&2; exit 9;;\n\
         esac\n",
        example.display()
    );
    for (name, script) in [("spattn", format!("exec '{spattn}' \"$@\"\n")), ("cargo", cargo)] {
        let path = programs.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    programs
}

/// Runs the blocks of a page in order. Returns the failures and the number of blocks run.
fn run_page(page: &Page, programs: &Path) -> (Vec<String>, usize) {
    let (folder, mut wrong, mut count) = (TempDir::new().unwrap(), Vec::new(), 0);
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    for block in blocks(&page.text).0 {
        if let Some(file) = block.value("file") {
            fs::write(folder.path().join(file), &block.text).unwrap();
        }
        if !block.is_shell() || block.value("needs").is_some() {
            continue;
        }
        count += 1;
        let mut shell = Command::new("bash");
        shell.args(["-e", "-c", &block.text]).current_dir(folder.path()).env("PATH", &path).env("HF_HUB_OFFLINE", "1");
        let ran = shell.output().unwrap();
        if !ran.status.success() {
            let stderr = String::from_utf8_lossy(&ran.stderr);
            wrong.push(format!("{}:{}: {}\n{}{stderr}", page.name, block.line, ran.status, block.text));
        }
    }
    (wrong, count)
}

/// Runs pages, two at a time. Returns the failures and the number of blocks run.
fn run_pages(pages: Vec<Page>) -> (Vec<String>, usize) {
    let programs = programs();
    let (left, results) = (Mutex::new(pages), Mutex::new((Vec::new(), 0)));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(page) = left.lock().unwrap().pop() else { return };
                    let (wrong, count) = run_page(&page, programs.path());
                    let mut results = results.lock().unwrap();
                    results.0.extend(wrong);
                    results.1 += count;
                }
            });
        }
    });
    results.into_inner().unwrap()
}

#[test]
fn commands_of_the_pages_run() {
    let (wrong, count) = run_pages(manual());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 15, "blocks are found: {count}");
}

#[test]
fn a_command_that_fails_is_told() {
    let text = "```toml file=a.toml\nlengths = [1024]\n```\n\n```sh\nspattn sweep a.toml --dry-run -t ruler/vt -n 1\n```\n\
                ```sh\nspattn list methods --jsn | cat\nspattn list tsks\n```\n```sh needs=gpu\nspattn nothing\n```\n";
    let (wrong, count) = run_pages(vec![Page { name: "a.md".to_owned(), text: text.to_owned() }]);
    assert_eq!(count, 2);
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].contains("a.md:8") && wrong[0].contains("tsks"), "{wrong:?}");
}

// ---- a user's own method ----

#[test]
fn the_page_shows_the_example_as_it_is() {
    let example = fs::read_to_string(root().join("examples/my_method.rs")).unwrap();
    let lines: BTreeSet<&str> = example.lines().map(str::trim).collect();
    let page = page("docs/adding-a-method.md");
    let blocks = blocks(&page.text).0;
    let shown: Vec<&str> = blocks.iter().filter(|b| b.info == ["rust"]).flat_map(|block| block.text.lines()).collect();
    assert!(shown.len() > 5, "it shows some of it");
    for line in shown {
        let code = line.split_once("//").map_or(line, |(code, _)| code).trim();
        assert!(lines.contains(code), "docs/adding-a-method.md: `{code}` is not in examples/my_method.rs");
    }
}

/// Runs the example like a user's crate.
fn my_method(arguments: &[&str]) -> (bool, String, String) {
    let programs = programs();
    let mut command = Command::new(programs.path().join("cargo"));
    command.args(["run", "--release", "--example", "my_method", "--"]).args(arguments);
    let ran = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ran.status.success(), text(&ran.stdout), text(&ran.stderr))
}

/// The rows of a run's summary: method, score, density and output error.
fn rows(folder: &Path) -> Vec<(String, f64, f64, f64)> {
    let mut summary = csv::Reader::from_path(folder.join("summary.csv")).unwrap();
    let rows: Vec<HashMap<String, String>> = summary.deserialize().map(|row| row.unwrap()).collect();
    let number = |row: &HashMap<String, String>, key: &str| row[key].parse().unwrap_or(f64::NAN);
    let row = |row: &HashMap<String, String>| {
        let name = format!("{}:{}", row["method"], row["params"]);
        (name, number(row, "score"), number(row, "density"), number(row, "output_error"))
    };
    rows.iter().map(row).collect()
}

#[test]
fn a_method_of_a_users_own_has_the_whole_command_line() {
    let (ok, listed, _) = my_method(&["list", "methods", "my_method"]);
    assert!(ok && listed.contains("whole blocks by the mean of their keys"), "{listed}");
    let (_, all, _) = my_method(&["list", "methods", "--json"]);
    assert!(all.contains("\"my_method\"") && all.contains("\"magicpig\""), "its own and the others");
    let (ok, _, hint) = my_method(&["eval", "-m", "my_methd"]);
    assert!(!ok && hint.contains("did you mean `my_method`?"), "{hint}");
    let (ok, _, refused) = my_method(&["eval", "-m", "my_method:blok=3"]);
    assert!(!ok && refused.contains("blok"), "{refused}");
    for shell in ["bash", "zsh", "fish"] {
        let (_, script, _) = my_method(&["completions", shell]);
        assert!(script.contains("my_method") && script.contains("magicpig"), "{shell}");
    }
}

#[test]
fn a_method_of_a_users_own_is_evaluated_like_the_others() {
    let out = TempDir::new().unwrap();
    let folder: PathBuf = out.path().join("run");
    let specs = ["my_method:density=1", "my_method:block=8,density=0.4", "my_method:k=16", "random:density=0.4"];
    let mut arguments = vec!["eval", "-t", "ruler/niah_single_2", "-l", "512", "-n", "3", "--fidelity", "--quiet"];
    specs.iter().for_each(|spec| arguments.extend(["-m", spec]));
    arguments.extend(["--out", folder.to_str().unwrap()]);
    let (ok, _, stderr) = my_method(&arguments);
    assert!(ok, "{stderr}");
    let rows = rows(&folder);
    let row =
        |spec: &str| rows.iter().find(|row| row.0.starts_with(spec)).unwrap_or_else(|| panic!("{spec}: {rows:?}"));
    let (full, all) = (row("full"), row("my_method:block=16,density=1"));
    assert!((all.1, all.2) == (full.1, 1.0) && all.3 < 1e-4, "with everything selected it is full attention: {rows:?}");
    let some = row("my_method:block=8,density=0.4");
    assert!((some.2 - 0.4).abs() < 0.03, "the density that was asked for: {rows:?}");
    assert!(some.3 < row("random").3, "nearer to full attention than chance: {rows:?}");
}
