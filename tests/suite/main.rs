//! The tests of the whole: one binary, one module per feature.
mod help;
mod submit;
mod support;
