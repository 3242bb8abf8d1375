//! `streaming_llm`: attention sinks and a sliding window (Xiao et al. 2023), at original positions.
//!
//! Attends the first `sink` and the last `window` tokens of the context, the current one included,
//! and nothing between. StreamingLLM re-indexes RoPE inside its cache; here keys keep the positions
//! they were read at, which differs only once the context exceeds the trained length.

use std::num::NonZero;
use std::sync::Arc;

use super::{MethodEntry, ParamInfo, Preset};
use crate::attention::{Context, Exact, HeadPrefix, Method, Picks, Policy, Selection, Step, Tuned};
use crate::cost::Cost;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "streaming_llm",
    about: "sink and sliding window only (original positions)",
    reference: "StreamingLLM (Xiao et al. 2023, arXiv:2309.17453)",
    params: &[ParamInfo { key: "window", default: "256", about: "last tokens attended, the current one included" }],
    presets: &[
        Preset {
            name: "paper",
            values: &[("sink", "4"), ("window", "1020")],
            source: "StreamingLLM's main setting: 4 sinks and 1,020 recent tokens (positions not re-indexed here)",
        },
        Preset {
            name: "repo",
            values: &[("sink", "4"), ("window", "2000")],
            source: "StreamingLLM's example script: start_size 4, recent_size 2000 (positions not re-indexed here)",
        },
    ],
    build: |params| {
        let window = params.tuned("window", NonZero::new(256).expect("not 0"), "a whole number from 1")?;
        Ok(Arc::new(StreamingLlm { window }))
    },
};

/// Sink and window; everything between stays unread.
struct StreamingLlm {
    window: Tuned<NonZero<usize>>,
}

impl Method for StreamingLlm {
    type Index = ();
    type State = ();

    fn build(&self, _: &HeadPrefix<'_>) {}

    fn index_bytes(&self, (): &()) -> usize {
        0
    }

    fn start(&self, (): &()) {}

    fn select(&self, _: &Step<'_>, (): &(), (): &mut (), _: &mut Cost) -> Selection {
        Selection::Shared(Picks::softmax(Vec::new()))
    }

    /// The window slides over the tail too, unlike the static window of the other methods.
    fn exact(&self, policy: &Policy, _prefix_tokens: usize, total_tokens: usize) -> Exact {
        let window = match self.window {
            Tuned::Value(window) => window.get(),
            Tuned::Density(density) => {
                Context { tokens: total_tokens, fixed: policy.sink.min(total_tokens) }.missing(density).max(1)
            }
        };
        let recent = total_tokens.saturating_sub(window);
        Exact { sink: policy.sink.min(recent), recent }
    }
}
