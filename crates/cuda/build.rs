//! Compiles `kernels/*.cu`.
//!
//! Each file becomes one fat binary: code for Hopper GPUs, and PTX that drivers compile for other GPUs from Ampere on. The compiler is
//! `$CUDA_HOME/bin/nvcc`, or `nvcc` on the path. A file is compiled again when its text, a header, this file or the compiler's path
//! changes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::sync::Mutex;
use std::{env, fs, thread};

/// Code for Hopper GPUs.
const HOPPER: &str = "-gencode=arch=compute_90a,code=sm_90a";
/// PTX, which drivers compile for other GPUs.
const PORTABLE: &str = "-gencode=arch=compute_80,code=compute_80";
/// Files that include this header run on Hopper GPUs only.
const HOPPER_ONLY: &str = "#include \"hopper.cuh\"";
/// Kernels of files that include this header wait by themselves until those ahead have ended.
const WAITS: &str = "#include \"early.cuh\"";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let sources = files(Path::new("kernels"), "cu");
    let shared = shared_key();
    let waiting = Mutex::new(sources.iter());
    let next = || waiting.lock().expect("no worker panics while it holds the lock").next();
    let compile_some = || std::iter::from_fn(next).map(|source| compile(source, &out, shared)).collect::<Vec<_>>();
    let compiled: Vec<Result<(), String>> = thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(compile_some)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a compiling thread does not panic")).collect()
    });
    let failures: Vec<String> = compiled.into_iter().filter_map(Result::err).collect();
    if !failures.is_empty() {
        failures.iter().for_each(|failure| println!("cargo:warning={failure}"));
        exit(1);
    }
    let line = |source: &PathBuf| {
        let (name, hopper_only, waits) = (stem(source), includes(source, HOPPER_ONLY), includes(source, WAITS));
        let code = format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.fatbin\"))");
        format!("    Module {{ name: {name:?}, hopper_only: {hopper_only}, waits: {waits}, code: {code} }},\n")
    };
    let list: String = sources.iter().map(line).collect();
    fs::write(out.join("modules.rs"), format!("&[\n{list}]\n")).expect("OUT_DIR can be written to");
}

/// The files of a folder whose names end with `ending`, sorted.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder `kernels` can be read");
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == ending))
        .collect();
    files.sort();
    files
}

fn nvcc() -> PathBuf {
    env::var_os("CUDA_HOME").map_or_else(|| PathBuf::from("nvcc"), |home| Path::new(&home).join("bin/nvcc"))
}

/// A hash of what all kernels depend on besides their own text: headers, this file, the compiler's path.
fn shared_key() -> u64 {
    let mut hasher = DefaultHasher::new();
    nvcc().hash(&mut hasher);
    let shared = files(Path::new("kernels"), "cuh").into_iter().chain([PathBuf::from("build.rs")]);
    shared.for_each(|path| fs::read(&path).unwrap_or_default().hash(&mut hasher));
    hasher.finish()
}

fn stem(source: &Path) -> &str {
    source.file_stem().and_then(|stem| stem.to_str()).expect("names of kernel files are UTF-8")
}

/// Whether a file has a line that includes a header.
fn includes(source: &Path, header: &str) -> bool {
    fs::read_to_string(source).is_ok_and(|text| text.lines().any(|line| line == header))
}

/// A hash of everything that a kernel's code depends on.
fn key_of(source: &Path, shared: u64) -> String {
    let mut hasher = DefaultHasher::new();
    (shared, fs::read(source).unwrap_or_default()).hash(&mut hasher);
    format!("{:x}", hasher.finish())
}

fn compile(source: &Path, out: &Path, shared: u64) -> Result<(), String> {
    let (nvcc, to) = (nvcc(), out.join(stem(source)).with_extension("fatbin"));
    let (key, made) = (key_of(source, shared), to.with_extension("key"));
    if to.exists() && fs::read_to_string(&made).is_ok_and(|known| known == key) {
        return Ok(());
    }
    let run = Command::new(&nvcc)
        .args(["--fatbin", "-O3", "-std=c++17", HOPPER])
        .args((!includes(source, HOPPER_ONLY)).then_some(PORTABLE))
        .arg("-o")
        .arg(&to)
        .arg(source)
        .output()
        .map_err(|e| {
            format!(
                "the feature `cuda` needs {}, which cannot be run: {e}; set CUDA_HOME to a CUDA 13 toolkit",
                nvcc.display()
            )
        })?;
    match run.status.success() {
        true => fs::write(made, key).map_err(|e| format!("{}: {e}", source.display())),
        false => Err(format!("{}: {}", source.display(), first_errors(&run.stderr))),
    }
}

/// The first errors of the compiler, in one line.
fn first_errors(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    said.lines().filter(|line| line.contains("error")).take(3).collect::<Vec<_>>().join(" | ")
}
