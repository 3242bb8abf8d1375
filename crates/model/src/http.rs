//! Requests over HTTP. Redirects are followed by hand, so that a token stays with the host that it is for; what goes
//! wrong is told apart, so that hints name the true cause.

use std::time::{Duration, Instant, SystemTime};

use ureq::http::{HeaderMap, Response, StatusCode, header};
use ureq::{Body, BodyReader};
use url::{Origin, Url};

use spattn_base::error::UsageError;
use spattn_base::foreign::contain;

/// As many redirects as browsers follow, at most.
const MOST_REDIRECTS: usize = 10;
/// What tells the servers of the hub's files why they refuse.
const ERROR_CODE: &str = "x-error-code";
/// Error codes are single words; whatever else a server sends is not repeated.
const LONGEST_ERROR_CODE: usize = 40;

/// How long servers may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// To be found, to be connected, and to begin to answer; each.
    pub answer: Duration,
    /// Between one byte of a file, or of what comes before it, and the next. A whole file may take any time, as long as
    /// [`LEAST_RATE`] is kept up: over six times as long as this, that is looked at.
    pub stall: Duration,
}

/// Bytes a second below which an answer does not get anywhere.
pub const LEAST_RATE: u64 = 1024;
/// How many times as long as a stall the rate is measured over.
const STALLS_A_WINDOW: u32 = 6;

impl Default for Timeouts {
    fn default() -> Self {
        Self { answer: Duration::from_secs(10), stall: Duration::from_secs(10) }
    }
}

impl Timeouts {
    /// From the variables that other Hugging Face tools use: `HF_HUB_ETAG_TIMEOUT` for the answer,
    /// `HF_HUB_DOWNLOAD_TIMEOUT` for a stall, both in seconds.
    ///
    /// # Errors
    /// If one of them is no number of seconds above 0.
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
        UsageError::new(format!("{variable} is `{}`, no number of seconds", text.display()))
            .hint(format!("give a number above 0, such as {variable}=30, or leave it out"))
    })
}

/// Why there is no answer, or no whole one.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The server answers that it does not.
    #[error("{0}")]
    Refused(Refusal),
    /// The host's address cannot be found.
    #[error("the address of {host} cannot be found ({detail})")]
    Unresolved {
        /// The host.
        host: String,
        /// What the system said.
        detail: String,
    },
    /// The host cannot be reached.
    #[error("no connection to {host} ({detail})")]
    Unconnected {
        /// The host.
        host: String,
        /// What the system said.
        detail: String,
    },
    /// There is a connection, but none that can be trusted.
    #[error("no secure connection to {host} ({detail})")]
    Insecure {
        /// The host.
        host: String,
        /// What TLS said.
        detail: String,
    },
    /// The answer does not begin.
    #[error("{host} does not answer within {} s", after.as_secs_f64())]
    Unanswered {
        /// The host.
        host: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// A file, or the answer that it comes with, does not go on.
    #[error("{host} sent nothing for {} s", after.as_secs_f64())]
    Stalled {
        /// The host.
        host: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// A file does go on, but so slowly that it would never be there.
    #[error("{host} sent {bytes} bytes in {:.0} s, which leads nowhere", during.as_secs_f64())]
    Slow {
        /// The host.
        host: String,
        /// How much came.
        bytes: u64,
        /// How long that took.
        during: Duration,
    },
    /// The connection ended before the answer did.
    #[error("the connection to {host} broke ({detail})")]
    Broken {
        /// The host.
        host: String,
        /// How far it got, or what the system said.
        detail: String,
    },
    /// The answer makes no sense.
    #[error("{host} does not answer as it should ({detail})")]
    Unintelligible {
        /// The host.
        host: String,
        /// What is wrong with it.
        detail: String,
    },
}

/// An answer that is none: the status and what came with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The host.
    pub host: String,
    /// The status.
    pub status: u16,
    /// What the server calls the reason, such as `GatedRepo`.
    pub code: Option<String>,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
    /// Whether it is the host that was asked, not one that it redirected to.
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
    /// Whether the server was there, and may do better at once or soon.
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Refused(refusal) => matches!(refusal.status, 408 | 429 | 500..=599),
            Self::Broken { .. } => true,
            _ => false,
        }
    }

    /// Whether the same request may do better later.
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

    /// What the user can do about it; `again` says what the same command would do.
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
                "less than {LEAST_RATE} bytes a second is given up; HF_HUB_DOWNLOAD_TIMEOUT=60 gives it longer; {again}"
            ),
            Self::Broken { .. } => format!("the network or {} ended it; {again}", self.host()),
            Self::Unintelligible { host, .. } => {
                format!("look at what is between here and {host} (HF_ENDPOINT, HTTPS_PROXY, a login page); {again}")
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
                "the file's store {host} denies it, not the server that names it: a firewall or proxy may block {host}, or the link has expired; {again}"
            ),
            (401 | 403 | 407, _) => format!("{host} denies access: check the address, and what may block it; {again}"),
            (404 | 410, _) => "the file was moved, or the address is wrong".to_owned(),
            (429, Some(wait)) => {
                format!("{host} limits the number of requests; wait {} s, then {again}", wait.as_secs())
            }
            (429, None) => format!("{host} limits the number of requests; wait some minutes, then {again}"),
            (500..=599, _) => format!("{host} has a problem of its own; later {again}"),
            _ => format!("{again} if what {host} says was mended"),
        }
    }
}

/// What a server said on the way to an answer.
#[derive(Debug)]
pub struct Hop {
    /// What it said.
    pub headers: HeaderMap,
    /// Whether it is the host that was asked.
    pub by_first_host: bool,
    /// Whether it only names another address.
    pub is_redirect: bool,
}

/// An answer, of which the content is still to be read.
pub struct Answer {
    /// Whether only the part of the file that was asked for comes.
    pub is_part: bool,
    /// What the server said.
    pub headers: HeaderMap,
    host: String,
    stall: Duration,
    window: Window,
    body: BodyReader<'static>,
}

/// What came of an answer while it was waited for, which is not while the program was stopped.
#[derive(Debug, Default)]
struct Window {
    waited: Duration,
    bytes: u64,
}

impl Window {
    /// Takes in what came after a wait; where a window of this length is over in which too little came, that window.
    fn take(&mut self, read: usize, waited: Duration, length: Duration) -> Result<(), Self> {
        self.bytes += read as u64;
        self.waited += waited;
        if self.waited < length {
            return Ok(());
        }
        let full = std::mem::take(self);
        let is_slow = (full.bytes as f64) < full.waited.as_secs_f64() * LEAST_RATE as f64;
        if is_slow { Err(full) } else { Ok(()) }
    }
}

impl Answer {
    /// The size of what comes, if the server says it.
    pub fn length(&self) -> Option<u64> {
        number(&self.headers, header::CONTENT_LENGTH.as_str())
    }

    /// Whether the end of what comes can be told from a connection that breaks.
    pub fn has_end(&self) -> bool {
        self.length().is_some() || self.headers.contains_key(header::TRANSFER_ENCODING)
    }

    /// The first byte's place in the file and the file's size, where they are said.
    pub fn range(&self) -> Option<(u64, Option<u64>)> {
        let (range, total) = text(&self.headers, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
        Some((range.split_once('-')?.0.trim().parse().ok()?, total.trim().parse().ok()))
    }

    /// The next bytes; none at the end.
    ///
    /// # Errors
    /// If the connection breaks or stalls, or too little comes for too long.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, HttpError> {
        loop {
            let begun = Instant::now();
            match std::io::Read::read(&mut self.body, buffer) {
                // The end is no matter of rates.
                Ok(0) => return Ok(0),
                Ok(read) => {
                    let (waited, length) =
                        (begun.elapsed().min(self.stall), self.stall.saturating_mul(STALLS_A_WINDOW));
                    let slow =
                        |Window { waited, bytes }| HttpError::Slow { host: self.host.clone(), bytes, during: waited };
                    return self.window.take(read, waited, length).map(|()| read).map_err(slow);
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.torn(ureq::Error::from(e))),
            }
        }
    }

    fn torn(&self, error: ureq::Error) -> HttpError {
        let host = self.host.clone();
        match error {
            ureq::Error::Timeout(_) => HttpError::Stalled { host, after: self.stall },
            other => HttpError::Broken { host, detail: plain(&other) },
        }
    }

    /// The error of a content that ends after `got` of `expected` bytes.
    pub fn ends_early(&self, got: u64, expected: u64) -> HttpError {
        HttpError::Broken { host: self.host.clone(), detail: format!("after {got} of {expected} bytes") }
    }

    /// The error of an answer that makes no sense.
    pub fn makes_no_sense(&self, detail: impl Into<String>) -> HttpError {
        HttpError::Unintelligible { host: self.host.clone(), detail: detail.into() }
    }

    /// All of the content.
    ///
    /// # Errors
    /// As [`read`](Self::read), or if it is longer than `most` bytes.
    pub fn read_all(mut self, most: usize) -> Result<Vec<u8>, HttpError> {
        let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match self.read(&mut buffer)? {
                0 => return Ok(all),
                read if all.len() + read > most => {
                    return Err(self.makes_no_sense(format!("more than {most} bytes")));
                }
                read => all.extend(&buffer[..read]),
            }
        }
    }
}

/// Sends requests; the token, if any, to one origin only.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    timeouts: Timeouts,
    bearer: Option<Bearer>,
}

/// A token, and the only scheme, host and port that it is sent to.
struct Bearer {
    origin: Origin,
    token: String,
}

impl std::fmt::Debug for Bearer {
    /// Without the token: it must not get into messages.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bearer({})", self.origin.ascii_serialization())
    }
}

/// A request but for its address.
#[derive(Debug, Clone, Copy)]
enum Request {
    Head,
    /// The content from this byte on.
    Get {
        from: u64,
    },
}

impl Client {
    /// A client without a token.
    pub fn new(timeouts: Timeouts) -> Self {
        let agent = ureq::Agent::config_builder()
            .timeout_resolve(Some(timeouts.answer))
            .timeout_connect(Some(timeouts.answer))
            .timeout_send_request(Some(timeouts.answer))
            .timeout_recv_response(Some(timeouts.answer))
            .timeout_per_read(Some(timeouts.stall))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Sizes and places in a file are those of the file itself.
            .accept_encoding("identity")
            .user_agent(concat!("spattn/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Self { agent, timeouts, bearer: None }
    }

    /// Sends `token` with each request to the scheme, host and port of `url`, and with no other.
    pub fn with_token(self, url: &Url, token: &str) -> Self {
        Self { bearer: Some(Bearer { origin: url.origin(), token: token.to_owned() }), ..self }
    }

    /// Asks for a file from the byte `from` on, and follows redirects to it.
    ///
    /// # Errors
    /// Why there is no answer that begins.
    pub fn get(&self, url: &Url, from: u64) -> Result<Answer, HttpError> {
        let (response, at) = self.follow(Request::Get { from }, url, |_| false)?;
        let (host, stall) = (host_of(&at), self.timeouts.stall);
        let (head, body) = response.into_parts();
        let is_part = head.status == StatusCode::PARTIAL_CONTENT;
        let window = Window::default();
        Ok(Answer { is_part, headers: head.headers, host, stall, window, body: body.into_reader() })
    }

    /// Asks what there is to know about a file, and follows redirects until `enough`; all that was said on the way.
    ///
    /// # Errors
    /// Why there is no answer.
    pub fn head(&self, url: &Url, enough: impl Fn(&Hop) -> bool) -> Result<Vec<Hop>, HttpError> {
        let mut hops = Vec::new();
        self.follow(Request::Head, url, |hop| {
            let done = enough(&hop);
            hops.push(hop);
            done
        })?;
        Ok(hops)
    }

    fn follow(
        &self,
        request: Request,
        url: &Url,
        mut enough: impl FnMut(Hop) -> bool,
    ) -> Result<(Response<Body>, Url), HttpError> {
        let mut at = url.clone();
        for _ in 0..=MOST_REDIRECTS {
            let by_first_host = at.origin() == url.origin();
            let response = self.ask(request, &at)?;
            let next = redirect(&response, &at)?;
            if next.is_none() && !response.status().is_success() {
                return Err(HttpError::Refused(refusal(&response, &at, by_first_host)));
            }
            let hop = Hop { headers: response.headers().clone(), by_first_host, is_redirect: next.is_some() };
            let enough = enough(hop);
            match next {
                Some(next) if !enough => at = next,
                _ => return Ok((response, at)),
            }
        }
        Err(HttpError::Unintelligible { host: host_of(&at), detail: format!("more than {MOST_REDIRECTS} redirects") })
    }

    /// One request, to this address and no other.
    fn ask(&self, request: Request, at: &Url) -> Result<Response<Body>, HttpError> {
        let built = match request {
            // Nothing comes after the answer that could stall.
            Request::Head => self.agent.head(at.as_str()).config().timeout_per_read(None).build(),
            Request::Get { .. } => self.agent.get(at.as_str()),
        };
        let built = match request {
            Request::Get { from } if from > 0 => built.header(header::RANGE, format!("bytes={from}-")),
            _ => built,
        };
        let built = match self.token_for(at) {
            Some(token) => built.header(header::AUTHORIZATION, format!("Bearer {token}")),
            None => built,
        };
        // Addresses are looked up in a thread, and where there is none to be had, the library panics.
        match contain(|| built.call()) {
            Ok(answer) => answer.map_err(|error| self.unanswered(error, at)),
            Err(panic) => Err(HttpError::Unresolved { host: host_of(at), detail: panic.said().to_owned() }),
        }
    }

    /// The token, if it is for this address.
    fn token_for(&self, at: &Url) -> Option<&str> {
        self.bearer.as_ref().filter(|bearer| bearer.origin == at.origin()).map(|bearer| bearer.token.as_str())
    }

    fn unanswered(&self, error: ureq::Error, at: &Url) -> HttpError {
        use std::io::ErrorKind;
        use ureq::{Error, Timeout};
        let (host, detail) = (host_of(at), plain(&error));
        // An address that is repeated there may have a password in it.
        let detail = if detail.contains('@') { "an address is not as it should be".to_owned() } else { detail };
        match error {
            Error::Timeout(Timeout::Resolve) | Error::HostNotFound => HttpError::Unresolved { host, detail },
            // The system's resolver has no error kind of its own.
            Error::Io(e) if e.to_string().contains("lookup") => HttpError::Unresolved { host, detail },
            Error::Timeout(Timeout::Connect) => HttpError::Unconnected { host, detail },
            Error::Timeout(Timeout::PerRead) => HttpError::Stalled { host, after: self.timeouts.stall },
            Error::Timeout(_) => HttpError::Unanswered { host, after: self.timeouts.answer },
            Error::Tls(_) | Error::Rustls(_) | Error::Pem(_) | Error::TlsRequired => {
                HttpError::Insecure { host, detail }
            }
            Error::Io(e) => match e.kind() {
                // TLS hands its errors over as this one.
                ErrorKind::InvalidData if at.scheme() == "https" => HttpError::Insecure { host, detail },
                ErrorKind::UnexpectedEof
                | ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::BrokenPipe => HttpError::Broken { host, detail },
                _ => HttpError::Unconnected { host, detail },
            },
            Error::ConnectionFailed | Error::ConnectProxyFailed(_) | Error::InvalidProxyUrl => {
                HttpError::Unconnected { host, detail }
            }
            _ => HttpError::Unintelligible { host, detail },
        }
    }
}

/// An address that can be asked.
///
/// # Errors
/// If it is none with `https://` or `http://` and a host.
pub fn parse_url(text: &str) -> Result<Url, UsageError> {
    let no_address = || {
        let what = match may_hold_password(text) {
            true => "it is no address (and is not repeated here, as it may hold a password)".to_owned(),
            false => format!("`{text}` is no address"),
        };
        UsageError::new(what).hint("give one that begins with https:// or http://")
    };
    let url = Url::parse(text).map_err(|_| no_address())?;
    let usable = matches!(url.scheme(), "https" | "http") && url.has_host();
    usable.then_some(url).ok_or_else(no_address)
}

/// Whether a text that is no address may have a user's name and password in it: an `@`, or a `:` that neither ends a scheme
/// nor begins a port.
fn may_hold_password(text: &str) -> bool {
    let after = text.split_once("://").map_or(text, |(_, after)| after);
    let is_port = |rest: &str| rest.bytes().take_while(|b| *b != b'/').all(|b| b.is_ascii_digit());
    text.contains('@') || after.split_once(':').is_some_and(|(_, rest)| !is_port(rest))
}

/// An address as it may be shown: without a user's name and password.
pub fn without_user(address: &str) -> String {
    let Ok(mut url) = parse_url(address) else { return "the hub".to_owned() };
    if url.username().is_empty() && url.password().is_none() {
        return address.to_owned();
    }
    // Of an address with a host neither fails.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.as_str().trim_end_matches('/').to_owned()
}

/// What an error says, without the words that the library puts before it.
fn plain(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(e) => e.to_string(),
        ureq::Error::Rustls(e) => e.to_string(),
        ureq::Error::Timeout(_) => "it takes too long".to_owned(),
        other => other.to_string(),
    }
}

/// Host and, unless it is the usual one, port.
fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn redirect(response: &Response<Body>, at: &Url) -> Result<Option<Url>, HttpError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let lost = |detail: &str| HttpError::Unintelligible { host: host_of(at), detail: detail.to_owned() };
    let location = text(response.headers(), header::LOCATION.as_str()).ok_or_else(|| lost("a redirect to nowhere"))?;
    let next = at.join(location).ok().filter(|next| matches!(next.scheme(), "https" | "http") && next.has_host());
    next.map(Some).ok_or_else(|| lost("a redirect to what is no address"))
}

fn refusal(response: &Response<Body>, at: &Url, by_first_host: bool) -> Refusal {
    let headers = response.headers();
    let is_word = |code: &&str| code.len() <= LONGEST_ERROR_CODE && code.bytes().all(|b| b.is_ascii_alphanumeric());
    Refusal {
        host: host_of(at),
        status: response.status().as_u16(),
        code: text(headers, ERROR_CODE).filter(is_word).map(str::to_owned),
        retry_after: text(headers, header::RETRY_AFTER.as_str()).and_then(|wait| waiting_time(wait, SystemTime::now())),
        by_first_host,
    }
}

/// What `Retry-After` says: seconds, or the date until which to wait.
fn waiting_time(text: &str, now: SystemTime) -> Option<Duration> {
    match text.trim().parse::<u64>() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(text.trim()).ok().map(|then| then.duration_since(now).unwrap_or_default()),
    }
}

/// A header as text.
pub fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A header as a number.
pub fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        parse_url(text).unwrap()
    }

    #[test]
    fn the_token_is_for_one_scheme_host_and_port() {
        let client = Client::new(Timeouts::default()).with_token(&url("https://hub.example"), "secret");
        let sent = |address: &str| client.token_for(&url(address)).is_some();
        assert!(sent("https://hub.example/a/b") && sent("https://hub.example:443/a") && sent("https://HUB.example/"));
        for other in [
            "http://hub.example/a",
            "http://hub.example:443/a",
            "https://hub.example:8443/a",
            "https://cdn.hub.example/a",
            "https://hub.example.org/a",
            "https://hub.example@elsewhere.org/a",
            "https://elsewhere.org/hub.example",
        ] {
            assert!(!sent(other), "{other}");
        }
        assert!(!format!("{client:?}").contains("secret"));
    }

    #[test]
    fn servers_say_how_long_to_wait_in_seconds_or_by_a_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let waits = |text: &str| waiting_time(text, now).map(|wait| wait.as_secs());
        assert_eq!(waits("120"), Some(120));
        assert_eq!(waits("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30));
        assert_eq!(waits("Sun, 06 Nov 1994 08:00:00 GMT"), Some(0), "a date that has passed");
        assert_eq!((waits("soon"), waits("-1")), (None, None));
    }

    #[test]
    fn only_addresses_of_web_servers_are_asked() {
        for text in ["", "hub", "hub.example:80", "file:///etc/passwd", "https://", "gopher://x"] {
            assert_eq!(parse_url(text).unwrap_err().what, format!("`{text}` is no address"));
        }
    }

    #[test]
    fn a_password_in_an_address_is_never_repeated() {
        for text in [
            "https//user:s3cret@hub.example",
            "user:s3cret@hub.example",
            "https://user:s3cret@",
            "https://user:s3cret",
            "https://user:s3/cret@hub.example",
            "https://user:s3cret@hub.example:port",
            "ftp://user:s3cret@hub.example",
            "https:user:s3cret",
        ] {
            match parse_url(text) {
                Err(error) => assert!(!error.what.contains("cret"), "{error}"),
                Ok(url) => assert!(!host_of(&url).contains("cret") && !without_user(text).contains("cret"), "{url}"),
            }
        }
        assert_eq!(without_user("https://user:s3cret@hub.example/x/"), "https://hub.example/x");
        assert_eq!(without_user("https://hub.example"), "https://hub.example");
    }
}
