//! Keeps the first error of an open file.

use super::{FsError, Result};

/// Refuses everything after the first error, with that same error.
///
/// After a failed `fsync` the kernel may drop the unsynced bytes and report success the next time; after a failed write the end
/// of the file is unknown. So a file with an error has no future.
#[derive(Debug, Default)]
pub(super) struct Latch(Option<FsError>);

impl Latch {
    /// Runs `step` unless an earlier one failed.
    pub(super) fn run<T>(&mut self, step: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some(error) = &self.0 {
            return Err(error.clone());
        }
        step().inspect_err(|error| self.0 = Some(error.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Call;
    use super::*;

    #[test]
    fn the_first_error_stays() {
        let mut latch = Latch::default();
        let error = FsError::new(Call::Write, Path::new("a"), libc::EIO);
        assert_eq!(latch.run(|| Ok(1)), Ok(1));
        assert_eq!(latch.run(|| Err::<(), _>(error.clone())), Err(error.clone()));
        assert_eq!(latch.run(|| -> Result<()> { unreachable!("no step runs after an error") }), Err(error));
    }
}
