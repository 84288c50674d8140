//! The exit codes of `fq`, in one place.
//!
//! Commands that only read follow grep and diff: 0 yes, 1 no, 2 and up trouble. Commands that run something pass the task's own
//! code on and keep 124 to 127 for themselves, as `timeout` and `env` do; 126 (cannot be executed) and 127 (not found) come from
//! [`fq::protocol::lifecycle::exit_code`].

/// Done; yes; nothing is wrong.
pub(crate) const OK: u8 = 0;
/// The answer is no: something failed, is damaged, or differs.
pub(crate) const NO: u8 = 1;
/// The arguments or an input cannot be understood; nothing was done. `clap` uses the same code.
pub(crate) const USAGE: u8 = 2;
/// Not a queue, a format that this fq does not know, or a file system that is not safe to use.
pub(crate) const NOT_A_QUEUE: u8 = 3;
/// A worker or master lost its right to go on.
#[expect(dead_code, reason = "for `worker` and `master`")]
pub(crate) const FENCED: u8 = 4;
/// No such job or task.
pub(crate) const NO_SUCH: u8 = 5;
/// Refused: permissions, trust, a queue that anybody could write to.
pub(crate) const REFUSED: u8 = 6;
/// A passing trouble of the file system, such as a full disk: try again later.
pub(crate) const TEMPORARY: u8 = 75;
/// The time that was given is over: a task's time limit, or `wait --timeout`.
pub(crate) const TIMEOUT: u8 = 124;
/// fq itself failed around the command that it was to run.
pub(crate) const FQ_FAILED: u8 = 125;
/// The code for a command that was ended by signal `number`: 128 more, as shells have it.
pub(crate) fn signal(number: i32) -> u8 {
    u8::try_from(128 + number.clamp(0, 127)).unwrap_or(u8::MAX)
}
