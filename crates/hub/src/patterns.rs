//! Patterns for paths of files in a repository or folder.

use std::path::Path;

/// Whether a path matches one of `patterns`: paths with `/` between parts and at most one `*`, in the
/// last part, which stands for any characters of that part.
pub fn is_match(path: &str, patterns: &[&str]) -> bool {
    patterns.iter().any(|pattern| match pattern.split_once('*') {
        None => path == *pattern,
        Some((before, after)) => path
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after))
            .is_some_and(|star| !star.contains(['/', '\\'])),
    })
}

/// The paths below `folder` that match `patterns`, in order.
pub fn matching_files(folder: &Path, patterns: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for pattern in patterns {
        let parent = pattern.rsplit_once('/').map_or("", |(parent, _)| parent);
        for entry in std::fs::read_dir(folder.join(parent)).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if parent.is_empty() { name } else { format!("{parent}/{name}") };
            if is_match(&path, &[pattern]) && folder.join(&path).is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_within_its_folder() {
        let patterns = ["a.json", "essays/*.txt", "all/test-*.parquet"];
        assert!(is_match("all/test-00000-of-00001.parquet", &patterns) && !is_match("all/train-0.parquet", &patterns));
        assert!(is_match("a.json", &patterns) && is_match("essays/x.y.txt", &patterns));
        for other in ["b/a.json", "essays/x/y.txt", "essays/x.json", "x.txt", "essays/.tx"] {
            assert!(!is_match(other, &patterns), "{other}");
        }
    }

    #[test]
    fn files_that_match_are_found_once_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("essays/folder.txt")).unwrap();
        for name in ["essays/b.txt", "essays/a.txt", "essays/a.md", "a.json"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let patterns = ["essays/*.txt", "essays/a.txt", "a.json", "missing/*.txt"];
        assert_eq!(matching_files(dir.path(), &patterns), ["a.json", "essays/a.txt", "essays/b.txt"]);
    }
}
