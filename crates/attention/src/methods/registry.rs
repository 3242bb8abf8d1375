//! The registry of methods, and how a spec becomes a configured method.

use std::sync::{Arc, OnceLock};

use super::{
    a_shape, ada_kv, bigbird, double_sparsity, duo_attention, expected_attention, external, flexprefill, forms, full,
    h2o, hash_attention, hip, hyper_attention, infllm, knn, kvpress, loki, lsh_bits, magicpig, minference,
    oracle_sampling, pqcache, pyramid_kv, quest, random, reformer, retrieval_attention, rocketkv, snapkv, sparq,
    streaming_llm, topk, topk_norm, topp, tova, twilight, vattention, vertical_slash,
};
use crate::calibration::collector::Calibration;
use crate::configured::{Configured, FIRST_REVISION};
use crate::kv::{MOST_TOKENS, PrefixDtype};
use crate::method::TailRule;
use crate::methods::entry::MethodEntry;
use crate::spec::{MethodSpec, ParamInfo, Params, Setting};
use crate::spec_text::quoted;
use crate::types::policy::{DenseLayers, KV_DTYPE, Policy, Tail};
use crate::types::role::Role;
use crate::types::schedule::Schedule;
use spattn_base::error::UsageError;

/// The methods of this library, in listing order. [`all`] also has those of the calling program.
pub const METHODS: &[MethodEntry] = &[
    full::ENTRY,
    topk::ENTRY,
    topk_norm::ENTRY,
    topp::ENTRY,
    oracle_sampling::ENTRY,
    vattention::ENTRY,
    random::ENTRY,
    streaming_llm::ENTRY,
    a_shape::ENTRY,
    bigbird::ENTRY,
    vertical_slash::ENTRY,
    minference::ENTRY,
    flexprefill::ENTRY,
    hyper_attention::ENTRY,
    reformer::ENTRY,
    snapkv::ENTRY,
    h2o::ENTRY,
    tova::ENTRY,
    pyramid_kv::ENTRY,
    ada_kv::ENTRY,
    expected_attention::ENTRY,
    rocketkv::ENTRY,
    duo_attention::ENTRY,
    infllm::ENTRY,
    quest::ENTRY,
    twilight::ENTRY,
    magicpig::ENTRY,
    double_sparsity::ENTRY,
    loki::ENTRY,
    sparq::ENTRY,
    hip::ENTRY,
    lsh_bits::ENTRY,
    hash_attention::ENTRY,
    knn::ENTRY,
    pqcache::ENTRY,
    retrieval_attention::ENTRY,
];

/// The method that runs a command of the user. It is not in [`METHODS`] because it cannot be built without a command.
const EXTERNAL: &[MethodEntry] = &[external::ENTRY];

/// Methods registered by the program that uses this library.
static REGISTERED: OnceLock<&'static [MethodEntry]> = OnceLock::new();

/// Registers further methods for the whole program: once, and before any method is looked up.
///
/// # Errors
/// If a name is taken or cannot stand in a spec, if a method refuses its own defaults, or on a second call.
pub fn register(entries: &'static [MethodEntry]) -> Result<(), UsageError> {
    for (i, entry) in entries.iter().enumerate() {
        if METHODS.iter().chain(EXTERNAL).chain(&entries[..i]).any(|other| other.name == entry.name) {
            return Err(UsageError::new(format!("there is a method `{}` already", entry.name))
                .hint("give the method that is registered another name"));
        }
        let is_word = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if entry.name.is_empty() || !is_word(entry.name) {
            return Err(UsageError::new(format!("`{}` cannot be the name of a method", entry.name))
                .hint("a name is made of small letters, digits and _"));
        }
        (entry.build)(&mut Params::new(&MethodSpec::bare(entry.name)))?;
    }
    REGISTERED.set(entries).map_err(|_| {
        UsageError::new("methods are registered twice").hint("give all of them to one call of spattn::cli::main_with")
    })
}

/// All methods: those of this library, the one that runs a command, then those that were [registered](register).
pub fn all() -> impl Iterator<Item = &'static MethodEntry> {
    METHODS.iter().chain(EXTERNAL).chain(REGISTERED.get().copied().unwrap_or_default())
}

/// The method with this name.
///
/// # Errors
/// If there is none; the error names the method that was most likely meant.
pub fn find(name: &str) -> Result<&'static MethodEntry, UsageError> {
    let unknown = || UsageError::unknown("method", name, all().map(|m| m.name));
    all().find(|entry| entry.name == name).ok_or_else(|| kvpress::unknown_press(name).unwrap_or_else(unknown))
}

/// Whether configuring this method starts a command of the user.
pub fn starts_command(spec: &MethodSpec) -> bool {
    let of_one = |spec: &MethodSpec| EXTERNAL.iter().any(|entry| entry.name == spec.name);
    of_one(spec) || spec.reader.as_deref().is_some_and(of_one)
}

/// The calibrations that make the methods' artefacts, in the order in which they run.
pub const CALIBRATIONS: &[Calibration] =
    &[double_sparsity::CALIBRATION, loki::CALIBRATION, duo_attention::CALIBRATION, hash_attention::CALIBRATION];

impl Role {
    /// The role of the method that a record names. A prompt reader with a decoder (`minference>topk`) is an oracle or a floor
    /// if either of the two is one. A name that is not registered belongs to another program and has the role of a method.
    pub fn of(name: &str) -> Self {
        let of_one = |label: &str| {
            let bare = label.split(':').next().unwrap_or(label);
            all().find(|entry| entry.name == bare).map_or(Role::Method, |entry| entry.role)
        };
        let Some((reader, decoder)) = name.split_once('>') else { return of_one(name) };
        let both = [of_one(reader), of_one(decoder)];
        [Role::Oracle, Role::Floor].into_iter().find(|role| both.contains(role)).unwrap_or(Role::Method)
    }

    /// The role of a method with these parameters, as a record names both. `full` is the reference only without parameters: any
    /// parameter of `full` changes how keys and values are stored, so it is compared with the reference as other methods are.
    pub fn of_setting(name: &str, params: &str) -> Self {
        match Self::of(name) {
            Role::Reference if !params.is_empty() => Role::Method,
            role => role,
        }
    }
}

/// Parameters that every method takes.
pub const POLICY_PARAMS: &[ParamInfo] = &[
    ParamInfo { key: "sink", default: "4", about: "first tokens, always attended" },
    ParamInfo { key: "local", default: "64", about: "last tokens of the prefix, always attended" },
    ParamInfo { key: "dense_layers", default: "none", about: "layers left dense: 0+1, 0-2, 0-48/16, 0+50%" },
    ParamInfo {
        key: "tail",
        default: "exact",
        about: "exact | window:N | indexed: what follows the prefix is attended exactly; or only the last N (local) tokens \
                are, and what leaves them is picked from like the rest",
    },
    ParamInfo {
        key: KV_DTYPE,
        default: "model",
        about: "model | f8 | q8 | q4 | q2: how keys and values of the prefix are stored, also under full: as the model computes them, or \
                quantised when the prefix is finished",
    },
    ParamInfo {
        key: "density",
        default: "-",
        about: "instead of the method's own budget: share of the context attended, static tokens included, in layers \
                that are not dense",
    },
    ParamInfo {
        key: SCHEDULE,
        default: "uniform",
        about: "uniform | linear | W+W+...: how a budget of tokens (k, ratio, density) is dealt out to the layers that are not \
                dense: alike, growing with depth, or by a weight for each layer of the model",
    },
    ParamInfo {
        key: "preset",
        default: "matched",
        about: "paper | repo | kvpress | matched: published settings, or the harness's",
    },
];

/// Configures the method of a spec. Policy keys that the spec leaves out come from `policy`.
///
/// # Errors
/// On an unknown method, preset or parameter, a value out of range, a reader without a prefill pattern, or a decoder
/// that decodes densely.
pub fn configure(spec: &MethodSpec, policy: &Policy) -> Result<Configured, UsageError> {
    let decoder = configure_one(spec, policy)?;
    let Some(reader) = &spec.reader else { return Ok(decoder) };
    // `kv_dtype` does not apply to a reader, which reads the prompt with exact keys and values.
    let reader = configure_one(reader, &Policy { kv_dtype: PrefixDtype::Model, ..policy.clone() })?;
    if !reader.policy.kv_dtype.is_exact() {
        let what = format!("method `{}` reads a prompt, which no `{KV_DTYPE}` changes", reader.label());
        return Err(UsageError::new(what).hint(format!("give `{KV_DTYPE}` to the method behind `>`")));
    }
    if reader.method.prefill_pattern().is_none() {
        return Err(UsageError::new(format!("method `{}` cannot read a prompt", reader.label())).hint(
            "the method before `>` needs a prefill pattern; `spattn list methods` says which are sparse in prefill",
        ));
    }
    if decoder.method.decodes_densely() {
        return Err(UsageError::new(format!("method `{}` cannot decode: it reads prompts alone", decoder.label()))
            .hint("write full behind `>` for exact decoding"));
    }
    let mut settings = decoder.settings.clone();
    settings.push(Setting { key: READER, value: reader.label(), is_named: false });
    let name = format!("{}>{}", reader.label(), decoder.name);
    let revision = decoder.revision + reader.revision - FIRST_REVISION;
    Ok(Configured { name, settings, revision, reader: Some(Arc::new(reader)), ..decoder })
}

/// Key of the setting that names the method that read the prompt.
const READER: &str = "prefill";

fn configure_one(spec: &MethodSpec, policy: &Policy) -> Result<Configured, UsageError> {
    let entry = find(&spec.name)?;
    let mut params = Params::new(&kvpress::in_our_words(spec)?);
    if let Some(name) = params.take("preset") {
        params.fill(preset(entry, &name)?);
    }
    let method = (entry.build)(&mut params)?;
    let schedule = read_schedule(&mut params)?;
    let policy = Policy { schedule, ..read_policy(&mut params, policy, method.tail_rule())? };
    // A method without parameters (the dense reference) does not depend on sink or window.
    if !entry.params.is_empty() {
        note_policy(&mut params, &policy, method.tail_rule());
    }
    if !policy.kv_dtype.is_exact() {
        params.note_unless_default(KV_DTYPE, &policy.kv_dtype, &PrefixDtype::default());
    }
    let settings = params.finish()?;
    let named = settings.iter().filter(|s| s.is_named).map(|s| format!("{}={}", s.key, quoted(&s.value)));
    let params = named.collect::<Vec<_>>().join(",");
    let (name, revision) = (entry.name.to_owned(), forms::revision(entry.name, &settings, &policy));
    Ok(Configured { name, params, settings, policy, revision, method, artefact: None, reader: None })
}

fn preset(entry: &MethodEntry, name: &str) -> Result<&'static [(&'static str, &'static str)], UsageError> {
    entry.all_presets().find(|p| p.name == name).map(|p| p.values).ok_or_else(|| {
        let known: Vec<&str> = entry.all_presets().map(|p| p.name).collect();
        UsageError::new(format!("method `{}` has no preset `{name}`", entry.name))
            .hint(format!("its presets: {}", known.join(", ")))
    })
}

fn read_policy(params: &mut Params, default: &Policy, rule: TailRule) -> Result<Policy, UsageError> {
    let mut number = |key, default| match params.take(key) {
        None => Ok(default),
        Some(text) => params.parse_within(key, &text, 0..=MOST_TOKENS),
    };
    let (sink, local) = (number("sink", default.sink)?, number("local", default.local)?);
    let dense_layers = match params.take("dense_layers") {
        None => default.dense_layers.clone(),
        Some(text) => DenseLayers::parse(&text)?,
    };
    let tail = read_tail(params, default.tail, rule)?;
    let kv_dtype = params.take(KV_DTYPE).map_or(Ok(default.kv_dtype), |text| text.parse())?;
    let (schedule, local_layers) = (Schedule::default(), default.local_layers);
    Ok(Policy { sink, local, dense_layers, tail, schedule, local_layers, kv_dtype })
}

/// Key of the parameter that distributes a budget over layers.
const SCHEDULE: &str = "schedule";

/// Reads how a budget in tokens is distributed over layers. Refuses a distribution if the method has no such budget.
fn read_schedule(params: &mut Params) -> Result<Schedule, UsageError> {
    let given: Option<Schedule> = params.take(SCHEDULE).map(|text| text.parse()).transpose()?;
    if params.has_layer_budgets() {
        let schedule = given.unwrap_or_default();
        params.note_unless_default(SCHEDULE, &schedule, &Schedule::default());
        return Ok(schedule);
    }
    match given {
        None | Some(Schedule::Uniform) => Ok(Schedule::default()),
        Some(schedule) => {
            Err(UsageError::new(format!("method `{}` has no `{SCHEDULE}={schedule}`", params.method())).hint(
                "shares of layers are shares of a budget in tokens (k, ratio, density) that the method does not deal out itself",
            ))
        }
    }
}

/// Reads the method's own `tail`, which its rule has to support. Without one, takes the default as far as the rule supports it.
fn read_tail(params: &mut Params, default: Tail, rule: TailRule) -> Result<Tail, UsageError> {
    let asked: Option<Tail> = params.take("tail").map(|text| text.parse()).transpose()?;
    match (asked, rule) {
        (asked, TailRule::Indexed(_)) => Ok(asked.unwrap_or(default)),
        (None | Some(Tail::Exact), _) => Ok(Tail::Exact),
        (Some(tail), TailRule::Exact(why) | TailRule::Own(why)) => {
            Err(UsageError::new(format!("method `{}` has no `tail={tail}`", params.method())).hint(why))
        }
    }
}

/// Notes policy keys only where they differ from the program's default, so that equal cells have equal names.
fn note_policy(params: &mut Params, policy: &Policy, rule: TailRule) {
    let default = Policy::default();
    params.note_unless_default("sink", &policy.sink, &default.sink);
    params.note_unless_default("local", &policy.local, &default.local);
    params.note_unless_default("dense_layers", &policy.dense_layers, &default.dense_layers);
    match rule {
        TailRule::Own(_) => params.note_unless_default("tail", &"own", &"own"),
        _ => params.note_unless_default("tail", &policy.tail, &default.tail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_registered_method_has_the_role_that_it_plays() {
        let of = |role: Role| -> Vec<&str> {
            METHODS.iter().filter(|entry| entry.role == role).map(|entry| entry.name).collect()
        };
        assert_eq!(of(Role::Reference), ["full"]);
        assert_eq!(of(Role::Oracle), ["topk", "topk_norm", "topp", "oracle_sampling", "vattention"]);
        assert_eq!(of(Role::Floor), ["random"]);
        let published = of(Role::Method);
        assert_eq!(published.len(), METHODS.len() - 7);
        for name in ["quest", "magicpig", "streaming_llm", "snapkv", "knn", "hash_attention", "minference"] {
            assert!(published.contains(&name), "{name}");
        }
    }

    #[test]
    fn full_on_another_storage_is_no_reference() {
        let of = |spec: &str| configure(&crate::expand_grid(spec).unwrap()[0], &Policy::default()).unwrap();
        assert!(of("full").is_reference() && of("full:kv_dtype=model").is_reference());
        assert_eq!(of("full:kv_dtype=model").label(), "full");
        for spec in ["full:kv_dtype=q4", "full:kv_dtype=f8", "topk:kv_dtype=q8", "topk"] {
            assert!(!of(spec).is_reference(), "{spec}");
        }
        assert_eq!(Role::of_setting("full", "kv_dtype=q4"), Role::Method);
        assert_eq!(Role::of_setting("topk", "k=64,kv_dtype=q4"), Role::Oracle);
        let default = Policy { kv_dtype: PrefixDtype::Q8, ..Policy::default() };
        let under = |spec: &str| configure(&crate::expand_grid(spec).unwrap()[0], &default).unwrap().label();
        assert_eq!(
            ["full", "topk:k=9", "topk:k=9,kv_dtype=model"].map(under),
            ["full:kv_dtype=q8", "topk:k=9,kv_dtype=q8", "topk:k=9"]
        );
        // The run's `kv_dtype` does not apply to a reader.
        assert_eq!(under("minference>topk:k=9"), "minference:k=1024>topk:k=9,kv_dtype=q8");
        let error = configure(&crate::expand_grid("hip:kv_dtype=q4>full").unwrap()[0], &default).unwrap_err();
        assert!(error.what.contains("reads a prompt") && error.hint.is_some());
    }

    #[test]
    fn a_reader_and_a_decoder_have_one_role() {
        let roles = [
            ("full", Role::Reference),
            ("minference>full", Role::Method),
            ("full>quest", Role::Method),
            ("minference>topk", Role::Oracle),
            ("topk:k=8,per=kv_head>quest", Role::Oracle),
            ("a_shape:window=64>random", Role::Floor),
            ("somebody_elses", Role::Method),
        ];
        for (name, role) in roles {
            assert_eq!(Role::of(name), role, "{name}");
        }
    }
}
