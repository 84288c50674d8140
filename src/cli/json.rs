//! The documented JSON shapes: one struct per command, from which the text is printed too.
//!
//! Every value has `schema`, which is 1. Members may be added within a schema; their meaning never changes, and none goes.

use serde::Serialize;

use super::error::Failure;
use super::out;

/// The version of all shapes here.
pub(crate) const SCHEMA: u32 = 1;

/// Prints `value` as one line of JSON.
pub(crate) fn print<T: Serialize>(value: &T) -> Result<(), Failure> {
    match serde_json::to_string(value) {
        Ok(text) => out::line(&text),
        Err(error) => Err(Failure::new(super::exit::FQ_FAILED, "internal error: a value has no JSON").because(&error)),
    }
}
