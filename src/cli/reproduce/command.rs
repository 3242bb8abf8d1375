//! The command that repeats an item's run, as results store it.

use std::borrow::Cow;

use super::args::{OUT, ReproduceArgs};
use spattn_base::privacy;

impl ReproduceArgs {
    /// The command for one item, with all flags that change numbers.
    pub(super) fn command(&self, name: &str) -> String {
        let item = self.what.as_deref().filter(|what| what.ends_with(".toml")).map_or(name.to_owned(), path);
        let mut words = vec!["spattn".to_owned(), "reproduce".to_owned(), item];
        let mut flag = |flag: &str, value: Option<String>| {
            if let Some(value) = value {
                words.push(format!("--{flag}"));
                words.push(value);
            }
        };
        flag("model", self.model.as_deref().map(model));
        flag("device", self.device.clone());
        flag("data", self.data.as_ref().map(|data| path(&data.to_string_lossy())));
        flag("calibration", self.calibration.0.as_ref().map(|folder| path(&folder.to_string_lossy())));
        flag("samples", self.samples.map(|samples| samples.to_string()));
        flag("out", Some(path(&self.out.to_string_lossy())).filter(|out| out != OUT));
        match (self.builtin, self.real.as_deref()) {
            (true, _) => words.insert(3, "--builtin".to_owned()),
            (_, Some("")) => words.insert(3, "--real".to_owned()),
            (_, Some(name)) => words.insert(3, format!("--real={name}")),
            _ => {}
        }
        if self.anonymous {
            words.push("--anonymous".to_owned());
        }
        let words: Vec<Cow<str>> = words.iter().map(|word| quoted(word)).collect();
        words.join(" ")
    }
}

/// A model as results may name it.
fn model(model: &str) -> String {
    if privacy::is_left_out() { privacy::name_of_source(model) } else { model.to_owned() }
}

/// A path as results may name it.
fn path(path: &str) -> String {
    privacy::path(std::path::Path::new(path))
}

/// A word, quoted for a shell if necessary.
fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,@+~".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => Cow::Borrowed(word),
        false => Cow::Owned(format!("'{}'", word.replace('\'', r"'\''"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Command, FromArgMatches};

    fn of(args: &str, name: &str) -> String {
        let command = ReproduceArgs::augment_args(Command::new("reproduce"));
        let matches = command.get_matches_from(std::iter::once("reproduce").chain(args.split(' ')));
        ReproduceArgs::from_arg_matches(&matches).unwrap().command(name)
    }

    #[test]
    fn the_command_has_every_flag_that_changes_numbers() {
        let name = "hip/table-1";
        assert_eq!(of("--builtin --quiet", name), "spattn reproduce hip/table-1 --builtin");
        assert_eq!(
            of("hip --real --device cuda -n 100 --overwrite", name),
            "spattn reproduce hip/table-1 --real --device cuda --samples 100"
        );
        assert_eq!(
            of("--real=smollm2-135m -o out", name),
            "spattn reproduce hip/table-1 --real=smollm2-135m --out out"
        );
        assert_eq!(of("--model ./a --calibration c", name), "spattn reproduce hip/table-1 --model ./a --calibration c");
        assert_eq!((quoted("a b"), quoted("it's")), ("'a b'".into(), r"'it'\''s'".into()));
    }
}
