//! What users type, as values: sizes, times, index lists, dependencies. Pure; every error says what was given and what was
//! expected.

use std::time::Duration;

use fq::protocol::id::{Ranges, Target};
use fq::protocol::record::{After, Dependency};

/// Parses a size in bytes such as `8G`, `1.5T` or `512MiB`. Units are powers of 1024.
///
/// A number without a unit is refused, because Slurm means mebibytes by it and everybody else bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let bad = || "expected a number and a unit, such as `512M`, `8G` or `1.5T`".to_owned();
    let cut = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
    let (number, unit) = text.split_at(cut);
    let unit = unit.to_ascii_uppercase();
    let power = match unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit) {
        "" => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        "P" => 5,
        _ => return Err(bad()),
    };
    decimal(number, 1024_u64.pow(power)).ok_or_else(bad)
}

/// `number`, which may have a fraction, times `unit`, rounded down; `None` if it is no number or too large.
fn decimal(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.len() <= 18 && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = fraction.parse::<u128>().ok()? * u128::from(unit) / scale;
    u64::try_from(whole.parse::<u128>().ok()? * u128::from(unit) + part).ok()
}

/// Parses a span such as `90s`, `10m`, `1h30m`, `2d`, `500ms`, or as Slurm writes it: `10:00`, `1:00:00`, `2-12`, `1-00:30:00`.
///
/// A number without a unit is refused, because Slurm means minutes by it and everybody else seconds.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let bad = || "expected a time such as `90s`, `10m`, `1h30m`, `1:00:00` or `1-12:00:00`".to_owned();
    let ms = if text.contains([':', '-']) { clock_ms(text) } else { units_ms(text) };
    ms.map(Duration::from_millis).ok_or_else(bad)
}

fn units_ms(text: &str) -> Option<u64> {
    let mut total = 0_u64;
    let mut rest = text;
    while !rest.is_empty() {
        let cut = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(cut);
        let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, next) = tail.split_at(end);
        let unit = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(decimal(number, unit)?)?;
        rest = next;
    }
    (!text.is_empty()).then_some(total)
}

/// `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` and `D-HH:MM:SS`.
fn clock_ms(text: &str) -> Option<u64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(plain(days)?), clock),
        None => (None, text),
    };
    let parts = clock.split(':').map(plain).collect::<Option<Vec<_>>>()?;
    let (h, m, s) = match (days, parts.as_slice()) {
        (None, [m, s]) => (0, *m, *s),
        (_, [h, m, s]) => (*h, *m, *s),
        (Some(_), [h]) => (*h, 0, 0),
        (Some(_), [h, m]) => (*h, *m, 0),
        _ => return None,
    };
    let hours = days.unwrap_or(0).checked_mul(24)?.checked_add(h)?;
    hours.checked_mul(60)?.checked_add(m)?.checked_mul(60)?.checked_add(s)?.checked_mul(1000)
}

fn plain(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// The indices of an array and how many of its tasks may run at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Array {
    /// Never empty.
    pub(crate) indices: Ranges,
    /// 0 for no limit.
    pub(crate) cap: u64,
}

/// Parses `0-99`, `1,3,5-7`, `0-20:5` and each of them with a cap: `0-99%4`.
pub(crate) fn array(text: &str) -> Result<Array, String> {
    let (indices, cap) = match text.split_once('%') {
        Some((indices, cap)) => {
            let cap = plain(cap).filter(|&n| n > 0);
            (indices, cap.ok_or("expected a number from 1 after `%`, such as `0-99%4`")?)
        }
        None => (text, 0),
    };
    let indices: Ranges = indices.parse().map_err(|e: fq::protocol::id::BadId| e.to_string())?;
    if indices.is_empty() {
        return Err("expected at least one index, such as `0-99`".into());
    }
    Ok(Array { indices, cap })
}

/// What has to end before a job starts, as one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dependencies(pub(crate) Vec<Dependency>);

/// Parses `afterok:12:13,afterany:14_3`. All that is named has to come true.
pub(crate) fn dependencies(text: &str) -> Result<Dependencies, String> {
    let bad =
        |part: &str| format!("`{part}` is no dependency: expected for example `afterok:12:13` or `afterany:14_3`");
    let mut list = Vec::new();
    for part in outside_brackets(text) {
        let (when, targets) = part.split_once(':').ok_or_else(|| bad(part))?;
        let when = match when {
            "afterok" => After::Ok,
            "afterany" => After::Any,
            "afternotok" => After::NotOk,
            _ => return Err(format!("{}; the kinds are `afterok`, `afterany` and `afternotok`", bad(part))),
        };
        for target in targets.split(':') {
            let target: Target = target.parse().map_err(|e: fq::protocol::id::BadId| e.to_string())?;
            list.push(Dependency { when, target });
        }
    }
    Ok(Dependencies(list))
}

/// Splits at the commas that are not within square brackets.
fn outside_brackets(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |c| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
}

/// Parses one argument of job and task ids such as `7,9-12,7_[1-3]`.
pub(crate) fn targets(text: &str) -> Result<Targets, String> {
    Target::parse_list(text).map(Targets).map_err(|e| e.to_string())
}

/// The jobs and tasks of one argument; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Targets(pub(crate) Vec<Target>);

/// Prints a span of milliseconds for people in at most two units: `950ms`, `1.2s`, `4m10s`, `3h05m`, `2d04h`.
pub(crate) fn show_ms(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0 => format!("{ms}ms"),
        1..60 => format!("{}.{}s", s, ms % 1000 / 100),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// Prints a number of bytes for people: `512 B`, `1.5 KiB`, `8.0 GiB`.
pub(crate) fn show_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// Prints text that a stranger may have chosen so that it cannot steer a terminal: control characters as escapes.
pub(crate) fn tame(text: &str) -> String {
    let harmless = |c: char| {
        !c.is_control() && !matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if harmless(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

/// "1 task", "2 tasks".
pub(crate) fn count(n: u64, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check_size(text: &str, expected: Option<u64>) {
        assert_eq!(size(text).ok(), expected, "{text}");
    }

    #[track_caller]
    fn check_span(text: &str, seconds: Option<f64>) {
        assert_eq!(span(text).ok().map(|d| d.as_secs_f64()), seconds, "{text}");
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        check_size("8G", Some(8 << 30));
        check_size("8g", Some(8 << 30));
        check_size("8GiB", Some(8 << 30));
        check_size("8GB", Some(8 << 30));
        check_size("1.5K", Some(1536));
        check_size("0B", Some(0));
        check_size("512MiB", Some(512 << 20));
    }

    #[test]
    fn sizes_without_unit_or_sense_are_refused() {
        for text in ["", "8", "G", "-1G", "8X", "8 G", "1.G", ".5G", "8GG", "99999999999P"] {
            check_size(text, None);
        }
    }

    #[test]
    fn times_are_read_with_units_and_as_slurm_writes_them() {
        check_span("90s", Some(90.0));
        check_span("10m", Some(600.0));
        check_span("1h30m", Some(5400.0));
        check_span("1.5h", Some(5400.0));
        check_span("500ms", Some(0.5));
        check_span("2d", Some(172_800.0));
        check_span("10:30", Some(630.0));
        check_span("1:00:00", Some(3600.0));
        check_span("2-12", Some(216_000.0));
        check_span("1-00:30", Some(88_200.0));
        check_span("1-00:00:01", Some(86_401.0));
    }

    #[test]
    fn times_without_unit_or_sense_are_refused() {
        for text in ["", "90", "s", "-5s", "1:2:3:4", "1-", "1:", ":30", "1-2-3", "5 s", "5y", "99999999999999999d"] {
            check_span(text, None);
        }
    }

    #[test]
    fn arrays_have_steps_and_caps() {
        let parsed = array("0-20:5,7%3").ok();
        assert_eq!(parsed.as_ref().map(|a| (a.indices.to_string(), a.cap)), Some(("0,5,7,10,15,20".into(), 3)));
        for text in ["", "%3", "0-9%0", "0-9%x", "9-0", "0-9%"] {
            assert!(array(text).is_err(), "{text}");
        }
    }

    #[test]
    fn all_named_dependencies_are_kept() {
        let list = dependencies("afterok:12:13,afterany:14_[1-2,5],afternotok:15").map(|d| d.0).unwrap_or_default();
        let text: Vec<_> = list.iter().map(|d| format!("{:?} {}", d.when, d.target)).collect();
        assert_eq!(text, ["Ok 12", "Ok 13", "Any 14_[1-2,5]", "NotOk 15"]);
        for text in ["", "12", "after:12", "afterok", "afterok:", "afterok:12,"] {
            assert!(dependencies(text).is_err(), "{text}");
        }
    }

    #[test]
    fn control_characters_are_tamed() {
        assert_eq!(tame("a\x1b[31m\nb\u{202e}é"), "a\\u{1b}[31m\\nb\\u{202e}é");
    }

    #[test]
    fn spans_and_sizes_are_shown_in_the_unit_a_person_would_pick() {
        let shown: Vec<_> = [5, 1_250, 250_000, 11_100_000, 187_200_000].into_iter().map(show_ms).collect();
        assert_eq!(shown, ["5ms", "1.2s", "4m10s", "3h05m", "2d04h"]);
        assert_eq!([512, 1536, 8 << 30].map(show_bytes), ["512 B", "1.5 KiB", "8.0 GiB"]);
    }

    proptest! {
        #[test]
        fn whole_numbers_of_any_unit_are_exact(n in 0_u64..1_000_000, unit in 0_usize..5) {
            let (letter, factor) = [("B", 1_u64), ("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40)][unit];
            prop_assert_eq!(size(&format!("{n}{letter}")), Ok(n * factor));
        }

        #[test]
        fn clock_times_equal_their_seconds(d in 0_u64..400, h in 0_u64..24, m in 0_u64..60, s in 0_u64..60) {
            let expected = Duration::from_secs(((d * 24 + h) * 60 + m) * 60 + s);
            prop_assert_eq!(span(&format!("{d}-{h:02}:{m:02}:{s:02}")), Ok(expected));
            prop_assert_eq!(span(&format!("{d}d{h}h{m}m{s}s")), Ok(expected));
        }

        #[test]
        fn no_text_makes_a_parser_panic(text in "\\PC{0,20}") {
            let _ = (size(&text), span(&text), array(&text), dependencies(&text), targets(&text));
        }
    }
}
