//! From measurements to plain words: what is unsafe, what is slow, what to set.
//!
//! Invariants:
//! - Nothing here looks at a file or a clock.
//! - Only what the queue's safety rests on is unsafe: one winner of a rename and of an exclusive creation, names and bytes that
//!   arrive at all, and syncs where more than one host is involved. All else costs time, not results.

use super::{Alone, DirSync, Finding, Lag, Level, LockAnswer, Measurements, Pair, Race, Recommended, SameTick, Spread};
use crate::fs::{MountInfo, MountKind};
use crate::protocol::record::{Durability, HeadStyle, Limits};

/// Less free space than this is worth a word.
const BYTES_FREE_MIN: u64 = 1 << 30;
/// Fewer free inodes than this are worth a word; a queue needs a few for each job and one for each large result.
const INODES_FREE_MIN: u64 = 10_000;
/// A durable append that takes longer than this makes commits slow.
const APPEND_SLOW_US: u64 = 500_000;

/// Says what the measurements mean for a queue, the worst first. Never empty.
pub fn judge(measured: &Measurements) -> Vec<Finding> {
    let mut findings = Findings::default();
    blocked(measured, &mut findings);
    mount(measured, &mut findings);
    queue(measured, &mut findings);
    alone(measured, &mut findings);
    locks(measured, &mut findings);
    match &measured.pair {
        Some(pair) => between(measured, pair, &mut findings),
        None if measured.mount.kind.is_local() => {}
        None => findings.note(
            "only this mount was measured",
            "whether two hosts agree is shown by `fq doctor --peer DIR`, DIR being another mount of the same directory",
        ),
    }
    for what in &measured.failed {
        findings.warn(format!("could not be measured: {what}"), "nothing is known about it; run `fq doctor` again");
    }
    findings.0.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings.0
}

/// Derives the settings that fit the measurements; members that can stay as they are, are `None`.
pub fn recommend(measured: &Measurements) -> Recommended {
    let limits = &measured.limits;
    let lag_ms = [options_lag_ms(&measured.mount), measured_lag_ms(measured)].into_iter().flatten().max();
    // Twice what was seen, because the worst case is not the one that happened to be measured; in whole seconds.
    let visible_ms = lag_ms.map(|lag| (lag * 2).div_ceil(1000) * 1000).filter(|_| lag_ms > Some(limits.visible_ms));
    // A sign of life is late by the delay of bytes, and a worker's own clock runs meanwhile.
    let needed_ms = limits.self_fence_ms + limits.grace_ms + limits.self_fence_ms / 50;
    let bytes_ms = measured.pair.as_ref().and_then(|pair| pair.bytes_reopened).and_then(|lag| lag.max_ms());
    let lease_ms = bytes_ms.map(|lag| needed_ms + (lag * 2).div_ceil(1000) * 1000);
    let wanted = style(&measured.mount.kind);
    let differs = measured.queue.map_or(wanted == HeadStyle::Dotted, |queue| queue.head_style != wanted);
    Recommended {
        visible_ms,
        lease_ms: lease_ms.filter(|lease| *lease > limits.lease_ms),
        head_style: (differs && wanted == HeadStyle::Dotted).then_some(wanted),
    }
}

/// How the token is best named on such a mount; both ways are right everywhere else.
fn style(kind: &MountKind) -> HeadStyle {
    if *kind == MountKind::Gluster { HeadStyle::Dotted } else { HeadStyle::Plain }
}

/// The longest delay that was measured, of names or of re-opened files.
fn measured_lag_ms(measured: &Measurements) -> Option<u64> {
    let pair = measured.pair.as_ref()?;
    [pair.names, pair.bytes_reopened].into_iter().flatten().filter_map(|lag| lag.max_ms()).max()
}

/// The delay that the mount options allow where they were changed; the usual caches of NFS end within 60 s.
fn options_lag_ms(mount: &MountInfo) -> Option<u64> {
    let seconds = |name: &str| {
        mount.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok())
    };
    let nfs = matches!(mount.kind, MountKind::Nfs { .. });
    ["acdirmax", "acregmax", "actimeo"].into_iter().filter_map(seconds).max().filter(|_| nfs).map(|s| s * 1000)
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, level: Level, what: impl Into<String>, consequence: impl Into<String>) {
        self.0.push(Finding { level, what: what.into(), consequence: consequence.into() });
    }

    fn ok(&mut self, what: impl Into<String>) {
        self.add(Level::Ok, what, "");
    }

    fn note(&mut self, what: impl Into<String>, consequence: impl Into<String>) {
        self.add(Level::Note, what, consequence);
    }

    fn warn(&mut self, what: impl Into<String>, consequence: impl Into<String>) {
        self.add(Level::Warn, what, consequence);
    }

    fn unsafe_(&mut self, what: impl Into<String>, consequence: impl Into<String>) {
        self.add(Level::Unsafe, what, consequence);
    }
}

fn blocked(measured: &Measurements, findings: &mut Findings) {
    let Some(blocked) = &measured.blocked else { return };
    let what = format!("nothing can be written here: {}", blocked.why);
    if blocked.is_passing {
        findings.warn(what, "nothing was measured; workers and masters pause until it works again");
    } else {
        findings.warn(what, "nothing was measured; commands that only read work, all others are refused");
    }
}

/// What the type and the options of the mount imply.
fn mount(measured: &Measurements, findings: &mut Findings) {
    let mount = &measured.mount;
    match &mount.kind {
        MountKind::Local if matches!(&*mount.fs_type, "tmpfs" | "ramfs") => findings.warn(
            format!("this is {}, which lives in memory", mount.fs_type),
            "the queue is gone when the host boots, and no other host sees it",
        ),
        MountKind::Local => findings.ok(format!("this is {}, a disk of this host alone", mount.fs_type)),
        MountKind::Nfs { version } => nfs(measured, version, findings),
        MountKind::Lustre => findings.ok("this is Lustre: names and bytes are the same for all hosts at once"),
        MountKind::BeeGfs => findings.note(
            "this is BeeGFS: it does not move files that are open",
            "fq closes files before it renames them and tries again when told that they are busy",
        ),
        MountKind::Gpfs => findings.note(
            "this is GPFS, which was not tried by fq's makers",
            "by its documentation all hosts see the same; let `fq doctor --peer DIR` on two mounts confirm it",
        ),
        MountKind::Ceph => findings.note(
            "this is CephFS: when a client dies, others can stall for about 62 s",
            "nothing is lost, and self-fence and lease are longer than that; files are synced after a rename, without which \
             others could wait 5 s for a name",
        ),
        MountKind::Gluster => findings.note(
            "this is GlusterFS: others see changed bytes 1 s late, and a dead host stalls writers for up to 43 s",
            "exclusive `link` and `unlink` do not hold here; fq uses neither",
        ),
        MountKind::MooseFs => findings.note(
            "this is MooseFS: bytes that a paused host writes late do arrive",
            "they change nothing: results of a replaced attempt are refused by number",
        ),
        MountKind::Sshfs => findings.warn(
            "this is sshfs: listings are up to 20 s old",
            "each step between hosts takes that long; `-o dir_cache=no` makes it quick, a real shared mount is better",
        ),
        MountKind::Unknown => findings.warn(
            if mount.fs_type.is_empty() {
                "what is mounted here cannot be found out".to_owned()
            } else {
                format!("this is `{}`, a file system that fq does not know", mount.fs_type)
            },
            "fq takes the careful way in everything; let `fq doctor --peer DIR` on two mounts show whether hosts agree",
        ),
    }
    if let Some(option) = mount.options.iter().find(|option| **option == "ro") {
        findings.warn(
            format!("the mount is read-only (option `{option}`)"),
            "commands that only read work, all others are refused",
        );
    }
}

fn nfs(measured: &Measurements, version: &str, findings: &mut Findings) {
    let mount = &measured.mount;
    if mount.kind.same_tick_hole() {
        findings.note(
            format!("this is NFSv{version}: a change right after another can stay hidden until the next one"),
            "fq changes a directory itself when it has waited in vain, so a decision can be seen a second late",
        );
    } else {
        findings.note(
            format!(
                "this is NFSv{version}: a host that dies can hold up the removal of files that it has read for 104 s"
            ),
            "only cleaning up waits for that, commits do not",
        );
    }
    if mount.has_option("nocto") {
        findings.unsafe_(
            "the mount option `nocto` is set",
            "a file that is opened again need not show what its writer has synced; mount without it",
        );
    }
    if mount.has_option("soft") || mount.has_option("softerr") {
        findings.warn(
            "the mount option `soft` is set",
            "when the server is away, calls fail instead of waiting: workers end their tasks sooner than needed; use `hard`",
        );
    }
    if let Some(lag_ms) = options_lag_ms(mount).filter(|lag| *lag > measured.limits.visible_ms) {
        findings.warn(
            format!(
                "the mount keeps what it has seen for up to {} s (`acdirmax`, `acregmax` or `actimeo`)",
                lag_ms / 1000
            ),
            raise_visible(measured),
        );
    }
}

/// What the queue was made for, against where it lies.
fn queue(measured: &Measurements, findings: &mut Findings) {
    let Some(queue) = measured.queue else {
        findings.note(
            "this directory is no queue",
            "the file system was measured as it is, and compared with the default limits",
        );
        return;
    };
    match (queue.durability, measured.mount.kind.is_local()) {
        (Durability::Full, _) => {}
        (Durability::None, true) => findings.warn(
            "the queue was made with `--durability none`",
            "when this host crashes, the queue can be lost or damaged",
        ),
        (Durability::None, false) => findings.unsafe_(
            "the queue was made with `--durability none` and does not lie on a disk of one host",
            "other hosts see bytes that are not synced late or never; make the queue anew with `--durability full`",
        ),
    }
    if measured.mount.kind == MountKind::Gluster && queue.head_style == HeadStyle::Plain {
        findings.warn(
            "the queue lies on GlusterFS and has a token with a plain name",
            "a host that is ended in the middle of a commit can leave two tokens, which stops the queue until they are set \
             aside; a queue that `fq init` makes here names it so that this cannot happen",
        );
    }
}

/// What the one mount was measured to do.
fn alone(measured: &Measurements, findings: &mut Findings) {
    let Alone { rename_new, rename_over, rename_race, create_race, dir_sync, .. } = &measured.alone;
    if *rename_new == Some(false) {
        findings.unsafe_("a renamed file is not where it should be", "the queue cannot commit here");
    }
    if *rename_over == Some(false) {
        findings.unsafe_(
            "a rename over an existing file did not replace it",
            "views, limits and messages could not be renewed here",
        );
    }
    race(rename_race.as_ref(), &RENAME, "several threads of this host", findings);
    race(create_race.as_ref(), &CREATE, "several threads of this host", findings);
    let is_local = measured.mount.kind.is_local();
    match dir_sync {
        Some(DirSync::Unsupported) if is_local => findings.warn(
            "directories cannot be synced here",
            "a power failure can take back the last decisions; a live master makes up for it, a dead one does not",
        ),
        Some(DirSync::Unsupported) => {
            findings.note("directories cannot be synced here", "the server decides when names are durable");
        }
        Some(DirSync::Failed) => {
            findings.unsafe_("syncing a directory fails", "nothing that fq decides is durable here");
        }
        Some(DirSync::Done) | None => {}
    }
    comfort(measured, findings);
}

/// What is no question of safety.
fn comfort(measured: &Measurements, findings: &mut Findings) {
    let alone = &measured.alone;
    if alone.hidden_names_listed == Some(false) {
        let what = "names that begin with a dot are not listed";
        if measured.mount.kind == MountKind::Gluster {
            findings.unsafe_(what, "the token has such a name on GlusterFS");
        } else {
            findings.warn(what, "what a crash leaves behind cannot be found and removed");
        }
    }
    if alone.mode_kept == Some(false) {
        findings.warn(
            "new files do not get the permissions that were asked for",
            "the mount decides who may read and write; a queue for a group may not work, and secrets may be readable",
        );
    }
    if let Some(bytes) = alone.bytes_free.filter(|free| *free < BYTES_FREE_MIN) {
        findings
            .warn(format!("{} MiB are free", bytes >> 20), "when nothing is left, workers pause until there is space");
    }
    if let Some(inodes) = alone.inodes_free.filter(|free| *free < INODES_FREE_MIN) {
        findings.warn(
            format!("{inodes} more files can be made"),
            "when none is left, workers pause; `fq gc` removes those that are not needed",
        );
    }
    match (alone.append, alone.rename) {
        (Some(append), _) if append.median_us > APPEND_SLOW_US => findings.warn(
            format!("making 200 bytes durable takes {}", ms(append.median_us)),
            "every acknowledgement and every decision waits for that",
        ),
        (Some(append), Some(rename)) => findings.ok(format!(
            "a durable append takes {} ({}/s), a durable rename {} ({}/s)",
            ms(append.median_us),
            append.per_second(),
            ms(rename.median_us),
            rename.per_second()
        )),
        _ => {}
    }
    if alone.notify == Some(false) && measured.mount.kind.is_local() {
        findings.note("this host does not report changes of files here", "fq polls, so each step takes a second or so");
    }
}

/// Whom a lock excludes; a bad answer costs time only, because no lock decides anything alone.
fn locks(measured: &Measurements, findings: &mut Findings) {
    let lease = measured.limits.lease_ms / 1000;
    let late = format!("a dead worker on another host is noticed after the lease ({lease} s), not by its lock");
    let alone = &measured.alone;
    match (alone.lock, alone.second_lock) {
        (Some(LockAnswer::Unsupported), _) => findings.warn("there are no file locks here", late),
        (Some(LockAnswer::Hung), _) | (_, Some(LockAnswer::Hung)) => {
            findings.warn("the lock manager does not answer", format!("fq goes on without locks; {late}"));
        }
        (Some(LockAnswer::Failed | LockAnswer::Refused), _) => findings.warn("a free file cannot be locked", late),
        (Some(LockAnswer::Held), Some(LockAnswer::Held)) => {
            findings.warn("a lock does not exclude other processes, not even on this host", late);
        }
        (Some(LockAnswer::Held), Some(LockAnswer::Refused)) => {
            if alone.freed_lock.is_some_and(|answer| answer != LockAnswer::Held) {
                findings.warn("a lock is not free after its holder has let go", late);
            } else {
                locks_that_work(measured, late, findings);
            }
        }
        _ => {}
    }
}

/// Locks exclude on this host: do they elsewhere?
fn locks_that_work(measured: &Measurements, late: String, findings: &mut Findings) {
    let mount = &measured.mount;
    let claim = mount.locks_by_options();
    match measured.pair.as_ref().filter(|pair| !pair.shares_caches).and_then(|pair| pair.lock) {
        Some(LockAnswer::Held) => {
            let option = ["localflock", "nolock", "local_lock=all", "local_lock=flock"].into_iter();
            let option = option.filter(|option| mount.has_option(option)).collect::<Vec<_>>().join(", ");
            let option = if option.is_empty() { String::new() } else { format!(" ({option})") };
            findings.note(format!("locks are host-local here{option}: two mounts got the same one"), late);
        }
        Some(LockAnswer::Refused) => {
            findings.ok("a lock that one mount holds is refused to the other");
            dead_host(&mount.kind, &late, findings);
        }
        Some(LockAnswer::Unsupported | LockAnswer::Hung | LockAnswer::Failed) => {
            findings.warn("locks work on one of the mounts and not on the other", late);
        }
        None if mount.kind.is_local() => findings.ok(claim),
        None if claim.contains("this host only") || claim.contains("no locks") || claim.contains("nobody") => {
            findings.note(claim, late);
        }
        None => {
            findings.note(claim, "by type and options; a lock is believed only after it was seen to refuse somebody");
            dead_host(&mount.kind, &late, findings);
        }
    }
}

/// When the locks of a dead host come free, where that is known to take long.
fn dead_host(kind: &MountKind, late: &str, findings: &mut Findings) {
    match kind {
        MountKind::Nfs { .. } if kind.same_tick_hole() => {
            findings.note("the locks of a dead host stay until it boots again", late);
        }
        MountKind::MooseFs => findings.note("the locks of a dead host stay for a day", late),
        _ => {}
    }
}

/// Whether two mounts of this kind on one host are one client to the server, so that it keeps nothing coherent between them.
fn is_one_client(kind: &MountKind) -> bool {
    matches!(kind, MountKind::Nfs { .. }) && !kind.same_tick_hole()
}

/// What the two mounts see of each other.
fn between(measured: &Measurements, pair: &Pair, findings: &mut Findings) {
    if pair.shares_caches {
        findings.note(
            "both paths are one file system of this host's kernel",
            "races and delays between hosts were not measured; run this where the second mount is a client of its own",
        );
    } else if matches!(measured.mount.kind, MountKind::Nfs { .. }) {
        findings.note(
            "both mounts belong to this host",
            "mounts without the option `nosharecache` share what they have seen, so delays between hosts can be longer",
        );
    }
    let who = if pair.shares_caches { "two paths of this host" } else { "two mounts" };
    race(pair.rename_race.as_ref(), &RENAME, who, findings);
    race(pair.create_race.as_ref(), &CREATE, who, findings);
    delay(measured, pair.names, "a new name", findings);
    if pair.bytes_reopened.is_some_and(|lag| lag.seen.is_none() && lag.unseen > 0)
        && is_one_client(&measured.mount.kind)
    {
        // The server calls back no delegation that the writing client holds itself, so the other mount trusts its cache for ever.
        findings.warn(
            "appended bytes never reached the other mount, which says nothing here: to the NFSv4 server both are one client",
            "whether other hosts see them is not known; `fq worker` on two hosts tells",
        );
    } else {
        delay(measured, pair.bytes_reopened, "appended and synced bytes", findings);
    }
    if pair.bytes_kept.is_some_and(|lag| lag.unseen > 0) {
        findings.note("a file that is kept open does not show new bytes", "fq opens files again for each look");
    }
    if pair.bytes_unsynced.is_some_and(|lag| lag.unseen > 0) {
        findings
            .note("bytes that are not synced are not seen by others", "live output of a running task can lag behind");
    }
    if let Some(release) = pair.lock_release.filter(|lag| lag.unseen > 0) {
        findings.warn(
            format!("a lock that was let go was not free for the other mount within {} s", release.limit_ms / 1000),
            "a worker that has ended is noticed late by other hosts",
        );
    }
    if let Some(tick) = pair.same_tick {
        hole(tick, findings);
    }
}

fn hole(tick: SameTick, findings: &mut Findings) {
    let SameTick { rounds, missing_at_once, missing_later, missing_after_nudge } = tick;
    if missing_after_nudge > 0 {
        findings.warn(
            format!(
                "{missing_after_nudge} of {rounds} new names stayed hidden even after another change of the directory"
            ),
            "decisions are seen late; a listing that is fresh needs the caches to expire",
        );
    } else if missing_later > 0 {
        findings.note(
            format!("{missing_later} of {rounds} names made right after another stayed hidden until the next change"),
            "fq makes that change itself when it has waited in vain",
        );
    } else if missing_at_once > 0 {
        findings.note(format!("{missing_at_once} of {rounds} new names were listed a moment late"), "");
    }
}

/// A way to win, for the sentences about it.
struct Prize {
    /// What was tried.
    what: &'static str,
    /// What rests on it.
    consequence: &'static str,
}

const RENAME: Prize =
    Prize { what: "renames of one file", consequence: "two masters could both decide; no queue is safe here" };

const CREATE: Prize = Prize {
    what: "exclusive creations of one name",
    consequence: "two jobs could get the same number; no queue is safe here",
};

fn race(race: Option<&Race>, prize: &Prize, who: &str, findings: &mut Findings) {
    let Some(race) = race.filter(|race| race.rounds > 0) else { return };
    let Prize { what, consequence } = *prize;
    let rounds = race.rounds;
    if race.is_violated() {
        let (several, none) = (race.several, race.none);
        findings.unsafe_(
            format!("{what} by {who} did not have exactly one winner: {several} of {rounds} rounds had more, {none} had none"),
            consequence,
        );
        return;
    }
    if race.failed > 0 {
        findings.warn(
            format!("{} of {rounds} {what} by {who} failed for another reason than losing", race.failed),
            "these rounds show nothing; the rest had one winner each",
        );
    }
    if race.untold > 0 {
        findings.warn(
            format!("{} of {rounds} {what} by {who} were done although all were told that they had lost", race.untold),
            "replies get lost; fq looks afresh and judges by what is there",
        );
    }
    if race.one == rounds {
        findings.ok(format!("{what} by {who} had exactly one winner in {rounds} of {rounds} rounds"));
    }
}

fn delay(measured: &Measurements, lag: Option<Lag>, what: &str, findings: &mut Findings) {
    let Some(lag) = lag else { return };
    match (lag.seen, lag.max_ms()) {
        (None, _) if lag.unseen > 0 => findings.unsafe_(
            format!("{what} did not reach the other mount within {} s", lag.limit_ms / 1000),
            "hosts do not see each other here; no queue works",
        ),
        (Some(_), None) => findings.warn(
            format!("{what} did not always reach the other mount within {} s", lag.limit_ms / 1000),
            format!(
                "set `visible_ms` in `limits.json` above {} and measure again",
                lag.limit_ms.max(measured.limits.visible_ms)
            ),
        ),
        (Some(seen), Some(max)) if max > measured.limits.visible_ms => {
            findings.warn(format!("{what} took {} to be seen", spread(seen)), raise_visible(measured));
        }
        (Some(seen), _) => findings.ok(format!("{what} took {} to be seen by the other mount", spread(seen))),
        (None, _) => {}
    }
}

fn raise_visible(measured: &Measurements) -> String {
    let Limits { visible_ms, .. } = measured.limits;
    match recommend(measured).limits_text() {
        Some(members) => format!("the queue expects at most {visible_ms} ms; put {members} into `limits.json`"),
        None => format!("the queue expects at most {visible_ms} ms"),
    }
}

fn spread(spread: Spread) -> String {
    format!("{} (median), {} at most", ms(spread.median_us), ms(spread.max_us))
}

/// A span for people: in milliseconds with one decimal place below 10, in seconds from 10,000.
fn ms(us: u64) -> String {
    match us {
        0..10_000 => format!("{}.{} ms", us / 1000, us % 1000 / 100),
        10_000..10_000_000 => format!("{} ms", us / 1000),
        _ => format!("{} s", us / 1_000_000),
    }
}
