//! The table of flags: a row says all that is known of a flag of `eval` and `sweep`, or of the key of a config that says the same.
//!
//! A row has, in this order:
//!
//! * its help, of which the last paragraph is an example;
//! * `#[serde(...)]`, where the key is not written as types of its kind are;
//! * its key, and the type of the values: `OneOrMany` where a sweep takes several and `eval` one, `Given` for a text that
//!   means something, which is read once;
//! * after `=>`, of a setting that a run is told as it is: the type of the field of
//!   [`RunConfig`](super::run_config::RunConfig), and its value where neither flags nor configs say one;
//! * a [`Flag`](super::flag::Flag): name, letter, value in help, bounds, and the field of a run's identity that it decides.
//!
//! All lists are made from the rows: `eval --help` and completions, [`Settings`](super::settings::Settings) with its keys,
//! checks and layers, the fields of `RunConfig`, the tables of `docs/settings.md`, and a table of wrong inputs. Rows stand in the
//! order in which manifests list them; `.after(...)` moves a flag to another place in help.
//!
//! The table is a macro that hands its rows to another, the maker of a list: names in rows are resolved where the maker is.

/// Hands the rows of settings, flags that are keys of configs as well, to the macro `$make`.
macro_rules! with_settings {
    ($make:ident) => {
        $make! {
            /// Purpose of the config, in one line
            about: String,
                Flag::key_only().anything();

            /// Model: builtin, a folder, a GGUF file, or a hub id; a sweep takes several
            ///
            /// Example: --model meta-llama/Llama-3.2-1B@main, --model ./checkpoint
            model: OneOrMany<String>,
                Flag::value("model", "builtin|DIR|HUB_ID[@REV]").texts("./checkpoint", &[""]).identity("model");

            /// Tasks or groups; may be repeated
            ///
            /// Example: --task ruler/vt,ruler/cwe --task jsonl:niah.jsonl, --task ruler
            tasks: Vec<String>,
                Flag::value("task", "TASK,...").short('t').texts("ruler/vt", &["zzz", ""]);

            /// Lengths in tokens, prompt and answer together; may be repeated. LongBench's prompts are cut to the length instead, before the
            /// chat template is applied (to the model's context if no length is given)
            ///
            /// Example: --length 4096,16K (of 1,024 tokens)
            lengths: Vec<usize>,
                Flag::value("length", "N,...").short('l').commas().tokens(1, MOST_TOKENS).refused_with(not_a_length);

            /// Method with parameters, grids {a,b} and ranges a..b/step; may be repeated
            ///
            /// Example: -m 'topk:k={16,64}' -m quest:page=16,ratio=0.05. `full` always runs as the reference.
            methods: Vec<String>,
                Flag::value("method", "SPEC").short('m').texts("topk:k=16", &["zzz", "topk:k=x"]).checked(check_method);

            /// Examples for each task and length, and for each depth of tasks that have depths
            ///
            /// Example: --samples 100
            samples: usize => usize = 10,
                Flag::value("samples", "N").short('n').whole(1, MOST_SAMPLES).refused_with(not_so_many_samples);

            /// Seed of the examples and of methods that use random numbers; a sweep takes several
            ///
            /// Example: --seed 7
            seed: OneOrMany<u64>,
                Flag::value("seed", "S,...").commas().seed().identity("seed");

            /// Where sparse attention starts: decode (generated tokens only), question, last:N prompt tokens, or prefill; a
            /// sweep takes several
            ///
            /// Example: --sparse-from last:32
            sparse_from: OneOrMany<Given<Protocol>>,
                Flag::value("sparse-from", "WHERE,...").commas().texts("last:32", &["zzz", "last:0", "last:16777217"]).identity("protocol");

            /// Attention sink: number of first tokens that every method attends; a sweep takes several
            ///
            /// Example: --sink 4
            sink: OneOrMany<usize>,
                Flag::value("sink", "N,...").commas().whole(0, MOST_TOKENS).refused_with(not_so_many_static_tokens);

            /// Recent window: number of last tokens of the prefix that every method attends; a sweep takes several
            ///
            /// Example: --local 64
            local: OneOrMany<usize>,
                Flag::value("local", "N,...").commas().whole(0, MOST_TOKENS).refused_with(not_so_many_static_tokens);

            /// Layers with dense attention: none, layers, spans, or shares of the depth; a sweep takes several
            ///
            /// Example: --dense-layers 0,1 or --dense-layers 0+50%
            dense_layers: OneOrMany<Given<DenseLayers>>,
                Flag::value("dense-layers", "LIST").texts("0+50%", &["zzz", "3-1"]);

            /// Methods in layers with a sliding window: dense (methods do not apply) or sparse (methods select within the window); for models
            /// with such layers
            ///
            /// By default, sliding layers attend all of their window under every method. With sparse, a method also selects among the tokens
            /// of the window in decode steps; a prefill with a mask attends all of it.
            ///
            /// Example: --local-layers sparse
            local_layers: LocalLayers => LocalLayers = LocalLayers::Dense,
                Flag::value("local-layers", "WHAT").texts("sparse", &["zzz"]).identity("local_layers");

            /// How question and generated tokens are attended: exact (all, beside the budget), window:N (the last N) or indexed (within the
            /// budget); a sweep takes several
            ///
            /// exact: all of them are attended, and do not count towards the budget. window:N: the last N are attended; older ones are selected
            /// or not, as the tokens of the context. indexed: window:N with N from --local. Some methods have a rule of their own for generated
            /// tokens and keep it (`spattn list methods NAME`).
            ///
            /// Example: --tail indexed
            tail: OneOrMany<Given<Tail>>,
                Flag::value("tail", "RULE,...").commas().texts("indexed", &["zzz", "window:0", "window:16777217"]);

            /// How keys and values of the prefix are stored: model (as computed), or quantised when the prefix is finished: f8, q8, q4, q2; a sweep
            /// takes several
            ///
            /// f8: 8-bit floats with one scale for each KV head. q8, q4, q2: codes of 8, 4 or 2 bits, of keys by channel and of values by token, in
            /// groups of 32, as in KIVI. Prefill, question and generated tokens stay exact, and so does `full`, the reference. A method may
            /// have its own: -m topk:kv_dtype=q4. For runs on the CPU.
            ///
            /// Example: --kv-dtype q4
            kv_dtype: OneOrMany<Given<PrefixDtype>>,
                Flag::value("kv-dtype", "TYPE,...").commas().texts("q4", &["zzz", "int4", ""]);

            /// Compare every decode step with exact attention: output error and top-k recall, by layer
            ///
            /// Example: --fidelity (slower: exact attention is computed beside each method)
            fidelity: bool => bool = false,
                Flag::switch("fidelity").identity("fidelity");

            /// How to time steps: shared (fast, but not a latency) or solo (each method alone: a real latency, slower)
            ///
            /// shared: all methods take a step together, and each gets its share of the time. solo: after each example, up to 16 decode steps of
            /// each method are run again, one method at a time on all threads, in five turns. Tables and figures show latencies of solo only.
            /// Predictions, scores and costs are the same either way.
            ///
            /// Example: --latency solo
            latency: Latency => Latency = Latency::Shared,
                Flag::value("latency", "HOW").texts("solo", &["zzz"]).identity("latency");

            /// Storage type of weights, keys and values: f32, bf16 or f16 (arithmetic is f32); the checkpoint's own if not given. Files of quantised weights name none: f32 on a CPU, bf16 on a GPU
            ///
            /// Example: --dtype f32
            dtype: Given<KvDtype> => Option<KvDtype> = None,
                Flag::value("dtype", "TYPE").texts("f16", &["int8", ""]).identity("dtype");

            /// Convert quantised weights to --dtype when they are loaded, instead of keeping them in their blocks
            ///
            /// Kept, they take the memory of their file, and a decode step reads no more. With --matmul-precision bf16 they are converted
            /// in any case.
            ///
            /// Example: --model model-Q4_K_M.gguf --dequantise
            dequantise: bool => bool = false,
                Flag::switch("dequantise").identity("dequantise");

            /// Precision of the factors of matrix products on a CPU, in layers and in the attention of prefill: f32 (no rounding) or bf16, which
            /// is faster on CPUs with AMX or AVX512_BF16; f32 if not given
            ///
            /// Example: --matmul-precision bf16
            matmul_precision: Given<MatmulPrecision> => MatmulPrecision = MatmulPrecision::F32,
                Flag::value("matmul-precision", "TYPE").texts("bf16", &["f16", ""]).identity("matmul_precision");

            /// Where the KV cache of each prefix is kept: memory, disk (a file in the run's folder, of which pages of --kv-memory bytes are in
            /// memory), or host (the host's memory, which a GPU reads over the bus; it keeps tokens in --kv-memory bytes of its own, if given)
            ///
            /// Predictions, scores and costs are those of memory; the bytes that steps fetch are counted as well. Prompts may then be longer
            /// than memory has room for; reading them takes longer. disk is for runs on the CPU, host for runs on GPUs.
            ///
            /// Example: --kv-tier disk --kv-memory 64M
            kv_tier: KvTier => KvTier = KvTier::Memory,
                Flag::value("kv-tier", "TIER").texts("disk", &["zzz", "device"]).identity("kv_tier");

            /// Memory for pages of a KV cache that is kept on disk, in bytes (K, M, G: of 1,024), 256M if not given; with --kv-tier host, the memory
            /// of GPUs in which each setting keeps tokens that it has fetched, none if not given
            ///
            /// Indexes of methods, question and generated tokens, and one layer of a prompt while it is read take memory beside it.
            ///
            /// Example: --kv-tier disk --kv-memory 64M
            kv_memory: Given<KvMemory> => KvMemory = KvMemory::DEFAULT,
                Flag::value("kv-memory", "SIZE").texts("96M", &["", "x", "64", "-1M", "1.5G"]).identity("kv_memory");

            /// Where to compute: cpu, a GPU, several GPUs that divide the model's layers, or all GPUs, each with a copy of the model (in builds
            /// with the feature `cuda`)
            ///
            /// With cuda:0,1 each GPU holds consecutive layers with their keys and values, as many as its free memory has room for. With
            /// cuda:all each GPU holds the whole model, and they run examples side by side; a model that does not fit one GPU is refused.
            /// With cuda:all:4 each GPU runs four copies, which share weights: small models are evaluated faster. Records are those of one GPU.
            ///
            /// Example: --device cpu, --device cuda:1, --device cuda:0,1, --device cuda:all, --device cuda:all:4
            device: Given<Device> => Device = Device::Cpu,
                Flag::value("device", "cpu|cuda[:i,...|:all[:copies]]")
                    .texts("cuda:0,1", &["tpu", "cuda:x", "cuda:", "cuda:0,0", "cuda:0,all", "cuda:all:0"])
                    .after("latency")
                    .identity("engine");

            /// Folder, or data set on the hub, with the files of tasks: essays, word lists, SQuAD and HotpotQA for RULER, LongBench's files
            ///
            /// Example: --data data (holding PaulGrahamEssays.json, squad/dev-v2.0.json, longbench/hotpotqa.jsonl ...),
            /// --data hub:zai-org/LongBench
            #[serde(serialize_with = "as_shown")]
            data: PathBuf => Option<PathBuf> = None,
                Flag::value("data", "DIR|hub:HUB_ID[@REV]").texts("hub:zai-org/LongBench", &["nowhere", ""]).identity("data");

            /// Folder with the output of `spattn calibrate`; `calibration` in the model's folder if not given
            ///
            /// Example: --calibration qwen-calibration
            #[serde(serialize_with = "as_shown")]
            calibration: PathBuf => Option<PathBuf> = None,
                Flag::value("calibration", "DIR").anything();

            /// Placement of needles and answers in generated examples: varied, or published (RULER's fixed shuffles)
            ///
            /// Example: --positions published
            positions: Positions => Positions = Positions::Varied,
                Flag::value("positions", "HOW").texts("published", &["zzz"]).identity("positions");

            /// Give the model plain text, even if it has a chat template
            ///
            /// Example: --model meta-llama/Llama-3.2-1B --no-chat
            chat: bool => bool = true,
                Flag::switch_off("no-chat").identity("chat_template");

            /// System prompt for the model's chat template: a text, or @FILE to read it from a file
            ///
            /// Tasks whose prompts are published as plain text use neither system prompt nor chat template.
            ///
            /// Example: --system-prompt 'Answer in one word.', --system-prompt @system.txt
            system_prompt: Given<SystemPrompt> => Option<String> = None,
                Flag::value("system-prompt", "TEXT|@FILE").texts("Be brief.", &["", "@nowhere"]).identity("system_prompt");

            /// Whether the model thinks before it answers: on or off
            ///
            /// The chat template is told as `enable_thinking`. With on, a model may generate --thinking-tokens more, and its answer is
            /// what follows the last `</think>`; records keep the thought as well. Tasks whose prompts are published as plain text are
            /// asked without thinking.
            ///
            /// Example: --model Qwen/Qwen3-8B --thinking on
            thinking: Thinking => Thinking = Thinking::Off,
                Flag::value("thinking", "on|off").texts("on", &["zzz", "yes"]).identity("thinking");

            /// Tokens that a model may generate with --thinking on, beside those of the answer; they are not part of --length
            ///
            /// Example: --thinking on --thinking-tokens 8K
            thinking_tokens: usize => usize = 4096,
                Flag::value("thinking-tokens", "N").tokens(1, MOST_TOKENS).identity("thinking_tokens");

            /// Temperature of sampling; 0 takes the likeliest token each time
            ///
            /// Draws depend on the seed, the example, the repeat and the place in the answer, and not on the method: methods with
            /// equal logits give equal answers.
            ///
            /// Example: --temperature 0.6 --top-p 0.95 --repeats 5
            temperature: f64 => f64 = 0.0,
                Flag::value("temperature", "T").decimal(0.0, 100.0).identity("temperature");

            /// Share of the probability from which tokens are sampled: the likeliest that together have it
            ///
            /// Example: --temperature 0.6 --top-p 0.95
            top_p: f64 => f64 = 1.0,
                Flag::value("top-p", "P").decimal(0.001, 1.0).identity("top_p");

            /// Answers to each example, each with draws of its own; scores are means over them
            ///
            /// Example: --temperature 0.6 --repeats 5
            repeats: usize => usize = 1,
                Flag::value("repeats", "K").whole(1, MOST_REPEATS).identity("repeats");

            /// Text that ends an answer where it occurs, beside those of the task; may be repeated
            ///
            /// Example: --stop '###' --stop 'Question:'
            stop: Vec<String>,
                Flag::value("stop", "TEXT").texts("###", &[""]).checked(check_stop).identity("stop");

            /// Leave out `full`, the dense reference
            ///
            /// Example: -m topk:k=64 --no-full
            no_full: bool,
                Flag::switch("no-full").after("methods");

            /// Allow lengths beyond the model's context
            ///
            /// Example: --length 65536 --allow-extrapolation
            allow_extrapolation: bool => bool = false,
                Flag::switch("allow-extrapolation");

            /// Skip rows of files that are malformed or that the model cannot read, instead of stopping; a note gives their number and lines
            ///
            /// Example: --task jsonl:rows.jsonl --skip-bad
            skip_bad: bool => bool = false,
                Flag::switch("skip-bad");

            /// Store each example's prompt, compressed, in the folder's prompts/; the HTML page shows it on demand
            ///
            /// Example: --out run --keep-prompts, then zcat run/prompts/*
            keep_prompts: bool => bool = false,
                Flag::switch("keep-prompts");

            /// Write nothing that names the user: no command line, host, job or system prompt, and of paths only the last part
            ///
            /// docs/privacy.md lists what is written with and without this flag. A run is resumed with it or without it, as it began.
            ///
            /// Example: spattn eval --model ~/models/qwen --anonymous --out run
            #[serde(skip_serializing_if = "Option::is_none")]
            anonymous: bool => bool = false,
                Flag::switch("anonymous");
        }
    };
}

/// Hands the rows of flags that are no settings to the macro `$make`: they say how to run, not what.
#[macro_export]
macro_rules! with_run_flags {
    ($make:ident) => {
        $make! {
            /// Model of a given shape with random weights, as --model random:SHAPE; for latency and memory, because scores are meaningless
            ///
            /// Example: --random-weights llama-3.1-8b, --random-weights my/config.json
            random_weights: String,
                Flag::value("random-weights", "SHAPE|CONFIG").texts("llama-3.1-8b", &["zzz"]).conflicts_with("model").after("model");

            /// Threads to use; all cores if not given
            ///
            /// Example: --threads 4
            threads: usize,
                Flag::value("threads", "N").threads().after("matmul_precision");

            /// Folder for records, tables and plots; results/TIME if not given
            ///
            /// Example: --out results/qwen-4k
            out: PathBuf,
                Flag::value("out", "DIR").short('o').anything().after("threads");

            /// Resume the run in --out and keep its records
            ///
            /// Example: --out results/qwen-4k --resume
            resume: bool,
                Flag::switch("resume").conflicts_with("overwrite").after("out");

            /// Delete the records in --out and start again
            ///
            /// Example: --out results/qwen-4k --overwrite
            overwrite: bool,
                Flag::switch("overwrite").after("resume");

            /// Run one shard of the examples: I of N, counted from 1; all shards are about equal work
            ///
            /// Example: --shard 1/4
            shard: String,
                Flag::value("shard", "I/N").texts("1/4", &["0/4", "5/4", "zzz"]).after("overwrite");

            /// Loss in points that counts as none in the verdict (percent for perplexities); the command then succeeds (status 0) only if a
            /// method is shown to lose no more, and ends with status 3 otherwise
            ///
            /// Oracles and floors do not count. Without this flag the verdict takes 1 point, and the status says nothing of it.
            ///
            /// Example: spattn eval -m quest:density=0.2 -n 400 --safe-within 1
            safe_within: f64,
                Flag::value("safe-within", "POINTS").decimal(0.01, 100.0).after("shard");

            /// Probability that all verdicts of a table are right; 0.95 if not given
            ///
            /// Example: --safe-within 2 --confidence 0.9
            confidence: f64,
                Flag::value("confidence", "P").decimal(0.5, 0.9999).after("safe_within");

            /// Add examples until each verdict is told, or --max-samples or --max-time is reached; -n is the number at the first look
            ///
            /// The verdict then takes bounds that hold however often one looks, which need more examples than a run of a fixed number.
            /// Records are those of a run with so many examples from the start. For `spattn eval`, and tasks with scores.
            ///
            /// Example: spattn eval -m quest:density=0.2 --safe-within 2 --until-certain --max-time 30m
            until_certain: bool,
                Flag::switch("until-certain").after("confidence");

            /// Most examples of each task and length with --until-certain
            ///
            /// Example: --until-certain --max-samples 400
            max_samples: usize,
                Flag::value("max-samples", "N").whole(1, MOST_SAMPLES).after("until_certain");

            /// Time after which --until-certain adds no more examples: seconds, minutes or hours
            ///
            /// Example: --until-certain --max-time 30m
            max_time: String,
                Flag::value("max-time", "TIME").texts("30m", &["0", "30", "x", ""]).after("max_samples");

            /// Show no progress
            ///
            /// Example: --quiet
            quiet: bool,
                Flag::switch("quiet").short('q');

            /// Print the summary as JSON instead of a table
            ///
            /// Example: spattn eval --json | jq '.[].score'
            json: bool,
                Flag::switch("json");
        }
    };
}

pub(super) use with_settings;
