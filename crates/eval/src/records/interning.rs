//! Interning: a value that many records share is in memory once.
//!
//! Every record names its model, task, method and settings, so a million records repeat a few hundred values. Records that are read
//! through a [`Pool`] share them by pointers.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value that is shared with its clones and compared by content.
pub struct Interned<T: ?Sized>(Arc<T>);

/// An interned text.
pub type InternedStr = Interned<str>;

impl<T: ?Sized> Interned<T> {
    /// The address of the value in memory, which clones share.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).cast::<()>().addr()
    }
}

impl Interned<str> {
    /// The text.
    pub fn as_str(&self) -> &str {
        self
    }
}

impl<T: ?Sized> Clone for Interned<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: ?Sized> Deref for Interned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> Borrow<T> for Interned<T> {
    fn borrow(&self) -> &T {
        self
    }
}

impl<T: ?Sized + PartialEq> PartialEq for Interned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address() || **self == **other
    }
}

impl<T: ?Sized + Eq> Eq for Interned<T> {}

impl<T: ?Sized + Ord> PartialOrd for Interned<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: ?Sized + Ord> Ord for Interned<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.address() == other.address() { Ordering::Equal } else { (**self).cmp(&**other) }
    }
}

impl<T: ?Sized + Hash> Hash for Interned<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Interned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for Interned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Default> Default for Interned<T> {
    fn default() -> Self {
        T::default().into()
    }
}

impl Default for InternedStr {
    fn default() -> Self {
        "".into()
    }
}

impl<T> From<T> for Interned<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl From<&str> for InternedStr {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for InternedStr {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&String> for InternedStr {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<InternedStr> for String {
    fn from(text: InternedStr) -> Self {
        text.as_str().to_owned()
    }
}

impl PartialEq<str> for InternedStr {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for InternedStr {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl PartialEq<String> for InternedStr {
    fn eq(&self, other: &String) -> bool {
        **self == **other
    }
}

impl PartialEq<InternedStr> for String {
    fn eq(&self, other: &InternedStr) -> bool {
        **self == **other
    }
}

impl<T: ?Sized + Serialize> Serialize for Interned<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Interned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::from)
    }
}

impl<'de> Deserialize<'de> for InternedStr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// The values of one type that were seen so far.
#[derive(Debug)]
pub struct Pool<T: ?Sized>(HashSet<Interned<T>>);

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<T: ?Sized + Eq + Hash> Pool<T> {
    /// Replaces a value by the equal one that was seen first.
    pub fn share(&mut self, value: &mut Interned<T>) {
        match self.0.get(&**value) {
            Some(known) => *value = known.clone(),
            None => drop(self.0.insert(value.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_equal_is_held_once() {
        let mut pool = Pool::default();
        let mut texts: Vec<InternedStr> = ["a", "b", "a"].map(InternedStr::from).to_vec();
        assert_ne!(texts[0].address(), texts[2].address());
        texts.iter_mut().for_each(|text| pool.share(text));
        assert_eq!(texts[0].address(), texts[2].address());
        assert_eq!(texts, ["a", "b", "a"]);
    }

    #[test]
    fn content_decides_wherever_it_is() {
        let [a, same, b] = ["k=8", "k=8", "k=9"].map(InternedStr::from);
        assert!(a == same && a != b && a < b && a.clone() == a && a.cmp(&same) == Ordering::Equal);
        assert_eq!((format!("{a}"), format!("{a:?}")), ("k=8".to_owned(), "\"k=8\"".to_owned()));
        assert_eq!(serde_json::from_str::<InternedStr>(&serde_json::to_string(&a).unwrap()).unwrap(), a);
        assert!(HashSet::from([a]).contains("k=8"));
    }
}
