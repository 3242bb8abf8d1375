//! Whole steps of a batch of sequences that share no prefix, behind keys and values that nobody has read: for timing, on one GPU.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::alone::{LayerAlone, RunAlone};
use super::gpus::Cuda;
use super::model::Segment;
use super::workspace::Workspace;
use crate::engine::EngineError;
use spattn_cuda::{Buffer, ChannelLists, Gpu, GpuError, Into, Place, Queries, Timeline};

/// What steps of a batch need beside weights and keys.
#[derive(Debug, Default)]
pub struct BatchWorkspace {
    /// All channels of a head, by which queries are taken together.
    channels: Option<Buffer>,
    timeline: Timeline,
}

impl Cuda {
    /// The device that holds the model.
    ///
    /// # Panics
    /// If there are several.
    pub fn device(&self) -> &Arc<Gpu> {
        &self.only().gpu
    }

    /// How long one step of all layers and the output matrix takes for a batch, by events of the device. Sequence `i` reads
    /// `tokens[i]`; layer `l` attends copy `l` of `alone`. If `picks`, what is attended is picked anew.
    ///
    /// # Errors
    /// [`EngineError`].
    ///
    /// # Panics
    /// If there are not as many copies as layers, or several GPUs hold the model.
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
        // Everything is sent before the first event.
        segment.start(workspace, tokens, &vec![context as u32; rows])?;
        let positions = vec![context; rows];
        let angles = segment.send_frequencies(workspace, &positions, context)?;
        let places: Vec<Place> = (0..c.layers).flat_map(|layer| alone.places(layer, rows)).collect();
        let to = segment.gpu.reserved(&mut workspace.places, size_of_val(places.as_slice()))?;
        segment.gpu.upload_to(to, 0, &places)?;
        if batch_workspace.channels.is_none() {
            batch_workspace.channels = Some(segment.gpu.upload(&(0..c.head_dim as u32).collect::<Vec<_>>())?);
        }
        let (norm, head) = segment.end();
        segment.gpu.reserve(&mut workspace.logits, 4 * rows * head.outputs)?;
        run.rows_in_order(rows)?;
        let BatchWorkspace { channels: Some(channels), timeline } = batch_workspace else {
            unreachable!("the numbers of channels were uploaded above")
        };
        alone.flood()?;
        timeline.clear();
        segment.gpu.mark(timeline)?;
        for index in 0..c.layers {
            segment.forward_layer(workspace, rows, index, 0, |workspace, layer| {
                segment.rotate_rows(workspace, rows, index, layer, &angles)?;
                segment.take_queries(alone, run, &workspace.qkv, rows, channels)?;
                if picks {
                    run.select(index)?;
                }
                run.attend_into(index, &mut workspace.attended)
            })?;
        }
        segment.norm(workspace, 0, rows, Some(norm), c.layers, 0)?;
        let Workspace { normed, logits: Some(logits), .. } = &mut *workspace else {
            unreachable!("the buffer of logits was reserved above")
        };
        segment.multiply(head, normed, rows, logits, Into::Wide)?;
        segment.gpu.mark(timeline)?;
        segment.check(workspace, |row| row)?;
        Ok(timeline.spans()?[0])
    }
}

impl Segment {
    /// Takes the rotated queries of all rows together, `[row][head][d]`.
    fn take_queries(
        &self,
        alone: &LayerAlone,
        run: &RunAlone,
        qkv: &Buffer,
        rows: usize,
        channels: &Buffer,
    ) -> Result<(), GpuError> {
        let c = &self.config;
        let of_rows = Queries { queries: qkv, stride: self.widths().1, heads: c.heads, rows: run.in_order() };
        let all = ChannelLists { buffer: channels, heads: 1, width: c.head_dim };
        let shape = (c.head_dim, c.heads, self.storage());
        alone.with_queries(|queries| self.gpu.gather_queries((&of_rows, 0..rows), shape, &all, c.head_dim, queries))
    }
}
