//! The solved examples that stand before a question.

/// The solved examples of a task, and which of them precede each question.
#[derive(Hash)]
pub(super) struct Examples<E> {
    /// All solved examples.
    pub all: Vec<E>,
    /// The number of examples before a question.
    pub count: usize,
    /// For each question, the indices in `all` of its examples, if they are drawn at random. Otherwise the first ones precede
    /// every question.
    pub draws: Option<Vec<Vec<usize>>>,
}

impl<E> Examples<E> {
    /// The examples before the question numbered `question`: those drawn for it, or the first `count` for which `fits` is
    /// true.
    pub fn before<'a>(&'a self, question: usize, fits: impl Fn(&E) -> bool + 'a) -> Vec<&'a E> {
        match &self.draws {
            Some(draws) => draws[question].iter().map(|index| &self.all[*index]).collect(),
            None => self.all.iter().filter(|example| fits(example)).take(self.count).collect(),
        }
    }
}
