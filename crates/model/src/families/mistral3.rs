//! Mistral models that read images (Mistral Small 3.1 and later, Ministral 3). They wrap a text model, Mistral or Ministral 3.

use super::family::{ClassDefaults, Family, FamilyConfig, Sizes};
use super::{ministral3, mistral};
use crate::config::keys::Keys;
use spattn_base::error::UsageError;

pub(super) static MISTRAL3: Family = Family {
    name: "Mistral 3",
    class: "Mistral3ForConditionalGeneration",
    model_type: "mistral3",
    defaults: ClassDefaults::COMMON,
    is_wrapper: true,
    has_mxfp4_experts: false,
    read,
};

fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<FamilyConfig, UsageError> {
    const KEY: &str = "model_type";
    match keys.optional_text(KEY)?.unwrap_or(mistral::MODEL_TYPE) {
        mistral::MODEL_TYPE => mistral::read(keys, sizes),
        ministral3::MODEL_TYPE => ministral3::read(keys, sizes),
        other => Err(keys.error(KEY, &format!("`{other}` is not supported in this class")).hint(format!(
            "supported: {}, {}",
            mistral::MODEL_TYPE,
            ministral3::MODEL_TYPE
        ))),
    }
}
