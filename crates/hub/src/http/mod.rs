//! Requests over HTTP. Redirects are followed here, not by the library, so that a token is sent only to its own host.

mod address;
mod error;
mod timeouts;

pub use address::{parse_url, without_user};
pub use error::{HttpError, LEAST_RATE, Refusal};
pub use timeouts::Timeouts;

use std::time::{Duration, Instant, SystemTime};

use ureq::http::{HeaderMap, Response, StatusCode, header};
use ureq::{Body, BodyReader};
use url::{Origin, Url};

use address::host_of;
use spattn_base::foreign::contain;

/// The most redirects that are followed, as many as by browsers.
const MOST_REDIRECTS: usize = 10;
/// The header in which the hub's file servers say why they refuse.
const ERROR_CODE: &str = "x-error-code";
/// The longest error code that is shown. Error codes are single words; anything else from a server is not repeated.
const LONGEST_ERROR_CODE: usize = 40;
/// Length of the window over which the rate is measured, in units of [`Timeouts::stall`].
const STALLS_A_WINDOW: u32 = 6;

/// The head of one response on the way to an answer: a redirect, or the last one.
#[derive(Debug)]
pub struct Hop {
    /// Its headers.
    pub headers: HeaderMap,
    /// Whether it comes from the requested host.
    pub by_first_host: bool,
    /// Whether it redirects to another address.
    pub is_redirect: bool,
}

/// An answer whose content has yet to be read.
pub struct Answer {
    /// Whether the content is the requested part of the file, not the whole file.
    pub is_part: bool,
    /// Its headers.
    pub headers: HeaderMap,
    host: String,
    stall: Duration,
    window: Window,
    body: BodyReader<'static>,
}

/// The bytes received, and the time spent waiting for them; time in which the program itself was suspended does not count.
#[derive(Debug, Default)]
struct Window {
    waited: Duration,
    bytes: u64,
}

impl Window {
    /// Adds bytes received after a wait. If the window has reached `length`, starts a new one, and returns the old one as an
    /// error if it has too few bytes.
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
    /// The number of bytes of the content, if the server states it.
    pub fn length(&self) -> Option<u64> {
        number(&self.headers, header::CONTENT_LENGTH.as_str())
    }

    /// Whether the end of the content can be distinguished from a broken connection.
    pub fn has_end(&self) -> bool {
        self.length().is_some() || self.headers.contains_key(header::TRANSFER_ENCODING)
    }

    /// The offset of the first byte in the file, and the size of the whole file, if the server states them.
    pub fn range(&self) -> Option<(u64, Option<u64>)> {
        let (range, total) = text(&self.headers, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
        Some((range.split_once('-')?.0.trim().parse().ok()?, total.trim().parse().ok()))
    }

    /// Reads the next bytes; returns their number, 0 at the end.
    ///
    /// # Errors
    /// If the connection breaks or stalls, or is too slow for too long.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, HttpError> {
        loop {
            let begun = Instant::now();
            match std::io::Read::read(&mut self.body, buffer) {
                // Waiting for the end does not count for the rate.
                Ok(0) => return Ok(0),
                Ok(read) => {
                    let (waited, length) =
                        (begun.elapsed().min(self.stall), self.stall.saturating_mul(STALLS_A_WINDOW));
                    let slow =
                        |Window { waited, bytes }| HttpError::Slow { host: self.host.clone(), bytes, during: waited };
                    return self.window.take(read, waited, length).map(|()| read).map_err(slow);
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.broken_off(ureq::Error::from(e))),
            }
        }
    }

    fn broken_off(&self, error: ureq::Error) -> HttpError {
        let host = self.host.clone();
        match error {
            ureq::Error::Timeout(_) => HttpError::Stalled { host, after: self.stall },
            other => HttpError::Broken { host, detail: plain(&other) },
        }
    }

    /// The error for a content that ends after `got` of `expected` bytes.
    pub fn ends_early(&self, got: u64, expected: u64) -> HttpError {
        HttpError::Broken { host: self.host.clone(), detail: format!("after {got} of {expected} bytes") }
    }

    /// The error for an answer that cannot be used.
    pub fn unusable(&self, detail: impl Into<String>) -> HttpError {
        HttpError::Unintelligible { host: self.host.clone(), detail: detail.into() }
    }

    /// Reads the whole content.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), or if it is longer than `most` bytes.
    pub fn read_all(mut self, most: usize) -> Result<Vec<u8>, HttpError> {
        let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match self.read(&mut buffer)? {
                0 => return Ok(all),
                read if all.len() + read > most => {
                    return Err(self.unusable(format!("more than {most} bytes")));
                }
                read => all.extend(&buffer[..read]),
            }
        }
    }
}

/// Sends requests; a token, if there is one, is sent to one origin only.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    timeouts: Timeouts,
    bearer: Option<Bearer>,
}

/// A token, and the only origin (scheme, host and port) that it is sent to.
struct Bearer {
    origin: Origin,
    token: String,
}

impl std::fmt::Debug for Bearer {
    /// Omits the token, which must not get into messages.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bearer({})", self.origin.ascii_serialization())
    }
}

/// A request without its URL.
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
            // Sizes and offsets have to be those of the file itself, not of a compressed form.
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

    /// Requests a file from the byte `from` on, and follows redirects to it.
    ///
    /// # Errors
    /// [`HttpError`], if no answer begins.
    pub fn get(&self, url: &Url, from: u64) -> Result<Answer, HttpError> {
        let (response, at) = self.follow(Request::Get { from }, url, |_| false)?;
        let (host, stall) = (host_of(&at), self.timeouts.stall);
        let (head, body) = response.into_parts();
        let is_part = head.status == StatusCode::PARTIAL_CONTENT;
        let window = Window::default();
        Ok(Answer { is_part, headers: head.headers, host, stall, window, body: body.into_reader() })
    }

    /// Sends HEAD requests, following redirects until a response is `enough`; returns the heads of all responses.
    ///
    /// # Errors
    /// [`HttpError`].
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

    /// Sends one request, without following redirects.
    fn ask(&self, request: Request, at: &Url) -> Result<Response<Body>, HttpError> {
        let built = match request {
            // There is no content that could stall.
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
        // The library looks up addresses in a thread, and panics if it cannot start one.
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
        // The text may repeat a URL with a password.
        let detail = if detail.contains('@') { "a URL is not valid".to_owned() } else { detail };
        match error {
            Error::Timeout(Timeout::Resolve) | Error::HostNotFound => HttpError::Unresolved { host, detail },
            // The library has no error kind for failures of the system's resolver.
            Error::Io(e) if e.to_string().contains("lookup") => HttpError::Unresolved { host, detail },
            Error::Timeout(Timeout::Connect) => HttpError::Unconnected { host, detail },
            Error::Timeout(Timeout::PerRead) => HttpError::Stalled { host, after: self.timeouts.stall },
            Error::Timeout(_) => HttpError::Unanswered { host, after: self.timeouts.answer },
            Error::Tls(_) | Error::Rustls(_) | Error::Pem(_) | Error::TlsRequired => {
                HttpError::Insecure { host, detail }
            }
            Error::Io(e) => match e.kind() {
                // TLS errors arrive as this kind of I/O error.
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

/// The text of an error, without the library's prefix.
fn plain(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(e) => e.to_string(),
        ureq::Error::Rustls(e) => e.to_string(),
        ureq::Error::Timeout(_) => "timed out".to_owned(),
        other => other.to_string(),
    }
}

fn redirect(response: &Response<Body>, at: &Url) -> Result<Option<Url>, HttpError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let lost = |detail: &str| HttpError::Unintelligible { host: host_of(at), detail: detail.to_owned() };
    let location =
        text(response.headers(), header::LOCATION.as_str()).ok_or_else(|| lost("a redirect without a target"))?;
    let next = at.join(location).ok().filter(|next| matches!(next.scheme(), "https" | "http") && next.has_host());
    next.map(Some).ok_or_else(|| lost("a redirect to something that is not a URL"))
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

/// The wait that `Retry-After` asks for, given in seconds or as a date.
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
}
