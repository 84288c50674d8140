//! Standard output, whose reader may leave at any time; and remarks on standard error.

use std::io::{ErrorKind, IsTerminal as _, Write as _};

use super::error::{Failure, Plain};
use super::exit;

/// Writes `bytes` to standard output. A reader that has left ends the command quietly, as it would end `cat`.
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| failed(&error))
}

/// Writes `text` and a newline to standard output.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    bytes(format!("{text}\n").as_bytes())
}

fn failed(error: &std::io::Error) -> Failure {
    if error.kind() == ErrorKind::BrokenPipe {
        return Failure::silent(exit::OK);
    }
    Failure::new(exit::TEMPORARY, "cannot write to standard output").because(&Plain(error))
}

/// Says something on standard error that is neither a result nor an error. That nobody reads it is no error either.
pub(crate) fn remark(text: &str) {
    let _ = writeln!(std::io::stderr(), "fq: {text}");
}

/// Writes `bytes` to standard error; used to relay what a task wrote there.
pub(crate) fn err_bytes(bytes: &[u8]) {
    let _ = std::io::stderr().lock().write_all(bytes);
}

/// Whether standard output may be coloured: a terminal, and the user did not set `NO_COLOR`.
pub(crate) fn is_colourful() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// `text` in bold where colours are on.
pub(crate) fn bold(text: &str) -> String {
    if is_colourful() { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

/// A table with aligned columns, two spaces apart; the first row is the heading. Trailing spaces are left out.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).map(|(cell, &w)| format!("{cell:w$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let line = line.trim_end();
        text.push_str(&if i == 0 { bold(line) } else { line.to_owned() });
        text.push('\n');
    }
    text
}
