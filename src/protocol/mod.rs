//! Floor 0: what is written in a queue directory, as pure values.
//!
//! Nothing here touches files, time or chance. A reader of `spec/` finds each of its sections in the module of that name:
//!
//! - [`id`]: the names of things (spec: terms)
//! - [`digest`]: content addresses
//! - [`errno`]: the names of system errors
//! - [`frame`]: closing lines and checksummed lines, so that a torn document is told from a whole one (spec: records, "Framing")
//! - [`version`]: who may read and write which format (spec: versions)
//! - [`record`]: the documents on disk (spec: records)
//! - [`layout`]: every path in a queue directory (spec: layout)
//! - [`lifecycle`]: states of tasks and attempts and the legal steps between them (spec: lifecycle)

pub mod digest;
pub mod errno;
pub mod frame;
pub mod id;
pub mod layout;
pub mod lifecycle;
pub mod record;
pub mod version;
