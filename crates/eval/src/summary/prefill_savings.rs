//! The prefill time saved because examples have their first tokens in common.

use std::collections::HashMap;
use std::fmt;

use crate::records::record::Record;

/// The prefills of a run, and what sharing saved.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PrefillSavings {
    /// The number of examples.
    pub examples: usize,
    /// The number of examples whose prefix, or its start, was read for an earlier example.
    pub sharing: usize,
    /// The number of tokens of all prefixes.
    pub tokens: usize,
    /// The number of reused tokens among these.
    pub reused_tokens: usize,
    /// The seconds of all prefills, as if each prefix had been read alone.
    pub seconds: f64,
    /// The saved seconds among these.
    pub saved_seconds: f64,
}

/// A smaller share of reused tokens is only the first words of a chat template, and not worth a line.
const WORTH_SAYING: f64 = 0.01;

impl PrefillSavings {
    /// Whether the savings are worth a line.
    pub fn is_worth_saying(&self) -> bool {
        self.reused_tokens as f64 > WORTH_SAYING * self.tokens as f64
    }

    /// The savings of the examples in `records`. All records of an example that share a prefill are equal in this.
    pub fn of(records: &[Record]) -> Self {
        // If an example was run in parts, with some methods first and others later, only the first part counts.
        let mut firsts: HashMap<_, &Record> = HashMap::new();
        for r in records {
            firsts.entry((&r.model, &r.protocol, &r.task, r.length, r.seed, r.sample)).or_insert(r);
        }
        // In a fixed order, because the last digits of sums depend on it.
        let mut examples: Vec<_> = firsts.into_iter().collect();
        examples.sort_unstable_by_key(|(example, _)| *example);
        examples.into_iter().map(|(_, r)| r).fold(Self::default(), |sum, r| Self {
            examples: sum.examples + 1,
            sharing: sum.sharing + usize::from(r.reused_tokens > 0),
            tokens: sum.tokens + r.prefix_tokens,
            reused_tokens: sum.reused_tokens + r.reused_tokens,
            seconds: sum.seconds + r.prefill_s,
            saved_seconds: sum.saved_seconds + r.prefill_reused_s,
        })
    }
}

impl fmt::Display for PrefillSavings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { examples, sharing, tokens, reused_tokens, seconds, saved_seconds } = self;
        let spent = seconds - saved_seconds;
        write!(
            f,
            "shared prefill took {spent:.1} s instead of {seconds:.1} s: {sharing} of {examples} examples begin like the one \
             before, and {reused_tokens} of {tokens} tokens were not read again"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::testing::record;

    #[test]
    fn every_example_counts_once() {
        let shared =
            |method| Record { prefill_reused_s: 0.75, reused_tokens: 3000, ..record("needle/number", method, 1, 1.0) };
        let records = [
            record("needle/number", "full", 0, 1.0),
            record("needle/number", "topk", 0, 1.0),
            shared("full"),
            shared("topk"),
        ];
        let sharing = PrefillSavings::of(&records);
        assert_eq!((sharing.examples, sharing.sharing, sharing.tokens, sharing.reused_tokens), (2, 1, 8000, 3000));
        assert!(sharing.is_worth_saying());
        assert!(
            !PrefillSavings { reused_tokens: 80, ..sharing }.is_worth_saying()
                && !PrefillSavings::default().is_worth_saying()
        );
        assert_eq!((sharing.seconds, sharing.saved_seconds), (2.0, 0.75));
        assert!(
            sharing.to_string().starts_with("shared prefill took 1.2 s instead of 2.0 s: 1 of 2 examples"),
            "{sharing}"
        );
    }
}
