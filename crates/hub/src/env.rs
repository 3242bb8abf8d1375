//! The settings for the hub from the variables of Hugging Face's own library (`huggingface_hub`), with the same meaning and
//! precedence. An empty variable counts as unset.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use spattn_base::error::UsageError;

/// Variables that forbid network access. The first one that is set decides.
const OFFLINE: [&str; 2] = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"];
/// The most bytes read of a token file or of the list of users.
const MOST_READ: u64 = 1 << 16;

/// The environment variables of this process, or those of a test.
pub(crate) struct Variables<'a>(pub &'a dyn Fn(&str) -> Option<OsString>);

impl Variables<'_> {
    fn get(&self, name: &str) -> Option<OsString> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    /// The value as text; invalid Unicode is replaced.
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(|value| value.to_string_lossy().into_owned())
    }

    fn first(&self, names: &[&str]) -> Option<OsString> {
        names.iter().find_map(|name| self.get(name))
    }

    /// The variable that forbids network access, if one does.
    pub fn offline(&self) -> Option<&'static str> {
        let name = OFFLINE.into_iter().find(|name| self.get(name).is_some())?;
        let is_true = |value: String| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str());
        self.text(name).is_some_and(is_true).then_some(name)
    }

    /// The folder for downloads.
    ///
    /// # Errors
    /// If neither a variable nor a home folder determines it.
    pub fn cache(&self) -> Result<PathBuf, UsageError> {
        match self.first(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]) {
            Some(cache) => self.expanded(cache),
            None => Ok(self.home()?.join("hub")),
        }
    }

    /// The folder of `huggingface_hub`, with its cache and the token.
    fn home(&self) -> Result<PathBuf, UsageError> {
        if let Some(home) = self.get("HF_HOME") {
            return self.expanded(home);
        }
        let caches = match self.get("XDG_CACHE_HOME") {
            Some(caches) => self.expanded(caches)?,
            None => self.user()?.join(".cache"),
        };
        Ok(caches.join("huggingface"))
    }

    fn user(&self) -> Result<PathBuf, UsageError> {
        let no_home = || {
            UsageError::new("there is no home folder (HOME) for the cache of downloads").hint("set HF_HOME to a folder")
        };
        self.get("HOME").map(PathBuf::from).ok_or_else(no_home)
    }

    /// The access token from a variable or else from the token file, without the blanks and line ends that copying leaves.
    pub fn token(&self) -> Option<String> {
        let clean = |text: &str| Some(text.replace(['\r', '\n'], "").trim().to_owned()).filter(|t| !t.is_empty());
        let named = self.first(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]);
        let named = named.and_then(|token| clean(&token.to_string_lossy()));
        named.or_else(|| {
            let file = match self.get("HF_TOKEN_PATH") {
                Some(path) => self.expanded(path).ok()?,
                None => self.home().ok()?.join("token"),
            };
            clean(&read(&file)?)
        })
    }

    /// Expands `~` and variables in a path like a shell: `~/x`, `~user/x`, `$HOME/x`, `${HOME}/x`. Unset variables and unknown
    /// users are left as written.
    fn expanded(&self, path: OsString) -> Result<PathBuf, UsageError> {
        let Some(text) = path.to_str() else { return Ok(path.into()) };
        let text = match text.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                let user = self.user()?;
                format!("{}{rest}", user.to_string_lossy().trim_end_matches('/'))
            }
            Some(rest) => {
                let (name, below) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                home_of(name).map_or_else(|| text.to_owned(), |home| format!("{}{below}", home.trim_end_matches('/')))
            }
            None => text.to_owned(),
        };
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once('$') {
            out.push_str(before);
            let (name, written) = variable(after);
            match (!name.is_empty()).then(|| (self.0)(name)).flatten() {
                Some(value) => out.push_str(&value.to_string_lossy()),
                None => out.extend(["$", &after[..written]]),
            }
            rest = &after[written..];
        }
        Ok(PathBuf::from(out + rest))
    }
}

/// The home folder of a user in this machine's list of users.
fn home_of(user: &str) -> Option<String> {
    let users = read(Path::new("/etc/passwd"))?;
    let fields =
        users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields.first() == Some(&user))?;
    fields.get(5).filter(|home| !home.is_empty()).map(|home| (*home).to_owned())
}

/// The name of the variable that follows a `$`, and its length in bytes including braces; an empty name if there is none.
fn variable(text: &str) -> (&str, usize) {
    if let Some((name, _)) = text.strip_prefix('{').and_then(|text| text.split_once('}')) {
        return (name, name.len() + 2);
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    (&text[..end], end)
}

/// The text of a small file; `None` if there is no readable regular file.
fn read(path: &Path) -> Option<String> {
    if !path.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MOST_READ).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Checks that a token can be sent.
///
/// # Errors
/// If it has a character that request headers do not allow. The error does not repeat the token.
pub(crate) fn check_token(token: &str) -> Result<(), UsageError> {
    match token.bytes().all(|b| b.is_ascii_graphic()) {
        true => Ok(()),
        false => Err(UsageError::new(
            "the access token (HF_TOKEN or the token file) has a character that tokens do not have",
        )
        .hint("tokens are letters, digits and `_`, such as hf_…: copy it again, without the text around it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Variables, and the values that huggingface_hub 2.4.0 was seen to derive from them: its constants `HF_HUB_CACHE`,
    /// `HF_TOKEN_PATH` (tested by a token in that file) and `HF_HUB_OFFLINE`.
    #[test]
    fn paths_are_those_of_the_library() {
        for (variables, cache) in [
            (&[][..], "/home/u/.cache/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/xdg")], "/xdg/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "~/c")], "/home/u/c/huggingface/hub"),
            (&[("HF_HOME", "/hf"), ("XDG_CACHE_HOME", "/xdg")], "/hf/hub"),
            (&[("HF_HOME", "~/x")], "/home/u/x/hub"),
            (&[("HF_HOME", "$HOME/x")], "/home/u/x/hub"),
            (&[("HF_HOME", "${HOME}/x")], "/home/u/x/hub"),
            (&[("HF_HOME", "$NOTSET/x")], "$NOTSET/x/hub"),
            (&[("HF_HOME", "${NOTSET}/a$")], "${NOTSET}/a$/hub"),
            (&[("HF_HOME", "~root/x")], "/root/x/hub"),
            (&[("HF_HOME", "~nobody-of-this-name/x")], "~nobody-of-this-name/x/hub"),
            (&[("HF_HOME", "/a~/b")], "/a~/b/hub"),
            (&[("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
            (&[("HUGGINGFACE_HUB_CACHE", "~/old"), ("HF_HOME", "/hf")], "/home/u/old"),
            (&[("HF_HUB_CACHE", "/new"), ("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HOME", "/hf")], "/new"),
            (&[("HF_HUB_CACHE", "$X/${Y}z"), ("X", "/a"), ("Y", "b")], "/a/bz"),
        ] {
            let map: HashMap<&str, &str> = variables.iter().copied().chain([("HOME", "/home/u")]).collect();
            let get = |name: &str| map.get(name).map(OsString::from);
            assert_eq!(Variables(&get).cache().unwrap(), Path::new(cache), "{variables:?}");
        }
        let none = |_: &str| None;
        assert!(Variables(&none).cache().unwrap_err().what.contains("there is no home folder"));
    }

    #[test]
    fn being_offline_is_read_as_the_library_does() {
        for (variables, expected) in [
            (&[][..], None),
            (&[("HF_HUB_OFFLINE", "1")], Some("HF_HUB_OFFLINE")),
            (&[("HF_HUB_OFFLINE", "on")], Some("HF_HUB_OFFLINE")),
            (&[("HF_HUB_OFFLINE", "Yes")], Some("HF_HUB_OFFLINE")),
            (&[("HF_HUB_OFFLINE", "tRUE")], Some("HF_HUB_OFFLINE")),
            (&[("HF_HUB_OFFLINE", "2")], None),
            (&[("TRANSFORMERS_OFFLINE", "1")], Some("TRANSFORMERS_OFFLINE")),
            (&[("HF_HUB_OFFLINE", ""), ("TRANSFORMERS_OFFLINE", "ON")], Some("TRANSFORMERS_OFFLINE")),
            (&[("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1")], None),
        ] {
            let map: HashMap<&str, &str> = variables.iter().copied().collect();
            let get = |name: &str| map.get(name).map(OsString::from);
            assert_eq!(Variables(&get).offline(), expected, "{variables:?}");
        }
    }

    #[test]
    fn the_token_comes_from_a_variable_or_else_from_the_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        std::fs::write(dir.path().join("other"), " hf_other\r\n").unwrap();
        let (home, other) = (dir.path().to_str().unwrap(), dir.path().join("other"));
        for (variables, token) in [
            (&[("HF_TOKEN", "hf_a\n")][..], Some("hf_a")),
            (&[("HF_TOKEN", " hf_\r\na ")], Some("hf_a")),
            (&[("HF_TOKEN", "hf_a"), ("HUGGING_FACE_HUB_TOKEN", "hf_b")], Some("hf_a")),
            (&[("HUGGING_FACE_HUB_TOKEN", "hf_b")], Some("hf_b")),
            // A variable that is set to blanks hides later variables, but gives no token.
            (&[("HF_TOKEN", " "), ("HUGGING_FACE_HUB_TOKEN", "hf_b")], Some("hf_file")),
            (&[], Some("hf_file")),
            (&[("HF_TOKEN_PATH", "$HF_HOME/other")], Some("hf_other")),
            (&[("HF_TOKEN_PATH", other.to_str().unwrap())], Some("hf_other")),
            (&[("HF_TOKEN_PATH", "/nowhere")], None),
            (&[("HF_TOKEN_PATH", "/dev/zero")], None),
        ] {
            let map: HashMap<&str, &str> = variables.iter().copied().chain([("HF_HOME", home)]).collect();
            let get = |name: &str| map.get(name).map(OsString::from);
            assert_eq!(Variables(&get).token().as_deref(), token, "{variables:?}");
        }
        for token in ["hf_é", "hf_a b", "hf_\u{1}", "hf_\u{fffd}"] {
            let error = check_token(token).unwrap_err();
            assert!(!format!("{error:?}").contains(token), "{error:?}");
        }
        assert!(check_token("hf_AbC123").is_ok());
    }
}
