//! Weight files with random damage: each is either read or refused in one line, and none makes the program panic or take long.
//!
//! `SPATTN_DAMAGED_FILES=1000000` sets the number of files of each kind; the fuzz targets `gguf` and `quantised` test the same
//! readers.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::config::ModelConfig;
use super::gguf;
use super::tensors::{Weights, WeightsError};
use super::tokenizer::{Tokenizer, TokenizerOptions};

/// The number of damaged files of each kind.
fn tries() -> u64 {
    std::env::var("SPATTN_DAMAGED_FILES").map_or(600, |text| text.parse().expect("a number of files"))
}

/// The generator SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Numbers at which sizes and products are likely to overflow.
const EXTREMES: [u64; 10] = [0, 1, 7, 31, 32, 1 << 16, u32::MAX as u64, 1 << 40, i64::MAX as u64, u64::MAX];

/// Changes some bytes, or cuts, repeats or removes some.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        let end = (at + random.below(40)).min(bytes.len());
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let some = bytes[at..end].to_vec();
                bytes.splice(at..at, some);
            }
            3 => {
                let number = random.of(&EXTREMES).to_le_bytes();
                bytes.iter_mut().skip(at).zip(number).for_each(|(byte, new)| *byte = new);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
}

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(path)
}

/// Reads all tensors.
fn read_all(weights: &Weights) -> Result<(), WeightsError> {
    for name in weights.names() {
        let shape = weights.shape(name).expect("a tensor that was named").to_vec();
        let tensor = weights.read(name, &shape)?;
        assert_eq!(tensor.to_f32().len(), shape.iter().product::<usize>(), "{name}");
    }
    Ok(())
}

/// Checks that an error is one line, and that the time since `since` is short. Returns whether reading succeeded.
fn check<T, E: std::fmt::Display>(read: Result<T, E>, since: Instant) -> bool {
    assert!(since.elapsed() < Duration::from_secs(10), "took {:?}", since.elapsed());
    match read {
        Ok(_) => true,
        Err(error) => {
            let text = error.to_string();
            assert!(!text.trim().is_empty() && !text.contains('\n'), "{text}");
            false
        }
    }
}

fn read_gguf(path: &Path) -> anyhow::Result<()> {
    let (texts, weights) = gguf::open(path, "m".to_owned())?;
    read_all(&weights)?;
    let config = texts.config()?;
    let tokenizer = Tokenizer::load(&texts, &config, TokenizerOptions::default())?;
    tokenizer.encode_text("a b  3\n", true)?;
    Ok(())
}

#[test]
fn damaged_gguf_files_are_read_or_refused() {
    let names = ["mixed", "gpt-2", "llama-bpe", "qwen2", "sentence-piece", "smollm", "tekken"];
    let seeds = ["byte-level", "pieces", "split"].map(|name| golden(&format!("../../fuzz/seeds/gguf/seed-{name}")));
    let files = names.map(|name| golden(&format!("gguf/{name}.gguf"))).into_iter().chain(seeds);
    let files: Vec<Vec<u8>> = files.map(|file| fs::read(file).unwrap()).collect();
    let (folder, mut random, mut read) = (TempDir::new().unwrap(), Random(1), 0);
    let path = folder.path().join("m.gguf");
    let count = tries();
    for _ in 0..count {
        let mut bytes = random.of(&files).clone();
        damage(&mut bytes, &mut random);
        fs::write(&path, &bytes).unwrap();
        let start = Instant::now();
        read += u64::from(check(read_gguf(&path), start));
    }
    assert!((1..count).contains(&read), "{read} of {count} were read");
}

/// The settings and tensors of a case.
struct Case {
    settings: Value,
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
}

fn case(folder: &Path) -> Case {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let owned =
        |(name, view): (String, TensorView<'_>)| (name, view.dtype(), view.shape().to_vec(), view.data().to_vec());
    let config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    let tensors = stored.tensors().into_iter().map(owned).collect();
    Case { settings: config["quantization_config"].clone(), tensors }
}

impl Case {
    /// Changes one setting at any depth, or one tensor: its type and shape or its numbers, or removes it.
    fn damage(&mut self, random: &mut Random) {
        if random.below(3) == 0 {
            return damage_setting(&mut self.settings, random);
        }
        let at = random.below(self.tensors.len());
        let (_, dtype, shape, data) = &mut self.tensors[at];
        match random.below(5) {
            0 => drop(self.tensors.remove(at)),
            1 => {
                let axis = random.below(shape.len());
                let extents = [0, 1, 2, 3, 5, 8, 16, 1 << 40];
                if let Some(extent) = shape.get_mut(axis) {
                    *extent = *random.of(&extents);
                }
            }
            2 => {
                *dtype = *random.of(&[
                    Dtype::I32,
                    Dtype::I64,
                    Dtype::F16,
                    Dtype::BF16,
                    Dtype::F32,
                    Dtype::U8,
                    Dtype::F8_E4M3,
                ])
            }
            3 => shape.reverse(),
            _ => {
                let index = random.below(data.len());
                let number = random.of(&EXTREMES).to_le_bytes();
                data.iter_mut().skip(index).zip(number).for_each(|(byte, new)| *byte = new);
            }
        }
    }

    /// Writes `model.safetensors`, with as many bytes for each tensor as its type and shape need.
    fn write(&self, folder: &Path) {
        let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
        for (name, dtype, shape, data) in &self.tensors {
            let numbers = shape.iter().try_fold(1usize, |product, extent| product.checked_mul(*extent));
            let len = numbers.and_then(|numbers| numbers.checked_mul(dtype.bitsize() / 8)).filter(|len| *len < 1 << 16);
            let (start, len) = (bytes.len(), len.unwrap_or(data.len()));
            bytes.extend(data.iter().copied().cycle().take(if data.is_empty() { 0 } else { len }));
            let stated = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, bytes.len()]});
            header.insert(name.clone(), stated);
        }
        let header = Value::Object(header).to_string();
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat();
        fs::write(folder.join("model.safetensors"), file).unwrap();
    }

    fn read(&self, folder: &Path) -> anyhow::Result<()> {
        let mut config: Value = serde_json::from_slice(&fs::read(golden("models/llama-linear/config.json"))?)?;
        config["quantization_config"] = self.settings.clone();
        let config = ModelConfig::parse(&config.to_string(), "config.json")?;
        let Some(quantisation) = &config.quantisation else { return Ok(()) };
        let mut weights = Weights::open_quantised_folder(folder, quantisation)?;
        read_all(&weights)?;
        let names: Vec<String> = weights.names().map(str::to_owned).collect();
        for name in names {
            let numbers = weights.shape(&name).map_or(0, |shape| shape.iter().product());
            let parts = [numbers / 3, numbers - numbers / 3].map(|len| (format!("{name} {len}"), vec![len]));
            weights.divide(&name, parts);
        }
        Ok(read_all(&weights)?)
    }
}

/// Changes or removes a value, or changes a value inside it.
fn damage_setting(value: &mut Value, random: &mut Random) {
    let strange = [
        json!(null),
        json!(-1),
        json!(0),
        json!(1),
        json!(3),
        json!(8),
        json!(1u64 << 32),
        json!(u64::MAX),
        json!(0.5),
        json!(true),
        json!("group"),
        json!([1, 0]),
        json!([7, 1048576]),
        json!({}),
    ];
    match value {
        Value::Object(map) if !map.is_empty() && random.below(8) != 0 => {
            let key = map.keys().nth(random.below(map.len())).expect("a key").clone();
            match random.below(10) {
                0 => drop(map.remove(&key)),
                _ => damage_setting(&mut map[&key], random),
            }
        }
        other => *other = random.of(&strange).clone(),
    }
}

#[test]
fn damaged_quantised_checkpoints_are_read_or_refused() {
    let folders: Vec<PathBuf> = fs::read_dir(golden("quantised")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let folders = folders.into_iter().filter(|folder| folder.join("expected.safetensors").is_file());
    let mut folders: Vec<PathBuf> = folders.collect();
    folders.sort();
    let (folder, mut random, mut read) = (TempDir::new().unwrap(), Random(2), 0);
    let count = tries();
    for _ in 0..count {
        let sound: &PathBuf = random.of(&folders);
        let mut case = case(sound);
        (0..=random.below(2)).for_each(|_| case.damage(&mut random));
        case.write(folder.path());
        let start = Instant::now();
        read += u64::from(check(case.read(folder.path()), start));
    }
    assert!((1..count).contains(&read), "{read} of {count} were read");
}
