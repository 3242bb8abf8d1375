//! Scoring given text in one pass over all tokens for each method, by its prefill pattern, as the papers measure
//! perplexity. Nothing is decoded: no sequence takes a step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use rayon::prelude::*;

use super::example_request::ExampleRequest;
use super::example_runner::{ExampleResult, ExampleRunner, MethodResult};
use super::method_costs::MethodCosts;
use super::prefix_reading::PrefillTime;
use super::score_text::{Distribution, GivenText, ScoredToken, Sums, TextToScore};
use super::shared_prefill;
use super::stopwatch::PhaseTimes;
use crate::records::timing::StepTime;
use spattn_attention::{Configured, IndexCache, SparsePrefill};
use spattn_model::decoder::Decoder;
use spattn_model::engine::EngineError;

impl ExampleRunner<'_> {
    /// Scores text in one pass for each method: what a run is that is sparse from the first token, and for `full` a check
    /// on [`run`](Self::run). `None` if the runner was told to stop meanwhile.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn score_in_one_pass(
        &mut self,
        example: ExampleRequest<'_>,
        text: &GivenText<'_>,
    ) -> Result<Option<ExampleResult<Sums>>> {
        let (decoder, stop, methods) = (self.decoder(), self.stop(), example.methods);
        let reads_densely = text.compare || methods.iter().any(|m| !m.masks_prefill());
        let dense = match reads_densely {
            true => shared_prefill::shared(true, || Ok(Pass::read_all(decoder, &example, text, None, stop)?))?,
            false => Some(Vec::new()),
        };
        let Some(mut dense) = dense else { return Ok(None) };
        let time = |passes: &[Pass]| passes.iter().map(|pass| pass.time).sum::<Duration>();
        let prefill = PrefillTime { whole: time(&dense), ..PrefillTime::default() };
        let (mut spent, mut runs) = (PhaseTimes { prefill: prefill.whole, ..PhaseTimes::default() }, Vec::new());
        for method in methods {
            let mut own = match method.masks_prefill() {
                true => match Pass::read_all(decoder, &example, text, Some(method.reads()), stop)? {
                    None => return Ok(None),
                    read => read,
                },
                false => None,
            };
            let passes = own.as_mut().unwrap_or(&mut dense).iter_mut();
            let sequences = passes.map(|pass| pass.indexes.fork(method, false)).collect::<Result<_, _>>()?;
            let passes = own.as_ref().unwrap_or(&dense).iter().enumerate();
            let full = |number: usize| dense.get(number).filter(|_| text.compare);
            let answers = passes.map(|(number, pass)| pass.sums(decoder, full(number))).collect::<Result<_, _>>()?;
            let own_time = own.as_deref().map(time);
            spent.prefill += own_time.unwrap_or_default();
            let costs = MethodCosts::of_sequences(sequences, 0, StepTime::default());
            runs.push(MethodResult { answers, costs: MethodCosts { prefill: own_time, ..costs } });
        }
        self.add_spent(spent);
        Ok(Some(ExampleResult { prefill, spent, runs }))
    }
}

/// A prompt with one continuation, read in one pass.
struct Pass<'a> {
    indexes: IndexCache,
    /// `[token][hidden]` behind the last layer, of the tokens that predict what is scored.
    rows: Vec<f32>,
    /// Position of the first of these.
    from: usize,
    scored: &'a [u32],
    time: Duration,
}

impl<'a> Pass<'a> {
    /// A pass for each continuation, by a method that masks its prefill or densely; `None` if `stop` was raised.
    fn read_all(
        decoder: &Decoder,
        example: &ExampleRequest<'_>,
        text: &GivenText<'a>,
        method: Option<&Configured>,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Self>>, EngineError> {
        let read = |continuation: &TextToScore<'a>| {
            (!stop.load(Ordering::Relaxed)).then(|| Self::read(decoder, example, *continuation, method)).transpose()
        };
        let passes: Vec<Option<Self>> = text.texts.iter().map(read).collect::<Result<_, _>>()?;
        Ok(passes.into_iter().collect())
    }

    fn read(
        decoder: &Decoder,
        example: &ExampleRequest<'_>,
        continuation: TextToScore<'a>,
        method: Option<&Configured>,
    ) -> Result<Self, EngineError> {
        let start = Instant::now();
        // The last token predicts nothing that is scored.
        let read = [example.prompt, &continuation.tokens[..continuation.tokens.len() - 1]].concat();
        let from = example.prompt.len() + continuation.given - 1;
        let sparse = method.and_then(|m| SparsePrefill::new(m, decoder.layer_specs(), example.index_seed));
        let mut sparse = sparse.map(|sparse| sparse.with_rotation(decoder.rotation(read.len(), read.len())));
        let (prefill, rows) = decoder.prefill_rows(&read, from, sparse.as_mut())?;
        let indexes = IndexCache::new(prefill.prefix, decoder.dtype(), example.index_seed);
        let indexes = match sparse {
            Some(sparse) => indexes.with_reading(sparse.into_costs()),
            None => indexes,
        };
        Ok(Self { indexes, rows, from, scored: &continuation.tokens[continuation.given..], time: start.elapsed() })
    }

    /// What its distributions make of the scored tokens, compared with those of a pass of `full` if there is one.
    fn sums(&self, decoder: &Decoder, full: Option<&Pass<'_>>) -> Result<Sums, EngineError> {
        let (hidden, vocab) = (decoder.config().hidden_size, decoder.config().vocab_size);
        let at_once = scored_at_once(vocab);
        let logits_of = |pass: &Pass<'_>, block: usize, tokens: usize| {
            let first = block * at_once;
            decoder.logits(&pass.rows[first * hidden..(first + tokens) * hidden], |row| pass.from + first + row)
        };
        let mut sums = Sums::default();
        for (block, scored) in self.scored.chunks(at_once).enumerate() {
            let full = full.map(|full| logits_of(full, block, scored.len())).transpose()?;
            let full: Option<Vec<Distribution>> =
                full.map(|logits| logits.par_chunks_exact(vocab).map(Distribution::new).collect());
            let logits = logits_of(self, block, scored.len())?;
            let rows = logits.par_chunks_exact(vocab).zip(scored).enumerate();
            let tokens: Vec<ScoredToken> = rows
                .map(|(i, (logits, token))| ScoredToken::new(logits, *token, full.as_ref().map(|full| &full[i])))
                .collect();
            tokens.iter().for_each(|token| sums.take(token));
        }
        Ok(sums)
    }
}

/// Tokens whose logits are there at a time: few enough that the allocator keeps their memory from block to block, since pages that are new
/// to the process are slow to be written to first.
fn scored_at_once(vocab: usize) -> usize {
    /// Bytes of logits; the system's allocator gives back to the system at once what has 32 MB or more.
    const BYTES: usize = 16 << 20;
    const MOST: usize = 64;
    (BYTES / (size_of::<f32>() * vocab) / 8 * 8).clamp(8, MOST)
}
