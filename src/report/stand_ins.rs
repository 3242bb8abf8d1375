//! The note on a mean over tasks of which some stand in for published ones.

/// "2 of 13 tasks are synthetic stand-ins for published ones (...)", for the tasks of a mean; `None` if all are published ones.
pub fn note(tasks: &[&str]) -> Option<String> {
    let found = spattn_tasks::stand_ins(tasks.iter().copied());
    let are = match found.len() {
        0 => return None,
        1 => "is a synthetic stand-in for a published one",
        _ => "are synthetic stand-ins for published ones",
    };
    let pairs: Vec<String> = found.iter().map(|(task, published)| format!("{task} for {published}")).collect();
    Some(format!("{} of {} tasks {are} ({})", found.len(), tasks.len(), pairs.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stand_ins_are_counted_and_named_with_what_they_stand_in_for() {
        assert_eq!(note(&["ruler/vt", "ruler/qa_1", "jsonl:qa_synth"]), None);
        assert_eq!(
            note(&["ruler/vt", "ruler/qa_synth"]).unwrap(),
            "1 of 2 tasks is a synthetic stand-in for a published one (ruler/qa_synth for ruler/qa_1)"
        );
        assert_eq!(
            note(&["ruler/qa_synth", "ruler/vt", "ruler/qa_synth_hop2"]).unwrap(),
            "2 of 3 tasks are synthetic stand-ins for published ones \
             (ruler/qa_synth for ruler/qa_1, ruler/qa_synth_hop2 for ruler/qa_2)"
        );
    }
}
