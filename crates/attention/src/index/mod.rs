//! Building blocks of indexes over keys: clusters, principal components, graphs, and workspaces to search them.

pub(crate) mod graph;
pub(crate) mod kmeans;
pub(crate) mod pca;
pub(crate) mod workspaces;
