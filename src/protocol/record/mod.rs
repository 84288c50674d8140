//! The documents on disk: bytes to values and back (spec: records). Knows no paths.
//!
//! All are JSON. Members that a reader does not know are skipped; members at their default are left out. Texts that need not be
//! UTF-8 (arguments, output) are a [`Bytes`]: a JSON string where they are UTF-8, `{"b64":"…"}` where they are not.

mod decision;
mod job;
mod queue;
mod worker;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use decision::*;
pub use job::*;
pub use queue::*;
pub use worker::*;

use super::digest::Digest;
use super::frame;

/// Bytes that are usually text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

#[derive(Serialize, Deserialize)]
struct Encoded {
    b64: String,
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Encoded { b64: STANDARD.encode(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Text(String),
            Encoded(Encoded),
        }
        match Either::deserialize(deserializer)? {
            Either::Text(text) => Ok(Self(text.into_bytes())),
            Either::Encoded(e) => STANDARD.decode(e.b64).map(Self).map_err(serde::de::Error::custom),
        }
    }
}

/// Where the bytes of a value lie (spec: records, "References"). Every reference to bytes outside names digest and length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Ref {
    /// In a pack: `len` bytes at byte offset `at`.
    Packed {
        /// The digest of the bytes.
        sha: Digest,
        /// How many.
        len: u64,
        /// The pack's file name.
        pack: String,
        /// Their offset in it.
        at: u64,
    },
    /// A loose object.
    Loose {
        /// The digest of the bytes.
        sha: Digest,
        /// How many.
        len: u64,
    },
    /// Right here.
    Inline {
        /// The bytes.
        #[serde(rename = "in")]
        bytes: Bytes,
    },
}

impl Ref {
    /// The length of the value in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Packed { len, .. } | Self::Loose { len, .. } => *len,
            Self::Inline { bytes } => bytes.0.len() as u64,
        }
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Ref {
    fn default() -> Self {
        Self::Inline { bytes: Bytes::default() }
    }
}

/// A document that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadRecord {
    /// No valid closing line: torn, damaged or not finished yet.
    Torn,
    /// Whole, but not what was expected.
    Malformed(String),
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn => f.write_str("it has no valid closing line: it is cut short, damaged or not finished yet"),
            Self::Malformed(why) => write!(f, "it is not as the format says: {why}"),
        }
    }
}

impl std::error::Error for BadRecord {}

/// Encodes `value` as a document of one line with its closing line.
pub fn to_document<T: Serialize>(value: &T) -> Vec<u8> {
    frame::close_document(to_line(value))
}

/// Encodes `value` as one line of JSON, newline included.
pub fn to_line<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).expect("our records have string keys only");
    bytes.push(b'\n');
    bytes
}

/// Decodes a document of one line.
pub fn from_document<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, BadRecord> {
    let body = frame::open_document(bytes).ok_or(BadRecord::Torn)?;
    serde_json::from_slice(body).map_err(|e| BadRecord::Malformed(e.to_string()))
}

/// Whether a member is at its default and may be left out.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_come_back_exactly() {
        for bytes in [&b"plain"[..], b"with\nnewline", b"\xff\xfe\0", b""] {
            let json = to_line(&Bytes(bytes.to_vec()));
            assert_eq!(serde_json::from_slice::<Bytes>(&json).map(|b| b.0).ok().as_deref(), Some(bytes));
        }
    }

    #[test]
    fn references_are_told_apart_by_their_members() {
        let sha = Digest::of(b"x");
        for value in [
            Ref::Inline { bytes: "hi".into() },
            Ref::Loose { sha, len: 5 },
            Ref::Packed { sha, len: 5, pack: "a~0000000000000001.000001.pack".into(), at: 9 },
        ] {
            assert_eq!(serde_json::from_slice::<Ref>(&to_line(&value)).ok(), Some(value));
        }
    }
}
