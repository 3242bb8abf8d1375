//! The key of a record in the store.

use spattn_attention::{Configured, FIRST_REVISION};
use spattn_model::checksum::sha256_hex;

/// Hash of all that determines a record; known before the example is made.
pub(super) fn record_key(identity: &str, task: &str, length: usize, index: usize, method: &Configured) -> String {
    let mut text = format!("{identity}\n{task}\n{length}\n{index}\n{}", method.label());
    if method.revision != FIRST_REVISION {
        text += &format!("\nrevision {}", method.revision);
    }
    for artefact in method.parts().filter_map(|part| part.artefact.as_ref()) {
        text += &format!("\n{artefact}");
    }
    sha256_hex(text.as_bytes())[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::config::run_config::RunConfig;
    use crate::config::settings::Settings;

    #[test]
    fn a_key_is_of_all_that_makes_a_record() {
        let text = "tasks = ['ruler/vt']\nlengths = [512]\nmethods = ['topk:k=16', 'topk:k=17']";
        let config = RunConfig::resolve_single(Settings::parse(text, "test").unwrap()).unwrap();
        let [_, method, other] = &config.methods[..] else { panic!("three methods") };
        let calibrated = Configured { artefact: Some("abc".into()), ..method.clone() };
        let keys = [
            record_key("identity", "task", 512, 3, method),
            record_key("identitz", "task", 512, 3, method),
            record_key("identity", "tasl", 512, 3, method),
            record_key("identity", "task", 513, 3, method),
            record_key("identity", "task", 512, 4, method),
            record_key("identity", "task", 512, 3, other),
            record_key("identity", "task", 512, 3, &calibrated),
        ];
        assert!(keys.iter().all(|key| key.len() == 32 && key.bytes().all(|b| b.is_ascii_hexdigit())));
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    }
}
