//! A user's command without the terminal: submit, request, look, wait.
//!
//! Invariants:
//! - No client decides anything. It adds a manifest under a number that nobody had, or a request under a fresh nonce, and reads
//!   the decisions; what a job's state is, is said by them alone.
//! - Everything works while no other fq process lives, except that nothing changes until a master has read what was asked.

pub mod logs;
pub mod request;
pub mod submit;
pub mod view;
pub mod wait;
