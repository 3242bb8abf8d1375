//! Where the questions of a file's rows are: a row may have several, and rows may share a context.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use spattn_base::error::UsageError;

/// Where a question is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuestionPlace {
    /// The index of its row among the usable rows of the file.
    pub row: usize,
    /// The number of the question in its row, from 0.
    pub turn: usize,
    /// The index of the first question with the same context.
    context: usize,
}

/// The places of all questions of a file, in task order.
#[derive(Debug, Default)]
pub(crate) struct QuestionPlaces {
    places: Vec<QuestionPlace>,
    /// Maps the hash of each context to the index of the first question with it.
    by_context: HashMap<u64, usize>,
}

impl QuestionPlaces {
    /// Adds a question after the others.
    pub fn add(&mut self, row: usize, turn: usize, context: &str) {
        let mut hash = DefaultHasher::new();
        context.hash(&mut hash);
        let context = *self.by_context.entry(hash.finish()).or_insert(self.places.len());
        self.places.push(QuestionPlace { row, turn, context });
    }

    /// Number of questions.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The place of the question at `index`; `None` if there are fewer questions.
    pub fn get(&self, index: usize) -> Option<QuestionPlace> {
        self.places.get(index).copied()
    }

    /// The index of the first question with the context of the one at `index`, for [`Task::context_of`](crate::Task::context_of).
    pub fn context_of(&self, index: usize) -> usize {
        self.places.get(index).map_or(index, |place| place.context)
    }
}

/// The error for a question at `index` of a task that has only `count`.
pub(crate) fn no_such_question(task: &str, count: usize, index: usize) -> UsageError {
    UsageError::new(format!("`{task}` has {count} questions, none at {index}"))
        .hint("ask for fewer samples (--samples)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contexts_are_one_wherever_they_stand() {
        let mut places = QuestionPlaces::default();
        for (row, turn, context) in [(0, 0, "a"), (0, 1, "a"), (1, 0, "b"), (2, 0, "a")] {
            places.add(row, turn, context);
        }
        assert_eq!([0, 1, 2, 3, 9].map(|index| places.context_of(index)), [0, 0, 2, 0, 9]);
        assert_eq!(places.get(1).map(|place| (place.row, place.turn)), Some((0, 1)));
        assert!(places.get(4).is_none() && places.len() == 4);
    }
}
