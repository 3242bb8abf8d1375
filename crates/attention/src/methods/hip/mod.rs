//! `hip`: selects key blocks by a tree search over the keys (HiP, Lee et al. 2024), in decode steps and in prefill.
//!
//! Nothing is stored but the mask in use. The search ([`search`], Algorithm 1) reads `O(k·log(n/k))` keys for a mask of
//! `k` of `n` tokens; the other steps read none. In decoding a mask is estimated whenever the number of generated
//! tokens is divisible by `r_m` (Algorithm 2): for every prompt token that is read sparsely, for the first generated
//! token, and for each `r_m`-th after it. Candidates never become fewer, so a mask stays valid; with `--tail`, tokens
//! that leave the window become candidates of the next mask.
//!
//! Decisions where the paper leaves room:
//! - Algorithm 1 is read as §3.2 states it: chunks and branches are counted in key blocks, `k/b_k` of them (rounded up)
//!   are kept, and a score is the maximum over query rows and sampled keys. Halving rounds up, since rounding to even
//!   would never divide a chunk of two blocks.
//! - A decode step has one query row for each head, so `b_q` and `b_sq`, the size and stride of query blocks in
//!   prefill, have no effect on it. The paper estimates a mask for each head and does not mention groups: that is
//!   `per=query_head`. With `per=kv_head` the group's queries are the rows of one query block and share a mask.
//! - In prefill with `window=block` the candidates of a query block lie between the sink and the `local` tokens up to
//!   its first row, so every row may see all of them; every row attends all tokens after them, up to itself. So no
//!   token falls between mask and window, and the search needs no causal mask. With `window=row`, as in HiP's code,
//!   each row attends its own last `local` tokens. Candidates then end at the window of the last row, and one in or
//!   after the window of a row counts for other rows only (the causal mask of Algorithm 1, line 11).
//! - The paper samples rows and keys at strides without saying where in a stride, and cuts the first chunks at equal
//!   distances. HiP's code takes the last of each stride (`query_offset`, `key_offset`) and cuts at multiples of a
//!   power of two (`chunks`); so does `preset=repo`.
//! - `vd=true` adds AVD's lines to the masks of prefill, beyond the budget ("HiP + VD", §5.2–5.3): the tokens and distances
//!   that the prompt's last queries attend most, as in `vertical_slash`. The paper gives no numbers; the defaults are those
//!   of HiP's code, which votes with products instead of attention, pools them and joins all heads. Decoding has no lines.
//! - Ensemble (§C.5): the paper adds the randomness `r_e` "to the branch direction" where the middle iteration branches out;
//!   §E.9 calls it randomness in branching decisions. So with `n_e` above 1, each search adds to the scores by which its middle
//!   round (the second of two or three) chooses branches a number drawn uniformly from 0 to `r_e`; which keys are scored stays
//!   the same. The paper names neither unit nor distribution: here it is logits, `q·k/√d`. An ensemble of one is plain HiP.
//! - Self-Extend (§C.4) with groups of `self_extend` tokens ([`Grouped`](crate::Grouped)): search and attention see tokens
//!   at a distance of `self_extend_window` or more at grouped positions. So do dense layers, as the paper extends all
//!   layers. Each row has its own window, as in Self-Extend; HiP's code begins it at the first row of a query block. §C.4
//!   names group sizes (4, 8, 16) but no window; 1024 is the default of HiP's code. With `top_r` the rotated queries have
//!   their own channels. `vd=true` is refused, since lines are chosen at original positions. Rotations are not counted, as
//!   for RoPE. A key that is far from some rows of a query block and near to others is scored and counted twice.
//! - Offloading (§3.3): below a GPU with `--kv-tier host --kv-memory`, keys that the search scores and keys and values that attention reads
//!   each have a cache of the least recently used kind, with a vector map. The paper gives no rule of eviction. Its kernels look up a key
//!   where they need it, and so does the search here; tokens to attend are fetched when the mask is made, and stay for its `r_m` steps.
//!   Masks, answers and costs do not depend on it. `offload=true` demands both caches; on a CPU it changes nothing.
//! - A prompt is read at grouped positions only with `--sparse-from prefill`: a dense prefix is shared by all methods.
//!   A method that decodes after `hip>` has its own positions. Prompts beyond the model's context are still refused
//!   without `--allow-extrapolation`: that limit belongs to the run, not to the method.

#[cfg(feature = "cuda")]
mod cuda;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;

use self::search::{Chunks, FarQueries, KeyBlocks, Offset, Queries, Randomness, Representative, Search};
use super::ParamInfo;
use crate::backend::reasons::HostReason;
use crate::cost::Cost;
use crate::kv::{KvError, KvRows, MOST_TOKENS};
use crate::methods::hip::search::Limit;
use crate::methods::{MethodEntry, Preset};
use crate::scored::granularity::{Granularity, try_each_head};
use crate::types::attention_spec::SoftmaxScale;
use crate::{
    BlockMask, Budget, Context, DeviceForm, Grouping, HeadPrefix, Mask, Masks, Method, Params, Positions,
    PrefillPattern, QueryBlock, Role, SearchedMask, SelectedTokens, Selection, StaticTokens, Step, TailRule,
};
use spattn_base::error::UsageError;
use spattn_kernels::topk::top_k;

mod device;

mod lined;

mod search;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "hip",
    role: Role::Method,
    about: "key blocks found by a tree search over chunks, a mask serves several tokens",
    reference: "HiP Attention (Lee et al. 2024, arXiv:2406.09827)",
    params: &[
        ParamInfo {
            key: "k",
            default: "512",
            about: "tokens picked beyond the static ones (rounded up to key blocks)",
        },
        ParamInfo { key: "ratio", default: "-", about: "instead of k: share of the context, above 0 to 1" },
        ParamInfo { key: "b_k", default: "2", about: "tokens a key block" },
        ParamInfo { key: "b_sk", default: "1", about: "stride of the keys scored in a block, at most b_k" },
        ParamInfo { key: "key_offset", default: "first", about: "first | last: which key of each stride is scored" },
        ParamInfo { key: "b_q", default: "32", about: "query rows a block in prefill; a decoding step is one row" },
        ParamInfo { key: "b_sq", default: "2", about: "stride of the query rows scored in a block, at most b_q" },
        ParamInfo { key: "query_offset", default: "first", about: "first | last: which row of each stride is scored" },
        ParamInfo {
            key: "chunks",
            default: "equal",
            about: "equal | aligned: where the search begins; aligned to a power of two as in HiP's code",
        },
        ParamInfo {
            key: "window",
            default: "block",
            about: "block | row: rows of a block attend from the first one's window on, or each its own window",
        },
        ParamInfo { key: "r_m", default: "8", about: "generated tokens that use a mask before the next is estimated" },
        ParamInfo {
            key: "representative",
            default: "middle",
            about: "block that stands for a branch: first, middle, last, or a place between 0 and 1",
        },
        ParamInfo { key: "top_r", default: "all", about: "channels scored, those where the query is largest" },
        ParamInfo { key: "n_e", default: "1", about: "masks in the ensemble, each with randomness; 1 is plain HiP" },
        ParamInfo { key: "theta_vote", default: "1", about: "votes a block needs: 1 is union, n_e intersection" },
        ParamInfo {
            key: "r_e",
            default: "5",
            about: "randomness: most that the middle round adds to a branch's logit",
        },
        ParamInfo { key: "tau", default: "0", about: "1: only the k tokens with most votes; 0: all that have enough" },
        ParamInfo { key: "l_e", default: "all", about: "first layers that use the ensemble; the others use one mask" },
        ParamInfo { key: "vd", default: "false", about: "true: add vertical and diagonal lines in prefill (HiP + VD)" },
        ParamInfo { key: "vertical", default: "32", about: "with vd: tokens that all rows attend, beyond the sinks" },
        ParamInfo {
            key: "slash",
            default: "256",
            about: "with vd: distances at which all rows attend, beyond the window",
        },
        ParamInfo {
            key: "snapshot",
            default: "128",
            about: "with vd: last queries of the prompt, which choose the lines",
        },
        ParamInfo {
            key: "per",
            default: "query_head",
            about: "query_head | kv_head: a mask for each query head, or one for the GQA group (as one query block)",
        },
        ParamInfo {
            key: "self_extend",
            default: "1",
            about: "far tokens that share a position (Self-Extend), to read beyond the trained length; 1: none do",
        },
        ParamInfo {
            key: "self_extend_window",
            default: "1024",
            about: "with self_extend: last tokens that keep their positions, the current one included",
        },
        ParamInfo {
            key: "offload",
            default: "false",
            about: "true | false: below a GPU, keep keys and values in host memory and what is read often in two GPU caches (§3.3)",
        },
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[
                ("k", "512"),
                ("b_q", "32"),
                ("b_k", "2"),
                ("r_m", "8"),
                ("representative", "middle"),
                ("sink", "4"),
                ("dense_layers", "0-2"),
                ("tail", "indexed"),
            ],
            source: "HiP appendix D: b_q 32, b_k 2, k 512, r_m 8, first 3 layers dense (4 above 7B), 4 sinks as for \
                     StreamingLLM; §B.3.2 adds a small window without its size (the policy's is used)",
        },
        Preset {
            name: "repo",
            values: &[
                ("k", "512"),
                ("b_q", "64"),
                ("b_sq", "2"),
                ("b_k", "2"),
                ("b_sk", "1"),
                ("key_offset", "last"),
                ("query_offset", "last"),
                ("window", "row"),
                ("chunks", "aligned"),
                ("r_m", "8"),
                ("representative", "middle"),
                ("sink", "16"),
                ("local", "256"),
                ("dense_layers", "0-2"),
                ("tail", "indexed"),
            ],
            source: "HiP's code, v1_1/attention2_draft_prefetch.py (the kernel the paper names): mask_k 512, blocks 64 \
                     and 2, window 256 for each row, 16 sinks, samples and chunks; its 16-bit sigmoid of the scores, in \
                     which large ones become equal, is left out",
        },
    ],
    build: |params| Ok(Arc::new(Hip::read(params)?)),
};

/// The tree search and its mask cache.
struct Hip {
    budget: Budget,
    key_block: usize,
    /// `b_q`.
    query_block: usize,
    /// `b_sq`.
    query_stride: usize,
    query_offset: Offset,
    window: Window,
    search: Search,
    refresh: usize,
    ensemble: Ensemble,
    /// Whether masks of prefill have lines too.
    has_lines: bool,
    lines: LineBudget,
    per: Granularity,
    positions: Positions,
    /// Whether a GPU must have the two caches of §3.3.
    offloads: bool,
}

/// Several searches whose masks vote (§C.5); one search is plain HiP.
struct Ensemble {
    /// `n_e`.
    searches: usize,
    /// `θ_vote`.
    votes: usize,
    /// `r_e`, in logits.
    reach: f64,
    /// `τ = 1`.
    truncate: bool,
    /// `l_e`.
    layers: Limit,
}

/// Where the windows of a query block's rows begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Window {
    /// All at the beginning of the first row's window.
    Block,
    /// Each row has its own window.
    Row,
}

/// The candidates and static tokens of a query block.
struct View {
    candidates: Range<usize>,
    context: Context,
    /// First token of each row's window.
    starts: Vec<usize>,
}

impl Window {
    fn view(self, block: &QueryBlock<'_>) -> View {
        match self {
            Self::Block => {
                let (candidates, context) = block.candidates(StaticTokens::sliding(block.policy, block.first + 1));
                View { starts: vec![candidates.end; block.rows], candidates, context }
            }
            Self::Row => {
                let last = block.first + block.rows - 1;
                let candidates = StaticTokens::sliding(block.policy, last + 1).candidates(last);
                // Even with an empty window, a row attends itself.
                let start = |position: usize| StaticTokens::sliding(block.policy, position + 1).recent.min(position);
                View {
                    context: Context::new(last + 1, &candidates).at(block.share),
                    candidates,
                    starts: (block.first..=last).map(start).collect(),
                }
            }
        }
    }
}

impl Hip {
    /// Number of key blocks to keep; at least one, as a search ends with one.
    fn keep(&self, context: Context) -> usize {
        self.budget.blocks(context, self.key_block).max(1)
    }

    fn read(params: &mut Params) -> Result<Self, UsageError> {
        const LIMIT: &str = "a whole number from 1, or all";
        let budget = params.budget(Budget::Tokens(512))?;
        let (key_block, key_stride) = read_block(params, ("b_k", 2), ("b_sk", 1))?;
        let key_offset = read_offset(params, "key_offset")?;
        let (query_block, query_stride) = read_block(params, ("b_q", 32), ("b_sq", 2))?;
        let query_offset = read_offset(params, "query_offset")?;
        let window = match params.choice("window", &["block", "row"])? {
            "block" => Window::Block,
            _ => Window::Row,
        };
        let chunks = match params.choice("chunks", &["equal", "aligned"])? {
            "equal" => Chunks::Equal,
            _ => Chunks::Aligned,
        };
        let hip = Self {
            budget,
            key_block,
            query_block,
            query_stride,
            query_offset,
            window,
            refresh: params.get_minor("r_m", 8)?,
            search: Search {
                representative: params.get_minor_as(
                    "representative",
                    Representative::MIDDLE,
                    "first, middle, last, or a number from 0 to 1",
                )?,
                key_stride,
                key_offset,
                chunks,
                channels: params.get_minor_as("top_r", Limit(None), LIMIT)?,
            },
            ensemble: Ensemble::read(params, LIMIT)?,
            has_lines: params.choice("vd", &["false", "true"])? == "true",
            lines: LineBudget {
                vertical: params.get_minor_within("vertical", 32, 0..=MOST_TOKENS)?,
                slash: params.get_minor_within("slash", 256, 0..=MOST_TOKENS)?,
                snapshot: params.get_minor("snapshot", 128)?,
            },
            per: Granularity::read_per(params)?,
            positions: read_positions(params)?,
            offloads: params.choice("offload", &["false", "true"])? == "true",
        };
        match hip.positions {
            Positions::Grouped(Grouping { group, .. }) if hip.has_lines => {
                let expected = "1 with `vd=true`, whose lines are chosen at ordinary positions";
                Err(params.bad_value("self_extend", &group.to_string(), expected))
            }
            _ => Ok(hip),
        }
    }

    /// The mask of one query block: tokens of the blocks found, ascending. Those are at least `keep` blocks unless
    /// there are fewer, or votes are required.
    fn mask(
        &self,
        queries: &Queries<'_>,
        blocks: &KeyBlocks<'_>,
        keep: usize,
        (layer, scale, mut rng): (usize, SoftmaxScale, ChaCha8Rng),
        cost: &mut Cost,
    ) -> Result<Vec<u32>, KvError> {
        let searches = self.ensemble.searches_in(layer);
        let mut votes = vec![0.0; blocks.count()];
        // `r_e` is in logits, but scores are unscaled products: the reach is converted to their unit.
        let reach = (self.ensemble.reach * scale.divisor()) as f32;
        for _ in 0..searches {
            let randomness = (searches > 1).then_some(Randomness { reach, rng: &mut rng });
            for block in self.search.find(queries, blocks, keep, randomness, cost)? {
                votes[block] += 1.0;
            }
        }
        let elected = self.ensemble.elect(&votes, searches, keep);
        Ok(elected.flat_map(|block| blocks.tokens(block)).map(|token| token as u32).collect())
    }

    /// The rows of some heads that are scored; `starts` are the first tokens of the rows' windows.
    fn sampled<'b>(&self, block: &QueryBlock<'b>, heads: Range<usize>, starts: &[usize]) -> Queries<'b> {
        let sampled = || self.query_offset.sample(0..block.rows, self.query_stride);
        let row = |(head, row): (usize, usize)| &block.head(head)[row * block.d..][..block.d];
        let rows = heads.clone().flat_map(|head| sampled().map(move |row| (head, row)));
        let positions: Vec<usize> = heads.clone().flat_map(|_| sampled().map(|row| block.first + row)).collect();
        let ends = match self.window {
            Window::Block => Vec::new(),
            Window::Row => positions.iter().map(|position| starts[position - block.first]).collect(),
        };
        let rows: Vec<f32> = rows.flat_map(row).copied().collect();
        let far = block.grouped.and_then(|grouped| FarQueries::new(grouped, &rows, block.d, &positions));
        Queries { rows: Cow::Owned(rows), ends, far }
    }

    fn estimate(&self, step: &Step<'_>, cost: &mut Cost) -> Result<Selection, KvError> {
        let blocks =
            KeyBlocks { keys: step.all_keys(), d: step.d, candidates: step.candidates.clone(), size: self.key_block };
        let keep = self.keep(step.context);
        let mask = |head: usize, queries: &[f32], cost: &mut Cost| {
            let positions = vec![step.context.tokens - 1; queries.len() / step.d];
            let far = step.grouped.and_then(|grouped| FarQueries::new(grouped, queries, step.d, &positions));
            let queries = Queries { rows: Cow::Borrowed(queries), ends: Vec::new(), far };
            let tokens = self.mask(&queries, &blocks, keep, (step.layer, step.scale, step.rng(head)), cost)?;
            Ok(SelectedTokens::softmax(tokens))
        };
        Ok(match self.per {
            Granularity::KvHead(_) => Selection::Shared(mask(0, step.queries, cost)?),
            Granularity::QueryHead => {
                let of_head = |head, cost: &mut Cost| mask(head, step.query(head), cost);
                Selection::PerHead(try_each_head(step.group(), step.context.tokens, cost, of_head)?)
            }
        })
    }
}

/// Reads the size of a block and the stride within it. The stride may not exceed the size; its default is lowered to it.
fn read_block(
    params: &mut Params,
    (size_key, size): (&'static str, usize),
    (stride_key, stride): (&'static str, usize),
) -> Result<(usize, usize), UsageError> {
    let size = params.get_minor(size_key, size)?;
    let stride = params.get_minor(stride_key, stride.min(size))?;
    if stride > size {
        return Err(params.bad_value(stride_key, &stride.to_string(), &format!("at most `{size_key}`, {size}")));
    }
    Ok((size, stride))
}

/// Self-Extend's grouped positions; original ones if a group has one token.
fn read_positions(params: &mut Params) -> Result<Positions, UsageError> {
    let group = params.get_minor("self_extend", 1)?;
    let neighbours = params.get_minor("self_extend_window", 1024)?;
    Ok(if group == 1 { Positions::Original } else { Positions::Grouped(Grouping { group, neighbours }) })
}

fn read_offset(params: &mut Params, key: &'static str) -> Result<Offset, UsageError> {
    Ok(if params.choice(key, &["first", "last"])? == "first" { Offset::First } else { Offset::Last })
}

impl Ensemble {
    /// Largest number of searches that can be requested: each runs for every mask. The paper has 5.
    const MOST_SEARCHES: usize = 64;
    /// Much more than logits differ by: branches are then chosen at random.
    const MOST_RANDOMNESS: f64 = 1e6;

    fn read(params: &mut Params, limit: &str) -> Result<Self, UsageError> {
        let searches = params.get_minor_within("n_e", 1, 1..=Self::MOST_SEARCHES)?;
        let votes = params.get_minor("theta_vote", 1)?;
        if votes > searches {
            let most = format!("at most `n_e`, {searches}");
            return Err(params.bad_value("theta_vote", &votes.to_string(), &most));
        }
        let reach: f64 = params.get_minor_as("r_e", 5.0, "a number from 0")?;
        if !(0.0..=Self::MOST_RANDOMNESS).contains(&reach) {
            let bounds = format!("a number from 0 to {}", Self::MOST_RANDOMNESS);
            return Err(params.bad_value("r_e", &reach.to_string(), &bounds));
        }
        let truncate = params.choice("tau", &["0", "1"])? == "1";
        let layers = params.get_minor_as("l_e", Limit(None), limit)?;
        Ok(Self { searches, votes, reach, truncate, layers })
    }

    fn searches_in(&self, layer: usize) -> usize {
        if self.layers.0.is_none_or(|first| layer < first) { self.searches } else { 1 }
    }

    /// Blocks with enough `votes`, ascending; with `τ = 1` only the `keep` blocks with most.
    fn elect(&self, votes: &[f32], searches: usize, keep: usize) -> impl Iterator<Item = usize> + use<> {
        let needed = self.votes.min(searches) as f32;
        let most = if self.truncate { keep } else { votes.len() };
        let elected: Vec<u32> = top_k(votes, most).into_iter().filter(|b| votes[*b as usize] >= needed).collect();
        elected.into_iter().map(|block| block as usize)
    }
}

impl Method for Hip {
    type Index = ();
    /// The mask in use.
    type State = Option<Selection>;

    fn required_head_dim(&self) -> Option<(&'static str, usize)> {
        Some(("top_r", self.search.channels.0?))
    }

    fn build(&self, _: &HeadPrefix<'_>) -> Result<(), KvError> {
        Ok(())
    }

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn start(&self, (): &()) -> Option<Selection> {
        None
    }

    fn select(
        &self,
        step: &Step<'_>,
        (): &(),
        cached: &mut Option<Selection>,
        cost: &mut Cost,
    ) -> Result<Selection, KvError> {
        Ok(match cached {
            Some(mask) if !step.generated.is_multiple_of(self.refresh) => mask.clone(),
            _ => cached.insert(self.estimate(step, cost)?).clone(),
        })
    }

    fn device_form(&self) -> Result<&dyn DeviceForm, Vec<HostReason>> {
        let mut reasons = self.search_reasons();
        if self.budget.is_none() {
            reasons.push(HostReason::SelectsNothing);
        }
        if reasons.is_empty() { Ok(self) } else { Err(reasons) }
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Indexed("new keys join the tree when the next mask is estimated, every r_m tokens")
    }

    fn positions(&self) -> Positions {
        self.positions
    }

    fn offloads(&self) -> bool {
        self.offloads
    }

    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>> {
        Some(if self.has_lines { PrefillPattern::Whole(self) } else { PrefillPattern::Blocks(self) })
    }
}

impl BlockMask for Hip {
    fn query_rows(&self) -> usize {
        self.query_block
    }

    fn masks(&self, block: &QueryBlock<'_>, cost: &mut Cost) -> Masks {
        let View { candidates, context, starts } = self.window.view(block);
        let blocks = KeyBlocks {
            keys: KvRows::lent(block.keys, block.d),
            d: block.d,
            candidates: candidates.clone(),
            size: self.key_block,
        };
        let keep = self.keep(context);
        let mut mask = |first: usize, heads: Range<usize>| {
            let queries = self.sampled(block, heads, &starts);
            let found = self.mask(&queries, &blocks, keep, (block.layer, block.scale, block.rng(first)), cost);
            let picks = found.expect("a prompt that is read is in host memory");
            Mask::new((0..candidates.start as u32).chain(picks).collect(), starts.clone())
        };
        match self.per {
            Granularity::KvHead(_) => Masks::Shared(mask(0, 0..block.group)),
            Granularity::QueryHead => Masks::PerHead((0..block.group).map(|h| mask(h, h..h + 1)).collect()),
        }
    }

    fn device_form(&self) -> Option<&dyn SearchedMask> {
        (self.search_reasons().is_empty() && self.window == Window::Block).then_some(self as &dyn SearchedMask)
    }
}

/// Number of lines that are added, and the queries that choose them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineBudget {
    /// Tokens that all rows attend, beyond the sink.
    pub vertical: usize,
    /// Distances at which all rows attend, beyond the window.
    pub slash: usize,
    /// Last queries of the prompt, whose attention chooses the lines.
    pub snapshot: usize,
}

#[cfg(test)]
mod extend_tests;

#[cfg(test)]
mod prefill_tests;

#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests;
