//! Knowledge about the prefix's own attention: statistics gathered while it is read, and probes by its last queries.

mod following;
mod mass;
pub(crate) mod need;
mod piece;
pub(crate) mod probe;
pub(crate) mod stats;
