//! What a method is for, among those that it is compared with.

/// One for each registered method: conclusions and figures go by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Attention over all tokens, which every other is held against.
    Reference,
    /// A method that somebody published to be used.
    Method,
    /// It sees exact scores of all candidates before it chooses: what it reaches shows what the budget allows, not
    /// what can be had for it.
    Oracle,
    /// It chooses without looking: what it reaches is had for nothing.
    Floor,
}

impl Role {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Reference => "reference",
            Role::Method => "method",
            Role::Oracle => "oracle",
            Role::Floor => "floor",
        }
    }

    /// A line that says what it means.
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
