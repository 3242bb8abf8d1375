//! Look-ups in one object of the settings, with the error for an unsupported setting.

use serde_json::Value;

use crate::config::keys::Keys;
use crate::formats::QUANTISED_HINT;
use crate::tensors::quantised::{Fp8Scales, GroupSize, IntBits};
use spattn_base::error::UsageError;

/// One object of the settings.
pub(super) struct Settings<'a> {
    pub keys: Keys<'a>,
}

impl Settings<'_> {
    /// Reads an object within this one.
    pub fn within<T>(
        &self,
        key: &str,
        value: &Value,
        read: impl Fn(&Settings<'_>) -> Result<T, UsageError>,
    ) -> Result<T, UsageError> {
        let map = value.as_object().ok_or_else(|| self.keys.wrong(key, "an object", value))?;
        let prefix = format!("{}{key}.", self.keys.prefix);
        read(&Settings { keys: Keys { file: self.keys.file, prefix: &prefix, map } })
    }

    /// Refuses a key that is neither read nor known to be harmless, unless its value means
    /// the same as an absent key.
    pub fn only(&self, read: &[&str], harmless: &[&str]) -> Result<(), UsageError> {
        let known = |key: &str| key == "quant_method" || read.contains(&key) || harmless.contains(&key);
        match self.keys.map.iter().find(|(key, value)| !known(key) && !says_nothing(value)) {
            None => Ok(()),
            Some((key, _)) => Err(self.unread(key, "it is not read, and may change what is computed")),
        }
    }

    /// The error for an unsupported setting.
    pub fn unread(&self, key: &str, what: &str) -> UsageError {
        self.keys.error(key, what).hint(QUANTISED_HINT)
    }

    /// Whether a key is present with a value other than null, false or an empty one.
    pub fn says(&self, key: &str) -> bool {
        self.keys.get(key).is_some_and(|value| !says_nothing(value))
    }

    /// One of several names, in upper or lower case, if the key is present.
    pub fn one_of(&self, key: &str, names: &[&'static str]) -> Result<Option<&'static str>, UsageError> {
        let Some(stated) = self.keys.optional_text(key)? else { return Ok(None) };
        let known = names.iter().find(|name| stated.eq_ignore_ascii_case(name)).copied();
        let all = || names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        known.map(Some).ok_or_else(|| self.unread(key, &format!("only {} can be read, got `{stated}`", all())))
    }

    /// Bits of a packed number; the key must be present.
    pub fn bits(&self, key: &str, known: &[IntBits]) -> Result<IntBits, UsageError> {
        let stated = self.keys.size(key)?;
        let bits = known.iter().copied().find(|bits| usize::from(*bits) == stated);
        let all = || known.iter().map(|bits| usize::from(*bits).to_string()).collect::<Vec<_>>().join(" and ");
        bits.ok_or_else(|| self.unread(key, &format!("only {} bits can be read, got {stated}", all())))
    }

    /// `group_size`: −1 means all inputs; 128 if absent, as in transformers.
    pub fn group_size(&self) -> Result<GroupSize, UsageError> {
        const KEY: &str = "group_size";
        match self.keys.get(KEY) {
            None => Ok(GroupSize::Neighbours(128)),
            Some(all) if all.as_i64() == Some(-1) => Ok(GroupSize::All),
            Some(_) => Ok(GroupSize::Neighbours(self.keys.size(KEY)?)),
        }
    }

    /// Rows and columns of a block that shares a scale.
    pub fn block(&self, key: &str) -> Result<Fp8Scales, UsageError> {
        let value = self.keys.get(key).ok_or_else(|| self.keys.missing(key))?;
        let extent = |extent: &Value| extent.as_u64().filter(|n| (1..=1 << 20).contains(n)).map(|n| n as usize);
        let extents = value.as_array().map(|all| all.iter().map(extent).collect::<Option<Vec<usize>>>());
        let block = extents.flatten().and_then(|extents| <[usize; 2]>::try_from(extents).ok());
        block.map(Fp8Scales::Block).ok_or_else(|| self.keys.wrong(key, "two whole numbers from 1", value))
    }
}

/// Whether a value means the same as an absent key.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(_) => false,
    }
}
