//! Imports nets that the authors of HashAttention released.
//!
//! Their checkpoint is the state of a list of modules, one for each layer of the model. For every query head it has
//! tensors `{layer}.learning_to_hash_transformation_{k,q}.{head}.{0,2,4}.weight` `[output][input]` and `.bias`
//! `[output]` of three affine layers with SiLU between them. `scripts/import_hash_attention.py` writes it as
//! safetensors. Weights are rounded to 16 bits, as in all nets here.

use std::collections::BTreeMap;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};

use super::net::{Affine, LAYERS, SignNet};
use crate::calibration::artefact::ModelShape;
use crate::calibration::collector::Collected;
use crate::methods::hash_attention::kind::{NETS, NetKind, RELEASED, TRAINING};

/// The artefact's contents from the bytes of a safetensors file with the checkpoint's names.
///
/// # Errors
/// If the file does not fit the model; one line says why.
pub(super) fn import(model: &ModelShape, bytes: &[u8]) -> Result<Collected, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| format!("it is no safetensors file: {e}"))?;
    let checkpoint = Checkpoint { file, d: model.head_dim };
    let bits = checkpoint.tensor(&name(0, 'k', 0, LAYERS - 1, "bias"))?.1.len();
    if !(1..=NetKind::MOST_BITS).contains(&bits) {
        return Err(format!("its nets have {bits} bits, and 1 to {} are read", NetKind::MOST_BITS));
    }
    let layers = checkpoint.layers();
    if layers != model.layers {
        return Err(format!("it has nets for {layers} layers, and the model has {}", model.layers));
    }
    if checkpoint.has(&name(0, 'q', model.heads, 0, "weight")) {
        return Err(format!("it has nets for more heads than the {} of the model", model.heads));
    }
    let mut tensors = Vec::new();
    for layer in 0..layers {
        for (letter, side) in [('k', "key"), ('q', "query")] {
            let nets: Result<Vec<SignNet>, String> =
                (0..model.heads).map(|head| checkpoint.net(layer, letter, head, bits)).collect();
            tensors.extend(SignNet::tensors(&nets?, layer, side));
        }
    }
    let kind = NetKind { bits, by_norm: false, by_query_head: true };
    let settings = BTreeMap::from([
        (NETS.to_owned(), kind.to_string()),
        (TRAINING.to_owned(), RELEASED.to_owned()),
        ("vectors".to_owned(), "after RoPE, as cached".to_owned()),
    ]);
    let notes = vec![format!(
        "nets for {layers} layers and {} query heads, {bits} bits: -m hash_attention:trained=released,bits={bits},key_nets=query_head",
        model.heads
    )];
    Ok(Collected { tensors, settings, notes, held_out: None })
}

fn name(layer: usize, side: char, head: usize, part: usize, what: &str) -> String {
    format!("{layer}.learning_to_hash_transformation_{side}.{head}.{}.{what}", 2 * part)
}

struct Checkpoint<'a> {
    file: SafeTensors<'a>,
    d: usize,
}

impl Checkpoint<'_> {
    fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_ok()
    }

    /// Number of the model's layers that have nets.
    fn layers(&self) -> usize {
        (0..).take_while(|layer| self.has(&name(*layer, 'k', 0, 0, "weight"))).count()
    }

    /// Shape and values of a tensor, by name.
    fn tensor(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), String> {
        let tensor = self.file.tensor(name).map_err(|_| format!("it has no tensor `{name}`"))?;
        let (data, dtype) = (tensor.data(), tensor.dtype());
        let values: Vec<f32> = match dtype {
            Dtype::F32 => data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::F16 => data.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            Dtype::BF16 => data.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            other => {
                return Err(format!("tensor `{name}` has numbers of type {other:?}, and F32, F16 and BF16 are read"));
            }
        };
        match values.iter().all(|x| x.is_finite()) {
            true => Ok((tensor.shape().to_vec(), values)),
            false => Err(format!("tensor `{name}` holds numbers that are not finite")),
        }
    }

    fn net(&self, layer: usize, side: char, head: usize, bits: usize) -> Result<SignNet, String> {
        if !self.has(&name(layer, side, head, LAYERS - 1, "weight")) {
            return Err(format!(
                "its nets do not have {LAYERS} layers: no `{}`",
                name(layer, side, head, LAYERS - 1, "weight")
            ));
        }
        let part = |part: usize| -> Result<Affine, String> {
            let outputs = if part + 1 == LAYERS { bits } else { self.d };
            let numbers = |what: &str, expected: &[usize]| -> Result<Vec<f32>, String> {
                let name = name(layer, side, head, part, what);
                let (shape, values) = self.tensor(&name)?;
                let misfit =
                    || format!("tensor `{name}` has shape {shape:?}, and the model's heads ask for {expected:?}");
                if shape == expected { Ok(values) } else { Err(misfit()) }
            };
            Ok(Affine::new(&numbers("weight", &[outputs, self.d])?, numbers("bias", &[outputs])?))
        };
        Ok(SignNet::new([part(0)?, part(1)?, part(2)?]))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use safetensors::tensor::{TensorView, serialize};

    use super::super::super::tests::noise;
    use super::*;

    const MODEL: (usize, usize, usize) = (2, 4, 8);

    /// Shape and values of tensors, by name.
    type Tensors = HashMap<String, (Vec<usize>, Vec<f32>)>;

    fn model() -> ModelShape {
        let (layers, heads, head_dim) = MODEL;
        ModelShape { weights_sha256: "x".into(), layers, heads, kv_heads: 2, head_dim }
    }

    /// A checkpoint with the names and shapes of the authors' code.
    fn checkpoint(bits: usize, parts: usize) -> Tensors {
        let (layers, heads, d) = MODEL;
        let mut all = HashMap::new();
        for (layer, head, side) in (0..layers).flat_map(|l| (0..heads).flat_map(move |h| [(l, h, 'k'), (l, h, 'q')])) {
            for part in 0..parts {
                let outputs = if part + 1 == parts { bits } else { d };
                let seed = (((layer * heads + head) * 2 + usize::from(side == 'q')) * 8 + part) as u64;
                let place = format!("{layer}.learning_to_hash_transformation_{side}.{head}.{}", 2 * part);
                all.insert(format!("{place}.weight"), (vec![outputs, d], noise(outputs * d, 100 + seed)));
                all.insert(format!("{place}.bias"), (vec![outputs], noise(outputs, 9_000 + seed)));
            }
        }
        all
    }

    fn bytes(checkpoint: &Tensors) -> Vec<u8> {
        let stored: HashMap<&String, Vec<u8>> = checkpoint
            .iter()
            .map(|(name, (_, values))| (name, values.iter().flat_map(|x| x.to_le_bytes()).collect()))
            .collect();
        let views = checkpoint
            .iter()
            .map(|(name, (shape, _))| (name, TensorView::new(Dtype::F32, shape.clone(), &stored[name]).unwrap()));
        serialize(views, None).unwrap()
    }

    /// The outputs of every net equal those of three products by loops.
    #[test]
    fn released_nets_are_those_of_the_checkpoint() {
        let (layers, heads, d) = MODEL;
        let all = checkpoint(5, LAYERS);
        let found = import(&model(), &bytes(&all)).unwrap();
        assert_eq!(found.settings[NETS], "bits=5,label=a,key_nets=query_head");
        assert_eq!(found.settings[TRAINING], RELEASED);
        let stored: HashMap<&str, &Vec<f32>> = found.tensors.iter().map(|t| (t.name.as_str(), &t.values)).collect();
        let x = noise(d, 77);
        for (layer, head) in (0..layers).flat_map(|l| (0..heads).map(move |h| (l, h))) {
            for (letter, side) in [('k', "key"), ('q', "query")] {
                let mut given: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                let mut ours = given.clone();
                for part in 0..LAYERS {
                    let place = format!("{layer}.learning_to_hash_transformation_{letter}.{head}.{}", 2 * part);
                    let (weight, bias) = (&all[&format!("{place}.weight")].1, &all[&format!("{place}.bias")].1);
                    let outputs = bias.len();
                    let own = |what: &str, size: usize| {
                        let values = stored[format!("layers.{layer}.{side}.{part}.{what}").as_str()];
                        values[head * size..(head + 1) * size].to_vec()
                    };
                    let apply = |x: &[f64], weight: &[f32], bias: &[f32]| -> Vec<f64> {
                        let dot = |o: usize| (0..d).map(|i| f64::from(weight[o * d + i]) * x[i]).sum::<f64>();
                        let out = (0..outputs).map(|o| dot(o) + f64::from(bias[o]));
                        let silu = |z: f64| if part + 1 == LAYERS { z } else { z / (1.0 + (-z).exp()) };
                        out.map(silu).collect()
                    };
                    given = apply(&given, weight, bias);
                    ours = apply(&ours, &own("weight", outputs * d), &own("bias", outputs));
                }
                let far = given.iter().zip(&ours).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(far < 0.02, "layer {layer}, head {head}, {side}: {far}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let said = |change: &dyn Fn(&mut Tensors)| {
            let mut all = checkpoint(5, LAYERS);
            change(&mut all);
            import(&model(), &bytes(&all)).unwrap_err()
        };
        let of = |part: usize, what: &str| name(1, 'q', 3, part, what);
        assert!(import(&model(), b"x").unwrap_err().contains("no safetensors file"));
        assert!(
            said(&|all| drop(all.remove(&of(1, "bias"))))
                .contains("no tensor `1.learning_to_hash_transformation_q.3.2.bias`")
        );
        assert!(said(&|all| all.get_mut(&of(0, "bias")).unwrap().1[2] = f32::NAN).contains("not finite"));
        assert!(
            said(&|all| drop(all.insert(of(0, "weight"), (vec![4, 16], vec![1.0; 64])))).contains("has shape [4, 16]")
        );
        assert!(import(&model(), &bytes(&checkpoint(5, 2))).unwrap_err().contains("no tensor `0.learning"));
        let (layers, heads) = (ModelShape { layers: 3, ..model() }, ModelShape { heads: 2, ..model() });
        assert!(
            import(&layers, &bytes(&checkpoint(5, LAYERS))).unwrap_err().contains("for 2 layers, and the model has 3")
        );
        assert!(import(&heads, &bytes(&checkpoint(5, LAYERS))).unwrap_err().contains("more heads than the 2"));
    }
}
