//! Several users, and what strangers put into a queue.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::disk::{helper, snapshot};
use crate::support::live::{QUICK, Stage};
use crate::support::{FQ, Room, remark};

/// Two users without an entry anywhere, and the group that they share; and one who does not belong.
const ANN: u32 = 12001;
const BEN: u32 = 12002;
const EVE: u32 = 12003;
const GROUP: u32 = 12000;

/// A directory in which several users have a queue.
struct Shared {
    room: Stage,
    fq: PathBuf,
    /// What stands in for `/etc/passwd` and `/etc/group`.
    database: Option<[PathBuf; 2]>,
}

/// A host that knows Ann and Ben for members of a group, and Eve for somebody else.
const DATABASE: [(&str, &str); 2] = [
    (
        "passwd",
        "root:x:0:0::/:/bin/sh\nann:x:12001:12001::/:/bin/sh\nben:x:12002:12002::/:/bin/sh\neve:x:12003:12003::/:/bin/sh\n",
    ),
    ("group", "root:x:0:\nann:x:12001:\nben:x:12002:\neve:x:12003:\nlab:x:12000:ann,ben\nother:x:12009:\n"),
];

/// What a command of one of the users came to.
#[derive(Debug)]
struct Done {
    code: i32,
    out: String,
    err: String,
}

impl Done {
    fn of(mut command: Command) -> Self {
        let output = command.stdin(Stdio::null()).output().expect("it can be started");
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }
}

impl Shared {
    /// `None`, with a remark, where no other users can be played.
    fn new() -> Option<Self> {
        let played = helper("setpriv", &["--reuid", "12001", "--regid", "12000", "--clear-groups", "true"]);
        if let Err(why) = played {
            remark(&format!("skipped: {why}"));
            return None;
        }
        let room = Room::new();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("the mode can be changed");
        };
        mode(&room.path(""), 0o1777);
        // The users may not be able to reach where the program was built.
        let fq = room.path("fq");
        std::fs::copy(FQ, &fq).expect("the program can be copied");
        mode(&fq, 0o755);
        Some(Self { room: Stage::around(room), fq, database: None })
    }

    /// The same on a host whose user database knows them; `None`, with a remark, where that cannot be played.
    fn on_a_host_that_knows_them() -> Option<Self> {
        if let Err(why) = helper("unshare", &["-m", "true"]) {
            remark(&format!("skipped: {why}"));
            return None;
        }
        let mut shared = Self::new()?;
        shared.database = Some(DATABASE.map(|(name, text)| {
            let path = shared.room.file(name, text);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("the mode can be changed");
            path
        }));
        Some(shared)
    }

    /// The command `fq ARGS` of a user under umask 077; Eve is not in the group.
    fn command(&self, uid: u32, args: &[&str]) -> Command {
        self.command_in(if uid == EVE { EVE } else { GROUP }, uid, args)
    }

    /// The same of a user whose process is in group `gid`, whatever the database says.
    fn command_in(&self, gid: u32, uid: u32, args: &[&str]) -> Command {
        let mut command = match &self.database {
            None => Command::new("setpriv"),
            Some(files) => {
                let mut command = Command::new("unshare");
                let script =
                    "mount --bind \"$1\" /etc/passwd && mount --bind \"$2\" /etc/group && shift 2 && exec \"$@\"";
                command.args(["-m", "sh", "-c", script, "sh"]).args(files).arg("setpriv");
                command
            }
        };
        command.args(["--reuid", &uid.to_string(), "--regid", &gid.to_string(), "--clear-groups"]);
        command.args(["sh", "-c", "umask 077; exec \"$@\"", "sh"]).arg(&self.fq).args(args);
        command.current_dir(self.room.path("")).env("FQ_DIR", self.room.queue()).env_remove("PWD");
        command
    }

    fn fq(&self, uid: u32, args: &[&str]) -> Done {
        Done::of(self.command(uid, args))
    }

    /// As Eve, whose process is in the group for once.
    fn fq_of_eve_in_the_group(&self, args: &[&str]) -> Done {
        Done::of(self.command_in(GROUP, EVE, args))
    }

    /// A queue that Ann makes for the group.
    fn with_queue() -> Option<Self> {
        let shared = Self::new()?;
        shared.fq(ANN, &["init", "--group", &GROUP.to_string()]).exits(0);
        shared.room.set_limits(QUICK);
        Some(shared)
    }
}

#[test]
fn two_users_share_a_queue_under_a_strict_umask() {
    let Some(shared) = Shared::with_queue() else { return };
    let large = "id -u; head -c 20000 /dev/zero | tr '\\0' x; head -c 30000 /dev/zero";
    assert_eq!(shared.fq(ANN, &["submit", "--wrap", "id -u"]).exits(0).out, "1\n");
    assert_eq!(shared.fq(ANN, &["submit", "-a", "0-2", "--wrap", large]).exits(0).out, "2\n");
    // The worker of one runs the tasks of the other and leads; then the other way round.
    shared.fq(BEN, &["worker", "--until-empty", "--trust", &ANN.to_string()]).exits(0);
    assert_eq!(shared.fq(BEN, &["submit", "--wrap", "id -u"]).exits(0).out, "3\n");
    shared.fq(ANN, &["worker", "--until-empty", "--trust", &BEN.to_string()]).exits(0);
    for reader in [ANN, BEN] {
        assert_eq!(shared.fq(reader, &["result", "1"]).exits(0).out, format!("{BEN}\n"));
        assert_eq!(shared.fq(reader, &["result", "3"]).exits(0).out, format!("{ANN}\n"));
        assert_eq!(shared.fq(reader, &["result", "2_1"]).exits(0).out.len(), 50_006);
        let status = shared.fq(reader, &["status"]).exits(0);
        assert!(status.out.contains("tasks: 5 done"), "{status:?}");
    }
    // Output files are Ann's business: her worker can write where she asked.
    shared.fq(ANN, &["cancel", "1"]).exits(0);
}

#[test]
fn members_by_the_user_database_run_each_others_tasks() {
    let Some(shared) = Shared::on_a_host_that_knows_them() else { return };
    let made = shared.fq(ANN, &["init", "--group", "lab"]).exits(0);
    assert!(!made.err.contains("--trust"), "{made:?}");
    shared.room.set_limits(QUICK);
    let said = shared.fq(ANN, &["submit", "--wrap", "id -u"]).exits(0);
    assert_eq!((said.out.as_str(), said.err.as_str()), ("1\n", ""));
    shared.fq(BEN, &["worker", "--until-empty"]).exits(0);
    assert_eq!(shared.fq(ANN, &["result", "1"]).exits(0).out, format!("{BEN}\n"));
    // To trust the queue's own group is nothing new.
    shared.fq(BEN, &["submit", "--wrap", "id -u"]).exits(0);
    shared.fq(ANN, &["worker", "--until-empty", "--trust", "@lab"]).exits(0);
    assert_eq!(shared.fq(BEN, &["result", "2"]).exits(0).out, format!("{ANN}\n"));
}

#[test]
fn who_is_in_the_group_by_her_process_alone_is_told_that_nobody_knows_her() {
    let Some(shared) = Shared::on_a_host_that_knows_them() else { return };
    shared.fq(ANN, &["init", "--group", "lab"]).exits(0);
    shared.room.set_limits(QUICK);
    let said = shared.fq_of_eve_in_the_group(&["submit", "--wrap", "id -u"]).exits(0);
    assert_eq!(said.out, "1\n");
    assert!(
        said.err.contains("does not have user 12003 in group 12000") && said.err.contains("`--trust 12003`"),
        "{said:?}"
    );
    shared.fq(BEN, &["worker", "--until-empty"]).exits(0);
    assert_eq!(
        shared.fq(ANN, &["list", "--state", "ready", "-q"]).exits(0).out,
        "1\n",
        "it waits for one that trusts her"
    );
    shared.fq(BEN, &["worker", "--until-empty", "--trust", "eve"]).exits(0);
    assert_eq!(shared.fq(ANN, &["result", "1"]).exits(0).out, format!("{BEN}\n"));
}

#[test]
fn who_has_no_entry_in_the_user_database_is_told_so() {
    let Some(shared) = Shared::new() else { return };
    let said = shared.fq(ANN, &["init", "--group", &GROUP.to_string()]).exits(0);
    assert!(said.err.contains("does not know user 12001") && said.err.contains("`--trust 12001`"), "{said:?}");
    let said = shared.fq(ANN, &["submit", "--", "true"]).exits(0);
    assert!(said.err.contains("does not know user 12001"), "{said:?}");
}

#[test]
fn a_queue_is_not_shared_with_a_group_that_its_maker_is_not_in() {
    let Some(shared) = Shared::on_a_host_that_knows_them() else { return };
    let said = shared.fq(EVE, &["init", "--group", "lab"]).exits(6);
    assert!(said.err.contains("you are not in it") && !shared.room.queue().exists(), "{said:?}");
    let said = shared.fq(ANN, &["init", "--group", "nobody-has-heard-of-it"]).exits(2);
    assert!(said.err.contains("getent group") && !shared.room.queue().exists(), "{said:?}");
}

#[test]
fn a_worker_trusts_one_group_and_root_trusts_none() {
    let Some(shared) = Shared::on_a_host_that_knows_them() else { return };
    shared.fq(ANN, &["init", "--group", "lab"]).exits(0);
    let said = shared.fq(BEN, &["worker", "--until-empty", "--trust", "@other"]).exits(2);
    assert!(said.err.contains("a worker trusts one group, and besides 12000 there is `@other`"), "{said:?}");
    let said = Done::of(shared.command_in(0, 0, &["worker", "--until-empty", "--trust", "@lab"])).exits(2);
    assert!(said.err.contains("a worker of root trusts no group"), "{said:?}");
}

#[test]
fn outsiders_cannot_even_read_a_group_queue() {
    let Some(shared) = Shared::with_queue() else { return };
    shared.fq(ANN, &["submit", "--", "true"]).exits(0);
    for args in [&["status"][..], &["submit", "--", "true"], &["worker", "--until-empty"], &["cancel", "1"]] {
        let said = shared.fq(EVE, args);
        assert_eq!(said.code, 6, "{args:?} {said:?}");
        assert!(said.err.starts_with("error: "), "{said:?}");
    }
}

#[test]
fn what_a_stranger_submits_is_never_run() {
    let Some(shared) = Shared::with_queue() else { return };
    let mark = shared.room.path("ran");
    shared.fq(ANN, &["submit", "--wrap", &format!("touch {}", mark.display())]).exits(0);
    // Ann is no known member of the group, since nobody here knows her groups.
    let worker = shared.fq(BEN, &["worker", "--until-empty"]).exits(0);
    assert!(!mark.exists(), "{worker:?}");
    let shown = shared.fq(ANN, &["show", "1"]).exits(0);
    assert!(shown.out.contains("user 12001"), "{shown:?}");
    let state = shared.fq(ANN, &["list", "--state", "ready", "-q"]).exits(0).out;
    assert_eq!(state, "1\n", "it waits for a worker that trusts its owner");
    // Root least of all.
    let root = Command::new(&shared.fq).args(["worker", "--until-empty"]).env("FQ_DIR", shared.room.queue()).output();
    assert!(root.is_ok_and(|output| output.status.success()));
    assert!(!mark.exists());
    shared.fq(ANN, &["worker", "--until-empty"]).exits(0);
    assert!(mark.exists(), "Ann's own worker runs it");
}

#[test]
fn a_manifest_that_changed_hands_is_not_run() {
    let Some(shared) = Shared::with_queue() else { return };
    let mark = shared.room.path("ran");
    // Taken in as Ben's, then replaced by Ann with one of her own.
    shared.fq(BEN, &["submit", "--wrap", "true"]).exits(0);
    let mut master = shared.room.live(shared.command(BEN, &["master"]));
    shared.room.until("the job is taken in", || shared.fq(BEN, &["status"]).out.contains("1 ready"));
    let path = shared.room.queue().join("jobs/000/1.json");
    let text = std::fs::read_to_string(&path).expect("the manifest can be read");
    let forged =
        text.lines().next().expect("it has a line").replace("\"true\"", &format!("\"touch {}\"", mark.display()));
    std::fs::remove_file(&path).expect("who may write to the directory can remove it");
    std::fs::write(&path, forged.as_bytes()).expect("and put another one there");
    assert_eq!(master.ended(), None);
    let worker = shared.fq(BEN, &["worker", "-c", "1", "--lifetime", "3s"]);
    assert!(!mark.exists(), "{worker:?}");
}

#[test]
fn a_request_of_a_stranger_changes_nothing() {
    let Some(shared) = Shared::with_queue() else { return };
    shared.fq(ANN, &["submit", "--", "echo", "hi"]).exits(0);
    shared.fq(BEN, &["submit", "--hold", "--", "echo", "hi"]).exits(0);
    let mut master = shared.room.live(shared.command(ANN, &["master"]));
    shared.room.until("both are taken in", || shared.fq(ANN, &["status"]).out.contains("1 ready, 1 held"));
    for args in [["cancel", "1"], ["hold", "1"]] {
        let said = shared.fq(BEN, &args);
        assert!(matches!(said.code, 0 | 6), "{args:?} {said:?}");
    }
    // Requests are answered in some order; one of the owner's that came later tells that the others were.
    shared.room.until("requests are answered", || {
        std::fs::read_dir(shared.room.queue().join("control")).is_ok_and(|left| left.count() == 0)
    });
    assert!(shared.fq(ANN, &["status"]).out.contains("1 ready, 1 held"));
    shared.fq(BEN, &["release", "2"]).exits(0);
    shared.room.until("the owner's request is done", || shared.fq(ANN, &["status"]).out.contains("2 ready"));
    assert_eq!(master.ended(), None);
}

#[test]
fn a_queue_that_anybody_can_write_to_is_refused() {
    let room = Room::with_queue();
    room.submit(["--", "true"]);
    std::fs::set_permissions(room.queue(), std::fs::Permissions::from_mode(0o777)).expect("the mode can be changed");
    for args in [&["status"][..], &["submit", "--", "true"], &["worker", "--until-empty"], &["master", "--until-empty"]]
    {
        room.fq(args).exits(6).says("write");
    }
}

#[test]
fn a_queue_of_another_user_is_refused() {
    let Some(shared) = Shared::new() else { return };
    shared.fq(ANN, &["init"]).exits(0);
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(shared.room.queue(), mode).expect("the mode can be changed");
    for args in [&["status"][..], &["submit", "--", "true"], &["worker", "--until-empty"]] {
        let said = shared.fq(BEN, args).exits(6);
        assert!(said.err.contains("user 12001"), "{said:?}");
    }
}

/// Something outside the queue that nobody may touch.
struct Outside {
    dir: PathBuf,
    before: Vec<(PathBuf, Vec<u8>)>,
}

impl Outside {
    fn new(room: &Room) -> Self {
        let dir = room.path("outside");
        std::fs::create_dir(&dir).expect("a directory can be made");
        std::fs::write(dir.join("secret"), "secret").expect("a file can be written");
        let before = snapshot(&dir);
        Self { dir, before }
    }

    #[track_caller]
    fn is_untouched(&self) {
        assert_eq!(snapshot(&self.dir), self.before);
    }
}

/// Puts a link to `to` in the place of `name` in the queue.
fn plant(room: &Room, name: &str, to: &Path) {
    let path = room.queue().join(name);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).expect("a directory can be made");
    }
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_dir_all(&path);
    symlink(to, &path).unwrap_or_else(|e| panic!("{name}: {e}"));
}

#[test]
fn links_in_the_place_of_files_are_not_followed() {
    let room = Stage::new(QUICK);
    let outside = Outside::new(&room);
    let mark = room.path("ran");
    // A manifest that would be fine but for being elsewhere.
    room.submit(["--wrap", &format!("touch {}", mark.display())]);
    let real = room.path("manifest.json");
    std::fs::rename(room.queue().join("jobs/000/1.json"), &real).expect("it can be moved");
    plant(&room, "jobs/000/1.json", &real);
    plant(&room, "control/0000000000000001.json", &outside.dir.join("secret"));
    plant(&room, "workers/x~0000000000000001/HELLO", &outside.dir.join("secret"));
    plant(&room, "decisions/head/x", &outside.dir.join("secret"));
    plant(&room, "decisions/beacon/term-1.x", &outside.dir.join("new"));
    plant(&room, "view/STATUS", &outside.dir.join("secret"));
    plant(&room, "view/jobs.tsv", &outside.dir.join("new"));
    let job = room.submit(["--", "echo", "hi"]);
    room.fq(["worker", "--until-empty"]).succeeds();
    assert_eq!(room.fq(["result".to_owned(), job.to_string()]).succeeds().stdout_text(), "hi\n");
    assert!(!mark.exists(), "what was linked to was run");
    let status = room.fq(["status"]).succeeds().stdout_text();
    assert!(status.contains("job 1 cannot be run"), "{status}");
    outside.is_untouched();
}

#[test]
fn links_in_the_place_of_directories_lead_nowhere() {
    let buckets: Vec<String> = (0..256).map(|n| format!("store/objects/{n:02x}")).collect();
    let all = [&["control"][..], &["view"], &["decisions/beacon"], &["decisions/snapshots"], &["store/packs"]];
    let objects: Vec<&str> = buckets.iter().map(String::as_str).collect();
    for names in all.into_iter().chain([objects.as_slice()]) {
        let room = Stage::new(QUICK);
        room.set_limits(&QUICK.replace('{', r#"{"pack_item_max":8192,"#));
        let outside = Outside::new(&room);
        for name in names {
            plant(&room, name, &outside.dir);
        }
        // One output for the pack, one for an object of its own.
        room.submit(["--wrap", "head -c 6000 /dev/zero"]);
        room.submit(["--wrap", "head -c 60000 /dev/zero"]);
        room.fq(["cancel", "1"]).run();
        room.fq(["gc", "--dry-run"]).run();
        let worker = room.fq(["worker", "--lifetime", "3s", "--until-empty"]).run();
        assert!(!worker.stderr.contains("panicked"), "{names:?}: {}", worker.stderr);
        room.fq(["status"]).succeeds();
        outside.is_untouched();
    }
}

#[test]
fn a_mailbox_or_output_directory_that_turns_into_a_link_leads_nowhere() {
    for name in ["in", "out"] {
        let room = Stage::new(QUICK);
        let outside = Outside::new(&room);
        let mut worker = room.worker(&[]);
        let mut names = std::fs::read_dir(room.queue().join("workers")).expect("it is there");
        let dir = names.next().and_then(Result::ok).expect("the worker is there").path().join(name);
        std::fs::remove_dir_all(&dir).expect("it can be removed");
        symlink(&outside.dir, &dir).expect("a link can be made");
        room.submit(["--wrap", "head -c 60000 /dev/zero"]);
        room.submit(["--wrap", "echo hi; sleep 2"]);
        // Another worker takes over what this one cannot do, or nothing happens; either way nothing leaves the queue.
        room.fq(["worker", "--lifetime", "3s"]).run();
        assert!(!worker.said().contains("panicked"), "{}", worker.said());
        assert!(matches!(worker.ended(), None | Some(0 | 4)), "{}", worker.said());
        drop(worker);
        outside.is_untouched();
    }
}

#[test]
fn limits_that_are_a_link_are_not_believed() {
    let room = Stage::new(QUICK);
    let outside = Outside::new(&room);
    std::fs::write(outside.dir.join("limits.json"), QUICK).expect("a file can be written");
    let outside = Outside { before: snapshot(&outside.dir), ..outside };
    plant(&room, "limits.json", &outside.dir.join("limits.json"));
    room.submit(["--", "true"]);
    room.fq(["worker", "--until-empty"]).exits(6).says("limits.json");
    room.fq(["status"]).succeeds();
    outside.is_untouched();
}

#[test]
fn a_queue_file_that_is_a_link_is_no_queue() {
    let room = Stage::new(QUICK);
    let real = room.path("FQ");
    std::fs::rename(room.queue().join("FQ"), &real).expect("it can be moved");
    plant(&room, "FQ", &real);
    room.fq(["status"]).exits(6).says("symbolic link");
    room.fq(["worker", "--until-empty"]).exits(6);
}
