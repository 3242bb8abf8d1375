//! Completion scripts for shells: subcommands, flags, and names of their values.
//!
//! Names are added only to the scripts, not to the parser, because other values are valid too: a task may be a file, a method may have
//! parameters, a model may be a folder, a GGUF file or a hub id.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use clap_complete::{Shell, generate};

use spattn_attention::LocalLayers;
use spattn_attention::kv::PrefixDtype;
use spattn_attention::methods::{self, CALIBRATIONS};
use spattn_eval::config::shipped::SHIPPED;
use spattn_eval::records::timing::Latency;
use spattn_lab::analyze::ANALYSES;
use spattn_tasks::metrics::Metric;
use spattn_tasks::metrics::datasets::DATASETS;
use spattn_tasks::published::DataSet;
use spattn_tasks::{catalog, groups};

/// An argument for which the scripts offer names.
struct Named {
    /// The argument's id, and the subcommands that have it.
    argument: &'static str,
    commands: &'static [&'static str],
    names: fn() -> Vec<String>,
    /// Whether a value may also be a path.
    or_path: bool,
}

static NAMED: [Named; 14] = [
    Named {
        argument: "tasks",
        commands: &["eval", "sweep", "analyze", "tune", "calibrate", "export-eval", "show"],
        names: tasks,
        or_path: false,
    },
    Named { argument: "methods", commands: &["eval", "sweep", "analyze", "tune"], names: method_names, or_path: false },
    Named { argument: "methods", commands: &["calibrate"], names: calibrations, or_path: false },
    Named { argument: "more_methods", commands: &["calibrate"], names: calibrations, or_path: false },
    Named { argument: "names", commands: &["list"], names: method_names, or_path: false },
    Named { argument: "what", commands: &["analyze"], names: analyses, or_path: false },
    Named { argument: "config", commands: &["eval", "sweep"], names: configs, or_path: true },
    Named {
        argument: "model",
        commands: &["eval", "sweep", "analyze", "tune", "calibrate", "export-eval", "show", "verify"],
        names: models,
        or_path: true,
    },
    Named { argument: "local_layers", commands: &["eval", "sweep"], names: local_layers, or_path: false },
    Named { argument: "kv_dtype", commands: &["eval", "sweep"], names: kv_dtypes, or_path: false },
    Named { argument: "latency", commands: &["eval", "sweep"], names: latencies, or_path: false },
    Named { argument: "metric", commands: &["score"], names: metrics, or_path: false },
    Named { argument: "dataset", commands: &["score"], names: scored_sets, or_path: false },
    Named { argument: "names", commands: &["fetch", "check"], names: data_sets, or_path: false },
];

/// The script for a shell. `command` is the command line of the program named `program`.
pub(super) fn script(shell: Shell, command: Command, program: &str) -> String {
    let mut script = Vec::new();
    generate(shell, &mut with_names(command.clone()), program, &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Fish {
        script.extend(positions_of_fish(&command, program));
    }
    NAMED.iter().filter(|named| named.or_path).fold(script, |script, named| with_files(shell, script, &(named.names)()))
}

/// Lets a script offer files beside `names`. The generator offers only the names; bash offers files anyway if no name fits.
fn with_files(shell: Shell, script: String, names: &[String]) -> String {
    let joined = names.join(" ");
    match shell {
        Shell::Zsh => script.replace(&format!(":({joined})'"), &format!(":{{_files; compadd -- {joined}}}'")),
        Shell::Fish => {
            let values = |files: &str| format!("-r {files} -a \"{}\\t''", names[0]);
            script.replace(&values("-f"), &values("-F"))
        }
        _ => script,
    }
}

/// The completions that the fish generator leaves out: names for positional arguments.
fn positions_of_fish(command: &Command, program: &str) -> Vec<String> {
    let subcommands = |c: &Command| c.get_subcommands().cloned().collect::<Vec<_>>();
    let (mut lines, function) = (Vec::new(), program.replace('-', "_"));
    for outer in subcommands(command) {
        let within = format!("__fish_{function}_using_subcommand {}", outer.get_name());
        lines.extend(names_of_fish(&outer, program, &within));
        for inner in subcommands(&outer) {
            lines.extend(names_of_fish(
                &inner,
                program,
                &format!("{within}; and __fish_seen_subcommand_from {}", inner.get_name()),
            ));
        }
    }
    lines
}

fn names_of_fish(command: &Command, program: &str, within: &str) -> Vec<String> {
    let named = command.get_positionals().filter_map(|argument| find(command.get_name(), argument));
    named.map(|named| format!("complete -c {program} -n \"{within}\" -a \"{}\"\n", (named.names)().join(" "))).collect()
}

/// The entry of an argument in `NAMED`, if it has one.
fn find(command: &str, argument: &Arg) -> Option<&'static Named> {
    NAMED.iter().find(|n| n.argument == argument.get_id().as_str() && n.commands.contains(&command))
}

/// The command line with the names of its arguments' values.
fn with_names(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let named = |argument: Arg| match find(&name, &argument) {
        Some(found) => argument.value_parser(PossibleValuesParser::new((found.names)())),
        None => argument,
    };
    command.mut_args(named).mut_subcommands(with_names)
}

/// The names of the analyses.
fn analyses() -> Vec<String> {
    ANALYSES.iter().map(|analysis| analysis.name.to_owned()).collect()
}

fn tasks() -> Vec<String> {
    let groups = groups().into_iter().map(|(name, _)| name);
    groups.chain(catalog().into_iter().map(|task| task.name)).filter(|name| !name.contains(':')).collect()
}

fn method_names() -> Vec<String> {
    methods::all().map(|method| method.name.to_owned()).collect()
}

fn calibrations() -> Vec<String> {
    CALIBRATIONS.iter().map(|calibration| calibration.kind.to_owned()).collect()
}

fn configs() -> Vec<String> {
    SHIPPED.iter().map(|config| config.name.to_owned()).collect()
}

fn models() -> Vec<String> {
    vec!["builtin".to_owned()]
}

fn latencies() -> Vec<String> {
    Latency::NAMES.map(str::to_owned).to_vec()
}

fn local_layers() -> Vec<String> {
    LocalLayers::NAMES.map(str::to_owned).to_vec()
}

fn kv_dtypes() -> Vec<String> {
    PrefixDtype::NAMES.map(str::to_owned).to_vec()
}

fn metrics() -> Vec<String> {
    Metric::all().map(|metric| metric.name().to_owned()).collect()
}

fn scored_sets() -> Vec<String> {
    DATASETS.iter().map(|set| set.name.to_owned()).collect()
}

fn data_sets() -> Vec<String> {
    DataSet::all().iter().map(|set| set.name.clone()).collect()
}
