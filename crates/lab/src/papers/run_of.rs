//! Which run of an item was measured, and which of its rows and columns the run's numbers are of.
//!
//! A row that names a model is about that model alone. The numbers of another model are no numbers of that row: they are a row of their own,
//! which has the name of the model that was run, and which stands in for the paper's row where a claim is tested.

use super::item::{Item, Line, Variant};

/// The model of this program.
pub const BUILTIN: &str = "builtin";

/// A run of an item.
#[derive(Debug, Clone, Copy)]
pub struct RunOf<'a> {
    /// The variant.
    pub variant: Variant,
    /// The only model that was run; `None` if rows are of the models that they name.
    pub model: Option<&'a str>,
}

/// What the numbers of a run are to a row or column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// They are its own.
    Own,
    /// They stand in for those of another model, under the name of the model that was run.
    StandIn,
    /// It has none.
    None,
}

impl RunOf<'_> {
    /// A run in which every row is of the model that it names.
    pub const AS_NAMED: Self = Self { variant: Variant::Paper, model: None };

    /// What the run's numbers are to a row or column.
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

    /// Whether two rows have numbers that can be compared: not if one model stands in for two.
    pub(super) fn compares(&self, item: &Item, a: &Line, b: &Line) -> bool {
        let stands_in = [a, b].iter().any(|line| self.role(item, line) == Role::StandIn);
        !stands_in || a.model == b.model
    }
}

/// Whether two names are of one model: a hub id, or a folder or file with the same last name.
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
