//! Requests to whoever leads: cancel, hold, release, retry, drain (spec: records, "Requests").
//!
//! A request is done once it is durable; it is answered by a decision, by the present master or by the next one. Doing one twice
//! is doing it once.

use std::path::Path;

use crate::clock::{Chance, Clock};
use crate::fs::{self, ErrorKind, Fs, FsError};
use crate::protocol::id::Nonce;
use crate::protocol::layout;
use crate::protocol::record::{Action, Request, to_document};
use crate::protocol::version::CURRENT;
use crate::state::State;

/// How often a fresh name is tried when an error leaves it open what has become of the last one.
const TRIES_MAX: u32 = 4;

/// Makes `action` a durable request of `user` and returns its id. `mode` is that of the file.
///
/// An error whose outcome is unknown is answered by asking again under another name, since asking twice is harmless. Fails
/// when the file system refuses for good.
pub fn send(
    fs: &dyn Fs,
    clock: &dyn Clock,
    chance: &dyn Chance,
    mode: u32,
    user: &str,
    action: &Action,
) -> Result<Nonce, FsError> {
    let mut tries = 0;
    loop {
        let id = Nonce(chance.bits());
        let request = Request {
            fq: "request".into(),
            version: CURRENT,
            id,
            action: action.clone(),
            user: user.to_owned(),
            at_ms: clock.wall_ms(),
        };
        tries += 1;
        match fs::put_new(fs, &layout::request(id), &to_document(&request), mode) {
            Ok(()) => return Ok(id),
            Err(error) if error.refused() || error.kind == ErrorKind::NotFound || tries == TRIES_MAX => {
                return Err(error);
            }
            Err(_) => {}
        }
    }
}

/// Whether request `id` was answered: a decision says so, or its file is gone, which only happens after that.
pub fn is_answered(fs: &dyn Fs, state: &State, id: Nonce) -> bool {
    let is_there = |names: Vec<fs::Entry>| names.iter().any(|entry| layout::parse_request(&entry.name) == Some(id));
    state.answered.contains(&id) || fs.list(Path::new(layout::CONTROL)).is_ok_and(|names| !is_there(names))
}
