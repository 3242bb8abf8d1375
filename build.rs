//! Passes information about the build to the program.

use std::process::Command;
use std::{env, fs};

/// The parts of the repository that the program is built from.
const BUILT_FROM: [&str; 10] =
    ["build.rs", "Cargo.toml", "Cargo.lock", "crates", "src", "kernels", "tasks", "configs", "models", "scripts"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    tell_build();
}

/// Sets `SPATTN_BUILD` to how the program is built, and `SPATTN_COMMIT` to its commit, if that is known: twelve digits, with a `+` appended
/// if any of [`BUILT_FROM`] has changed since.
fn tell_build() {
    let of = |name: &str| env::var(name).unwrap_or_default();
    let cuda = if env::var_os("CARGO_FEATURE_CUDA").is_some() { ", cuda" } else { "" };
    println!("cargo:rustc-env=SPATTN_BUILD={}, {}{cuda}", of("PROFILE"), of("TARGET"));
    if let Some(commit) = commit_of_repository().or_else(commit_of_package) {
        println!("cargo:rustc-env=SPATTN_COMMIT={commit}");
    }
}

/// The commit from git, if this folder is the root of a repository; it may lie inside the repository of another project.
fn commit_of_repository() -> Option<String> {
    let root = fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()?;
    if root != fs::canonicalize(env::var_os("CARGO_MANIFEST_DIR")?).ok()? {
        return None;
    }
    // Every commit writes to the second one.
    for file in ["HEAD", "logs/HEAD"] {
        println!("cargo:rerun-if-changed={}", git(&["rev-parse", "--git-path", file])?);
    }
    BUILT_FROM.iter().for_each(|path| println!("cargo:rerun-if-changed={path}"));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let status = git(&[&["status", "--porcelain", "--"][..], &BUILT_FROM].concat())?;
    Some(if status.is_empty() { commit } else { commit + "+" })
}

/// The commit in a package that was made for a registry.
fn commit_of_package() -> Option<String> {
    let info = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = info.split_once("\"sha1\": \"")?;
    rest.get(..12).map(str::to_owned)
}

/// The output of a git command.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
}
