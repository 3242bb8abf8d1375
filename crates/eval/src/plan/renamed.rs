//! Names under which a resumed folder recorded the same content: a model or data set at another path, or a `tokenizer.json` with
//! another layout. Names are part of the records' keys, so the run continues under the recorded names.

use std::path::{Path, absolute};

use serde_json::Value;

use super::manifest::TOKENIZER_VALUE;
use crate::records::manifest_keys::INPUTS;
use crate::records::store::identities;
use spattn_model::OpenModel;
use spattn_tasks::Task;

/// The manifest of a folder that is resumed; `None` if none is.
#[derive(Debug, Default)]
pub struct Recorded(pub Option<Value>);

impl Recorded {
    /// Gives a model its recorded name if both names lead to the same folder, and its tokenizer the recorded digest if only the layout
    /// differs.
    pub fn name_model(&self, model: &mut OpenModel) {
        let Some(manifest) = &self.0 else { return };
        let known = identities(manifest);
        let name = |identity: &&Value| identity["model"].as_str().map(str::to_owned);
        // The rest of the identity is checked later, including whether the weights are still the recorded ones.
        if !known.iter().filter_map(name).any(|known| known == model.id)
            && let Some(known) = known.iter().filter_map(name).find(|known| is_same_place(known, &model.id))
        {
            model.id = known;
        }
        let of_model =
            |part: &&Value| part["id"] == *model.id && part[TOKENIZER_VALUE] == *model.tokenizer.value_sha256();
        let is_same_value = several(&manifest["model"]).iter().any(|part| of_model(&part));
        let recorded = known.iter().find(|identity| identity["model"] == *model.id);
        if let Some(sha256) =
            recorded.and_then(|identity| identity["tokenizer_sha256"].as_str()).filter(|_| is_same_value)
        {
            model.tokenizer.record_as(sha256);
        }
    }

    /// The recorded name of a data set, if all tasks are still made from the same data; otherwise `data`.
    pub fn name_of_data(&self, tasks: &[Box<dyn Task>], data: Option<String>) -> Option<String> {
        let Some(manifest) = &self.0 else { return data };
        let recorded: Vec<Option<&str>> = identities(manifest).iter().map(|i| i["data"].as_str()).collect();
        let are_same = || tasks.iter().all(|task| manifest[INPUTS][task.name()] == *task.inputs());
        match recorded.first() {
            Some(first) if !recorded.contains(&data.as_deref()) && are_same() => first.map(str::to_owned),
            _ => data,
        }
    }
}

fn several(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
}

/// Whether two paths lead to the same place as written: `m`, `./m/`, and its absolute path.
fn is_same_place(one: &str, other: &str) -> bool {
    let whole = |path: &str| absolute(Path::new(path)).ok();
    whole(one).zip(whole(other)).is_some_and(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_by_their_parts() {
        let here = std::env::current_dir().unwrap();
        let whole = here.join("m").display().to_string();
        for other in ["m", "./m", "m/", "./m/", ".//m/.", &whole] {
            assert!(is_same_place("m", other) && is_same_place(other, "m"), "{other}");
        }
        for other in ["n", "m/n", "../m", "/m", ""] {
            assert!(!is_same_place("m", other), "{other}");
        }
    }
}
