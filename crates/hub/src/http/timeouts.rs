//! How long servers may take to answer.

use std::time::Duration;

use spattn_base::error::UsageError;

/// How long servers may take to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// The limit for each of three steps: resolving the host name, connecting, and the beginning of
    /// the answer.
    pub answer: Duration,
    /// The limit between two bytes of an answer. A whole file may take any time, as long as the rate
    /// is at least [`LEAST_RATE`](super::LEAST_RATE), measured over windows of six times this
    /// duration.
    pub stall: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { answer: Duration::from_secs(10), stall: Duration::from_secs(10) }
    }
}

impl Timeouts {
    /// Reads the variables that other Hugging Face tools use: `HF_HUB_ETAG_TIMEOUT` for the answer,
    /// `HF_HUB_DOWNLOAD_TIMEOUT` for a stall, both in seconds.
    ///
    /// # Errors
    /// If one of them is not a number of seconds above 0.
    pub fn from_env() -> Result<Self, UsageError> {
        let default = Self::default();
        Ok(Self {
            answer: seconds("HF_HUB_ETAG_TIMEOUT", default.answer)?,
            stall: seconds("HF_HUB_DOWNLOAD_TIMEOUT", default.stall)?,
        })
    }
}

fn seconds(variable: &str, default: Duration) -> Result<Duration, UsageError> {
    let Some(text) = std::env::var_os(variable).filter(|text| !text.is_empty()) else { return Ok(default) };
    let read = text.to_str().and_then(|text| text.trim().parse::<f64>().ok());
    let seconds = read.filter(|seconds| *seconds > 0.0).and_then(|s| Duration::try_from_secs_f64(s).ok());
    seconds.ok_or_else(|| {
        UsageError::new(format!("{variable} is `{}`, not a number of seconds", text.display()))
            .hint(format!("give a number above 0, such as {variable}=30, or leave it out"))
    })
}
