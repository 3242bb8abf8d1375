//! URLs: which ones requests can be sent to, and how they are shown without passwords.

use url::Url;

use spattn_base::error::UsageError;

/// Parses a URL that requests can be sent to.
///
/// # Errors
/// If it is not an `https://` or `http://` URL with a host.
pub fn parse_url(text: &str) -> Result<Url, UsageError> {
    let no_address = || {
        let what = match may_hold_password(text) {
            true => "it is not a URL (not shown here, as it may contain a password)".to_owned(),
            false => format!("`{text}` is not a URL"),
        };
        UsageError::new(what).hint("give one that begins with https:// or http://")
    };
    let url = Url::parse(text).map_err(|_| no_address())?;
    let usable = matches!(url.scheme(), "https" | "http") && url.has_host();
    usable.then_some(url).ok_or_else(no_address)
}

/// Whether a text that is not a URL may contain a user name and password: an `@`, or a `:` that neither ends a scheme nor
/// begins a port.
fn may_hold_password(text: &str) -> bool {
    let after = text.split_once("://").map_or(text, |(_, after)| after);
    let is_port = |rest: &str| rest.bytes().take_while(|b| *b != b'/').all(|b| b.is_ascii_digit());
    text.contains('@') || after.split_once(':').is_some_and(|(_, rest)| !is_port(rest))
}

/// The URL without user name and password, for messages.
pub fn without_user(address: &str) -> String {
    let Ok(mut url) = parse_url(address) else { return "the hub".to_owned() };
    if url.username().is_empty() && url.password().is_none() {
        return address.to_owned();
    }
    // Neither call fails for a URL with a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.as_str().trim_end_matches('/').to_owned()
}

/// The host, with the port unless it is the default one.
pub(super) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_web_servers_are_asked() {
        for text in ["", "hub", "hub.example:80", "file:///etc/passwd", "https://", "gopher://x"] {
            assert_eq!(parse_url(text).unwrap_err().what, format!("`{text}` is not a URL"));
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
