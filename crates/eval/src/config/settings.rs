//! Settings of a run as flags and config files give them, before they are resolved: one field for each row of the table.

use std::path::PathBuf;

use clap::ArgMatches;
use serde::{Deserialize, Serialize, Serializer};

use super::bounds::{MOST_REPEATS, MOST_SAMPLES, MOST_VALUES};
use super::flag::{Flag, Holds};
use super::flags::with_settings;
use super::kv_tier::{KvMemory, KvTier};
use super::protocol::Protocol;
use super::thinking::Thinking;
use super::value::{Given, OneOrMany, SystemPrompt, Value};
use crate::records::timing::Latency;
use spattn_attention::kv::{KvDtype, MOST_TOKENS, PrefixDtype};
use spattn_attention::methods::{configure, starts_command};
use spattn_attention::{DenseLayers, LocalLayers, Policy, Tail, expand_grid};
use spattn_base::error::UsageError;
use spattn_kernels::precision::MatmulPrecision;
use spattn_model::device::Device;
use spattn_tasks::Positions;

/// Defines [`Settings`], and the functions that visit all of its fields.
macro_rules! define_settings {
    ($(
        $(#[doc = $doc:literal])* $(#[serde($($serde:tt)*)])?
        $key:ident: $type:ty $(=> $run:ty = $default:expr)?, $flag:expr;
    )*) => {
        /// Settings of a run. `None` leaves a setting to the next layer: flags, config file, `configs/quick.toml`.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Settings {
            $( $(#[doc = $doc])* $(#[serde($($serde)*)])? pub $key: Option<$type>, )*
        }

        /// The row of each setting, by the name of its field.
        struct Rows {
            $( $key: Flag, )*
        }

        const ROWS: Rows = Rows {
            $( $key: $flag.key().row(stringify!($key), &[$($doc),*]).of_type(<$type as Value>::HOLDS, <$type as Value>::argument), )*
        };

        /// The rows of settings, in the order of the table.
        pub const SETTINGS: &[Flag] = &[$(ROWS.$key),*];

        impl Settings {
            /// Takes the settings out of the parsed arguments.
            ///
            /// # Errors
            /// If a value is none of its type's names. [`check_values`](Self::check_values) finds all other mistakes.
            pub fn from_arguments(arguments: &mut ArgMatches) -> Result<Self, UsageError> {
                Ok(Self { $( $key: take(arguments, &ROWS.$key)?, )* })
            }

            /// These settings, with those of `base` where these have `None`.
            pub fn over(self, base: Self) -> Self {
                Self { $( $key: self.$key.or(base.$key), )* }
            }

            /// Checks every value before any is used; numbers of values first, because values are combined.
            ///
            /// # Errors
            /// The first invalid value, in the order of the table.
            pub fn check_values(&self) -> Result<(), InvalidValue> {
                $( check_count(&ROWS.$key, self.$key.as_ref())?; )*
                $( check(&ROWS.$key, self.$key.as_ref())?; )*
                Ok(())
            }

            /// The first key with several values where only a sweep takes more than one.
            pub(super) fn key_of_several(&self) -> Option<&'static str> {
                let counts = [$( self.$key.as_ref().map_or(0, Value::count) ),*];
                let mut swept = SETTINGS.iter().zip(counts).filter(|(flag, _)| flag.holds == Holds::OneOrMany);
                swept.find(|(_, count)| *count > 1).map(|(flag, _)| flag.id)
            }
        }
    };
}

with_settings!(define_settings);

impl Settings {
    /// [`over`](Self::over) without the `about` text of `base`, if these settings change the matrix that it describes.
    pub fn over_described(self, mut base: Self) -> Self {
        let Self { model, tasks, lengths, methods, samples, sparse_from, .. } = &self;
        let names = tasks.is_some() || lengths.is_some() || methods.is_some();
        if names || model.is_some() || samples.is_some() || sparse_from.is_some() {
            base.about = None;
        }
        self.over(base)
    }
}

/// A value that is out of range or malformed.
#[derive(Debug)]
pub struct InvalidValue {
    /// Its key.
    pub key: &'static str,
    /// The index of the wrong value in the key's list, from 0.
    pub item: usize,
    /// What is wrong with it.
    pub error: UsageError,
}

fn take<T: Value>(arguments: &mut ArgMatches, flag: &Flag) -> Result<Option<T>, UsageError> {
    match flag.name {
        None => Ok(None),
        Some(_) => T::take(arguments, flag),
    }
}

fn check<T: Value>(flag: &Flag, value: Option<&T>) -> Result<(), InvalidValue> {
    let checked = value.map_or(Ok(()), |value| value.check(flag));
    checked.map_err(|(item, error)| InvalidValue { key: flag.id, item, error })
}

fn check_count<T: Value>(flag: &Flag, value: Option<&T>) -> Result<(), InvalidValue> {
    match value.map_or(0, Value::count) {
        0..=MOST_VALUES => Ok(()),
        count => {
            let error = UsageError::new(format!("{count} values were given"))
                .hint(format!("a run takes {MOST_VALUES} at most: split it into several runs"));
            Err(InvalidValue { key: flag.id, item: 0, error })
        }
    }
}

/// Paths that are not UTF-8 are written with replacement characters.
fn as_shown<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.to_string_lossy()).serialize(serializer)
}

/// The error for a number of samples that is out of bounds.
fn not_so_many_samples(_flag: &Flag, samples: usize) -> UsageError {
    let hint = match samples {
        0 => "--samples takes a whole number from 1".to_owned(),
        _ => format!("--samples takes a whole number from 1 to {MOST_SAMPLES}"),
    };
    UsageError::new(format!("{samples} samples were asked for")).hint(hint)
}

/// The error for a length that is out of bounds.
fn not_a_length(_flag: &Flag, length: usize) -> UsageError {
    UsageError::new(format!("a length of {length} was asked for"))
        .hint(format!("a number of tokens from 1 to {MOST_TOKENS}, for example --length 4096"))
}

/// The error for a number of sink or window tokens that is out of bounds.
fn not_so_many_static_tokens(flag: &Flag, tokens: usize) -> UsageError {
    UsageError::new(format!("{tokens} static tokens were asked for"))
        .hint(format!("`{}` takes a number of tokens from 0 to {MOST_TOKENS}", flag.id))
}

/// Checks a text that ends answers where it occurs.
fn check_stop(text: &str) -> Result<(), UsageError> {
    match text.is_empty() {
        true => Err(UsageError::new("`stop`: a text that ends answers is empty").hint("leave it out for none")),
        false => Ok(()),
    }
}

/// Checks a method's spec under the default policy. The configured methods are dropped, because a list of specs can stand for
/// more than fits in memory; their number is checked when the run is resolved. Only a run starts external commands.
fn check_method(spec: &str) -> Result<(), UsageError> {
    let specs = expand_grid(spec)?;
    let mut ours = specs.iter().filter(|spec| !starts_command(spec));
    ours.try_for_each(|spec| configure(spec, &Policy::default()).map(drop))
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;
    use crate::config::value::Item;
    use crate::records::changes::in_words;

    #[test]
    fn what_a_run_is_known_by_has_a_name_that_users_know() {
        let fields: Vec<(&Flag, &str)> = SETTINGS.iter().filter_map(|flag| Some((flag, flag.identity?))).collect();
        assert!(fields.len() >= 10, "{fields:?}");
        for (flag, field) in fields {
            let words = in_words(field, &Json::Null, &Json::from(1));
            assert!(!words.starts_with(&format!("`{field}`")), "`{}`: {words}", flag.id);
        }
    }

    #[test]
    fn a_text_is_written_as_it_was_given_and_means_what_it_says() {
        let settings = Settings::parse("tail = ['window:04', 'exact']\ndtype = 'bf16'", "test.toml").unwrap();
        assert_eq!(serde_json::to_value(&settings).unwrap()["tail"], serde_json::json!(["window:04", "exact"]));
        assert_eq!(settings.tail.unwrap().0[0].meaning(), Ok(Tail::Window(4)));
        assert_eq!(settings.dtype.unwrap().meaning(), Ok(KvDtype::Bf16));
    }

    #[test]
    fn what_flags_say_goes_before_a_config_key_by_key() {
        let flags = Settings { samples: Some(3), sink: Some(8_usize.into()), ..Settings::default() };
        let config = Settings::parse("samples = 4\nlocal = [16, 32]\nchat = false", "test.toml").unwrap();
        let both = flags.over(config);
        let expected = Settings::parse("samples = 3\nsink = 8\nlocal = [16, 32]\nchat = false", "test.toml").unwrap();
        assert_eq!(both, expected);
    }

    #[test]
    fn the_purpose_of_a_config_is_not_that_of_another_matrix() {
        let config = Settings { about: Some("Four tasks at 2K".to_owned()), samples: Some(5), ..Settings::default() };
        let device = Settings { device: Some(Given::new("cuda".to_owned())), ..Settings::default() };
        assert_eq!(device.over_described(config.clone()).about, config.about);
        let other = Settings { tasks: Some(vec!["ruler/vt".to_owned()]), ..Settings::default() };
        let made = other.over_described(config);
        assert_eq!((made.about, made.samples), (None, Some(5)));
    }

    #[test]
    fn a_number_out_of_bounds_has_words_where_the_row_has_none() {
        let flag = Flag::value("some", "N").whole(1, 9);
        assert_eq!(flag.check_number(9), Ok(()));
        for number in [0, 10] {
            assert_eq!(flag.check_number(number).unwrap_err().what, format!("{number} is not from 1 to 9"));
        }
    }
}
