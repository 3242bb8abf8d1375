//! GGUF files on the Hugging Face hub: how users name one of a repository's models, and which files belong to it.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::gguf::{self, split};
use spattn_base::error::UsageError;
use spattn_hub::checksum::Blob;
use spattn_hub::{
    CachedCommit, DamageCheck, FetchedCommit, HubOptions, Lack, Obstacle, RepoKind, Snapshot, Wanted, by_hash,
    parse_id, snapshot,
};

/// The user's choice of one of the GGUF models in a repository or folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GgufChoice {
    /// By the file's name in the repository: `ORGANISATION/NAME/FILE.gguf`.
    File(String),
    /// By the type that its name ends with: `ORGANISATION/NAME:Q4_K_M`.
    Type(String),
}

/// The text that follows the name of the repository.
impl fmt::Display for GgufChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(name) => write!(f, "/{name}"),
            Self::Type(of) => write!(f, ":{of}"),
        }
    }
}

/// Parses `ORGANISATION/NAME/FILE.gguf[@REVISION]` or `ORGANISATION/NAME:TYPE[@REVISION]` into the repository, its revision and the
/// choice; `None` if it is neither.
pub fn parse(spec: &str) -> Option<(String, Option<String>, GgufChoice)> {
    let (name, revision) = spec.split_once('@').map_or((spec, None), |(name, revision)| (name, Some(revision)));
    let (repo, choice) = match name.split_once(':') {
        Some((repo, of)) => (repo.to_owned(), GgufChoice::Type(of.to_owned())),
        None => {
            let mut parts = name.splitn(3, '/');
            let (organisation, repo, file) = (parts.next()?, parts.next()?, parts.next()?);
            (format!("{organisation}/{repo}"), GgufChoice::File(file.to_owned()))
        }
    };
    let is_sound = match &choice {
        GgufChoice::File(file) => gguf::is_gguf(Path::new(file)) && file.split('/').all(is_part),
        GgufChoice::Type(of) => is_part(of),
    };
    let id = revision.map_or(repo.clone(), |revision| format!("{repo}@{revision}"));
    let (repo, revision) = parse_id(&id).filter(|_| is_sound)?;
    Some((repo, revision, choice))
}

/// Whether a text is a name that can be part of a path and does not lead elsewhere.
fn is_part(part: &str) -> bool {
    !matches!(part, "" | "." | "..") && !part.contains(['\\', ':', '/']) && !part.chars().any(char::is_control)
}

/// The GGUF models among files, each with the names of all its files. Files that add vision to a model (`mmproj`) are not models.
pub(super) fn models<S: AsRef<str>>(names: &[S]) -> Vec<Vec<String>> {
    let is_model = |name: &&str| {
        let file = name.rsplit('/').next().unwrap_or(name);
        gguf::is_gguf(Path::new(file)) && !file.to_lowercase().starts_with("mmproj")
    };
    let mut names: Vec<&str> = names.iter().map(AsRef::as_ref).filter(is_model).collect();
    names.sort_unstable();
    names.dedup();
    let mut models: Vec<Vec<String>> = names.into_iter().map(files_of).collect();
    models.dedup();
    models
}

/// The names of all files of the model that a file belongs to.
fn files_of(name: &str) -> Vec<String> {
    match split::base(name).filter(|(_, count)| (2..=MOST_FILES).contains(count)) {
        Some((base, count)) => (0..count).map(|part| split::name(base, part, count)).collect(),
        None => vec![name.to_owned()],
    }
}

/// The most files of a model that are requested by its name alone.
const MOST_FILES: usize = 1000;

/// The name of a model's file without the additions of `gguf-split` and the format.
fn stem(name: &str) -> &str {
    let file = name.rsplit('/').next().unwrap_or(name);
    split::base(file).map_or_else(|| file.get(..file.len() - ".gguf".len()).unwrap_or(file), |(base, _)| base)
}

/// Whether the name of a model's file ends with a type, as `model-Q4_K_M.gguf` and `model.q4_k_m.gguf` do.
fn is_of_type(name: &str, of: &str) -> bool {
    let (stem, of) = (stem(name).to_uppercase(), of.to_uppercase());
    stem.strip_suffix(&of).is_some_and(|front| front.is_empty() || front.ends_with(['-', '.', '_']))
}

impl GgufChoice {
    /// The names of the chosen model's files.
    ///
    /// # Errors
    /// What is wrong with the choice, for a message that begins with the repository, and the possible choices.
    fn among<S: AsRef<str>>(&self, names: &[S]) -> Result<Vec<String>, (String, String)> {
        let models = models(names);
        let offered = |models: &[Vec<String>]| {
            let first = models.iter().map(|files| format!("`{}`", files[0]));
            match models.len() {
                0 => "it has no GGUF files".to_owned(),
                1..=20 => format!("it has {}", first.collect::<Vec<_>>().join(", ")),
                many => format!("it has {}, and {} more", first.take(20).collect::<Vec<_>>().join(", "), many - 20),
            }
        };
        let is_chosen = |files: &&Vec<String>| match self {
            Self::File(name) => files.contains(name),
            Self::Type(of) => is_of_type(&files[0], of),
        };
        let chosen: Vec<Vec<String>> = models.iter().filter(is_chosen).cloned().collect();
        match (chosen.as_slice(), self) {
            ([files], _) => Ok(files.clone()),
            ([], Self::File(name)) => Err((format!("this repository has no `{name}`"), offered(&models))),
            ([], Self::Type(of)) => Err((format!("no GGUF file of this repository is named `{of}`"), offered(&models))),
            (several, _) => {
                let what = format!("{} GGUF models of this repository are named so", several.len());
                Err((what, format!("give the name of one file; {}", offered(several))))
            }
        }
    }

    /// The names of the chosen model's files in a folder of the cache.
    fn cached(&self, folder: &Path) -> Result<Vec<String>, (String, String)> {
        match self {
            // All files of the model are requested, even if the cache has only this one.
            Self::File(name) => Ok(files_of(name)),
            Self::Type(_) => self.among(&names_below(folder, "", DEEPEST)),
        }
    }
}

/// The folder depth to which a repository's GGUF files are searched in the cache.
const DEEPEST: usize = 3;

/// The names of files in a folder and its subfolders, `deep` levels down.
fn names_below(folder: &Path, front: &str, deep: usize) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?)));
    let names = named.flat_map(|(path, name)| match (path.is_dir(), deep) {
        (true, 0) => Vec::new(),
        (true, _) => names_below(&path, &format!("{front}{name}/"), deep - 1),
        (false, _) => vec![format!("{front}{name}")],
    });
    names.collect()
}

impl Wanted for GgufChoice {
    fn kind(&self) -> RepoKind {
        RepoKind::Model
    }

    fn first(&self) -> Lack {
        Lack::Missing(match self {
            Self::File(name) => format!("`{name}`"),
            Self::Type(of) => format!("a GGUF file named `{of}`"),
        })
    }

    fn first_lack(&self, cached: &CachedCommit<'_>) -> Option<Lack> {
        match self.cached(&cached.folder()) {
            Ok(files) => files.iter().find_map(|name| cached.lack(name)),
            Err(_) => Some(self.first()),
        }
    }

    /// Nothing besides the files themselves is wanted.
    fn is_known(&self, _: &CachedCommit<'_>) -> bool {
        true
    }

    fn doubt(&self, _: &str, _: &CachedCommit<'_>, _: &Obstacle) -> Option<String> {
        None
    }

    fn fetch(&self, commit: &FetchedCommit<'_>) -> Result<()> {
        let files = self
            .among(&commit.names())
            .map_err(|(what, offered)| UsageError::new(format!("{}: {what}", commit.repo())).hint(offered))?;
        if let Some(architecture) = commit.gguf_architecture() {
            gguf::check_architecture(commit.repo(), architecture)?;
        }
        if let Some(missing) = files.iter().find(|name| !commit.has(name)) {
            let what = format!(
                "{}: this repository has no `{missing}`: the model is split into {} files",
                commit.repo(),
                files.len()
            );
            return Err(UsageError::new(what).hint("the repository is incomplete: take another one").into());
        }
        files.iter().try_for_each(|name| commit.fetch(name))
    }

    fn damage_check(&self) -> DamageCheck {
        damage
    }
}

/// The hash of weights is checked when they are opened; the sizes in them show an interrupted download.
fn damage(name: &str, blob: &Blob) -> Option<String> {
    match gguf::is_gguf(Path::new(name)) {
        true => gguf::check(&blob.path).err().map(|error| error.what),
        false => by_hash(name, blob),
    }
}

/// Finds a GGUF model of a repository, downloading what is not in the cache. Also returns its first file.
///
/// # Errors
/// Those of [`spattn_hub::snapshot`]; also if the repository has no such model, or several.
pub(super) fn find(
    repo: &str,
    revision: Option<&str>,
    choice: &GgufChoice,
    options: &HubOptions,
) -> Result<(Snapshot, PathBuf)> {
    let snapshot = snapshot(repo, revision, choice, options)?;
    let files = choice
        .cached(&snapshot.folder)
        .map_err(|(what, offered)| UsageError::new(format!("{repo}: {what}")).hint(offered))?;
    let first = snapshot.folder.join(&files[0]);
    Ok((snapshot, first))
}

/// The GGUF models of a repository that are complete in the cache, as far as their headers show: the name of the first file, and
/// the bytes of all files. `folders` are those of its commits.
pub(super) fn complete_models(folders: &[PathBuf]) -> Vec<(String, u64)> {
    let of_folder = |folder: &PathBuf| {
        let models = models(&names_below(folder, "", DEEPEST)).into_iter();
        let sound = models.filter_map(|files| {
            let bytes = files.iter().map(|name| {
                let path = folder.join(name);
                gguf::check(&path).ok()?;
                Some(path.metadata().ok()?.len())
            });
            Some((files[0].clone(), bytes.sum::<Option<u64>>()?))
        });
        sound.collect::<Vec<_>>()
    };
    let mut complete: Vec<(String, u64)> = folders.iter().flat_map(of_folder).collect();
    complete.sort_unstable();
    complete.dedup_by(|a, b| a.0 == b.0);
    complete
}

/// The GGUF file of a folder that holds exactly one GGUF model and no model in another format.
///
/// # Errors
/// If there are several.
pub(super) fn only_model_in(folder: &Path, names: &[String]) -> Result<Option<PathBuf>, UsageError> {
    match models(names).as_slice() {
        [] => Ok(None),
        [files] => Ok(Some(folder.join(&files[0]))),
        several => {
            let folder = folder.display();
            let first = several.iter().map(|files| format!("{folder}/{}", files[0])).collect::<Vec<_>>().join(", ");
            let what = format!("{folder}: {} models as GGUF files in this folder", several.len());
            Err(UsageError::new(what).hint(format!("give one of them: {first}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(repo: &str, revision: Option<&str>, name: &str) -> Option<(String, Option<String>, GgufChoice)> {
        Some((repo.to_owned(), revision.map(str::to_owned), GgufChoice::File(name.to_owned())))
    }

    #[test]
    fn a_file_of_a_repository_is_named_by_its_path_or_its_type() {
        assert_eq!(parse("a/b-GGUF/m-Q4_K_M.gguf"), file("a/b-GGUF", None, "m-Q4_K_M.gguf"));
        assert_eq!(parse("a/b/Q8_0/m.gguf@v1"), file("a/b", Some("v1"), "Q8_0/m.gguf"));
        let (repo, revision, choice) = parse("a/b-GGUF:Q4_K_M@main").unwrap();
        assert_eq!((repo.as_str(), revision.as_deref()), ("a/b-GGUF", Some("main")));
        assert_eq!(format!("{repo}{choice}"), "a/b-GGUF:Q4_K_M");
        for other in [
            "a/b",
            "a/b/c",
            "a/b/c.safetensors",
            "a/b/../m.gguf",
            "a/b/",
            "a:Q4_0",
            "a/b:",
            "a/b:x/y",
            "/a/b/m.gguf",
            "./a/b/m.gguf",
            "a/b:Q4@../x",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_type_is_what_the_name_ends_with() {
        let names = [
            "README.md",
            "mmproj-F16.gguf",
            "m-Q4_K_M.gguf",
            "m.q8_0.gguf",
            "big/m-BF16-00001-of-00002.gguf",
            "big/m-BF16-00002-of-00002.gguf",
            "m-IQ4_XS.gguf",
        ];
        let of = |of: &str| GgufChoice::Type(of.to_owned()).among(&names);
        assert_eq!(of("q4_k_m").unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(of("Q8_0").unwrap(), ["m.q8_0.gguf"]);
        assert_eq!(of("BF16").unwrap(), ["big/m-BF16-00001-of-00002.gguf", "big/m-BF16-00002-of-00002.gguf"]);
        let (what, offered) = of("F16").unwrap_err();
        assert_eq!(what, "no GGUF file of this repository is named `F16`");
        assert_eq!(offered, "it has `big/m-BF16-00001-of-00002.gguf`, `m-IQ4_XS.gguf`, `m-Q4_K_M.gguf`, `m.q8_0.gguf`");
        assert!(of("K_M").is_ok() && of("M").is_ok(), "an ending that only one file has");
        let twice = GgufChoice::Type("Q4_0".to_owned()).among(&["a-Q4_0.gguf", "b-Q4_0.gguf"]).unwrap_err();
        assert_eq!(twice.0, "2 GGUF models of this repository are named so");
        let second = GgufChoice::File("big/m-BF16-00002-of-00002.gguf".to_owned()).among(&names).unwrap();
        assert_eq!(second[0], "big/m-BF16-00001-of-00002.gguf");
    }

    #[test]
    fn a_folder_with_one_gguf_model_is_that_model() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let only = |list: &[&str]| only_model_in(Path::new("d"), &names(list));
        assert_eq!(only(&["README.md"]).unwrap(), None);
        assert_eq!(only(&["m.gguf", "mmproj-m.gguf"]).unwrap(), Some("d/m.gguf".into()));
        assert_eq!(
            only(&["m-00002-of-00002.gguf", "m-00001-of-00002.gguf"]).unwrap(),
            Some("d/m-00001-of-00002.gguf".into())
        );
        let error = only(&["a.gguf", "b.gguf"]).unwrap_err();
        assert_eq!(error.what, "d: 2 models as GGUF files in this folder");
        assert_eq!(error.hint.unwrap(), "give one of them: d/a.gguf, d/b.gguf");
    }
}
