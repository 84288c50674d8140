//! Frames that tell a whole document from a torn one (spec: records, "Framing").
//!
//! - A *document* is one or more lines of JSON followed by a closing line `{"end":"sha256:<digest>"}` over all bytes before it.
//!   Without a valid closing line the document is not there yet.
//! - A *journal line* is one JSON object whose first member is `seq` and whose last is `crc`, the CRC-32C, eight hexadecimal
//!   digits, of all bytes of the line before `,"crc"`. A reader takes the longest prefix of whole, valid, consecutive lines.

use super::digest::Digest;

const CLOSE_OPEN: &[u8] = b"{\"end\":\"sha256:";
const CLOSE_LEN: usize = CLOSE_OPEN.len() + 64 + b"\"}\n".len();

/// Appends the closing line to `body`, which has to end in a newline.
pub fn close_document(mut body: Vec<u8>) -> Vec<u8> {
    debug_assert!(body.ends_with(b"\n"));
    let digest = Digest::of(&body);
    body.extend_from_slice(CLOSE_OPEN);
    body.extend_from_slice(digest.to_string().as_bytes());
    body.extend_from_slice(b"\"}\n");
    body
}

/// Returns the body of a closed document, or `None` if it is torn, cut short or damaged.
pub fn open_document(bytes: &[u8]) -> Option<&[u8]> {
    let cut = bytes.len().checked_sub(CLOSE_LEN)?;
    let (body, close) = bytes.split_at(cut);
    let digest = close.strip_prefix(CLOSE_OPEN)?.strip_suffix(b"\"}\n")?;
    let digest: Digest = std::str::from_utf8(digest).ok()?.parse().ok()?;
    (body.ends_with(b"\n") && Digest::of(body) == digest).then_some(body)
}

const CRC_LEN: usize = b",\"crc\":\"00000000\"}\n".len();

/// Makes a journal line of `json`, an object that begins with `{"seq":N`.
pub fn seal_line(json: &str) -> Vec<u8> {
    debug_assert!(json.starts_with("{\"seq\":") && json.ends_with('}'));
    let stem = &json.as_bytes()[..json.len() - 1];
    let mut line = Vec::with_capacity(stem.len() + CRC_LEN);
    line.extend_from_slice(stem);
    line.extend_from_slice(format!(",\"crc\":\"{:08x}\"}}\n", crc32c::crc32c(stem)).as_bytes());
    line
}

/// Checks one line, newline included, and returns its sequence number and the JSON text (with `crc`).
pub fn open_line(line: &[u8]) -> Option<(u64, &str)> {
    let cut = line.len().checked_sub(CRC_LEN)?;
    let (stem, tail) = line.split_at(cut);
    let crc = tail.strip_prefix(b",\"crc\":\"")?.strip_suffix(b"\"}\n")?;
    let crc = u32::from_str_radix(std::str::from_utf8(crc).ok()?, 16).ok()?;
    if crc32c::crc32c(stem) != crc {
        return None;
    }
    let text = std::str::from_utf8(&line[..line.len() - 1]).ok()?;
    let digits = text.strip_prefix("{\"seq\":")?;
    let end = digits.find(|c: char| !c.is_ascii_digit())?;
    Some((digits[..end].parse().ok()?, text))
}

/// Splits `bytes` into the valid lines at its beginning that continue after `seq`, and says how many bytes they take.
///
/// Lines with a number at or below `seq` are skipped (a new segment repeats them unchanged). The first torn or damaged line, or
/// a gap in the numbers, ends the walk: what follows is "not yet".
pub fn valid_lines(bytes: &[u8], mut seq: u64) -> (Vec<(u64, &str)>, usize) {
    let mut lines = Vec::new();
    let mut used = 0;
    while let Some(len) = bytes[used..].iter().position(|&b| b == b'\n').map(|i| i + 1) {
        let Some((number, text)) = open_line(&bytes[used..used + len]) else { break };
        if number > seq + 1 {
            break;
        }
        if number == seq + 1 {
            lines.push((number, text));
            seq = number;
        }
        used += len;
    }
    (lines, used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_cut_anywhere_is_not_there_yet() {
        let whole = close_document(b"{\"a\":1}\n".to_vec());
        assert_eq!(open_document(&whole), Some(&b"{\"a\":1}\n"[..]));
        for cut in 0..whole.len() {
            assert_eq!(open_document(&whole[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_in_a_document_is_found() {
        let whole = close_document(b"{\"a\":1}\n".to_vec());
        for i in 0..whole.len() {
            let mut bad = whole.clone();
            bad[i] ^= 4;
            assert_eq!(open_document(&bad), None, "byte {i}");
        }
    }

    #[test]
    fn lines_are_read_up_to_the_first_damage_or_gap() {
        let mut bytes = Vec::new();
        for seq in 1..=4 {
            bytes.extend(seal_line(&format!("{{\"seq\":{seq},\"t\":\"beat\"}}")));
        }
        let len = bytes.len() / 4;
        let (lines, used) = valid_lines(&bytes, 0);
        assert_eq!(lines.iter().map(|l| l.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(used, bytes.len());
        assert_eq!(valid_lines(&bytes[..3 * len + 5], 0).0.len(), 3, "a torn tail is not yet");
        assert_eq!(valid_lines(&bytes[len..], 0).0.len(), 0, "a gap is not yet");
        assert_eq!(valid_lines(&bytes, 2).0.iter().map(|l| l.0).collect::<Vec<_>>(), [3, 4], "repeats are skipped");
        bytes[2 * len + 3] = 0;
        assert_eq!(valid_lines(&bytes, 0).0.len(), 2, "NUL bytes end the walk");
    }
}
