//! What is left out of files about the user: one choice for the process, made by `--anonymous` before anything is read.
//!
//! Only the last name of a path is kept; hosts and jobs become marks that only tell them apart; command lines are left out; a system
//! prompt becomes its hash. `docs/privacy.md` lists what is written otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

static LEFT_OUT: AtomicBool = AtomicBool::new(false);
/// Registered settings that contain paths and are not arguments.
static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Prefix of the names of models with random weights.
const RANDOM: &str = "random:";
/// Prefix of a hash.
const HASHED: &str = "sha256:";
/// Manifest keys whose values are paths or names on the hub.
const PATHS: [&str; 4] = ["data", "calibration", "model", "id"];
/// Manifest key of a command line.
const COMMAND: &str = "command";
const SYSTEM_PROMPT: &str = "system_prompt";

/// Leaves the user out of everything written from now on.
pub fn leave_out() {
    LEFT_OUT.store(true, Ordering::Relaxed);
}

/// Registers a path, or a setting that contains one: a path with blanks could not be recognised in other text.
pub fn tell_of(text: &str) {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
}

/// Whether the user is left out.
pub fn is_left_out() -> bool {
    LEFT_OUT.load(Ordering::Relaxed)
}

/// Returns a path for writing: unchanged, or only its last name.
pub fn path(path: &Path) -> String {
    if is_left_out() { name_of(path) } else { path.display().to_string() }
}

/// Returns a text that may contain paths (an error, a note, a task) for writing.
pub fn text(text: &str) -> String {
    if is_left_out() { without_paths(text, &known_paths()) } else { text.to_owned() }
}

/// Returns a system prompt for writing: unchanged, or its hash.
pub fn system_prompt(text: &str) -> String {
    if is_left_out() { hashed(text) } else { text.to_owned() }
}

/// Returns the command line for writing.
pub fn command() -> Vec<String> {
    // Arguments need not be UTF-8.
    let all = || std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    if is_left_out() { Vec::new() } else { all() }
}

/// Returns a mark for a machine, which only shows whether two are the same. `start` is known only during this run of the machine,
/// from boot to shutdown.
pub fn machine(host: &str, start: &str) -> String {
    format!("machine-{}", &digest(&[host, start])[..8])
}

/// Returns a mark for a scheduler's job in a folder. It has so few digits that very many jobs share it.
pub fn job(job: &str, folder: &Path) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    format!("job-{}", &digest(&[job, &folder.to_string_lossy()])[..4])
}

/// Returns the manifest without the user, with its [models] renamed. A manifest that is already anonymous stays unchanged.
pub fn manifest(manifest: &Value, models: &BTreeMap<String, String>) -> Value {
    Eraser { models, known: known_paths() }.without_user("", manifest)
}

/// Returns the anonymous names of the models of a run's manifest. Two folders with the same name are distinguished by the first
/// digits of their weights' hash.
pub fn models(manifest: &Value) -> BTreeMap<String, String> {
    let (mut weights, mut from_folders) = (BTreeMap::new(), BTreeSet::new());
    for identity in one_or_several(&manifest["identity"]) {
        let hash = identity["weights_sha256"].as_str().unwrap_or_default();
        weights.extend(identity["model"].as_str().map(|model| (model, hash)));
    }
    for model in one_or_several(&manifest["model"]) {
        // A model from the hub has a commit; one from a folder has none.
        from_folders.extend(model["id"].as_str().filter(|_| model["revision"].is_null()));
    }
    let name = |model: &str| match from_folders.contains(model) && !model.starts_with(RANDOM) {
        true => name_of(Path::new(model)),
        false => name_of_source(model),
    };
    let mut named: BTreeMap<String, String> = BTreeMap::new();
    for (model, hash) in &weights {
        let is_shared = weights.keys().any(|other| other != model && name(other) == name(model));
        let mut own = if is_shared { told_apart(&name(model), hash) } else { name(model) };
        while named.values().any(|other| *other == own) {
            own.push('\'');
        }
        named.insert((*model).to_owned(), own);
    }
    named
}

/// Returns the name of a model whose last name another model shares.
pub fn told_apart(name: &str, weights_sha256: &str) -> String {
    format!("{name}@{}", weights_sha256.chars().take(8).collect::<String>())
}

fn one_or_several(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
}

fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hashed(text: &str) -> String {
    let is_hash = |hash: &str| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    match text.strip_prefix(HASHED).is_some_and(is_hash) {
        true => text.to_owned(),
        false => format!("{HASHED}{}", Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect::<String>()),
    }
}

/// Returns the last name of a path.
fn name_of(path: &Path) -> String {
    let last = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    last(path).or_else(|| last(&path.canonicalize().ok()?)).unwrap_or_else(|| "folder".to_owned())
}

/// Rewrites a manifest.
struct Eraser<'a> {
    models: &'a BTreeMap<String, String>,
    known: Vec<(String, String)>,
}

impl Eraser<'_> {
    fn without_user(&self, key: &str, value: &Value) -> Value {
        match value {
            Value::Array(_) if key == COMMAND => Value::Array(Vec::new()),
            Value::String(text) if key == SYSTEM_PROMPT => hashed(text).into(),
            Value::String(text) if PATHS.contains(&key) => self.source(text).into(),
            Value::String(text) => without_paths(text, &self.known).into(),
            Value::Array(items) => items.iter().map(|item| self.without_user(key, item)).collect(),
            // With several models, calibrations are keyed by their names.
            Value::Object(fields) => {
                let field = |(name, value): (&String, &Value)| (self.source(name), self.without_user(name, value));
                Value::Object(fields.iter().map(field).collect::<Map<_, _>>())
            }
            other => other.clone(),
        }
    }

    fn source(&self, text: &str) -> String {
        self.models.get(text).cloned().unwrap_or_else(|| name_of_source(text))
    }
}

/// Returns the anonymous name of a model or a data set: the last name of a path. Names on the hub stay unchanged.
pub fn name_of_source(text: &str) -> String {
    let repo = text.split_once('@').map_or(text, |(repo, _)| repo);
    let is_repo = repo.matches('/').count() == 1 && !is_path(text) && !Path::new(text).exists();
    let is_hub = text.starts_with("hub:") || is_repo;
    match text.strip_prefix(RANDOM) {
        Some(shape) if shape.contains('/') => format!("{RANDOM}{}", name_of(Path::new(shape))),
        _ if is_hub || !text.contains('/') && !is_path(text) => text.to_owned(),
        _ => name_of(Path::new(text)),
    }
}

fn is_path(text: &str) -> bool {
    let begins = ["/", "~", "./", "../"].iter().any(|start| text.starts_with(start));
    begins && !text.starts_with("//") || matches!(text, "." | "..")
}

/// Returns the paths known to this process, longest first, each with its replacement.
fn known_paths() -> Vec<(String, String)> {
    let told = TOLD.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let arguments = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned());
    let environment = ["HOME", "HF_HOME", "HF_HUB_CACHE", "SPATTN_DATA"].into_iter().filter_map(std::env::var_os);
    let folders = std::env::current_dir().ok().into_iter().chain(environment.map(PathBuf::from));
    let folders = folders.map(|folder| folder.to_string_lossy().into_owned());
    let mut all: Vec<(String, String)> = arguments
        .chain(told)
        .flat_map(|text| parts(&text))
        .chain(folders)
        .filter(|text| text.len() > 1 && text.contains('/') && (is_path(text) || Path::new(text).exists()))
        .map(|text| (text.clone(), name_of(Path::new(&text))))
        .collect();
    all.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
    all.dedup();
    all
}

/// Returns the parts of an argument that may be paths: `--out=DIR`, `jsonl:PATH:metric=f1`.
fn parts(argument: &str) -> Vec<String> {
    argument.split(['=', ':', ',']).chain([argument]).map(str::to_owned).collect()
}

/// Replaces paths in a text with their last names: known paths, which may contain blanks, and whatever else looks like a path.
fn without_paths(text: &str, known: &[(String, String)]) -> String {
    const ENDS: [char; 18] =
        [' ', '\t', '\n', '"', '\'', '`', '(', ')', '[', ']', '{', '}', ',', ';', '=', ':', '<', '>'];
    let text = known.iter().fold(text.to_owned(), |text, (path, name)| whole_paths(&text, path, name));
    let mut out = String::with_capacity(text.len());
    // The user's rows and texts: `jsonl:PATH`, `ppl/file:PATH`.
    let names_file = |out: &str| out.ends_with("jsonl:") || out.ends_with("/file:");
    for piece in text.split_inclusive(ENDS) {
        let (word, end) = match piece.chars().next_back() {
            Some(last) if ENDS.contains(&last) => piece.split_at(piece.len() - last.len_utf8()),
            _ => (piece, ""),
        };
        match (is_path(word) || names_file(&out)) && word.contains('/') && word.len() > 1 {
            true => out.push_str(&name_of(Path::new(word))),
            false => out.push_str(word),
        }
        out.push_str(end);
    }
    out
}

/// Replaces `path` with `name`; a path below it is replaced with its last name.
fn whole_paths(text: &str, path: &str, name: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(path) {
        out.push_str(before);
        let is_inside = before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '~'));
        match (is_inside, after.strip_prefix('/')) {
            (true, _) => out.push_str(path),
            // The rest is later replaced as a separate path.
            (false, Some(_)) => out.push_str("/."),
            (false, None) => out.push_str(name),
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_are_the_names_at_their_ends() {
        let known = [("/home/al ice/my runs".to_owned(), "my runs".to_owned())];
        for (text, plain) in [
            ("cannot read /home/alice/x/rows.jsonl: no such file", "cannot read rows.jsonl: no such file"),
            ("jsonl:/home/alice/rows.jsonl:metric=f1", "jsonl:rows.jsonl:metric=f1"),
            ("ppl/file:../books/a.txt", "ppl/file:a.txt"),
            ("jsonl:mine/rows.jsonl", "jsonl:rows.jsonl"),
            ("ruler/vt at 4096, hip>topk:k=8", "ruler/vt at 4096, hip>topk:k=8"),
            ("see https://huggingface.co/org/model", "see https://huggingface.co/org/model"),
            ("`~/m` and ./n/ (or \"../o\")", "`m` and n (or \"o\")"),
            ("/home/al ice/my runs holds", "my runs holds"),
            ("/home/al ice/my runs/a/samples.jsonl:3: x", "samples.jsonl:3: x"),
            ("1 / 2, 3/4", "1 / 2, 3/4"),
        ] {
            assert_eq!(without_paths(text, &known), plain);
        }
    }

    #[test]
    fn sources_are_named_by_their_last_part() {
        for (source, name) in [
            ("builtin", "builtin"),
            ("org/model", "org/model"),
            ("org/model@main", "org/model@main"),
            ("hub:org/data@0123 (files: 2)", "hub:org/data@0123 (files: 2)"),
            ("/home/alice/models/qwen/", "qwen"),
            ("~/qwen", "qwen"),
            ("../qwen", "qwen"),
            ("models/a/qwen", "qwen"),
            // An existing path, whatever it looks like.
            ("src/text.rs", "text.rs"),
            ("random:/home/alice/config.json", "random:config.json"),
            ("random:llama-3.1-8b", "random:llama-3.1-8b"),
        ] {
            assert_eq!(name_of_source(source), name);
        }
    }

    fn without(stored: &Value) -> Value {
        manifest(stored, &models(stored))
    }

    #[test]
    fn folders_of_one_name_are_told_apart() {
        let identity = |model: &str, hash: &str| json!({"model": model, "weights_sha256": hash});
        let named = |all: &[Value]| models(&json!({ "identity": all })).into_values().collect::<Vec<_>>();
        let [a, b] = ["0123456789", "9876543210"];
        assert_eq!(named(&[identity("/a/q", a), identity("/b/q", b)]), ["q@01234567", "q@98765432"]);
        assert_eq!(named(&[identity("/a/q", a), identity("/b/q", a)]), ["q@01234567", "q@01234567'"]);
        assert_eq!(named(&[identity("/a/q", a), identity("/b/r", b)]), ["q", "r"]);
        // A folder that does not exist here; it is recognised because it has no commit.
        let of = |revision: Value| {
            models(&json!({"identity": identity("org/q", a), "model": {"id": "org/q", "revision": revision}}))
        };
        assert_eq!((&of(Value::Null)["org/q"], &of(json!("c0ffee"))["org/q"]), (&"q".to_owned(), &"org/q".to_owned()));
    }

    #[test]
    fn a_manifest_loses_the_user_and_nothing_else() {
        let stored = json!({
            "program": {"version": "0.1.0"}, "command": ["/home/alice/spattn", "eval", "--model", "/home/alice/q"],
            "identity": {"model": "/home/alice/q", "weights_sha256": "ab", "data": "/home/alice/d", "system_prompt": "I am Alice", "seed": 1},
            "calibration": {"/home/alice/q": {"loki": "cd"}},
            "config": {"model": ["/home/alice/q", "org/m"], "tasks": ["jsonl:/home/alice/r.jsonl", "ruler/vt"], "system_prompt": "I am Alice"},
            "model": [{"id": "/home/alice/q", "revision": null, "layers": 2}, {"id": "org/m", "revision": "0123"}],
            "resumed": [{"command": ["spattn", "/home/alice"]}],
        });
        let plain = without(&stored);
        let text = plain.to_string();
        assert!(!text.contains("lice") && !text.contains("home"), "{text}");
        assert_eq!(plain["identity"]["model"], "q");
        assert_eq!(plain["config"]["model"], json!(["q", "org/m"]));
        assert_eq!(plain["config"]["tasks"], json!(["jsonl:r.jsonl", "ruler/vt"]));
        assert_eq!((&plain["calibration"]["q"]["loki"], &plain["model"][1]["id"]), (&json!("cd"), &json!("org/m")));
        assert_eq!((&plain["command"], &plain["identity"]["seed"]), (&json!([]), &json!(1)));
        let prompt = plain["identity"]["system_prompt"].as_str().unwrap();
        assert_eq!((prompt.len(), &prompt[..7]), (7 + 64, "sha256:"));
        assert_eq!(without(&plain), plain, "once is enough");
    }

    #[test]
    fn marks_tell_apart_and_say_nothing() {
        assert_eq!(machine("node7", "boot"), machine("node7", "boot"));
        assert_ne!(machine("node7", "boot"), machine("node8", "boot"));
        let mark = job("123456_7", Path::new("."));
        assert!(!mark.contains("123456") && mark == job("123456_7", Path::new(".")), "{mark}");
        // Marks are so few that a list of all jobs does not reveal the job.
        let fitting =
            (0..200_000).filter(|n| job(&n.to_string(), Path::new("/x")) == job("7", Path::new("/x"))).count();
        assert!(fitting > 1);
    }
}
