//! The tests of the whole: one binary, one module per feature.
mod docs;
mod exec;
mod examples;
mod help;
mod reading;
mod submit;
mod support;
mod vectors;
