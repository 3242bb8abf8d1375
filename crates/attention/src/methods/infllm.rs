//! `infllm`: selects whole blocks by a few representative keys of each (InfLLM, Xiao et al. 2024, §3.2).
//!
//! The candidates are cut into blocks of `page` tokens. The representatives of a block are the tokens with the largest
//! mean of `q·k` over the queries of the `window` tokens after them (eq. 3), summed over the query heads of the group;
//! copies of their keys are stored. A decode step scores a block by the sum of `q·k` over its representatives and
//! attends the best blocks whole. A last, shorter block may have fewer representatives; its score is scaled up to match.
//!
//! The paper gives all selected tokens one position, to reach beyond the trained length; here tokens keep their
//! original positions. Blocks are selected for each query head or for the group, not for all heads of a layer together.

#[cfg(feature = "cuda")]
mod cuda;

use super::ParamInfo;
use crate::IndexKey;
use crate::backend::reasons::HostReason;
use crate::backend::scorer::DeviceScorer;
use crate::cost::Cost;
use crate::kv::{KvDtype, KvError, KvStore};
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::scorer::{Growth, NewTokens, Scorer, Segment};
use crate::scored::select::{BASE, Choice, DELTA, EPSILON, PICK, RESCORE, SECOND, SHARE};
use crate::types::prefix_head::KvHeadId;
use crate::types::scores::GroupQueries;
use crate::{Budget, HeadPrefix, PromptNeed, PromptShape, Role, StepShape};
use spattn_kernels::topk::top_k;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "infllm",
    role: Role::Method,
    reference: "InfLLM (Xiao et al. 2024, arXiv:2402.04617)",
    about: "whole blocks by a few representative keys of each",
    params: &[
        ParamInfo { key: "page", default: "128", about: "tokens a block" },
        ParamInfo { key: "ratio", default: "0.0625", about: "share of the context read as blocks, above 0 to 1" },
        ParamInfo { key: "k", default: "-", about: "instead of ratio: tokens read as blocks (rounded up to blocks)" },
        ParamInfo { key: "representatives", default: "4", about: "keys that stand for a block" },
        ParamInfo {
            key: "window",
            default: "64",
            about: "tokens whose queries choose the representatives before them",
        },
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
            values: &[
                ("page", "128"),
                ("k", "4096"),
                ("representatives", "4"),
                ("window", "4096"),
                ("sink", "128"),
                ("local", "4096"),
            ],
            source: "InfLLM §4.1: units of 128 tokens with 4 representatives, 32 looked up (Llama 3), 128 initial and \
                     4K local tokens",
        },
        Preset {
            name: "repo",
            values: &[
                ("page", "128"),
                ("k", "2048"),
                ("representatives", "4"),
                ("window", "4096"),
                ("sink", "128"),
                ("local", "4096"),
            ],
            source: "InfLLM's code, config/llama-3-inf-llm.yaml: block_size 128, topk 16, repr_topk 4, n_init 128, n_local \
                     4096",
        },
    ],
    build: |params| {
        let page = params.get_positive("page", 128)?;
        let picker = Choice::by_logits(Budget::Ratio(0.0625)).read(params)?;
        let count = params.get_minor("representatives", 4)?.min(page);
        let window = params.get_minor("window", 64)?;
        let scorer = Representatives { page, count, window };
        Ok(Scored::with(scorer, picker, Granularity::read(params)?).at_least(1).method())
    },
};

/// Sums of `q·k` over the representative keys of blocks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Representatives {
    page: usize,
    count: usize,
    window: usize,
}

impl Scorer for Representatives {
    /// Keys of the representatives, block after block.
    type Index = KvStore;

    fn prompt_needs(&self) -> Vec<PromptNeed> {
        vec![PromptNeed::FollowingScores(self.window)]
    }

    fn index_key(&self) -> IndexKey {
        IndexKey::new(self.clone())
    }

    fn page(&self) -> usize {
        self.page
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<KvStore, KvError> {
        let scores = &prefix.prompt.following_scores(self.window)[prefix.candidates.clone()];
        let blocks = scores.len().div_ceil(self.page);
        let mut representatives = Vec::with_capacity(blocks * self.count);
        for (block, scores) in scores.chunks(self.page).enumerate() {
            let first = (prefix.candidates.start + block * self.page) as u32;
            representatives.extend(top_k(scores, self.count).into_iter().map(|token| first + token));
        }
        let mut keys = KvStore::new(prefix.dtype, 1, prefix.d, blocks * self.count);
        prefix.keys.gather(&representatives)?.chunks_exact(prefix.d).for_each(|key| keys.append(key));
        Ok(keys)
    }

    fn growth(&self) -> Growth {
        Growth::None("representatives are chosen by the queries of the prompt, of which generated tokens have none")
    }

    fn empty(&self, place: KvHeadId, _: Option<&KvStore>) -> KvStore {
        KvStore::new(place.dtype, 1, place.d, 0)
    }

    fn append(&self, _: &mut KvStore, _: usize, _: &NewTokens<'_>) {
        unreachable!("this index covers the prefix only")
    }

    fn index_bytes(&self, keys: &KvStore) -> usize {
        keys.bytes()
    }

    fn scores(
        &self,
        queries: &GroupQueries<'_>,
        segment: &Segment<'_, KvStore>,
        cost: &mut Cost,
    ) -> Result<Vec<f32>, KvError> {
        let (keys, rows) = (segment.index, segment.index.head(0));
        cost.aux_bytes += (rows.elements() * rows.elem_bytes()) as u64;
        let dots = queries.dots(rows, cost);
        let block = |dots: &[f32]| dots.iter().sum::<f32>() * self.count as f32 / dots.len() as f32;
        let of_query = |dots: &[f32]| dots.chunks(self.count).map(block).collect::<Vec<f32>>();
        Ok(dots.chunks_exact(keys.tokens()).flat_map(of_query).collect())
    }

    fn is_linear(&self) -> bool {
        true
    }

    fn device(&self) -> Result<&dyn DeviceScorer, HostReason> {
        Ok(self)
    }
}

impl Representatives {
    /// Number of representatives among the first `tokens` candidates.
    fn of(&self, tokens: usize) -> usize {
        tokens / self.page * self.count + (tokens % self.page).min(self.count)
    }
}

/// The host chooses the representatives when the prefix has been read, by the prompt's statistics, and uploads their keys.
impl DeviceScorer for Representatives {
    fn cost(&self, step: &StepShape) -> Cost {
        let numbers = self.of(step.candidates) * step.d;
        Cost {
            score_flops: (2 * step.group * numbers) as u64,
            aux_bytes: (numbers * step.dtype.bytes()) as u64,
            ..Cost::default()
        }
    }

    fn layer_bytes(&self, prefix: &PromptShape, dtype: KvDtype) -> usize {
        prefix.kv_heads * (self.of(prefix.tokens) + self.count) * prefix.d * dtype.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Stepper, none};
    use crate::{Policy, SelectedTokens, Selection};

    fn best(scores: &[f64], k: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        order.truncate(k);
        order.sort_unstable();
        order
    }

    #[test]
    fn blocks_are_found_as_the_paper_says() {
        let policy = Policy { sink: 3, local: 7, ..none() };
        // 90 candidates: eleven blocks of 8 and one of 2; six of 15.
        for (page, representatives, window) in [(8, 3, 10), (8, 1, 200), (15, 4, 1), (8, 20, 10)] {
            let spec = format!("infllm:page={page},k=24,representatives={representatives},window={window}");
            let mut stepper = Stepper::new(&spec, &policy, 100, 2);
            let weight = |t: usize| -> f64 {
                let followers: Vec<usize> = (t + 1..(t + 1 + window).min(100)).collect();
                let sum: f64 =
                    followers.iter().map(|f| stepper.prompt_logit(*f, 0, t) + stepper.prompt_logit(*f, 1, t)).sum();
                sum / followers.len() as f64
            };
            let blocks: Vec<Vec<usize>> = (3..93).collect::<Vec<_>>().chunks(page).map(<[usize]>::to_vec).collect();
            let stand: Vec<Vec<usize>> = blocks
                .iter()
                .map(|block| {
                    let weights: Vec<f64> = block.iter().map(|t| weight(*t)).collect();
                    best(&weights, representatives).into_iter().map(|i| block[i]).collect()
                })
                .collect();
            for _ in 0..5 {
                let (selection, _) = stepper.step();
                let of_head = |head: usize| {
                    let mean = |stand: &Vec<usize>| {
                        stand.iter().map(|t| stepper.logit(head, *t)).sum::<f64>() / stand.len() as f64
                    };
                    let scores: Vec<f64> = stand.iter().map(mean).collect();
                    let chosen = best(&scores, 24usize.div_ceil(page)).into_iter();
                    SelectedTokens::softmax(chosen.flat_map(|b| blocks[b].iter().map(|t| *t as u32)).collect())
                };
                assert_eq!(selection, Selection::PerHead(vec![of_head(0), of_head(1)]), "{spec}");
            }
        }
    }

    #[test]
    fn representatives_are_all_it_stores_and_scores() {
        let mut stepper = Stepper::new("infllm:page=10,representatives=2,k=10", &none(), 100, 1);
        let (_, cost) = stepper.step();
        assert_eq!(cost.aux_bytes as usize, 20 * stepper.d() * 4);
        assert_eq!(cost.score_flops as usize, 2 * 20 * stepper.d());
        assert_eq!(cost.kv_bytes, 0);
    }
}
