//! Flags of `eval` and `sweep` that say how to run rather than what, and flags of the table that other subcommands share.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use spattn_base::error::UsageError;
use spattn_eval::config::bounds::MOST_SAMPLES;
use spattn_eval::config::flag::{Flag, in_order_of_help};
use spattn_eval::config::settings::SETTINGS;
use spattn_eval::config::value::Value;
use spattn_eval::with_run_flags;

/// Makes [`RunFlags`] with its rows.
macro_rules! define_run_flags {
    ($( $(#[doc = $doc:literal])* $id:ident: $type:ty, $flag:expr; )*) => {
        /// Flags that are no settings: `None` of those that were not given.
        #[derive(Debug, Clone, Default)]
        pub(super) struct RunFlags {
            $( $(#[doc = $doc])* pub $id: Option<$type>, )*
        }

        /// The row of each flag, by the name of its field.
        struct Rows {
            $( $id: Flag, )*
        }

        const ROWS: Rows = Rows {
            $( $id: $flag.row(stringify!($id), &[$($doc),*]).of_type(<$type as Value>::HOLDS, <$type as Value>::argument), )*
        };

        const RUN_FLAGS: &[Flag] = &[$(ROWS.$id),*];

        impl RunFlags {
            pub(super) fn from_arguments(arguments: &mut ArgMatches) -> Result<Self, UsageError> {
                Ok(Self { $( $id: Value::take(arguments, &ROWS.$id)?, )* })
            }
        }
    };
}

with_run_flags!(define_run_flags);

/// The flags of `eval` and `sweep`, and the keys of a config that have no flag, in the order of help.
pub fn flags() -> Vec<&'static Flag> {
    in_order_of_help(SETTINGS.iter().chain(RUN_FLAGS))
}

/// Makes a type for each row that other subcommands flatten into their arguments: the flag is then theirs too, with the same
/// help and bounds. One whose help differs is a field of their own.
macro_rules! share_flags {
    ($( $name:ident: $type:ty = $row:literal; )*) => {$(
        #[doc = concat!("The flag of the row `", $row, "`; `None` if it was not given.")]
        #[derive(Debug, Clone)]
        pub(super) struct $name(pub Option<$type>);

        impl Args for $name {
            fn augment_args(command: Command) -> Command {
                command.args(row($row).argument())
            }

            fn augment_args_for_update(command: Command) -> Command {
                Self::augment_args(command)
            }
        }

        impl FromArgMatches for $name {
            fn from_arg_matches(arguments: &ArgMatches) -> Result<Self, clap::Error> {
                Self::from_arg_matches_mut(&mut arguments.clone())
            }

            fn from_arg_matches_mut(arguments: &mut ArgMatches) -> Result<Self, clap::Error> {
                Value::take(arguments, row($row)).map(Self).map_err(refused)
            }

            fn update_from_arg_matches(&mut self, arguments: &ArgMatches) -> Result<(), clap::Error> {
                *self = Self::from_arg_matches(arguments)?;
                Ok(())
            }
        }
    )*};
}

share_flags! {
    ThreadsFlag: usize = "threads";
    QuietFlag: bool = "quiet";
    CalibrationFlag: PathBuf = "calibration";
    ExtrapolationFlag: bool = "allow_extrapolation";
}

/// The row of a flag.
fn row(id: &str) -> &'static Flag {
    SETTINGS.iter().chain(RUN_FLAGS).find(|flag| flag.id == id).expect("the table has the row")
}

/// An error of our own, in the form of the argument parser's.
pub(super) fn refused(error: UsageError) -> clap::Error {
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, error)
}
