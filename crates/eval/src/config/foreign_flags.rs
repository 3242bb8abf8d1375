//! Flags and commands of other programs with their equivalents here: the table behind `docs/coming-from.md`.
//!
//! A row has the spellings of a flag in other programs (lm-evaluation-harness, kvpress, HELMET, llama.cpp, vLLM, inspect-ai), and either
//! our flag with the same meaning, which then accepts these spellings too, or a line that says how to do the same here. `-` and `_` in
//! names are equivalent. The command line applies the table (`src/cli/arguments.rs`); this file does not know which flags a subcommand has.

/// A flag that users of another program type.
#[derive(Debug, Clone, Copy)]
pub struct ForeignFlag {
    /// Its spellings, with their dashes.
    pub names: &'static [&'static str],
    /// The programs that have it.
    pub programs: &'static str,
    /// The equivalent here.
    pub here: Here,
}

/// The equivalent of a foreign flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Here {
    /// Our flag of this name (without dashes) means the same, and is used in its place.
    Same(&'static str),
    /// There is no such flag. The text says how to do the same, or why nothing has to be done.
    Instead(&'static str),
}

const LM_EVAL: &str = "lm-eval";
const KVPRESS: &str = "kvpress";
const HELMET: &str = "HELMET";
const LLAMA_CPP: &str = "llama.cpp";
const VLLM: &str = "vLLM";
const SEVERAL: &str = "several";

const fn same(names: &'static [&'static str], programs: &'static str, ours: &'static str) -> ForeignFlag {
    ForeignFlag { names, programs, here: Here::Same(ours) }
}

const fn instead(names: &'static [&'static str], programs: &'static str, line: &'static str) -> ForeignFlag {
    ForeignFlag { names, programs, here: Here::Instead(line) }
}

/// All known flags of other programs.
pub const FOREIGN_FLAGS: &[ForeignFlag] = &[
    same(&["--tasks"], LM_EVAL, "task"),
    same(&["--datasets"], HELMET, "task"),
    same(&["--limit", "-L"], LM_EVAL, "samples"),
    same(&["--num-samples", "--max-samples-per-task", "--max-examples", "--num-examples"], SEVERAL, "samples"),
    same(&["--max_test_samples"], HELMET, "samples"),
    same(&["--num-prompts"], VLLM, "samples"),
    same(&["--output_path"], LM_EVAL, "out"),
    same(&["--output-dir"], SEVERAL, "out"),
    same(&["--model_name_or_path", "--model-name"], HELMET, "model"),
    same(&["--methods"], SEVERAL, "method"),
    same(&["--lengths", "--max_seq_length", "--seq-length"], SEVERAL, "length"),
    same(&["--seeds"], SEVERAL, "seed"),
    same(&["--system_instruction"], LM_EVAL, "system-prompt"),
    same(&["--torch_dtype"], SEVERAL, "dtype"),
    same(&["--num-threads", "--n-threads"], SEVERAL, "threads"),
    same(&["--temp"], LLAMA_CPP, "temperature"),
    same(&["--epochs"], "inspect-ai", "repeats"),
    same(&["--overwrite_output_dir"], SEVERAL, "overwrite"),
    same(&["--config_file"], KVPRESS, "config"),
    instead(
        &["--apply_chat_template", "--use_chat_template", "--chat-template", "--jinja"],
        "lm-eval, HELMET, llama.cpp",
        "the model's own chat template is always used; --no-chat turns it off",
    ),
    instead(
        &["--fewshot_as_multiturn"],
        LM_EVAL,
        "worked examples are in one turn of the user, as lm-eval has them without this flag",
    ),
    instead(
        &["--batch_size", "--max_batch_size", "--batch", "-b", "-ub", "--ubatch-size"],
        SEVERAL,
        "leave it out: all methods of an example step together, and results do not depend on it",
    ),
    instead(
        &["--num_fewshot", "--shots", "-f"],
        "lm-eval, HELMET",
        "the number of worked examples belongs to the task: --task mcq/NAME:shots=N or gen/NAME:shots=N",
    ),
    instead(
        &["--model_args", "--model_kwargs", "-a"],
        "lm-eval, kvpress",
        "pretrained=NAME,revision=REV,dtype=TYPE is here --model NAME@REV --dtype TYPE",
    ),
    instead(&["--revision"], SEVERAL, "the revision is part of the model's name: --model NAME@REV"),
    instead(
        &["--log_samples", "-s"],
        LM_EVAL,
        "samples.jsonl always has every answer; --keep-prompts stores the prompts as well",
    ),
    instead(
        &["--gen_kwargs"],
        LM_EVAL,
        "--temperature, --top-p and --stop are flags of their own; the task says how many tokens are generated",
    ),
    instead(
        &["--max_new_tokens", "--max_gen_toks", "--generation_max_length", "--max_tokens", "--n-predict", "--predict"],
        SEVERAL,
        "the task says how many tokens are generated; for rows of your own: --task jsonl:FILE:max_new_tokens=N",
    ),
    instead(
        &["--do_sample"],
        HELMET,
        "answers are sampled with a temperature above 0: --temperature 0.6; 0, the default, is greedy",
    ),
    instead(
        &["--wandb_args", "--wandb_config_args", "--trackio_args", "--hf_hub_log_args"],
        LM_EVAL,
        "nothing is uploaded; `spattn report DIR --format lm-eval` writes the files that lm-eval's tools upload",
    ),
    instead(
        &["--use_cache", "--cache_requests"],
        LM_EVAL,
        "finished examples are kept in the run's folder: --out DIR --resume goes on with them",
    ),
    instead(
        &["--write_out", "-w", "--show_config"],
        LM_EVAL,
        "`spattn data show --task TASK` prints prompts; `spattn list tasks` says how each is scored",
    ),
    instead(&["--check_integrity"], LM_EVAL, "`spattn data check` compares data files with the published ones"),
    instead(
        &["--include_path"],
        LM_EVAL,
        "tasks of your own are rows of a file: --task jsonl:FILE (docs/tasks.md, Rows of your own)",
    ),
    instead(&["--predict_only"], LM_EVAL, "every answer is scored; `spattn score` scores stored answers again"),
    instead(
        &["--metadata"],
        LM_EVAL,
        "{\"max_seq_lengths\": [4096, 8192]} is here --length 4096,8192; the tokenizer is the model's",
    ),
    instead(
        &["--trust_remote_code", "--confirm_run_unsafe_code"],
        SEVERAL,
        "leave it out: no code of a model or a data set is run",
    ),
    instead(
        &["--verbosity", "-v", "--verbose", "--log_level"],
        SEVERAL,
        "leave it out: progress goes to standard error, and --quiet turns it off",
    ),
    instead(
        &["--bootstrap_iters"],
        LM_EVAL,
        "leave it out: intervals are computed without resampling (docs/statistics.md)",
    ),
    instead(
        &["--compression_ratio"],
        KVPRESS,
        "the budget is a parameter of each method: -m snapkv:compression_ratio=0.5, or -m snapkv:keep=0.5",
    ),
    instead(
        &["--head_compression_ratio"],
        KVPRESS,
        "it is a parameter of the method: -m duo_attention:head_compression_ratio=0.5, or retrieval=0.5",
    ),
    instead(
        &["--press_name", "--press"],
        KVPRESS,
        "a press is here a method: -m snapkv:preset=kvpress,compression_ratio=0.5 (docs/coming-from.md has the names)",
    ),
    instead(&["--dataset"], KVPRESS, "data sets are tasks: --task ruler, or rows of kvpress by --task jsonl:FILE"),
    instead(
        &["--data_dir"],
        KVPRESS,
        "kvpress' `--data_dir 4096` is here --length 4096; --data DIR names a folder with published data sets",
    ),
    instead(
        &["--fraction"],
        KVPRESS,
        "give a number of examples, --samples N: how sure a score is depends on the number, not on the share",
    ),
    instead(
        &["--query_aware"],
        KVPRESS,
        "--sparse-from decode starts after the question, --sparse-from question (the default) before it",
    ),
    instead(
        &["--max_context_length", "--input_max_length"],
        "kvpress, HELMET",
        "--length N is the limit of prompt and answer together, and no context is cut without a word",
    ),
    instead(&["--needle_depth"], KVPRESS, "depths are part of the task: --task needle/number:depths=0+50+100"),
    instead(&["--enable_thinking"], SEVERAL, "--thinking on lets the model think, --thinking-tokens N says how long"),
    instead(
        &["--fp8", "--load-in-8bit", "--load-in-4bit", "--quantization"],
        SEVERAL,
        "quantised weights are a model of their own: --model FILE.gguf, or a checkpoint that is stored so (docs/models.md)",
    ),
    instead(&["--count_tokens"], HELMET, "`spattn data show --task TASK` says how long prompts are"),
    instead(
        &["-ngl", "--n-gpu-layers", "--gpu-layers"],
        LLAMA_CPP,
        "--device cuda computes all layers on a GPU, --device cuda:0,1 divides them between two",
    ),
    instead(&["-fa", "--flash-attn"], LLAMA_CPP, "leave it out: dense attention is exact, however it is computed"),
    instead(
        &["-ctk", "-ctv", "--cache-type-k", "--cache-type-v"],
        LLAMA_CPP,
        "--dtype f32, bf16 or f16 is the type of keys and values; they are not quantised",
    ),
    instead(
        &["-c", "--ctx-size", "--max-model-len"],
        "llama.cpp, vLLM",
        "--length N makes prompts of N tokens; memory is taken as each prompt needs it",
    ),
    instead(&["-np", "--parallel"], LLAMA_CPP, "leave it out: --threads N and --device say what is used"),
    instead(
        &["--chunks"],
        LLAMA_CPP,
        "windows of a text are the task's examples: --task ppl/file:FILE --length N --samples CHUNKS",
    ),
    instead(&["--file"], LLAMA_CPP, "perplexity of a text is a task: --task ppl/file:FILE"),
    instead(
        &["-p", "--prompt"],
        LLAMA_CPP,
        "prompts are tasks: write yours as rows of a file, --task jsonl:FILE (docs/tasks.md, Rows of your own)",
    ),
    instead(&["-hf", "--hf-repo"], LLAMA_CPP, "a model on the hub is --model ORG/NAME, or ORG/NAME/FILE.gguf"),
    instead(
        &["--output"],
        LLAMA_CPP,
        "--out DIR is the folder; for another format: `spattn report DIR --format csv` (markdown, latex, json, lm-eval, kvpress)",
    ),
    instead(
        &["--tensor-parallel-size", "--parallelize"],
        VLLM,
        "--device cuda:0,1 divides the layers between GPUs, --device cuda:all gives each a copy of the model",
    ),
    instead(&["--gpu-memory-utilization", "--enforce-eager"], VLLM, "leave it out: memory is taken as it is needed"),
];

/// Commands of other programs, each with our command that does the same.
pub const FOREIGN_COMMANDS: &[(&str, &str)] =
    &[("run", "eval"), ("evaluate", "eval"), ("ls", "list"), ("benchmark", "bench")];

/// Finds the row of a flag as it was typed, with or without `=VALUE`.
pub fn find(typed: &str) -> Option<&'static ForeignFlag> {
    let name = alike(typed.split('=').next().unwrap_or_default());
    FOREIGN_FLAGS.iter().find(|flag| flag.names.iter().any(|known| alike(known) == name))
}

/// The other accepted spellings of our flag `ours`, with `-` and with `_`, without leading dashes; a short flag is its letter.
pub fn spellings(ours: &str) -> Vec<String> {
    let rows = FOREIGN_FLAGS.iter().filter(|flag| matches!(flag.here, Here::Same(name) if name == ours));
    let names = rows.flat_map(|flag| flag.names).map(|name| name.trim_start_matches('-'));
    let mut all: Vec<String> = names.chain([ours]).flat_map(|name| [alike(name), name.replace('-', "_")]).collect();
    all.retain(|name| name != ours);
    all.sort();
    all.dedup();
    all
}

/// A name with `-` in place of `_`.
fn alike(name: &str) -> String {
    name.replace('_', "-")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_name_stands_once_and_every_line_is_one_line() {
        let names: Vec<String> = FOREIGN_FLAGS.iter().flat_map(|flag| flag.names).map(|name| alike(name)).collect();
        let different: BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "a name stands twice: {names:?}");
        assert!(names.iter().all(|name| name.starts_with('-')), "{names:?}");
        for flag in FOREIGN_FLAGS {
            if let Here::Instead(line) = flag.here {
                assert!(line.len() <= 140 && !line.contains('\n'), "{:?}: {line}", flag.names);
            }
        }
    }

    #[test]
    fn a_typed_flag_is_found_in_any_spelling() {
        for typed in ["--batch_size", "--batch-size", "--batch_size=8", "-b"] {
            assert!(
                matches!(find(typed).unwrap().here, Here::Instead(line) if line.contains("step together")),
                "{typed}"
            );
        }
        assert!(find("--samples").is_none() && find("--").is_none() && find("batch_size").is_none());
        assert_eq!(find("--output-path").unwrap().here, Here::Same("out"));
        assert_eq!(spellings("out"), ["output-dir", "output-path", "output_dir", "output_path"]);
        assert_eq!(spellings("top-p"), ["top_p"]);
        assert!(spellings("samples").contains(&"L".to_owned()));
    }
}
