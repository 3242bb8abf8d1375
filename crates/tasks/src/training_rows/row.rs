//! A training row, its builder [`RowBuilder`], which keeps it within its length, and its encoding into tokens.

/// The tokenizer of the trained model. It must encode each piece (white space and the text after it, up to the next white space)
/// independently of the others, so that token counts of texts add up.
pub trait Encoder: Sync {
    /// Appends the tokens of `text`, without special tokens.
    fn encode(&self, text: &str, ids: &mut Vec<u32>);
    /// The number of tokens of `text`.
    fn count(&self, text: &str) -> usize;
    /// The token that begins every row.
    fn bos(&self) -> u32;
    /// The token that ends every answer.
    fn eos(&self) -> u32;
}

/// The class of a token, by which the trainer weights it in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// Prompt: instructions, haystack, question.
    Context = 1,
    /// An answer, its end token included.
    Answer = 2,
    /// The predictable part of a repeated sequence.
    Copy = 3,
    /// An answer that needs counting over the whole context, its end token included.
    Count = 4,
    /// Running text.
    Text = 5,
}

/// Text of one class. Adjacent segments of [`Class::Context`] are passed to the tokenizer as one text, as in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The text.
    pub text: String,
    /// What its tokens are trained as.
    pub class: Class,
    /// Whether the end token follows the text.
    pub ends: bool,
}

/// A row: one training example of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainingRow {
    /// Index of its family in [`Trainer::families`](super::Trainer::families).
    pub family: usize,
    /// Its text in order.
    pub segments: Vec<Segment>,
    /// The most tokens that it may have.
    pub length: usize,
}

impl TrainingRow {
    /// The token ids and their classes, both cut to the length. The class of the first token, which begins the row, is 0.
    pub fn encode(&self, encoder: &dyn Encoder) -> (Vec<u32>, Vec<u8>) {
        let mut ids = Vec::with_capacity(self.length);
        let mut classes = Vec::with_capacity(self.length);
        ids.push(encoder.bos());
        classes.push(0);
        for segment in &self.segments {
            encoder.encode(&segment.text, &mut ids);
            if segment.ends {
                ids.push(encoder.eos());
            }
            classes.resize(ids.len(), segment.class as u8);
        }
        ids.truncate(self.length);
        classes.truncate(self.length);
        (ids, classes)
    }
}

/// Writes a row, and counts the remaining tokens of its length.
pub struct RowBuilder<'a> {
    encoder: &'a dyn Encoder,
    row: TrainingRow,
    used: usize,
}

impl<'a> RowBuilder<'a> {
    /// Begins a row of at most `length` tokens.
    pub fn new(encoder: &'a dyn Encoder, length: usize, family: usize) -> Self {
        Self { encoder, row: TrainingRow { family, segments: Vec::new(), length }, used: 1 }
    }

    /// The tokenizer.
    pub fn encoder(&self) -> &'a dyn Encoder {
        self.encoder
    }

    /// Most tokens of the row.
    pub fn length(&self) -> usize {
        self.row.length
    }

    /// Tokens that are left.
    pub fn left(&self) -> usize {
        self.row.length.saturating_sub(self.used)
    }

    /// Number of tokens of `text`.
    pub fn cost(&self, text: &str) -> usize {
        self.encoder.count(text)
    }

    /// Appends prompt text.
    pub fn context(&mut self, text: &str) {
        self.push(text, Class::Context, false);
    }

    /// Appends text of a class, followed by the end token if `ends`. The caller checks that it fits.
    pub fn push(&mut self, text: &str, class: Class, ends: bool) {
        self.used += self.cost(text) + usize::from(ends);
        match self.row.segments.last_mut() {
            Some(last) if last.class == class && !last.ends => {
                last.text.push_str(text);
                last.ends = ends;
            }
            _ => self.row.segments.push(Segment { text: text.to_owned(), class, ends }),
        }
    }

    /// Appends a question and its answer if both fit. Returns whether they do.
    pub fn ask(&mut self, question: &str, answer: &str, class: Class) -> bool {
        let fits = self.question_cost(question, answer) <= self.left();
        if fits {
            self.context(question);
            self.push(answer, class, true);
        }
        fits
    }

    /// Number of tokens that [`ask`](Self::ask) would append.
    pub fn question_cost(&self, question: &str, answer: &str) -> usize {
        self.cost(question) + self.cost(answer) + 1
    }

    /// As many texts from `next` as fit into `room` tokens, each with the separator before it.
    pub fn fill(&self, mut room: usize, separator: &str, mut next: impl FnMut() -> String) -> Vec<String> {
        let mut units = Vec::new();
        loop {
            let unit = next();
            let cost = self.cost(&format!("{separator}{unit}"));
            if cost > room {
                return units;
            }
            room -= cost;
            units.push(unit);
        }
    }

    /// The finished row.
    pub fn finish(self) -> TrainingRow {
        self.row
    }
}

/// Inserts texts at random places among `units`, keeping their order.
pub fn scatter(units: Vec<String>, inserted: Vec<String>, draw: &mut crate::seed::Draw) -> Vec<String> {
    let mut places: Vec<usize> = inserted.iter().map(|_| draw.below(units.len() + 1)).collect();
    places.sort_unstable();
    let mut out = Vec::with_capacity(units.len() + inserted.len());
    let mut inserted = places.into_iter().zip(inserted).peekable();
    for (i, unit) in units.into_iter().enumerate() {
        while let Some((_, text)) = inserted.next_if(|(place, _)| *place <= i) {
            out.push(text);
        }
        out.push(unit);
    }
    out.extend(inserted.map(|(_, text)| text));
    out
}
