//! Whole steps of a batch of sequences that share no prefix, on one GPU, for timing. No prompt was read: keys and values are given.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::alone::{LayerAlone, RunAlone};
use super::gpus::Cuda;
use super::model::{Segment, StepAngles};
use super::workspace::{Recorded, Workspace};
use crate::engine::EngineError;
use spattn_cuda::{Buffer, ChannelLists, Gpu, GpuError, HostDeviceVec, Into, Place, Queries, Timeline};

/// What the steps of a batch need besides weights and the KV cache.
#[derive(Default)]
pub struct BatchWorkspace {
    /// The numbers of all channels of a head, used to gather the queries.
    channels: Option<Buffer>,
    /// The gathered queries of all sequences that are known one layer earlier.
    ahead: Option<Buffer>,
    timeline: Timeline,
    /// The recorded launches of a step that attends an earlier selection, and of one that selects.
    recorded: [Option<Recorded>; 2],
}

/// Passes of the flood before launches that are not recorded. The host needs milliseconds to enqueue the launches of a step, and the
/// device must be busy for that long, so that it waits for none of them.
const PASSES: usize = 32;

impl Cuda {
    /// Returns the device that holds the model.
    ///
    /// # Panics
    /// If several devices hold it.
    pub fn device(&self) -> &Arc<Gpu> {
        &self.only().gpu
    }

    /// Times one step of all layers and the output matrix for a batch, by events of the device. Sequence `i` reads `tokens[i]`; layer `l`
    /// attends copy `l` of `alone`. If `picks`, tokens are selected anew. The step of a single sequence is a CUDA graph, as the engine's
    /// step is where nothing is selected; other steps are enqueued while the device is busy. So no step waits for the host.
    ///
    /// # Errors
    /// [`EngineError`].
    ///
    /// # Panics
    /// If the number of copies is not the number of layers, or several GPUs hold the model.
    pub fn step_batch(
        &self,
        alone: &LayerAlone,
        run: &mut RunAlone,
        tokens: &[u32],
        picks: bool,
        batch_workspace: &mut BatchWorkspace,
    ) -> Result<Duration, EngineError> {
        let (segment, c) = (self.only(), &self.config);
        let (rows, context) = (tokens.len(), alone.prefix().tokens());
        assert!(
            alone.copies() == c.layers && alone.heads() == rows * c.heads,
            "{} copies of {} heads, not {} of {}",
            alone.copies(),
            alone.heads(),
            c.layers,
            rows * c.heads
        );
        let mut guard = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = segment.reserve(&mut guard[0], rows)?;
        // All uploads come before the first event.
        let angles = segment.send_batch(workspace, alone, rows)?;
        run.rows_in_order(rows)?;
        let BatchWorkspace { channels, ahead, timeline, recorded } = batch_workspace;
        if channels.is_none() {
            *channels = Some(segment.gpu.upload(&(0..c.head_dim as u32).collect::<Vec<_>>())?);
        }
        let channels = channels.as_ref().expect("the numbers of channels were uploaded above");
        segment.gpu.reserve(ahead, rows * c.heads * c.head_dim * segment.storage().bytes())?;
        let mut step = BatchStep { segment, alone, rows, picks, angles, channels, ahead };
        let start = |workspace: &mut Workspace| segment.start(workspace, tokens, &vec![context as u32; rows]);
        start(workspace)?;
        let recorded = &mut recorded[usize::from(picks)];
        if segment.repeats(rows) {
            let key = step.key(workspace);
            if recorded.as_ref().is_none_or(|known| known.key != key) {
                // A launch before the recording allocates what the recorded launches use.
                step.launch(workspace, run)?;
                start(workspace)?;
                let recording = segment.gpu.record(|| step.launch(workspace, run))?;
                *recorded = Some(Recorded { key, recording: Some(recording) });
            }
        }
        let recording = recorded.as_mut().and_then(|recorded| recorded.recording.as_mut());
        let passes = if recording.is_some() { 1 } else { PASSES };
        (0..passes).try_for_each(|_| alone.flood())?;
        timeline.clear();
        segment.gpu.mark(timeline)?;
        match recording {
            Some(recording) => segment.gpu.replay(recording)?,
            None => step.launch(workspace, run)?,
        }
        segment.gpu.mark(timeline)?;
        segment.check(workspace, |row| row)?;
        Ok(timeline.spans()?[0])
    }
}

/// A step of a batch: the next token of each of `rows` sequences.
struct BatchStep<'a> {
    segment: &'a Segment,
    alone: &'a LayerAlone,
    rows: usize,
    picks: bool,
    angles: Vec<StepAngles>,
    /// The numbers of all channels of a head.
    channels: &'a Buffer,
    /// Room for the queries of all sequences, without the keys and values between them.
    ahead: &'a mut Option<Buffer>,
}

impl BatchStep<'_> {
    /// Enqueues all layers and the output matrix.
    fn launch(&mut self, workspace: &mut Workspace, run: &mut RunAlone) -> Result<(), GpuError> {
        let &mut Self { segment, alone, rows, picks, .. } = self;
        for index in 0..segment.config.layers {
            segment.forward_layer(workspace, rows, index, 0, |workspace, layer| {
                segment.rotate_rows(workspace, rows, index, layer, &self.angles)?;
                if run.selects_ahead() && index + 1 < segment.config.layers {
                    self.look_ahead(workspace, run, index + 1)?;
                }
                let picks = picks && !(run.selects_ahead() && index > 0);
                let Workspace { qkv, attended, .. } = workspace;
                // The queries of a single sequence are already contiguous.
                if rows == 1 {
                    return run.step_layer(index, picks, qkv, attended);
                }
                alone.with_queries(|queries| self.take_queries(run.in_order(), qkv, queries))?;
                alone.with_queries(|queries| run.step_layer(index, picks, queries, attended))
            })?;
        }
        let (norm, head) = segment.end();
        segment.norm(workspace, 0, rows, Some(norm), segment.config.layers, 0)?;
        let Workspace { normed, logits: Some(logits), .. } = &mut *workspace else {
            unreachable!("the buffer of logits was reserved when the batch was sent")
        };
        segment.multiply(head, normed, rows, logits, Into::Wide)
    }

    /// Selects for a layer by the queries that it would make of the previous layer's input, and fetches the selected tokens.
    fn look_ahead(&mut self, workspace: &mut Workspace, run: &mut RunAlone, layer: usize) -> Result<(), GpuError> {
        let &mut Self { segment, rows, .. } = self;
        segment.make_queries_ahead(workspace, None, rows, layer, &self.angles)?;
        let Workspace { ahead: Some(made), .. } = workspace else {
            unreachable!("`make_queries_ahead` reserved the queries")
        };
        if rows == 1 {
            return run.select_ahead(layer, made);
        }
        let mut beside = self.ahead.take().expect("the queries of all sequences were reserved with the step");
        let taken =
            self.take_queries(run.in_order(), made, &mut beside).and_then(|()| run.select_ahead(layer, &beside));
        *self.ahead = Some(beside);
        taken
    }

    /// Returns what the launches depend on and what may change during a run: addresses of buffers, and scaling factors.
    fn key(&self, workspace: &Workspace) -> Vec<u64> {
        let Workspace { x, qkv, ahead, places, inverse, logits, .. } = workspace;
        let reserved = [places, logits, ahead, &*self.ahead].into_iter().chain(inverse).flatten();
        let ids = [x, qkv, self.channels].into_iter().chain(reserved).map(Buffer::id);
        ids.chain(self.angles.iter().map(|angles| u64::from(angles.scaling.to_bits()))).collect()
    }

    /// Gathers the rotated queries of all rows, `[row][head][d]`.
    fn take_queries(&self, in_order: &HostDeviceVec<u32>, qkv: &Buffer, queries: &mut Buffer) -> Result<(), GpuError> {
        let &Self { segment, rows, channels, .. } = self;
        let c = &segment.config;
        let of_rows = Queries { queries: qkv, stride: segment.widths().1, heads: c.heads, rows: in_order };
        let all = ChannelLists { buffer: channels, heads: 1, width: c.head_dim };
        let shape = (c.head_dim, c.heads, segment.storage());
        segment.gpu.gather_queries((&of_rows, 0..rows), shape, &all, c.head_dim, queries)
    }
}

impl Segment {
    /// Uploads the positions of a batch's rows and where their keys and values go, and reserves room for their logits.
    fn send_batch(
        &self,
        workspace: &mut Workspace,
        alone: &LayerAlone,
        rows: usize,
    ) -> Result<Vec<StepAngles>, GpuError> {
        let context = alone.prefix().tokens();
        let angles = self.send_frequencies(workspace, &vec![context; rows], context)?;
        let places: Vec<Place> = (0..self.config.layers).flat_map(|layer| alone.places(layer, rows)).collect();
        let to = self.gpu.reserved(&mut workspace.places, size_of_val(places.as_slice()))?;
        self.gpu.upload_to(to, 0, &places)?;
        self.gpu.reserve(&mut workspace.logits, 4 * rows * self.end().1.outputs)?;
        Ok(angles)
    }
}
