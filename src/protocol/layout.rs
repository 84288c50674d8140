//! Every path in a queue directory, both ways (spec: layout). No other module spells a directory name.

use std::path::{Path, PathBuf};

use super::digest::Digest;
use super::id::{DecisionId, JobId, Nonce, WorkerId};
use super::record::HeadStyle;

/// The file that makes a directory a queue.
pub const QUEUE: &str = "FQ";
/// Ten lines for the person who does `ls` first.
pub const README: &str = "README";
/// The operator's parameters.
pub const LIMITS: &str = "limits.json";
/// Submitted manifests, in buckets.
pub const JOBS: &str = "jobs";
/// Requests of clients.
pub const CONTROL: &str = "control";
/// The one token.
pub const HEAD: &str = "decisions/head";
/// Decision groups, in buckets.
pub const LOG: &str = "decisions/log";
/// Snapshots of the state.
pub const SNAPSHOTS: &str = "decisions/snapshots";
/// Signs of life of masters.
pub const BEACONS: &str = "decisions/beacon";
/// Namespaces of worker incarnations.
pub const WORKERS: &str = "workers";
/// Journals of workers.
pub const JOURNALS: &str = "store/log";
/// Loose objects.
pub const OBJECTS: &str = "store/objects";
/// Packs of small objects.
pub const PACKS: &str = "store/packs";
/// Quarantined objects, one directory a decision.
pub const TRASH: &str = "store/trash";
/// What the mounts of hosts can do.
pub const PROBES: &str = "probe";
/// Rendered for people, never read back.
pub const VIEW: &str = "view";

/// All directories that exist in a new queue, parents first (the 256 below [`OBJECTS`] come on top).
pub const DIRECTORIES: &[&str] = &[
    JOBS,
    "jobs/000",
    CONTROL,
    "decisions",
    HEAD,
    LOG,
    "decisions/log/000",
    SNAPSHOTS,
    BEACONS,
    WORKERS,
    "store",
    JOURNALS,
    OBJECTS,
    PACKS,
    TRASH,
    PROBES,
    VIEW,
];

/// How many numbers share a bucket of `jobs/` or `decisions/log/`.
pub const BUCKET: u64 = 1000;

/// The name of the bucket that holds number `n`: `000` for 0 to 999.
pub fn bucket(n: u64) -> String {
    format!("{:03}", n / BUCKET)
}

/// The manifest of a job.
pub fn job(id: JobId) -> PathBuf {
    Path::new(JOBS).join(bucket(id.0)).join(format!("{id}.json"))
}

/// The job that a name in a bucket of `jobs/` stands for.
pub fn parse_job(name: &str) -> Option<JobId> {
    name.strip_suffix(".json")?.parse().ok()
}

/// A request of a client.
pub fn request(id: Nonce) -> PathBuf {
    Path::new(CONTROL).join(format!("{id}.json"))
}

/// The request that a name in `control/` stands for.
pub fn parse_request(name: &str) -> Option<Nonce> {
    name.strip_suffix(".json")?.parse().ok()
}

/// What `FQ` is to say of the queue that begins with `first`: the same bytes, made by `fq init` before the token.
pub fn plan(first: DecisionId) -> PathBuf {
    PathBuf::from(format!(".{QUEUE}-{first}"))
}

/// The token while `id` is the newest decision.
pub fn head(id: DecisionId, style: HeadStyle) -> PathBuf {
    Path::new(HEAD).join(match style {
        HeadStyle::Plain => id.to_string(),
        HeadStyle::Dotted => format!(".head.{}-{}", id.generation, id.nonce),
    })
}

/// The decision that a name in `decisions/head` stands for, in either style; `None` for names set aside and for strangers.
pub fn parse_head(name: &str) -> Option<DecisionId> {
    match name.strip_prefix(".head.") {
        Some(dotted) => dotted.replacen('-', ".", 1).parse().ok(),
        None => name.parse().ok(),
    }
}

/// Where a stray token is set aside to.
pub fn gone_head(name: &str, nonce: Nonce) -> PathBuf {
    Path::new(HEAD).join(format!(".gone-{}-{nonce}", name.trim_start_matches('.')))
}

/// The file that a nudge makes and removes.
pub fn nudge(dir: &Path, nonce: Nonce) -> PathBuf {
    dir.join(format!(".nudge-{nonce}"))
}

/// The bucket directory of a decision.
pub fn decision_bucket(generation: u64) -> PathBuf {
    Path::new(LOG).join(bucket(generation))
}

/// A decision group.
pub fn decision(id: DecisionId) -> PathBuf {
    decision_bucket(id.generation).join(format!("{:09}.{}.jsonl", id.generation, id.nonce))
}

/// The decision that a name in a bucket of `decisions/log` stands for.
pub fn parse_decision(name: &str) -> Option<DecisionId> {
    let (generation, nonce) = name.strip_suffix(".jsonl")?.split_once('.')?;
    (generation.len() >= 9).then_some(())?;
    Some(DecisionId { generation: generation.parse().ok()?, nonce: nonce.parse().ok()? })
}

/// The snapshot of the state at `id`.
pub fn snapshot(id: DecisionId) -> PathBuf {
    Path::new(SNAPSHOTS).join(format!("{:09}.{}.jsonl", id.generation, id.nonce))
}

/// The sign of life of the master whose `lead` decision is `lead`.
pub fn beacon(term: u64, lead: DecisionId) -> PathBuf {
    Path::new(BEACONS).join(format!("term-{term}.{lead}"))
}

/// The term and the `lead` decision that a name in `decisions/beacon` stands for.
pub fn parse_beacon(name: &str) -> Option<(u64, DecisionId)> {
    let (term, lead) = name.strip_prefix("term-")?.split_once('.')?;
    Some((term.parse().ok()?, lead.parse().ok()?))
}

/// The namespace of an incarnation.
pub fn worker(id: &WorkerId) -> PathBuf {
    Path::new(WORKERS).join(id.as_str())
}

/// What a worker says of itself when it starts.
pub fn hello(id: &WorkerId) -> PathBuf {
    worker(id).join("HELLO")
}

/// The lock that is held while the worker or any process of its jobs lives.
pub fn lock(id: &WorkerId) -> PathBuf {
    worker(id).join("lock")
}

/// What a worker leaves when it ends in order.
pub fn bye(id: &WorkerId) -> PathBuf {
    worker(id).join("BYE")
}

/// The mailbox of a worker.
pub fn mailbox(id: &WorkerId) -> PathBuf {
    worker(id).join("in")
}

/// Message `number` for a worker, issued by decision `by`.
pub fn message(id: &WorkerId, number: u64, by: DecisionId) -> PathBuf {
    mailbox(id).join(format!("{number:06}.{by}.json"))
}

/// The number and the issuing decision of a name in a mailbox.
pub fn parse_message(name: &str) -> Option<(u64, DecisionId)> {
    let (number, by) = name.strip_suffix(".json")?.split_once('.')?;
    (number.len() >= 6).then_some(())?;
    Some((number.parse().ok()?, by.parse().ok()?))
}

/// The live outputs of a worker's attempts.
pub fn outputs(id: &WorkerId) -> PathBuf {
    worker(id).join("out")
}

/// The live output of one attempt: `out/7_3.1.out`.
pub fn output(id: &WorkerId, attempt: super::id::AttemptId, stream: crate::process::Stream) -> PathBuf {
    let suffix = match stream {
        crate::process::Stream::Stdout => "out",
        crate::process::Stream::Stderr => "err",
    };
    outputs(id).join(format!("{attempt}.{suffix}"))
}

/// The directory of a worker's journal.
pub fn journal(id: &WorkerId) -> PathBuf {
    Path::new(JOURNALS).join(id.as_str())
}

/// Segment `number`, from 1, of a worker's journal.
pub fn segment(id: &WorkerId, number: u64) -> PathBuf {
    journal(id).join(format!("{number:06}.jsonl"))
}

/// The segment number of a name in a journal's directory.
pub fn parse_segment(name: &str) -> Option<u64> {
    name.strip_suffix(".jsonl")?.parse().ok()
}

/// The directory of loose objects whose digest begins with the same two digits.
pub fn object_bucket(digest: &Digest) -> PathBuf {
    Path::new(OBJECTS).join(&digest.to_string()[..2])
}

/// All 256 directories of loose objects.
pub fn object_buckets() -> impl Iterator<Item = PathBuf> {
    (0..=255).map(|byte: u8| Path::new(OBJECTS).join(format!("{byte:02x}")))
}

/// A loose object.
pub fn object(digest: &Digest) -> PathBuf {
    let text = digest.to_string();
    Path::new(OBJECTS).join(&text[..2]).join(&text[2..])
}

/// The digest that a name in an object bucket stands for.
pub fn parse_object(bucket: &str, name: &str) -> Option<Digest> {
    format!("{bucket}{name}").parse().ok()
}

/// Pack `number`, from 1, of the process `creator`.
pub fn pack(creator: &WorkerId, number: u64) -> PathBuf {
    Path::new(PACKS).join(pack_name(creator, number))
}

/// The file name of a pack, by which references name it.
pub fn pack_name(creator: &WorkerId, number: u64) -> String {
    format!("{creator}.{number:06}.pack")
}

/// The creator and the number of a pack's file name.
pub fn parse_pack(name: &str) -> Option<(WorkerId, u64)> {
    let (creator, number) = name.strip_suffix(".pack")?.rsplit_once('.')?;
    Some((creator.parse().ok()?, number.parse().ok()?))
}

/// The trash directory of the quarantine that decision `by` ordered.
pub fn trash(by: DecisionId) -> PathBuf {
    Path::new(TRASH).join(by.to_string())
}

/// What a host's mount was measured to do.
pub fn probe(host: &str) -> PathBuf {
    let safe: String =
        host.chars().map(|c| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '-' }).collect();
    Path::new(PROBES).join(format!("{}.json", safe.trim_start_matches('.')))
}

/// The private directory of one measurement: in `probe/` of a queue, by itself in a directory that is none.
pub fn probe_run(nonce: Nonce, is_queue: bool) -> PathBuf {
    if is_queue { Path::new(PROBES).join(format!(".run-{nonce}")) } else { PathBuf::from(format!(".fq-probe-{nonce}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(path: &Path) -> &str {
        path.file_name().and_then(|n| n.to_str()).unwrap_or_default()
    }

    #[test]
    fn names_are_read_back_as_they_are_written() {
        let by = DecisionId { generation: 101, nonce: Nonce(0xabc) };
        let wid = WorkerId::new("node-7", Nonce(1));
        assert_eq!(parse_job(name(&job(JobId(1042)))), Some(JobId(1042)));
        assert_eq!(job(JobId(1042)), Path::new("jobs/001/1042.json"));
        assert_eq!(parse_head(name(&head(by, HeadStyle::Plain))), Some(by));
        assert_eq!(parse_head(name(&head(by, HeadStyle::Dotted))), Some(by));
        assert_eq!(parse_head(name(&gone_head(".head.101-0000000000000abc", Nonce(2)))), None);
        assert_eq!(parse_head(name(&nudge(Path::new(HEAD), Nonce(2)))), None);
        assert_eq!(parse_decision(name(&decision(by))), Some(by));
        assert_eq!(parse_message(name(&message(&wid, 17, by))), Some((17, by)));
        assert_eq!(parse_segment(name(&segment(&wid, 3))), Some(3));
        assert_eq!(parse_pack(name(&pack(&wid, 2))), Some((wid.clone(), 2)));
        assert_eq!(parse_beacon(name(&beacon(8, by))), Some((8, by)));
        let digest = Digest::of(b"x");
        assert_eq!(parse_object(&digest.to_string()[..2], name(&object(&digest))), Some(digest));
    }

    #[test]
    fn no_host_name_leads_out_of_the_probe_directory() {
        assert_eq!(probe("../../etc/x"), Path::new("probe/-..-etc-x.json"));
    }
}
