//! Whether a model that can think before it answers is asked to.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use spattn_base::error::UsageError;

/// Whether a model thinks before it answers. The chat template gets this as `enable_thinking`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    /// The model answers at once: all of its text is the answer.
    #[default]
    Off,
    /// The model thinks first: its answer is what follows the last `</think>`.
    On,
}

impl Thinking {
    /// The names of all values.
    pub const NAMES: [&str; 2] = ["off", "on"];

    /// The value's name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for Thinking {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let known = [Self::Off, Self::On].into_iter().find(|thinking| thinking.name() == text);
        known.ok_or_else(|| UsageError::unknown("thinking", text, Self::NAMES))
    }
}
