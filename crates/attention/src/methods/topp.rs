//! `topp`: the fewest tokens that cover a share `p` of the attention, by exact weights (oracle top-p; after Twilight, Lin et al. 2025).
//!
//! Nothing is stored. A decode step multiplies the queries with the keys of all candidates. The share is of the
//! candidates' attention mass; see [`TopShare`].

use std::sync::Arc;

use super::ParamInfo;
use super::topk::ExactScores;
use crate::Role;
use crate::methods::MethodEntry;
use crate::scored::granularity::Granularity;
use crate::scored::method::Scored;
use crate::scored::select::TopShare;

pub(super) const ENTRY: MethodEntry = MethodEntry {
    name: "topp",
    role: Role::Oracle,
    about: "fewest tokens with a share p of the attention, by exact weights",
    reference: "an oracle; pruning by top-p: Twilight (Lin et al. 2025, arXiv:2502.02770)",
    params: &[ParamInfo { key: "p", default: "0.95", about: "share of the candidates' attention mass, above 0 to 1" }],
    presets: &[],
    build: |params| Ok(Arc::new(Scored::new(ExactScores, TopShare::read(params)?, Granularity::QueryHead))),
};
