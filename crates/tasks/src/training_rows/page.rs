//! A row under construction, and how it becomes tokens.

/// Tokens of the model that is trained. Pieces of white space and what follows up to the next white
/// space must be encoded independently of each other, so that lengths add up.
pub trait Encoder: Sync {
    /// Appends the tokens of `text`, without special tokens.
    fn encode(&self, text: &str, ids: &mut Vec<u32>);
    /// The number of tokens of `text`.
    fn count(&self, text: &str) -> usize;
    /// What every row starts with.
    fn bos(&self) -> u32;
    /// What ends every answer.
    fn eos(&self) -> u32;
}

/// What a token is trained as; the trainer gives each class its weight in the loss.
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

/// Text of one class. Neighbours of class [`Class::Context`] are one text to the tokenizer, as in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The text.
    pub text: String,
    /// What its tokens are trained as.
    pub class: Class,
    /// Whether the end token follows.
    pub ends: bool,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainingRow {
    /// Number of its family.
    pub family: usize,
    /// Its text in order.
    pub segments: Vec<Segment>,
    /// Most tokens it may have.
    pub length: usize,
}

impl TrainingRow {
    /// Token ids and their classes (0 for the token that starts the row), cut at the length.
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

/// A row while it is written: knows how many tokens are left.
pub struct Page<'a> {
    encoder: &'a dyn Encoder,
    row: TrainingRow,
    used: usize,
}

impl<'a> Page<'a> {
    pub fn new(encoder: &'a dyn Encoder, length: usize, family: usize) -> Self {
        Self { encoder, row: TrainingRow { family, segments: Vec::new(), length }, used: 1 }
    }

    pub fn encoder(&self) -> &'a dyn Encoder {
        self.encoder
    }

    pub fn length(&self) -> usize {
        self.row.length
    }

    /// Tokens left.
    pub fn room(&self) -> usize {
        self.row.length.saturating_sub(self.used)
    }

    pub fn cost(&self, text: &str) -> usize {
        self.encoder.count(text)
    }

    /// Appends prompt text.
    pub fn context(&mut self, text: &str) {
        self.push(text, Class::Context, false);
    }

    /// Appends text that is not ended.
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

    /// Appends a question and its answer if both fit.
    pub fn ask(&mut self, question: &str, answer: &str, class: Class) -> bool {
        let fits = self.question_cost(question, answer) <= self.room();
        if fits {
            self.context(question);
            self.push(answer, class, true);
        }
        fits
    }

    /// Tokens that [`ask`](Self::ask) would take.
    pub fn question_cost(&self, question: &str, answer: &str) -> usize {
        self.cost(question) + self.cost(answer) + 1
    }

    /// Units of `next`, each taken if it still fits into `room` tokens with the separator before it.
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

    pub fn finish(self) -> TrainingRow {
        self.row
    }
}

/// Puts `inserted` (in their order) at random places among `units`.
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
