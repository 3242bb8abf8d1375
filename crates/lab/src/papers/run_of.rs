//! Which run of an item was measured, and to which rows and columns the run's numbers belong.
//!
//! A row that names a model is about that model alone. Numbers of another model do not belong to that row: they form a row of their own,
//! named after the model that was run, which stands in for the paper's row where a claim is tested.

use super::item::{Item, Line, Variant};

/// The name of the built-in model.
pub const BUILTIN: &str = "builtin";

/// A run of an item.
#[derive(Debug, Clone, Copy)]
pub struct RunOf<'a> {
    /// The variant.
    pub variant: Variant,
    /// The only model that was run; `None` if each row belongs to the model that it names.
    pub model: Option<&'a str>,
}

/// How the numbers of a run relate to a row or column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The numbers are its own.
    Own,
    /// The numbers stand in for those of another model, under the name of the model that was run.
    StandIn,
    /// The run has no numbers for it.
    None,
}

impl RunOf<'_> {
    /// A run in which each row belongs to the model that it names.
    pub const AS_NAMED: Self = Self { variant: Variant::Paper, model: None };

    /// Returns how the run's numbers relate to a row or column.
    pub fn role(&self, item: &Item, line: &Line) -> Role {
        let (Some(own), Some(run)) = (line.model.as_deref(), self.model) else { return Role::Own };
        if own == BUILTIN {
            return if self.variant == Variant::Builtin { Role::Own } else { Role::None };
        }
        if is_same(own, run) {
            return Role::Own;
        }
        let is_of_run = |other: &Line| other.model.as_deref().is_some_and(|model| is_same(model, run));
        if item.lines().any(is_of_run) { Role::None } else { Role::StandIn }
    }

    /// Whether the run has numbers for a cell.
    pub(super) fn measures(&self, item: &Item, row: &Line, column: &Line) -> bool {
        [row, column].iter().all(|line| self.role(item, line) != Role::None)
    }

    /// Whether the numbers of two rows can be compared: not if one model stands in for two.
    pub(super) fn compares(&self, item: &Item, a: &Line, b: &Line) -> bool {
        let stands_in = [a, b].iter().any(|line| self.role(item, line) == Role::StandIn);
        !stands_in || a.model == b.model
    }
}

/// Whether two names mean the same model: a hub id, or a folder or file with the same last name.
fn is_same(a: &str, b: &str) -> bool {
    let last = |name: &str| {
        let name = name.trim_end_matches('/');
        let name = name.rsplit('/').next().unwrap_or(name);
        name.split('@').next().unwrap_or(name).to_ascii_lowercase()
    };
    last(a) == last(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: &str = "
title = 'a'
[run]
model = ['x/One', 'x/Two']
tasks = ['ruler/vt']
[[row]]
name = 'One'
model = 'x/One'
method = 'full'
[[row]]
name = 'Two'
model = 'x/Two'
method = 'full'
[[row]]
name = 'Any'
method = 'full'
[[row]]
name = 'Ours'
model = 'builtin'
method = 'full'
[[column]]
name = 'VT'
";

    #[test]
    fn rows_of_another_model_get_no_numbers_of_the_one_that_was_run() {
        let item = Item::parse(ITEM, "item.toml").unwrap();
        let roles = |variant: Variant, model: Option<&str>| {
            let run = RunOf { variant, model };
            item.rows.iter().map(|row| run.role(&item, row)).collect::<Vec<_>>()
        };
        use Role::{None, Own, StandIn};
        assert_eq!(roles(Variant::Paper, Option::None), [Own; 4]);
        assert_eq!(roles(Variant::Paper, Some("./models/two")), [None, Own, Own, None]);
        assert_eq!(roles(Variant::Paper, Some("org/Three@main")), [StandIn, StandIn, Own, None]);
        assert_eq!(roles(Variant::Builtin, Some(BUILTIN)), [None, None, Own, Own], "it has a row of its own");
        let run = RunOf { variant: Variant::Real, model: Some("Three") };
        let [one, two, any, _] = item.rows.as_slice() else { panic!() };
        assert!(!run.compares(&item, one, two) && run.compares(&item, one, one) && run.compares(&item, any, any));
    }
}
