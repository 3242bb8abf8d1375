//! The headings that list the flags of `eval` and `sweep` in help. Arguments without a heading, such as the config, come first.

use clap::Command;

/// Headings, each with its arguments: their names in the parser, which for settings are the settings' keys.
const HEADINGS: &[(&str, &[&str])] = &[
    (
        "What is evaluated",
        &[
            "model",
            "random_weights",
            "tasks",
            "lengths",
            "methods",
            "no_full",
            "samples",
            "seed",
            "data",
            "calibration",
        ],
    ),
    ("Where attention is sparse", &["sparse_from", "sink", "local", "dense_layers", "local_layers", "tail"]),
    (
        "Prompts and answers",
        &[
            "chat",
            "system_prompt",
            "thinking",
            "thinking_tokens",
            "temperature",
            "top_p",
            "repeats",
            "stop",
            "positions",
            "allow_extrapolation",
            "skip_bad",
        ],
    ),
    ("What is measured", &["fidelity", "latency"]),
    ("Verdict", &["safe_within", "confidence", "until_certain", "max_samples", "max_time"]),
    (
        "Computing",
        &["device", "dtype", "dequantise", "matmul_precision", "kv_tier", "kv_memory", "kv_dtype", "threads"],
    ),
    ("Results", &["out", "resume", "overwrite", "shard", "keep_prompts", "anonymous", "quiet", "json"]),
    ("Cluster", &["launch", "jobs", "options", "sbatch_template", "retry_failed"]),
];

/// The commands with so many flags that they are listed under headings.
const COMMANDS: [&str; 2] = ["eval", "sweep"];

/// The same program, with headings in the help of its commands that have many flags.
pub(super) fn with_headings(program: Command) -> Command {
    program.mut_subcommands(|command| if COMMANDS.contains(&command.get_name()) { headed(command) } else { command })
}

fn headed(command: Command) -> Command {
    let places = HEADINGS.iter().flat_map(|(heading, ids)| ids.iter().map(move |id| (*heading, *id)));
    let has = |command: &Command, id: &str| command.get_arguments().any(|arg| arg.get_id() == id);
    // Help lists the flags in the order of this table.
    places.enumerate().fold(command, |command, (at, (heading, id))| match has(&command, id) {
        true => command.mut_arg(id, |arg| arg.help_heading(heading).display_order(at)),
        false => command,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    /// Arguments that need no heading.
    const FREE: [&str; 3] = ["config", "dry_run", "help"];

    #[test]
    fn every_flag_has_a_heading_and_every_heading_a_flag() {
        let program = with_headings(Cli::command());
        let ids = |name: &str| -> Vec<String> {
            let command = program.find_subcommand(name).unwrap();
            command.get_arguments().map(|arg| arg.get_id().to_string()).collect()
        };
        for name in COMMANDS {
            let command = program.find_subcommand(name).unwrap();
            let bare = command.get_arguments().filter(|arg| arg.get_help_heading().is_none());
            let bare: Vec<String> = bare.map(|arg| arg.get_id().to_string()).collect();
            assert!(bare.iter().all(|id| FREE.contains(&id.as_str())), "{name}: {bare:?}");
        }
        let known = COMMANDS.map(ids).concat();
        for (heading, of) in HEADINGS {
            let unknown: Vec<&&str> = of.iter().filter(|id| !known.contains(&(**id).to_owned())).collect();
            assert!(unknown.is_empty(), "{heading}: {unknown:?}");
        }
    }
}
