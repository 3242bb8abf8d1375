//! Buffers that the engine keeps from one use to the next: activations of rows, and what steps pick and record.

use std::time::Duration;

use spattn_attention::{DeviceScratch, DeviceWorkspace};
use spattn_cuda::{AttentionWorkspace, Buffer, Gpu, GpuError, HostDeviceVec, Recording, Timeline};

use super::expert_room::ExpertRoom;
use super::host::HostWorkspace;

/// The layers of a step whose shape repeats.
pub(super) struct Recorded {
    /// All that launching them depends on.
    pub(super) key: Vec<u64>,
    /// Made when the shape comes up a second time.
    pub(super) recording: Option<Recording>,
}

/// What is kept for rows that the device picks for together.
#[derive(Default)]
pub(super) struct SelectionWorkspace {
    pub(super) rows: HostDeviceVec<u32>,
    pub(super) counters: HostDeviceVec<u64>,
    pub(super) counters_of_kept: HostDeviceVec<u64>,
    pub(super) own: DeviceWorkspace,
    /// Where tokens are picked ahead, the picks of every second layer: those of a layer are attended while the next one's are made.
    other: DeviceWorkspace,
    /// Whether tokens are picked ahead.
    pub(super) alternates: bool,
    /// What a layer's own queries would have picked, where misses are counted; and addresses of counters.
    wanted: DeviceWorkspace,
    missing: HostDeviceVec<u64>,
}

/// What the picks of a layer are compared with: numbers of rows, the picks, what other queries pick, and addresses of counters.
pub(super) struct ComparedPicks<'w> {
    pub(super) rows: &'w HostDeviceVec<u32>,
    pub(super) picked: &'w DeviceWorkspace,
    pub(super) wanted: &'w mut DeviceWorkspace,
    pub(super) missing: &'w mut HostDeviceVec<u64>,
}

/// What rows of a layer are picked with: their numbers, addresses of counters, and the picks of the layer.
pub(super) struct LayerPicks<'w> {
    pub(super) rows: &'w HostDeviceVec<u32>,
    pub(super) counters: &'w mut HostDeviceVec<u64>,
    pub(super) counters_of_kept: &'w mut HostDeviceVec<u64>,
    pub(super) own: &'w mut DeviceWorkspace,
}

impl SelectionWorkspace {
    /// What was picked at a layer.
    pub(super) fn picked(&self, layer: usize) -> &DeviceWorkspace {
        if self.alternates && layer % 2 == 1 { &self.other } else { &self.own }
    }

    /// To pick at a layer.
    pub(super) fn of_layer(&mut self, layer: usize) -> LayerPicks<'_> {
        let Self { rows, counters, counters_of_kept, own, other, alternates, .. } = self;
        let own = if *alternates && layer % 2 == 1 { other } else { own };
        LayerPicks { rows, counters, counters_of_kept, own }
    }

    /// To compare the picks of a layer.
    pub(super) fn compared(&mut self, layer: usize) -> ComparedPicks<'_> {
        let Self { rows, own, other, alternates, wanted, missing, .. } = self;
        let picked = if *alternates && layer % 2 == 1 { &*other } else { &*own };
        ComparedPicks { rows, picked, wanted, missing }
    }

    /// Has what is enqueued next wait for all that is fetched.
    pub(super) fn await_tokens(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        [&mut self.own, &mut self.other].into_iter().try_for_each(|picks| gpu.await_tokens(&mut picks.lists))
    }
}

/// What is kept for a stream for which the host attends a part.
#[derive(Default)]
pub(super) struct AskedRoom {
    /// Numbers of the stream's rows.
    pub(super) rows: HostDeviceVec<u32>,
    /// Room for the queries of several rows, without keys and values between them.
    pub(super) queries: Option<Buffer>,
}

/// What a layer of a step is for a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    /// How long the host was picking.
    pub(super) host: Duration,
    /// Rows that the device picked for.
    pub(super) picked_rows: usize,
    /// Rows of which misses were counted.
    pub(super) compared_rows: usize,
    /// Tokens attended, summed over rows and KV heads; at most, where the device picks them.
    pub(super) tokens: usize,
}

/// Activations of so many rows, kept from one use to the next.
pub(super) struct Workspace {
    pub(super) rows: usize,
    pub(super) tokens: Buffer,
    pub(super) positions: Buffer,
    /// f32, `[hidden]` a row.
    pub(super) x: Buffer,
    pub(super) normed: Buffer,
    /// What a branch adds to `x`, in f32, where it is normed or scaled first.
    pub(super) branch: Buffer,
    pub(super) qkv: Buffer,
    /// The queries that the next layer would make of this layer's input, in rows as those of `qkv`, where tokens are picked ahead. What is
    /// behind the queries of a row is of no meaning.
    pub(super) ahead: Option<Buffer>,
    /// The input of the last layer of the GPU before, until the first layer's queries are made of it.
    pub(super) last_input: Option<Buffer>,
    pub(super) attended: Buffer,
    /// The same in f32, where the host looks at it.
    pub(super) wide: Option<Buffer>,
    pub(super) gate_up: Buffer,
    pub(super) gated: Buffer,
    /// Where the model has experts.
    pub(super) experts: Option<ExpertRoom>,
    pub(super) broken: Buffer,
    pub(super) places: Option<Buffer>,
    /// Frequencies of a step, by the number of the RoPE table.
    pub(super) inverse: Vec<Option<Buffer>>,
    pub(super) logits: Option<Buffer>,
    /// What is found of logits where tokens are chosen.
    pub(super) argmax: Option<Buffer>,
    /// Of layers in turn where tokens are picked ahead, and so are in lists in turn: then each is sent once in a step.
    pub(super) attention: [AttentionWorkspace; 2],
    /// One for each of what the layers of a step attend, where nothing is picked.
    pub(super) exact: Vec<AttentionWorkspace>,
    pub(super) recorded: Option<Recorded>,
    /// Of a step in which tokens are picked: four marks a layer, and one more where misses are counted.
    pub(super) timeline: Timeline,
    /// Of the same, for each layer and stream.
    pub(super) work: Vec<Work>,
    /// Of rows that the device picks for, method by method.
    pub(super) picks: Vec<SelectionWorkspace>,
    pub(super) scratch: DeviceScratch,
    /// Of streams for which the host attends a part.
    pub(super) asked: Vec<AskedRoom>,
    pub(super) host: HostWorkspace,
}
