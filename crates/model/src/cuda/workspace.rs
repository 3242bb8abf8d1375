//! Buffers that the engine reuses: activations of rows, and what steps select and record.

use std::time::Duration;

use spattn_attention::{DeviceScratch, DeviceWorkspace};
use spattn_cuda::{AttentionWorkspace, Buffer, Gpu, GpuError, HostDeviceVec, Recording, Timeline};

use super::expert_room::ExpertRoom;
use super::host::HostWorkspace;

/// The recorded layers of a step whose shape repeats.
pub(super) struct Recorded {
    /// Everything that the launches depend on.
    pub(super) key: Vec<u64>,
    /// Made when the shape comes up for the second time.
    pub(super) recording: Option<Recording>,
}

/// What is kept for rows whose tokens the device selects together.
#[derive(Default)]
pub(super) struct SelectionWorkspace {
    pub(super) rows: HostDeviceVec<u32>,
    pub(super) counters: HostDeviceVec<u64>,
    /// For each row that reuses an earlier selection.
    pub(super) counters_of_kept: Vec<HostDeviceVec<u64>>,
    pub(super) own: DeviceWorkspace,
    /// The selections of odd layers if tokens are selected ahead: a layer attends its selection while the next one's is made.
    other: DeviceWorkspace,
    /// Whether tokens are selected ahead.
    pub(super) alternates: bool,
    /// What a layer's own queries would have selected, where misses are counted; then the addresses of counters.
    wanted: DeviceWorkspace,
    missing: HostDeviceVec<u64>,
}

/// What the comparison of a layer's selection needs: row numbers, the selection, that of the layer's own queries, and counter addresses.
pub(super) struct ComparedPicks<'w> {
    pub(super) rows: &'w HostDeviceVec<u32>,
    pub(super) picked: &'w DeviceWorkspace,
    pub(super) wanted: &'w mut DeviceWorkspace,
    pub(super) missing: &'w mut HostDeviceVec<u64>,
}

/// What the selection at a layer needs: row numbers, counter addresses, and the layer's lists.
pub(super) struct LayerPicks<'w> {
    pub(super) rows: &'w HostDeviceVec<u32>,
    pub(super) counters: &'w mut HostDeviceVec<u64>,
    pub(super) counters_of_kept: &'w mut Vec<HostDeviceVec<u64>>,
    pub(super) own: &'w mut DeviceWorkspace,
}

impl SelectionWorkspace {
    /// Returns the selection at a layer.
    pub(super) fn picked(&self, layer: usize) -> &DeviceWorkspace {
        if self.alternates && layer % 2 == 1 { &self.other } else { &self.own }
    }

    /// Returns what the selection at a layer needs.
    pub(super) fn of_layer(&mut self, layer: usize) -> LayerPicks<'_> {
        let Self { rows, counters, counters_of_kept, own, other, alternates, .. } = self;
        let own = if *alternates && layer % 2 == 1 { other } else { own };
        LayerPicks { rows, counters, counters_of_kept, own }
    }

    /// Returns what the comparison of a layer's selection needs.
    pub(super) fn compared(&mut self, layer: usize) -> ComparedPicks<'_> {
        let Self { rows, own, other, alternates, wanted, missing, .. } = self;
        let picked = if *alternates && layer % 2 == 1 { &*other } else { &*own };
        ComparedPicks { rows, picked, wanted, missing }
    }

    /// Makes the work enqueued next wait until everything that is being fetched has arrived.
    pub(super) fn await_tokens(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        [&mut self.own, &mut self.other].into_iter().try_for_each(|picks| gpu.await_tokens(&mut picks.lists))
    }
}

/// What is kept for a stream of which the host attends a part.
#[derive(Default)]
pub(super) struct AskedRoom {
    /// The numbers of the stream's rows.
    pub(super) rows: HostDeviceVec<u32>,
    /// Room for the queries of several rows, without keys and values between them.
    pub(super) queries: Option<Buffer>,
}

/// The work of one stream at a layer of a step.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    /// The host's selection time.
    pub(super) host: Duration,
    /// Rows for which the device selected.
    pub(super) picked_rows: usize,
    /// Rows whose misses were counted.
    pub(super) compared_rows: usize,
    /// Tokens attended, summed over rows and KV heads; an upper bound if the device selects them.
    pub(super) tokens: usize,
}

/// Activations of up to `rows` rows, reused from step to step.
pub(super) struct Workspace {
    pub(super) rows: usize,
    pub(super) tokens: Buffer,
    pub(super) positions: Buffer,
    /// f32, `[hidden]` a row.
    pub(super) x: Buffer,
    pub(super) normed: Buffer,
    /// A branch's output in f32, where it is normed or scaled before it is added to `x`.
    pub(super) branch: Buffer,
    pub(super) qkv: Buffer,
    /// The queries that the next layer would make of this layer's input, in rows like those of `qkv`, if tokens are selected ahead. The
    /// numbers after a row's queries are undefined.
    pub(super) ahead: Option<Buffer>,
    /// The input of the previous GPU's last layer, until the queries of this GPU's first layer are made from it.
    pub(super) last_input: Option<Buffer>,
    pub(super) attended: Buffer,
    /// `attended` in f32, where the host reads it.
    pub(super) wide: Option<Buffer>,
    pub(super) gate_up: Buffer,
    pub(super) gated: Buffer,
    /// The room of the experts, if the model has any.
    pub(super) experts: Option<ExpertRoom>,
    pub(super) broken: Buffer,
    pub(super) places: Option<Buffer>,
    /// A step's frequencies, indexed by the number of the RoPE table.
    pub(super) inverse: Vec<Option<Buffer>>,
    pub(super) logits: Option<Buffer>,
    /// Room for the search for the most likely tokens.
    pub(super) argmax: Option<Buffer>,
    /// For even and odd layers if tokens are selected ahead into alternating lists, so that each is uploaded once a step.
    pub(super) attention: [AttentionWorkspace; 2],
    /// One for each distinct list that a step's layers attend, where nothing is selected.
    pub(super) exact: Vec<AttentionWorkspace>,
    pub(super) recorded: Option<Recorded>,
    /// The events of a step with selection: four marks a layer, and one more where misses are counted.
    pub(super) timeline: Timeline,
    /// The work of that step, for each layer and stream.
    pub(super) work: Vec<Work>,
    /// One for each group of rows whose tokens the device selects.
    pub(super) picks: Vec<SelectionWorkspace>,
    pub(super) scratch: DeviceScratch,
    /// One for each stream of which the host attends a part.
    pub(super) asked: Vec<AskedRoom>,
    pub(super) host: HostWorkspace,
}
