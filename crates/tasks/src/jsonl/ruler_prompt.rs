//! Finds context, question and answer prefix in a prompt that is a single text, as in RULER's rows.

use crate::ruler;

/// The mark that begins the question of a prompt of unknown shape.
const QUESTION_MARK: &str = "\nQuestion:";

/// A prompt in the format of a RULER task: the task's shape, and the byte offsets of the prompt's parts.
pub(super) struct Recognised {
    pub shape: ruler::Shape,
    /// Where the question starts.
    pub question_at: usize,
    /// Where the answer prefix starts; the length of the prompt if it has none.
    pub prefix_at: usize,
}

/// Finds the shape whose question starts last, since a solved example before it has its own question. `None` if no shape fits.
pub(super) fn recognise(input: &str) -> Option<Recognised> {
    let shapes = ruler::shapes().chain(ruler::reworded_shapes());
    let found = shapes.filter_map(|shape| Some((question_start(input, &shape)?, shape)));
    let (question_at, shape) = found.max_by_key(|(at, _)| *at)?;
    let tail = &input[question_at..];
    let prefix_at = tail.rfind(shape.prefix_mark).filter(|&at| is_prefix(&tail[at..], &shape));
    Some(Recognised { prefix_at: prefix_at.map_or(input.len(), |at| question_at + at), question_at, shape })
}

fn question_start(input: &str, shape: &ruler::Shape) -> Option<usize> {
    let starts = shape.question_marks.iter().filter_map(|mark| input.rfind(&format!("\n{mark}")));
    starts.max().map(|at| at + 1)
}

/// Whether `rest`, which begins with the mark of an answer prefix, is an answer prefix: it must be the rest of the prompt's last line.
/// For `qa` it must be just the mark `Answer:`, since a question may contain that mark too.
fn is_prefix(rest: &str, shape: &ruler::Shape) -> bool {
    let is_bare = shape.prefix_mark.ends_with(':');
    !rest.contains('\n') && (!is_bare || rest.trim_end() == shape.prefix_mark)
}

/// Where the question of a prompt of unknown shape starts: after the last line break before `Question:`, or else at its last line.
pub(super) fn last_question(input: &str) -> usize {
    let line = input.trim_end().rfind('\n');
    input.rfind(QUESTION_MARK).or(line).map_or(0, |at| at + 1)
}
