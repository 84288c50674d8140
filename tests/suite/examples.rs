//! The programs in `examples/` do what they say.

use std::path::Path;
use std::process::Command;

fn examples() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples"))
}

/// Runs a script of `examples/` with `fq` first in the path and a queue of its own, and returns what it prints.
fn script(name: &str, args: &[&Path]) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let fq = Path::new(env!("CARGO_BIN_EXE_fq"));
    let path = format!("{}:{}", fq.parent().expect("a directory").display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new(examples().join(name))
        .args(args)
        .env("PATH", path)
        .env("FQ_DIR", dir.path().join("q"))
        .output()
        .expect("the script can be started");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} failed: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

#[test]
fn the_sweep_finds_the_best_number_of_neighbours() {
    let out = script("sweep.sh", &[]);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 14, "{out}");
    assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["19", "147", "150"], "{out}");
}

#[test]
fn the_pipeline_counts_what_one_program_counts() {
    let tree = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/spec"));
    let out = script("pipeline.sh", &[tree]);
    let find = format!(
        "find {} -type f \\( -name '*.md' -o -name '*.rs' -o -name '*.sh' \\) | sort | xargs cat | wc -w",
        tree.display()
    );
    let direct = Command::new("sh").args(["-c", &find]).output().expect("wc runs");
    let words = String::from_utf8_lossy(&direct.stdout).trim().to_owned();
    let last = out.lines().last().unwrap_or_default();
    assert!(last.ends_with(&format!("files {words} words")), "{out} instead of {words} words");
}
