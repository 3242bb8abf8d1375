//! Names of repositories.

/// Parses `organisation/name[@revision]`; `None` if it is not such a name.
pub fn parse_id(id: &str) -> Option<(String, Option<String>)> {
    let (repo, revision) = match id.split_once('@') {
        Some((repo, revision)) => (repo, Some(revision)),
        None => (id, None),
    };
    let valid = is_repo(repo) && revision.is_none_or(is_revision);
    valid.then(|| (repo.to_owned(), revision.map(str::to_owned)))
}

fn is_repo(repo: &str) -> bool {
    let part = |p: &str| {
        p.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && p.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    repo.split_once('/').is_some_and(|(organisation, name)| part(organisation) && part(name))
}

fn is_revision(revision: &str) -> bool {
    // The name becomes part of a path in the cache, so it must not lead out
    // of it.
    let part =
        |p: &str| !matches!(p, "" | "." | "..") && p.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    revision.split('/').all(part)
}
