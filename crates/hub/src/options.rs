//! How to reach the hub and where its cache is.

use std::path::PathBuf;
use std::time::Duration;

use crate::download::Downloader;
use crate::env::Variables;
use crate::http::{Client, Timeouts};
use spattn_base::error::UsageError;

/// The pause before the second try of a request.
const BACKOFF: Duration = Duration::from_secs(1);

/// How to reach the hub and where its cache is.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// The cache folder.
    pub cache: PathBuf,
    /// The URL of the hub.
    pub endpoint: String,
    /// The access token for private and gated repositories; it is sent only to the endpoint's scheme, host and port.
    pub token: Option<String>,
    /// Whether network access is forbidden, so that only the cache is used.
    pub offline: bool,
    /// How long the hub and the servers that it redirects to may take.
    pub timeouts: Timeouts,
    /// The pause before the second try of a request; it doubles for each further one.
    pub backoff: Duration,
    /// Whether to show progress on standard error.
    pub progress: bool,
}

impl HubOptions {
    /// Reads the variables that other Hugging Face tools use: `HF_HUB_CACHE` (formerly `HUGGINGFACE_HUB_CACHE`),
    /// `HF_HOME`, `XDG_CACHE_HOME`, `HF_ENDPOINT`, `HF_TOKEN` (formerly `HUGGING_FACE_HUB_TOKEN`; else the file
    /// `HF_TOKEN_PATH`), `HF_HUB_OFFLINE` (else `TRANSFORMERS_OFFLINE`), and those of [`Timeouts::from_env`].
    ///
    /// # Errors
    /// If neither a variable nor a home folder determines the cache, or a variable is invalid.
    pub fn from_env() -> Result<Self, UsageError> {
        let (cache, token, timeouts) = (OWN.cache()?, OWN.token(), Timeouts::from_env()?);
        let offline = OWN.offline().is_some();
        Ok(Self { token, timeouts, offline, ..Self::new(cache, OWN.text("HF_ENDPOINT")) })
    }

    /// Options with this cache and, if it is not the public hub, this endpoint; without a token, and not offline.
    pub fn new(cache: impl Into<PathBuf>, endpoint: Option<String>) -> Self {
        let endpoint = endpoint.unwrap_or_else(|| "https://huggingface.co".to_owned());
        Self {
            cache: cache.into(),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: None,
            offline: false,
            timeouts: Timeouts::default(),
            backoff: BACKOFF,
            progress: true,
        }
    }
}

/// The variables of this process.
const OWN: Variables<'static> = Variables(&|name| std::env::var_os(name));

/// The variable that forbids network access, if one does: `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`.
pub fn offline_by() -> Option<&'static str> {
    OWN.offline()
}

/// A downloader for files that need no token, with the environment's timeouts ([`Timeouts::from_env`]).
///
/// # Errors
/// Those of [`Timeouts::from_env`].
pub fn public_downloader() -> Result<Downloader, UsageError> {
    let client = Client::new(Timeouts::from_env()?);
    Ok(Downloader { client, backoff: BACKOFF, progress: true })
}
