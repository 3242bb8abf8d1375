//! OLMo 3: OLMo 2 with three of four layers sliding, which have their own rotation without scaling.

use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::keys_in_common::{head_dim_or_share, kinds_by_type, sliding_window};
use super::layer_kind::LayerKind;
use super::olmo2;
use crate::config::keys::Keys;
use crate::config::rope::LocalRope;
use spattn_base::error::UsageError;

pub(super) static OLMO3: Family = Family {
    name: "OLMo 3",
    class: "Olmo3ForCausalLM",
    model_type: "olmo3",
    defaults: ClassDefaults { rope_theta: ROPE_THETA, ..olmo2::DEFAULTS },
    is_wrapper: false,
    has_mxfp4_experts: false,
    read,
};

const ROPE_THETA: f64 = 500_000.0;

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    let sliding = LayerKind { window: sliding_window(keys)?, rope: Some(1), ..LayerKind::FULL };
    Ok(FamilyConfig {
        head_dim: head_dim_or_share(keys, sizes)?,
        kinds: kinds_by_type(keys, sizes, sliding, |layer| !(layer + 1).is_multiple_of(4))?,
        local_rope: Some(LocalRope { theta_key: None, theta: ROPE_THETA }),
        block: olmo2::block(keys)?,
    })
}
