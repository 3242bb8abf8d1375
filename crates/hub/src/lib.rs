//! Files from the network: HTTP, downloads that are resumed and checked, and the Hugging Face hub with its cache on disk.
//!
//! The cache has the layout of other Hugging Face tools, so their downloads are found. This crate knows nothing of the contents of
//! models and data sets: its users say which files of a repository they want, and in which order ([`Wanted`]).

#[macro_use]
extern crate spattn_base;

mod cache;
pub mod checksum;
pub mod data;
pub mod download;
mod env;
pub mod http;
mod id;
pub mod lock;
mod options;
pub mod patterns;
mod remote;
mod repository;
mod snapshot;
mod wanted;

pub use cache::{DamageCheck, Lack, by_hash};
pub use id::parse_id;
pub use options::{HubOptions, offline_by, public_downloader};
pub use remote::RepoKind;
pub use repository::{CachedCommit, FetchedCommit, Obstacle};
pub use snapshot::{Snapshot, snapshot};
pub use wanted::Wanted;
