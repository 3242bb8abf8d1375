//! Whole steps of a batch of sequences that share no prefix, behind keys and values that nobody has read: for timing.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::alone::{LayerAlone, RunAlone};
use super::model::Cuda;
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
    /// The device.
    pub fn device(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// How long one step of all layers and the output matrix takes for a batch, by events of the device. Sequence `i` reads
    /// `tokens[i]`; layer `l` attends copy `l` of `alone`. If `picks`, what is attended is picked anew.
    ///
    /// # Errors
    /// [`EngineError`].
    ///
    /// # Panics
    /// If there are not as many copies as layers.
    pub fn step_batch(
        &self,
        alone: &LayerAlone,
        run: &mut RunAlone,
        tokens: &[u32],
        picks: bool,
        batch_workspace: &mut BatchWorkspace,
    ) -> Result<Duration, EngineError> {
        let (c, rows, context) = (&self.config, tokens.len(), alone.prefix().tokens());
        assert!(
            alone.copies() == c.layers && alone.heads() == rows * c.heads,
            "{} copies of {} heads, not {} of {}",
            alone.copies(),
            alone.heads(),
            c.layers,
            rows * c.heads
        );
        let mut guard = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = self.reserve(&mut guard, rows)?;
        // Everything is sent before the first event.
        self.start(workspace, tokens, vec![context as u32; rows])?;
        let positions = vec![context; rows];
        let angles = self.send_frequencies(workspace, &positions, context)?;
        let places: Vec<Place> = (0..c.layers).flat_map(|layer| alone.places(layer, rows)).collect();
        let to = self.gpu.reserved(&mut workspace.places, size_of_val(places.as_slice()))?;
        self.gpu.upload_to(to, 0, &places)?;
        if batch_workspace.channels.is_none() {
            batch_workspace.channels = Some(self.gpu.upload(&(0..c.head_dim as u32).collect::<Vec<_>>())?);
        }
        let head = self.parts.head();
        self.gpu.reserve(&mut workspace.logits, 4 * rows * head.outputs)?;
        run.rows_in_order(rows)?;
        let BatchWorkspace { channels: Some(channels), timeline } = batch_workspace else {
            unreachable!("the numbers of channels were uploaded above")
        };
        alone.flood()?;
        timeline.clear();
        self.gpu.mark(timeline)?;
        for index in 0..c.layers {
            self.forward_layer(workspace, rows, index, 0, |workspace, layer| {
                self.rotate_rows(workspace, rows, index, layer, &angles)?;
                self.take_queries(alone, run, &workspace.qkv, rows, channels)?;
                if picks {
                    run.select(index)?;
                }
                run.attend_into(index, &mut workspace.attended)
            })?;
        }
        self.norm(workspace, 0, rows, Some(&self.parts.norm), c.layers, 0)?;
        let Workspace { normed, logits: Some(logits), .. } = &mut *workspace else {
            unreachable!("the buffer of logits was reserved above")
        };
        self.multiply(head, normed, rows, logits, Into::Wide)?;
        self.gpu.mark(timeline)?;
        self.check(workspace, |row| row)?;
        Ok(timeline.spans()?[0])
    }

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
