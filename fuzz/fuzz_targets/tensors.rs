//! Safetensors: weights in one file or in shards, calibration artefacts with the methods that read them, checkpoints.
#![no_main]

use std::path::Path;

use libfuzzer_sys::{Corpus, fuzz_target};
use spattn::attention::artefact::{Artefact, ModelShape};
use spattn::attention::calibration::{Assignment, TextKind};
use spattn::attention::methods::{CALIBRATIONS, METHODS, configure};
use spattn::attention::{MethodSpec, Params, Policy};
use spattn::kv::KvDtype;
use spattn::model::config::ModelConfig;
use spattn::model::decoder::{Decoder, Dimensions};
use spattn::model::device::Device;
use spattn::model::tensors::{INDEX_FILE, Weights, WeightsError};
use spattn_fuzz::{check_line, choice, files, folder, put};

const CONFIG: &str = include_str!("../../tests/golden/models/llama3/config.json");

fuzz_target!(|input: &[u8]| -> Corpus {
    let Some((which, bytes)) = choice(input, 3) else { return Corpus::Reject };
    let dir = folder();
    match which {
        0 => weights(Weights::open_file(&put(dir.path(), "model.safetensors", bytes))),
        1 => shards(dir.path(), bytes),
        _ => artefact(bytes),
    }
    Corpus::Keep
});

/// The index, followed by shards named `0` and so on.
fn shards(dir: &Path, bytes: &[u8]) {
    for (at, file) in files(bytes).into_iter().enumerate() {
        let name = if at == 0 { INDEX_FILE.to_owned() } else { (at - 1).to_string() };
        put(dir, &name, file);
    }
    weights(Weights::open_folder(dir));
}

fn weights(opened: Result<Weights, WeightsError>) {
    let weights = match opened {
        Ok(weights) => weights,
        Err(error) => return check_line(&error.to_string()),
    };
    let _ = (weights.total_bytes(), weights.sha256());
    for name in weights.names() {
        let shape = match weights.read(name, &[usize::MAX]) {
            Err(WeightsError::WrongShape { got, .. }) => got,
            Err(error) => return check_line(&error.to_string()),
            Ok(_) => panic!("a tensor of all of memory"),
        };
        match weights.read(name, &shape) {
            Ok(tensor) => {
                assert!([tensor.to_f32().len(), tensor.to_f16().len(), tensor.to_bf16().len()] == [tensor.len(); 3])
            }
            Err(error) => check_line(&error.to_string()),
        }
    }
    let config = ModelConfig::parse(CONFIG, "config.json").expect("a config that works");
    if let Err(error) = Decoder::load(&Dimensions::new(&config, KvDtype::F32), &weights, Device::Cpu) {
        check_line(&error.to_string());
    }
}

/// An artefact for the model that it names, if that is small.
fn artefact(bytes: &[u8]) {
    let artefact = match Artefact::parse("artefact", bytes.to_vec()) {
        Ok(artefact) => artefact,
        Err(error) => return check_line(&error.to_string()),
    };
    let model = artefact.info().model.clone();
    // No model has such a shape, so the check against the model would refuse the artefact.
    if model.kv_heads == 0 || model.head_dim == 0 || !model.heads.is_multiple_of(model.kv_heads) {
        return;
    }
    for method in METHODS {
        let spec = MethodSpec::bare(method.name);
        let method = configure(&spec, &Policy::default()).expect("a method without parameters");
        let Some(kind) = method.method.calibration() else { continue };
        let checked = artefact.check(kind, &model).and_then(|()| method.calibrated(&artefact).map(drop));
        checked.unwrap_or_else(|error| check_line(&error.to_string()));
    }
    let small = ModelShape { weights_sha256: String::new(), layers: 2, heads: 4, kv_heads: 2, head_dim: 8 };
    for calibration in CALIBRATIONS {
        let assignment = Assignment { rotation: None, model: &small, seed: 1, tokens: 64, text: TextKind::Tasks };
        let spec = MethodSpec::bare(calibration.kind);
        let mut collector = (calibration.start)(&assignment, &mut Params::new(&spec)).expect("settings of the program");
        if let Err(error) = collector.restore(&artefact) {
            check_line(&error.to_string());
        }
    }
}
