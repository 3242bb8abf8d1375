//! The runs that an item has.

use serde::Deserialize;

/// One of an item's runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// At the paper's own setting.
    Paper,
    /// On the built-in model.
    Builtin,
    /// On a small pretrained model.
    Real,
}

impl Variant {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Paper, Self::Builtin, Self::Real];

    /// The name of its table in items.
    pub fn table(self) -> &'static str {
        match self {
            Self::Paper => "run",
            Self::Builtin => "builtin",
            Self::Real => "real",
        }
    }

    /// Returns its name in folders.
    pub fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Builtin => "builtin",
            Self::Real => "real",
        }
    }
}
