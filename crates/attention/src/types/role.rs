//! The role of a method in comparisons with others.

/// The role of a registered method, by which conclusions and figures treat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Attention over all tokens: the reference of all comparisons.
    Reference,
    /// A published method.
    Method,
    /// Selects by exact scores of all candidates: an upper bound for a budget, not a usable method.
    Oracle,
    /// Selects without looking at the data: a lower bound.
    Floor,
}

impl Role {
    /// Returns the role's name.
    pub fn name(self) -> &'static str {
        match self {
            Role::Reference => "reference",
            Role::Method => "method",
            Role::Oracle => "oracle",
            Role::Floor => "floor",
        }
    }

    /// Returns the role's meaning, in one line.
    pub fn about(self) -> &'static str {
        match self {
            Role::Reference => "reference: attends every token; all other methods are compared with it",
            Role::Method => "method: published for practical use",
            Role::Oracle => {
                "oracle: knows all exact scores before it selects; an upper bound for a budget, never named as the best"
            }
            Role::Floor => "floor: selects without looking at keys; a useful method does better",
        }
    }
}
