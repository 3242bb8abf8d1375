//! The batch script of a sweep, and a site's settings for it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde::Deserialize;

use spattn_base::error::{UsageError, in_plain_words};
use spattn_base::given;

/// The path of a site's template, relative to the working directory.
pub const SITE: &str = "configs/slurm.toml";
/// Seconds before the time limit at which a task gets the signal to stop.
const WARNING_S: u32 = 120;
/// Options that the program sets itself, so that a user cannot.
const OWN: [&str; 6] = ["array", "parsable", "wait", "wrap", "help", "version"];

/// A site's settings for its scheduler: a TOML file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Template {
    /// Options of sbatch by their long names; `true` stands for an option without a value.
    pub sbatch: BTreeMap<String, OptionValue>,
    /// Shell lines that run before the program.
    pub setup: String,
    /// The command that starts the program, such as `apptainer exec image.sif`.
    pub launcher: String,
}

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum OptionValue {
    /// An option without a value, and whether it is set.
    Flag(bool),
    /// A number.
    Number(i64),
    /// Any other value.
    Text(String),
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// A [`UsageError`] that names the file and the fault.
    pub fn load(path: &Path) -> Result<Self, UsageError> {
        let hint = "a template has [sbatch] with options, `setup` and `launcher`: see docs/cluster.md";
        let wrong = |what: String| UsageError::new(what).hint(hint);
        let text = given::text(path, given::MOST_OF_SETTINGS)
            .map_err(|e| wrong(format!("cannot read the template {}: {e}", path.display())))?;
        let template: Self = toml::from_str(&text).map_err(|e| {
            let line = e.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            wrong(format!("{}:{line}: {}", path.display(), in_plain_words(e.message())))
        })?;
        let named = |e: UsageError| UsageError { what: format!("{}: {}", path.display(), e.what), ..e };
        template.sbatch.iter().try_for_each(|(key, value)| check(key, value)).map_err(named)?;
        Ok(template)
    }

    /// Adds the options in `text`, as in `key=value,flag`. They override the template's.
    ///
    /// # Errors
    /// A [`UsageError`] for text that is no option, or an option that the program sets itself.
    pub fn with_options(mut self, text: &str) -> Result<Self, UsageError> {
        for part in text.split(',').map(str::trim) {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key.trim(), OptionValue::Text(value.trim().to_owned())),
                None => (part, OptionValue::Flag(true)),
            };
            let key = key.trim_start_matches('-');
            check(key, &value).map_err(|e| UsageError { what: format!("--sbatch: {}", e.what), ..e })?;
            self.sbatch.insert(key.to_owned(), value);
        }
        Ok(self)
    }

    /// The options as arguments of sbatch.
    pub fn options(&self) -> Vec<String> {
        self.sbatch.iter().filter_map(|(key, value)| option(key, value)).collect()
    }
}

fn option(key: &str, value: &OptionValue) -> Option<String> {
    match value {
        OptionValue::Flag(false) => None,
        OptionValue::Flag(true) => Some(format!("--{key}")),
        OptionValue::Number(n) => Some(format!("--{key}={n}")),
        OptionValue::Text(text) => Some(format!("--{key}={text}")),
    }
}

/// Checks that an option can be written as a line of the script.
fn check(key: &str, value: &OptionValue) -> Result<(), UsageError> {
    let is_name = !key.is_empty() && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !is_name {
        return Err(UsageError::new(format!("`{key}` is not an option of sbatch"))
            .hint("write long names: --sbatch 'partition=gpu,gres=gpu:1,time=4:00:00'"));
    }
    if OWN.contains(&key) {
        return Err(
            UsageError::new(format!("`{key}` is set by the program")).hint("leave it out; --jobs sets their number")
        );
    }
    match value {
        OptionValue::Text(text) if text.is_empty() || text.contains(['"', '\\']) || text.contains(char::is_control) => {
            Err(UsageError::new(format!("the value of `{key}` cannot be written into a batch script"))
                .hint("leave out quotes, backslashes and ends of lines; an option without a value has no `=`"))
        }
        _ => Ok(()),
    }
}

/// The inputs of a script. Paths are absolute.
#[derive(Debug, Clone, Copy)]
pub struct Script<'a> {
    /// The program.
    pub program: &'a str,
    /// The working directory, to which the matrix's paths are relative.
    pub work: &'a str,
    /// The sweep's folder.
    pub dir: &'a str,
    /// Number of shards.
    pub shards: usize,
    /// Further arguments of the program.
    pub arguments: &'a [String],
    /// The site's settings.
    pub template: &'a Template,
}

impl Script<'_> {
    /// The text of the script.
    pub fn text(&self) -> String {
        let Self { program, work, dir, shards, arguments, template } = self;
        let name = Path::new(dir).file_name().map_or("sweep".into(), |name| name.to_string_lossy());
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let own = [
            ("job-name", format!("spattn-{name}")),
            ("output", format!("{}/{}/%A_%a.log", dir.replace('%', "%%"), super::LOGS)),
            ("open-mode", "append".to_owned()),
            ("signal", format!("B:USR1@{WARNING_S}")),
        ];
        let mut head = String::new();
        let mut line = |option: String| {
            let quoted = match option.split_once('=') {
                Some((key, value)) if value.contains(|c: char| c.is_whitespace() || c == '#') => {
                    format!("{key}=\"{value}\"")
                }
                _ => option,
            };
            let _ = writeln!(head, "#SBATCH {quoted}");
        };
        line(format!("--array=1-{shards}"));
        own.iter()
            .filter(|(key, _)| !template.sbatch.contains_key(*key))
            .for_each(|(key, value)| line(format!("--{key}={value}")));
        if !["requeue", "no-requeue"].iter().any(|key| template.sbatch.contains_key(*key)) {
            line("--requeue".to_owned());
        }
        template.options().into_iter().for_each(&mut line);
        let [program, work, dir] = [program, work, dir].map(|text| quoted(text));
        let setup = match template.setup.trim() {
            "" => String::new(),
            setup => format!("\n# The site's own.\n{setup}\n"),
        };
        let launcher = if template.launcher.is_empty() { String::new() } else { template.launcher.clone() + " " };
        let arguments: String = arguments.iter().map(|argument| format!(" {}", quoted(argument))).collect();
        format!(
            r#"#!/bin/bash
# A task of a sweep: one shard, in a folder of its own. It goes on from what is there, so it may be run again at any time.
# `spattn sweep --launch slurm --resume` submits this file as it is; edit what you need.
{head}
spattn={program}
sweep={dir}
shards={shards}
shard=${{SLURM_ARRAY_TASK_ID:?submit it with sbatch}}
task=${{SLURM_ARRAY_JOB_ID}}_$shard
cd {work} || exit 2
{setup}
# In the background, so that this shell takes the signals and passes them on: USR1 before the time limit, TERM when the task
# is preempted or cancelled. Both end the program with status 75; its records are kept.
{launcher}"$spattn" sweep "$sweep/matrix.toml" --shard "$shard/$shards" --out "$sweep/shards/$shard" --resume --quiet{arguments} &
child=$!
trap 'signalled=1; kill -USR1 "$child" 2>/dev/null' USR1
trap 'signalled=1; kill -TERM "$child" 2>/dev/null' TERM
while signalled=; wait "$child"; status=$?; [ -n "$signalled" ]; do :; done

# What was told to stop goes on later. Slurm itself requeues what it preempted, and what was cancelled is to stay so:
# neither is still running then.
if [ "$status" = 75 ] && [ "$(squeue --noheader --jobs="$task" --format=%T)" = RUNNING ]; then
    echo "requeued: task $task of $sweep"
    scontrol requeue "$task"
fi
exit "$status"
"#
        )
    }
}

/// Text quoted as one word of the shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(template: &Template) -> String {
        let arguments = ["--threads".to_owned(), "4".to_owned()];
        let (program, work, dir) = ("/opt/spattn", "/home/a b", "/data/it's 50%");
        Script { program, work, dir, shards: 8, arguments: &arguments, template }.text()
    }

    #[test]
    fn a_script_has_the_sites_options_over_its_own() {
        let plain = script(&Template::default());
        for line in [
            "#SBATCH --array=1-8",
            "#SBATCH --job-name=spattn-it-s-50-",
            "#SBATCH --output=\"/data/it's 50%%/logs/%A_%a.log\"",
            "#SBATCH --signal=B:USR1@120",
            "#SBATCH --requeue",
            "spattn=/opt/spattn",
            r"sweep='/data/it'\''s 50%'",
            "cd '/home/a b' || exit 2",
        ] {
            assert!(plain.lines().any(|l| l == line), "{line}\n{plain}");
        }
        assert!(plain.contains(" --quiet --threads 4 &\n"), "{plain}");
        let text = "setup = '''\nmodule load cuda\nulimit -c 0'''\nlauncher = 'apptainer exec a.sif'\n\
                    [sbatch]\npartition = 'gpu'\ngpus = 1\nexclusive = true\nrequeue = false\ncomment = 'two words'";
        let site: Template = toml::from_str(text).unwrap();
        let site = site.with_options("time=4:00:00,signal=B:USR1@300,--partition=big").unwrap();
        let text = script(&site);
        let options: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("#SBATCH --")).collect();
        let wanted =
            ["comment=\"two words\"", "exclusive", "gpus=1", "partition=big", "signal=B:USR1@300", "time=4:00:00"];
        assert_eq!(options[4..], wanted);
        assert!(text.contains("\n# The site's own.\nmodule load cuda\nulimit -c 0\n"), "{text}");
        assert!(text.contains("\napptainer exec a.sif \"$spattn\" sweep "), "{text}");
    }

    #[test]
    fn what_is_no_option_is_refused() {
        for (text, what) in [
            ("", "`` is not an option"),
            ("partition=gpu,,time=1", "`` is not an option"),
            ("Partition=gpu", "`Partition` is not an option"),
            ("array=1-3", "`array` is set by the program"),
            ("time=", "the value of `time` cannot be written"),
            ("comment=a\"b", "the value of `comment` cannot be written"),
            ("comment=a\nb", "the value of `comment` cannot be written"),
        ] {
            let error = Template::default().with_options(text).unwrap_err();
            assert!(error.what.starts_with(&format!("--sbatch: {what}")), "{text}: {error}");
        }
    }
}
