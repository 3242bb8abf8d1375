//! Names and parameters of kvpress (github.com/NVIDIA/kvpress) and their counterparts here: the tables behind `docs/coming-from.md`.
//!
//! A parameter with the same meaning is accepted under kvpress' name and recorded under ours, so that both spellings make one record. A
//! parameter with another meaning is refused, and so is the name of a press; the error says in one line what there is instead. A press
//! evicts once, after the prefill. Its `compression_ratio` is the share of the context's tokens that it evicts; sinks and windows count as
//! kept. Our parameter is `keep`, which is 1 minus the ratio.

use crate::spec::MethodSpec;
use spattn_base::error::UsageError;

/// A parameter of a press.
#[derive(Debug, Clone, Copy)]
pub struct PressParameter {
    /// The methods here that take it.
    pub methods: &'static [&'static str],
    /// Its name in kvpress.
    pub theirs: &'static str,
    /// Our counterpart.
    pub here: Meaning,
}

/// The counterpart of a press's parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Our parameter of this name, with the same value.
    Same(&'static str),
    /// Our parameter of this name, with 1 minus their value.
    Rest(&'static str),
    /// Something else; the text says what to write.
    Other(&'static str),
}

use Meaning::{Other, Rest, Same};

const VOTING: &[&str] = &["snapkv", "ada_kv", "pyramid_kv"];

/// The parameters of presses, by method.
pub const PARAMETERS: &[PressParameter] = &[
    PressParameter {
        methods: &["snapkv", "ada_kv", "pyramid_kv", "expected_attention", "streaming_llm"],
        theirs: "compression_ratio",
        here: Rest("keep"),
    },
    PressParameter { methods: VOTING, theirs: "window_size", here: Same("window") },
    PressParameter { methods: VOTING, theirs: "kernel_size", here: Same("kernel") },
    PressParameter { methods: &["streaming_llm", "expected_attention"], theirs: "n_sink", here: Same("sink") },
    PressParameter { methods: &["expected_attention"], theirs: "n_future_positions", here: Same("future") },
    PressParameter { methods: &["expected_attention"], theirs: "use_covariance", here: Same("covariance") },
    PressParameter { methods: &["expected_attention"], theirs: "use_vnorm", here: Same("norm") },
    PressParameter {
        methods: &["expected_attention"],
        theirs: "epsilon",
        here: Other(
            "scores are multiplied by the norms of values without an addend: leave epsilon out (0 in the class)",
        ),
    },
    PressParameter {
        methods: &["ada_kv"],
        theirs: "alpha_safeguard",
        here: Other(
            "floor=0.2 is the paper's safeguard, which mixes equal shares with those by votes; kvpress keeps each head's best tokens first",
        ),
    },
    PressParameter { methods: &["duo_attention"], theirs: "head_compression_ratio", here: Rest("retrieval") },
    PressParameter {
        methods: &["duo_attention"],
        theirs: "compression_ratio",
        here: Other("it follows from the heads: head_compression_ratio=0.5, or retrieval=0.5"),
    },
    PressParameter {
        methods: &["tova"],
        theirs: "compression_ratio",
        here: Other(
            "kvpress evicts once; tova goes on evicting in each step, as its paper says: ratio=0.5 or k=N is what it holds",
        ),
    },
    PressParameter {
        methods: &["h2o"],
        theirs: "compression_ratio",
        here: Other(
            "kvpress' ObservedAttentionPress evicts once, by mean weights; h2o goes on evicting, by sums: ratio=0.1 or density=0.2",
        ),
    },
    PressParameter {
        methods: &["rocketkv"],
        theirs: "compression_ratio",
        here: Other("it keeps the root of k times the context, of which each step attends k: k=64 or density=0.1"),
    },
    PressParameter {
        methods: &["random"],
        theirs: "compression_ratio",
        here: Other("kvpress draws once and evicts; random draws anew in each step and evicts nothing: density=0.5"),
    },
];

/// A press of kvpress' evaluation.
#[derive(Debug, Clone, Copy)]
pub struct Press {
    /// Its names: that in `evaluate_registry.py`, then its class, if it has its own.
    pub names: &'static [&'static str],
    /// The spec of the corresponding method here; `None` if there is none.
    pub here: Option<&'static str>,
    /// What differs, or why there is no such method.
    pub about: &'static str,
}

const NOT_HERE: &str = "not among the methods here";

/// The presses of kvpress' evaluation, in the order of `docs/coming-from.md`: those with a counterpart first.
pub const PRESSES: &[Press] = &[
    Press { names: &["no_press"], here: Some("full"), about: "the same; `full` runs in any case" },
    Press { names: &["snapkv", "SnapKVPress"], here: Some("snapkv:preset=kvpress,keep=0.5"), about: "the same" },
    Press {
        names: &["streaming_llm", "StreamingLLMPress"],
        here: Some("streaming_llm:preset=kvpress,keep=0.5"),
        about: "the same",
    },
    Press {
        names: &["pyramidkv", "PyramidKVPress"],
        here: Some("pyramid_kv:keep=0.5,window=64,kernel=5,pool=avg,per=kv_head,sink=0,local=0"),
        about: "the mean over layers is the same; the window is no part of the line of budgets here, as in the authors' code",
    },
    Press {
        names: &["adakv_snapkv", "AdaKVPress"],
        here: Some("ada_kv:keep=0.5,window=64,kernel=5,pool=avg,per=kv_head,sink=0,local=0"),
        about: "the mean over heads is the same; the safeguard is the paper's",
    },
    Press {
        names: &["ExpectedAttentionPress"],
        here: Some("expected_attention:preset=repo,keep=0.5"),
        about: "mean and covariance from 512 queries of the context, not from all; the evaluation's `expected_attention` shares budgets \
                between heads (AdaKV), which this does not",
    },
    Press {
        names: &["tova", "TOVAPress"],
        here: Some("tova:ratio=0.5"),
        about: "kvpress evicts once, `tova` goes on in each step",
    },
    Press {
        names: &["observed_attention", "ObservedAttentionPress"],
        here: Some("h2o:density=0.5"),
        about: "kvpress evicts once, by mean weights; `h2o` goes on, by sums",
    },
    Press {
        names: &["random", "RandomPress"],
        here: Some("random:density=0.5"),
        about: "kvpress draws once and evicts, `random` draws in each step",
    },
    Press {
        names: &["duo_attention", "DuoAttentionPress"],
        here: Some("duo_attention:retrieval=0.5"),
        about: "heads ranked by `spattn calibrate duo_attention`, in place of the published patterns",
    },
    Press {
        names: &[
            "knorm",
            "KnormPress",
            "keydiff",
            "KeyDiffPress",
            "block_keydiff",
            "BlockPress",
            "qfilter",
            "QFilterPress",
            "lagkv",
            "LagKVPress",
            "cur",
            "CURPress",
            "compactor",
            "CompactorPress",
            "adakv_compactor",
            "lukv",
            "LUKVPress",
            "LeverageScorePress",
        ],
        here: None,
        about: NOT_HERE,
    },
    Press {
        names: &[
            "kvzip",
            "KVzipPress",
            "kvzip_plus",
            "fastkvzip",
            "FastKVzipPress",
            "kvzap_linear",
            "kvzap_mlp",
            "kvzap_mlp_head",
            "kvzap_mlp_layer",
            "KVzapPress",
            "DMSPress",
            "RestoreKV",
            "RestoreKV_plus",
            "RestoreKVPress",
            "kvcompose",
            "kvcompose_unstructured",
            "KVComposePress",
        ],
        here: None,
        about: NOT_HERE,
    },
    Press {
        names: &[
            "chunkkv",
            "ChunkKVPress",
            "ChunkPress",
            "finch",
            "FinchPress",
            "think",
            "ThinKPress",
            "snap_think",
            "SimLayerKVPress",
            "critical_snapkv",
            "critical_adakv_snapkv",
            "critical_expected_attention",
            "critical_adakv_expected_attention",
            "CriticalKVPress",
            "CriticalAdaKVPress",
            "duo_attention_on_the_fly",
            "NonCausalAttnPress",
            "KeyRerotationPress",
        ],
        here: None,
        about: NOT_HERE,
    },
    Press {
        names: &[
            "cam_streaming_llm",
            "cam_knorm",
            "cam_adakv_snapkv",
            "cam_tova",
            "CAMPress",
            "merging_knorm",
            "merging_snapkv",
            "merging_expected_attention",
            "merging_kvzap_mlp",
            "MergingPress",
        ],
        here: None,
        about: "nothing is merged here: what is evicted is gone",
    },
    Press {
        names: &[
            "decoding_knorm",
            "decoding_streaming_llm",
            "decoding_tova",
            "decoding_qfilter",
            "decoding_adakv_expected_attention_e2",
            "decoding_adakv_snapkv",
            "decoding_keydiff",
            "DecodingPress",
            "PrefillDecodingPress",
        ],
        here: None,
        about: "methods that evict while they decode are `tova`, `h2o` and `streaming_llm`",
    },
];

/// The error for the name of a press that is no method here; `None` if it is no press either.
pub(super) fn unknown_press(name: &str) -> Option<UsageError> {
    let press = PRESSES.iter().find(|press| press.names.contains(&name))?;
    let hint = match press.here {
        Some(spec) => format!("write -m {spec}: {}", press.about),
        None => format!("{}; docs/coming-from.md has kvpress' names, `spattn list methods` all methods", press.about),
    };
    Some(UsageError::new(format!("method `{name}` is a press of kvpress")).hint(hint))
}

/// Returns the spec with our parameters in place of kvpress'.
///
/// # Errors
/// If a parameter of kvpress means something else here, is out of its range, or is given beside ours.
pub(super) fn in_our_words(spec: &MethodSpec) -> Result<MethodSpec, UsageError> {
    let mut ours = MethodSpec { params: Vec::new(), ..spec.clone() };
    for (key, value) in &spec.params {
        ours.params.push((key.clone(), value.clone()));
        let Some(row) = PARAMETERS.iter().find(|row| row.theirs == key && row.methods.contains(&spec.name.as_str()))
        else {
            continue;
        };
        let (name, value) = match row.here {
            Same(name) => (name, in_lower_case(value)),
            Rest(name) => (name, rest(&spec.name, key, value)?),
            Other(line) => {
                return Err(UsageError::new(format!("method `{}` has no parameter `{key}`", spec.name)).hint(line));
            }
        };
        if spec.params.iter().any(|(other, _)| other == name) {
            return Err(UsageError::new(format!(
                "method `{}`: `{key}` and `{name}` are the same parameter",
                spec.name
            ))
            .hint("give one of them"));
        }
        ours.params.pop();
        ours.params.push((name.to_owned(), value));
    }
    // kvpress' window does not slide.
    let is_press = ours.name == "streaming_llm" && spec.params.iter().any(|(key, _)| key == "compression_ratio");
    if is_press && !ours.params.iter().any(|(key, _)| key == "slide") {
        ours.params.push(("slide".to_owned(), "false".to_owned()));
    }
    Ok(ours)
}

/// Converts Python's truth values to ours; leaves other values as they are.
fn in_lower_case(value: &str) -> String {
    match value {
        "True" | "False" => value.to_lowercase(),
        other => other.to_owned(),
    }
}

/// Returns 1 minus a share, with as many decimals.
fn rest(method: &str, key: &str, value: &str) -> Result<String, UsageError> {
    let share = value.parse::<f64>().ok().filter(|share| (0.0..1.0).contains(share));
    let share = share.ok_or_else(|| {
        UsageError::new(format!("method `{method}`: `{key}={value}` is out of range"))
            .hint(format!("`{key}` should be a number from 0 to below 1: the share that goes"))
    })?;
    let decimals =
        value.split_once('.').map(|(_, decimals)| decimals).filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
    // A share without decimals or with an exponent gets as many decimals as it needs.
    let most = decimals.map_or(15, str::len).min(15);
    let text = format!("{:.most$}", 1.0 - share);
    Ok(text.parse::<f64>().map_or(text, |number| number.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{METHODS, configure};
    use crate::spec::expand_grid;
    use crate::types::policy::Policy;

    fn label(spec: &str) -> Result<String, UsageError> {
        configure(&expand_grid(spec)?[0], &Policy::default()).map(|method| method.label())
    }

    #[test]
    fn both_spellings_are_one_record() {
        for (theirs, ours) in [
            ("snapkv:compression_ratio=0.5", "snapkv:keep=0.5"),
            ("snapkv:compression_ratio=0.875,window_size=64,kernel_size=5", "snapkv:keep=0.125,window=64,kernel=5"),
            ("snapkv:compression_ratio=0", "snapkv:keep=1"),
            ("snapkv:compression_ratio=0.9", "snapkv:keep=0.1"),
            ("snapkv:compression_ratio=2.5e-1", "snapkv:keep=0.75"),
            ("ada_kv:compression_ratio=0.50", "ada_kv:keep=0.5"),
            ("pyramid_kv:compression_ratio=0.3,window_size=16", "pyramid_kv:window=16,keep=0.7"),
            ("streaming_llm:compression_ratio=0.25,n_sink=8", "streaming_llm:keep=0.75,slide=false,sink=8"),
            ("streaming_llm:preset=kvpress,compression_ratio=0.25", "streaming_llm:preset=kvpress,keep=0.75"),
            (
                "expected_attention:compression_ratio=0.5,n_future_positions=64,use_covariance=False",
                "expected_attention:keep=0.5,future=64,covariance=false",
            ),
            ("duo_attention:head_compression_ratio=0.25", "duo_attention:retrieval=0.75"),
        ] {
            assert_eq!(label(theirs).unwrap(), label(ours).unwrap(), "{theirs}");
        }
        assert_eq!(label("snapkv:compression_ratio=0.5").unwrap(), "snapkv:keep=0.5");
        let grid = expand_grid("snapkv:compression_ratio={0.25,0.5}").unwrap();
        assert_eq!(grid.len(), 2);
    }

    #[test]
    fn the_preset_is_the_press() {
        let label = label("snapkv:preset=kvpress,compression_ratio=0.75").unwrap();
        assert_eq!(label, "snapkv:keep=0.25,window=64,kernel=5,pool=avg,per=kv_head,sink=0,local=0");
    }

    #[test]
    fn what_means_something_else_is_refused_with_one_line() {
        let hint = |spec: &str| label(spec).unwrap_err().hint.unwrap();
        for row in PARAMETERS {
            for method in row.methods {
                assert!(METHODS.iter().any(|entry| entry.name == *method), "{method}");
                let given = format!("{method}:{}=0.5", row.theirs);
                match row.here {
                    Other(line) => {
                        assert_eq!(hint(&given), line);
                        assert!(line.len() < 140 && !line.contains('\n'), "{line}");
                    }
                    Same(ours) | Rest(ours) => {
                        let entry = METHODS.iter().find(|entry| entry.name == *method).unwrap();
                        let is_known = ours == "sink" || entry.params.iter().any(|param| param.key == ours);
                        assert!(is_known, "{method} has no {ours}");
                    }
                }
            }
        }
        for value in ["1", "1.5", "-0.1", "half", "nan"] {
            let error = label(&format!("snapkv:compression_ratio={value}")).unwrap_err();
            assert!(error.what.contains(&format!("`compression_ratio={value}` is out of range")), "{error}");
        }
        assert!(label("snapkv:compression_ratio=0.5,keep=0.5").unwrap_err().what.contains("are the same parameter"));
        assert!(label("snapkv:compression_ratio=0.5,k=8").unwrap_err().what.contains("k or keep, not both"));
        assert!(label("streaming_llm:keep=0.5").unwrap_err().what.contains("needs slide=false"));
        assert!(label("quest:compression_ratio=0.5").unwrap_err().what.contains("no parameter `compression_ratio`"));
        assert!(hint("quest:compression_ratio=0.5").contains("density"));
    }

    #[test]
    fn every_press_is_a_method_that_exists_or_is_said_to_be_none() {
        let mut seen = std::collections::BTreeSet::new();
        for press in PRESSES {
            for name in press.names {
                assert!(seen.insert(name), "{name} stands twice");
                let is_method = METHODS.iter().any(|entry| entry.name == *name);
                if !is_method {
                    let error = label(name).unwrap_err();
                    assert_eq!(error.what, format!("method `{name}` is a press of kvpress"));
                    assert!(press.here.is_none_or(|spec| error.hint.unwrap().contains(spec)));
                }
            }
            if let Some(spec) = press.here {
                label(spec).unwrap();
            }
        }
    }
}
