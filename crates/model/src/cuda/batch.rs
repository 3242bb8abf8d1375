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
        room_of_batch: &mut BatchWorkspace,
    ) -> Result<Duration, EngineError> {
        let (c, rows, context) = (&self.config, tokens.len(), alone.prefix().tokens());
        assert!(alone.copies() == c.layers && alone.heads() == rows * c.heads, "a copy for each layer");
        let mut guard = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.reserve(&mut guard, rows)?;
        // Everything is sent before the first event.
        self.start(room, tokens, vec![context as u32; rows])?;
        let positions = vec![context; rows];
        let (inverse, by_row, scaling) = self.step_frequencies(&positions, context);
        self.gpu.reserve(&mut room.inverse, size_of_val(inverse.as_slice()))?;
        self.gpu.upload_to(room.inverse.as_mut().expect("it was reserved"), 0, &inverse)?;
        let places: Vec<Place> = (0..c.layers).flat_map(|layer| alone.places(layer, rows)).collect();
        self.gpu.reserve(&mut room.places, size_of_val(places.as_slice()))?;
        self.gpu.upload_to(room.places.as_mut().expect("it was reserved"), 0, &places)?;
        if room_of_batch.channels.is_none() {
            room_of_batch.channels = Some(self.gpu.upload(&(0..c.head_dim as u32).collect::<Vec<_>>())?);
        }
        let head = self.parts.head();
        self.gpu.reserve(&mut room.logits, 4 * rows * head.outputs)?;
        run.rows_in_order(rows)?;
        let BatchWorkspace { channels: Some(channels), timeline } = room_of_batch else { unreachable!("it was sent") };
        alone.flood()?;
        timeline.clear();
        self.gpu.mark(timeline)?;
        for index in 0..c.layers {
            self.forward_layer(room, rows, index, 0, |room, layer| {
                self.rotate_rows(room, rows, index, layer, (by_row, scaling))?;
                self.take_queries(alone, run, &room.qkv, rows, channels)?;
                if picks {
                    run.select(index)?;
                }
                run.attend_into(index, &mut room.attended)
            })?;
        }
        self.norm(room, 0, rows, &self.parts.norm, c.layers, 0)?;
        let Workspace { normed, logits: Some(logits), .. } = &mut *room else { unreachable!("it was reserved") };
        self.multiply(head, normed, rows, logits, Into::Wide)?;
        self.gpu.mark(timeline)?;
        self.check(room, |row| row)?;
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
