//! Quantised checkpoints, compared from config to logits with the packages that write them (`scripts/make_golden_quantised.py`); and the
//! errors for broken ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use spattn_attention::kv::KvDtype;
use tempfile::TempDir;

use super::OpenModel;
use super::config::ModelConfig;
use super::decoder::Decoder;
use super::device::Device;
use super::dimensions::Dimensions;
use super::source::ModelSource;
use super::tensors::{Weights, WeightsError};
use super::tokenizer::TokenizerOptions;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn golden(case: &str) -> PathBuf {
    root().join("tests/golden/quantised").join(case)
}

fn json_of(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A config with the settings of a case, and its other keys from a model that is not quantised.
fn config_with(settings: &Value) -> ModelConfig {
    let mut config = json_of(&golden("model-awq-wide/config.json"));
    config["quantization_config"] = settings.clone();
    ModelConfig::parse(&config.to_string(), "config.json").unwrap()
}

fn settings_of(case: &str) -> Value {
    json_of(&golden(case).join("config.json"))["quantization_config"].clone()
}

fn open(folder: &Path, settings: &Value) -> Result<Weights, WeightsError> {
    Weights::open_quantised_folder(folder, &config_with(settings).quantisation.unwrap())
}

/// Cases with single tensors.
fn cases() -> Vec<String> {
    let entries = fs::read_dir(golden("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    entries.filter(|name| !name.starts_with("model-")).collect()
}

#[test]
fn tensors_equal_those_of_the_package_that_writes_them_to_the_bit() {
    let cases = cases();
    assert_eq!(cases.len(), 13);
    for case in cases {
        let weights = open(&golden(&case), &settings_of(&case)).unwrap();
        let expected = Weights::open_file(&golden(&case).join("expected.safetensors")).unwrap();
        assert_eq!(weights.names().collect::<Vec<_>>(), expected.names().collect::<Vec<_>>(), "{case}");
        for name in expected.names() {
            let shape = expected.shape(name).unwrap();
            assert_eq!(weights.shape(name), Some(shape), "{case}: {name}");
            let (got, right) =
                (weights.read(name, shape).unwrap().to_f32(), expected.read(name, shape).unwrap().to_f32());
            // NaNs are equal whatever their bits.
            let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
            let at = got.iter().zip(&right).position(differs);
            assert!(at.is_none(), "{case}: {name} at {at:?}: {} and not {}", got[at.unwrap()], right[at.unwrap()]);
        }
        assert!(weights.unpacked_tensors() == 1, "{case}");
    }
}

#[test]
fn a_part_of_a_tensor_is_that_of_the_whole() {
    for case in cases() {
        let weights = open(&golden(&case), &settings_of(&case)).unwrap();
        let name = ["a.weight", "l.q_proj.weight"].into_iter().find(|name| weights.contains(name)).unwrap();
        let [rows, columns]: [usize; 2] = weights.shape(name).unwrap().try_into().unwrap();
        let whole = weights.read(name, &[rows, columns]).unwrap().bytes;
        let mut divided = open(&golden(&case), &settings_of(&case)).unwrap();
        let parts = [("top", vec![2, columns]), ("some", vec![3]), ("rest", vec![(rows - 2) * columns - 3])];
        divided.divide(name, parts.clone().map(|(name, shape)| (name.to_owned(), shape)));
        let read = parts.iter().flat_map(|(name, shape)| divided.read(name, shape).unwrap().bytes);
        assert!(whole.into_iter().eq(read), "{case}");
    }
}

#[test]
fn every_fp8_number_is_among_the_cases() {
    let weights = open(&golden("fp8-values"), &settings_of("fp8-values")).unwrap();
    let numbers = weights.read("a.weight", &[16, 16]).unwrap().to_f32();
    assert_eq!(numbers.iter().filter(|number| number.is_nan()).count(), 2);
    let largest = numbers.iter().copied().fold(0.0, f32::max);
    assert_eq!((numbers[1], numbers[0x38], largest), (0.75 / 512.0, 0.75, 0.75 * 448.0));
    assert!(numbers[0x80] == 0.0 && numbers[0x80].is_sign_negative());
    let said = weights.read_for("a.weight", &[16, 16], super::tensors::WeightDtype::F32).unwrap_err().to_string();
    assert!(said.ends_with("tensor `a.weight` holds NaN at [7, 15]: the checkpoint is broken"), "{said}");
}

fn logits(folder: &str) -> (usize, Vec<f32>) {
    let text = fs::read_to_string(golden(folder).join("config.json")).unwrap();
    let config = ModelConfig::parse(&text, "config.json").unwrap();
    let weights = match &config.quantisation {
        Some(quantisation) => Weights::open_quantised_folder(&golden(folder), quantisation),
        None => Weights::open_folder(&golden(folder)),
    };
    let (weights, dimensions) = (weights.unwrap(), Dimensions::new(&config, KvDtype::F32));
    let decoder = Decoder::load(&dimensions, &weights, Device::Cpu).unwrap();
    let prompt = json_of(&root().join("tests/golden/models/llama-linear/golden.json"))["prompt"].clone();
    let prompt: Vec<u32> = serde_json::from_value(prompt).unwrap();
    (weights.unpacked_tensors(), decoder.all_logits(&prompt[..96]).unwrap())
}

#[test]
fn logits_equal_those_of_the_unpacked_checkpoint() {
    let ((packed, a), (wide, b)) = (logits("model-awq"), logits("model-awq-wide"));
    assert_eq!((packed, wide, a.len()), (14, 0, 96 * 256));
    let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-5 && b.iter().any(|logit| logit.abs() > 1.0), "off by {worst}");
}

/// A model folder with a tokenizer.
fn model(case: &str, change: impl Fn(&mut Value)) -> TempDir {
    let folder = TempDir::new().unwrap();
    let mut config = json_of(&golden(case).join("config.json"));
    change(&mut config);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    fs::copy(golden(case).join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    fs::copy(root().join("models/builtin/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    folder
}

/// The notes on a model's weights.
fn notes(folder: &TempDir, dtype: Option<KvDtype>) -> Vec<String> {
    let source = ModelSource::Folder(folder.path().into());
    let opened = OpenModel::open(&source, dtype, TokenizerOptions::default()).unwrap();
    let place = format!("{}/", folder.path().display());
    let notes = opened.notes.iter().map(|note| note.replace(&place, ""));
    notes.filter(|note| note.starts_with("model.safetensors")).collect()
}

#[test]
fn a_note_says_what_was_unpacked_and_no_part_is_called_unread() {
    let folder = model("model-awq", |_| {});
    assert_eq!(notes(&folder, None), ["model.safetensors: weights are AWQ, 4 bits, unpacked to f16 at load"]);
    let said = notes(&folder, Some(KvDtype::Bf16));
    assert_eq!(said, ["model.safetensors: weights are AWQ, 4 bits, unpacked to bf16 at load"]);
    let wide = model("model-awq-wide", |config| config["quantization_config"] = json!({"quant_method": "fp8"}));
    assert_eq!(
        notes(&wide, None),
        [
            "model.safetensors: no tensor is quantised, although config.json says that they are (FP8): they are read as they are"
        ]
    );
}

#[test]
fn the_format_and_the_stored_types_are_told_and_the_settings_are_part_of_the_identity() {
    let folder = model("model-awq", |_| {});
    let source = ModelSource::Folder(folder.path().into());
    let opened = OpenModel::open(&source, None, TokenizerOptions::default()).unwrap();
    let said = serde_json::to_value(opened.format.as_ref().unwrap()).unwrap();
    // 14 matrices in 3 parts each; embeddings, norms and the output matrix.
    let types = json!({"F16": 21, "I32": 28});
    assert_eq!(said, json!({"name": "safetensors", "file_type": "AWQ, 4 bits", "types": types}));
    let quantisation = &opened.configuration()["config"]["quantisation"];
    assert_eq!(*quantisation, json!({"format": "awq", "group_size": {"neighbours": 16}}));
    let wide = model("model-awq-wide", |_| {});
    let opened = OpenModel::open(&ModelSource::Folder(wide.path().into()), None, TokenizerOptions::default()).unwrap();
    assert!(opened.format.is_none() && opened.configuration()["config"].get("quantisation").is_none());
}

#[test]
fn blocks_of_experts_are_read_and_change_no_identity() {
    let folder = root().join("tests/golden/models/gpt-oss-mxfp4");
    let config = ModelConfig::parse(&fs::read_to_string(folder.join("config.json")).unwrap(), "config.json").unwrap();
    assert!(serde_json::to_value(&config).unwrap().get("quantisation").is_none());
    let mut weights = Weights::open_quantised_folder(&folder, config.quantisation.as_ref().unwrap()).unwrap();
    super::checkpoint::compare(&mut config.clone(), &mut weights).unwrap();
    let experts = config.block.experts.unwrap().count;
    assert_eq!(weights.unpacked_tensors(), config.layers * experts * 3);
    assert_eq!(weights.format().unwrap().file_type.unwrap(), "MXFP4");
}

#[test]
fn packed_weights_without_settings_are_told_what_lacks() {
    let folder = model("model-awq", |config| {
        config.as_object_mut().unwrap().remove("quantization_config");
    });
    let source = ModelSource::Folder(folder.path().into());
    let error = OpenModel::open(&source, None, TokenizerOptions::default()).err().unwrap();
    let error = error.downcast::<spattn_base::error::UsageError>().unwrap();
    assert!(error.what.contains("the checkpoint is quantised by GPTQ or AWQ (`qweight`)"), "{}", error.what);
    assert!(error.hint.unwrap().contains("`quantization_config`"));
}

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// The error for a case with changed tensors or settings.
fn fault(case: &str, change: impl Fn(&mut Tensors, &mut Value)) -> String {
    let bytes = fs::read(golden(case).join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |view: TensorView<'_>| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
    let mut tensors: Tensors = stored.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect();
    let mut settings = settings_of(case);
    change(&mut tensors, &mut settings);
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let read = |weights: Weights| {
        let names: Vec<String> = weights.names().map(str::to_owned).collect();
        let read = |name: &String| weights.read(name, weights.shape(name).unwrap()).map(drop);
        names.iter().try_for_each(read)
    };
    let error = open(folder.path(), &settings).and_then(read).unwrap_err().to_string();
    let start = format!("{}: the quantised tensor ", folder.path().join("model.safetensors").display());
    error.strip_prefix(&start).unwrap_or(&error).to_owned()
}

#[test]
fn parts_that_do_not_fit_together_are_told_by_name() {
    let remove = |name: &'static str| move |t: &mut Tensors, _: &mut Value| drop(t.remove(name));
    let retype = |name: &'static str, dtype: Dtype, shape: &'static [usize], size: usize| {
        move |t: &mut Tensors, _: &mut Value| {
            t.insert(name.to_owned(), (dtype, shape.to_vec(), vec![0; size * shape.iter().product::<usize>()]));
        }
    };
    let set = |key: &'static str, value: Value| move |_: &mut Tensors, s: &mut Value| s[key] = value.clone();
    type Change<'a> = &'a dyn Fn(&mut Tensors, &mut Value);
    let q = "`l.q_proj.qweight`: ";
    let cases: [(&str, Change<'_>, &str); 20] = [
        (
            "fp8-values",
            &remove("a.weight_scale_inv"),
            "`a.weight`: neither `a.weight_scale_inv` nor `a.weight_scale` is stored",
        ),
        (
            "fp8-values",
            &retype("a.weight_scale", Dtype::F32, &[], 4),
            "`a.weight`: both `a.weight_scale_inv` and `a.weight_scale` are stored",
        ),
        (
            "fp8-block",
            &retype("l.q_proj.weight_scale_inv", Dtype::F32, &[3, 2], 4),
            "`l.q_proj.weight_scale_inv`: it has shape [3, 2], expected [3, 3]",
        ),
        (
            "fp8-block",
            &set("weight_block_size", json!([8, 32])),
            "`l.q_proj.weight_scale_inv`: it has shape [3, 3], expected [5, 3]",
        ),
        (
            "fp8-rows",
            &retype("a.weight_scale", Dtype::U8, &[6, 1], 1),
            "`a.weight_scale`: it holds U8, which is no type of scales",
        ),
        ("awq", &remove("l.q_proj.scales"), &format!("{q}`l.q_proj.scales` is not stored")),
        ("awq", &remove("l.q_proj.qzeros"), &format!("{q}`l.q_proj.qzeros` is not stored")),
        ("awq", &retype("l.q_proj.qweight", Dtype::I32, &[48], 4), &format!("{q}it has shape [48], expected 2 axes")),
        (
            "awq",
            &retype("l.q_proj.qweight", Dtype::I32, &[0, 1 << 40], 4),
            &format!("{q}it has shape [0, 1099511627776], expected one that is not empty"),
        ),
        ("awq", &retype("l.q_proj.qweight", Dtype::F16, &[48, 3], 2), &format!("{q}it holds F16, expected I32")),
        (
            "awq",
            &retype("l.q_proj.scales", Dtype::F16, &[3, 23], 2),
            "`l.q_proj.scales`: it has shape [3, 23], expected [3, 24]",
        ),
        ("awq", &set("group_size", json!(24)), "`l.q_proj.qzeros`: it has shape [3, 3], expected [2, 3]"),
        (
            "awq",
            &retype("l.q_proj.weight", Dtype::F16, &[24, 48], 2),
            &format!("{q}`l.q_proj.weight` is stored as well"),
        ),
        ("gptq-4", &set("group_size", json!(24)), "`l.q_proj.qzeros`: it has shape [4, 2], expected [3, 2]"),
        ("gptq-4", &set("desc_act", json!(true)), &format!("{q}`l.q_proj.g_idx` is not stored")),
        ("gptq-4", &set("bits", json!(8)), "`l.q_proj.qzeros`: it has shape [4, 2], expected [2, 4]"),
        (
            "gptq-8-ordered",
            &retype("l.q_proj.g_idx", Dtype::I32, &[31], 4),
            "`l.q_proj.g_idx`: it has shape [31], expected [64]",
        ),
        ("packed-4", &remove("a.weight_shape"), "`a.weight_packed`: `a.weight_shape` is not stored"),
        ("packed-4", &retype("a.weight_shape", Dtype::I64, &[2], 8), "`a.weight_shape`: 0 inputs are not 5 words of 8"),
        (
            "packed-4-zero-points",
            &remove("a.weight_zero_point"),
            "`a.weight_packed`: `a.weight_zero_point` is not stored",
        ),
    ];
    for (case, change, said) in cases {
        assert_eq!(fault(case, change), said, "{case}");
    }
}

#[test]
fn a_group_that_is_not_there_is_told_when_the_tensor_is_read() {
    for (case, name, groups) in [("gptq-8-ordered", "l.q_proj.g_idx", 4), ("packed-4-ordered", "a.weight_g_idx", 2)] {
        for (index, shown) in [(groups, groups), (-1, -1)] {
            let said = fault(case, |tensors, _| {
                let (_, _, data) = tensors.get_mut(name).unwrap();
                data[12..16].copy_from_slice(&i32::to_le_bytes(index));
            });
            assert_eq!(said, format!("`{name}`: input 3 is in group {shown}, and there are {groups} groups"));
        }
    }
}
