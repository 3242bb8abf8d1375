//! Checks that the key of a method's index depends on every parameter that changes the index.

use super::tests::none;
use super::{METHODS, MethodEntry, ParamInfo, configure};
use crate::{Configured, IndexKey, expand_grid};

/// Methods (all, if none are named), parameters of theirs that change no index, and why.
type LeftOut = (&'static [&'static str], &'static [&'static str], &'static str);

const LEFT_OUT: &[LeftOut] = &[
    (&[], &["pick", "p", "epsilon", "delta", "base", "k2"], "they say what is selected by the scores of an index"),
    (
        &[
            "topk",
            "topk_norm",
            "vattention",
            "random",
            "infllm",
            "quest",
            "twilight",
            "double_sparsity",
            "loki",
            "sparq",
            "lsh_bits",
            "hash_attention",
            "pqcache",
            "knn",
            "retrieval_attention",
        ],
        &["k", "ratio", "per", "reduce"],
        "how many tokens, and for which heads, is decided at each step",
    ),
    (
        &["snapkv", "pyramid_kv", "ada_kv", "expected_attention"],
        &["ratio", "keep", "floor", "beta"],
        "scores do not depend on how many tokens are kept, unless there are none",
    ),
    (
        &["oracle_sampling"],
        &["budget", "draw_from", "proposal"],
        "there is no index: tokens are drawn by exact weights",
    ),
    (&["random"], &["weights"], "there is no index"),
    (
        &["streaming_llm", "a_shape"],
        &["window", "slide", "rolling"],
        "there is no index: only static tokens are attended",
    ),
    (&["streaming_llm"], &["keep"], "there is no index: only static tokens are attended"),
    (&["bigbird"], &["window", "blocks", "block", "block_q", "per"], "the index is the seed of the context"),
    (
        &["vertical_slash", "minference", "flexprefill", "hyper_attention", "reformer"],
        &[
            "vertical",
            "slash",
            "snapshot",
            "per",
            "k",
            "block",
            "gamma",
            "tau",
            "min_budget",
            "sample",
            "lsh_num_projs",
            "min_seq_len",
            "bucket",
            "hashes",
            "seed",
        ],
        "there is no index: they are sparse while the prompt is read",
    ),
    (
        &["hip"],
        &[
            "k",
            "ratio",
            "b_k",
            "b_sk",
            "key_offset",
            "b_q",
            "b_sq",
            "query_offset",
            "chunks",
            "window",
            "r_m",
            "representative",
            "top_r",
            "n_e",
            "theta_vote",
            "r_e",
            "tau",
            "l_e",
            "vd",
            "vertical",
            "slash",
            "snapshot",
            "per",
            "self_extend",
            "self_extend_window",
            "offload",
        ],
        "there is no index: keys are searched where the cache holds them",
    ),
    (&["quest"], &["min_pages"], "it is part of the budget"),
    (&["double_sparsity"], &["offload"], "it says which queries tokens are picked by"),
    (
        &["magicpig"],
        &["min_collisions", "u_floor"],
        "they say which tokens of the tables are sampled, and how they are weighted",
    ),
    (&["sparq", "rocketkv"], &["r"], "the channels are chosen by each query"),
    (&["lsh_bits", "hash_attention"], &["ties"], "equal distances are ordered when scores are computed"),
    (&["hash_attention"], &["seed"], "it draws the order of equal distances"),
    (
        &["hash_attention"],
        &["trained", "text"],
        "they say which artefact is accepted, and the key has the artefact's digest",
    ),
    (&["knn", "retrieval_attention"], &["ef"], "it is how wide the graph is searched at each step"),
];

/// Parameters that are refused or have no effect without another one, and that other one.
const WITH: &[(&str, &str)] = &[
    ("reduce", "per=kv_head"),
    ("epsilon", "pick=sample"),
    ("delta", "pick=sample"),
    ("base", "pick=sample"),
    ("keep", "slide=false"),
    ("k2", "rescore=exact"),
    ("p", "pick=topp"),
    ("p", "rescore=exact"),
    ("rope", "kind=q"),
    ("slash", "vd=true"),
    ("vertical", "vd=true"),
    ("snapshot", "vd=true"),
    ("theta_vote", "n_e=3"),
    ("tau", "n_e=3"),
    ("r_e", "n_e=3"),
    ("self_extend_window", "self_extend=2"),
];

/// Values to try for a parameter beside its default: those that its description names, and others near the default. Most
/// of them are refused.
fn values(param: &ParamInfo) -> Vec<String> {
    let choices = param.about.split([':', ',', ';', ' ', '(']).filter(|word| !word.is_empty()).map(str::to_owned);
    let number = param.default.parse::<f64>().ok();
    let near = number.into_iter().flat_map(|n| [n + 1.0, n + 2.0, 2.0 * n, 0.5 * n, 0.9 * n]);
    let others = ["3", "5", "0.3", "d/16", "d/3"].map(str::to_owned);
    choices.chain(near.map(|n| n.to_string())).chain(others).collect()
}

fn configured(method: &str, params: &[&str]) -> Option<Configured> {
    let params: Vec<&str> = params.iter().copied().filter(|param| !param.is_empty()).collect();
    let spec = format!("{method}:{}", params.join(","));
    let mut specs = expand_grid(spec.trim_end_matches(':')).ok()?;
    configure(&specs.remove(0), &none()).ok()
}

/// The index keys of a method with a parameter at its default, and at all other values that it accepts.
fn keys(entry: &MethodEntry, param: &ParamInfo) -> (IndexKey, Vec<IndexKey>) {
    let with_other = WITH.iter().filter(|(key, _)| *key == param.key).map(|(_, with)| *with);
    let mut tried = with_other.chain([""]).filter_map(|with| {
        let base = configured(entry.name, &[with])?;
        let is_other = |other: &Configured| other.settings != base.settings;
        let of_value = |value: String| configured(entry.name, &[with, &format!("{}={value}", param.key)]);
        let others: Vec<Configured> = values(param).into_iter().filter_map(of_value).filter(is_other).collect();
        (!others.is_empty()).then_some((base, others))
    });
    let (base, others) =
        tried.next().unwrap_or_else(|| panic!("{}: no other value of `{}` was found", entry.name, param.key));
    (base.method.index_key(), others.iter().map(|other| other.method.index_key()).collect())
}

#[test]
fn the_key_of_an_index_names_every_parameter_that_changes_it() {
    let left_out = || LEFT_OUT.iter().flat_map(|(methods, keys, _)| keys.iter().map(move |key| (*methods, *key)));
    let (mut wrong, mut unused) = (Vec::new(), left_out().collect::<Vec<_>>());
    for entry in METHODS {
        for param in entry.params {
            let is_of = |(methods, key): &(&[&str], &str)| {
                *key == param.key && (methods.is_empty() || methods.contains(&entry.name))
            };
            let is_left_out = left_out().any(|of| is_of(&of));
            unused.retain(|of| !is_of(of));
            let (base, others) = keys(entry, param);
            let differs = others.iter().any(|key| *key != base);
            if differs == is_left_out {
                let how = match differs {
                    true => "changes the key, and LEFT_OUT says that it does not change the index",
                    false => "is neither in the key (`index_key`) nor in LEFT_OUT",
                };
                wrong.push(format!("{}: `{}` {how}", entry.name, param.key));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(unused.is_empty(), "no method has these: {unused:?}");
}
