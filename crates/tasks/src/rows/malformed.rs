//! The rows of a file that cannot be used: what is said of them, and whether they end the run.

use spattn_base::error::UsageError;

pub(super) const FILE_HINT: &str = "a prepared file has one JSON object a line";
const SKIP_HINT: &str = "--skip-bad goes on without malformed rows";
/// Malformed rows whose places a message names at most.
const PLACES_NAMED: usize = 10;

/// The rows of a file that cannot be used, of whatever format: what is said of them, and whether that ends the run.
#[derive(Debug)]
pub(crate) struct Malformed {
    /// The file, as messages name it.
    file: String,
    /// What a row is counted by: `line`, or `row` where a row is no line.
    unit: &'static str,
    bad: Vec<Bad>,
}

#[derive(Debug)]
struct Bad {
    number: usize,
    error: UsageError,
}

impl Malformed {
    /// Of a file, none so far.
    pub fn none(file: String, unit: &'static str) -> Self {
        Self { file, unit, bad: Vec::new() }
    }

    /// One more, at the line or row `number`, from 1.
    pub fn push(&mut self, number: usize, error: UsageError) {
        self.bad.push(Bad { number, error });
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.bad.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bad.is_empty()
    }

    /// Whether what is left will do: `usable` rows.
    ///
    /// # Errors
    /// If there is no usable row, and, unless `skip_bad`, if any is malformed: the first, and where the others are.
    pub fn judge(&self, usable: usize, skip_bad: bool) -> Result<(), UsageError> {
        match self.bad.as_slice() {
            [] if usable == 0 => Err(UsageError::new(format!("{}: there is no row in it", self.file)).hint(FILE_HINT)),
            [first, more @ ..] if usable == 0 || !skip_bad => {
                let mut error = first.error.clone();
                if !more.is_empty() {
                    let (others, all) = (more.len(), usable + self.bad.len());
                    let are = if others == 1 { "is" } else { "are" };
                    error.what += &format!("; {others} more of {all} rows {are} malformed ({})", self.places(more));
                }
                let hints = error.hint.take().into_iter().chain((usable > 0).then(|| SKIP_HINT.to_owned()));
                error.hint = Some(hints.collect::<Vec<_>>().join("; ")).filter(|h| !h.is_empty());
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// What was left out, in one line; `None` if nothing was.
    pub fn note(&self) -> Option<String> {
        let first = self.bad.first()?;
        let rows = match self.bad.len() {
            1 => "1 malformed row is".to_owned(),
            count => format!("{count} malformed rows are"),
        };
        Some(format!("{}: {rows} left out ({}); the first: {}", self.file, self.places(&self.bad), first.error))
    }

    /// `line 3`, or `lines 3, 5, 8 ...`.
    fn places(&self, bad: &[Bad]) -> String {
        let named: Vec<String> = bad.iter().take(PLACES_NAMED).map(|b| b.number.to_string()).collect();
        let more = if bad.len() > PLACES_NAMED { " ..." } else { "" };
        format!("{}{} {}{more}", self.unit, if bad.len() == 1 { "" } else { "s" }, named.join(", "))
    }
}
