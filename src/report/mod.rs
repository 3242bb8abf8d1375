//! Tables, plots and the page, all drawn from stored records and summary rows. [`mod@bench`] draws benchmarks, [`analyses`] the results of
//! analyses, [`tuning`] and [`shapes`] the budgets that `spattn tune` found.
//!
//! [`lm_eval`] and [`mod@kvpress`] write results in the formats of these programs. Each format has a file that turns rows into text; only
//! functions named `write` write to disk. The same records give the same bytes. Nothing here measures or scores.

pub mod analyses;
pub mod bench;
pub mod csv;
pub mod json;
pub mod kvpress;
pub mod latex;
pub mod lm_eval;
pub mod markdown;
pub mod merge;
pub mod others;
pub mod page;
pub mod papers;
pub mod pivot;
pub mod plots;
pub mod schedules;
pub mod shapes;
pub mod table;
pub mod tuning;
pub mod verdict;

mod best;
mod by_method;
mod contents;
mod excess;
mod format;
mod heading;
mod held_to;
mod kv_type;
mod means;
mod overview;
mod parameters;
mod ranking;
mod sampling;
mod shards;
mod stand_ins;
mod tabular;
mod write;

pub use self::contents::Report;
pub use self::means::MeanTable;
pub use self::write::Written;
use self::write::write_files;
