//! The scorer by learned signatures.

use std::sync::Arc;

use crate::IndexKey;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::calibration::artefact::{Artefact, ArtefactError, ModelShape};
use crate::cost::Cost;
use crate::kv::KvError;
use crate::methods::hash_attention::kind::{KEY_NETS, NAME, NETS, NetKind, RELEASED, TEXT, TRAINING, in_blocks};
use crate::methods::hash_attention::net::SignNet;
use crate::methods::signatures::{Signatures, Ties, words_of};
use crate::scored::granularity::Reduce;
use crate::scored::scorer::{Growth, NewTokens, Scorer, ScorerCalibration, Segment};
use crate::types::prefix_head::{HeadPrefix, KvHeadId};
use crate::types::scores::GroupQueries;

/// Scores candidates by minus the Hamming distance of learned signatures.
#[derive(Clone)]
pub(crate) struct LearnedSignatures {
    pub(super) kind: NetKind,
    /// Preset with which the nets have to be trained, or `any`.
    pub(super) trained: &'static str,
    /// Kind of text on which the nets have to be trained, or `any`.
    pub(super) text: &'static str,
    pub(super) ties: Ties,
    pub(super) nets: Option<Nets>,
}

/// Nets of all heads, and the hash of their artefact.
#[derive(Clone)]
pub(super) struct Nets {
    pub(super) layers: Arc<Vec<LayerNets>>,
    sha256: String,
}

/// Nets of one layer of the model.
pub(super) struct LayerNets {
    /// Key nets of each KV head: one, or one for each query head of its group.
    pub(super) keys: Vec<Vec<SignNet>>,
    /// Query nets, one for each query head.
    pub(super) queries: Vec<SignNet>,
}

impl Scorer for LearnedSignatures {
    /// Signatures of the candidates by each key net.
    type Index = Vec<Signatures>;

    fn calibration(&self) -> Option<ScorerCalibration<Self>> {
        Some(ScorerCalibration { kind: NAME, load: Self::with_nets })
    }

    /// Leaves out `trained` and `text`, which only say which artefact is accepted, and `ties`, which orders scores.
    fn index_key(&self) -> IndexKey {
        let Self { kind, trained: _, text: _, ties: _, nets } = self;
        IndexKey::new((*kind, nets.as_ref().map(|nets| nets.sha256.clone())))
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Vec<Signatures>, KvError> {
        let place = KvHeadId::from(prefix);
        let mut of_nets: Vec<Vec<u32>> = self.key_signatures(place, &[]).collect();
        prefix.candidate_keys().each_block(1, |keys| {
            of_nets.iter_mut().zip(self.key_signatures(place, keys)).for_each(|(words, more)| words.extend(more));
        })?;
        Ok(of_nets.iter().map(|words| Signatures::new(words, words_of(self.kind.bits))).collect())
    }

    fn growth(&self) -> Growth {
        Growth::Free("signatures of new keys are appended")
    }

    fn empty(&self, place: KvHeadId, like: Option<&Vec<Signatures>>) -> Vec<Signatures> {
        let nets = self.layer(place.layer).keys[place.kv_head].len();
        let words = words_of(self.kind.bits);
        (0..nets).map(|net| Signatures::empty_behind(like.map(|like| &like[net]), words)).collect()
    }

    fn append(&self, index: &mut Vec<Signatures>, kept: usize, new: &NewTokens<'_>) {
        let of_nets = self.key_signatures(new.place, new.keys);
        index.iter_mut().zip(of_nets).for_each(|(signatures, new)| signatures.replace_from(kept, &new));
    }

    fn index_bytes(&self, index: &Vec<Signatures>) -> usize {
        index.iter().map(Signatures::bytes).sum()
    }

    fn scores(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, Vec<Signatures>>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        let (group, of_heads) = (queries.group(), self.query_signatures(queries, cost));
        Ok(match segment.index.as_slice() {
            [shared] => shared.counted_scores(&of_heads.concat(), group, self.ties, cost),
            own => {
                let heads = own.iter().zip(of_heads);
                heads.flat_map(|(own, query)| own.counted_scores(&query, group, self.ties, cost)).collect()
            }
        })
    }

    /// If the group shares a key net, distances of a single row are summed over the group before scores are written.
    fn sums(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, Vec<Signatures>>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        Ok(match segment.index.as_slice() {
            [shared] if queries.rows == 1 => {
                let signatures = self.query_signatures(queries, cost).concat();
                shared.counted_sums(&signatures, self.ties, cost)
            }
            _ => Reduce::Sum.apply(&self.scores(queries, segment, cost)?, queries.rows * segment.index[0].candidates()),
        })
    }

    fn device(&self) -> Result<&dyn DeviceScorer, HostReason> {
        Ok(self)
    }
}

impl LearnedSignatures {
    /// Signatures of all queries by the net of their head, `[head][row][word]`; counts the cost.
    fn query_signatures(&self, queries: &GroupQueries<'_>, cost: &mut Cost) -> Vec<Vec<u32>> {
        let group = queries.group();
        let nets = &self.layer(queries.layer).queries[queries.kv_head * group..][..group];
        cost.score_flops += nets.iter().map(SignNet::flops).sum::<u64>() * queries.rows as u64;
        cost.aux_bytes += nets.iter().map(SignNet::bytes).sum::<usize>() as u64;
        nets.iter().enumerate().map(|(h, net)| net.signatures(queries.head(h))).collect()
    }

    /// A scorer for nets of this kind, however they were trained; the nets are not loaded yet.
    pub(super) fn of_kind(kind: NetKind) -> Self {
        Self { kind, trained: "any", text: "any", ties: Ties::First, nets: None }
    }

    /// Signatures of `keys: [token][d]` by each key net, `[token][word]`.
    fn key_signatures(&self, place: KvHeadId, keys: &[f32]) -> impl Iterator<Item = Vec<u32>> {
        self.layer(place.layer).keys[place.kv_head].iter().map(move |net| in_blocks(net, keys, place.d))
    }

    /// Checks that an artefact holds the nets that the parameters ask for.
    fn check(&self, artefact: &Artefact) -> Result<(), ArtefactError> {
        if self.trained == "any" && self.text == "any" {
            return artefact.check_setting(NETS, &self.kind.to_string());
        }
        if artefact.setting(NETS)? != self.kind.to_string() {
            return artefact.check_setting(NETS, &self.asked());
        }
        let training = artefact.setting(TRAINING)?;
        if self.trained == "released" && training != RELEASED {
            return Err(artefact.not_imported(TRAINING, training));
        }
        let is_trained_so = match self.trained {
            "any" | "released" => true,
            preset => training == super::collector::training_of(preset),
        };
        if !is_trained_so {
            return artefact.check_setting(TRAINING, &self.asked());
        }
        match self.text == "any" || self.text == text_of(artefact) {
            true => Ok(()),
            false => Err(artefact.of_other_setting(TEXT, text_of(artefact), &self.asked())),
        }
    }

    /// The parameters of `spattn calibrate` that train the nets asked for; error texts put them after the method's name.
    fn asked(&self) -> String {
        let NetKind { bits, by_norm, by_query_head } = self.kind;
        let (label, nets) = (if by_norm { "av" } else { "a" }, if by_query_head { "query_head" } else { "kv_head" });
        let preset = match self.trained {
            "any" | "released" => String::new(),
            preset => format!("preset={preset},"),
        };
        let text = if self.text == "any" { String::new() } else { format!(",{TEXT}={}", self.text) };
        format!("{preset}bits={bits},label={label},{}={nets}{text}", KEY_NETS.key)
    }

    pub(super) fn with_nets(&self, artefact: &Artefact) -> Result<Self, ArtefactError> {
        self.check(artefact)?;
        let ModelShape { layers, heads, kv_heads, head_dim: d, .. } = artefact.info().model;
        let bits = self.kind.bits;
        let each = self.kind.key_nets(artefact.info().model.group());
        let layer = |layer: usize| {
            let keys = SignNet::read(artefact, layer, "key", kv_heads * each, d, bits)?;
            Ok(LayerNets {
                keys: keys.chunks_exact(each).map(<[SignNet]>::to_vec).collect(),
                queries: SignNet::read(artefact, layer, "query", heads, d, bits)?,
            })
        };
        let layers = (0..layers).map(layer).collect::<Result<_, ArtefactError>>()?;
        let nets = Nets { layers: Arc::new(layers), sha256: artefact.sha256().to_owned() };
        Ok(Self { nets: Some(nets), ..self.clone() })
    }

    pub(super) fn layer(&self, layer: usize) -> &LayerNets {
        &self.nets.as_ref().expect("a run calibrates its methods before it builds").layers[layer]
    }
}

/// The kind of text that an artefact's nets were trained on. Without the setting, it follows from the name of the text.
fn text_of(artefact: &Artefact) -> &str {
    let is_of_rows = artefact.info().data.starts_with("training rows");
    artefact.setting(TEXT).unwrap_or(if is_of_rows { "tasks" } else { "not known" })
}
