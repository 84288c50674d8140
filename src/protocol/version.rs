//! Format versions: who may read and who may write a queue (spec: versions).
//!
//! A queue carries one version, in `FQ`; every document repeats it. Readers learn a new version before any writer uses it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of a queue's format.
///
/// - 1: the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FormatVersion(pub u32);

/// The version that this program writes, and the newest that it reads.
pub const CURRENT: FormatVersion = FormatVersion(1);

/// Features that this program knows; a queue that names another one is not touched.
pub const FEATURES: &[&str] = &[];

/// A queue that this program must not touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    /// Its version is newer.
    Newer(FormatVersion),
    /// It uses a feature that this program does not know.
    Feature(String),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newer(found) => {
                write!(
                    f,
                    "its format is version {}, this fq knows versions up to {}; nothing was touched",
                    found.0, CURRENT.0
                )
            }
            Self::Feature(name) => {
                write!(f, "it uses the feature `{name}`, which this fq does not know; nothing was touched")
            }
        }
    }
}

impl std::error::Error for Unreadable {}

/// Checks that a queue of `version` with `features` may be read and written by this program.
pub fn check(version: FormatVersion, features: &[String]) -> Result<(), Unreadable> {
    if version > CURRENT {
        return Err(Unreadable::Newer(version));
    }
    match features.iter().find(|name| !FEATURES.contains(&name.as_str())) {
        Some(name) => Err(Unreadable::Feature(name.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_version_or_an_unknown_feature_is_refused() {
        assert_eq!(check(CURRENT, &[]), Ok(()));
        assert_eq!(check(FormatVersion(CURRENT.0 + 1), &[]), Err(Unreadable::Newer(FormatVersion(CURRENT.0 + 1))));
        assert_eq!(check(CURRENT, &["relay".into()]), Err(Unreadable::Feature("relay".into())));
    }
}
