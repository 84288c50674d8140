//! The one place where errors become text and exit codes.
//!
//! The shape: `error: ` what failed on which thing; `  caused by: ` why; indented, what stands now; `hint: ` what to do.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::path::Path;

use fq::client::submit::BindError;
use fq::fs::{ErrorKind, FsError};

use super::exit;

/// Why a command ends without having done what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) code: u8,
    text: String,
    causes: Vec<String>,
    notes: Vec<String>,
    hint: Option<String>,
}

impl Failure {
    /// Makes a failure with the text that follows `error: `.
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), causes: Vec::new(), notes: Vec::new(), hint: None }
    }

    /// The arguments or an input cannot be understood.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(exit::USAGE, text)
    }

    /// Ends the command without a word: the reader of its output has gone, or all has been said.
    pub(crate) fn silent(code: u8) -> Self {
        Self::new(code, "")
    }

    /// Adds the cause and its own causes.
    pub(crate) fn because(mut self, cause: &dyn Error) -> Self {
        let mut next = Some(cause);
        while let Some(error) = next {
            self.causes.push(error.to_string());
            next = error.source();
        }
        self
    }

    /// Ends the command with another exit code.
    pub(crate) fn with_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Adds a line on what stands now.
    pub(crate) fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    /// Sets what to do.
    pub(crate) fn hint(mut self, text: impl Into<String>) -> Self {
        self.hint = Some(text.into());
        self
    }

    /// `error` of a file operation in the queue, under a headline such as "cannot submit".
    pub(crate) fn files(headline: impl Into<String>, error: &FsError) -> Self {
        Self::new(code_of(error), headline).because(error)
    }

    /// A failed operation on a file of the user's own.
    pub(crate) fn own_file(what: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::new(exit::USAGE, format!("cannot {what} `{}`", path.display())).because(&Plain(error))
    }
}

/// The exit code that answers a failed file operation.
pub(crate) fn code_of(error: &FsError) -> u8 {
    match error.kind {
        // A handle that went stale says nothing about what is there.
        ErrorKind::NotFound if error.errno == libc::ESTALE => exit::TEMPORARY,
        ErrorKind::NotFound => exit::NOT_A_QUEUE,
        ErrorKind::ReadOnly | ErrorKind::Denied | ErrorKind::Planted => exit::REFUSED,
        ErrorKind::Exists | ErrorKind::NoSpace | ErrorKind::Disconnected | ErrorKind::Io => exit::TEMPORARY,
    }
}

/// A system error without its number, in lower case, so that it reads on.
#[derive(Debug)]
pub(crate) struct Plain<'a>(pub(crate) &'a std::io::Error);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        let mut chars = text.chars();
        let first = chars.next().map(|c| c.to_lowercase().to_string()).unwrap_or_default();
        write!(f, "{first}{}", chars.as_str())
    }
}

impl Error for Plain<'_> {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() {
            return Ok(());
        }
        let mut text = format!("error: {}\n", self.text);
        for cause in &self.causes {
            let _ = writeln!(text, "  caused by: {cause}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "  {note}");
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "hint: {hint}");
        }
        f.write_str(&text)
    }
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        let code = match &error {
            BindError::Refused(cause) | BindError::InDoubt { cause, .. } => code_of(cause),
            BindError::Crowded => exit::TEMPORARY,
            BindError::TooLarge { .. } => exit::USAGE,
        };
        let mut failure = Self::new(code, error.to_string());
        if let Some(cause) = error.source() {
            failure = failure.because(cause);
        }
        match &error {
            BindError::InDoubt { job, .. } => failure
                .note("the job may have been created, so do not submit it again before you have looked")
                .hint(format!("`fq show {job}` says whether it is there")),
            _ => failure.note("no job was created; it is safe to submit again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fq::fs::Call;

    #[test]
    fn a_failure_says_what_why_what_stands_and_what_to_do() {
        let cause = FsError::new(Call::Write, Path::new("jobs/000/7.json"), libc::EDQUOT);
        let failure = Failure::files("cannot submit", &cause).note("no job was created").hint("free some space");
        assert_eq!(failure.code, exit::TEMPORARY);
        assert_eq!(
            failure.to_string(),
            "error: cannot submit\n  caused by: cannot write `jobs/000/7.json`: disk quota exceeded\n  no job was created\nhint: free some space\n"
        );
    }

    /// Scripts give up at the code for "no queue", and try again at the other.
    #[test]
    fn a_stale_handle_does_not_mean_that_there_is_no_queue() {
        let code = |errno| code_of(&FsError::new(Call::SyncDir, Path::new("workers"), errno));
        assert_eq!(code(libc::ESTALE), exit::TEMPORARY);
        assert_eq!(code(libc::ENOENT), exit::NOT_A_QUEUE);
    }
}
