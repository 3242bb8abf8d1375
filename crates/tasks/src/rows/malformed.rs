//! The malformed rows of a file: the messages about them, and whether they end the run.

use spattn_base::error::UsageError;

pub(super) const FILE_HINT: &str = "a prepared file has one JSON object a line";
const SKIP_HINT: &str = "--skip-bad skips malformed rows";
/// The most malformed rows whose places a message names.
const PLACES_NAMED: usize = 10;

/// The malformed rows of a file of any format, each with its error.
#[derive(Debug)]
pub(crate) struct Malformed {
    /// The name of the file in messages.
    file: String,
    /// The unit of row numbers: `line`, or `row` if rows are not lines.
    unit: &'static str,
    bad: Vec<Bad>,
}

#[derive(Debug)]
struct Bad {
    number: usize,
    error: UsageError,
}

impl Malformed {
    /// No malformed rows; `file` is the name of their file in messages.
    pub fn none(file: String, unit: &'static str) -> Self {
        Self { file, unit, bad: Vec::new() }
    }

    /// Adds the malformed row with the line or row number `number`, from 1.
    pub fn push(&mut self, number: usize, error: UsageError) {
        self.bad.push(Bad { number, error });
    }

    /// The number of malformed rows.
    pub fn len(&self) -> usize {
        self.bad.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bad.is_empty()
    }

    /// Decides whether the run continues with the remaining `usable` rows.
    ///
    /// # Errors
    /// If there is no usable row, or any row is malformed and `skip_bad` is false. The error is that of the first malformed row, and
    /// names the places of the others.
    pub fn judge(&self, usable: usize, skip_bad: bool) -> Result<(), UsageError> {
        match self.bad.as_slice() {
            [] if usable == 0 => Err(UsageError::new(format!("{}: the file has no rows", self.file)).hint(FILE_HINT)),
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

    /// The one-line note on malformed rows that were left out; `None` if there are none.
    pub fn note(&self) -> Option<String> {
        let first = self.bad.first()?;
        let rows = match self.bad.len() {
            1 => "1 malformed row is".to_owned(),
            count => format!("{count} malformed rows are"),
        };
        Some(format!("{}: {rows} left out ({}); the first: {}", self.file, self.places(&self.bad), first.error))
    }

    /// Formats row numbers as `line 3` or `lines 3, 5, 8 ...`.
    fn places(&self, bad: &[Bad]) -> String {
        let named: Vec<String> = bad.iter().take(PLACES_NAMED).map(|b| b.number.to_string()).collect();
        let more = if bad.len() > PLACES_NAMED { " ..." } else { "" };
        format!("{}{} {}{more}", self.unit, if bad.len() == 1 { "" } else { "s" }, named.join(", "))
    }
}
