//! Device memory that is kept from step to step and from chunk to chunk, so that nothing is allocated in between.

#[cfg(feature = "cuda")]
use spattn_cuda::{
    BlockLists, Buffer, CollisionWorkspace, DrawWorkspace, HoldingWorkspace, HostDeviceVec, ScoreWorkspace, Searched,
    TokenLists, TreeWorkspace,
};

/// Room for what rows that share a method pick, kept from step to step.
#[cfg(feature = "cuda")]
#[derive(Debug, Default)]
pub struct DeviceWorkspace {
    /// What is picked.
    pub lists: TokenLists,
    /// A number for each row, for whoever picks.
    pub budget_units: HostDeviceVec<u32>,
    /// What lies between scores and draws, for whoever draws.
    pub draws: DrawWorkspace,
}

/// Room for what is needed in between, for all methods.
#[cfg(feature = "cuda")]
#[derive(Debug, Default)]
pub struct DeviceScratch {
    /// Scores of candidates.
    pub scores: ScoreWorkspace,
    /// Scores that those are made of.
    pub parts: ScoreWorkspace,
    /// What queries are made into before they are compared with an index, in one or two parts.
    pub queries: [Option<Buffer>; 2],
    /// The numbers of rows in the order in which they are.
    pub in_order: HostDeviceVec<u32>,
    /// What lies between the rounds of a search.
    pub tree: TreeWorkspace,
    /// What lies between a query and what it collides with.
    pub collisions: CollisionWorkspace,
    /// What lies between what is held and what it receives.
    pub holding: HoldingWorkspace,
}

/// What a device holds while a prompt is read by a mask, kept from chunk to chunk.
#[cfg(feature = "cuda")]
#[derive(Debug, Default)]
pub(crate) struct MaskWorkspace {
    /// What blocks of rows attend.
    pub(crate) lists: BlockLists,
    /// What they search, where it is searched for.
    pub(crate) searched: HostDeviceVec<Searched>,
    /// Products that searches took, and tokens that rows see of what was found: u64 `[layer][head][2]`.
    pub(crate) counters: Option<Buffer>,
}
