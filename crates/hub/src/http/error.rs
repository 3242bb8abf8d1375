//! Why there is no answer. The causes are distinguished, so that hints fit them.

use std::time::Duration;

use ureq::http::StatusCode;

/// Bytes a second below which a download is given up.
pub const LEAST_RATE: u64 = 1024;
/// Why a request has no complete answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The server answers with an error status.
    #[error("{0}")]
    Refused(Refusal),
    /// The host name cannot be resolved.
    #[error("the host name {host} cannot be resolved ({detail})")]
    Unresolved {
        /// The host.
        host: String,
        /// The system's error.
        detail: String,
    },
    /// The host cannot be reached.
    #[error("cannot connect to {host} ({detail})")]
    Unconnected {
        /// The host.
        host: String,
        /// The system's error.
        detail: String,
    },
    /// TLS does not accept the connection.
    #[error("cannot open a secure connection to {host} ({detail})")]
    Insecure {
        /// The host.
        host: String,
        /// The error of the TLS library.
        detail: String,
    },
    /// No answer begins within [`Timeouts::answer`](super::Timeouts::answer).
    #[error("{host} does not answer within {} s", after.as_secs_f64())]
    Unanswered {
        /// The host.
        host: String,
        /// How long the client waited.
        after: Duration,
    },
    /// No byte comes within [`Timeouts::stall`](super::Timeouts::stall).
    #[error("{host} sent nothing for {} s", after.as_secs_f64())]
    Stalled {
        /// The host.
        host: String,
        /// How long the client waited.
        after: Duration,
    },
    /// Bytes come more slowly than [`LEAST_RATE`].
    #[error("{host} sent {bytes} bytes in {:.0} s, too few to go on", during.as_secs_f64())]
    Slow {
        /// The host.
        host: String,
        /// The number of bytes received.
        bytes: u64,
        /// The time that this took.
        during: Duration,
    },
    /// The connection ended before the answer did.
    #[error("the connection to {host} broke ({detail})")]
    Broken {
        /// The host.
        host: String,
        /// How far it got, or the system's error.
        detail: String,
    },
    /// The answer is not what the protocol or the hub promises.
    #[error("{host} sent an answer that cannot be used ({detail})")]
    Unintelligible {
        /// The host.
        host: String,
        /// What is wrong with it.
        detail: String,
    },
}

/// An answer with an error status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The host.
    pub host: String,
    /// The status.
    pub status: u16,
    /// The reason in the server's header, such as `GatedRepo`.
    pub code: Option<String>,
    /// How long the server asks to wait before the next request.
    pub retry_after: Option<Duration>,
    /// Whether it comes from the requested host, not from one that it redirected to.
    pub by_first_host: bool,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = StatusCode::from_u16(self.status).ok().and_then(|status| status.canonical_reason());
        write!(f, "{} answers {} {}", self.host, self.status, name.unwrap_or_default())?;
        self.code.as_ref().map_or(Ok(()), |code| write!(f, ", {code}"))
    }
}

impl HttpError {
    /// Whether the server was reached, and the same request may succeed right away or soon.
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Refused(refusal) => matches!(refusal.status, 408 | 429 | 500..=599),
            Self::Broken { .. } => true,
            _ => false,
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        self.is_busy()
            || matches!(
                self,
                Self::Unresolved { .. } | Self::Unconnected { .. } | Self::Unanswered { .. } | Self::Stalled { .. }
            )
    }

    /// How long the server asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refusal) => refusal.retry_after,
            _ => None,
        }
    }

    /// What the user can do about it; `again` says what happens if the same command is run
    /// again.
    pub fn hint(&self, again: &str) -> String {
        match self {
            Self::Refused(refusal) => refusal.hint(again),
            Self::Unresolved { host, .. } => {
                format!("check the network, the name {host}, and HF_ENDPOINT and HTTPS_PROXY if they are set; {again}")
            }
            Self::Unconnected { host, .. } => format!(
                "check the network, whether a firewall blocks {host}, and HF_ENDPOINT and HTTPS_PROXY if they are set; {again}"
            ),
            Self::Insecure { host, .. } => format!(
                "check the clock and HTTPS_PROXY; a proxy that replaces the certificate of {host} is not trusted; {again}"
            ),
            Self::Unanswered { .. } => format!("HF_HUB_ETAG_TIMEOUT=60 waits longer for an answer; {again}"),
            Self::Stalled { .. } => format!("HF_HUB_DOWNLOAD_TIMEOUT=60 waits longer for the next byte; {again}"),
            Self::Slow { .. } => format!(
                "a download slower than {LEAST_RATE} bytes a second is ended; HF_HUB_DOWNLOAD_TIMEOUT=60 allows more time; {again}"
            ),
            Self::Broken { .. } => format!("the network or {} closed the connection; {again}", self.host()),
            Self::Unintelligible { host, .. } => {
                format!("check HF_ENDPOINT and HTTPS_PROXY, and that no login page answers in place of {host}; {again}")
            }
        }
    }

    fn host(&self) -> &str {
        match self {
            Self::Refused(Refusal { host, .. })
            | Self::Unresolved { host, .. }
            | Self::Unconnected { host, .. }
            | Self::Insecure { host, .. }
            | Self::Unanswered { host, .. }
            | Self::Stalled { host, .. }
            | Self::Slow { host, .. }
            | Self::Broken { host, .. }
            | Self::Unintelligible { host, .. } => host,
        }
    }
}

impl Refusal {
    fn hint(&self, again: &str) -> String {
        let host = &self.host;
        match (self.status, self.retry_after) {
            (401 | 403 | 407, _) if !self.by_first_host => format!(
                "{host}, which stores the file, denies access, not the server that names it: a firewall or proxy may block {host}, or the link has expired; {again}"
            ),
            (401 | 403 | 407, _) => {
                format!("{host} denies access: check the URL, and whether a firewall or proxy blocks it; {again}")
            }
            (404 | 410, _) => "the file was moved, or the URL is wrong".to_owned(),
            (429, Some(wait)) => {
                format!("{host} limits the number of requests; wait {} s, then {again}", wait.as_secs())
            }
            (429, None) => format!("{host} limits the number of requests; wait some minutes, then {again}"),
            (500..=599, _) => format!("{host} reports an error of its own; later {again}"),
            _ => format!("once the cause that {host} states is gone, {again}"),
        }
    }
}
