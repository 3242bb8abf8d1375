//! Downloads from a misbehaving hub. Two servers stand in for the public hub: the hub itself, and on another host the store that it
//! redirects to for large files.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha1::{Digest, Sha1};
use spattn::error::{RunFailure, UsageError};
use spattn::model::OpenModel;
use spattn::model::checksum::{Digest as Hash, Expected, hex, sha256_hex};
use spattn::model::data::DataSource;
use spattn::model::download::{Downloader, Job};
use spattn::model::http::{Client, Timeouts};
use spattn::model::hub::{HubOptions, cached_models};
use spattn::model::source::{ModelFiles, ModelSource};
use spattn::model::tokenizer::TokenizerOptions;
use tempfile::TempDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const WEIGHTS: &str = "model.safetensors";
const TOKEN: &str = "hf_secret";

// --- The hub and its store ---

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Host {
    Hub,
    Store,
}

/// A request as a server received it.
#[derive(Debug, Clone)]
struct Asked {
    host: Host,
    method: String,
    path: String,
    authorization: Option<String>,
    range: Option<String>,
    /// The number of earlier requests to this host with the same method and path.
    earlier: usize,
}

impl Asked {
    fn is_content(&self) -> bool {
        self.method == "GET" && !self.path.starts_with("/api/")
    }

    /// A request for the content of the weights.
    fn is_weights(&self) -> bool {
        self.host == Host::Store && self.is_content() && self.path.ends_with(WEIGHTS)
    }
}

/// How a request is answered wrongly, or rightly.
#[derive(Debug, Clone, Copy)]
enum Behaviour {
    Right,
    /// With this status, and these further headers.
    Status(&'static str, &'static str),
    /// The body ends after this many bytes, although all bytes were announced.
    Torn(usize),
    /// The body ends after this many bytes, and no length was announced.
    TornUnannounced(usize),
    /// Nothing is sent for this long.
    Silent(Duration),
    /// This many bytes are sent, then nothing for this long.
    Stalled(usize, Duration),
    /// Correct, but slow.
    Slow(Duration),
    /// This many bytes are sent, then one byte at each interval.
    Trickling(usize, Duration),
    /// One bit of the first byte is flipped.
    Flipped,
    /// One byte too many is sent, unannounced.
    Longer,
    /// The whole file is sent, whatever part is requested.
    WithoutRanges,
    /// Another part than the requested one is sent.
    OtherPart,
    /// No header states the part, the length or the end.
    Unannounced,
}

type Behaviours = Arc<dyn Fn(&Asked) -> Behaviour + Send + Sync>;

struct Hub {
    address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    files: Arc<BTreeMap<String, Vec<u8>>>,
}

struct Server {
    host: Host,
    /// The address of the store.
    store: String,
    files: Arc<BTreeMap<String, Vec<u8>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
    behave: Behaviours,
}

impl Hub {
    /// A hub with these files as the model `org/model` and the data set `org/data`.
    fn start(files: BTreeMap<String, Vec<u8>>, behave: impl Fn(&Asked) -> Behaviour + Send + Sync + 'static) -> Self {
        Self::with_store_at("localhost", files, behave)
    }

    fn with_store_at(
        name: &str,
        files: BTreeMap<String, Vec<u8>>,
        behave: impl Fn(&Asked) -> Behaviour + Send + Sync + 'static,
    ) -> Self {
        let (files, asked, behave) = (Arc::new(files), Arc::new(Mutex::new(Vec::new())), Arc::new(behave));
        let [hub, store] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = format!("http://{}", hub.local_addr().unwrap());
        let store_address = format!("http://{name}:{}", store.local_addr().unwrap().port());
        for (host, listener) in [(Host::Hub, hub), (Host::Store, store)] {
            let server = Arc::new(Server {
                host,
                store: store_address.clone(),
                files: files.clone(),
                asked: asked.clone(),
                behave: behave.clone(),
            });
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let server = server.clone();
                    // Each connection has a thread, because one may stall while others continue.
                    std::thread::spawn(move || server.serve(stream.unwrap()));
                }
            });
        }
        Self { address, asked, files }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The ranges of the weights that were requested from the store.
    fn ranges(&self) -> Vec<Option<String>> {
        self.asked().into_iter().filter(Asked::is_weights).map(|asked| asked.range).collect()
    }

    fn weights(&self) -> &[u8] {
        &self.files[WEIGHTS]
    }
}

impl Server {
    fn serve(&self, stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let request = lines.next().unwrap_or_default();
        let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let header = |name: &str| {
            let found = headers.iter().filter_map(|h| h.split_once(": ")).find(|(n, _)| n.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_owned())
        };
        let mut words = request.split(' ').map(str::to_owned);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let asked = {
            let mut all = self.asked.lock().unwrap();
            let same = |a: &&Asked| a.host == self.host && a.method == method && a.path == path;
            let earlier = all.iter().filter(same).count();
            let (authorization, range) = (header("authorization"), header("range"));
            all.push(Asked { host: self.host, method, path, authorization, range, earlier });
            all.last().unwrap().clone()
        };
        // The client may have closed the connection.
        let _ = self.answer(stream, &asked);
    }

    fn answer(&self, mut stream: TcpStream, asked: &Asked) -> std::io::Result<()> {
        let behaviour = (self.behave)(asked);
        if let Behaviour::Status(status, more) = behaviour {
            return write!(stream, "HTTP/1.1 {status}\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n");
        }
        if let Behaviour::Silent(pause) = behaviour {
            std::thread::sleep(pause);
            return Ok(());
        }
        let path = asked.path.trim_start_matches("/datasets");
        if path.starts_with("/api/") {
            let siblings: Vec<Value> = self.files.keys().map(|name| json!({ "rfilename": name })).collect();
            let gguf = self.files.values().find_map(|file| gguf_architecture(file));
            let gguf = gguf.map(|architecture| json!({ "architecture": architecture, "total": 1 }));
            let listing = json!({ "sha": COMMIT, "siblings": siblings, "gguf": gguf }).to_string();
            return content(&mut stream, asked, behaviour, listing.as_bytes(), "");
        }
        let Some((repo, name)) = path.split_once(&format!("/resolve/{COMMIT}/")) else {
            return write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        };
        let file = &self.files[name];
        match (self.host, name) {
            (Host::Hub, name) if name == WEIGHTS || name.ends_with(".gguf") => write!(
                stream,
                "HTTP/1.1 302 Found\r\nX-Repo-Commit: {COMMIT}\r\nX-Linked-Etag: \"{}\"\r\nX-Linked-Size: {}\r\nETag: \"of no use\"\r\n\
                 Location: {}{repo}/resolve/{COMMIT}/{name}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                sha256_hex(file),
                file.len(),
                self.store
            ),
            _ => content(
                &mut stream,
                asked,
                behaviour,
                file,
                &format!("X-Repo-Commit: {COMMIT}\r\nETag: \"{}\"\r\n", git_hash(file)),
            ),
        }
    }
}

/// The architecture that a GGUF file names, as the hub reads it.
fn gguf_architecture(file: &[u8]) -> Option<String> {
    const KEY: &[u8] = b"general.architecture";
    let at = file.starts_with(b"GGUF").then(|| file.windows(KEY.len()).position(|window| window == KEY))?? + KEY.len();
    // The type of the value, its length, then the text.
    let length = u64::from_le_bytes(file[at + 4..at + 12].try_into().unwrap()) as usize;
    Some(String::from_utf8(file[at + 12..at + 12 + length].to_vec()).unwrap())
}

/// Answers with a file, or with the requested part of it.
fn content(
    stream: &mut TcpStream,
    asked: &Asked,
    behaviour: Behaviour,
    file: &[u8],
    more: &str,
) -> std::io::Result<()> {
    let range = asked.range.as_ref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let range = range.filter(|_| !matches!(behaviour, Behaviour::WithoutRanges));
    let start: Option<usize> = range.map(|(start, _)| start.parse().unwrap());
    let end = range.and_then(|(_, last)| last.parse::<usize>().ok()).map_or(file.len(), |last| last + 1);
    if start.is_some_and(|start| start >= file.len()) {
        return write!(stream, "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    let start = match behaviour {
        Behaviour::OtherPart => start.map(|start| start + 1),
        _ => start,
    };
    let mut body = file[start.unwrap_or(0)..end.min(file.len())].to_vec();
    let length = match behaviour {
        Behaviour::Longer | Behaviour::TornUnannounced(_) | Behaviour::Unannounced => String::new(),
        _ => format!("Content-Length: {}\r\n", body.len()),
    };
    let head = match start {
        None => "200 OK\r\n".to_owned(),
        Some(start) => {
            format!(
                "206 Partial Content\r\nContent-Range: bytes {start}-{}/{}\r\n",
                end.min(file.len()) - 1,
                file.len()
            )
        }
    };
    write!(stream, "HTTP/1.1 {head}{more}{length}Connection: close\r\n\r\n")?;
    if asked.method == "HEAD" {
        return Ok(());
    }
    match behaviour {
        Behaviour::Torn(bytes) | Behaviour::TornUnannounced(bytes) => body.truncate(bytes),
        Behaviour::Flipped => body[0] ^= 1,
        Behaviour::Longer => body.push(0),
        Behaviour::Slow(pause) => {
            let (first, second) = body.split_at(body.len() / 2);
            stream.write_all(first)?;
            std::thread::sleep(pause);
            return stream.write_all(second);
        }
        Behaviour::Trickling(bytes, pause) => {
            stream.write_all(&body[..bytes])?;
            for byte in &body[bytes..] {
                stream.write_all(&[*byte])?;
                std::thread::sleep(pause);
            }
            return Ok(());
        }
        Behaviour::Stalled(bytes, pause) => {
            stream.write_all(&body[..bytes])?;
            std::thread::sleep(pause);
            return Ok(());
        }
        _ => {}
    }
    stream.write_all(&body)
}

fn git_hash(content: &[u8]) -> String {
    hex(&Sha1::new_with_prefix(format!("blob {}\0", content.len())).chain_update(content).finalize())
}

// --- The files to download ---

/// A small checkpoint with the built-in tokenizer.
fn checkpoint() -> BTreeMap<String, Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (golden, builtin) = (root.join("tests/golden/models/qwen3"), root.join("models/builtin"));
    let read = |folder: &Path, name: &str| (name.to_owned(), fs::read(folder.join(name)).unwrap());
    [
        read(&golden, "config.json"),
        read(&golden, WEIGHTS),
        read(&builtin, "tokenizer.json"),
        read(&builtin, "tokenizer_config.json"),
    ]
    .into()
}

/// The built-in model, which can be run.
fn built_in() -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/builtin");
    let read = |name: &str| (name.to_owned(), fs::read(folder.join(name)).unwrap());
    ["config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"].map(read).into()
}

fn options(cache: &TempDir, hub: &Hub) -> HubOptions {
    HubOptions {
        timeouts: Timeouts { answer: Duration::from_secs(10), stall: Duration::from_secs(10) },
        backoff: Duration::from_millis(1),
        progress: false,
        ..HubOptions::new(cache.path(), Some(hub.address.clone()))
    }
}

fn fetch(options: &HubOptions) -> anyhow::Result<ModelFiles> {
    ModelSource::parse("org/model").unwrap().resolve_with(options)
}

fn root(cache: &TempDir) -> PathBuf {
    cache.path().join("models--org--model")
}

fn cached(cache: &TempDir, name: &str) -> PathBuf {
    root(cache).join("snapshots").join(COMMIT).join(name)
}

fn blob(cache: &TempDir, hub: &Hub) -> PathBuf {
    root(cache).join("blobs").join(sha256_hex(hub.weights()))
}

fn assert_whole(cache: &TempDir, hub: &Hub) {
    for (name, content) in hub.files.iter() {
        assert!(fs::read(cached(cache, name)).unwrap() == *content, "{name} is not what the hub has");
    }
}

/// Whether no file could be mistaken for the complete weights.
fn is_absent(cache: &TempDir, hub: &Hub) -> bool {
    !blob(cache, hub).exists() && !cached(cache, WEIGHTS).exists()
}

/// The message and hint of an error, and whether it is the user's mistake.
fn told(error: &anyhow::Error) -> (String, String, bool) {
    let usage = error.downcast_ref::<UsageError>().map(|e| (e.what.clone(), e.hint.clone().unwrap_or_default(), true));
    let failure = error.downcast_ref::<RunFailure>().map(|e| (e.what.clone(), e.hint.clone(), false));
    let told = usage.or(failure).unwrap_or_else(|| panic!("no hint: {error:#}"));
    assert!(!told.0.contains('\n') && !told.1.contains('\n') && !told.1.is_empty(), "{told:?}");
    told
}

/// Downloads from a hub whose store answers the first requests for the weights like this, and all others correctly.
fn with_weights_served(first: &'static [Behaviour]) -> (Hub, TempDir, anyhow::Result<ModelFiles>) {
    let hub = Hub::start(checkpoint(), move |asked| match asked.is_weights() {
        true => first.get(asked.earlier).copied().unwrap_or(Behaviour::Right),
        false => Behaviour::Right,
    });
    let cache = TempDir::new().unwrap();
    let found = fetch(&options(&cache, &hub));
    (hub, cache, found)
}

fn ranges(hub: &Hub) -> Vec<String> {
    hub.ranges().into_iter().map(Option::unwrap_or_default).collect()
}

// --- Refusals before a download ---

/// Files whose `config.json` has some keys changed.
fn with_config(mut files: BTreeMap<String, Vec<u8>>, changes: &Value) -> BTreeMap<String, Vec<u8>> {
    let mut config: Value = serde_json::from_slice(&files["config.json"]).unwrap();
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    files.insert("config.json".to_owned(), config.to_string().into_bytes());
    files
}

#[test]
fn a_model_that_cannot_be_run_is_refused_before_its_weights_are_asked_for() {
    let quantised = json!({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": true}});
    for (changes, said) in [
        (json!({"architectures": ["Glm4MoeForCausalLM"]}), "`Glm4MoeForCausalLM` is not supported"),
        (quantised, "the weights are quantised (bitsandbytes, 8 bits)"),
        (json!({"rope_scaling": {"rope_type": "proportional"}}), "`proportional` is not supported"),
        (
            json!({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2}}),
            "`rope_scaling`",
        ),
        (json!({"eos_token_id": 256}), "256 is beyond the vocabulary of 256"),
    ] {
        let (hub, cache) =
            (Hub::start(with_config(checkpoint(), &changes), |_| Behaviour::Right), TempDir::new().unwrap());
        let (what, _, is_usage) = told(&fetch(&options(&cache, &hub)).unwrap_err());
        assert!(what.contains("config.json: ") && what.contains(said) && is_usage, "{what}");
        let paths: Vec<String> =
            hub.asked().into_iter().map(|asked| format!("{} {}", asked.method, asked.path)).collect();
        let refused = cached_models(&options(&cache, &hub)).remove(0).refused;
        assert!(refused.is_some_and(|why| why.starts_with("config.json: ") && why.contains(said)), "doctor says so");
        let config = format!("/org/model/resolve/{COMMIT}/config.json");
        assert_eq!(
            paths,
            ["GET /api/models/org/model/revision/main".to_owned(), format!("HEAD {config}"), format!("GET {config}")]
        );
    }
}

#[test]
fn a_repository_without_safetensors_is_refused_by_its_list_of_files() {
    for (file, said) in [
        ("model.Q4_K_M.gguf", "GGUF weights of llama.cpp"),
        ("pytorch_model.bin", "weights in PyTorch's pickle format"),
        ("consolidated.00.pth", "the layout of Meta or Mistral"),
        ("adapter_model.safetensors", "a PEFT adapter"),
        ("onnx/model.onnx", "an ONNX model"),
        ("README.md", "no safetensors weights"),
    ] {
        for with_config in [true, false] {
            let mut files = checkpoint();
            files.remove(WEIGHTS);
            files.insert(file.to_owned(), vec![0; 1000]);
            if !with_config {
                files.remove("config.json");
            }
            let said = if file == "README.md" && !with_config { "no config.json" } else { said };
            let (hub, cache) = (Hub::start(files, |_| Behaviour::Right), TempDir::new().unwrap());
            let (what, hint, is_usage) = told(&fetch(&options(&cache, &hub)).unwrap_err());
            assert!(
                what.starts_with("org/model: this repository has no ") && what.contains(said) && is_usage,
                "{what}"
            );
            assert!(!hint.is_empty());
            assert_eq!(hub.asked().len(), 1, "the list of files alone is asked for: {:?}", hub.asked());
        }
    }
}

// --- GGUF files ---

const GGUF: &str = "m-Q4_K_M.gguf";

/// A repository with one model in three types, one of them in a subfolder.
fn gguf_repository() -> BTreeMap<String, Vec<u8>> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf/mixed.gguf");
    let model = fs::read(golden).unwrap();
    let names = ["README.md", GGUF, "m-Q8_0.gguf", "BF16/m-BF16.gguf", "mmproj-BF16.gguf"];
    names.map(|name| (name.to_owned(), if name == "README.md" { b"read".to_vec() } else { model.clone() })).into()
}

fn fetch_named(spec: &str, options: &HubOptions) -> anyhow::Result<ModelFiles> {
    ModelSource::parse(spec).unwrap().resolve_with(options)
}

#[test]
fn a_gguf_file_of_a_repository_is_fetched_by_its_name_or_its_type() {
    for (spec, file) in [
        ("org/model/m-Q4_K_M.gguf", GGUF),
        ("org/model:Q4_K_M", GGUF),
        ("org/model:q8_0@main", "m-Q8_0.gguf"),
        ("org/model:BF16", "BF16/m-BF16.gguf"),
        ("org/model/BF16/m-BF16.gguf@main", "BF16/m-BF16.gguf"),
    ] {
        let (hub, cache) = (Hub::start(gguf_repository(), |_| Behaviour::Right), TempDir::new().unwrap());
        let found = fetch_named(spec, &options(&cache, &hub)).unwrap();
        assert_eq!((found.id.as_str(), found.revision.as_deref()), (spec, Some(COMMIT)));
        assert_eq!(found.weights.sha256().unwrap(), sha256_hex(&hub.files[file]));
        let asked: Vec<String> = hub.asked().into_iter().map(|asked| asked.path).collect();
        assert!(asked[1..].iter().all(|path| path.ends_with(file)), "only the file is asked for: {asked:?}");
        // Fetch it again, and without a network.
        let before = hub.asked().len();
        fetch_named(spec, &options(&cache, &hub)).unwrap();
        let offline = HubOptions { offline: true, ..options(&cache, &hub) };
        assert_eq!(fetch_named(spec, &offline).unwrap().id, spec);
        assert_eq!(hub.asked().len(), before);
        let there: Vec<String> = cached_models(&offline).into_iter().map(|model| model.id).collect();
        assert_eq!(there, [format!("org/model/{file}")]);
    }
}

#[test]
fn a_gguf_file_that_is_not_there_is_told_with_those_that_are() {
    let (hub, cache) = (Hub::start(gguf_repository(), |_| Behaviour::Right), TempDir::new().unwrap());
    for (spec, said) in [
        ("org/model/x.gguf", "org/model: this repository has no `x.gguf`"),
        ("org/model:Q5_K_M", "org/model: no GGUF file of this repository is named `Q5_K_M`"),
    ] {
        let (what, hint, is_usage) = told(&fetch_named(spec, &options(&cache, &hub)).unwrap_err());
        assert!(what == said && is_usage, "{what}");
        assert_eq!(hint, "it has `BF16/m-BF16.gguf`, `m-Q4_K_M.gguf`, `m-Q8_0.gguf`");
    }
    let (what, hint, _) = told(&fetch(&options(&cache, &hub)).unwrap_err());
    assert!(
        what.contains("it holds GGUF weights of llama.cpp") && hint.contains("ORGANISATION/NAME/FILE.gguf"),
        "{what}"
    );
    let offline = HubOptions { offline: true, ..options(&cache, &hub) };
    let (what, _, _) = told(&fetch_named("org/model:Q8_0", &offline).unwrap_err());
    assert!(what.starts_with("org/model: a GGUF file named `Q8_0` is not in the cache"), "{what}");
}

#[test]
fn a_gguf_model_that_cannot_be_run_is_refused_before_it_is_asked_for() {
    let mut files = gguf_repository();
    // A name of the same length as `llama`.
    files.values_mut().for_each(|file| {
        let key = b"general.architecture";
        if let Some(at) = file.windows(key.len()).position(|window| window == key) {
            file[at + key.len() + 12..][..5].copy_from_slice(b"mamba");
        }
    });
    let (hub, cache) = (Hub::start(files, |_| Behaviour::Right), TempDir::new().unwrap());
    let (what, hint, is_usage) = told(&fetch_named("org/model:Q8_0", &options(&cache, &hub)).unwrap_err());
    assert!(
        what.contains("`mamba` is not supported in GGUF files") && hint.contains("llama, qwen2") && is_usage,
        "{what}"
    );
    assert_eq!(hub.asked().len(), 1);
}

#[test]
fn a_gguf_file_that_was_cut_off_or_damaged_in_the_cache_is_found() {
    let (hub, cache) = (Hub::start(gguf_repository(), |_| Behaviour::Right), TempDir::new().unwrap());
    let spec = "org/model:Q4_K_M";
    fetch_named(spec, &options(&cache, &hub)).unwrap();
    let (path, whole) = (cached(&cache, GGUF), &hub.files[GGUF]);
    fs::write(&path, &whole[..whole.len() - 100]).unwrap();
    let found = fetch_named(spec, &options(&cache, &hub)).unwrap();
    assert_eq!(found.weights.sha256().unwrap(), sha256_hex(whole));
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&path, damaged).unwrap();
    let error = fetch_named(spec, &options(&cache, &hub)).unwrap().weights.sha256().unwrap_err().to_string();
    assert!(error.contains("damaged: its SHA-256 is"), "{error}");
}

// --- The token ---

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    // The store is on another host, or at another port of the same host.
    for store in ["localhost", "127.0.0.1"] {
        let hub = Hub::with_store_at(store, checkpoint(), |asked| match asked.is_weights() && asked.earlier == 0 {
            true => Behaviour::Torn(1000),
            false => Behaviour::Right,
        });
        let cache = TempDir::new().unwrap();
        fetch(&HubOptions { token: Some(TOKEN.to_owned()), ..options(&cache, &hub) }).unwrap();
        assert_whole(&cache, &hub);
        let (of_hub, of_store): (Vec<Asked>, Vec<Asked>) = hub.asked().into_iter().partition(|a| a.host == Host::Hub);
        let bearer = format!("Bearer {TOKEN}");
        assert!(of_hub.iter().all(|a| a.authorization.as_deref() == Some(&bearer)), "{of_hub:#?}");
        assert!(of_store.iter().any(|a| a.range.is_some()), "the resumed request is among them");
        assert!(of_store.iter().all(|a| a.authorization.is_none()), "{of_store:#?}");
    }
}

#[test]
fn the_token_follows_a_model_that_was_renamed() {
    let hub = Hub::start(checkpoint(), |asked| match asked.path.as_str() {
        path if path.starts_with("/org/model/") && path.ends_with("/config.json") => Behaviour::Status(
            "307 Temporary Redirect",
            "Location: /org/renamed/resolve/0123456789abcdef0123456789abcdef01234567/config.json\r\n",
        ),
        _ => Behaviour::Right,
    });
    let cache = TempDir::new().unwrap();
    fetch(&HubOptions { token: Some(TOKEN.to_owned()), ..options(&cache, &hub) }).unwrap();
    assert_whole(&cache, &hub);
    let renamed: Vec<Asked> = hub.asked().into_iter().filter(|a| a.path.starts_with("/org/renamed/")).collect();
    assert!(renamed.len() == 2 && renamed.iter().all(|a| a.authorization.is_some()), "{renamed:#?}");
}

// --- Incomplete and wrong files ---

#[test]
fn the_cache_is_laid_out_as_other_tools_expect_it() {
    let (hub, cache, found) = with_weights_served(&[]);
    found.unwrap();
    assert_whole(&cache, &hub);
    assert_eq!(fs::read_to_string(root(&cache).join("refs/main")).unwrap(), COMMIT);
    for (name, content) in hub.files.iter() {
        let version = if name == WEIGHTS { sha256_hex(content) } else { git_hash(content) };
        #[cfg(unix)]
        assert_eq!(fs::read_link(cached(&cache, name)).unwrap(), Path::new("../../blobs").join(&version));
        assert!(root(&cache).join("blobs").join(&version).is_file());
        assert!(cache.path().join(".locks/models--org--model").join(format!("{version}.lock")).is_file());
    }
    let blobs = fs::read_dir(root(&cache).join("blobs")).unwrap().count();
    assert_eq!(blobs, hub.files.len(), "nothing unfinished is left");
}

#[test]
fn a_download_goes_on_after_connections_that_break() {
    const FIRST: &str = "";
    let cases: [(&[Behaviour], &[&str]); 6] = [
        (&[Behaviour::Torn(1000)], &[FIRST, "bytes=1000-"]),
        (&[Behaviour::TornUnannounced(1000)], &[FIRST, "bytes=1000-"]),
        (
            &[Behaviour::Torn(1000), Behaviour::Torn(24), Behaviour::Torn(0)],
            &[FIRST, "bytes=1000-", "bytes=1024-", "bytes=1024-"],
        ),
        (&[Behaviour::Torn(1000), Behaviour::WithoutRanges], &[FIRST, "bytes=1000-"]),
        // A wrong part is not appended to the file.
        (&[Behaviour::Torn(1000), Behaviour::Unannounced], &[FIRST, "bytes=1000-"]),
        (&[Behaviour::Status("503 Service Unavailable", ""), Behaviour::Status("502 Bad Gateway", "")], &[FIRST; 3]),
    ];
    for (behaviours, expected) in cases {
        let (hub, cache, found) = with_weights_served(behaviours);
        found.unwrap_or_else(|e| panic!("{behaviours:?}: {e:#}"));
        assert_whole(&cache, &hub);
        assert_eq!(ranges(&hub), expected, "{behaviours:?}");
    }
}

#[test]
fn a_file_that_arrives_wrong_once_is_fetched_again() {
    let cases: [&[Behaviour]; 4] = [
        &[Behaviour::Flipped],
        &[Behaviour::Longer],
        // A part that continues with another file.
        &[Behaviour::Torn(1000), Behaviour::Flipped],
        &[Behaviour::Torn(1000), Behaviour::OtherPart],
    ];
    for behaviours in cases {
        let (hub, cache, found) = with_weights_served(behaviours);
        found.unwrap_or_else(|e| panic!("{behaviours:?}: {e:#}"));
        assert_whole(&cache, &hub);
    }
}

#[test]
fn a_file_that_stays_wrong_is_refused_by_name_and_never_cached() {
    let sha256 = sha256_hex(&checkpoint()[WEIGHTS]);
    let size = checkpoint()[WEIGHTS].len();
    let cases: [(Behaviour, String); 2] = [
        (Behaviour::Flipped, format!("that of the published file {sha256}")),
        (Behaviour::Longer, format!("it has more than the {size} bytes of the published file")),
    ];
    for (behaviour, why) in cases {
        let hub = Hub::start(checkpoint(), move |a| if a.is_weights() { behaviour } else { Behaviour::Right });
        let cache = TempDir::new().unwrap();
        for run in 1..=2 {
            let (what, hint, is_usage) = told(&fetch(&options(&cache, &hub)).unwrap_err());
            assert!(
                what.starts_with(
                    "org/model: `model.safetensors` cannot be downloaded: the download differs from the published file"
                ),
                "{what}"
            );
            assert!(what.ends_with(&why) && !is_usage, "{what}");
            assert!(hint.contains("proxies and mirrors; the same command downloads the file again"), "{hint}");
            assert!(is_absent(&cache, &hub));
            assert_eq!(hub.ranges(), vec![None; 2 * run], "each time from the start, and twice");
        }
    }
}

#[test]
fn small_files_are_checked_as_well() {
    let flipped = |asked: &Asked| asked.method == "GET" && asked.path.ends_with("/config.json");
    let hub = Hub::start(checkpoint(), move |a| if flipped(a) { Behaviour::Flipped } else { Behaviour::Right });
    let cache = TempDir::new().unwrap();
    let (what, ..) = told(&fetch(&options(&cache, &hub)).unwrap_err());
    let stated = git_hash(&hub.files["config.json"]);
    assert!(
        what.contains("`config.json`") && what.contains("its git blob SHA-1 is ") && what.ends_with(&stated),
        "{what}"
    );
    assert!(!cached(&cache, "config.json").exists());
}

#[test]
fn files_of_data_sets_are_checked_as_well() {
    let files: BTreeMap<String, Vec<u8>> = [("squad/dev-v2.0.json".to_owned(), b"{\"data\": []}".to_vec())].into();
    let fetch = |wrong: usize| {
        let hub = Hub::start(files.clone(), move |asked| match asked.is_content() && asked.earlier < wrong {
            true => Behaviour::Flipped,
            false => Behaviour::Right,
        });
        let cache = TempDir::new().unwrap();
        let source = DataSource::parse(Path::new("hub:org/data")).unwrap();
        let found = source.resolve_with(&["squad/dev-v2.0.json"], &options(&cache, &hub));
        found.map(|found| fs::read(found.folder.join("squad/dev-v2.0.json")).unwrap())
    };
    assert_eq!(fetch(1).unwrap(), files["squad/dev-v2.0.json"]);
    let (what, ..) = told(&fetch(2).unwrap_err());
    assert!(
        what.starts_with(
            "org/data: `squad/dev-v2.0.json` cannot be downloaded: the download differs from the published file"
        ),
        "{what}"
    );
}

// --- Parts of an earlier download ---

#[test]
fn parts_are_taken_up_if_they_are_of_this_file() {
    let whole = checkpoint()[WEIGHTS].clone();
    let mut other = whole.clone();
    other[7] ^= 1;
    let longer = [&whole[..], b"x"].concat();
    let cases: [(&str, &[u8], &[&str]); 6] = [
        ("incomplete", &whole, &[]),
        ("part", &whole, &[]),
        ("incomplete", &whole[..500], &["bytes=500-"]),
        ("part", &whole[..500], &["bytes=500-"]),
        // Parts of another file are noticed at the end, and the download starts again.
        ("incomplete", &other, &[""]),
        ("incomplete", &longer, &[""]),
    ];
    for (ending, part, expected) in cases {
        let hub = Hub::start(checkpoint(), |_| Behaviour::Right);
        let cache = TempDir::new().unwrap();
        fs::create_dir_all(root(&cache).join("blobs")).unwrap();
        fs::write(blob(&cache, &hub).with_extension(ending), part).unwrap();
        fetch(&options(&cache, &hub)).unwrap();
        assert_whole(&cache, &hub);
        assert_eq!(ranges(&hub), expected, "{} bytes as .{ending}", part.len());
        assert!(!blob(&cache, &hub).with_extension(ending).exists());
    }
}

#[test]
fn a_cache_that_was_damaged_is_mended() {
    let (hub, cache, found) = with_weights_served(&[]);
    found.unwrap();
    let (weights, config) = (blob(&cache, &hub), fs::canonicalize(cached(&cache, "config.json")).unwrap());
    let offline = HubOptions { offline: true, ..options(&cache, &hub) };
    let flipped = [&[hub.files["config.json"][0] ^ 1], &hub.files["config.json"][1..]].concat();
    let cases: [(&Path, &[u8], &str); 3] = [
        (&weights, &hub.weights()[..hub.weights().len() - 9], "truncated: 9 bytes are missing"),
        (&weights, &[hub.weights(), b"x"].concat(), "1 bytes more than its header says"),
        (&config, &flipped, "its git blob SHA-1 is "),
    ];
    for (path, content, why) in cases {
        fs::write(path, content).unwrap();
        let (what, hint, _) = told(&fetch(&offline).unwrap_err());
        assert!(what.contains("is damaged (") && what.contains(why), "{what}");
        assert!(hint.starts_with("unset it, or download it on a machine with network"), "{hint}");
        fetch(&options(&cache, &hub)).unwrap();
        assert_whole(&cache, &hub);
        assert!(fetch(&offline).is_ok());
    }
}

#[test]
fn weights_with_another_hash_are_refused_where_they_are_opened() {
    let (hub, cache, found) = with_weights_served(&[]);
    found.unwrap();
    let mut flipped = hub.weights().to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(blob(&cache, &hub), flipped).unwrap();
    // The folder of a commit in the cache, given as a path.
    let folder = root(&cache).join("snapshots").join(COMMIT);
    let source = ModelSource::parse(folder.to_str().unwrap()).unwrap();
    let (what, hint, is_usage) = told(&OpenModel::open(&source, None, TokenizerOptions::default()).err().unwrap());
    assert!(what.contains("damaged: its SHA-256 is ") && what.ends_with(&sha256_hex(hub.weights())), "{what}");
    assert!(hint.starts_with("remove ") && hint.ends_with("the same command then downloads it again"), "{hint}");
    assert!(!is_usage);
    let named = PathBuf::from(hint.trim_start_matches("remove ").split(';').next().unwrap());
    fs::remove_file(named).unwrap();
    fetch(&options(&cache, &hub)).unwrap();
    assert_whole(&cache, &hub);
}

// --- Servers that are busy or slow ---

#[test]
fn a_busy_server_is_asked_again_when_it_says() {
    for place in ["/api/", "/config.json", WEIGHTS] {
        let hub = Hub::start(checkpoint(), move |asked| match asked.path.contains(place) && asked.earlier == 0 {
            true => Behaviour::Status("429 Too Many Requests", "Retry-After: 1\r\n"),
            false => Behaviour::Right,
        });
        let (cache, started) = (TempDir::new().unwrap(), Instant::now());
        fetch(&options(&cache, &hub)).unwrap();
        assert_whole(&cache, &hub);
        assert!(started.elapsed() >= Duration::from_secs(1), "{place}");
    }
}

#[test]
fn a_server_that_stays_busy_is_given_up() {
    let hub = Hub::start(checkpoint(), |asked| match asked.is_weights() {
        true => Behaviour::Status("503 Service Unavailable", ""),
        false => Behaviour::Right,
    });
    let cache = TempDir::new().unwrap();
    let (what, hint, is_usage) = told(&fetch(&options(&cache, &hub)).unwrap_err());
    assert!(what.contains("`model.safetensors`") && what.ends_with("answers 503 Service Unavailable"), "{what}");
    assert!(hint.contains("reports an error of its own; later the same command resumes"), "{hint}");
    assert_eq!(hub.ranges().len(), 6);
    assert!(!is_usage);
}

#[test]
fn a_connection_that_stalls_is_ended_and_gone_on_with() {
    const PAUSE: Duration = Duration::from_secs(20);
    let behaviours: &[Behaviour] = &[Behaviour::Stalled(1000, PAUSE), Behaviour::Stalled(0, PAUSE)];
    let hub = Hub::start(checkpoint(), |asked| match asked.is_weights() {
        true => behaviours.get(asked.earlier).copied().unwrap_or(Behaviour::Right),
        false => Behaviour::Right,
    });
    let (cache, started) = (TempDir::new().unwrap(), Instant::now());
    let timeouts = Timeouts { stall: Duration::from_secs(1), ..Timeouts::default() };
    fetch(&HubOptions { timeouts, ..options(&cache, &hub) }).unwrap();
    assert_whole(&cache, &hub);
    assert_eq!(ranges(&hub), ["", "bytes=1000-", "bytes=1000-"]);
    assert!(started.elapsed() < PAUSE / 2);
}

#[test]
fn a_question_about_a_file_that_is_not_answered_is_asked_again() {
    let hub = Hub::start(checkpoint(), |asked| match asked.method == "HEAD" && asked.earlier == 0 {
        true => Behaviour::Silent(Duration::from_secs(20)),
        false => Behaviour::Right,
    });
    let cache = TempDir::new().unwrap();
    let timeouts = Timeouts { answer: Duration::from_secs(1), ..Timeouts::default() };
    fetch(&HubOptions { timeouts, ..options(&cache, &hub) }).unwrap();
    assert_whole(&cache, &hub);
}

#[test]
fn a_stall_is_called_so() {
    let hub = Hub::start(checkpoint(), |asked| match asked.is_weights() {
        true => Behaviour::Stalled(0, Duration::from_secs(20)),
        false => Behaviour::Right,
    });
    let cache = TempDir::new().unwrap();
    let timeouts = Timeouts { stall: Duration::from_millis(800), ..Timeouts::default() };
    let (what, hint, _) = told(&fetch(&HubOptions { timeouts, ..options(&cache, &hub) }).unwrap_err());
    assert!(what.ends_with("sent nothing for 0.8 s"), "{what}");
    assert!(
        hint.starts_with("HF_HUB_DOWNLOAD_TIMEOUT=60 waits longer") && hint.contains("resumes the download"),
        "{hint}"
    );
}

#[test]
fn a_connection_that_trickles_is_ended_and_what_came_is_kept() {
    let hub = Hub::start(checkpoint(), |asked| match asked.is_weights() && asked.earlier == 0 {
        true => Behaviour::Trickling(1000, Duration::from_millis(50)),
        false => Behaviour::Right,
    });
    let (cache, started) = (TempDir::new().unwrap(), Instant::now());
    // Each pause is shorter than the stall limit.
    let timeouts = Timeouts { stall: Duration::from_millis(500), ..Timeouts::default() };
    let slow = || fetch(&HubOptions { timeouts, ..options(&cache, &hub) });
    let (what, hint, is_usage) = told(&slow().unwrap_err());
    assert!(what.contains("sent ") && what.ends_with(" bytes in 3 s, too few to go on"), "{what}");
    assert!(hint.contains("slower than 1024 bytes a second") && hint.contains("resumes the download"), "{hint}");
    assert!(!is_usage && started.elapsed() < Duration::from_secs(30));
    slow().unwrap();
    assert_whole(&cache, &hub);
    let [first, second] = &ranges(&hub)[..] else { panic!("{:?}", ranges(&hub)) };
    let kept: usize = second.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap();
    assert!(first.is_empty() && kept >= 1000, "{second}");
}

// --- Hints ---

#[test]
fn each_refusal_has_its_own_hint() {
    struct Case {
        /// A part of the path of the requests to refuse.
        place: &'static str,
        host: Host,
        status: &'static str,
        code: &'static str,
        token: bool,
        what: &'static str,
        hint: &'static str,
        is_usage: bool,
    }
    let listing = |status, code, token, what, hint| Case {
        place: "/api/",
        host: Host::Hub,
        status,
        code,
        token,
        what,
        hint,
        is_usage: true,
    };
    let weights = |host, status, code, what, hint, is_usage| Case {
        place: WEIGHTS,
        host,
        status,
        code,
        token: false,
        what,
        hint,
        is_usage,
    };
    let (gated, unseen) = ("X-Error-Code: GatedRepo\r\n", "X-Error-Code: RepoNotFound\r\n");
    let cases = [
        listing("401 Unauthorized", unseen, false, "or denies access (", "check the spelling; set HF_TOKEN"),
        listing("401 Unauthorized", "", true, "does not accept the token (", "mistyped or expired"),
        listing("401 Unauthorized", "", false, "without a token (", "set HF_TOKEN, or log in"),
        listing(
            "403 Forbidden",
            gated,
            true,
            "access to this model is restricted (",
            "accept its conditions at http://",
        ),
        listing("403 Forbidden", gated, false, "access to this model is restricted (", "set HF_TOKEN to its token"),
        listing("403 Forbidden", "", true, "denies the token access", "needs the right to read org/model"),
        listing("404 Not Found", unseen, true, "or the token may not see it (", "whose token"),
        listing(
            "404 Not Found",
            "X-Error-Code: RevisionNotFound\r\n",
            false,
            "has no revision `main`",
            "check the spelling",
        ),
        weights(
            Host::Hub,
            "404 Not Found",
            "X-Error-Code: EntryNotFound\r\n",
            "lists `model.safetensors` and does not have it",
            "may have changed",
            true,
        ),
        weights(
            Host::Hub,
            "403 Forbidden",
            gated,
            "access to this model is restricted",
            "/org/model with an account",
            true,
        ),
        weights(
            Host::Store,
            "403 Forbidden",
            "",
            "`model.safetensors` cannot be downloaded: localhost:",
            "localhost:",
            false,
        ),
        weights(
            Host::Store,
            "429 Too Many Requests",
            "Retry-After: 3600\r\n",
            "answers 429",
            "wait 3600 s, then the same command resumes",
            false,
        ),
        weights(Host::Store, "500 Internal Server Error", "", "answers 500", "reports an error of its own", false),
        weights(Host::Store, "302 Found", "Location: /again\r\n", "more than 10 redirects", "no login page", false),
        weights(
            Host::Store,
            "302 Found",
            "Location: file:///etc/passwd\r\n",
            "something that is not a URL",
            "no login page",
            false,
        ),
    ];
    for case in cases {
        let (place, host, status, code) = (case.place, case.host, case.status, case.code);
        let hub = Hub::start(checkpoint(), move |asked| {
            match asked.host == host && (asked.path.contains(place) || asked.path == "/again") {
                true => Behaviour::Status(status, code),
                false => Behaviour::Right,
            }
        });
        let cache = TempDir::new().unwrap();
        let token = case.token.then(|| TOKEN.to_owned());
        let (what, hint, is_usage) = told(&fetch(&HubOptions { token, ..options(&cache, &hub) }).unwrap_err());
        assert!(what.starts_with("org/model: ") && what.contains(case.what), "{status} {code}: {what}");
        assert!(hint.contains(case.hint), "{status} {code}: {hint}");
        assert_eq!(is_usage, case.is_usage, "{status} {code}: {what}");
        assert!(!what.contains(TOKEN) && !hint.contains(TOKEN));
    }
}

/// The https address of a server that does not speak TLS.
fn address_without_tls() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map(Result::unwrap) {
            let _ = std::io::Read::read(&mut stream, &mut [0; 1 << 16]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    address
}

#[test]
fn each_way_not_to_get_a_connection_has_its_own_hint() {
    let hub = Hub::start(checkpoint(), |_| Behaviour::Right);
    let cases = [
        ("http://127.0.0.1:9".to_owned(), "cannot connect to 127.0.0.1:9 (", "whether a firewall blocks 127.0.0.1:9"),
        (
            "http://nowhere.invalid".to_owned(),
            "the host name nowhere.invalid cannot be resolved",
            "the name nowhere.invalid",
        ),
        (
            address_without_tls(),
            "cannot open a secure connection to 127.0.0.1:",
            "a proxy that replaces the certificate",
        ),
    ];
    for (endpoint, why, advice) in cases {
        let cache = TempDir::new().unwrap();
        let (what, hint, is_usage) = told(&fetch(&HubOptions { endpoint, ..options(&cache, &hub) }).unwrap_err());
        assert!(what.contains(why) && !is_usage, "{what}");
        assert!(hint.contains(advice), "{hint}");
        assert_eq!(hint.contains("`hf download org/model`"), !why.contains("secure"), "{hint}");
    }
    let cache = TempDir::new().unwrap();
    let endpoint = "hub.example".to_owned();
    let (what, _, is_usage) = told(&fetch(&HubOptions { endpoint, ..options(&cache, &hub) }).unwrap_err());
    assert!(is_usage && what == "the hub's address (HF_ENDPOINT): `hub.example` is not a URL", "{what}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_called_so() {
    let hub = Hub::start(checkpoint(), |_| Behaviour::Right);
    let cache = TempDir::new().unwrap();
    fs::create_dir_all(root(&cache).join("blobs")).unwrap();
    // A file that accepts no bytes, as on a full disk.
    std::os::unix::fs::symlink("/dev/full", blob(&cache, &hub).with_extension("incomplete")).unwrap();
    let (what, hint, is_usage) = told(&fetch(&options(&cache, &hub)).unwrap_err());
    assert!(what.contains("`model.safetensors`") && what.contains(".incomplete: No space left on device"), "{what}");
    assert!(hint.starts_with("free space on the disk; the same command resumes the download"), "{hint}");
    assert!(!is_usage && is_absent(&cache, &hub));
}

// --- More than one process ---

/// The program with this hub, and without this machine's own settings.
fn spattn(hub: &Hub, home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spattn"));
    for name in ["HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"] {
        command.env_remove(name);
    }
    command.args(arguments).env("HF_HOME", home).env("HF_ENDPOINT", &hub.address);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The command that downloads the model and runs a minimal evaluation.
fn evaluate(hub: &Hub, home: &TempDir, out: &str) -> Command {
    let out = home.path().join(out);
    let model = ["eval", "--model", "org/model", "--no-chat", "--task", "ruler/vt", "--length", "1024", "-n", "1"];
    spattn(hub, home.path(), &[&model[..], &["-m", "full", "--out", out.to_str().unwrap()]].concat())
}

fn finished(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_is_wanted_twice_at_once_is_downloaded_once() {
    let hub = Hub::start(checkpoint(), |asked| match asked.is_weights() {
        true => Behaviour::Slow(Duration::from_millis(500)),
        false => Behaviour::Right,
    });
    let cache = TempDir::new().unwrap();
    let options = options(&cache, &hub);
    std::thread::scope(|scope| {
        for running in [(); 4].map(|()| scope.spawn(|| fetch(&options).unwrap())) {
            running.join().unwrap();
        }
    });
    assert_whole(&cache, &hub);
    assert_eq!(hub.ranges().len(), 1);
}

#[test]
fn two_processes_on_a_cold_cache_wait_for_each_other() {
    let hub = Hub::start(built_in(), |asked| match asked.is_weights() {
        // Longer than the five seconds after which other tools give up.
        true => Behaviour::Slow(Duration::from_secs(6)),
        false => Behaviour::Right,
    });
    let home = TempDir::new().unwrap();
    let children = ["a", "b"].map(|out| evaluate(&hub, &home, out).spawn().unwrap());
    let told = children.map(finished);
    for (status, stderr) in &told {
        assert_eq!(*status, Some(0), "{stderr}");
    }
    let word = "org/model: `model.safetensors`: another process downloads it; waiting";
    assert_eq!(told.iter().filter(|(_, stderr)| stderr.contains(word)).count(), 1, "{told:#?}");
    assert_eq!(hub.ranges().len(), 1, "it is downloaded once");
}

#[test]
fn a_process_that_was_killed_holds_up_nobody() {
    let hub = Hub::start(built_in(), |asked| match asked.is_weights() && asked.earlier == 0 {
        true => Behaviour::Stalled(1000, Duration::from_secs(60)),
        false => Behaviour::Right,
    });
    let home = TempDir::new().unwrap();
    let mut killed = evaluate(&hub, &home, "a").env("HF_HUB_DOWNLOAD_TIMEOUT", "60").spawn().unwrap();
    let unfinished = home.path().join("hub/models--org--model/blobs").join(sha256_hex(hub.weights()));
    let unfinished = unfinished.with_extension("incomplete");
    let started = Instant::now();
    while unfinished.metadata().map_or(0, |data| data.len()) < 1000 {
        assert!(started.elapsed() < Duration::from_secs(60), "the first part does not arrive");
        std::thread::sleep(Duration::from_millis(20));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let (status, stderr) = finished(evaluate(&hub, &home, "b").spawn().unwrap());
    assert_eq!(status, Some(0), "{stderr}");
    assert!(!stderr.contains("downloads it; waiting"), "{stderr}");
    assert_eq!(ranges(&hub), ["", "bytes=1000-"]);
}

#[test]
fn settings_that_make_no_sense_are_said() {
    let hub = Hub::start(checkpoint(), |_| Behaviour::Right);
    for variable in ["HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"] {
        for value in ["soon", "0", "-1", "inf", "1e300"] {
            let home = TempDir::new().unwrap();
            let (status, stderr) = finished(evaluate(&hub, &home, "a").env(variable, value).spawn().unwrap());
            assert_eq!(status, Some(2), "{stderr}");
            assert!(stderr.contains(&format!("{variable} is `{value}`, not a number of seconds")), "{stderr}");
        }
    }
    assert!(hub.asked().is_empty());
}

#[test]
fn failures_have_their_status_and_a_hint() {
    let hub = Hub::start(checkpoint(), |asked| match asked.is_weights() {
        true => Behaviour::Flipped,
        false => Behaviour::Right,
    });
    let home = TempDir::new().unwrap();
    let (status, stderr) = finished(evaluate(&hub, &home, "a").spawn().unwrap());
    assert_eq!(status, Some(1), "{stderr}");
    assert!(
        stderr.contains("; downloading it again\n") && stderr.contains("\n  hint: the server, a proxy or a mirror"),
        "{stderr}"
    );
}

// --- Files of data sets from other servers ---

/// Downloads the weights as a file of another server.
fn download(hub: &Hub, folder: &Path, expected: Expected<'_>) -> Result<(), String> {
    let url = format!("{}/org/model/resolve/{COMMIT}/{WEIGHTS}", hub.address);
    let [target, unfinished, lock] = ["file", "file.part", "file.lock"].map(|name| folder.join(name));
    let downloader =
        Downloader { client: Client::new(Timeouts::default()), backoff: Duration::from_millis(1), progress: false };
    let job =
        Job { name: "file", url: &url, target: &target, unfinished: &unfinished, earlier: None, lock: &lock, expected };
    downloader.get(&job).map_err(|e| format!("{e}; {}", e.hint(job.again())))
}

#[test]
fn files_without_a_hash_are_not_put_together_from_parts() {
    let hub = Hub::start(checkpoint(), |asked| match asked.is_weights() && asked.earlier == 0 {
        true => Behaviour::Torn(1000),
        false => Behaviour::Right,
    });
    let folder = TempDir::new().unwrap();
    download(&hub, folder.path(), Expected::default()).unwrap();
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), hub.weights());
    assert_eq!(hub.ranges(), [None, None]);
    let (sha256, folder) = (sha256_hex(hub.weights()), TempDir::new().unwrap());
    fs::write(folder.path().join("file.part"), &hub.weights()[..500]).unwrap();
    download(&hub, folder.path(), Expected { bytes: None, digest: Some(Hash::Sha256(&sha256)) }).unwrap();
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), hub.weights());
    assert_eq!(ranges(&hub).last().unwrap(), "bytes=500-");
}

#[test]
fn a_file_of_which_nothing_is_known_needs_an_end() {
    let hub = Hub::start(checkpoint(), |asked| match asked.is_weights() {
        true => Behaviour::TornUnannounced(1000),
        false => Behaviour::Right,
    });
    let folder = TempDir::new().unwrap();
    let why = download(&hub, folder.path(), Expected::default()).unwrap_err();
    assert!(why.starts_with("its size and hash are not known, and the server states no size"), "{why}");
    assert!(!folder.path().join("file").exists());
    // Only the size shows that bytes are missing.
    let expected = Expected { bytes: Some(hub.weights().len() as u64), digest: None };
    let why = download(&hub, folder.path(), expected).unwrap_err();
    assert!(why.contains(&format!("broke (after 1000 of {} bytes)", hub.weights().len())), "{why}");
    assert!(why.ends_with("the same command downloads the file again"), "{why}");
    assert!(!folder.path().join("file").exists());
}

#[test]
fn data_sets_are_fetched_in_spite_of_a_busy_mirror() {
    // A mirror of two files, each at its path in a data folder. At first it is busy.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mirror = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (nth, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let request = lines.next().unwrap_or_default();
            let _ = lines.take_while(|line| !line.is_empty()).count();
            let body = "{\"text\": \"Some words of an essay.\"}";
            let found = request.contains("PaulGrahamEssays.json") || request.contains("dev-v2.0.json");
            let _ = match (nth, found) {
                (0, _) => {
                    write!(stream, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                }
                (_, false) => {
                    write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                }
                _ => write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                ),
            };
        }
    });
    let hub = Hub::start(BTreeMap::new(), |_| Behaviour::Right);
    let home = TempDir::new().unwrap();
    let data = home.path().join("data");
    let fetch = |name: &str| {
        let arguments = ["data", "fetch", name, "--from", &mirror, "--data", data.to_str().unwrap()];
        finished(spattn(&hub, home.path(), &arguments).spawn().unwrap())
    };
    let (status, stderr) = fetch("essays");
    assert_eq!(status, Some(0), "{stderr}");
    assert!(stderr.contains("answers 503 Service Unavailable; trying again in "), "{stderr}");
    assert!(data.join("ruler_assets/PaulGrahamEssays.json").is_file());
    let (status, stderr) = fetch("squad");
    assert_eq!(status, Some(1), "{stderr}");
    assert!(
        stderr.contains("squad/dev-v2.0.json cannot be downloaded from ")
            && stderr.contains("it has 35 bytes, the published file 4370528"),
        "{stderr}"
    );
    assert!(!data.join("squad/dev-v2.0.json").exists());
    let (status, stderr) = fetch("winogrande");
    assert_eq!(status, Some(2), "{stderr}");
    assert!(
        stderr.contains("answers 404")
            && stderr.contains("hint: the file was moved")
            && stderr.contains("put the file at "),
        "{stderr}"
    );
}
