//! [`IndexKey`]: which sequences can share an index.

use std::any::Any;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The settings of a method that its index over a prefix depends on. Methods of one name share an index if their keys are equal; methods
/// of several names do so if their keys were made by [`of_several_methods`](Self::of_several_methods).
///
/// A key is a value of the method's own type, so that the compiler checks its completeness: either the whole method, with derived `Eq`
/// and `Hash`, or what an exhaustive pattern (`let Self { page, ties: _ } = self`) takes from it. Keys of different types differ.
#[derive(Debug, Clone)]
pub struct IndexKey {
    settings: Arc<dyn Settings>,
    of_several: bool,
}

impl IndexKey {
    /// The key of an index with these settings.
    pub fn new(settings: impl Any + Debug + Eq + Hash + Send + Sync) -> Self {
        Self { settings: Arc::new(settings), of_several: false }
    }

    /// The key of an index that several methods build from the same settings. Methods with keys of one type must have one type of index.
    pub fn of_several_methods(settings: impl Any + Debug + Eq + Hash + Send + Sync) -> Self {
        Self { of_several: true, ..Self::new(settings) }
    }

    /// The key of an index that depends on no setting of the method.
    pub fn none() -> Self {
        Self::new(())
    }

    /// Whether methods of several names can share the index.
    pub(crate) fn is_of_several_methods(&self) -> bool {
        self.of_several
    }
}

impl PartialEq for IndexKey {
    fn eq(&self, other: &Self) -> bool {
        self.of_several == other.of_several && self.settings.is(other.settings.as_ref())
    }
}

impl Eq for IndexKey {}

impl Hash for IndexKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.settings.write(state);
    }
}

/// Settings with their type erased.
trait Settings: Any + Debug + Send + Sync {
    fn is(&self, other: &dyn Settings) -> bool;
    fn write(&self, state: &mut dyn Hasher);
}

impl<S: Any + Debug + Eq + Hash + Send + Sync> Settings for S {
    fn is(&self, other: &dyn Settings) -> bool {
        (other as &dyn Any).downcast_ref() == Some(self)
    }

    fn write(&self, mut state: &mut dyn Hasher) {
        self.type_id().hash(&mut state);
        self.hash(&mut state);
    }
}

/// A floating-point setting of a key; two are equal if their bits are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bits(u64);

impl From<f64> for Bits {
    fn from(number: f64) -> Self {
        Self(number.to_bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_equal_if_type_and_settings_are() {
        #[derive(Debug, PartialEq, Eq, Hash)]
        struct Pages(usize);
        #[derive(Debug, PartialEq, Eq, Hash)]
        struct Blocks(usize);
        let keys = [
            IndexKey::new(Pages(3)),
            IndexKey::new(Pages(4)),
            IndexKey::new(Blocks(3)),
            IndexKey::none(),
            IndexKey::new((Bits::from(0.5), 1)),
            IndexKey::new((Bits::from(0.25), 1)),
        ];
        let distinct: HashSet<IndexKey> = keys.iter().cloned().collect();
        assert_eq!(distinct.len(), keys.len());
        assert!(distinct.contains(&IndexKey::new(Pages(4))) && !distinct.contains(&IndexKey::new(Pages(5))));
        assert_eq!(IndexKey::new((Bits::from(0.5), 1)), keys[4]);
        assert_ne!(IndexKey::of_several_methods(Pages(3)), keys[0]);
        assert_eq!(IndexKey::of_several_methods(Pages(3)), IndexKey::of_several_methods(Pages(3)));
    }
}
