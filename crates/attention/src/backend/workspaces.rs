//! [`Workspaces`]: memory kept from step to step, each part of it known only to its user.

use std::any::{Any, TypeId};
use std::collections::HashMap;

/// Memory kept from one use to the next, so that nothing is allocated in between: one value of each type.
#[derive(Debug, Default)]
pub struct Workspaces(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl Workspaces {
    /// Returns the workspace of this type, creating it on first use. All who name the type share it.
    pub fn of<W: Any + Default + Send + Sync>(&mut self) -> &mut W {
        let workspace = self.0.entry(TypeId::of::<W>()).or_insert_with(|| Box::<W>::default());
        workspace.downcast_mut().expect("a workspace is stored under its own type")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_is_kept_and_is_not_that_of_another_type() {
        let mut workspaces = Workspaces::default();
        workspaces.of::<Vec<u8>>().push(3);
        workspaces.of::<Vec<u16>>().push(4);
        workspaces.of::<Vec<u8>>().push(5);
        assert_eq!(*workspaces.of::<Vec<u8>>(), [3, 5]);
        assert_eq!(*workspaces.of::<Vec<u16>>(), [4]);
    }
}
