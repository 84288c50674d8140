//! A whole cluster in one thread under one seed: a shared file system with the caches, delays and faults of real ones.
//!
//! A *process* is a closure of ordinary synchronous code over the traits [`Fs`](crate::fs::Fs), [`Clock`](crate::clock::Clock),
//! [`Chance`](crate::clock::Chance), [`Process`](crate::process::Process) and [`Host`](crate::process::Host). It runs on a
//! stack of its own; each call suspends it until the scheduler has let the call happen. Time is simulated and jumps to the next
//! event. The same seed gives the same run, event by event.
//!
//! # Fault model
//!
//! *What may fail, how, how many at once, and what must be survived.*
//!
//! - **A call** is sent, executed and answered at three different times, and others act in between. It may be refused once
//!   (full disk, quota, an I/O error, a stale handle); be executed although it reports an error; be executed although its reply
//!   is lost, whereupon the client sends it again and the caller hears what the *second* execution said: ENOENT for a rename,
//!   EEXIST for a mkdir, both done. It may take long.
//! - **A process** may die before or after any call, or stop for longer than every lease and go on. Of what it had under way,
//!   some is never executed, some at once, some a minute later.
//! - **A host** may crash and boot again, losing its processes, its children and what they had not synced; be suspended, with
//!   its clocks going on; be cut off from the server, its calls hanging (or failing, where mounted soft) and being executed
//!   after the network heals, also for processes that have died since. Its boot clock runs up to one percent wrong, its wall
//!   clock anywhere.
//! - **The server** may restart, or lose power and with it what is not durable: bytes that were not synced, changes of names that
//!   were not, all after one point in time or, per directory, all after a point of its own. With an asynchronous export it
//!   falls back by up to five seconds, behind what it had promised.
//! - **A reader** sees, as the profile has it: names that are gone and no names that are there, for a minute; listings that miss
//!   a change made in the tick of the last listing, until the next change; both names of a rename; the length of a file a while
//!   ago; once, zeros or fewer bytes at the end of a file.
//! - **Locks** exclude everybody, only processes of the same host, or nobody because they are unsupported or hang. Those of a
//!   dead process are freed when its keeper has ended its children; those of a silent host after a lease, or never.
//! - **Children** live on when their process dies without a keeper.
//!
//! Any number of these may meet, within the budget of a plan ([`FaultBudget`]). What must be survived: whatever happens, nothing
//! is accepted twice and nothing accepted is lost, except behind an asynchronous export; and once there is
//! [quiet](Cluster::quiet), everything ends.
//!
//! What never fails here: bytes that are durable stay as they are, a rename of one source has one winner, an exclusive create has
//! one winner, boot clocks never go back.

mod client;
mod cluster;
mod env;
mod faults;
mod process;
pub mod profile;
mod seed;
mod server;
mod world;

pub use cluster::{Cluster, Failure, HostId, ProcId, View};
pub use env::{SimChance, SimClock, SimEnv, SimFs};
pub use faults::{Armed, CallFault, Fault, FaultBudget};
pub use process::{ChildRun, ChildScript, SimHost, SimProcess};
pub use profile::Profile;
pub use world::Met;

#[cfg(test)]
mod tests;
