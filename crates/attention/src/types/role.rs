//! What a method is for, among those that it is compared with.

/// The role of a registered method, by which conclusions and figures treat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Attention over all tokens: the reference of all comparisons.
    Reference,
    /// A published method.
    Method,
    /// It sees exact scores of all candidates before it selects: an upper bound of what a budget allows, not a usable
    /// method.
    Oracle,
    /// It selects without looking at the data: a lower bound.
    Floor,
}

impl Role {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Role::Reference => "reference",
            Role::Method => "method",
            Role::Oracle => "oracle",
            Role::Floor => "floor",
        }
    }

    /// Its meaning, in one line.
    pub fn about(self) -> &'static str {
        match self {
            Role::Reference => "reference: attends all, and is what every other is held against",
            Role::Method => "method: published to be used",
            Role::Oracle => {
                "oracle: sees all exact scores before it chooses; shows what a budget allows, is never a winner"
            }
            Role::Floor => "floor: chooses without looking; what it reaches is had for nothing",
        }
    }
}
