//! The configs shipped with the program, and how to load any.

use std::path::Path;

use super::settings::Settings;
use spattn_base::disk::no_lfs_pointer;
use spattn_base::error::UsageError;
use spattn_base::given;

/// A config shipped with the program.
pub struct ShippedConfig {
    /// Its name for `--config`.
    pub name: &'static str,
    /// The file's text.
    pub text: &'static str,
}

/// All shipped configs, which `--config` takes by name.
pub const SHIPPED: &[ShippedConfig] = &[
    ShippedConfig { name: "quick", text: include_str!("../../configs/quick.toml") },
    ShippedConfig { name: "methods", text: include_str!("../../configs/methods.toml") },
    ShippedConfig { name: "budgets", text: include_str!("../../configs/budgets.toml") },
    ShippedConfig { name: "kl-grid", text: include_str!("../../configs/kl-grid.toml") },
    ShippedConfig { name: "lengths", text: include_str!("../../configs/lengths.toml") },
    ShippedConfig { name: "protocols", text: include_str!("../../configs/protocols.toml") },
    ShippedConfig { name: "parity", text: include_str!("../../configs/parity.toml") },
    ShippedConfig { name: "prefill", text: include_str!("../../configs/prefill.toml") },
];

impl Settings {
    /// Loads a shipped config by name, or a config file by path.
    ///
    /// # Errors
    /// If `name` is neither, or the file cannot be read or parsed.
    pub fn load(name: &str) -> Result<Self, UsageError> {
        if let Some(shipped) = SHIPPED.iter().find(|c| c.name == name) {
            return Self::parse(shipped.text, name);
        }
        let text = given::text(Path::new(name), given::MOST_OF_SETTINGS).map_err(|e| {
            let known: Vec<&str> = SHIPPED.iter().map(|c| c.name).collect();
            UsageError::new(format!("cannot read config {name}: {e}"))
                .hint(format!("give a TOML file, or a shipped config: {}", known.join(", ")))
        })?;
        no_lfs_pointer(name, text.as_bytes())?;
        Self::parse(&text, name)
    }
}
