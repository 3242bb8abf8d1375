//! Scores given text in one pass over all tokens for each method, with its prefill pattern, as papers measure perplexity. No sequence takes
//! a decode step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::example_request::ExampleRequest;
use super::example_runner::{ExampleResult, ExampleRunner, MethodResult};
use super::method_costs::MethodCosts;
use super::prefix_reading::PrefillTime;
use super::score_text::{GivenText, Sums, TextToScore};
use super::shared_prefill;
use super::stopwatch::PhaseTimes;
use crate::records::timing::StepTime;
use anyhow::Result;
use spattn_attention::{Configured, IndexCache, SparsePrefill};
use spattn_model::decoder::Decoder;
use spattn_model::engine::EngineError;
use spattn_model::token_scores::{Distributions, PredictingRows, TokenScore};

impl ExampleRunner<'_> {
    /// Scores text in one pass for each method. This is the run of the protocol `prefill`; for `full`, it also checks [`run`](Self::run).
    /// `None` if the runner was told to stop meanwhile.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    pub fn score_in_one_pass(
        &mut self,
        example: ExampleRequest<'_>,
        text: &GivenText<'_>,
    ) -> Result<Option<ExampleResult<Sums>>> {
        self.score_in_groups(example, text, WAITING_BYTES)
    }

    /// [`score_in_one_pass`](Self::score_in_one_pass), with methods scored in groups whose rows have about `most_waiting` bytes.
    pub(super) fn score_in_groups(
        &mut self,
        example: ExampleRequest<'_>,
        text: &GivenText<'_>,
        most_waiting: usize,
    ) -> Result<Option<ExampleResult<Sums>>> {
        let (decoder, stop, methods) = (self.decoder(), self.stop(), example.methods);
        let reads_densely = text.compare || methods.iter().any(|m| !m.masks_prefill());
        let dense = match reads_densely {
            true => shared_prefill::shared(true, || Ok(Pass::read_all(decoder, &example, text, None, stop)?))?,
            false => Some(Vec::new()),
        };
        let Some(mut dense) = dense else { return Ok(None) };
        let prefill = PrefillTime { whole: time(&dense), ..PrefillTime::default() };
        let (mut spent, mut runs) = (PhaseTimes { prefill: prefill.whole, ..PhaseTimes::default() }, Vec::new());
        let mut waiting: Vec<ReadMethod<'_>> = Vec::new();
        for method in methods {
            let mut own = match method.masks_prefill() {
                true => match Pass::read_all(decoder, &example, text, Some(method.reads()), stop)? {
                    None => return Ok(None),
                    read => read,
                },
                false => None,
            };
            let passes = own.as_mut().unwrap_or(&mut dense).iter_mut();
            let sequences = passes.map(|(_, indexes)| indexes.fork(method, false)).collect::<Result<_, _>>()?;
            let own_time = own.as_deref().map(time);
            spent.prefill += own_time.unwrap_or_default();
            let costs = MethodCosts::of_sequences(sequences, 0, StepTime::default());
            let costs = MethodCosts { prefill: own_time, ..costs };
            // What was read of the prompt is dropped. The rows that predict scored tokens are kept.
            waiting.push(ReadMethod { own: own.map(passes_alone), costs });
            if waiting.iter().map(ReadMethod::bytes).sum::<usize>() >= most_waiting {
                let read = std::mem::take(&mut waiting);
                let Some(results) = scored(decoder, &dense, read, (text.compare, stop))? else { return Ok(None) };
                runs.extend(results);
            }
        }
        let Some(results) = scored(decoder, &dense, waiting, (text.compare, stop))? else { return Ok(None) };
        runs.extend(results);
        self.add_spent(spent);
        Ok(Some(ExampleResult { prefill, spent, runs }))
    }
}

/// About how many bytes of rows are scored together. The distributions of `full` are computed once for each such group.
const WAITING_BYTES: usize = 256 << 20;

/// A method that has read all continuations.
struct ReadMethod<'a> {
    /// Its passes; `None` if it shares the dense ones.
    own: Option<Vec<Pass<'a>>>,
    costs: MethodCosts,
}

impl ReadMethod<'_> {
    fn bytes(&self) -> usize {
        self.own.iter().flatten().map(|pass| size_of_val(&pass.rows[..])).sum()
    }
}

fn time(passes: &[(Pass<'_>, IndexCache)]) -> Duration {
    passes.iter().map(|(pass, _)| pass.time).sum()
}

fn passes_alone<'a>(passes: Vec<(Pass<'a>, IndexCache)>) -> Vec<Pass<'a>> {
    passes.into_iter().map(|(pass, _)| pass).collect()
}

/// Scores the continuations under all methods that were read. Works on a few tokens at a time, so that the distributions of `full` are
/// computed once for all methods. `None` if `stop` was raised.
fn scored(
    decoder: &Decoder,
    dense: &[(Pass<'_>, IndexCache)],
    read: Vec<ReadMethod<'_>>,
    (compare, stop): (bool, &AtomicBool),
) -> Result<Option<Vec<MethodResult<Sums>>>, EngineError> {
    let mut answers: Vec<Vec<Sums>> = read.iter().map(|_| Vec::new()).collect();
    let texts = read.iter().map(|method| method.own.as_ref().map_or(dense.len(), Vec::len)).max().unwrap_or(0);
    for number in 0..texts {
        let full = dense.get(number).map(|(pass, _)| pass);
        let passes: Vec<Option<&Pass<'_>>> = read.iter().map(|m| m.own.as_ref().map(|own| &own[number])).collect();
        let Some(sums) = sums_of(decoder, full, &passes, (compare, stop))? else { return Ok(None) };
        answers.iter_mut().zip(sums).for_each(|(answers, sums)| answers.push(sums));
    }
    let results = read.into_iter().zip(answers).map(|(method, answers)| MethodResult { answers, costs: method.costs });
    Ok(Some(results.collect()))
}

/// Scores one continuation by each pass, compared with the dense pass if `compare` is set. `None` in `passes` stands for the dense pass.
/// Returns `None` if `stop` was raised.
fn sums_of(
    decoder: &Decoder,
    dense: Option<&Pass<'_>>,
    passes: &[Option<&Pass<'_>>],
    (compare, stop): (bool, &AtomicBool),
) -> Result<Option<Vec<Sums>>, EngineError> {
    let mut sums = vec![Sums::default(); passes.len()];
    let Some(first) = passes.iter().find_map(|pass| pass.or(dense)) else { return Ok(Some(sums)) };
    let takes_dense = passes.iter().any(Option::is_none);
    let at_once = scored_at_once(decoder);
    for (block, targets) in first.scored.chunks(at_once).enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let positions: Vec<usize> = (first.from + block * at_once..).take(targets.len()).collect();
        let rows_of = |pass| Pass::predicting(pass, decoder, &positions, targets);
        let (full, of_dense) = match dense {
            Some(dense) if compare => {
                let (full, scores) = decoder.distributions(decoder.row_logits([rows_of(dense)])?, rows_of(dense))?;
                (Some(full), scores)
            }
            Some(dense) if takes_dense => (None, scores(decoder, rows_of(dense), None)?),
            _ => (None, Vec::new()),
        };
        for (sums, pass) in sums.iter_mut().zip(passes) {
            let own = pass.map(|pass| scores(decoder, rows_of(pass), full.as_ref())).transpose()?;
            own.as_ref().unwrap_or(&of_dense).iter().for_each(|token| sums.take(token));
        }
    }
    Ok(Some(sums))
}

/// Scores the targets of rows, compared with the distributions of `full` if these are given.
fn scores(
    decoder: &Decoder,
    rows: PredictingRows<'_>,
    full: Option<&Distributions>,
) -> Result<Vec<TokenScore>, EngineError> {
    let logits = decoder.row_logits([rows])?;
    Ok(decoder.score_tokens(logits, &[(rows, full)])?.pop().unwrap_or_default())
}

/// A prompt with one continuation, read in one pass.
struct Pass<'a> {
    /// `[token][hidden]`: outputs of the last layer for the tokens that predict scored ones.
    rows: Vec<f32>,
    /// The position of the first row's token.
    from: usize,
    scored: &'a [u32],
    time: Duration,
}

impl<'a> Pass<'a> {
    /// Makes a pass for each continuation, dense or with a method's prefill mask, and the indexes over what was read; `None` if `stop` was
    /// raised.
    fn read_all(
        decoder: &Decoder,
        example: &ExampleRequest<'_>,
        text: &GivenText<'a>,
        method: Option<&Configured>,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<(Self, IndexCache)>>, EngineError> {
        let read = |continuation: &TextToScore<'a>| {
            (!stop.load(Ordering::Relaxed)).then(|| Self::read(decoder, example, *continuation, method)).transpose()
        };
        let passes: Vec<Option<(Self, IndexCache)>> = text.texts.iter().map(read).collect::<Result<_, _>>()?;
        Ok(passes.into_iter().collect())
    }

    fn read(
        decoder: &Decoder,
        example: &ExampleRequest<'_>,
        continuation: TextToScore<'a>,
        method: Option<&Configured>,
    ) -> Result<(Self, IndexCache), EngineError> {
        let start = Instant::now();
        // The last token predicts no scored token, so it is not read.
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
        let scored = &continuation.tokens[continuation.given..];
        Ok((Self { rows, from, scored, time: start.elapsed() }, indexes))
    }

    /// The rows at `positions`, of which there is at least one, that predict `targets`.
    fn predicting<'r>(&'r self, decoder: &Decoder, positions: &'r [usize], targets: &'r [u32]) -> PredictingRows<'r> {
        let (hidden, first) = (decoder.config().hidden_size, positions[0] - self.from);
        PredictingRows { rows: &self.rows[first * hidden..(first + targets.len()) * hidden], positions, targets }
    }
}

/// The number of tokens whose logits are computed at a time. On a CPU, few enough that the allocator keeps their memory from block to
/// block, because the first write to new pages is slow.
fn scored_at_once(decoder: &Decoder) -> usize {
    /// The most bytes of logits. The system's allocator returns blocks of 32 MB or more to the system at once.
    const BYTES: usize = 16 << 20;
    const MOST: usize = 64;
    /// One block of a kernel handles one token.
    const ON_A_GPU: usize = 128;
    match decoder.gpu() {
        Some(_) => ON_A_GPU,
        None => (BYTES / (size_of::<f32>() * decoder.config().vocab_size) / 8 * 8).clamp(8, MOST),
    }
}
