//! The processes of fq on a node: threads, wake-ups and signals around the step functions of the roles.
//!
//! Nothing here decides anything about the queue: a loop calls a step, and waits until it is due, something changed on this host
//! (a hint), or a signal came.

mod janitor;
mod master;
mod worker;

pub use janitor::Janitor;
pub use master::{MasterFailure, MasterThread, run_master};
pub use worker::{WorkerFailure, WorkerSetup, own_environment, run_worker};
