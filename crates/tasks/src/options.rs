//! Options after a task's name, `NAME:key=value,...`, and names in a list.

use spattn_base::error::UsageError;

/// The options given so far; each may be given only once.
#[derive(Debug, Default)]
pub(super) struct Given(Vec<String>);

impl Given {
    /// Records that the option `key` was given, which sets `what` (several keys may set the same thing).
    ///
    /// # Errors
    /// If `what` was set before; the message names `task`, the full name that the user wrote.
    pub fn once(&mut self, task: &str, key: &str, what: &str) -> Result<(), UsageError> {
        if self.0.iter().any(|said| said == what) {
            let also = if key == what { String::new() } else { format!(" (`{what}` means the same)") };
            return Err(
                UsageError::new(format!("`{task}`: `{key}` is given twice{also}")).hint("leave one of them out")
            );
        }
        self.0.push(what.to_owned());
        Ok(())
    }
}

/// Splits a list of names at commas. A comma may also be part of a name, between its options or in the path of a file. So a
/// comma separates names only if a name follows it, or if the name before it has no options.
pub(super) fn split_names(list: &str, is_name: impl Fn(&str) -> bool) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for part in list.split(',') {
        match names.last_mut() {
            Some(before) if before.contains(':') && !is_name(part) => {
                before.push(',');
                before.push_str(part);
            }
            _ => names.push(part.to_owned()),
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_part_names_but_not_options_or_paths() {
        let is_name = |text: &str| ["a", "b"].contains(&text.split(':').next().unwrap());
        let split = |list| split_names(list, is_name).join(" | ");
        assert_eq!(split("a"), "a");
        assert_eq!(split("a,b,nonsense"), "a | b | nonsense");
        assert_eq!(split("a:x=1,y=2,b:z=3,a"), "a:x=1,y=2 | b:z=3 | a");
        assert_eq!(split("a:file,1.txt,b"), "a:file,1.txt | b");
        assert_eq!(split("a,,b"), "a |  | b");
    }

    #[test]
    fn nothing_is_said_twice() {
        let mut given = Given::default();
        assert!(given.once("t:x=1,y=2", "x", "x").is_ok() && given.once("t:x=1,y=2", "y", "y").is_ok());
        assert_eq!(given.once("t:x=1,x=2", "x", "x").unwrap_err().what, "`t:x=1,x=2`: `x` is given twice");
        assert!(given.once("t", "z", "x").unwrap_err().what.contains("`x` means the same"));
    }
}
