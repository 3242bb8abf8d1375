//! The build script of both packages with weights: copies the half that the package has, or cuts it from the file of the repository.
//!
//! `scripts/package_crates.sh` puts the halves into the packages.

use std::path::PathBuf;
use std::{env, fs};

const WHOLE: &str = "../model.safetensors";
const HALF: &str = "weights.bin";

fn main() {
    println!("cargo:rerun-if-changed=cut.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(HALF);
    if fs::exists(HALF).unwrap_or(false) {
        println!("cargo:rerun-if-changed={HALF}");
        fs::copy(HALF, out).expect("the half can be copied");
        return;
    }
    println!("cargo:rerun-if-changed={WHOLE}");
    let whole = fs::read(WHOLE).unwrap_or_else(|error| panic!("there is neither {HALF} nor {WHOLE}: {error}"));
    let (first, second) = whole.split_at(whole.len() / 2);
    let is_first = env::var("CARGO_PKG_NAME").is_ok_and(|name| name.ends_with("-1"));
    fs::write(out, if is_first { first } else { second }).expect("OUT_DIR can be written to");
}
