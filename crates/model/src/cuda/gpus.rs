//! A model on one GPU, or on several of which each holds consecutive layers: how rows pass through all of them.
//!
//! The first GPU has the embedding table, the last one the final norm and the output matrix. If the output matrix is the embedding table,
//! both GPUs have it. Rows move from one GPU to the next as the f32 numbers of the residual stream. Results do not depend on which GPU
//! holds a layer.

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, PoisonError};

use super::host::HostWorkspace;
use super::kv::{DevicePrefix, PrefixLayer, SequenceKv, SequenceParts};
use super::model::{Segment, Share};
use super::step::{StepPlan, groups_of, rows_of};
use super::weights::LoadFailure;
use super::workspace::Workspace;
use crate::dimensions::Dimensions;
use crate::engine::{EngineError, GpuUse, KvPlacement, NotFinite, Stream, first_not_finite, positions};
use crate::tensors::Weights;
use spattn_attention::kv::{KvShape, LayerKv, Prefix, Tier};
use spattn_attention::{SelectionSite, Sequence};
use spattn_cuda::{Buffer, Gpu, GpuError};

/// A model on GPUs.
pub struct Cuda {
    dimensions: Dimensions,
    /// The segments in the order of their layers; at least one.
    pub(super) segments: Vec<Segment>,
    /// The name of the GPUs.
    pub(super) name: String,
    /// The workspace of each segment. A forward pass locks all of them.
    pub(super) workspaces: Mutex<Vec<Option<Workspace>>>,
    used: Mutex<GpuUse>,
}

impl Deref for Cuda {
    type Target = Dimensions;

    fn deref(&self) -> &Dimensions {
        &self.dimensions
    }
}

/// Returns the common name of GPUs: `2 x NAME`, or the names joined by `+` if they differ.
fn names(names: &[String]) -> String {
    match names {
        [only] => only.clone(),
        [first, rest @ ..] if rest.iter().all(|name| name == first) => format!("{} x {first}", names.len()),
        _ => names.join(" + "),
    }
}

impl Cuda {
    /// Copies the weights to GPUs, converted to the storage type unless they stay in quantised blocks. `parts` has the GPUs in the order
    /// of their layers.
    ///
    /// # Errors
    /// If a tensor is not as expected, a device cannot hold its part, or two GPUs cannot be linked.
    pub(crate) fn load(
        dimensions: &Dimensions,
        weights: &Weights,
        parts: Vec<(Gpu, Range<usize>)>,
    ) -> Result<Self, LoadFailure> {
        // GPUs are linked before anything is allocated: not every driver gives another GPU access to memory that already exists.
        for pair in parts.windows(2) {
            pair[1].0.link(&pair[0].0)?;
        }
        let of_gpus: Vec<String> =
            parts.iter().map(|(gpu, _)| Ok(gpu.info()?.name)).collect::<Result<_, GpuError>>()?;
        let load = |(number, (gpu, layers)): (usize, (Gpu, Range<usize>))| {
            Segment::load(dimensions, weights, gpu, Share { number, layers })
        };
        let segments = parts.into_iter().enumerate().map(load).collect::<Result<_, _>>()?;
        Ok(Self::of(dimensions.clone(), names(&of_gpus), segments))
    }

    /// A model that has computed nothing yet.
    fn of(dimensions: Dimensions, name: String, segments: Vec<Segment>) -> Self {
        let workspaces = Mutex::new(segments.iter().map(|_| None).collect());
        Self { dimensions, name, workspaces, used: Mutex::default(), segments }
    }

    /// Makes a copy of the model on the same GPUs that computes beside this one. Both share the weights; all else is the copy's own.
    ///
    /// # Errors
    /// If a device cannot be opened again, or has no memory left.
    pub(crate) fn beside(&self) -> Result<Self, GpuError> {
        let open = |segment: &Segment| Gpu::open(segment.gpu.ordinal());
        let gpus: Vec<Gpu> = self.segments.iter().map(open).collect::<Result<_, _>>()?;
        for pair in gpus.windows(2) {
            pair[1].link(&pair[0])?;
        }
        let segments = self.segments.iter().zip(gpus).map(|(segment, gpu)| segment.beside(gpu));
        Ok(Self::of(self.dimensions.clone(), self.name.clone(), segments.collect::<Result<_, _>>()?))
    }

    /// Returns the only segment.
    ///
    /// # Panics
    /// If there are several segments.
    pub(super) fn only(&self) -> &Segment {
        match self.segments.as_slice() {
            [only] => only,
            several => panic!("{} GPUs hold the model, where one is asked for", several.len()),
        }
    }

    /// Returns the segment with the last layer.
    pub(super) fn last(&self) -> &Segment {
        self.segments.last().expect("a model is on at least one GPU")
    }

    fn shape(&self) -> KvShape {
        self.last().shape()
    }

    /// Makes an empty prefix, each layer on the GPU that holds the model's layer, or in host memory if keys and values are kept there.
    pub(super) fn empty_prefix(&self, kv: &KvPlacement, capacity: usize) -> Result<DevicePrefix, GpuError> {
        let gpus = self.segments.iter().flat_map(|segment| segment.range.clone().map(move |_| &segment.gpu));
        let (tier, cached) = match kv {
            KvPlacement::Host { cached } => (Tier::Host, *cached),
            KvPlacement::Memory | KvPlacement::Disk(_) => (Tier::Device, None),
        };
        let mut prefix = DevicePrefix::in_tier(tier, gpus, self.shape(), capacity)?;
        prefix.cached = cached;
        Ok(prefix)
    }

    /// Makes a prefix in host memory from the given keys and values of each layer, for timing.
    ///
    /// # Errors
    /// If they do not fit.
    ///
    /// # Panics
    /// If their number is not the model's number of layers.
    pub fn prefix_on_host(&self, layers: &[&LayerKv]) -> Result<Arc<Prefix>, GpuError> {
        let (shape, tokens) = (self.shape(), layers.first().map_or(0, |kv| kv.tokens()));
        assert_eq!(layers.len(), self.dimensions.config.layers, "keys and values of each layer");
        let mut prefix = self.empty_prefix(&KvPlacement::Host { cached: None }, tokens)?;
        prefix.tokens = tokens;
        let row = shape.d * shape.dtype.bytes();
        for (kv, PrefixLayer { gpu, keys, values }) in layers.iter().zip(&mut prefix.layers) {
            for head in 0..shape.kv_heads {
                gpu.upload_rows(keys, head * tokens * row, kv.keys.head(head))?;
                gpu.upload_rows(values, head * tokens * row, kv.values.head(head))?;
            }
        }
        Ok(Prefix::on_device(self.layer_specs().clone(), tokens, Box::new(prefix)))
    }

    /// Reserves room for `rows` rows on each GPU. A workspace that has to grow loses its contents.
    pub(super) fn reserve<'a>(
        &self,
        workspaces: &'a mut [Option<Workspace>],
        rows: usize,
    ) -> Result<Vec<&'a mut Workspace>, GpuError> {
        self.segments.iter().zip(workspaces).map(|(segment, workspace)| segment.reserve(workspace, rows)).collect()
    }

    /// Passes rows through the layers of each segment in turn, and copies them from one GPU to the next in between.
    pub(super) fn pass_segments<E: From<GpuError>>(
        &self,
        workspaces: &mut [&mut Workspace],
        rows: usize,
        mut pass: impl FnMut(&Segment, &mut Workspace) -> Result<(), E>,
    ) -> Result<(), E> {
        for (at, segment) in self.segments.iter().enumerate() {
            let (before, here) = workspaces.split_at_mut(at);
            if let Some(from) = before.last_mut() {
                let (bytes, other) =
                    (size_of::<f32>() * rows * self.dimensions.config.hidden_size, &self.segments[at - 1].gpu);
                segment.gpu.receive(&mut here[0].x, other, &from.x, bytes)?;
                if let Some(input) = from.last_input.take() {
                    let mut received = segment.gpu.alloc(bytes)?;
                    segment.gpu.receive(&mut received, other, &input, bytes)?;
                    here[0].last_input = Some(received);
                }
            }
            pass(segment, here[0])?;
        }
        Ok(())
    }

    /// Fails if a number between the layers was not finite. `position` turns a row number, as the norms count rows, into its position.
    pub(super) fn check(
        &self,
        workspaces: &[&mut Workspace],
        position: impl Fn(usize) -> usize + Copy,
    ) -> Result<(), EngineError> {
        self.segments.iter().zip(workspaces).try_for_each(|(segment, workspace)| segment.check(workspace, position))
    }

    /// Reserves room for the tokens that each stream has after its prefix.
    fn make_tails(&self, streams: &mut [Stream<'_>]) -> Result<(), GpuError> {
        for stream in streams {
            let old = stream.fork.device_mut().take().and_then(|own| own.downcast::<SequenceParts>().ok());
            let mut old = old.map_or_else(Vec::new, |own| own.0).into_iter();
            let parts = self.segments.iter().map(|segment| segment.make_tail(stream, old.next()));
            let parts: Vec<SequenceKv> = parts.collect::<Result<_, _>>()?;
            *stream.fork.device_mut() = Some(Box::new(SequenceParts(parts)));
        }
        Ok(())
    }

    /// Feeds each stream its tokens, and returns the rows `[token][hidden]` of all streams after the last layer.
    pub(super) fn step_streams(
        &self,
        streams: &mut [Stream<'_>],
        prompt_tokens: usize,
    ) -> Result<Vec<f32>, EngineError> {
        let (hidden, layers) = (self.dimensions.config.hidden_size, self.dimensions.config.layers);
        let (x, positions) = self.pass_streams(streams, prompt_tokens, |last, workspace, rows| {
            let mut x = vec![0.0; rows * hidden];
            last.gpu.download(&workspace.x, 0, &mut x)?;
            Ok(x)
        })?;
        match first_not_finite(&x, hidden) {
            Some(row) => Err(NotFinite::Activations { layer: layers - 1, position: positions[row] }.into()),
            None => Ok(x),
        }
    }

    /// Feeds each stream its only token, and returns the most likely next token; of equally likely ones, the first.
    pub(super) fn choose_in_step(
        &self,
        streams: &mut [Stream<'_>],
        prompt_tokens: usize,
    ) -> Result<Vec<u32>, EngineError> {
        let (chosen, positions) = self.pass_streams(streams, prompt_tokens, Segment::argmax_of)?;
        let of_row = |(chosen, position): (Option<u32>, usize)| chosen.ok_or(NotFinite::Logits { position }.into());
        chosen.into_iter().zip(positions).map(of_row).collect()
    }

    /// Feeds each stream its tokens. `finish` gets the last segment and its workspace with the rows of all streams after the last layer,
    /// and waits for them. Returns what `finish` returns, and the rows' positions.
    fn pass_streams<T>(
        &self,
        streams: &mut [Stream<'_>],
        prompt_tokens: usize,
        finish: impl FnOnce(&Segment, &mut Workspace, usize) -> Result<T, GpuError>,
    ) -> Result<(T, Vec<usize>), EngineError> {
        let c = &self.dimensions.config;
        let first = streams[0].fork.prefix();
        assert!(
            streams.iter().all(|s| Arc::ptr_eq(s.fork.prefix(), first)),
            "streams of one step have different prefixes"
        );
        let positions = positions(streams);
        let at: Vec<u32> = positions.iter().map(|position| *position as u32).collect();
        let tokens: Vec<u32> = streams.iter().flat_map(|stream| stream.tokens).copied().collect();
        let rows = rows_of(streams);
        self.make_tails(streams)?;
        let mut guard = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut workspaces = self.reserve(&mut guard, rows.len())?;
        // All uploads come before the first layer, so that a GPU waits only for the rows of the GPU before it.
        let mut angles = Vec::new();
        for (segment, workspace) in self.segments.iter().zip(&mut workspaces) {
            segment.start(workspace, &tokens, &at)?;
            angles = segment.send_frequencies(workspace, &positions, prompt_tokens)?;
            segment.send_places(workspace, streams)?;
        }
        let plan = StepPlan { rows: &rows, angles: &angles };
        let picks = |layer: usize, stream: &Stream<'_>| stream.fork.selection_site(layer) != SelectionSite::None;
        let looks = |stream: &Stream<'_>| stream.fork.needs_host() || (0..c.layers).any(|layer| picks(layer, stream));
        match streams.iter().any(looks) {
            true => {
                let groups = groups_of(streams, &rows);
                self.pass_segments(&mut workspaces, rows.len(), |segment, workspace| {
                    segment.step_picking(workspace, streams, &plan, &groups)
                })?;
            }
            false => self.pass_segments(&mut workspaces, rows.len(), |segment, workspace| {
                segment.step_exactly(workspace, streams, &plan)
            })?,
        }
        let of_last = workspaces.last_mut().expect("a model is on at least one GPU");
        let finished = finish(self.last(), of_last, rows.len())?;
        self.note_times(&workspaces, streams)?;
        self.check(&workspaces, |row| positions[row])?;
        Ok((finished, positions))
    }

    /// Adds the times of a step's parts to the totals, and each stream's attention time to the stream.
    fn note_times(&self, workspaces: &[&mut Workspace], streams: &mut [Stream<'_>]) -> Result<(), GpuError> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_known = false;
        for (segment, workspace) in self.segments.iter().zip(workspaces) {
            is_known |= segment.note_times(workspace, streams, &mut used)?;
        }
        match is_known {
            true => used.steps += 1,
            false => streams.iter_mut().for_each(|stream| stream.fork.mark_time_unattributed()),
        }
        Ok(())
    }

    /// Adds what a sequence's method selected on the GPUs to the sequence's counts.
    pub(super) fn collect_counters(&self, fork: &mut Sequence) -> Result<(), EngineError> {
        let kv_heads = self.dimensions.config.kv_heads;
        let Some(parts) = fork.device_mut().as_mut().and_then(|own| own.downcast_mut::<SequenceParts>()) else {
            return Ok(());
        };
        let (mut picked, mut missed, mut found, mut held) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (segment, own) in self.segments.iter().zip(&mut parts.0) {
            let Some(buffer) = own.picked.take() else { return Ok(()) };
            let mut counters = segment.download_counters(&buffer)?;
            let again = own.again.take().map(|buffer| segment.download_counters(&buffer)).transpose()?;
            found.extend(segment.take_hits(own, again.as_deref())?);
            counters.iter_mut().zip(again.unwrap_or_default()).for_each(|(all, again)| *all += again);
            picked.extend(counters);
            if let Some(buffer) = own.missed.take() {
                let mut counters = vec![0u64; 2 * segment.range.len()];
                segment.gpu.download(&buffer, 0, &mut counters)?;
                missed.extend(counters.chunks_exact(2).map(|pair| [pair[0], pair[1]]));
            }
            for tokens in &own.held {
                held.push(tokens.as_ref().map(|tokens| tokens.count(&segment.gpu, kv_heads)).transpose()?);
            }
        }
        fork.collect_device_counters(&picked);
        fork.collect_cache_hits(&found);
        fork.collect_device_misses(&missed);
        for (layer, tokens) in held.into_iter().enumerate() {
            tokens.into_iter().for_each(|tokens| fork.set_resident_tokens(layer, tokens));
        }
        Ok(())
    }

    /// Returns the logits `[token][vocab_size]` of rows `[token][hidden]` after the last layer.
    pub(super) fn logits_of_rows(&self, x: &[f32]) -> Result<Vec<f32>, EngineError> {
        self.with_rows(x, |last, workspace, rows| last.logits_of(workspace, 0, rows))
    }

    /// Computes the logits of rows `[token][hidden]` and leaves them on the last GPU, as the output matrix gives them.
    pub(super) fn device_logits(&self, x: &[f32]) -> Result<Buffer, EngineError> {
        self.with_rows(x, |last, workspace, rows| Ok(last.logits_on_device(workspace, rows)?))
    }

    /// Runs `make` on the last segment with rows `[token][hidden]` after the last layer.
    fn with_rows<T>(
        &self,
        x: &[f32],
        make: impl FnOnce(&Segment, &mut Workspace, usize) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let rows = x.len() / self.dimensions.config.hidden_size;
        let mut guard = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, at) = (self.last(), self.segments.len() - 1);
        let workspace = last.reserve(&mut guard[at], rows)?;
        last.gpu.upload_to(&mut workspace.x, 0, x)?;
        make(last, workspace, rows)
    }

    /// Returns the GPU times and the peak memory so far.
    pub(super) fn used(&self) -> GpuUse {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let most = self.segments.iter().map(|segment| segment.gpu.most_bytes());
        GpuUse { most_bytes: most.sum(), gpus: self.segments.len(), ..used }
    }

    /// Frees the host memory in which observers of a prompt saw its chunks.
    pub(super) fn forget_views(&self) {
        let mut workspaces = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        workspaces.iter_mut().flatten().for_each(|workspace| workspace.host = HostWorkspace::default());
    }
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn equal_gpus_are_counted_and_others_named() {
        let of = |given: &[&str]| names(&given.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!([of(&["A"]), of(&["A", "A", "A"]), of(&["A", "B"])], ["A", "3 x A", "A + B"]);
    }
}
