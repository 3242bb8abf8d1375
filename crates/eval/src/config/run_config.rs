//! The configuration of a run on one model: [`RunConfig`], resolved from flags over a config file over the defaults.

use std::path::PathBuf;
use std::sync::Arc;

use super::bounds::MOST_VALUES;
use super::flags::with_settings;
use super::kv_tier::{KvMemory, KvTier};
use super::methods::{check_prefill, resolve_methods};
use super::protocol::Protocol;
use super::settings::Settings;
use super::shipped::SHIPPED;
use super::thinking::Thinking;
use super::value::{Given, Item, alternatives, meanings};
use crate::records::timing::Latency;
use spattn_attention::kv::KvDtype;
use spattn_attention::{Configured, LocalLayers};
use spattn_base::error::UsageError;
use spattn_kernels::precision::MatmulPrecision;
use spattn_model::device::Device;
use spattn_tasks::Positions;

/// The conditions of examples besides the methods. Each combination of values is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Variant {
    /// Seed of the examples and of methods with random choices.
    pub seed: u64,
    /// Where sparse attention starts.
    pub protocol: Protocol,
}

/// Makes [`RunConfig`]: fields of its own, and one for each setting that a run is told as it is.
macro_rules! define_run_config {
    ($(
        $(#[doc = $doc:literal])* $(#[serde($($serde:tt)*)])?
        $key:ident: $type:ty $(=> $run:ty = $default:expr)?, $flag:expr;
    )*) => {
        /// Everything about a run on one model that the user decides, checked.
        #[derive(Debug, Clone)]
        pub struct RunConfig {
            /// The settings as resolved, those of other models included; goes into the manifest.
            pub settings: Arc<Settings>,
            /// Model as named.
            pub model: String,
            /// Task names and groups.
            pub tasks: Vec<String>,
            /// Lengths in tokens.
            pub lengths: Vec<usize>,
            /// The lengths that the user named himself: rows of files that are too long are cut to each of them, or, if there
            /// are none, to the model's context.
            pub limits: Vec<usize>,
            /// Methods to run, `full` first unless left out.
            pub methods: Vec<Configured>,
            /// Seeds of the run.
            pub seeds: Vec<u64>,
            /// Where sparse attention starts.
            pub protocols: Vec<Protocol>,
            $($(
                #[doc = concat!("The setting `", stringify!($key), "`, or its default.")]
                pub $key: $run,
            )?)*
        }

        impl RunConfig {
            /// A configuration whose own fields are those of `matrix`, and the others those of the settings.
            fn assemble(settings: Settings, matrix: Matrix) -> Result<Self, UsageError> {
                let Matrix { tasks, lengths, limits, methods, seeds, protocols } = matrix;
                Ok(Self {
                    $($(
                        $key: match &settings.$key {
                            Some(value) => <$run>::from(value.meaning()?),
                            None => $default,
                        },
                    )?)*
                    settings: Arc::new(settings),
                    model: String::new(),
                    tasks,
                    lengths,
                    limits,
                    methods,
                    seeds,
                    protocols,
                })
            }
        }
    };
}

with_settings!(define_run_config);

/// What all combinations are run of, but the models.
struct Matrix {
    tasks: Vec<String>,
    lengths: Vec<usize>,
    limits: Vec<usize>,
    methods: Vec<Configured>,
    seeds: Vec<u64>,
    protocols: Vec<Protocol>,
}

impl Matrix {
    fn resolve(s: &Settings, limits: Vec<usize>) -> Result<Self, UsageError> {
        let protocols = alternatives("sparse_from", s.sparse_from.as_ref(), Given::meant(Protocol::Question))?;
        let protocols = meanings(&protocols)?;
        let methods = resolve_methods(s)?;
        protocols.iter().try_for_each(|protocol| check_prefill(*protocol, &methods))?;
        Ok(Self {
            tasks: s.tasks.clone().unwrap_or_default(),
            lengths: s.lengths.clone().unwrap_or_default(),
            limits,
            methods,
            seeds: alternatives("seed", s.seed.as_ref(), 42)?,
            protocols,
        })
    }
}

impl RunConfig {
    /// Checks settings and adds the program's defaults. Returns a configuration for each model.
    ///
    /// # Errors
    /// With the first fault in the settings.
    pub fn resolve(settings: Settings) -> Result<Vec<Self>, UsageError> {
        settings.check_values().map_err(|wrong| wrong.error)?;
        let limits = settings.lengths.clone().unwrap_or_default();
        let mut s = settings.over_described(Settings::parse(SHIPPED[0].text, SHIPPED[0].name)?);
        // A manifest holds the text of a file, not its name.
        s.system_prompt = s.system_prompt.map(|given| given.meaning()).transpose()?.map(Given::meant);
        let matrix = Matrix::resolve(&s, limits)?;
        let config = Self::assemble(s, matrix)?;
        config.check()?;
        let models = alternatives("model", config.settings.model.as_ref(), "builtin".to_owned())?;
        let variants = config.seeds.len().saturating_mul(config.protocols.len());
        if models.len().saturating_mul(variants) > MOST_VALUES {
            let (models, seeds, protocols) = (models.len(), config.seeds.len(), config.protocols.len());
            let what = format!("{models} models, {seeds} seeds and {protocols} protocols were asked for");
            let hint = format!("a run has {MOST_VALUES} combinations of them at most: split it into several runs");
            return Err(UsageError::new(what).hint(hint));
        }
        Ok(models.into_iter().map(|model| Self { model, ..config.clone() }).collect())
    }

    /// As [`resolve`](Self::resolve), for settings with a single value of everything that `spattn eval` takes once.
    ///
    /// # Errors
    /// As [`RunConfig::resolve`]; if there are several values.
    pub fn resolve_single(settings: Settings) -> Result<Self, UsageError> {
        let mut configs = Self::resolve(settings)?;
        match configs[0].settings.key_of_several() {
            None => Ok(configs.swap_remove(0)),
            Some(key) => Err(UsageError::new(format!("`{key}` has several values"))
                .hint("`spattn sweep CONFIG` runs a matrix of them; `spattn eval` takes one")),
        }
    }

    /// The conditions of every example: all combinations of seed and protocol.
    pub fn variants(&self) -> Vec<Variant> {
        let of_seed = |&seed: &u64| self.protocols.iter().map(move |&protocol| Variant { seed, protocol });
        self.seeds.iter().flat_map(of_seed).collect()
    }

    /// Texts that end an answer, beside those of the task.
    pub fn stop_texts(&self) -> &[String] {
        self.settings.stop.as_deref().unwrap_or_default()
    }

    /// Tokens that the thought before an answer may have; 0 without one.
    pub fn thought_tokens(&self) -> usize {
        match self.thinking {
            Thinking::On => self.thinking_tokens,
            Thinking::Off => 0,
        }
    }

    /// Refuses settings of sampling and thinking that would change nothing.
    fn check_generation(&self) -> Result<(), UsageError> {
        let is_greedy = self.temperature == 0.0;
        if is_greedy && self.repeats > 1 {
            let what = format!("{} repeats of a greedy answer are all the same", self.repeats);
            return Err(UsageError::new(what).hint("add --temperature 0.6, or leave --repeats out"));
        }
        if is_greedy && self.top_p < 1.0 {
            let what = format!("`top_p` {} changes nothing where answers are greedy", self.top_p);
            return Err(UsageError::new(what).hint("add --temperature 0.6, or leave --top-p out"));
        }
        if self.thinking == Thinking::On && !self.chat {
            return Err(UsageError::new("`thinking` is told to the chat template, which is not to be used")
                .hint("leave out --thinking, or --no-chat (`chat = false`)"));
        }
        if self.thinking == Thinking::Off && self.settings.thinking_tokens.is_some() {
            return Err(UsageError::new("`thinking_tokens` is given, and the model is not to think")
                .hint("add --thinking on, or leave --thinking-tokens out"));
        }
        Ok(())
    }

    /// Bytes of GPU memory in which each setting keeps tokens that it has fetched from host memory; `None` if it keeps none.
    pub fn gpu_cache(&self) -> Option<usize> {
        (self.kv_tier == KvTier::Host && self.settings.kv_memory.is_some()).then_some(self.kv_memory.0)
    }

    /// Refuses tiers that are not there.
    fn check_kv_tier(&self) -> Result<(), UsageError> {
        if self.kv_tier == KvTier::Memory && self.settings.kv_memory.is_some() {
            return Err(UsageError::new("`kv_memory` is given, and the KV cache is kept in memory")
                .hint("add --kv-tier disk (host on a GPU), or leave --kv-memory out"));
        }
        if self.kv_tier == KvTier::Disk && self.device != Device::Cpu {
            let what = "`kv_tier = \"disk\"` applies to a CPU only so far, and this run uses a GPU";
            return Err(UsageError::new(what).hint(
                "leave --kv-tier out: a GPU keeps the KV cache in its own memory; or keep it in the host's: --kv-tier host",
            ));
        }
        if self.kv_tier == KvTier::Host && self.device == Device::Cpu {
            let what = "`kv_tier = \"host\"` applies to a GPU, and this run uses a CPU, whose memory is the host's";
            return Err(UsageError::new(what).hint("leave --kv-tier out, or keep the KV cache on disk: --kv-tier disk"));
        }
        self.check_offloading()?;
        let on_host = |method: &&Configured| method.method.attends_on_host();
        match self.methods.iter().find(on_host) {
            Some(method) if self.kv_tier != KvTier::Host && self.device != Device::Cpu => {
                let what = format!(
                    "method `{}` attends on the host, and the GPU of this run keeps keys and values in its own memory",
                    method.label()
                );
                Err(UsageError::new(what).hint("keep them in the host's: --kv-tier host; or leave attend_on out"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses methods that keep tokens on a GPU if the GPU of the run has no room for them, or no need.
    fn check_offloading(&self) -> Result<(), UsageError> {
        let has_caches = self.device == Device::Cpu || self.gpu_cache().is_some();
        let offloads = |method: &&Configured| method.method.offloads();
        match self.methods.iter().flat_map(Configured::parts).find(offloads) {
            Some(method) if !has_caches => {
                let what = format!(
                    "method `{}` keeps keys and values in host memory and some of them in caches of the GPU, and the GPU of this run has none",
                    method.label()
                );
                Err(UsageError::new(what).hint("add --kv-tier host --kv-memory 2G, or leave offload out"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses quantised keys and values where they cannot be stored yet.
    fn check_kv_dtype(&self) -> Result<(), UsageError> {
        let Some(method) = self.methods.iter().find(|method| !method.policy.kv_dtype.is_exact()) else { return Ok(()) };
        let refused = |where_to: &str, hint: &str| {
            let (label, dtype) = (method.label(), method.policy.kv_dtype);
            let what =
                format!("method `{label}` has `kv_dtype={dtype}`, and {where_to} holds no quantised KV cache yet");
            Err(UsageError::new(what).hint(hint))
        };
        if self.device != Device::Cpu {
            return refused("a GPU", "use --device cpu, or leave kv_dtype (--kv-dtype) out");
        }
        if self.kv_tier == KvTier::Disk {
            return refused("a disk", "leave out --kv-tier disk, or kv_dtype (--kv-dtype)");
        }
        Ok(())
    }

    fn check(&self) -> Result<(), UsageError> {
        self.check_generation()?;
        self.check_kv_tier()?;
        self.check_kv_dtype()?;
        if self.tasks.is_empty() {
            return Err(UsageError::new("no task was given").hint("for example --task ruler/niah_single_1"));
        }
        if self.system_prompt.is_some() && !self.chat {
            return Err(UsageError::new("a system prompt needs the chat template, which is turned off")
                .hint("leave out --system-prompt, or --no-chat (`chat = false`)"));
        }
        if self.matmul_precision != MatmulPrecision::F32 && self.device != Device::Cpu {
            return Err(UsageError::new("`matmul_precision` applies to a CPU only, and this run uses a GPU")
                .hint("leave it out: a GPU multiplies weights and activations in the storage type, see --dtype"));
        }
        if self.latency == Latency::Solo && self.device.copies_per_gpu() > 1 {
            let what = format!(
                "`latency = \"solo\"` times a method alone, and `{}` runs several copies on a GPU",
                self.device
            );
            return Err(UsageError::new(what).hint("write --device cuda:all, or leave --latency out"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn resolve(text: &str) -> Result<RunConfig, UsageError> {
        RunConfig::resolve_single(Settings::parse(text, "test.toml")?)
    }

    fn labels(config: &RunConfig) -> Vec<String> {
        config.methods.iter().map(Configured::label).collect()
    }

    #[test]
    fn every_shipped_config_resolves_and_says_what_it_is_for() {
        for shipped in SHIPPED {
            let settings = Settings::load(shipped.name).unwrap();
            assert!(settings.about.is_some(), "{}", shipped.name);
            assert_eq!(RunConfig::resolve(settings).unwrap()[0].methods[0].name, "full");
        }
    }

    #[test]
    fn a_gpu_lets_the_host_attend_what_is_in_its_memory_alone() {
        let text = "tasks = ['ruler/vt']\nlengths = [1024]\nmethods = ['topk', 'magicpig:K=8,L=20,attend_on=host']";
        let mut config = resolve(text).unwrap();
        config.check_kv_tier().unwrap();
        config.device = Device::cuda(0);
        let refused = config.check_kv_tier().unwrap_err();
        assert!(refused.to_string().contains("`magicpig:K=8,L=20,attend_on=host` attends on the host"), "{refused}");
        assert!(refused.hint.is_some_and(|hint| hint.contains("--kv-tier host")));
        config.kv_tier = KvTier::Host;
        config.check_kv_tier().unwrap();
    }

    #[test]
    fn a_gpu_offloads_with_caches_alone() {
        // A config is checked for the CPU, so it is parsed with the tier `disk`.
        let text = "tasks = ['ruler/vt']\nlengths = [1024]\nmethods = ['hip:k=64', 'hip:k=32,offload=true']";
        let with = |more: &str, tier: KvTier| {
            let mut config = resolve(&format!("{text}\n{more}")).unwrap();
            (config.device, config.kv_tier) = (Device::cuda(0), tier);
            config.check_kv_tier()
        };
        resolve(text).unwrap();
        for (tier, more) in [(KvTier::Memory, ""), (KvTier::Host, "")] {
            let refused = with(more, tier).unwrap_err();
            assert!(refused.what.contains("offload=true` keeps keys and values in host memory"), "{refused}");
            assert!(refused.hint.is_some_and(|hint| hint.contains("--kv-tier host --kv-memory")));
        }
        with("kv_tier = 'disk'\nkv_memory = '64M'", KvTier::Host).unwrap();
    }

    #[test]
    fn a_gpu_refuses_quantised_caches() {
        let text = "tasks = ['ruler/vt']\nlengths = [1024]\nmethods = ['topk', 'topk:kv_dtype=q4']";
        let mut config = resolve(text).unwrap();
        config.check_kv_dtype().unwrap();
        config.device = Device::cuda(0);
        let refused = config.check_kv_dtype().unwrap_err().to_string();
        assert!(refused.contains("`kv_dtype=q4`, and a GPU holds no quantised KV cache yet"), "{refused}");
        config.methods.retain(|method| method.policy.kv_dtype.is_exact());
        config.check_kv_dtype().unwrap();
    }

    #[test]
    fn a_method_is_not_timed_alone_on_a_gpu_that_copies_share() {
        use spattn_model::device::CopiesPerGpu;
        let mut config = resolve("tasks = ['ruler/vt']\nlengths = [1024]\nlatency = 'solo'").unwrap();
        config.device = Device::EachGpu(CopiesPerGpu::ONE);
        assert_eq!(config.check(), Ok(()));
        config.device = Device::EachGpu(CopiesPerGpu::new(4).unwrap());
        let error = config.check().unwrap_err();
        assert!(error.what.contains("cuda:all:4") && error.hint.unwrap().contains("cuda:all"), "{}", error.what);
    }

    #[test]
    fn shipped_configs_say_how_many_methods_they_have() {
        let mut counted = 0;
        for shipped in SHIPPED {
            let settings = Settings::load(shipped.name).unwrap();
            let about = settings.about.clone().unwrap();
            let config = RunConfig::resolve(settings).unwrap().remove(0);
            let sparse: BTreeSet<&str> =
                config.methods.iter().map(|m| m.name.as_str()).filter(|name| *name != "full").collect();
            let (before, said) = match about.split_once(" methods ") {
                Some((before, _)) => (before, before.rsplit(' ').next().unwrap()),
                None => (about.as_str(), ""),
            };
            assert!(!before.contains("very method"), "{}: say how many", shipped.name);
            if let Ok(said) = said.parse::<usize>() {
                assert_eq!(said, sparse.len(), "{}: {about}", shipped.name);
                counted += 1;
            }
        }
        assert_eq!(counted, 3, "`methods`, `budgets` and `parity` give a number");
    }

    #[test]
    fn settings_of_generation_that_change_nothing_are_refused() {
        for (text, what) in [
            ("repeats = 3", "3 repeats of a greedy answer"),
            ("top_p = 0.9", "`top_p` 0.9 changes nothing"),
            ("thinking = 'on'\nchat = false", "`thinking` is told to the chat template"),
            ("thinking_tokens = 100", "the model is not to think"),
        ] {
            assert!(resolve(text).unwrap_err().what.contains(what), "{text}");
        }
        let sampled = resolve("temperature = 1\ntop_p = 0.9\nrepeats = 3\nthinking = 'on'\nstop = ['#']").unwrap();
        let values = (sampled.temperature, sampled.top_p, sampled.repeats, sampled.thought_tokens());
        assert_eq!((values, sampled.stop_texts()), ((1.0, 0.9, 3, 4096), &["#".to_owned()][..]));
    }

    #[test]
    fn grids_multiply_and_repeated_methods_run_once() {
        let c = resolve("methods = ['topk:k={16,64}', 'topk:k=64', 'full']").unwrap();
        assert_eq!(labels(&c), ["full", "topk:k=16", "topk:k=64"]);
    }

    #[test]
    fn several_values_make_a_matrix() {
        let text = "model = ['builtin', 'x/y']\nseed = [1, 2, 1]\nsparse_from = ['question', 'decode']\n\
                    methods = ['topk:k=16', 'quest:sink=8']\nsink = [4, 16]\ndense_layers = ['none', '0+1']";
        let configs = RunConfig::resolve(Settings::parse(text, "test.toml").unwrap()).unwrap();
        assert_eq!(configs.iter().map(|c| c.model.as_str()).collect::<Vec<_>>(), ["builtin", "x/y"]);
        let variants: Vec<_> = configs[0].variants().iter().map(|v| (v.seed, v.protocol.to_string())).collect();
        let expected = [(1, "question"), (1, "decode"), (2, "question"), (2, "decode")];
        assert_eq!(variants, expected.map(|(seed, protocol)| (seed, protocol.to_owned())));
        let topk = labels(&configs[0]).into_iter().filter(|l| l.starts_with("topk")).collect::<Vec<_>>();
        let expected =
            ["topk:k=16", "topk:k=16,sink=16", "topk:k=16,dense_layers=0+1", "topk:k=16,sink=16,dense_layers=0+1"];
        assert_eq!(topk, expected);
        let of_its_own = labels(&configs[0]).iter().filter(|l| l.starts_with("quest")).count();
        assert_eq!(of_its_own, 2, "what a method says itself is not multiplied: {:?}", labels(&configs[0]));
        assert_eq!(labels(&configs[0]).iter().filter(|l| *l == "full").count(), 1);
    }

    #[test]
    fn an_evaluation_takes_one_value_and_a_matrix_at_least_one() {
        for key in ["seed = [1, 2]", "sparse_from = ['question', 'decode']", "sink = [4, 8]", "model = ['a/b', 'c/d']"]
        {
            let e = resolve(key).unwrap_err();
            assert!(e.what.contains("several values") && e.hint.unwrap().contains("spattn sweep"), "{key}");
        }
        assert_eq!(resolve("seed = [7]").unwrap().seeds, [7]);
        assert!(resolve("seed = []").unwrap_err().what.contains("`seed` has no value"));
        let e = resolve("samples = 3\nseed = 'x'").unwrap_err();
        assert_eq!(e.what, "test.toml:2: `seed`: invalid type: string \"x\", expected a whole number");
        let e = resolve("methods = ['topk:k=1..10', 'topk:k=1..5000', 'quest:k=1..5000']").unwrap_err();
        assert!(e.what.starts_with("10011 methods") && e.hint.unwrap().contains("10000 at most"), "{}", e.what);
    }

    #[test]
    fn a_run_has_so_many_methods_at_most() {
        let list = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
        let under = |sinks, locals| {
            let text = format!("methods = []\nsink = [{}]\nlocal = [{}]", list(sinks), list(locals));
            RunConfig::resolve(Settings::parse(&text, "test.toml").unwrap())
        };
        assert_eq!(under(100, 100).unwrap()[0].methods.len(), 1, "`full` is the same under every policy");
        assert!(under(100, 101).unwrap_err().what.starts_with("10100 combinations of `sink`"));
        assert_eq!(resolve("methods = ['topk:k=1..9999']").unwrap().methods.len(), 10_000);
        assert!(resolve("methods = ['topk:k=1..10000']").unwrap_err().what.starts_with("10001 methods"));
    }

    #[test]
    fn a_run_has_a_task() {
        assert_eq!(resolve("tasks = []").unwrap_err().what, "no task was given");
        assert_eq!(resolve("tasks = ['ruler/vt']").unwrap().tasks, ["ruler/vt"]);
    }

    #[test]
    fn mistakes_name_the_file_and_line() {
        let e = resolve("samples = 3\nlenghts = [1]").unwrap_err();
        assert_eq!(e.what, "test.toml:2: unknown key `lenghts`");
        assert_eq!(e.hint.unwrap(), "did you mean `lengths`?");
        assert!(resolve("lengths = 4096").unwrap_err().what.ends_with("integer `4096`, expected a list, in brackets"));
        assert!(resolve("lengths = ['4k']").unwrap_err().what.ends_with("string \"4k\", expected a whole number"));
        assert!(resolve("samples = 0").unwrap_err().what.contains("0 samples"));
        assert!(resolve("dtype = 'f64'").unwrap_err().what.contains("f64"));
        assert!(resolve("no_full = true\nmethods = []").unwrap_err().what.contains("no method"));
    }

    #[test]
    fn sparse_prefill_needs_a_pattern() {
        for method in ["snapkv", "topp:density=0.1"] {
            let e = resolve(&format!("sparse_from = 'prefill'\nmethods = ['{method}']")).unwrap_err();
            assert!(e.what.contains(method) && e.what.contains("prefill pattern"), "{e:?}");
        }
        for method in ["topk", "hip>snapkv", "full>snapkv", "quest>full"] {
            assert!(resolve(&format!("sparse_from = 'prefill'\nmethods = ['{method}']")).is_ok(), "{method}");
            if method.contains('>') {
                let e = resolve(&format!("sparse_from = 'decode'\nmethods = ['{method}']")).unwrap_err();
                assert!(e.what.contains("names a prefill method") && e.hint.is_some(), "{e:?}");
            }
        }
        assert!(resolve("sparse_from = 'prefill'\nmethods = []").is_ok());
    }

    #[test]
    fn what_decodes_densely_is_refused_where_prompts_are_read_densely() {
        for sparse_from in ["decode", "question", "last:5"] {
            let e = resolve(&format!("sparse_from = '{sparse_from}'\nmethods = ['vertical_slash']")).unwrap_err();
            assert!(e.what.contains("`vertical_slash:") && e.what.ends_with(&format!("--sparse-from {sparse_from}")));
            assert!(e.hint.unwrap().contains("--sparse-from prefill"));
        }
        assert!(resolve("sparse_from = 'prefill'\nmethods = ['vertical_slash']").is_ok());
        let both = Settings::parse("sparse_from = ['prefill', 'decode']\nmethods = ['vertical_slash']", "test.toml");
        assert!(RunConfig::resolve(both.unwrap()).unwrap_err().what.contains("--sparse-from decode"));
    }
}
