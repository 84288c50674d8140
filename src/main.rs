//! The `fq` command: arguments in, exit code out.

fn main() {}
