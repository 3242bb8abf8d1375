//! Where tasks find their text: a data folder given by the user, or the offline defaults.
//!
//! An asset that is in the folder is used, and examples say so in their `source`; an asset that is
//! not there has its default. Nothing is fetched here.

use std::path::PathBuf;

use anyhow::Result;

use super::TaskOptions;
use super::text::essays::{self, Essays};
use super::text::words::Words;

/// Essays from `ruler_assets/PaulGrahamEssays.json`, `PaulGrahamEssays.json`, `paul_graham_essays/*.txt`
/// or `essays/*.txt`; otherwise the house grammar.
///
/// # Errors
/// If an asset is there and cannot be read.
pub fn essays(options: &TaskOptions) -> Result<Essays> {
    if let Some(file) = first_file(options, &["ruler_assets/PaulGrahamEssays.json", "PaulGrahamEssays.json"]) {
        return Essays::from_json(&file);
    }
    for folder in folders(options, &["paul_graham_essays", "essays"]) {
        if !essays::text_files(&folder)?.is_empty() {
            return Essays::from_folder(&folder);
        }
    }
    Ok(Essays::Grammar)
}

/// Word lists from `wordlists/`; otherwise those of crates.
///
/// # Errors
/// If the folder is there and a list is missing, unreadable or empty.
pub fn words(options: &TaskOptions) -> Result<Words> {
    match folders(options, &["wordlists"]).first() {
        Some(folder) => Words::from_folder(folder),
        None => Ok(Words::from_crates()),
    }
}

/// SQuAD's `squad/dev-v2.0.json` or `dev-v2.0.json`.
pub fn squad(options: &TaskOptions) -> Option<PathBuf> {
    first_file(options, &["squad/dev-v2.0.json", "dev-v2.0.json"])
}

/// The first of `hotpotqa/*.json` by name, or `hotpot_dev_distractor_v1.json`.
pub fn hotpotqa(options: &TaskOptions) -> Option<PathBuf> {
    let in_folder = folders(options, &["hotpotqa"]).into_iter().find_map(|folder| {
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.filter_map(|e| Some(e.ok()?.path())).collect();
        files.sort();
        files.into_iter().find(|f| f.extension().is_some_and(|e| e == "json"))
    });
    in_folder.or_else(|| first_file(options, &["hotpot_dev_distractor_v1.json"]))
}

fn first_file(options: &TaskOptions, names: &[&str]) -> Option<PathBuf> {
    let data = options.data.as_ref()?;
    names.iter().map(|name| data.join(name)).find(|path| path.is_file())
}

fn folders(options: &TaskOptions, names: &[&str]) -> Vec<PathBuf> {
    let Some(data) = &options.data else {
        return Vec::new();
    };
    names.iter().map(|name| data.join(name)).filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_asset_in_the_folder_wins_over_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let options = TaskOptions { data: Some(dir.path().to_owned()), ..TaskOptions::default() };
        assert_eq!(essays(&options).unwrap().label(), "grammar");
        assert_eq!(words(&options).unwrap().label(), "petname");
        assert!(squad(&options).is_none() && hotpotqa(&options).is_none());

        std::fs::create_dir(dir.path().join("essays")).unwrap();
        assert_eq!(essays(&options).unwrap().label(), "grammar", "an empty folder is no haystack");
        std::fs::write(dir.path().join("essays/a.txt"), "some text").unwrap();
        assert_eq!(essays(&options).unwrap().label(), "essays");
        std::fs::write(dir.path().join("PaulGrahamEssays.json"), r#"{"text": "more text"}"#).unwrap();
        assert_eq!(essays(&options).unwrap().label(), "PaulGrahamEssays.json");

        std::fs::create_dir(dir.path().join("wordlists")).unwrap();
        assert!(words(&options).is_err(), "an incomplete folder is a mistake, not a reason for the default");
        std::fs::create_dir(dir.path().join("hotpotqa")).unwrap();
        std::fs::write(dir.path().join("hotpotqa/x.json"), "[]").unwrap();
        assert!(hotpotqa(&options).unwrap().ends_with("hotpotqa/x.json"));
    }
}
