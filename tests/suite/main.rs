//! The tests of the whole: one binary, one module per feature.
mod chaos;
mod deaths;
mod docs;
mod examples;
mod exec;
mod help;
mod reading;
mod run;
mod submit;
mod support;
mod vectors;
