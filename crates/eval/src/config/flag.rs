//! [`Flag`]: everything known about one flag of `eval` and `sweep`, a row of the table in `flags`.

use clap::Arg;

use spattn_base::error::UsageError;

/// Checks the text of a value.
type Check = fn(&str) -> Result<(), UsageError>;

/// A command-line flag, the config key for the same setting, or both.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// The id of its value in the program; for a config key, the key itself.
    pub id: &'static str,
    /// Whether config files have a key named `id`.
    pub is_key: bool,
    /// The name after `--`; `None` if there is only a config key.
    pub name: Option<&'static str>,
    /// The letter after a single `-`.
    pub short: Option<char>,
    /// The name of the value in help; empty for a switch.
    pub value_name: &'static str,
    /// Which values it takes.
    pub accepts: Accepts,
    /// How many values it takes.
    pub holds: Holds,
    /// Whether one argument may hold several values, separated by commas.
    pub has_commas: bool,
    /// The flag after which help shows this one; `None` if help follows the order of the table.
    pub after: Option<&'static str>,
    /// The flag that this one cannot be combined with.
    pub conflicts_with: Option<&'static str>,
    /// The field of a run's identity that this setting decides: `--resume` refuses a folder whose records have another
    /// value, and names the field. `None` if one folder may hold records of different values.
    pub identity: Option<&'static str>,
    /// Whether errors about its value already name what they are about.
    pub is_named_in_errors: bool,
    refusal: Option<fn(&Flag, usize) -> UsageError>,
    pub(super) check: Option<Check>,
    doc: &'static [&'static str],
    reader: fn(Arg, &Flag) -> Arg,
}

/// The number of values of a flag or key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// One value.
    One,
    /// A list. One run uses all of its values.
    List,
    /// One value, or several: a sweep runs each of them, and `eval` takes only one.
    OneOrMany,
}

/// The values that a flag or key takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Accepts {
    /// Not specified. A test rejects such a row.
    Unsaid,
    /// No value: giving the flag sets its key to this.
    Switch(bool),
    /// Whole numbers within bounds, both ends included.
    Whole {
        /// The smallest allowed number.
        least: usize,
        /// The largest allowed number.
        most: usize,
    },
    /// Numbers of tokens within bounds, both ends included. A flag also takes `4K` and `1M`.
    Tokens {
        /// The smallest allowed number.
        least: usize,
        /// The largest allowed number.
        most: usize,
    },
    /// Numbers within bounds, both ends included, with or without decimals.
    Decimal {
        /// The smallest allowed number.
        least: f64,
        /// The largest allowed number.
        most: f64,
    },
    /// Any 64-bit number.
    Seed,
    /// A number of threads, limited by the machine's cores.
    Threads,
    /// Texts of a certain form.
    Text {
        /// An example of an accepted text that is not the default.
        taken: &'static str,
        /// Texts that are refused before anything runs, for tests.
        refused: &'static [&'static str],
    },
    /// Any text or path. It is checked only when it is used.
    Anything,
}

impl Flag {
    const EMPTY: Self = Self {
        id: "",
        is_key: false,
        name: None,
        short: None,
        value_name: "",
        accepts: Accepts::Unsaid,
        holds: Holds::One,
        has_commas: false,
        after: None,
        conflicts_with: None,
        identity: None,
        is_named_in_errors: false,
        refusal: None,
        check: None,
        doc: &[],
        reader: |arg, _| arg,
    };

    /// A flag `--NAME VALUE`.
    pub const fn value(name: &'static str, value_name: &'static str) -> Self {
        Self { name: Some(name), value_name, ..Self::EMPTY }
    }

    /// A flag `--NAME` that sets its key to `true`.
    pub const fn switch(name: &'static str) -> Self {
        Self { name: Some(name), accepts: Accepts::Switch(true), ..Self::EMPTY }
    }

    /// A flag `--NAME` that sets its key to `false`.
    pub const fn switch_off(name: &'static str) -> Self {
        Self { name: Some(name), accepts: Accepts::Switch(false), ..Self::EMPTY }
    }

    /// A key of configs that no flag gives.
    pub const fn key_only() -> Self {
        Self::EMPTY
    }

    /// Adds a short name of one letter.
    pub const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }

    /// Allows several values in one argument, separated by commas.
    pub const fn commas(self) -> Self {
        Self { has_commas: true, ..self }
    }

    /// Takes whole numbers from `least` to `most`.
    pub const fn whole(self, least: usize, most: usize) -> Self {
        Self { accepts: Accepts::Whole { least, most }, ..self }
    }

    /// Takes numbers of tokens from `least` to `most`.
    pub const fn tokens(self, least: usize, most: usize) -> Self {
        Self { accepts: Accepts::Tokens { least, most }, ..self }
    }

    /// Takes numbers from `least` to `most`, with or without decimals.
    pub const fn decimal(self, least: f64, most: f64) -> Self {
        Self { accepts: Accepts::Decimal { least, most }, ..self }
    }

    /// Sets the error for a number in a config that is out of bounds.
    pub const fn refused_with(self, refusal: fn(&Flag, usize) -> UsageError) -> Self {
        Self { refusal: Some(refusal), ..self }
    }

    /// Takes seeds.
    pub const fn seed(self) -> Self {
        Self { accepts: Accepts::Seed, ..self }
    }

    /// Takes a number of threads.
    pub const fn threads(self) -> Self {
        Self { accepts: Accepts::Threads, ..self }
    }

    /// Takes texts of a certain form: `taken` is an accepted one that is not the default, `refused` are refused ones.
    pub const fn texts(self, taken: &'static str, refused: &'static [&'static str]) -> Self {
        Self { accepts: Accepts::Text { taken, refused }, ..self }
    }

    /// Takes any text or path.
    pub const fn anything(self) -> Self {
        Self { accepts: Accepts::Anything, ..self }
    }

    /// Checks texts with `check`, whose errors name what they are about.
    pub const fn checked(self, check: Check) -> Self {
        Self { check: Some(check), is_named_in_errors: true, ..self }
    }

    /// Shows the flag in help after the flag `id`.
    pub const fn after(self, id: &'static str) -> Self {
        Self { after: Some(id), ..self }
    }

    /// Forbids the flag together with the flag `id`.
    pub const fn conflicts_with(self, id: &'static str) -> Self {
        Self { conflicts_with: Some(id), ..self }
    }

    /// Makes the value part of a run's identity, as its field `field`.
    pub const fn identity(self, field: &'static str) -> Self {
        Self { identity: Some(field), ..self }
    }

    /// Sets the id of the value and the lines of the help text.
    pub const fn row(self, id: &'static str, doc: &'static [&'static str]) -> Self {
        Self { id, doc, ..self }
    }

    /// Sets what follows from the type of the value: the number of values, and how an argument is read.
    pub const fn of_type(self, holds: Holds, reader: fn(Arg, &Flag) -> Arg) -> Self {
        Self { holds, reader, ..self }
    }

    /// Makes the flag a config key too.
    pub(super) const fn key(self) -> Self {
        Self { is_key: true, ..self }
    }

    /// Checks that a number is within the row's bounds.
    ///
    /// # Errors
    /// A message that says what is wrong with the number.
    pub(super) fn check_number(&self, number: usize) -> Result<(), UsageError> {
        let (Accepts::Whole { least, most } | Accepts::Tokens { least, most }) = self.accepts else { return Ok(()) };
        match (least..=most).contains(&number) {
            true => Ok(()),
            false => Err(self.refusal.map_or_else(
                || {
                    UsageError::new(format!("{number} is not from {least} to {most}"))
                        .hint("give a whole number between them")
                },
                |refusal| refusal(self, number),
            )),
        }
    }

    /// Checks that a number with decimals is within the row's bounds.
    ///
    /// # Errors
    /// A message that says which numbers are allowed.
    pub(super) fn check_decimal(&self, number: f64) -> Result<(), UsageError> {
        let Accepts::Decimal { least, most } = self.accepts else { return Ok(()) };
        match (least..=most).contains(&number) {
            true => Ok(()),
            false => Err(UsageError::new(format!("{number} is not from {least} to {most}"))
                .hint("give a number between them, such as 0.6")),
        }
    }

    /// The flag as an argument for the parser; `None` if there is only a config key.
    pub fn argument(&self) -> Option<Arg> {
        let mut arg = Arg::new(self.id).long(self.name?).help(self.help()).long_help(self.paragraphs().join("\n\n"));
        if let Some(short) = self.short {
            arg = arg.short(short);
        }
        if !self.value_name.is_empty() {
            arg = arg.value_name(self.value_name);
        }
        if let Some(other) = self.conflicts_with {
            arg = arg.conflicts_with(other);
        }
        Some((self.reader)(arg, self))
    }

    /// The first paragraph of its help: one sentence.
    pub fn help(&self) -> String {
        self.paragraphs().swap_remove(0)
    }

    /// The paragraphs of its help, each in one line. The last one is an example.
    fn paragraphs(&self) -> Vec<String> {
        let paragraphs = self.doc.split(|line| line.trim().is_empty());
        paragraphs.map(|lines| lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")).collect()
    }
}

/// The flags in the order of help: that of the tables, but flags with `after` follow the flag that it names.
pub fn in_order_of_help(rows: impl IntoIterator<Item = &'static Flag>) -> Vec<&'static Flag> {
    let (mut ordered, moved): (Vec<&Flag>, Vec<&Flag>) = rows.into_iter().partition(|flag| flag.after.is_none());
    for flag in moved {
        let at = ordered.iter().position(|other| Some(other.id) == flag.after).map_or(ordered.len(), |at| at + 1);
        ordered.insert(at, flag);
    }
    ordered
}
