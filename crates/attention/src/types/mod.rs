//! Small types that the rest of the crate uses. They know nothing of methods, indexes or engines.

pub(crate) mod attention_spec;
pub(crate) mod budget;
pub(crate) mod channels;
pub(crate) mod index_key;
pub(crate) mod policy;
pub(crate) mod positions;
pub(crate) mod prefix_head;
pub(crate) mod prompt_shape;
pub(crate) mod role;
pub(crate) mod schedule;
pub(crate) mod scores;
pub(crate) mod seed;
pub(crate) mod selection;
