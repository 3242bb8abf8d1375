//! Which solved examples precede a question: the user's options, and random draws like those of lm-eval.
//!
//! lm-eval's default sampler uses one Python `random.Random(seed)` for a whole task. It draws rows for one question after the other,
//! in file order, so the draw for a question depends on the number of questions before it. If the set has no test split, it draws
//! one row more than it needs and drops the question's own row. Its default seed is 1234.

use rand_mt::Mt;

use crate::options::Given;
use spattn_base::error::UsageError;

/// The most examples before a question that the user can ask for.
const MOST_SHOTS: usize = 1000;

/// The options after a task's name: how many examples, and how they are chosen.
#[derive(Debug, Clone, Copy)]
pub struct Shots {
    /// Examples before a question.
    pub count: usize,
    /// The seed of lm-eval's draws; `None` for the first examples.
    pub seed: Option<u64>,
}

impl Shots {
    /// Parses `shots=N,shots_seed=S`. `default` is the number of examples if none is given; `example` shows in hints how options are
    /// written.
    ///
    /// # Errors
    /// If an option is unknown, malformed or given twice.
    pub fn parse(options: Option<&str>, name: &str, default: usize, example: &str) -> Result<Self, UsageError> {
        let malformed = |option: &str| UsageError::new(format!("`{name}`: `{option}` cannot be read")).hint(example);
        let few = |count: &&str| count.parse().ok().filter(|count| *count <= MOST_SHOTS);
        let (mut shots, mut given) = (Self { count: default, seed: None }, Given::default());
        for option in options.into_iter().flat_map(|options| options.split(',')) {
            let key = option.split('=').next().unwrap_or_default();
            given.once(name, key, key)?;
            match option.split_once('=') {
                Some(("shots", count)) => {
                    let task = name.split(':').next().unwrap_or(name);
                    let hint =
                        format!("shots=N takes a whole number from 0 to {MOST_SHOTS}, for example {task}:shots=5");
                    shots.count = few(&count).ok_or_else(|| malformed(option).hint(hint))?;
                }
                Some(("shots_seed", seed)) => shots.seed = Some(seed.parse().map_err(|_| malformed(option))?),
                _ => return Err(malformed(option)),
            }
        }
        Ok(shots)
    }

    /// Checks that there are examples to draw if a seed is given.
    ///
    /// # Errors
    /// If a seed is given and `shots` is 0.
    pub fn check(self, name: &str, example: &str) -> Result<Self, UsageError> {
        match self {
            Self { count: 0, seed: Some(_) } => {
                let what = format!("`{name}`: shots_seed needs shots, which is 0");
                Err(UsageError::new(what).hint(example))
            }
            _ => Ok(self),
        }
    }

    /// The options as they follow a recorded name; empty for the `default` number of first examples.
    pub fn suffix(self, default: usize) -> String {
        match self {
            Self { count, seed: None } if count == default => String::new(),
            Self { count, seed: None } => format!(":shots={count}"),
            Self { count, seed: Some(seed) } => format!(":shots={count},shots_seed={seed}"),
        }
    }
}

/// Draws examples for every question of a set, in order: for each question, the indices in `pool` of `shots` rows.
///
/// `pool` and `questions` identify rows by a number. If `spare`, one more row is drawn, and a row with the question's own number is
/// dropped. The pool must have at least as many rows as one draw.
pub fn draw_for_questions(seed: u64, shots: usize, spare: bool, pool: &[u64], questions: &[u64]) -> Vec<Vec<usize>> {
    let mut random = PythonRandom::new(seed);
    let one = |question: &u64| {
        if !spare {
            return random.sample(pool.len(), shots);
        }
        let others = |rows: Vec<usize>| rows.into_iter().filter(|row| pool[*row] != *question).collect::<Vec<_>>();
        let mut rows = others(random.sample(pool.len(), shots + 1));
        if rows.len() < shots {
            let left = others((0..pool.len()).collect());
            rows = random.sample(left.len(), shots.min(left.len())).into_iter().map(|i| left[i]).collect();
        }
        rows.truncate(shots);
        rows
    };
    questions.iter().map(one).collect()
}

/// CPython's `random.Random` with an integer seed, as far as `sample` needs it.
struct PythonRandom(Mt);

impl PythonRandom {
    /// Seeds like `random.Random(seed)`: the key consists of the seed's words, the lowest first.
    fn new(seed: u64) -> Self {
        let (low, high) = (seed as u32, (seed >> 32) as u32);
        let words = if high == 0 { 1 } else { 2 };
        Self(Mt::new_with_key([low, high].into_iter().take(words)))
    }

    /// `_randbelow`: a number below `n`, which must not be 0. Draws as many bits as `n` has until they give a smaller number.
    fn below(&mut self, n: usize) -> usize {
        let bits = usize::BITS - n.leading_zeros();
        loop {
            let drawn = self.bits(bits);
            if drawn < n {
                return drawn;
            }
        }
    }

    /// `getrandbits`: whole words, the lowest first; of the last word the highest bits are used.
    fn bits(&mut self, bits: u32) -> usize {
        let mut drawn = 0;
        for at in (0..bits).step_by(32) {
            let word = self.0.next_u32() >> 32u32.saturating_sub(bits - at);
            drawn |= (word as usize) << at;
        }
        drawn
    }

    /// `random.sample(range(n), k)`; `k` must not exceed `n`.
    fn sample(&mut self, n: usize, k: usize) -> Vec<usize> {
        // Python shuffles a list if that takes less memory than a set of the selected numbers.
        let mut set_size = 21;
        if k > 5 {
            let mut power = 1;
            while power < 3 * k {
                power *= 4;
            }
            set_size += power;
        }
        if n <= set_size {
            let mut pool: Vec<usize> = (0..n).collect();
            return (0..k)
                .map(|i| {
                    let at = self.below(n - i);
                    let drawn = pool[at];
                    pool[at] = pool[n - i - 1];
                    drawn
                })
                .collect();
        }
        let mut drawn = Vec::with_capacity(k);
        while drawn.len() < k {
            let row = self.below(n);
            if !drawn.contains(&row) {
                drawn.push(row);
            }
        }
        drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Golden {
        seed: u64,
        shots: usize,
        spare: bool,
        pool: Pool,
        questions: Vec<u64>,
        drawn: Vec<Vec<usize>>,
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Pool {
        Different(u64),
        Numbers(Vec<u64>),
    }

    #[test]
    fn rows_are_those_that_lm_eval_draws() {
        let cases: Vec<Golden> = serde_json::from_str(include_str!("../../../../tests/golden/shots.json")).unwrap();
        assert!(cases.iter().any(|c| c.spare) && cases.iter().any(|c| c.seed > u64::from(u32::MAX)));
        for Golden { seed, shots, spare, pool, questions, drawn } in cases {
            let pool = match pool {
                Pool::Different(rows) => (0..rows).collect(),
                Pool::Numbers(numbers) => numbers,
            };
            let what = format!("seed {seed}, {shots} of {}, spare: {spare}", pool.len());
            assert_eq!(draw_for_questions(seed, shots, spare, &pool, &questions), drawn, "{what}");
        }
    }

    #[test]
    fn a_pool_of_more_rows_than_a_word_counts_is_drawn_from_two_words() {
        // Two calls of random.Random(7).getrandbits(40).
        let mut random = PythonRandom::new(7);
        assert_eq!([random.bits(40), random.bits(40)], GETRANDBITS_40);
    }

    const GETRANDBITS_40: [usize; 2] = [1040772936760, 434439589175];
}
