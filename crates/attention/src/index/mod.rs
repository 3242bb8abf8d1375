//! What indexes over keys are made of: clusters, principal components and graphs, and the workspaces to search them.

pub(crate) mod graph;
pub(crate) mod kmeans;
pub(crate) mod pca;
pub(crate) mod workspaces;
