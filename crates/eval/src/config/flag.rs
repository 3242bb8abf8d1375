//! What is known of one flag of `eval` and `sweep`: a row of the table in `flags`.

use clap::Arg;

use spattn_base::error::UsageError;

/// Checks the text of a value.
type Check = fn(&str) -> Result<(), UsageError>;

/// A flag, the key of a config that says the same, or both.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Name of its value in the program: the key, where it is a key of a config.
    pub id: &'static str,
    /// Whether configs have it as a key, of the name `id`.
    pub is_key: bool,
    /// Name after the two dashes; `None` of a key that no flag gives.
    pub name: Option<&'static str>,
    /// Letter after a single dash.
    pub short: Option<char>,
    /// What help calls the value; empty for a switch.
    pub value_name: &'static str,
    /// Which values there are.
    pub accepts: Accepts,
    /// How many.
    pub holds: Holds,
    /// Whether one argument may hold several values, with commas between them.
    pub has_commas: bool,
    /// The flag behind which help shows this one, where that is not the order of the table.
    pub after: Option<&'static str>,
    /// The flag that it cannot be given with.
    pub conflicts_with: Option<&'static str>,
    /// The field of a run's identity that it decides: records under another value are of another run, which `--resume`
    /// refuses by name. `None` where records of all values may stand in one folder.
    pub identity: Option<&'static str>,
    /// Whether errors in its value say without help what they are about.
    pub is_named_in_errors: bool,
    refusal: Option<fn(&Flag, usize) -> UsageError>,
    pub(super) check: Option<Check>,
    doc: &'static [&'static str],
    reader: fn(Arg, &Flag) -> Arg,
}

/// How many values a flag or key has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// One.
    One,
    /// A list, of which everything is run.
    List,
    /// One, or several of which a sweep runs each; `eval` takes one.
    OneOrMany,
}

/// Which values a flag or key takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Accepts {
    /// It was not said. A test refuses such a row.
    Unsaid,
    /// None: to give the flag sets its key to this.
    Switch(bool),
    /// Whole numbers within bounds, ends included.
    Whole {
        /// The least.
        least: usize,
        /// The greatest.
        most: usize,
    },
    /// Numbers of tokens within bounds, ends included. A flag takes `4K` and `1M` too.
    Tokens {
        /// The least.
        least: usize,
        /// The greatest.
        most: usize,
    },
    /// Numbers within bounds, ends included, with or without decimals.
    Decimal {
        /// The least.
        least: f64,
        /// The greatest.
        most: f64,
    },
    /// Any number of 64 bits.
    Seed,
    /// As many threads as make sense on the machine.
    Threads,
    /// Texts that mean something.
    Text {
        /// One that is taken, and is no default.
        taken: &'static str,
        /// Some that are refused before anything is run, for tests.
        refused: &'static [&'static str],
    },
    /// Any text or path: whether there is such a thing is seen when it is needed.
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

    /// The same with a letter.
    pub const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }

    /// The same, with several values in an argument.
    pub const fn commas(self) -> Self {
        Self { has_commas: true, ..self }
    }

    /// The same, taking whole numbers.
    pub const fn whole(self, least: usize, most: usize) -> Self {
        Self { accepts: Accepts::Whole { least, most }, ..self }
    }

    /// The same, taking numbers of tokens.
    pub const fn tokens(self, least: usize, most: usize) -> Self {
        Self { accepts: Accepts::Tokens { least, most }, ..self }
    }

    /// The same, taking numbers with or without decimals.
    pub const fn decimal(self, least: f64, most: f64) -> Self {
        Self { accepts: Accepts::Decimal { least, most }, ..self }
    }

    /// The same, with other words for a number that is out of bounds in a config.
    pub const fn refused_with(self, refusal: fn(&Flag, usize) -> UsageError) -> Self {
        Self { refusal: Some(refusal), ..self }
    }

    /// The same, taking seeds.
    pub const fn seed(self) -> Self {
        Self { accepts: Accepts::Seed, ..self }
    }

    /// The same, taking a number of threads.
    pub const fn threads(self) -> Self {
        Self { accepts: Accepts::Threads, ..self }
    }

    /// The same, taking texts such as `taken`, which is no default, and not those in `refused`.
    pub const fn texts(self, taken: &'static str, refused: &'static [&'static str]) -> Self {
        Self { accepts: Accepts::Text { taken, refused }, ..self }
    }

    /// The same, taking any text or path.
    pub const fn anything(self) -> Self {
        Self { accepts: Accepts::Anything, ..self }
    }

    /// The same, with texts checked by `check`, whose errors name what they are about.
    pub const fn checked(self, check: Check) -> Self {
        Self { check: Some(check), is_named_in_errors: true, ..self }
    }

    /// The same, behind another in help.
    pub const fn after(self, id: &'static str) -> Self {
        Self { after: Some(id), ..self }
    }

    /// The same, not to be given with another.
    pub const fn conflicts_with(self, id: &'static str) -> Self {
        Self { conflicts_with: Some(id), ..self }
    }

    /// The same, as part of a run's identity under the name `field`.
    pub const fn identity(self, field: &'static str) -> Self {
        Self { identity: Some(field), ..self }
    }

    /// The same with the name of its value and the lines of its help.
    pub const fn row(self, id: &'static str, doc: &'static [&'static str]) -> Self {
        Self { id, doc, ..self }
    }

    /// The same with what the type of its value says: how many there are, and how an argument is read.
    pub const fn of_type(self, holds: Holds, reader: fn(Arg, &Flag) -> Arg) -> Self {
        Self { holds, reader, ..self }
    }

    /// The same as a key of configs.
    pub(super) const fn key(self) -> Self {
        Self { is_key: true, ..self }
    }

    /// Makes sure that a number is within the bounds of the row.
    ///
    /// # Errors
    /// What is wrong with it.
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

    /// Makes sure that a number with decimals is within the bounds of the row.
    ///
    /// # Errors
    /// What is allowed.
    pub(super) fn check_decimal(&self, number: f64) -> Result<(), UsageError> {
        let Accepts::Decimal { least, most } = self.accepts else { return Ok(()) };
        match (least..=most).contains(&number) {
            true => Ok(()),
            false => Err(UsageError::new(format!("{number} is not from {least} to {most}"))
                .hint("give a number between them, such as 0.6")),
        }
    }

    /// The flag as the parser of arguments takes it; `None` for what is only a key.
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

    /// What it does, in a sentence.
    pub fn help(&self) -> String {
        self.paragraphs().swap_remove(0)
    }

    /// Paragraphs of its help, each in one line. The last has an example.
    fn paragraphs(&self) -> Vec<String> {
        let paragraphs = self.doc.split(|line| line.trim().is_empty());
        paragraphs.map(|lines| lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")).collect()
    }
}

/// Flags in the order of help: that of the tables, but for those that name another to stand behind.
pub fn in_order_of_help(rows: impl IntoIterator<Item = &'static Flag>) -> Vec<&'static Flag> {
    let (mut ordered, moved): (Vec<&Flag>, Vec<&Flag>) = rows.into_iter().partition(|flag| flag.after.is_none());
    for flag in moved {
        let at = ordered.iter().position(|other| Some(other.id) == flag.after).map_or(ordered.len(), |at| at + 1);
        ordered.insert(at, flag);
    }
    ordered
}
