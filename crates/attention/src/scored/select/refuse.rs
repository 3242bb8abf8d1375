//! Errors for parameters that a way of selecting does not use.

use crate::spec::Params;
use spattn_base::error::UsageError;

/// Returns an error if one of `keys`, which this way of selecting does not
/// use, is given.
pub(super) fn refuse(params: &mut Params, keys: &[&'static str], why: &str) -> Result<(), UsageError> {
    for key in keys {
        if params.take(key).is_some() {
            return Err(UsageError::new(format!("`{key}` {why}"))
                .hint(format!("ask for what takes {key} (pick, rescore), or leave it out")));
        }
    }
    Ok(())
}
