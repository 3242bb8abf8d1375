//! `streaming_llm`: attention sinks and a sliding window (StreamingLLM, Xiao et al. 2023).
//!
//! Attends the first `sink` and the last `window` tokens of the context, the current one included; nothing else is
//! stored or read. A token that leaves the window is evicted. With `rolling=true` tokens have positions within the
//! cache (§3.2): the sinks stand directly before the window. RoPE attention depends on distances alone, so the engine
//! moves the query towards the sinks instead of rotating every key again. In a sparse prefill each row has such a cache,
//! so each query has one position for the sinks and one for the window. By default keys keep their original positions, as
//! in `a_shape`; the two differ most when the context exceeds the trained length.
//!
//! With `slide=false` the window is the end of the prefix and stays there: the tokens between sink and window are
//! evicted once, when the prefix has been read, and all later tokens are kept. kvpress calls this StreamingLLM.

use std::num::NonZero;
use std::sync::Arc;

use super::ParamInfo;
use crate::cost::Cost;
use crate::kv::{KvError, MOST_TOKENS};
use crate::methods::{MethodEntry, Preset};
use crate::spec::{DENSITY, KEEP};
use crate::{
    BlockMask, Context, HeadPrefix, Mask, Masks, Method, Policy, Positions, PrefillPattern, Probe, QueryBlock, Role,
    SelectedTokens, Selection, Solved, StaticTokens, Step, TailRule, Tuned,
};
use spattn_base::error::UsageError;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "streaming_llm",
    role: Role::Method,
    about: "sink and sliding window only, at original positions or those within the cache",
    reference: "StreamingLLM (Xiao et al. 2023, arXiv:2309.17453)",
    params: &[
        ParamInfo {
            key: "window",
            default: "256",
            about: "last tokens attended, the current one included; with slide=false, last tokens of the prefix kept",
        },
        ParamInfo {
            key: "slide",
            default: "true",
            about: "true | false: the window slides over what follows the prefix, or stays at its end, and all that \
                    follows is kept",
        },
        ParamInfo { key: "rolling", default: "false", about: "true | false: positions within the cache" },
        KEEP,
    ],
    presets: &[
        Preset {
            name: "paper",
            values: &[("sink", "4"), ("window", "1020"), ("rolling", "true")],
            source: "StreamingLLM's main setting: 4 sinks and 1,020 recent tokens, positions within the cache",
        },
        Preset {
            name: "repo",
            values: &[("sink", "4"), ("window", "2000"), ("rolling", "true")],
            source: "StreamingLLM's example script: start_size 4, recent_size 2000, positions within the cache",
        },
        Preset {
            name: "kvpress",
            values: &[("sink", "4"), ("keep", "0.5"), ("slide", "false")],
            source: "kvpress, streaming_llm_press.py: 4 sinks, evicted once after the context; half of the tokens is one of its \
                     compression ratios",
        },
    ],
    build: |params| {
        let keep = params.keep_instead_of(&["window", DENSITY])?;
        let default = NonZero::new(256).expect("not 0");
        let window = match keep {
            Some(_) => Tuned::Value(default),
            None => params.tuned_within("window", default, 1..=MOST_TOKENS)?,
        };
        let rolling = params.choice("rolling", &["false", "true"])? == "true";
        let slides = params.choice("slide", &["true", "false"])? == "true";
        if let Some(share) = keep.filter(|_| slides) {
            return Err(UsageError::new(format!("method `streaming_llm`: `keep={share}` needs slide=false"))
                .hint("a window that slides keeps no share of the prefix: give its window, or slide=false"));
        }
        Ok(Arc::new(SinkAndWindow {
            window,
            keep,
            slides,
            positions: if rolling { Positions::WithinCache } else { Positions::Original },
        }))
    },
};

/// Sink and window; all tokens between them are evicted.
pub(super) struct SinkAndWindow {
    pub(super) window: Tuned<NonZero<usize>>,
    /// Share of the prefix that sink and window take together; used in place of `window` if the window does not slide.
    pub(super) keep: Option<f64>,
    /// Whether the window ends at the current token, rather than at the end of the prefix.
    pub(super) slides: bool,
    pub(super) positions: Positions,
}

impl Method for SinkAndWindow {
    type Index = ();
    type State = ();

    fn build(&self, _: &HeadPrefix<'_>) -> Result<(), KvError> {
        Ok(())
    }

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn start(&self, (): &()) {}

    fn select(&self, _: &Step<'_>, (): &(), (): &mut (), _: &mut Cost) -> Result<Selection, KvError> {
        Ok(Selection::Shared(SelectedTokens::softmax(Vec::new())))
    }

    /// A static window (`slide=false`) is solved once, for the mean context of the tokens known to follow the prefix.
    fn solve(&self, probe: &Probe<'_>) -> Result<Option<Solved<Self>>, KvError> {
        let Some(density) = self.window.density().filter(|_| !self.slides && self.keep.is_none()) else {
            return Ok(None);
        };
        let (total, prefix) = (probe.context.tokens, probe.prefix.tokens());
        let beside = probe.candidates.start + total - prefix;
        let window = ((density * total as f64).round() as usize).saturating_sub(beside);
        let window = NonZero::new(window).unwrap_or(NonZero::<usize>::MIN);
        let method = Self { window: Tuned::Value(window), ..*self };
        Ok(Some(Solved { method, params: format!("window={window}") }))
    }

    fn tail_rule(&self) -> TailRule {
        TailRule::Own("its window moves on by itself, and what leaves it is let go: set window or slide")
    }

    fn is_static_only(&self) -> bool {
        true
    }

    fn exact(&self, policy: &Policy, prefix_tokens: usize, total_tokens: usize) -> StaticTokens {
        let end = if self.slides { total_tokens } else { prefix_tokens };
        let window = match self.keep {
            Some(share) => Context::new(end, &(policy.sink.min(end)..end)).missing_of_kept(share).max(1),
            None => window_tokens(self.window, policy, end),
        };
        last_tokens(policy, window, end)
    }

    fn resident_candidates(&self, (): &(), (): &()) -> Option<usize> {
        Some(0)
    }

    fn positions(&self) -> Positions {
        self.positions
    }

    fn prefill_pattern(&self) -> Option<PrefillPattern<'_>> {
        // With a static window, tokens are evicted only after the prompt has been read.
        self.slides.then_some(PrefillPattern::Blocks(self))
    }
}

impl BlockMask for SinkAndWindow {
    fn query_rows(&self) -> usize {
        WINDOW_ROWS
    }

    fn masks(&self, block: &QueryBlock<'_>, _: &mut Cost) -> Masks {
        Masks::Shared(window_mask(block, self.window))
    }

    fn is_data_independent(&self) -> bool {
        true
    }
}

/// Query rows that share a mask, in which each has its own window.
const WINDOW_ROWS: usize = 64;

/// The sink, and for each row its own window: the tokens that [`last_tokens`] gives it.
fn window_mask(block: &QueryBlock<'_>, window: Tuned<NonZero<usize>>) -> Mask {
    let end = block.first + block.rows;
    let start = |total: usize| last_tokens(block.policy, window_tokens(window, block.policy, total), total).recent;
    Mask::new((0..block.policy.sink.min(end) as u32).collect(), (block.first + 1..=end).map(start).collect())
}

/// Number of tokens in the window: as given, or as many as bring sink and window to the density.
pub(super) fn window_tokens(window: Tuned<NonZero<usize>>, policy: &Policy, total_tokens: usize) -> usize {
    match window {
        Tuned::Value(window) => window.get(),
        Tuned::Density(density) => {
            Context::new(total_tokens, &(policy.sink.min(total_tokens)..total_tokens)).missing(density).max(1)
        }
    }
}

/// The sink, the `window` tokens before `end`, and all tokens after `end`. With the end of the context as `end`, the
/// window slides over the tail too, unlike the static window of other methods.
pub(super) fn last_tokens(policy: &Policy, window: usize, end: usize) -> StaticTokens {
    let recent = end.saturating_sub(window);
    StaticTokens { sink: policy.sink.min(recent), recent }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Turn, assert_close, configured, noise, none, rotated};
    use crate::kv::{KvDtype, LayerKv, Prefix};
    use crate::prefill::testing::Layer;
    use crate::{IndexCache, Policy};
    use std::sync::Arc;

    const D: usize = crate::prefill::testing::D;

    /// Keys, values and queries before rotation, by position.
    struct Tokens(u64);

    impl Tokens {
        fn key(&self, t: usize) -> Vec<f32> {
            noise(D, self.0 + 3 * t as u64)
        }
        fn value(&self, t: usize) -> Vec<f32> {
            noise(D, self.0 + 3 * t as u64 + 1)
        }
        fn queries(&self, t: usize) -> [Vec<f32>; 2] {
            [noise(D, self.0 + 3 * t as u64 + 2), noise(D, self.0 + 90_000 + t as u64)]
        }

        /// Attention of one query over a cache in which each token is rotated to its place in the cache.
        fn reference(&self, query: &[f32], cache: &[usize]) -> Vec<f32> {
            let query = rotated(query, cache.len() - 1);
            let logit = |(place, t): (usize, &usize)| -> f64 {
                let key = rotated(&self.key(*t), place);
                query.iter().zip(key).map(|(q, k)| f64::from(q * k)).sum::<f64>() / (D as f64).sqrt()
            };
            let weights: Vec<f64> = cache.iter().enumerate().map(|x| logit(x).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let channel = |c: usize| {
                let weighted = cache.iter().zip(&weights).map(|(t, w)| w * f64::from(self.value(*t)[c]));
                (weighted.sum::<f64>() / sum) as f32
            };
            (0..D).map(channel).collect()
        }
    }

    /// Runs `streaming_llm:OPTIONS` over 25 tokens after a prefix. Each step has to equal attention over `cache`,
    /// extended by the token and shortened by `evict`, with all keys rotated anew.
    fn check_rolling(
        options: &str,
        (prefix_tokens, sink): (usize, usize),
        mut cache: Vec<usize>,
        evict: impl Fn(&mut Vec<usize>),
    ) {
        let tokens = Tokens(7);
        let mut kv = LayerKv::new(KvDtype::F32, 1, D, prefix_tokens);
        (0..prefix_tokens).for_each(|t| kv.append(&rotated(&tokens.key(t), t), &tokens.value(t)));
        let method = configured(&format!("streaming_llm:rolling=true,{options}"), &Policy { sink, ..none() });
        let mut fork = IndexCache::new(Prefix::new(vec![kv]), KvDtype::F32, 1)
            .with_rotation(Arc::new(Turn))
            .fork(&method, false)
            .unwrap();
        for t in prefix_tokens..prefix_tokens + 25 {
            cache.push(t);
            evict(&mut cache);
            let queries = tokens.queries(t);
            let mut out = vec![f32::NAN; 2 * D];
            let together: Vec<f32> = queries.iter().flat_map(|q| rotated(q, t)).collect();
            fork.step(0, &together, &rotated(&tokens.key(t), t), &tokens.value(t), &mut out).unwrap();
            for (query, out) in queries.iter().zip(out.chunks(D)) {
                assert_close(out, &tokens.reference(query, &cache), 1e-4, &format!("{options}, token {t}"));
            }
            assert_eq!(fork.kv_bytes_held() as usize, cache.len() * 2 * D * 4);
        }
    }

    const SHAPES: [(usize, usize, usize); 5] = [(40, 4, 9), (40, 0, 9), (3, 4, 6), (0, 2, 3), (60, 4, 500)];

    #[test]
    fn rolling_equals_rotating_the_cache_anew_at_every_step() {
        for (prefix_tokens, sink, window) in SHAPES {
            let slide = |cache: &mut Vec<usize>| {
                while cache.len() > sink + window {
                    cache.remove(sink);
                }
            };
            let cache = (0..prefix_tokens).collect();
            check_rolling(&format!("window={window}"), (prefix_tokens, sink), cache, slide);
        }
    }

    #[test]
    fn a_window_that_stays_evicts_once_when_the_prefix_has_been_read() {
        for (prefix_tokens, sink, window) in SHAPES {
            let kept = (0..prefix_tokens).filter(|t| *t < sink || t + window >= prefix_tokens).collect();
            check_rolling(&format!("window={window},slide=false"), (prefix_tokens, sink), kept, |_| ());
        }
    }
    #[test]
    fn a_prompt_is_read_as_by_a_cache_that_is_rotated_anew_for_every_token() {
        let tokens = Tokens(11);
        for (read, sink, window) in [(200, 4, 9), (90, 0, 20), (70, 6, 1), (50, 30, 10), (40, 3, 100)] {
            let keys: Vec<Vec<f32>> = (0..read).map(|t| rotated(&tokens.key(t), t)).collect();
            let mut kv = LayerKv::new(KvDtype::F32, 1, D, read);
            (0..read).for_each(|t| kv.append(&keys[t], &tokens.value(t)));
            let queries = (0..read).flat_map(|t| tokens.queries(t).into_iter().flat_map(move |q| rotated(&q, t)));
            let layer = Layer { kv, queries: queries.collect(), heads: 2 };
            let spec = format!("streaming_llm:rolling=true,window={window}");
            let method = configured(&spec, &Policy { sink, ..none() });
            let (out, costs) = layer.attend_moved(&method, 64, Some(Arc::new(Turn)));
            let mut attended = 0;
            for (position, out) in out.chunks(2 * D).enumerate() {
                let cache: Vec<usize> = (0..=position).filter(|t| *t < sink || t + window > position).collect();
                attended += 2 * cache.len();
                for (query, out) in tokens.queries(position).iter().zip(out.chunks(D)) {
                    assert_close(out, &tokens.reference(query, &cache), 1e-4, &format!("{spec}, row {position}"));
                }
            }
            assert_eq!(costs.total(|_| true).attended_tokens as usize, attended);
        }
    }
}
