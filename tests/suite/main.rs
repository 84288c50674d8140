//! The tests of the whole: one binary, one module per feature.
