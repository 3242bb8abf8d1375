//! The solved examples that stand before a question.

/// The solved examples of a task, and which of them stand before each question.
#[derive(Hash)]
pub(super) struct Examples<E> {
    /// All there are.
    pub all: Vec<E>,
    /// How many stand before a question.
    pub count: usize,
    /// For each question, the indices in `all` of its examples, where they are drawn at random; otherwise the first ones stand
    /// before every question.
    pub draws: Option<Vec<Vec<usize>>>,
}

impl<E> Examples<E> {
    /// The examples before question number `question`: those drawn for it, or the first `count` that fit it.
    pub fn before<'a>(&'a self, question: usize, fits: impl Fn(&E) -> bool + 'a) -> Vec<&'a E> {
        match &self.draws {
            Some(draws) => draws[question].iter().map(|index| &self.all[*index]).collect(),
            None => self.all.iter().filter(|example| fits(example)).take(self.count).collect(),
        }
    }
}
