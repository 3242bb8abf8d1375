//! Compiles `kernels/*.cu` for the feature `cuda`; without it, nothing.
//!
//! Each file becomes one fat binary: code for Hopper GPUs, and PTX from which drivers make code for others from Ampere on.
//! The compiler is `$CUDA_HOME/bin/nvcc`, or the `nvcc` on the path.

use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::{env, fs, thread};

/// For Hopper GPUs.
const HOPPER: &str = "-gencode=arch=compute_90a,code=sm_90a";
/// For drivers to make code of, for others.
const PORTABLE: &str = "-gencode=arch=compute_80,code=compute_80";
/// What files include that no other GPU can run.
const HOPPER_ONLY: &str = "#include \"hopper.cuh\"";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let sources = sources(Path::new("kernels"));
    let compiled: Vec<Result<(), String>> = thread::scope(|scope| {
        let jobs: Vec<_> = sources.iter().map(|source| scope.spawn(|| compile(source, &out))).collect();
        jobs.into_iter().map(|job| job.join().expect("a thread that waits for a compiler")).collect()
    });
    let failures: Vec<String> = compiled.into_iter().filter_map(Result::err).collect();
    if !failures.is_empty() {
        failures.iter().for_each(|failure| println!("cargo:warning={failure}"));
        exit(1);
    }
    let line = |source: &PathBuf| {
        let (stem, hopper_only) = (stem(source), is_hopper_only(source));
        format!("    (\"{stem}\", {hopper_only}, include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{stem}.fatbin\"))),\n")
    };
    let list: String = sources.iter().map(line).collect();
    fs::write(out.join("modules.rs"), format!("&[\n{list}]\n")).expect("OUT_DIR can be written to");
}

/// The files that hold kernels, in order.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder of kernels is part of the source");
    let mut sources: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    sources.sort();
    sources
}

fn stem(source: &Path) -> &str {
    source.file_stem().and_then(|stem| stem.to_str()).expect("names of kernels are plain")
}

/// Whether no other GPU can run what a file holds.
fn is_hopper_only(source: &Path) -> bool {
    fs::read_to_string(source).is_ok_and(|text| text.contains(HOPPER_ONLY))
}

fn compile(source: &Path, out: &Path) -> Result<(), String> {
    let nvcc = env::var_os("CUDA_HOME").map_or_else(|| PathBuf::from("nvcc"), |home| Path::new(&home).join("bin/nvcc"));
    let to = out.join(stem(source)).with_extension("fatbin");
    let run = Command::new(&nvcc)
        .args(["--fatbin", "-O3", "-std=c++17", HOPPER])
        .args((!is_hopper_only(source)).then_some(PORTABLE))
        .arg("-o")
        .arg(&to)
        .arg(source)
        .output()
        .map_err(|e| format!("the feature cuda needs {}: {e}; set CUDA_HOME to a CUDA 13 toolkit", nvcc.display()))?;
    match run.status.success() {
        true => Ok(()),
        false => Err(format!("{}: {}", source.display(), first_errors(&run.stderr))),
    }
}

/// What a compiler said first, in one line.
fn first_errors(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    said.lines().filter(|line| line.contains("error")).take(3).collect::<Vec<_>>().join(" | ")
}
