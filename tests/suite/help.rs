//! Help, completions, manual pages: generated, and complete.

use crate::support::Room;

const COMMANDS: &[&str] = &[
    "init",
    "submit",
    "run",
    "exec",
    "fsck",
    "doctor",
    "status",
    "show",
    "list",
    "workers",
    "logs",
    "result",
    "wait",
    "cancel",
    "retry",
    "hold",
    "release",
    "completions",
    "man",
];

#[test]
fn help_names_every_command() {
    let text = Room::new().fq(["--help"]).succeeds().stdout_text();
    for command in COMMANDS {
        assert!(text.contains(&format!("  {command} ")), "{command} is missing in:\n{text}");
    }
    assert!(text.contains("Examples:") && text.contains("Exit codes:"));
}

#[test]
fn every_command_explains_itself() {
    let room = Room::new();
    for command in COMMANDS {
        let text = room.fq([command, "--help"]).succeeds().stdout_text();
        let first = text.lines().next().unwrap_or("");
        assert!(
            first.len() > 10 && !first.ends_with('.') && first.starts_with(char::is_uppercase),
            "{command}: {first}"
        );
        assert!(text.contains("Usage: fq "), "{command}");
    }
}

#[test]
fn completions_and_manual_pages_are_printed() {
    let room = Room::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(room.fq(["completions", shell]).succeeds().stdout_text().contains("fq"));
    }
    assert!(room.fq(["man"]).succeeds().stdout_text().contains(".TH fq"));
    assert!(room.fq(["man", "submit"]).succeeds().stdout_text().contains("each\\-line"));
    room.fq(["man", "nonsense"]).exits(2);
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let room = Room::with_queue();
    let script = format!(
        "'{}' --help | true; '{}' man | true; '{0}' completions bash | head -c 1 >/dev/null",
        crate::support::FQ,
        crate::support::FQ
    );
    let output =
        std::process::Command::new("sh").args(["-c", &script]).env("FQ_DIR", room.queue()).output().expect("sh runs");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
