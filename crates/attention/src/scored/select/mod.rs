//! Pickers: which of the scored candidates a query attends, and with which weights.
//!
//! A [`Picker`] sees the scores of one query (or the reduced scores of a GQA group), but not how they were computed. So
//! any picker can be combined with any [`Scorer`](super::scorer::Scorer).

mod choice;
#[cfg(feature = "cuda")]
mod cuda;
mod draws;
mod picker;
mod refuse;
mod rescored;
mod sample;
mod share;
mod top;

pub(crate) use choice::{BASE, Choice, DELTA, EPSILON, PICK, PICK_BY_ORDER, RESCORE, SECOND, SHARE};
pub(crate) use draws::{Draws, Proposal};
pub(crate) use picker::{DataIndependentPicker, Finer, Picker, ScoredRow, page_tokens};
pub(crate) use rescored::Rescored;
pub(crate) use sample::Sample;
pub(crate) use share::TopShare;
pub(crate) use top::Top;
