//! A job queue that is a directory on a shared file system.
//!
//! The library never prints and never reads the user's environment; the `fq` binary in `cli` is its face.
//! `ARCHITECTURE.md` has the map of the modules, `spec/` the protocol that they implement.

pub mod beacon;
pub mod check;
pub mod client;
pub mod clock;
pub mod decision;
pub mod fs;
pub mod gc;
pub mod journal;
pub mod keeper;
pub mod lease;
pub mod mailbox;
pub mod master;
pub mod mutant;
pub mod node;
pub mod probe;
pub mod process;
pub mod protocol;
pub mod queue;
pub mod rehearsal;
pub mod schedule;
pub mod sim;
pub mod state;
pub mod store;
pub mod view;
pub mod worker;
