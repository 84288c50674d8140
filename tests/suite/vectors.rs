//! Walks `spec/vectors/`: decodes each file, compares with what the spec says it holds, and encodes it to the same bytes again.
//! Also reads every example in `spec/records.md`.
//!
//! The vectors were made from the text of the spec, not by the code that is tested here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fq::decision::{decode_group, encode_group};
use fq::protocol::digest::Digest;
use fq::protocol::frame::{open_line, seal_line, valid_lines};
use fq::protocol::id::{DecisionId, JobId, Nonce, Ranges, WorkerId};
use fq::protocol::layout;
use fq::protocol::record::{
    Action, BadRecord, BeaconLine, Bye, Bytes, Command, HeadStyle, Hello, Limits, Line, Mail, Manifest, Message, Op,
    Outcome, QueueFile, Ref, Request, Seen, from_document, to_document, to_line,
};
use fq::queue::limits_text;
use fq::state::{decode_snapshot, encode_snapshot};
use fq::store::pack;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn spec() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("spec")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text"))
}

fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(value: &Value) -> T {
    text(value).parse().unwrap_or_else(|e| panic!("{value}: {e:?}"))
}

/// Members and their values, whatever their order.
fn same(found: &Value, expected: &Value) -> bool {
    let sorted = |value: &Value| serde_json::from_str::<BTreeValue>(&value.to_string()).expect("JSON");
    sorted(found) == sorted(expected)
}

#[derive(serde::Deserialize, PartialEq)]
#[serde(untagged)]
enum BTreeValue {
    Map(BTreeMap<String, BTreeValue>),
    List(Vec<BTreeValue>),
    Other(Value),
}

fn check_document<T: DeserializeOwned + Serialize>(name: &str, bytes: &[u8], expected: &Value) {
    match from_document::<T>(bytes) {
        Ok(value) => {
            let found = serde_json::to_value(&value).expect("JSON");
            assert!(same(&found, &expected["value"]), "{name} decodes to {found}");
            if expected["reencodes"] != json!(false) {
                assert_eq!(String::from_utf8_lossy(&to_document(&value)), String::from_utf8_lossy(bytes), "{name}");
            }
        }
        Err(BadRecord::Torn) => assert_eq!(expected["error"], "torn", "{name}"),
        Err(BadRecord::Malformed(why)) => assert_eq!(expected["error"], "malformed", "{name}: {why}"),
    }
}

fn check_limits(name: &str, bytes: &[u8], expected: &Value) {
    let limits: Limits = serde_json::from_slice(bytes).expect("limits");
    assert!(same(&serde_json::to_value(&limits).expect("JSON"), &expected["value"]), "{name}");
    assert_eq!(limits.check(), Ok(()));
    if expected["reencodes"] == json!(false) {
        return;
    }
    let again: Value = serde_json::from_slice(&limits_text(&limits)).expect("JSON");
    assert!(same(&again, &expected["value"]), "{name}");
}

fn check_decision(name: &str, bytes: &[u8], expected: &Value) {
    let group = match decode_group(bytes) {
        Ok(group) => group,
        Err(BadRecord::Torn) => return assert_eq!(expected["error"], "torn", "{name}"),
        Err(bad) => panic!("{name}: {bad}"),
    };
    assert!(same(&serde_json::to_value(&group.header).expect("JSON"), &expected["header"]), "{name}");
    assert!(same(&serde_json::to_value(&group.ops).expect("JSON"), &expected["ops"]), "{name}");
    assert_eq!(encode_group(&group.header, &group.ops), bytes, "{name}");
    assert_eq!(group.sha, Digest::of(bytes), "{name}");
}

fn check_journal(name: &str, bytes: &[u8], expected: &Value) {
    let after = expected["after"].as_u64().expect("a number");
    let (lines, whole_bytes) = valid_lines(bytes, after);
    assert_eq!(json!(whole_bytes), expected["whole_bytes"], "{name}");
    let wanted = expected["lines"].as_array().expect("lines");
    assert_eq!(lines.len(), wanted.len(), "{name}");
    for ((seq, json), wanted) in lines.into_iter().zip(wanted) {
        assert_eq!(json!(seq), wanted["seq"], "{name}");
        let Ok(line) = serde_json::from_str::<Line>(json) else {
            assert_eq!(wanted["unknown"], true, "{name}: line {seq} is not understood");
            continue;
        };
        let mut wanted = wanted.clone();
        wanted.as_object_mut().expect("a line").shift_remove("seq");
        let found = serde_json::to_value(&line).expect("JSON");
        assert!(same(&found, &wanted), "{name}: {found}");
        assert_eq!(sealed(seq, &line).trim_end(), json, "{name}");
    }
}

fn sealed(seq: u64, line: &Line) -> String {
    let json = serde_json::to_string(line).expect("JSON");
    String::from_utf8(seal_line(&format!("{{\"seq\":{seq},{}", &json[1..]))).expect("text")
}

fn check_snapshot(name: &str, bytes: &[u8], expected: &Value) {
    let state = decode_snapshot(bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(json!(state.at.to_string()), expected["at"], "{name}");
    assert_eq!(json!(state.term), expected["term"], "{name}");
    for (task, wanted) in expected["tasks"].as_object().expect("tasks") {
        let (_, task) = state.task(task.parse().expect("a task id")).expect("a task");
        assert_eq!(json!(task.state), *wanted, "{name}");
    }
    for (w, wanted) in expected["workers"].as_object().expect("workers") {
        let worker = &state.workers[&w.parse::<WorkerId>().expect("a worker id")];
        assert_eq!(json!({"sent": worker.sent, "got": worker.got}), *wanted, "{name}");
    }
    assert_eq!(encode_snapshot(&state), bytes, "{name}");
}

fn check_pack(name: &str, bytes: &[u8], expected: &Value) {
    let dir = tempfile::tempdir().expect("a directory");
    let packs = dir.path().join(layout::PACKS);
    fs::create_dir_all(&packs).expect("a directory");
    let file = "node7~9c1b0e77a4d25f60.000001.pack";
    fs::write(packs.join(file), bytes).expect("a pack");
    let host = fq::fs::HostFs::open(dir.path(), fq::fs::HostOptions::default()).expect("a directory");
    let found = pack::walk(&host, file, true).expect("a walk");
    assert_eq!(json!(found.whole_bytes), expected["whole_bytes"], "{name}");
    assert_eq!(found.file_bytes, bytes.len() as u64, "{name}");
    let items: Vec<Value> = found
        .items
        .iter()
        .map(|item| {
            assert_eq!(item.is_sound, Some(true), "{name}");
            json!({"sha": item.sha, "len": item.len, "at": item.at})
        })
        .collect();
    assert!(same(&json!(items), &expected["items"]), "{name}");
}

#[test]
fn every_vector_decodes_to_what_the_spec_says_and_encodes_to_the_same_bytes() {
    let mut count = 0;
    for entry in fs::read_dir(spec().join("vectors")).expect("vectors") {
        let path = entry.expect("a vector").path();
        if path.extension().is_none_or(|e| e != "bin") {
            continue;
        }
        count += 1;
        let name = path.file_stem().and_then(|n| n.to_str()).expect("a name").to_owned();
        let bytes = fs::read(&path).expect("bytes");
        let expected = fs::read(path.with_extension("expected.json")).expect("what the vector holds");
        let expected: Value = serde_json::from_slice(&expected).expect("JSON");
        match text(&expected["record"]) {
            "queue" => check_document::<QueueFile>(&name, &bytes, &expected),
            "limits" => check_limits(&name, &bytes, &expected),
            "manifest" => check_document::<Manifest>(&name, &bytes, &expected),
            "request" => check_document::<Request>(&name, &bytes, &expected),
            "hello" => check_document::<Hello>(&name, &bytes, &expected),
            "bye" => check_document::<Bye>(&name, &bytes, &expected),
            "mail" => check_document::<Mail>(&name, &bytes, &expected),
            "decision" => check_decision(&name, &bytes, &expected),
            "journal" => check_journal(&name, &bytes, &expected),
            "snapshot" => check_snapshot(&name, &bytes, &expected),
            "pack" => check_pack(&name, &bytes, &expected),
            other => panic!("{name}: no test knows the record `{other}`"),
        }
    }
    assert!(count > 20, "{count} vectors");
}

fn rows(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(spec().join("vectors").join(name)).expect("vectors");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn names_are_read_and_made_as_the_vectors_say() {
    for row in rows("names.jsonl") {
        let name = text(&row["name"]);
        let decision = || id::<DecisionId>(&row["decision"]);
        let worker = || id::<WorkerId>(&row["worker"]);
        let number = || row["number"].as_u64().expect("a number");
        let path = match text(&row["kind"]) {
            "job" => {
                let job = JobId(row["job"].as_u64().expect("a number"));
                assert_eq!(layout::parse_job(name), Some(job));
                layout::job(job)
            }
            "request" => {
                let nonce = id::<Nonce>(&row["nonce"]);
                assert_eq!(layout::parse_request(name), Some(nonce));
                layout::request(nonce)
            }
            "head" => {
                assert_eq!(layout::parse_head(name), Some(decision()));
                layout::head(decision(), HeadStyle::Plain)
            }
            "dotted-head" => {
                assert_eq!(layout::parse_head(name), Some(decision()));
                layout::head(decision(), HeadStyle::Dotted)
            }
            "not-a-head" => {
                assert_eq!(layout::parse_head(name), None, "{name}");
                continue;
            }
            "decision" => {
                assert_eq!(layout::parse_decision(name), Some(decision()));
                layout::decision(decision())
            }
            "snapshot" => layout::snapshot(decision()),
            "beacon" => {
                let term = row["term"].as_u64().expect("a number");
                assert_eq!(layout::parse_beacon(name), Some((term, decision())));
                layout::beacon(term, decision())
            }
            "message" => {
                assert_eq!(layout::parse_message(name), Some((number(), decision())));
                layout::message(&worker(), number(), decision())
            }
            "segment" => {
                assert_eq!(layout::parse_segment(name), Some(number()));
                layout::segment(&worker(), number())
            }
            "object" => layout::object(&id::<Digest>(&row["digest"])),
            "pack" => {
                assert_eq!(layout::parse_pack(name), Some((worker(), number())));
                layout::pack(&worker(), number())
            }
            other => panic!("no test knows the kind `{other}`"),
        };
        assert_eq!(path, Path::new(text(&row["path"])));
    }
}

#[test]
fn sets_of_numbers_and_bytes_are_read_and_made_as_the_vectors_say() {
    for row in rows("ranges.jsonl") {
        let found = text(&row["text"]).parse::<Ranges>();
        let Some(numbers) = row["numbers"].as_array() else {
            assert!(found.is_err(), "{row}");
            continue;
        };
        let found = found.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(json!(found.iter().collect::<Vec<_>>()), json!(numbers));
        assert_eq!(found.to_string(), text(&row["prints"]));
    }
    for row in rows("bytes.jsonl") {
        let bytes: Bytes = serde_json::from_value(row["json"].clone()).expect("bytes");
        let hex: String = bytes.0.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        assert_eq!(hex, text(&row["hex"]));
        assert_eq!(serde_json::to_value(&bytes).expect("JSON"), row["json"]);
    }
}

/// Blocks of a page that are tagged with `json` and a name: the name and the content.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.split_inclusive('\n') {
        match (&mut open, line.trim_end()) {
            (Some(_), "```") => found.extend(open.take()),
            (Some((_, content)), _) => content.push_str(line),
            (None, fence) => {
                open = fence.strip_prefix("```json ").map(|name| (name.to_owned(), String::new()));
            }
        }
    }
    found
}

fn check_lines<T: DeserializeOwned + Serialize>(block: &str) {
    for line in block.split_inclusive('\n') {
        let value: T = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert_eq!(String::from_utf8_lossy(&to_line(&value)), line);
    }
}

fn check_example<T: DeserializeOwned + Serialize>(block: &str) {
    let value: T = from_document(block.as_bytes()).unwrap_or_else(|e| panic!("{e}: {block}"));
    assert_eq!(String::from_utf8_lossy(&to_document(&value)), block);
}

#[test]
fn every_example_in_the_records_page_is_what_the_code_writes() {
    let page = fs::read_to_string(spec().join("records.md")).expect("the page");
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for (name, block) in blocks(&page) {
        match name.as_str() {
            "ref" => check_lines::<Ref>(&block),
            "command" => check_lines::<Command>(&block),
            "action" => check_lines::<Action>(&block),
            "op" => check_lines::<Op>(&block),
            "seen" => check_lines::<Seen>(&block),
            "message" => check_lines::<Message>(&block),
            "outcome" => check_lines::<Outcome>(&block),
            "beacon" => check_lines::<BeaconLine>(&block),
            "queue" => check_example::<QueueFile>(&block),
            "manifest" => check_example::<Manifest>(&block),
            "request" => check_example::<Request>(&block),
            "hello" => check_example::<Hello>(&block),
            "bye" => check_example::<Bye>(&block),
            "mail" => check_example::<Mail>(&block),
            "limits" => {
                let limits: Limits = serde_json::from_str(&block).expect("limits");
                assert_eq!(limits, Limits::default(), "the page shows the defaults");
            }
            "decision" => {
                let group = decode_group(block.as_bytes()).unwrap_or_else(|e| panic!("{e}: {block}"));
                assert_eq!(String::from_utf8_lossy(&encode_group(&group.header, &group.ops)), block);
            }
            "snapshot" => {
                let state = decode_snapshot(block.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(String::from_utf8_lossy(&encode_snapshot(&state)), block);
            }
            "journal" | "journal_line" => {
                for line in block.split_inclusive('\n') {
                    let (seq, json) = open_line(line.as_bytes()).unwrap_or_else(|| panic!("a bad checksum: {line}"));
                    let value: Line = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {line}"));
                    assert_eq!(sealed(seq, &value), line);
                }
            }
            // Walked as a vector.
            "pack" => {}
            other => panic!("no test knows the example `{other}`"),
        }
        *seen.entry(name).or_default() += 1;
    }
    assert!(seen.len() >= 20, "{seen:?}");
}

/// The tables of the spec name every kind of operation and of journal line that the examples show.
#[test]
fn the_page_explains_every_operation_and_every_journal_line_that_it_shows() {
    let page = fs::read_to_string(spec().join("records.md")).expect("the page");
    for (name, block) in blocks(&page) {
        let member = match name.as_str() {
            "op" => "op",
            "journal" => "t",
            _ => continue,
        };
        for line in block.lines() {
            let value: Value = serde_json::from_str(line).expect("JSON");
            let kind = format!("`{}`", text(&value[member]));
            let is_explained = page.lines().any(|l| l.starts_with('|') && l.contains(&kind));
            assert!(is_explained, "{kind} stands in no table");
        }
    }
}
