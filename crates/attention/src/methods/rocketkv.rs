//! `rocketkv`: evicts most tokens after the prefix and selects pages of the rest at each step (RocketKV, Behnam et al.
//! 2025, arXiv:2502.14051).
//!
//! The first stage is SnapKV's for a GQA group: the votes of the last `window` queries, summed over the group and pooled
//! over `kernel` neighbours, choose `keep` tokens; the window is kept too. The second is the paper's hybrid attention. The
//! kept tokens form pages of `page` tokens, in order; the minimum and maximum of each channel are stored for each page. A
//! decode step takes the `r` channels with the largest `Σ|q|` over the group. The bound of a channel is the maximum if the
//! group's queries sum to more than 0 there, else the minimum, so only one of the two is read. As in SparQ, scores are
//! divided by `√(d·Σ|q̂|/Σ|q|)`, with `q̂` the query on those channels. Each query head turns them into softmax weights
//! over all kept tokens; weights are summed over the heads, and all heads attend the best pages that hold `k` tokens.
//!
//! The paper splits the compression evenly between the stages: `keep=auto` is `√(k·n)` for `n` candidates. Its first stage
//! chooses the pooling width by the prompt's length; here it is `kernel`. Where the paper is silent, NVIDIA's implementation in
//! TensorRT-LLM is followed. There, generated tokens fill pages of their own; here all tokens after the prefix are attended.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::ParamInfo;
use super::snapkv::SnapKv;
use crate::IndexKey;
use crate::cost::Cost;
use crate::kv::{KvError, KvStore, MOST_TOKENS};
use crate::methods::{MethodEntry, Preset};
use crate::types::channels::Channels;
use crate::{Budget, Context, HeadPrefix, Method, PromptNeed, Role, SelectedTokens, Selection, Step, TailRule};
use spattn_base::clock;
use spattn_kernels::topk::top_k;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "rocketkv",
    role: Role::Method,
    about: "evicts after the prefix as snapkv does, then pages by bounds on few channels",
    reference: "RocketKV (Behnam et al. 2025, arXiv:2502.14051)",
    params: &[
        ParamInfo { key: "page", default: "4", about: "tokens a page" },
        ParamInfo { key: "r", default: "d/2", about: "channels of the queries: a number, or a share d/N of the head" },
        ParamInfo { key: "k", default: "64", about: "tokens read as pages (rounded up to pages)" },
        ParamInfo {
            key: "ratio",
            default: "-",
            about: "instead of k: share of the context read as pages, above 0 to 1",
        },
        ParamInfo {
            key: "keep",
            default: "auto",
            about: "tokens kept of those before the window, or auto: as many as split the compression evenly",
        },
        ParamInfo {
            key: "window",
            default: "32",
            about: "last tokens of the prefix, whose queries vote; kept as well",
        },
        ParamInfo { key: "kernel", default: "63", about: "tokens pooled around each one, an odd number" },
    ],
    presets: &[Preset {
        name: "repo",
        values: &[
            ("page", "4"),
            ("r", "d"),
            ("k", "64"),
            ("keep", "2016"),
            ("window", "32"),
            ("kernel", "63"),
            ("sink", "0"),
            ("local", "0"),
        ],
        source: "TensorRT-LLM, RocketSparseAttentionConfig: page_size 4, topr 128 (of 128 channels), topk 64, prompt_budget 2048 \
                 with a window of 32, kernel 63",
    }],
    build: |params| {
        let page = params.get_minor("page", 4)?;
        let r = Channels::read(params, "r", Channels::Share(2))?;
        let budget = params.budget(Budget::Tokens(64))?;
        let keep = params.get_minor_as("keep", Keep::Auto, "auto or a whole number from 1")?;
        let window = params.get_minor("window", 32)?;
        let kernel = params.get_minor("kernel", 63)?;
        if kernel % 2 == 0 {
            return Err(params.bad_value("kernel", &kernel.to_string(), "an odd number"));
        }
        Ok(Arc::new(RocketKv { page, r, budget, keep, snapkv: SnapKv::of_group(window, kernel) }))
    },
};

/// Eviction, then selection of pages of the kept tokens.
struct RocketKv {
    page: usize,
    r: Channels,
    budget: Budget,
    keep: Keep,
    snapkv: SnapKv,
}

/// Tokens that the first stage keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Keep {
    /// The geometric mean of the candidates and the tokens read in a step.
    Auto,
    /// A fixed number.
    Tokens(usize),
}

impl FromStr for Keep {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let tokens = || text.parse().ok().filter(|n| (1..=MOST_TOKENS).contains(n));
        if text == "auto" { Ok(Self::Auto) } else { tokens().map(Self::Tokens).ok_or(()) }
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Tokens(n) => write!(f, "{n}"),
        }
    }
}

impl Keep {
    fn tokens(self, budget: Budget, context: Context) -> usize {
        match self {
            Self::Auto => ((budget.tokens(context) * context.candidates()) as f64).sqrt().ceil() as usize,
            Self::Tokens(n) => n,
        }
    }
}

/// The candidates of a KV head that the first stage kept, and the bounds of their pages.
struct Kept {
    /// Kept tokens, ascending.
    tokens: Vec<u32>,
    /// Channel-wise minimum and maximum of each page, `[page][d]`.
    min: KvStore,
    max: KvStore,
}

impl RocketKv {
    /// The candidates that the first stage keeps, ascending.
    fn left(&self, prefix: &HeadPrefix<'_>) -> Result<Vec<u32>, KvError> {
        let (candidates, tokens) = (prefix.candidates.clone(), prefix.tokens());
        let window = tokens.saturating_sub(self.snapkv.window).clamp(candidates.start, candidates.end);
        let before = HeadPrefix { candidates: candidates.start..window, ..prefix.clone() };
        let keep = self.keep.tokens(self.budget, prefix.context());
        let votes = self.snapkv.pooled_votes(&before)?.pop().unwrap_or_default();
        let first = candidates.start as u32;
        let best = top_k(&votes, keep).into_iter().map(|place| place + first);
        Ok(best.chain(window as u32..candidates.end as u32).collect())
    }

    /// The channels with the largest `Σ|q|` over the group, and whether the queries sum to more than 0 there.
    fn channels(&self, queries: &[f32], d: usize) -> Vec<(usize, bool)> {
        let sum = |c: usize, of: fn(f32) -> f32| queries.iter().skip(c).step_by(d).map(|q| of(*q)).sum::<f32>();
        let sizes: Vec<f32> = (0..d).map(|c| sum(c, f32::abs)).collect();
        let best = top_k(&sizes, self.r.of(d));
        best.into_iter().map(|c| (c as usize, sum(c as usize, |q| q) > 0.0)).collect()
    }

    /// Weight of each page, summed over the query heads.
    fn page_weights(&self, step: &Step<'_>, kept: &Kept, cost: &mut Cost) -> Vec<f32> {
        let (d, pages) = (step.d, kept.min.tokens());
        let channels = self.channels(step.queries, d);
        let bounds = [kept.min.head(0).to_f32(), kept.max.head(0).to_f32()];
        let held = |page: usize| (kept.tokens.len() - page * self.page).min(self.page) as f32;
        let mut sums = vec![0.0; pages];
        for query in step.queries.chunks_exact(d) {
            let largest: f32 = channels.iter().map(|(c, _)| query[*c].abs()).sum();
            let all: f32 = query.iter().map(|q| q.abs()).sum();
            // A query of zeros gives all pages the same weight.
            let scale =
                if largest > 0.0 { 1.0 / (step.scale.squared_divisor() as f32 * largest / all).sqrt() } else { 0.0 };
            let score = |page: usize| {
                let products = channels.iter().map(|(c, above)| query[*c] * bounds[usize::from(*above)][page * d + c]);
                scale * products.sum::<f32>()
            };
            let scores: Vec<f32> = (0..pages).map(score).collect();
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f32 = scores.iter().enumerate().map(|(page, score)| held(page) * (score - max).exp()).sum();
            sums.iter_mut().zip(scores).for_each(|(sum, score)| *sum += (score - max).exp() / total);
        }
        cost.score_flops += (2 * step.group() * channels.len() * pages) as u64;
        cost.aux_bytes += (channels.len() * pages * kept.min.dtype().bytes()) as u64;
        sums
    }
}

impl Method for RocketKv {
    type Index = Kept;
    type State = ();

    fn required_head_dim(&self) -> Option<(&'static str, usize)> {
        self.r.asked("r")
    }

    fn prompt_needs(&self) -> Vec<PromptNeed> {
        vec![PromptNeed::LastQueries(self.snapkv.window)]
    }

    /// Leaves out `r`: channels are chosen at each step.
    fn index_key(&self) -> IndexKey {
        let Self { page, r: _, budget, keep, snapkv } = self;
        IndexKey::new((*page, *budget, *keep, snapkv.clone()))
    }

    fn build(&self, prefix: &HeadPrefix<'_>) -> Result<Kept, KvError> {
        let (d, tokens) = (prefix.d, self.left(prefix)?);
        let room = tokens.len().div_ceil(self.page);
        let [mut min, mut max] = [(); 2].map(|()| KvStore::new(prefix.dtype, 1, d, room));
        for page in tokens.chunks(self.page) {
            let keys = prefix.keys.gather(page)?;
            let fold = |fold: fn(f32, f32) -> f32| -> Vec<f32> {
                (0..d).map(|c| keys.iter().skip(c).step_by(d).copied().reduce(fold).unwrap_or(0.0)).collect()
            };
            min.append(&fold(f32::min));
            max.append(&fold(f32::max));
        }
        Ok(Kept { tokens, min, max })
    }

    /// Bytes of the bounds and of the list of kept tokens.
    fn index_bytes(&self, kept: &Kept) -> usize {
        kept.min.stored_bytes() + kept.max.stored_bytes() + size_of_val(kept.tokens.as_slice())
    }

    fn start(&self, _: &Kept) {}

    fn tail_rule(&self) -> TailRule {
        TailRule::Exact("its pages are of the prompt's tokens that were kept")
    }

    fn select(&self, step: &Step<'_>, kept: &Kept, (): &mut (), cost: &mut Cost) -> Result<Selection, KvError> {
        let weights = clock::scoring(|| self.page_weights(step, kept, cost));
        cost.select_bytes += 2 * size_of_val(weights.as_slice()) as u64;
        let pages = clock::picking(|| top_k(&weights, self.budget.blocks(step.context, self.page)));
        let tokens = |page: &u32| {
            let start = *page as usize * self.page;
            kept.tokens[start..(start + self.page).min(kept.tokens.len())].to_vec()
        };
        Ok(Selection::Shared(SelectedTokens::softmax(pages.iter().flat_map(tokens).collect())))
    }

    fn resident_candidates(&self, kept: &Kept, (): &()) -> Option<usize> {
        Some(kept.tokens.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{configured, noise, none, prompt_queries, random_stats};
    use crate::kv::{KvDtype, LayerKv, Prefix};
    use crate::{IndexCache, Policy};

    const D: usize = 16;
    const GROUP: usize = 3;
    const TOKENS: usize = 160;

    fn best(scores: &[f64], k: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        order.truncate(k);
        order.sort_unstable();
        order
    }

    fn exact(row: &[f32]) -> Vec<f64> {
        row.iter().map(|x| f64::from(*x)).collect()
    }

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    /// The tokens before the window with the most pooled votes of the group, and the window.
    fn left(keys: &[Vec<f64>], sink: usize, keep: usize, window: usize, kernel: usize) -> Vec<usize> {
        let of_prompt = prompt_queries(0, TOKENS * GROUP * D);
        let mut votes = vec![0.0; TOKENS - window];
        for t in TOKENS - window..TOKENS {
            for head in 0..GROUP {
                let query = exact(&of_prompt[(t * GROUP + head) * D..][..D]);
                let weights: Vec<f64> = keys[..=t].iter().map(|k| (dot(&query, k) / (D as f64).sqrt()).exp()).collect();
                let sum: f64 = weights.iter().sum();
                votes.iter_mut().zip(weights).for_each(|(vote, w)| *vote += w / sum);
            }
        }
        let reach = kernel / 2;
        let pooled = |t: usize| {
            let near = t.saturating_sub(reach)..(t + reach + 1).min(votes.len());
            near.map(|x| votes[x]).fold(0.0, f64::max)
        };
        let pooled: Vec<f64> = (sink..TOKENS - window).map(pooled).collect();
        best(&pooled, keep).into_iter().map(|t| t + sink).chain(TOKENS - window..TOKENS).collect()
    }

    /// Tokens of the best pages of `left`, for a group's queries.
    fn read(keys: &[Vec<f64>], left: &[usize], queries: &[Vec<f64>], page: usize, r: usize, k: usize) -> Vec<usize> {
        let sums: Vec<f64> = (0..D).map(|c| queries.iter().map(|q| q[c].abs()).sum()).collect();
        let channels = best(&sums, r);
        let pages: Vec<&[usize]> = left.chunks(page).collect();
        let mut weights = vec![0.0; pages.len()];
        for query in queries {
            let share =
                channels.iter().map(|c| query[*c].abs()).sum::<f64>() / query.iter().map(|q| q.abs()).sum::<f64>();
            let bound = |page: &[usize]| -> f64 {
                let of_channel = |c: &usize| {
                    let numbers = page.iter().map(|t| keys[*t][*c]);
                    let above = queries.iter().map(|q| q[*c]).sum::<f64>() > 0.0;
                    query[*c] * if above { numbers.fold(f64::MIN, f64::max) } else { numbers.fold(f64::MAX, f64::min) }
                };
                channels.iter().map(of_channel).sum::<f64>() / (D as f64 * share).sqrt()
            };
            let of_tokens: f64 = pages.iter().map(|page| page.len() as f64 * bound(page).exp()).sum();
            weights.iter_mut().zip(&pages).for_each(|(weight, page)| *weight += bound(page).exp() / of_tokens);
        }
        best(&weights, k.div_ceil(page)).into_iter().flat_map(|p| pages[p].to_vec()).collect()
    }

    fn check(spec: &str, sink: usize, [page, r, k, keep, window, kernel]: [usize; 6], sharp: f32) {
        let mut kv = LayerKv::new(KvDtype::F32, 1, D, TOKENS);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for t in 0..TOKENS as u64 {
            let mut key = noise(D, 800 + t);
            if t % 13 == 4 {
                key.iter_mut().for_each(|x| *x *= sharp);
            }
            let value = noise(D, 4_000 + t);
            kv.append(&key, &value);
            keys.push(exact(&key));
            values.push(exact(&value));
        }
        let left = left(&keys, sink, keep, window, kernel);
        let method = configured(spec, &Policy { sink, ..none() });
        let prefix = Prefix::new(vec![kv]);
        let stats = random_stats(&method.method, &prefix, GROUP);
        let mut fork = IndexCache::new(prefix, KvDtype::F32, 1).with_stats(stats).fork(&method, false).unwrap();
        for step in 0..6 {
            let (queries, key, value) = (noise(GROUP * D, 10 + step), noise(D, 20 + step), noise(D, 30 + step));
            let mut out = vec![f32::NAN; GROUP * D];
            fork.step(0, &queries, &key, &value, &mut out).unwrap();
            keys.push(exact(&key));
            values.push(exact(&value));
            let queries: Vec<Vec<f64>> = queries.chunks(D).map(exact).collect();
            let read = read(&keys, &left, &queries, page, r, k);
            let attended: Vec<usize> = (0..sink).chain(read).chain(TOKENS..keys.len()).collect();
            for (head, query) in queries.iter().enumerate() {
                let weights: Vec<f64> =
                    attended.iter().map(|t| (dot(query, &keys[*t]) / (D as f64).sqrt()).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for c in 0..D {
                    let expected = attended.iter().zip(&weights).map(|(t, w)| w * values[*t][c]).sum::<f64>() / sum;
                    let ours = f64::from(out[head * D + c]);
                    assert!((ours - expected).abs() < 1e-5, "{spec}, sharp {sharp}, step {step}, head {head}");
                }
            }
            assert_eq!(fork.kv_tokens_held() as usize, sink + left.len() + keys.len() - TOKENS, "{spec}");
        }
    }

    #[test]
    fn attends_the_best_pages_of_what_the_group_kept() {
        for sharp in [1.0, 3.0] {
            for (sink, [page, r, k, keep, window, kernel]) in [
                (0, [4, 8, 16, 60, 8, 5]),
                (3, [4, 16, 20, 50, 10, 9]),
                (2, [3, 1, 9, 71, 1, 1]),
                (1, [7, 5, 14, 40, 20, 63]),
            ] {
                let numbers = [page, r, k, keep, window, kernel];
                let spec = format!("rocketkv:page={page},r={r},k={k},keep={keep},window={window},kernel={kernel}");
                check(&spec, sink, numbers, sharp);
            }
            // √(8·160) is 35.8: with `keep=auto`, 36 tokens are kept.
            check("rocketkv:page=2,r=d/4,k=8,window=6,kernel=3", 0, [2, 4, 8, 36, 6, 3], sharp);
        }
    }
}
