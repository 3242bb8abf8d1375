//! The least density that a run can reach, known before it runs: sink, window and tail are attended in any case.
//!
//! Lengths are those of each cell's first example, and answers have the length that an [estimate](super::estimate) assumes. The warning
//! after a run computes the same from what was attended.

use super::estimate::Sized;
use crate::config::protocol::Protocol;
use crate::plan::planner::{Planner, RunPlan};
use crate::summary::self_checks::{less_static, percent};
use spattn_attention::{Configured, Policy};

/// A density that cannot be reached at a task and length.
#[derive(Debug, Clone, PartialEq)]
pub struct UnmetDensity {
    /// The labels of the methods that ask for less.
    pub methods: Vec<String>,
    /// The task with the highest floor.
    pub task: String,
    /// The length in tokens; 0 if files determine it.
    pub length: usize,
    /// The largest of the densities that cannot be reached.
    pub asked: f64,
    /// The least density at that task and length.
    pub floor: Floor,
}

/// The shares of the tokens in context that are attended in any case, as means over the steps of an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Floor {
    /// The share of sink and window.
    pub fixed: f64,
    /// The share of what follows the prefix.
    pub tail: f64,
}

impl Floor {
    /// The floor under a policy, for a prefix of `prefix` tokens with `steps` tokens after it.
    fn of(policy: &Policy, prefix: usize, steps: usize) -> Self {
        let (mut fixed, mut tail, mut all) = (0, 0, 0);
        for after in 1..=steps {
            let context = prefix + after;
            all += context;
            match policy.tail.window(policy.local) {
                None => {
                    fixed += (policy.sink + policy.local).min(prefix);
                    tail += after;
                }
                Some(window) => fixed += (policy.sink + window).min(context),
            }
        }
        let share = |tokens: usize| tokens as f64 / all.max(1) as f64;
        Self { fixed: share(fixed), tail: share(tail) }
    }

    /// The sum of both shares.
    pub fn share(self) -> f64 {
        self.fixed + self.tail
    }
}

impl UnmetDensity {
    /// Describes it in one line for users.
    pub fn line(&self) -> String {
        let methods = match self.methods.as_slice() {
            [first, second, _, ..] => format!("{first}, {second} and {} more", self.methods.len() - 2),
            few => few.join(", "),
        };
        let at = if self.length > 0 { format!(" at {} tokens", self.length) } else { String::new() };
        let tail = match self.floor.tail > 0.0 {
            true => format!(", question and answer {} %", percent(self.floor.tail)),
            false => String::new(),
        };
        format!(
            "{methods} cannot be met on {}{at}: sink and recent window are {} % of the tokens{tail}, and are attended in any case, so about \
             {} % is the least. For {} %: {}",
            self.task,
            percent(self.floor.fixed),
            percent(self.floor.share()),
            percent(self.asked),
            less_static(self.floor.tail > 0.0)
        )
    }
}

/// The densities that a plan asks for and misses by more than a tenth, one for each policy, at the task and length with the highest floor.
/// Examples are made only if some method asks for a density.
pub fn unmet(planner: &Planner<'_>, plan: &RunPlan) -> Vec<UnmetDensity> {
    let asking: Vec<(&Configured, f64)> =
        planner.config.methods.iter().filter_map(|method| Some((method, method.asked_density()?))).collect();
    if asking.is_empty() {
        return Vec::new();
    }
    let sizes = planner.sized_cells(plan);
    let mut unmet: Vec<(Policy, UnmetDensity)> = Vec::new();
    for (method, asked) in asking {
        let of_cell = |(task, length, size): &(String, usize, Sized)| {
            let floors = planner.config.protocols.iter().zip(size.prefixes());
            let floors = floors.filter(|(protocol, _)| **protocol != Protocol::Prefill);
            let floors = floors.map(|(_, prefix)| Floor::of(&method.policy, *prefix, size.steps_after(*prefix)));
            let greatest = floors.max_by(|a, b| a.share().total_cmp(&b.share()))?;
            Some((task.clone(), *length, greatest))
        };
        let Some((task, length, floor)) =
            sizes.iter().filter_map(of_cell).max_by(|a, b| a.2.share().total_cmp(&b.2.share()))
        else {
            continue;
        };
        if floor.share() <= asked * (1.0 + TOLERANCE) {
            continue;
        }
        match unmet.iter_mut().find(|(policy, _)| *policy == method.policy) {
            Some((_, known)) => {
                known.methods.push(method.label());
                known.asked = known.asked.max(asked);
            }
            None => {
                let methods = vec![method.label()];
                unmet.push((method.policy.clone(), UnmetDensity { methods, task, length, asked, floor }));
            }
        }
    }
    unmet.into_iter().map(|(_, unmet)| unmet).collect()
}

/// A density that is missed by less than this share of it counts as met.
const TOLERANCE: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;
    use spattn_attention::Tail;

    fn policy(sink: usize, local: usize, tail: Tail) -> Policy {
        Policy { sink, local, tail, ..Policy::default() }
    }

    /// The floor counted token by token: what a method attends that selects nothing.
    fn counted(policy: &Policy, prefix: usize, steps: usize) -> f64 {
        let (mut attended, mut all) = (0, 0);
        for now in prefix..prefix + steps {
            let is_static = |token: &usize| match policy.tail.window(policy.local) {
                None => *token < policy.sink || *token + policy.local >= prefix,
                Some(window) => *token < policy.sink || *token + window > now,
            };
            attended += (0..=now).filter(is_static).count();
            all += now + 1;
        }
        attended as f64 / all as f64
    }

    #[test]
    fn the_floor_is_what_is_static() {
        for (policy, prefix, steps) in [
            (policy(4, 64, Tail::Exact), 774, 48),
            (policy(4, 16, Tail::Indexed), 774, 50),
            (policy(0, 8, Tail::Window(3)), 100, 7),
            (policy(4, 64, Tail::Exact), 30, 5),
        ] {
            let (floor, expected) = (Floor::of(&policy, prefix, steps), counted(&policy, prefix, steps));
            assert!((floor.share() - expected).abs() < 1e-12, "{policy:?} {prefix}: {floor:?} {expected}");
        }
    }

    #[test]
    fn a_line_names_the_least_and_the_way() {
        let floor = Floor::of(&policy(4, 64, Tail::Exact), 774, 48);
        let methods = vec!["quest:density=0.05".to_owned()];
        let unmet = UnmetDensity { methods, task: "jsonl:my".to_owned(), length: 0, asked: 0.05, floor };
        let line = unmet.line();
        for part in [
            "quest:density=0.05 cannot be met on jsonl:my: ",
            "so about 11.6 % is the least. For 5 %: --local 16 --tail indexed",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}
