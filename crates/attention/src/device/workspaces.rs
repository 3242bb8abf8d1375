//! Device memory that is kept from step to step and from chunk to chunk, so that nothing is allocated in between.

#[cfg(feature = "cuda")]
use spattn_cuda::{
    BlockLists, Buffer, CollisionWorkspace, DrawWorkspace, HoldingWorkspace, HostDeviceVec, ScoreWorkspace, Searched,
    TokenLists, TreeWorkspace,
};

/// Selections of the rows that share a method, kept from step to step.
#[cfg(feature = "cuda")]
#[derive(Debug, Default)]
pub struct DeviceWorkspace {
    /// The selected tokens.
    pub lists: TokenLists,
    /// The budget of each row.
    pub budget_units: HostDeviceVec<u32>,
    /// Workspace of methods that sample.
    pub draws: DrawWorkspace,
}

/// Scratch memory shared by all methods.
#[cfg(feature = "cuda")]
#[derive(Debug, Default)]
pub struct DeviceScratch {
    /// Scores of candidates.
    pub scores: ScoreWorkspace,
    /// Partial scores that these are computed from.
    pub parts: ScoreWorkspace,
    /// Transformed queries that are compared with an index, in one or two parts.
    pub queries: [Option<Buffer>; 2],
    /// Row numbers `0..rows`.
    pub in_order: HostDeviceVec<u32>,
    /// Workspace of a tree search.
    pub tree: TreeWorkspace,
    /// Workspace of hash collisions.
    pub collisions: CollisionWorkspace,
    /// Workspace of updates to token caches.
    pub holding: HoldingWorkspace,
}

/// Device memory of a prefill by a mask, kept from chunk to chunk.
#[cfg(feature = "cuda")]
#[derive(Debug, Default)]
pub(crate) struct MaskWorkspace {
    /// The tokens that blocks of rows attend.
    pub(crate) lists: BlockLists,
    /// The ranges that blocks search, for masks that the device searches for.
    pub(crate) searched: HostDeviceVec<Searched>,
    /// Products computed by searches, and tokens that rows see of the result: u64 `[layer][head][2]`.
    pub(crate) counters: Option<Buffer>,
}
