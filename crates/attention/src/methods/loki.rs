//! `loki`: selects by scores on the leading principal components of the keys (Loki, Singhania et al. 2024).
//!
//! The index holds the candidates' keys projected on the first `rank` components. A decode step projects the query and
//! multiplies it with the index. Calibration finds the principal components of each KV head's keys after RoPE, as
//! cached; the paper also tries keys before RoPE, which is not done here. The paper stores the keys themselves in this
//! basis, which needs no further memory; here keys stay as they are, and the projections are counted as a further copy.
//! The basis belongs to the model and is not counted as index.

#[cfg(feature = "cuda")]
mod cuda;
mod device;

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;

use super::ParamInfo;
use crate::IndexKey;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::calibration::artefact::{Artefact, ArtefactError, ModelShape, NamedTensor, Precision};
use crate::calibration::collector::{Calibration, Collected, Collector, PrefillChunk, Reading, shares_in_words};
use crate::calibration::sums;
use crate::cost::Cost;
use crate::index::pca::{Components, Covariance};
use crate::kv::{KvError, KvStore};
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::scorer::{Growth, NewTokens, Scorer, ScorerCalibration, Segment};
use crate::scored::select::{BASE, Choice, DELTA, EPSILON, PICK, RESCORE, SECOND, SHARE};
use crate::types::channels::Channels;
use crate::types::prefix_head::KvHeadId;
use crate::types::scores::{GroupQueries, dots};
use crate::{Budget, HeadPrefix, Role};
use spattn_kernels::linear::linear_rows;

const NAME: &str = "loki";

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: NAME,
    role: Role::Method,
    about: "top-k by the leading principal components of the keys (needs `spattn calibrate`)",
    reference: "Loki (Singhania et al. 2024, arXiv:2406.02542)",
    params: &[
        ParamInfo { key: "rank", default: "32", about: "components: a number, or a share d/N of the head" },
        ParamInfo {
            key: "ratio",
            default: "0.03",
            about: "share of the context picked beyond the static tokens, above 0 to 1",
        },
        ParamInfo { key: "k", default: "-", about: "instead of ratio: tokens picked" },
        PICK,
        SHARE,
        EPSILON,
        DELTA,
        BASE,
        RESCORE,
        SECOND,
        Granularity::INFO,
        Granularity::REDUCE,
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[("rank", "d/4"), ("ratio", "0.25"), ("sink", "0"), ("local", "0"), ("tail", "indexed")],
            source: "Loki §6: a quarter of the components (d_f 0.25) and a quarter of the tokens (k_f 0.25)",
        },
        Preset {
            name: "repo",
            values: &[("rank", "32"), ("ratio", "0.25"), ("sink", "0"), ("local", "0"), ("tail", "indexed")],
            source: "Loki's code, examples/pca_topk/pca-topk-llama.sh: ranks 64, 32 and 16 (32 here) with a quarter of \
                     the tokens; no window, no dense layer; components of keys after and before RoPE (after, here)",
        },
    ],
    build: |params| {
        let rank = Channels::read(params, "rank", Channels::Count(32))?;
        Ok(Scored::read(params, Loki { rank, basis: None }, Choice::by_logits(Budget::Ratio(0.03)))?.method())
    },
};

pub(super) const CALIBRATION: Calibration = Calibration {
    kind: NAME,
    about: "principal components of the keys",
    params: &[],
    reading: Reading::STATISTICS,
    text: None,
    import: None,
    waiting: |_, _| 0,
    start: |assignment, _| Ok(Box::new(KeyCovariances::new(assignment.model))),
};

/// Scores candidates by `q·k` on the first principal components.
#[derive(Clone)]
struct Loki {
    rank: Channels,
    basis: Option<Basis>,
}

/// Components of all KV heads, and the hash of their artefact.
#[derive(Clone)]
struct Basis {
    /// `[layer][kv_head]`, each `[component][d]`.
    heads: Arc<Vec<Vec<Vec<f32>>>>,
    sha256: String,
}

impl Scorer for Loki {
    /// Projected keys, `[candidate][component]`.
    type Index = KvStore;

    fn ranks_by_products(&self) -> bool {
        true
    }

    fn calibration(&self) -> Option<ScorerCalibration<Self>> {
        Some(ScorerCalibration { kind: NAME, load: Self::with_basis })
    }

    fn required_head_dim(&self) -> Option<(&'static str, usize)> {
        self.rank.asked("rank")
    }

    fn index_key(&self) -> IndexKey {
        let Self { rank, basis } = self;
        IndexKey::new((*rank, basis.as_ref().map(|basis| basis.sha256.clone())))
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<KvStore, KvError> {
        let place = KvHeadId::from(prefix);
        let mut rows = self.empty(place, None);
        rows.truncate(0, prefix.candidates.len());
        prefix.candidate_keys().each_block(1, |keys| self.push(&mut rows, place, keys))?;
        Ok(rows)
    }

    fn growth(&self) -> Growth {
        Growth::Free("new keys are appended on the same components")
    }

    fn empty(&self, place: KvHeadId, _: Option<&KvStore>) -> KvStore {
        KvStore::new(place.dtype, 1, self.rank.of(place.d), 0)
    }

    fn append(&self, rows: &mut KvStore, kept: usize, new: &NewTokens<'_>) {
        rows.truncate(kept, kept);
        self.push(rows, new.place, new.keys);
    }

    fn index_bytes(&self, rows: &KvStore) -> usize {
        rows.stored_bytes()
    }

    fn scores(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, KvStore>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        let components = self.components(queries.layer, queries.kv_head, queries.d);
        let projected = project(queries.queries, components, queries.d);
        cost.score_flops += 2 * (queries.count() * components.len()) as u64;
        let rows = segment.index.head(0);
        cost.aux_bytes += (size_of_val(components) + rows.elements() * rows.elem_bytes()) as u64;
        Ok(dots(&projected, rows, self.rank.of(queries.d), cost))
    }

    fn is_linear(&self) -> bool {
        true
    }

    fn device(&self) -> Result<&dyn DeviceScorer, HostReason> {
        Ok(self)
    }
}

impl Loki {
    /// Appends the projections of `keys: [token][d]`.
    fn push(&self, rows: &mut KvStore, place: KvHeadId, keys: &[f32]) {
        let projected = project(keys, self.components(place.layer, place.kv_head, place.d), place.d);
        projected.chunks_exact(rows.d()).for_each(|row| rows.append(row));
    }

    fn with_basis(&self, artefact: &Artefact) -> Result<Self, ArtefactError> {
        let ModelShape { layers, kv_heads, head_dim: d, .. } = artefact.info().model;
        let layer = |layer: usize| {
            let values = artefact.read_rows(&basis_name(layer), &[kv_heads, d, d], d)?;
            Ok(values.chunks_exact(d * d).map(<[f32]>::to_vec).collect())
        };
        let heads = (0..layers).map(layer).collect::<Result<_, ArtefactError>>()?;
        Ok(Self { basis: Some(Basis { heads: Arc::new(heads), sha256: artefact.sha256().to_owned() }), ..self.clone() })
    }

    /// The first `rank` components of a KV head, `[component][d]`.
    fn components(&self, layer: usize, kv_head: usize, d: usize) -> &[f32] {
        let basis = self.basis.as_ref().expect("a run calibrates its methods before it builds");
        &basis.heads[layer][kv_head][..self.rank.of(d) * d]
    }
}

/// Projects `rows: [row][d]` on `components: [component][d]`: `[row][component]`.
fn project(rows: &[f32], components: &[f32], d: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows.len() / d * (components.len() / d)];
    linear_rows(rows, components, d, &mut out);
    out
}

fn basis_name(layer: usize) -> String {
    format!("layers.{layer}.basis")
}

// ---- calibration ----

/// Collects covariances of the keys, `[layer][kv_head]`.
struct KeyCovariances {
    model: ModelShape,
    heads: Vec<Vec<Covariance>>,
}

impl KeyCovariances {
    fn new(model: &ModelShape) -> Self {
        let heads = vec![vec![Covariance::new(model.head_dim); model.kv_heads]; model.layers];
        Self { model: model.clone(), heads }
    }
}

impl Collector for KeyCovariances {
    fn observe(&mut self, chunk: &PrefillChunk<'_>) -> Result<(), KvError> {
        let (keys, tokens, d) = (&chunk.kv()?.keys, chunk.first..chunk.end(), chunk.d());
        let heads = self.heads[chunk.layer].par_iter_mut().enumerate();
        heads.for_each(|(kv_head, covariance)| {
            covariance.add(&keys.head(kv_head).slice(tokens.clone(), d).to_f32());
        });
        Ok(())
    }

    fn finish(self: Box<Self>) -> Collected {
        let ModelShape { kv_heads, head_dim: d, .. } = self.model;
        let of_layer = |heads: &Vec<Covariance>| heads.par_iter().map(Covariance::components).collect::<Vec<_>>();
        let layers: Vec<Vec<Components>> = self.heads.par_iter().map(of_layer).collect();
        let mut tensors = Vec::new();
        for (layer, heads) in layers.iter().enumerate() {
            let gather = |of: fn(&Components) -> &[f64]| heads.iter().flat_map(of).map(|x| *x as f32).collect();
            let tensor = |name, shape, values| NamedTensor { name, shape, values, precision: Precision::F32 };
            tensors.push(tensor(basis_name(layer), vec![kv_heads, d, d], gather(|c| &c.directions)));
            tensors.push(tensor(format!("layers.{layer}.variance"), vec![kv_heads, d], gather(|c| &c.variances)));
        }
        let variances: Vec<Vec<f64>> = layers.into_iter().flatten().map(|c| c.variances).collect();
        let (components, percents) = shares_in_words(&[d / 8, d / 4, d / 2], d, &variances);
        Collected {
            tensors,
            settings: BTreeMap::from([("keys".to_owned(), "after RoPE, as cached; centred".to_owned())]),
            notes: vec![format!(
                "the first {components} components hold {percents} of the keys' variance (mean over KV heads)"
            )],
            held_out: None,
        }
    }

    fn checkpoint(&self) -> Collected {
        let of_layer = |(layer, heads): (usize, &Vec<Covariance>)| {
            let sums: Vec<f64> = heads.iter().flat_map(Covariance::sums).collect();
            sums::tensor(sums_name(layer), sums)
        };
        Collected { tensors: self.heads.iter().enumerate().map(of_layer).collect(), ..Collected::default() }
    }

    fn restore(&mut self, checkpoint: &Artefact) -> Result<(), ArtefactError> {
        for (layer, heads) in self.heads.iter_mut().enumerate() {
            let mut sums: Vec<Vec<f64>> = heads.iter().map(Covariance::sums).collect();
            sums::restore(checkpoint, &sums_name(layer), sums.iter_mut().flatten())?;
            heads.iter_mut().zip(&sums).for_each(|(head, sums)| head.set_sums(sums));
        }
        Ok(())
    }
}

/// Name of the checkpoint's tensor with a layer's sums.
fn sums_name(layer: usize) -> String {
    format!("layers.{layer}.sums")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{noise, none, prefix, random_artefact, random_kv, run, select};
    use super::*;
    use crate::kv::KvDtype;
    use crate::{SelectedTokens, Selection};

    #[test]
    fn equals_a_naive_reference() {
        let (d, n, rank, k) = (32, 200, 8, 11);
        let kv = random_kv(KvDtype::F32, 1, n, d, 4);
        let queries = noise(2 * d, 6);
        let model = ModelShape { weights_sha256: "random".into(), layers: 1, heads: 2, kv_heads: 1, head_dim: d };
        let basis = random_artefact(NAME, &model).read("layers.0.basis", &[1, d, d]).unwrap();
        let keys = kv.keys.head(0).to_f32();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(x * y)).sum::<f64>();
        let expected = queries.chunks(d).map(|query| {
            let score = |t: u32| {
                let component = |r: usize| &basis[r * d..][..d];
                (0..rank)
                    .map(|r| dot(query, component(r)) * dot(&keys[t as usize * d..][..d], component(r)))
                    .sum::<f64>()
            };
            let mut order: Vec<u32> = (10..190).collect();
            order.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
            order.truncate(k);
            order.sort_unstable();
            SelectedTokens::softmax(order)
        });
        let expected = Selection::PerHead(expected.collect());
        assert_eq!(select(&format!("loki:rank={rank},k={k}"), &kv, &queries, 10..190).0, expected);
    }

    #[test]
    fn all_components_pick_what_topk_picks() {
        let kv = random_kv(KvDtype::F32, 1, 400, 64, 5);
        let queries = noise(3 * 64, 7);
        let exact = select("topk:k=25", &kv, &queries, 0..400).0;
        assert_eq!(select("loki:rank=d,k=25", &kv, &queries, 0..400).0, exact);
    }

    #[test]
    fn projections_are_counted_as_stored_and_read() {
        let prefix = prefix(1, 1, 1000, 32);
        let (_, fork) = run(&prefix, "loki:rank=8,k=10", &none(), 4, 1);
        let cost = fork.costs().total(|_| true);
        assert_eq!(fork.aux_bits(), 8.0 * 32.0, "8 f32 numbers a token");
        assert_eq!(cost.aux_bytes, 1000 * 8 * 4 + 8 * 32 * 4, "projections and basis, once for the group");
        assert_eq!(cost.score_flops, 2 * 4 * (1000 * 8 + 8 * 32));
    }
}
