//! Device memory: keys and values of a layer, and what is kept from step to step so that nothing is allocated in between.

use crate::backend::workspaces::Workspaces;
use spattn_cuda::{Cache, Gpu, HostDeviceVec, ScoreWorkspace, TokenLists};

/// Keys and values of one layer, and the GPU that holds them.
pub type KvHandle<'a> = (&'a Gpu, Cache<'a>);

/// Selections of the rows that share a method, kept from step to step.
#[derive(Debug, Default)]
pub struct DeviceWorkspace {
    /// The selected tokens.
    pub lists: TokenLists,
    /// The budget of each row.
    pub budget_units: HostDeviceVec<u32>,
    /// Where the candidates of each row end, if tokens after the prefix become candidates.
    pub ends: HostDeviceVec<u32>,
    /// What the method or its picker keeps besides.
    pub own: Workspaces,
}

/// Scratch memory of a launch. Launches follow each other on one stream, so all methods share it.
#[derive(Debug, Default)]
pub struct DeviceScratch {
    /// Scores of candidates, from which a picker selects.
    pub scores: ScoreWorkspace,
    /// Other scratch memory of methods, by its type.
    pub own: Workspaces,
}
