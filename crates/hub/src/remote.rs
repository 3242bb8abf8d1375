//! Requests to the hub: the files of a commit, and the size and version of a file.

use hf_hub::RepoType;
use serde::Deserialize;
use ureq::http::header;
use url::Url;

use crate::checksum::{Digest, Expected};
use crate::download::{Downloader, with_retries};
use crate::http::{Hop, HttpError, number, text};

const LINKED_VERSION: &str = "x-linked-etag";
const LINKED_SIZE: &str = "x-linked-size";
/// The most bytes of a file list; no repository has that many names.
const LONGEST_LISTING: usize = 256 << 20;
const LONGEST_VERSION: usize = 128;

/// A kind of repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepoKind {
    /// A model.
    Model,
    /// A data set.
    Dataset,
}

impl RepoKind {
    /// Its name in messages.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Dataset => "data set",
        }
    }

    /// The option of the hub's own tool for this kind of repository.
    pub(crate) fn tool_option(self) -> &'static str {
        match self {
            Self::Model => "",
            Self::Dataset => " --repo-type dataset",
        }
    }

    /// Its plural in the hub's URLs.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }
}

impl From<RepoKind> for RepoType {
    fn from(kind: RepoKind) -> Self {
        match kind {
            RepoKind::Model => Self::Model,
            RepoKind::Dataset => Self::Dataset,
        }
    }
}

/// A repository on the hub.
pub(crate) struct Remote<'a> {
    pub downloader: Downloader,
    pub endpoint: Url,
    pub repo: &'a str,
    pub kind: RepoKind,
}

/// A commit and its files.
#[derive(Debug, Deserialize)]
pub(crate) struct Listing {
    /// The commit.
    #[serde(rename = "sha")]
    pub commit: String,
    siblings: Vec<Sibling>,
    /// What the hub has read from GGUF files, if there are any.
    gguf: Option<GgufSummary>,
}

#[derive(Debug, Deserialize)]
struct GgufSummary {
    architecture: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    #[serde(rename = "rfilename")]
    name: String,
}

impl Listing {
    /// The names of the files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.siblings.iter().map(|sibling| sibling.name.as_str())
    }

    /// The architecture that GGUF files state, if the hub has read it.
    pub fn gguf_architecture(&self) -> Option<&str> {
        self.gguf.as_ref()?.architecture.as_deref()
    }

    /// Whether there is a file with this name.
    pub fn has(&self, name: &str) -> bool {
        self.names().any(|n| n == name)
    }
}

/// What the hub states about a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stated {
    /// Its version: a name for this content, usually a hash of it.
    pub version: String,
    bytes: Option<u64>,
}

impl Stated {
    /// The expected size and hash of the file.
    pub fn expected(&self) -> Expected<'_> {
        Expected { bytes: self.bytes, digest: Digest::of_name(&self.version) }
    }
}

impl Remote<'_> {
    /// Asks for the commit of a revision, and its files.
    pub fn listing(&self, revision: &str) -> Result<Listing, HttpError> {
        let url = self.address(&["api", self.kind.plural()], &["revision", revision]);
        // Without network the cache may be enough, so the user should not have to wait for retries.
        with_retries(self.repo, self.downloader.backoff, HttpError::is_busy, || {
            let answer = self.downloader.client.get(&url, 0)?;
            let no_listing = answer.unusable("it is not a list of files");
            serde_json::from_slice(&answer.read_all(LONGEST_LISTING)?).map_err(|_| no_listing)
        })
    }

    /// The URL of a file of a commit.
    pub fn file(&self, commit: &str, name: &str) -> Url {
        let mut last = vec!["resolve", commit];
        last.extend(name.split('/'));
        match self.kind {
            RepoKind::Model => self.address(&[], &last),
            RepoKind::Dataset => self.address(&[self.kind.plural()], &last),
        }
    }

    /// Asks for the size and version of a file.
    pub fn stated(&self, name: &str, url: &Url) -> Result<Stated, HttpError> {
        // The hub's redirect to the file's storage states what the storage does not know, so the storage is not
        // asked.
        let enough = |hop: &Hop| hop.headers.contains_key(LINKED_VERSION);
        let label = format!("{}: `{name}`", self.repo);
        let (client, backoff) = (&self.downloader.client, self.downloader.backoff);
        let hops = with_retries(&label, backoff, HttpError::is_transient, || client.head(url, enough))?;
        stated(&hops).ok_or_else(|| HttpError::Unintelligible {
            host: url.host_str().unwrap_or_default().to_owned(),
            detail: format!("it states no version of `{name}`"),
        })
    }

    fn address(&self, first: &[&str], last: &[&str]) -> Url {
        let mut url = self.endpoint.clone();
        // Parts are escaped if necessary. A URL with a host always has path segments.
        if let Ok(mut parts) = url.path_segments_mut() {
            parts.pop_if_empty().extend(first).extend(self.repo.split('/')).extend(last);
        }
        url
    }
}

/// The hub's own statements take precedence; those of the storage are used only if the hub states nothing.
fn stated(hops: &[Hop]) -> Option<Stated> {
    let of_hub = || hops.iter().filter(|hop| hop.by_first_host);
    let linked = of_hub().find_map(|hop| text(&hop.headers, LINKED_VERSION));
    let last = hops.last()?;
    let tag = header::ETAG.as_str();
    let own = || of_hub().filter(|hop| !hop.is_redirect).find_map(|hop| text(&hop.headers, tag));
    let any = || hops.iter().rev().find_map(|hop| text(&hop.headers, tag));
    let version = linked.or_else(own).or_else(any)?.trim().trim_start_matches("W/").trim_matches('"');
    let bytes = of_hub().find_map(|hop| number(&hop.headers, LINKED_SIZE));
    let length = || number(&last.headers, header::CONTENT_LENGTH.as_str()).filter(|_| !last.is_redirect);
    is_file_name(version).then(|| Stated { version: version.to_owned(), bytes: bytes.or_else(length) })
}

/// Whether a version can be a file name in the cache: it must not lead out of it.
fn is_file_name(version: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    !version.starts_with('.') && (1..=LONGEST_VERSION).contains(&version.len()) && version.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use ureq::http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;

    fn hop(by_first_host: bool, is_redirect: bool, headers: &[(&'static str, &'static str)]) -> Hop {
        let header = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        Hop { headers: headers.iter().map(header).collect::<HeaderMap>(), by_first_host, is_redirect }
    }

    fn found(hops: &[Hop]) -> Option<(String, Option<u64>)> {
        stated(hops).map(|stated| (stated.version, stated.bytes))
    }

    #[test]
    fn the_hub_states_version_and_size() {
        let small = hop(true, false, &[("etag", "\"abc\""), ("content-length", "7")]);
        assert_eq!(found(&[small]), Some(("abc".to_owned(), Some(7))));
        let large = [("x-linked-etag", "\"def\""), ("x-linked-size", "9"), ("etag", "\"x\""), ("content-length", "70")];
        assert_eq!(found(&[hop(true, true, &large)]), Some(("def".to_owned(), Some(9))));
        let moved = hop(true, true, &[("etag", "\"x\""), ("content-length", "70")]);
        let weak = hop(true, false, &[("etag", "W/\"abc\""), ("content-length", "7")]);
        assert_eq!(found(&[moved, weak]), Some(("abc".to_owned(), Some(7))));
    }

    #[test]
    fn a_store_says_what_the_hub_does_not_but_links_nothing() {
        let redirect = || hop(true, true, &[("content-length", "70")]);
        let store = hop(false, false, &[("etag", "\"abc\""), ("content-length", "7"), ("x-linked-size", "8")]);
        assert_eq!(found(&[redirect(), store]), Some(("abc".to_owned(), Some(7))));
        assert_eq!(found(&[redirect()]), None);
    }

    #[test]
    fn a_version_is_no_path() {
        for version in ["\"../../x\"", "\"a/b\"", "\".\"", "\"\"", "\"a b\""] {
            let hop = hop(true, false, &[("etag", version)]);
            assert_eq!(found(&[hop]), None, "{version}");
        }
    }
}
