//! LongBench's classification score.

/// `classification_score`: takes the class names that occur in the prediction, and drops some that are contained in the answer. If
/// the answer remains, the score is 1 over the number of remaining names, else 0. The published loop removes entries from the list
/// that it iterates over: it skips the entry after a removed one, and removes the first equal entry. Both change scores, so they
/// are reproduced here.
pub fn classification(prediction: &str, answer: &str, all_classes: &[String]) -> f64 {
    let mut left: Vec<&str> = all_classes.iter().map(String::as_str).filter(|c| prediction.contains(c)).collect();
    let mut at = 0;
    while at < left.len() {
        let term = left[at];
        if term != answer
            && answer.contains(term)
            && let Some(first) = left.iter().position(|other| *other == term)
        {
            left.remove(first);
        }
        at += 1;
    }
    if left.contains(&answer) { 1.0 / left.len() as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_neighbour_of_a_removed_class_is_skipped() {
        let classes = ["Sea", "Sea l", "Sea lion"].map(str::to_owned);
        // Both "Sea" and "Sea l" are part of the answer, but only the first is removed.
        assert_eq!(classification("a Sea lion", "Sea lion", &classes), 0.5);
    }
}
