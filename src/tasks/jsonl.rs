//! Prepared files.
