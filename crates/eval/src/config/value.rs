//! Types of settings: how a value is parsed from an argument, checked, and converted to what a run uses.
//!
//! Their `Deserialize` implementations read values from a config.

use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches};
use serde::de::{self, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::bounds;
use super::flag::{Accepts, Flag, Holds};
use super::kv_tier::{KvMemory, KvTier};
use super::protocol::Protocol;
use super::thinking::Thinking;
use crate::records::timing::Latency;
use spattn_attention::kv::{KvDtype, PrefixDtype};
use spattn_attention::{DenseLayers, LocalLayers, Tail};
use spattn_base::disk::no_lfs_pointer;
use spattn_base::error::UsageError;
use spattn_base::given;
use spattn_kernels::precision::MatmulPrecision;
use spattn_model::device::Device;
use spattn_tasks::Positions;

// ---- what a setting's type can do ----

/// The type of a setting.
pub trait Value: Sized {
    /// How many values a setting of this type has.
    const HOLDS: Holds = Holds::One;

    /// Adds this type's action and parser to the argument `arg`.
    fn argument(arg: Arg, flag: &Flag) -> Arg;

    /// Takes the value out of the parsed arguments; `None` if it was not given.
    ///
    /// # Errors
    /// If the text is none of the type's names. Most types report mistakes only in [`check`](Self::check).
    fn take(arguments: &mut ArgMatches, flag: &Flag) -> Result<Option<Self>, UsageError>;

    /// Checks all values.
    ///
    /// # Errors
    /// The index of the first invalid value, and what is wrong with it.
    fn check(&self, flag: &Flag) -> Result<(), (usize, UsageError)>;

    /// The number of values.
    fn count(&self) -> usize {
        1
    }
}

/// The type of a single value.
pub trait Item: Clone {
    /// The type to which the parser of arguments converts a text.
    type Argument: Clone + Send + Sync + 'static;
    /// The type that a run gets.
    type Meaning;
    /// Whether an argument may begin with a minus sign.
    const IS_NUMBER: bool = false;
    /// The flag's action: whether it takes a value.
    const ACTION: ArgAction = ArgAction::Set;

    /// The parser of an argument.
    fn parser(flag: &Flag) -> ValueParser;

    /// Converts an argument to a value.
    ///
    /// # Errors
    /// If it is none of the type's names.
    fn from_argument(argument: Self::Argument, flag: &Flag) -> Result<Self, UsageError>;

    /// Takes the argument out of the parsed arguments.
    fn take_argument(arguments: &mut ArgMatches, flag: &Flag) -> Option<Self::Argument> {
        arguments.remove_one(flag.id)
    }

    /// Checks the value.
    ///
    /// # Errors
    /// What is wrong with the value.
    fn check(&self, _flag: &Flag) -> Result<(), UsageError> {
        Ok(())
    }

    /// Converts the value to what a run gets.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check).
    fn meaning(&self) -> Result<Self::Meaning, UsageError>;
}

impl<T: Item> Value for T {
    fn argument(arg: Arg, flag: &Flag) -> Arg {
        arg.action(T::ACTION).value_parser(T::parser(flag)).allow_negative_numbers(T::IS_NUMBER)
    }

    fn take(arguments: &mut ArgMatches, flag: &Flag) -> Result<Option<Self>, UsageError> {
        T::take_argument(arguments, flag).map(|argument| T::from_argument(argument, flag)).transpose()
    }

    fn check(&self, flag: &Flag) -> Result<(), (usize, UsageError)> {
        Item::check(self, flag).map_err(|error| (0, error))
    }
}

// ---- several values ----

/// One value, or several, each of which is run. In TOML, a value or a list of values.
#[derive(Debug, Clone, PartialEq)]
pub struct OneOrMany<T: Clone>(pub Vec<T>);

impl<T: Item> Value for Vec<T> {
    const HOLDS: Holds = Holds::List;

    fn argument(arg: Arg, flag: &Flag) -> Arg {
        let arg = arg.action(ArgAction::Append).value_parser(T::parser(flag)).allow_negative_numbers(T::IS_NUMBER);
        if flag.has_commas { arg.value_delimiter(',') } else { arg }
    }

    fn take(arguments: &mut ArgMatches, flag: &Flag) -> Result<Option<Self>, UsageError> {
        let given = arguments.remove_many::<T::Argument>(flag.id);
        given.map(|given| given.map(|argument| T::from_argument(argument, flag)).collect()).transpose()
    }

    fn check(&self, flag: &Flag) -> Result<(), (usize, UsageError)> {
        self.iter().enumerate().try_for_each(|(at, item)| Item::check(item, flag).map_err(|error| (at, error)))
    }

    fn count(&self) -> usize {
        self.len()
    }
}

impl<T: Item> Value for OneOrMany<T> {
    const HOLDS: Holds = Holds::OneOrMany;

    fn argument(arg: Arg, flag: &Flag) -> Arg {
        <Vec<T> as Value>::argument(arg, flag)
    }

    fn take(arguments: &mut ArgMatches, flag: &Flag) -> Result<Option<Self>, UsageError> {
        Ok(<Vec<T> as Value>::take(arguments, flag)?.map(Self))
    }

    fn check(&self, flag: &Flag) -> Result<(), (usize, UsageError)> {
        Value::check(&self.0, flag)
    }

    fn count(&self) -> usize {
        self.0.len()
    }
}

impl<T: Clone> From<T> for OneOrMany<T> {
    fn from(value: T) -> Self {
        Self(vec![value])
    }
}

impl<T: Clone + Serialize> Serialize for OneOrMany<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de, T: Clone + Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

/// Deserializes a value or a list of values. Errors about a value come from its own type.
struct OneOrManyVisitor<T>(PhantomData<T>);

impl<T> OneOrManyVisitor<T> {
    fn one<'de, V: IntoDeserializer<'de, E>, E: de::Error>(value: V) -> Result<OneOrMany<T>, E>
    where
        T: Clone + Deserialize<'de>,
    {
        Ok(OneOrMany(vec![T::deserialize(value.into_deserializer())?]))
    }
}

impl<'de, T: Clone + Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<OneOrMany<T>, E> {
        Self::one(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<OneOrMany<T>, E> {
        Self::one(value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<OneOrMany<T>, E> {
        Self::one(value)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<OneOrMany<T>, E> {
        Self::one(value)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<OneOrMany<T>, E> {
        Self::one(value.to_owned())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<OneOrMany<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element()? {
            values.push(value);
        }
        Ok(OneOrMany(values))
    }
}

/// The distinct values of `key` in their order; `default` if the key was not given.
pub(super) fn alternatives<T: Clone + Eq + Hash>(
    key: &str,
    given: Option<&OneOrMany<T>>,
    default: T,
) -> Result<Vec<T>, UsageError> {
    let Some(OneOrMany(given)) = given else { return Ok(vec![default]) };
    let mut seen = HashSet::with_capacity(given.len());
    let values: Vec<T> = given.iter().filter(|value| seen.insert(*value)).cloned().collect();
    if values.is_empty() {
        return Err(UsageError::new(format!("`{key}` has no value")).hint("give one, or leave the key out"));
    }
    Ok(values)
}

/// The meanings of values, in order.
///
/// # Errors
/// The error of the first invalid value.
pub(super) fn meanings<T: Item>(values: &[T]) -> Result<Vec<T::Meaning>, UsageError> {
    values.iter().map(T::meaning).collect()
}

// ---- texts with a meaning ----

/// A text with a meaning, such as `last:32`: the text as the user wrote it, and what it means.
///
/// The text is parsed once, when the value is made. If that fails, the error is kept until the check of all settings,
/// which can name the flag, or the line and key. The value is serialized as the text.
#[derive(Debug, Clone)]
pub struct Given<T> {
    text: String,
    meaning: Result<T, UsageError>,
}

/// The meaning of a text.
pub trait Meaning: Clone {
    /// Parses a text.
    ///
    /// # Errors
    /// If the text is invalid. The error says what would be valid.
    fn from_text(text: &str) -> Result<Self, UsageError>;
}

impl<T: Meaning> Given<T> {
    /// Parses a text as the user wrote it.
    pub fn new(text: String) -> Self {
        Self { meaning: T::from_text(&text), text }
    }

    /// Makes a value from a meaning; its text is how the meaning is displayed.
    pub fn meant(meaning: T) -> Self
    where
        T: fmt::Display,
    {
        Self { text: meaning.to_string(), meaning: Ok(meaning) }
    }
}

impl<T> PartialEq for Given<T> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl<T> Eq for Given<T> {}

impl<T> Hash for Given<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl<T> Serialize for Given<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de, T: Meaning> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

impl<T: Meaning> Item for Given<T> {
    type Argument = String;
    type Meaning = T;

    fn parser(_flag: &Flag) -> ValueParser {
        ValueParser::string()
    }

    fn from_argument(argument: String, _flag: &Flag) -> Result<Self, UsageError> {
        Ok(Self::new(argument))
    }

    fn check(&self, _flag: &Flag) -> Result<(), UsageError> {
        self.meaning.as_ref().map(drop).map_err(Clone::clone)
    }

    fn meaning(&self) -> Result<T, UsageError> {
        self.meaning.clone()
    }
}

impl Meaning for Protocol {
    fn from_text(text: &str) -> Result<Self, UsageError> {
        text.parse()
    }
}

impl Meaning for DenseLayers {
    fn from_text(text: &str) -> Result<Self, UsageError> {
        Self::parse(text)
    }
}

impl Meaning for Tail {
    fn from_text(text: &str) -> Result<Self, UsageError> {
        text.parse()
    }
}

impl Meaning for PrefixDtype {
    fn from_text(text: &str) -> Result<Self, UsageError> {
        text.parse()
    }
}

impl Meaning for Device {
    fn from_text(text: &str) -> Result<Self, UsageError> {
        text.parse()
    }
}

impl Meaning for KvDtype {
    fn from_text(text: &str) -> Result<Self, UsageError> {
        parse_dtype(text)
    }
}

impl Meaning for KvMemory {
    fn from_text(text: &str) -> Result<Self, UsageError> {
        text.parse()
    }
}

impl Meaning for MatmulPrecision {
    fn from_text(text: &str) -> Result<Self, UsageError> {
        parse_matmul_precision(text)
    }
}

/// The text of a system prompt.
#[derive(Debug, Clone)]
pub struct SystemPrompt(String);

impl Meaning for SystemPrompt {
    fn from_text(text: &str) -> Result<Self, UsageError> {
        system_text(text).map(Self)
    }
}

impl fmt::Display for SystemPrompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<SystemPrompt> for Option<String> {
    fn from(prompt: SystemPrompt) -> Self {
        Some(prompt.0)
    }
}

/// Reads a system prompt as a user gives it: a text, or `@FILE` for the text of a file without trailing white space.
///
/// # Errors
/// If the file cannot be read, or the text is empty.
pub fn system_text(given: &str) -> Result<String, UsageError> {
    let text = match given.strip_prefix('@') {
        None => given.to_owned(),
        Some(file) => {
            let text = given::text(Path::new(file), given::MOST_OF_SETTINGS).map_err(|e| {
                UsageError::new(format!("cannot read {file}: {e}")).hint("@FILE takes a text file in UTF-8")
            })?;
            no_lfs_pointer(file, text.as_bytes())?;
            text.trim_end().to_owned()
        }
    };
    match text.trim().is_empty() {
        true => Err(UsageError::new("the system prompt is empty").hint("leave it out to run without a system prompt")),
        false => Ok(text),
    }
}

/// The storage type of a name.
///
/// # Errors
/// A [`UsageError`] that suggests the nearest name.
pub fn parse_dtype(name: &str) -> Result<KvDtype, UsageError> {
    let all = [KvDtype::F32, KvDtype::Bf16, KvDtype::F16];
    all.into_iter()
        .find(|d| d.name() == name)
        .ok_or_else(|| UsageError::unknown("dtype", name, all.iter().map(|d| d.name())))
}

/// The precision of matrix products of a name.
///
/// # Errors
/// A [`UsageError`] that suggests the nearest name.
pub fn parse_matmul_precision(name: &str) -> Result<MatmulPrecision, UsageError> {
    let all = MatmulPrecision::ALL;
    all.into_iter()
        .find(|precision| precision.name() == name)
        .ok_or_else(|| UsageError::unknown("matmul precision", name, all.iter().map(|precision| precision.name())))
}

// ---- single values ----

/// A switch: its flag takes no value, and stands for the value in the flag's row.
impl Item for bool {
    type Argument = bool;
    type Meaning = bool;
    const ACTION: ArgAction = ArgAction::SetTrue;

    fn parser(_flag: &Flag) -> ValueParser {
        ValueParser::bool()
    }

    fn from_argument(argument: bool, flag: &Flag) -> Result<Self, UsageError> {
        Ok(argument == (flag.accepts == Accepts::Switch(true)))
    }

    fn take_argument(arguments: &mut ArgMatches, flag: &Flag) -> Option<bool> {
        arguments.remove_one(flag.id).filter(|is_given| *is_given)
    }

    fn meaning(&self) -> Result<bool, UsageError> {
        Ok(*self)
    }
}

impl Item for usize {
    type Argument = usize;
    type Meaning = usize;
    const IS_NUMBER: bool = true;

    fn parser(flag: &Flag) -> ValueParser {
        let accepts = flag.accepts;
        ValueParser::new(move |text: &str| match accepts {
            Accepts::Whole { least, most } => bounds::whole(text, least..=most),
            Accepts::Tokens { .. } => bounds::tokens(text),
            Accepts::Threads => bounds::threads(text),
            _ => bounds::whole(text, 0..=usize::MAX),
        })
    }

    fn from_argument(argument: usize, _flag: &Flag) -> Result<Self, UsageError> {
        Ok(argument)
    }

    fn check(&self, flag: &Flag) -> Result<(), UsageError> {
        flag.check_number(*self)
    }

    fn meaning(&self) -> Result<usize, UsageError> {
        Ok(*self)
    }
}

impl Item for f64 {
    type Argument = f64;
    type Meaning = f64;
    const IS_NUMBER: bool = true;

    fn parser(flag: &Flag) -> ValueParser {
        let accepts = flag.accepts;
        ValueParser::new(move |text: &str| match accepts {
            Accepts::Decimal { least, most } => bounds::decimal(text, least..=most),
            _ => bounds::decimal(text, f64::MIN..=f64::MAX),
        })
    }

    fn from_argument(argument: f64, _flag: &Flag) -> Result<Self, UsageError> {
        Ok(argument)
    }

    fn check(&self, flag: &Flag) -> Result<(), UsageError> {
        flag.check_decimal(*self)
    }

    fn meaning(&self) -> Result<f64, UsageError> {
        Ok(*self)
    }
}

impl Item for u64 {
    type Argument = u64;
    type Meaning = u64;
    const IS_NUMBER: bool = true;

    fn parser(_flag: &Flag) -> ValueParser {
        ValueParser::new(bounds::seed)
    }

    fn from_argument(argument: u64, _flag: &Flag) -> Result<Self, UsageError> {
        Ok(argument)
    }

    fn meaning(&self) -> Result<u64, UsageError> {
        Ok(*self)
    }
}

impl Item for String {
    type Argument = String;
    type Meaning = String;

    fn parser(_flag: &Flag) -> ValueParser {
        ValueParser::string()
    }

    fn from_argument(argument: String, _flag: &Flag) -> Result<Self, UsageError> {
        Ok(argument)
    }

    fn check(&self, flag: &Flag) -> Result<(), UsageError> {
        flag.check.map_or(Ok(()), |check| check(self))
    }

    fn meaning(&self) -> Result<String, UsageError> {
        Ok(self.clone())
    }
}

impl Item for PathBuf {
    type Argument = PathBuf;
    type Meaning = PathBuf;

    fn parser(_flag: &Flag) -> ValueParser {
        ValueParser::path_buf()
    }

    fn from_argument(argument: PathBuf, _flag: &Flag) -> Result<Self, UsageError> {
        Ok(argument)
    }

    fn meaning(&self) -> Result<PathBuf, UsageError> {
        Ok(self.clone())
    }
}

/// Implements [`Item`] for types whose values have names. In a config, their `Deserialize` refuses unknown names.
macro_rules! named_values {
    ($($type:ty),*) => {$(
        impl Item for $type {
            type Argument = String;
            type Meaning = $type;

            fn parser(_flag: &Flag) -> ValueParser {
                ValueParser::string()
            }

            fn from_argument(argument: String, _flag: &Flag) -> Result<Self, UsageError> {
                argument.parse()
            }

            fn meaning(&self) -> Result<$type, UsageError> {
                Ok(*self)
            }
        }
    )*};
}

named_values!(KvTier, Latency, LocalLayers, Positions, Thinking);
