//! The revision of a method under given settings. It is raised whenever the settings select other tokens, or count
//! other costs, than before, so that records of two revisions are never compared as equal.

use super::super::Setting;
use super::super::spec::DENSITY;
use crate::{FIRST_REVISION, Policy, Tail};

/// A change that raises the revision of some methods under some settings.
struct Change {
    /// Names of the methods; empty for all.
    methods: &'static [&'static str],
    /// Whether the change concerns a method with these settings.
    concerns: fn(&[Setting], &Policy) -> bool,
}

/// All changes. Each raises the revision of the settings that it concerns by one.
const CHANGES: &[Change] = &[
    // Exact products that scoring shares with attention are counted once, as attention (2026-11-26).
    Change {
        methods: &[
            "topk",
            "topk_norm",
            "topp",
            "oracle_sampling",
            "vattention",
            "knn",
            "retrieval_attention",
            "tova",
            "h2o",
        ],
        concerns: |_, _| true,
    },
    // The same with `rescore` or another `pick`; a sampled selection no longer attends its base sample (2026-11-26).
    Change {
        methods: &[],
        concerns: |settings, _| {
            let value = |key: &str| settings.iter().find(|s| s.key == key).map_or("", |s| s.value.as_str());
            !matches!(value("rescore"), "" | "none") || !matches!(value("pick"), "" | "topk")
        },
    },
    // Keys that several query heads of a group read to select are counted once for the group (2026-11-26).
    Change { methods: &["twilight"], concerns: |_, _| true },
    // A density that is spent once is solved for the mean context of the tokens known to follow (2026-11-26).
    Change {
        methods: &[
            "ada_kv",
            "duo_attention",
            "expected_attention",
            "h2o",
            "hyper_attention",
            "magicpig",
            "oracle_sampling",
            "pyramid_kv",
            "reformer",
            "snapkv",
            "streaming_llm",
            "topp",
            "tova",
        ],
        concerns: |settings, _| settings.iter().any(|s| s.key == DENSITY && s.is_named),
    },
    // The page that is still being filled is selected within the budget, not on top of it (2026-11-26).
    Change { methods: &["quest", "twilight"], concerns: |_, policy| policy.tail != Tail::Exact },
];

/// The revision of a method with these settings.
pub(super) fn revision(name: &str, settings: &[Setting], policy: &Policy) -> u16 {
    let concerns = |change: &&Change| {
        (change.methods.is_empty() || change.methods.contains(&name)) && (change.concerns)(settings, policy)
    };
    FIRST_REVISION + CHANGES.iter().filter(concerns).count() as u16
}

#[cfg(test)]
mod tests {
    use super::super::tests::configured;
    use super::*;

    #[test]
    fn forms_are_those_of_the_settings_that_have_changed() {
        let forms = [
            ("full", 1),
            ("random:k=4", 1),
            ("loki:k=4", 1),
            ("loki:k=4,rescore=exact", 2),
            ("loki:k=4,pick=sample", 2),
            ("topk:k=4", 2),
            ("topk:density=0.1", 2),
            ("quest:k=4", 1),
            ("quest:preset=paper", 2),
            ("snapkv:k=64", 1),
            ("snapkv:density=0.1", 2),
            ("magicpig:K=8,L=75", 1),
            ("magicpig:density=0.1", 2),
            ("h2o:k=4", 2),
            ("h2o:density=0.1", 3),
            ("twilight", 2),
        ];
        for (spec, form) in forms {
            assert_eq!(configured(spec, &Policy::default()).revision, form, "{spec}");
        }
    }

    #[test]
    fn every_changed_method_is_one_of_the_registry() {
        for name in CHANGES.iter().flat_map(|change| change.methods) {
            assert!(crate::methods::find(name).is_ok(), "{name}");
        }
    }
}
