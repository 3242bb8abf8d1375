//! What is known of the prefix's own attention: statistics gathered while it is read, and probes by its last queries.

pub(crate) mod probe;
pub(crate) mod stats;
