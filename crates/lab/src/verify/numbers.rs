//! Compares numbers of a forward pass with a reference's: RoPE's frequencies, the residual stream, logits, greedy tokens.

use spattn_attention::kv::KvDtype;

use super::check::Check;

/// The largest relative difference of frequencies that passes: a few roundings of f32.
const FREQUENCIES: f64 = 1e-5;

/// Returns the largest difference of hidden states and logits that passes, as the size of the difference over the size of the numbers,
/// if one side or both compute in these types. Rounding alone gives about 1e-6 in f32, up to 1e-3 in f16 and 1e-2 in bf16.
pub fn tolerance(types: &[KvDtype]) -> f64 {
    let of = |dtype: &KvDtype| match dtype {
        KvDtype::F32 => 1e-3,
        KvDtype::F16 => 2e-2,
        KvDtype::Bf16 => 1e-1,
    };
    types.iter().map(of).fold(0.0, f64::max)
}

/// Returns the size of the difference of two rows over the size of the second.
fn relative(ours: &[f32], theirs: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = ours.iter().zip(theirs).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let size: f64 = theirs.iter().map(|b| square(f64::from(*b))).sum();
    match difference == 0.0 {
        true => 0.0,
        false => (difference / size).sqrt(),
    }
}

/// Whether a difference is too large, as NaN always is.
fn exceeds(difference: f64, limit: f64) -> bool {
    difference.is_nan() || difference > limit
}

/// Compares RoPE's frequencies.
pub(super) fn judge_frequencies(ours: &[f32], theirs: &[f32]) -> Check {
    const NAME: &str = "RoPE";
    if ours.len() != theirs.len() {
        let found = format!("{} frequencies, the reference has {}", ours.len(), theirs.len());
        return Check::fail(NAME, found, "compare `head_dim` and `partial_rotary_factor` in config.json");
    }
    let differ = |(a, b): (&f32, &f32)| f64::from(((a - b) / b).abs());
    let first = ours.iter().zip(theirs).position(|pair| exceeds(differ(pair), FREQUENCIES));
    let largest = ours.iter().zip(theirs).map(differ).fold(0.0, f64::max);
    let Some(first) = first else {
        return Check::pass(NAME, format!("{} frequencies equal", ours.len())).measured(largest, FREQUENCIES);
    };
    let found = match (theta(ours), theta(theirs)) {
        (Some(a), Some(b)) => format!("the frequencies are those of theta {a:.0}, the reference's of theta {b:.0}"),
        _ => format!("frequency {first} is {:e}, the reference's {:e}", ours[first], theirs[first]),
    };
    Check::fail(NAME, found, "compare `rope_theta`, `rope_parameters` and `rope_scaling` in config.json")
        .measured(largest, FREQUENCIES)
}

/// Returns the theta that the frequencies follow from without scaling; `None` if there is none.
fn theta(frequencies: &[f32]) -> Option<f64> {
    let last = frequencies.len().checked_sub(1).filter(|last| *last > 0)?;
    let step = f64::from(frequencies[last]).ln() / last as f64;
    let follows = |(i, f): (usize, &f32)| (f64::from(*f).ln() - step * i as f64).abs() < 1e-4;
    frequencies.iter().enumerate().all(follows).then(|| (-step * frequencies.len() as f64).exp())
}

/// Compares the residual stream `[layers passed][position][width]` at `positions`.
pub(super) fn judge_residual_stream(ours: &[Vec<f32>], theirs: &[Vec<f32>], positions: &[usize], limit: f64) -> Check {
    const NAME: &str = "hidden states";
    let sizes = |stream: &[Vec<f32>]| (stream.len(), stream.first().map_or(0, Vec::len) / positions.len());
    if sizes(ours) != sizes(theirs) {
        let ((a, b), (c, d)) = (sizes(ours), sizes(theirs));
        let found = format!("{} layers of {b} numbers, the reference has {} of {d}", a - 1, c - 1);
        return Check::fail(NAME, found, "the reference is of another model");
    }
    let (_, width) = sizes(ours);
    let differences = |passed: usize| -> Vec<f64> {
        ours[passed].chunks_exact(width).zip(theirs[passed].chunks_exact(width)).map(|(a, b)| relative(a, b)).collect()
    };
    let mut largest = 0.0_f64;
    for passed in 0..ours.len() {
        let differences = differences(passed);
        largest = differences.iter().copied().fold(largest, f64::max);
        let Some(first) = differences.iter().position(|d| exceeds(*d, limit)) else { continue };
        let (found, advice) = located(passed, first, positions);
        return Check::fail(NAME, found, advice).measured(largest, limit);
    }
    let found = format!("{} layers at {} positions up to {}", ours.len() - 1, positions.len(), last(positions));
    Check::pass(NAME, found).measured(largest, limit)
}

/// Says where the first difference is, and what can cause it there.
fn located(passed: usize, first: usize, positions: &[usize]) -> (String, &'static str) {
    let position = positions[first];
    let Some(layer) = passed.checked_sub(1) else {
        return (
            format!("the embedding differs at position {position}"),
            "the embedding table, its scale, or the vocabulary's order",
        );
    };
    match first.checked_sub(1).map(|equal| positions[equal]) {
        None => (
            format!("layer {layer} is the first that differs, at every position from 0 on"),
            "norms, values, biases, the output projection or the MLP of this layer: what does not depend on positions",
        ),
        Some(0) => (
            format!("layer {layer} is the first that differs, from position {position} on; position 0 is equal"),
            "positions: RoPE, queries and keys (heads, norms, biases), or the scale of attention",
        ),
        Some(equal) => (
            format!("layer {layer} is the first that differs, from position {position} on; up to {equal} all is equal"),
            "a window of attention, or RoPE's scaling beyond a length",
        ),
    }
}

fn last(positions: &[usize]) -> usize {
    positions.last().copied().unwrap_or_default()
}

/// Returns the root mean square.
pub(super) fn size(logits: &[f32]) -> f64 {
    let squares: f64 = logits.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    (squares / logits.len() as f64).sqrt()
}

/// Compares logits `[position][vocab]` at `positions`.
pub(super) fn judge_logits(ours: &[f32], theirs: &[f32], positions: &[usize], limit: f64) -> Check {
    const NAME: &str = "logits";
    let (a, b) = (ours.len() / positions.len(), theirs.len() / positions.len());
    if a != b {
        let found = format!("{a} logits, the reference has {b}");
        return Check::fail(NAME, found, "the vocabulary was cut or extended: compare `vocab_size` in config.json");
    }
    let rows = || ours.chunks_exact(a).zip(theirs.chunks_exact(a));
    let differences: Vec<f64> = rows().map(|(a, b)| relative(a, b)).collect();
    let largest = differences.iter().copied().fold(0.0, f64::max);
    let absolute = ours.iter().zip(theirs).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    let same = rows().filter(|(a, b)| argmax(a) == argmax(b)).count();
    let count = positions.len();
    let numbers = format!("largest difference {absolute:.2e}, same first token at {same} of {count} positions");
    match differences.iter().position(|d| exceeds(*d, limit)) {
        None => Check::pass(NAME, numbers).measured(largest, limit),
        Some(first) => Check::fail(
            NAME,
            format!("they differ from position {} on; {numbers}", positions[first]),
            "if the hidden states are equal: the last norm, the output matrix (tied or not), or a cap on logits",
        )
        .measured(largest, limit),
    }
}

/// Returns the index of the first of the largest numbers.
pub(super) fn argmax(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

/// Compares greedy tokens. `gaps` says by how much the reference preferred its tokens; where it is below `tie`, another token passes.
pub(super) fn judge_greedy(ours: &[u32], theirs: &[u32], gaps: &[f64], tie: f64) -> Check {
    const NAME: &str = "greedy text";
    let count = theirs.len();
    match ours.iter().zip(theirs).position(|(a, b)| a != b) {
        None if ours.len() == count => Check::pass(NAME, format!("{count} tokens equal")),
        None => Check::fail(NAME, format!("{} tokens, the reference has {count}", ours.len()), "report this"),
        Some(at) if gaps[at] < tie => {
            Check::pass(NAME, format!("{at} tokens equal, then the reference's first two are {:.1e} apart", gaps[at]))
        }
        Some(at) => Check::fail(
            NAME,
            format!("token {at} is {}, the reference's {}, which led by {:.2}", ours[at], theirs[at], gaps[at]),
            "look at the checks above; if they pass, at decoding: the KV cache and positions behind the prompt",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(theta: f64) -> Vec<f32> {
        (0..32).map(|i| (1.0 / theta.powf(f64::from(i) / 32.0)) as f32).collect()
    }

    #[test]
    fn a_wrong_theta_is_named() {
        let theirs = frequencies(500_000.0);
        assert!(!judge_frequencies(&theirs, &theirs).is_failure());
        let check = judge_frequencies(&frequencies(10_000.0), &theirs);
        assert_eq!(check.found, "the frequencies are those of theta 10000, the reference's of theta 500000");
        let mut scaled = theirs.clone();
        scaled[20..].iter_mut().for_each(|f| *f /= 8.0);
        assert!(judge_frequencies(&scaled, &theirs).found.starts_with("frequency 20 is "));
        assert!(judge_frequencies(&theirs[..16], &theirs).is_failure());
    }

    /// Two layers of two numbers at positions 0, 1 and 9. `added` is added to the numbers from a layer and a position on.
    fn stream(passed: usize, row: usize, added: f32) -> Vec<Vec<f32>> {
        let mut stream = vec![vec![1.0, -2.0, 3.0, 4.0, -5.0, 6.0]; 3];
        stream[passed..].iter_mut().for_each(|depth| depth[2 * row..].iter_mut().for_each(|x| *x += added));
        stream
    }

    #[test]
    fn the_first_layer_and_position_that_differ_are_named() {
        let judged = |passed, row, added| {
            judge_residual_stream(&stream(passed, row, added), &stream(0, 0, 0.0), &[0, 1, 9], 1e-3)
        };
        let equal = judged(2, 0, 1e-5);
        assert_eq!((equal.is_failure(), equal.found.as_str()), (false, "2 layers at 3 positions up to 9"));
        assert_eq!(judged(0, 0, 0.5).found, "the embedding differs at position 0");
        assert_eq!(judged(1, 0, 0.5).found, "layer 0 is the first that differs, at every position from 0 on");
        let rope = judged(2, 1, 0.5);
        assert_eq!(rope.found, "layer 1 is the first that differs, from position 1 on; position 0 is equal");
        assert!(rope.advice.unwrap().contains("RoPE"));
        let window = judged(1, 2, 0.5);
        assert_eq!(window.found, "layer 0 is the first that differs, from position 9 on; up to 1 all is equal");
        assert!(judged(1, 1, f32::NAN).is_failure(), "a NaN is no small difference");
        let other = judge_residual_stream(&stream(0, 0, 0.0)[..2], &stream(0, 0, 0.0), &[0, 1, 9], 1e-3);
        assert_eq!(other.found, "1 layers of 2 numbers, the reference has 2 of 2");
    }

    #[test]
    fn logits_that_differ_are_told_with_their_position() {
        let theirs = [1.0, 2.0, 3.0, 3.0, 2.0, 1.0];
        let close = [1.0, 2.0001, 3.0, 3.0, 2.0, 1.0];
        let check = judge_logits(&close, &theirs, &[0, 7], 1e-3);
        assert!(!check.is_failure() && check.found.ends_with("at 2 of 2 positions"), "{}", check.found);
        let check = judge_logits(&[1.0, 2.0, 3.0, 1.0, 2.0, 3.0], &theirs, &[0, 7], 1e-3);
        assert!(check.is_failure());
        assert_eq!(
            check.found,
            "they differ from position 7 on; largest difference 2.00e0, same first token at 1 of 2 positions"
        );
        let cut = judge_logits(&theirs[..4], &theirs, &[0, 7], 1e-3);
        assert_eq!(cut.found, "2 logits, the reference has 3");
    }

    #[test]
    fn greedy_tokens_may_differ_where_two_are_as_good() {
        let judged = |ours: &[u32], tie| judge_greedy(ours, &[5, 6, 7], &[1.0, 0.001, 1.0], tie);
        assert_eq!(judged(&[5, 6, 7], 0.0).found, "3 tokens equal");
        assert!(!judged(&[5, 8, 8], 0.01).is_failure());
        assert!(judged(&[5, 8, 8], 0.0001).is_failure());
        assert_eq!(judged(&[4, 6, 7], 0.01).found, "token 0 is 4, the reference's 5, which led by 1.00");
    }

    #[test]
    fn the_coarser_type_decides() {
        assert_eq!(tolerance(&[KvDtype::F32, KvDtype::Bf16]), tolerance(&[KvDtype::Bf16]));
        assert!(tolerance(&[KvDtype::F32]) < tolerance(&[KvDtype::F16]));
    }
}
