//! Writes a document to a safetensors file, for other programs such as `scripts/referee/`.
//!
//! For each examined layer `L`: `layers.L.queries` `[step][head][d]`, `layers.L.keys` and `layers.L.values` `[kv_head][token][d]`, in
//! single precision; queries and keys are rotated, queries are unscaled. The steps are the last tokens; each attends itself and all tokens
//! before it. For each method `M` and such a layer: `methods.M.layers.L.picks` `[step][head][most]` (positions, padded with −1),
//! `methods.M.layers.L.exact` `[step][2]` (the end of the sink, the start of the recent tokens) and `methods.M.layers.L.outputs`
//! `[step][head][d]`. The metadata holds task, number, context, tokens, the model's shape, the layers and the methods' names.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::json;

use super::picked::picks_of;
use super::{Choices, Document, Method};
use spattn_eval::folder::owned_files;

/// A named tensor.
struct Tensor {
    name: String,
    shape: Vec<usize>,
    dtype: Dtype,
    bytes: Vec<u8>,
}

impl Tensor {
    fn of(name: String, shape: &[usize], numbers: impl IntoIterator<Item = f32>) -> Self {
        let bytes = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
        Self { name, shape: shape.to_vec(), dtype: Dtype::F32, bytes }
    }

    fn of_whole(name: String, shape: &[usize], numbers: impl IntoIterator<Item = i32>) -> Self {
        let bytes = numbers.into_iter().flat_map(i32::to_le_bytes).collect();
        Self { name, shape: shape.to_vec(), dtype: Dtype::I32, bytes }
    }
}

/// The name of the folder of dumps within an analysis's folder.
pub const DUMP: &str = "dump";

/// Writes a document and the tokens that methods select in it to `dump/NNNN.safetensors` below `folder`, and returns the file's path.
///
/// # Errors
/// If the path holds a file that this program did not write, or the file cannot be written.
pub fn write(document: &Document, number: usize, methods: &[Method], folder: &Path) -> Result<PathBuf> {
    let mut tensors = Vec::new();
    for layer in &document.layers {
        tensors.extend(of_layer(document, *layer)?);
    }
    for (at, method) in methods.iter().enumerate() {
        let choices = document.choices(&method.configured, &mut document.cache())?;
        let outputs = document.outputs(&method.configured, &mut document.cache())?;
        tensors.extend(of_method(document, at, &choices, &outputs));
    }
    let labels: Vec<String> = methods.iter().map(|method| method.configured.label()).collect();
    let about = json!({
        "task": document.task,
        "number": document.number,
        "context": document.context(),
        "heads": document.heads,
        "kv_heads": document.kv_heads(),
        "head_dim": document.d(),
        "layers": document.layers,
        "tokens": document.ids,
        "methods": labels,
    });
    let views = tensors.iter().map(|tensor| {
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
        view.map(|view| (tensor.name.as_str(), view))
    });
    let views = views.collect::<Result<Vec<_>, _>>().context("a tensor has another size than its shape")?;
    let metadata = HashMap::from([("spattn".to_owned(), about.to_string())]);
    let bytes = serialize(views, Some(metadata)).context("cannot put tensors into a file")?;
    let written = owned_files::write_all(folder, &[(format!("{DUMP}/{number:04}.safetensors"), bytes)])?;
    written.into_iter().next().context("nothing was written")
}

fn of_layer(document: &Document, layer: usize) -> Result<[Tensor; 3]> {
    let heads = (0..document.kv_heads()).map(|kv_head| document.head(layer, kv_head));
    let heads = heads.collect::<Result<Vec<_>, _>>()?;
    let (d, shape) = (document.d(), [document.kv_heads(), document.ids.len(), document.d()]);
    let queries = document.queries(layer).iter().copied();
    Ok([
        Tensor::of(format!("layers.{layer}.queries"), &[document.steps(), document.heads, d], queries),
        Tensor::of(format!("layers.{layer}.keys"), &shape, heads.iter().flat_map(|head| head.keys.iter().copied())),
        Tensor::of(format!("layers.{layer}.values"), &shape, heads.iter().flat_map(|head| head.values.iter().copied())),
    ])
}

fn of_method(document: &Document, at: usize, choices: &Choices, outputs: &[f32]) -> Vec<Tensor> {
    let (steps, heads, d) = (document.steps(), document.heads, document.d());
    let group = heads / document.kv_heads();
    let mut tensors = Vec::new();
    for (index, layer) in document.layers.iter().enumerate() {
        let name = |what: &str| format!("methods.{at}.layers.{layer}.{what}");
        let of_layer = &choices[index];
        let picks: Vec<&[u32]> = (0..steps * heads)
            .map(|at| {
                let (step, head) = (at / heads, at % heads);
                picks_of(&of_layer[step][head / group], head % group).map_or(&[][..], |picks| &picks.tokens)
            })
            .collect();
        let most = picks.iter().map(|picks| picks.len()).max().unwrap_or(0);
        let padded = picks
            .iter()
            .flat_map(|picks| (0..most).map(|i| picks.get(i).map_or(-1, |token| i32::try_from(*token).unwrap_or(-1))));
        tensors.push(Tensor::of_whole(name("picks"), &[steps, heads, most], padded));
        let exact = of_layer.iter().flat_map(|heads| {
            let exact = heads[0].exact;
            [exact.sink, exact.recent].map(|token| i32::try_from(token).unwrap_or(i32::MAX))
        });
        tensors.push(Tensor::of_whole(name("exact"), &[steps, 2], exact));
        let size = steps * heads * d;
        let own = outputs[index * size..][..size].iter().copied();
        tensors.push(Tensor::of(name("outputs"), &[steps, heads, d], own));
    }
    tensors
}
