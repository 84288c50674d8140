//! Runs the commands of `spec/reading.md` in a queue directory and checks what they answer.
//!
//! The queue is made with the library, step by step, so that every answer is known beforehand.

use std::path::Path;
use std::process::Command;

use fq::client::submit;
use fq::clock::{Chance, HostChance};
use fq::decision::{Author, Commit, Writer};
use fq::fs::{self, Fs, HostFs};
use fq::journal;
use fq::process::Status;
use fq::process::{Group, Identity, Stream, Usage};
use fq::protocol::digest::Digest;
use fq::protocol::id::{AttemptId, DecisionId, JobId, Nonce, TaskId, WorkerId};
use fq::protocol::layout;
use fq::protocol::record::{
    Action, Admit, BeaconLine, Command as Job, EndLine, Ended, Hello, Ingest, Limits, Line, LockVerdict, Manifest,
    Message, Needs, Op, Outcome, Ref, Request, RunItem, Seen, Trust, to_document, to_line,
};
use fq::protocol::version::CURRENT;
use fq::queue::{self, InitOptions, Queue};
use fq::store;
use fq::view;

use crate::support::Room;

const AT_MS: u64 = 1_767_225_600_000;

/// A queue in which job 7 has failed, job 8 is done, job 9 runs, and the others wait.
struct Scene {
    queue: Queue,
    chain: Writer,
    master: WorkerId,
    worker: WorkerId,
    ingested: Vec<Ingest>,
}

fn identity(host: &str) -> Identity {
    Identity { host: host.into(), boot_id: "b".into(), pid_ns: "p".into(), pid: 4242, ticks: 9, uid: me() }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn attempt(job: u64) -> AttemptId {
    AttemptId { task: TaskId { job: JobId(job), index: None }, number: 1 }
}

impl Scene {
    fn new(root: &Path) -> Self {
        let queue = queue::init(root, &InitOptions::default()).expect("a queue");
        let chain = Writer::open(&*queue.fs, &HostChance, &queue.file).expect("a chain");
        let worker = WorkerId::new("node7", Nonce(HostChance.bits()));
        let master = WorkerId::new("node3", Nonce(HostChance.bits()));
        let mut scene = Self { queue, chain, master, worker, ingested: Vec::new() };
        scene.lead();
        (1..=9).for_each(|job| scene.submit(job));
        scene.work();
        scene
    }

    fn fs(&self) -> &HostFs {
        &self.queue.fs
    }

    fn decide(&mut self, ops: Vec<Op>) -> DecisionId {
        let id = self.chain.next_id(&HostChance);
        let term = self.chain.state().term + u64::from(matches!(ops[0], Op::Lead { .. }));
        let author = Author { by: self.master.clone(), term, at_ms: AT_MS };
        let fs = self.queue.fs.clone();
        assert_eq!(self.chain.commit(&*fs, &HostChance, &author, id, ops), Commit::Won);
        id
    }

    fn lead(&mut self) {
        let lead = Op::Lead { term: 1, master: self.master.clone(), identity: identity("node3") };
        let id = self.decide(vec![lead]);
        let line = to_line(&BeaconLine { beat: 1, head: id, trouble: String::new() });
        fs::put_new(self.fs(), &layout::beacon(1, id), &line, 0o664).expect("a beacon");
    }

    fn submit(&mut self, job: u64) {
        let mut manifest = Manifest {
            fq: "job".into(),
            version: CURRENT,
            job: JobId(0),
            sub: Nonce(HostChance.bits()),
            name: format!("step-{job}"),
            command: Job::Shell("make step".into()),
            cwd: "/tmp".into(),
            env: Vec::new(),
            array: None,
            entries: None,
            stdin: None,
            stdout: None,
            stderr: None,
            needs: Needs { hold: job == 6, ..Needs::default() },
            user: "ada".into(),
            host: "login1".into(),
            at_ms: AT_MS,
        };
        assert_eq!(submit::bind(self.fs(), 0o600, &mut manifest), Ok(JobId(job)));
        self.ingested.push(Ingest {
            job: manifest.job,
            sub: manifest.sub,
            sha: Digest::of(&to_document(&manifest)),
            uid: me(),
            name: manifest.name,
            array: None,
            needs: manifest.needs,
            at_ms: AT_MS,
        });
    }

    /// Gives jobs 7, 8 and 9 to a worker, which ends the first two.
    fn work(&mut self) {
        let w = self.worker.clone();
        let hello = Hello {
            fq: "hello".into(),
            version: CURRENT,
            wid: w.clone(),
            queue: self.queue.file.id,
            worker: identity("node7"),
            keeper: None,
            cpus: 4,
            mem: 0,
            self_fence_ms: 120_000,
            lock: LockVerdict::Held,
            trust: Trust { uid: me(), ..Trust::default() },
            at_ms: AT_MS,
        };
        for dir in [layout::worker(&w), layout::mailbox(&w), layout::outputs(&w)] {
            self.fs().mkdir(&dir).expect("a directory");
        }
        fs::put_new(self.fs(), &layout::hello(&w), &to_document(&hello), 0o644).expect("a HELLO");
        let run = self.ingested[6..9]
            .iter()
            .map(|job| RunItem { job: job.job, sha: job.sha, uid: job.uid, tasks: None, attempt: 1 })
            .collect();
        let mut ops: Vec<Op> = self.ingested.iter().map(|job| Op::Ingest(Box::new(job.clone()))).collect();
        ops.push(Op::Admit(Box::new(Admit {
            w: w.clone(),
            worker: hello.worker,
            keeper: None,
            cpus: 4,
            mem: 0,
            self_fence_ms: 120_000,
            lock: LockVerdict::Held,
            trust: hello.trust,
        })));
        ops.push(Op::Send { w: w.clone(), m: 1, msg: Message::Run(run) });
        let by = self.decide(ops);
        let long = store::put_loose(self.fs(), &HostChance, &b"a line of a long output\n".repeat(1000)).expect("put");
        let mut journal = journal::Writer::create(self.fs(), &w, &Limits::default()).expect("a journal");
        journal.append(&Line::Claim { m: 1, by });
        for job in 7..=9 {
            let group = Group { pid: 5000, ticks: 1, token: "t".into() };
            journal.append(&Line::Start { a: attempt(job), m: 1, group, at_ms: AT_MS });
        }
        let short = Ref::Inline { bytes: "first \"line\"\nsecond line\n".into() };
        let how = [Outcome::Ran(Status::Exit(3)), Outcome::Ran(Status::Exit(0))];
        let mut seen = vec![Seen::Got(1), Seen::Started((7..=9).map(attempt).collect())];
        for ((job, out), how) in (7..=8).zip([short, long]).zip(how) {
            let end = EndLine {
                a: attempt(job),
                m: 1,
                how: how.clone(),
                out,
                err: Ref::default(),
                usage: Usage::default(),
                ms: 1500,
                leftovers: 0,
                notes: Vec::new(),
                start_ms: AT_MS,
                end_ms: AT_MS + 1500,
            };
            let line = journal.append(&Line::End(Box::new(end)));
            seen.push(Seen::Ended(Ended { a: attempt(job), line, how, ms: 1500 }));
        }
        journal.append(&Line::Beat { k: 1, free: 3 });
        journal.flush(self.fs()).expect("a flush");
        let live = layout::output(&w, attempt(9), Stream::Stdout);
        fs::put_new(self.fs(), &live, b"half of it\n", 0o644).expect("a live output");
        self.decide(vec![Op::Read { w, seq: journal.durable(), seen }]);
        let id = Nonce(HostChance.bits());
        let action = Action::Cancel { targets: vec!["5".parse().expect("a target")], reason: String::new() };
        let request = Request { fq: "request".into(), version: CURRENT, id, action, user: "ada".into(), at_ms: AT_MS };
        fs::put_new(self.fs(), &layout::request(id), &to_document(&request), 0o600).expect("a request");
        view::write(self.fs(), &HostChance, self.chain.state(), AT_MS);
    }
}

/// The headings of a page, each with its `sh` blocks.
fn sections(page: &str) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let mut is_open = false;
    for line in page.split_inclusive('\n') {
        match line.trim_end() {
            "```sh" => {
                is_open = true;
                found.last_mut().expect("a heading").1.push(String::new());
            }
            "```" => is_open = false,
            _ if is_open => found.last_mut().and_then(|s| s.1.last_mut()).expect("a block").push_str(line),
            text => found.extend(text.strip_prefix("## ").map(|heading| (heading.to_owned(), Vec::new()))),
        }
    }
    found
}

/// Runs a script in `dir`; returns what it printed. It must succeed and complain of nothing.
fn sh(dir: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-euc", script]).current_dir(dir).env("LC_ALL", "C").output().expect("sh");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaint.is_empty(), "{script}\n{complaint}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_commands_of_the_reading_page_answer_its_questions() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("q");
    let scene = Scene::new(&root);
    let head = scene.chain.state().at.to_string();
    let (worker, master) = (scene.worker.to_string(), scene.master.to_string());
    let long = Digest::of(&b"a line of a long output\n".repeat(1000)).to_string();
    let answers: &[(&str, &[&str])] = &[
        (
            "What waits, runs, failed?",
            &[
                "rendered   2026-01-01T00:00:00Z\n",
                "\nready      5\nrunning    1\ndone       1\nfailed     1\n",
                "\n7\tfailed\tstep-7\t",
                "\n9\trunning\tstep-9\t",
                "\n7\tfailed\t1\tnode7~",
                "\n6\theld\t0\t-\t0\tstep-6\tsubmitted with --hold\n",
                "\n9.json\n",
            ],
        ),
        ("What is job 7?", &["\"name\":\"step-7\"", "\"shell\":\"make step\""]),
        (
            "How did job 7 end?",
            &[
                "\"a\":\"7.1\",\"m\":1,\"how\":{\"ran\":{\"exit\":3}}\n",
                "\"ended\":{\"a\":\"7.1\",\"line\":7,\"how\":{\"ran\":{\"exit\":3}}",
            ],
        ),
        ("What did job 7 print?", &["first \"line\"\nsecond line\n"]),
        ("What did job 8 print?", &["a line of a long output\na line of a long output\n", &long]),
        ("What does job 9 print while it runs?", &["half of it\n"]),
        ("Who runs job 9?", &[&worker, "\"t\":\"mark\"", "\tactive\tnode7\t4242\t", "\"cpus\":4"]),
        ("Who leads?", &["term-1.1.", "\"beat\":1", "\"op\":\"lead\"", &master]),
        ("Where does the queue stand?", &[&format!("{head}\n"), "\"fq\":\"decision\"", "\"op\":\"read\""]),
        ("What has a person asked for?", &[".json\n"]),
    ];
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("spec/reading.md");
    let sections = sections(&std::fs::read_to_string(page).expect("the page"));
    let headings: Vec<&str> = sections.iter().map(|s| s.0.as_str()).collect();
    assert_eq!(headings, answers.iter().map(|a| a.0).collect::<Vec<_>>(), "every question has an answer here");
    for ((heading, blocks), (_, words)) in sections.iter().zip(answers) {
        let said: String = blocks.iter().map(|block| sh(&root, block)).collect();
        for word in *words {
            assert!(said.contains(word), "{heading}: expected {word:?} in\n{said}");
        }
    }
}

/// The last process that leads may be the last for weeks: what it leaves in `view/` is what people find.
#[test]
fn the_view_shows_the_end_when_the_last_worker_has_ended() {
    let room = Room::with_queue();
    room.submit(["--", "true"]);
    room.fq(["worker", "--until-empty"]).succeeds();
    let shown = std::fs::read_to_string(room.queue().join("view/STATUS")).expect("a view");
    for line in ["master     -", "done       1"] {
        assert!(shown.lines().any(|l| l == line), "{line} in:\n{shown}");
    }
}
