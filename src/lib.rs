//! `spattn`: an evaluation harness for sparse attention.
//!
//! The library is built in floors; a module imports only from those below it
//! (see `ARCHITECTURE.md`):
//!
//! `error`, `cost` → [`kernels`] → [`kv`] → [`attention`] → [`model`] → [`tasks`] → [`eval`] → [`report`] → [`cli`].

pub mod error;

pub mod cost;
pub mod kernels;
pub mod kv;

pub mod attention;
pub mod model;
pub mod tasks;

pub mod eval;
pub mod report;

pub mod cli;
