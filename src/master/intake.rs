//! What clients and new workers have written: manifests, requests, `HELLO`s.
//!
//! Nothing of it is believed before it is whole, and nothing in it that claims a right is believed but the owner of the file.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::fs::{self, ErrorKind, FsError, Stat};
use crate::mutant::{self, Mutant};
use crate::protocol::digest::Digest;
use crate::protocol::frame;
use crate::protocol::id::{JobId, Nonce, Target, WorkerId};
use crate::protocol::layout;
use crate::protocol::record::{
    Action, Admit, BadRecord, Hello, Ingest, Limits, Manifest, Op, QueueFile, Request, from_document,
};
use crate::protocol::version::CURRENT;

use super::lead::{IDLE_SCAN, Lead};
use super::{Env, Halt, Outcome};

/// The largest manifest that is read. Larger inputs are objects of the store.
const MANIFEST_MAX: u64 = 16 << 20;
/// The largest request or `HELLO` that is read.
const SMALL_MAX: u64 = 4 << 20;
/// At most so many submissions are taken in by one decision.
const INGEST_MAX: usize = 500;
/// A manifest that is not whole after so many looks, about six seconds, is no longer waited for by requests.
const TORN_LOOKS: u32 = 6;

impl Lead {
    /// The longest gaps between two looks for what clients write: while there was news lately, and after.
    fn gaps(&self) -> (Duration, Duration) {
        let limits = &self.work.limits;
        let (longest, idle) = (Limits::span(limits.poll_ms), Limits::span(limits.idle_poll_ms));
        (longest, IDLE_SCAN.min(idle).max(longest))
    }

    /// The same for new workers. Where no task waits for one they may wait.
    fn worker_gaps(&self) -> (Duration, Duration) {
        let (longest, idle) = self.gaps();
        match self.work.queue().next() {
            Some(_) => (longest, idle),
            None => (idle, Limits::span(self.work.limits.idle_poll_ms).max(idle)),
        }
    }

    /// Admits workers that have introduced themselves.
    pub(super) fn meet_workers(&mut self, env: Env, file: &QueueFile, out: &mut Outcome) -> Result<(), Halt> {
        let now = env.clock.boot();
        if !self.workers.is_due(now) {
            return Ok(());
        }
        if let Err(wait) = self.budget.take(now, 1, &self.work.limits) {
            self.workers.later(now + wait);
            return Ok(());
        }
        let mut news = false;
        self.nameless.clear();
        for entry in env.fs.list(layout::WORKERS.as_ref()).unwrap_or_default() {
            let Ok(wid) = entry.name.parse::<WorkerId>() else { continue };
            if self.work.workers.contains_key(&wid)
                || self.collect.drops(&wid)
                || self.reported.contains(Path::new(&entry.name))
            {
                continue;
            }
            // By a listing and never by its name: an NFS client that has looked for a name too early misses it for a minute.
            let hello = layout::hello(&wid);
            let names = env.fs.list(&layout::worker(&wid)).unwrap_or_default();
            if !names.iter().any(|e| Some(e.name.as_ref()) == hello.file_name()) {
                self.nameless.insert(wid);
                continue;
            }
            match read_hello(env, file, &wid) {
                Ok(Some(hello)) => {
                    news = true;
                    self.decide(Op::Admit(Box::new(Admit {
                        w: wid,
                        worker: hello.worker,
                        keeper: hello.keeper,
                        cpus: hello.cpus.max(1),
                        mem: hello.mem,
                        self_fence_ms: hello.self_fence_ms,
                        lock: hello.lock,
                        trust: hello.trust,
                    })))?;
                }
                Ok(None) => {}
                Err(why) => {
                    out.notes.push(format!("worker {wid} is not admitted: {why}"));
                    self.reported.insert(entry.name.into());
                }
            }
        }
        let (longest, idle) = self.worker_gaps();
        self.workers.looked(env.clock.boot(), news, longest, idle);
        Ok(())
    }

    /// Takes submissions in.
    pub(super) fn take_in_jobs(&mut self, env: Env, out: &mut Outcome) -> Result<(), Halt> {
        let now = env.clock.boot();
        let torn: Vec<JobId> = self.torn.iter().filter(|(_, (at, _))| now >= *at).map(|(id, _)| *id).collect();
        let mut new = torn;
        if self.jobs.is_due(now) {
            if let Err(wait) = self.budget.take(now, 2, &self.work.limits) {
                self.jobs.later(now + wait);
            } else {
                let found = self.list_jobs(env);
                let (longest, idle) = self.gaps();
                self.jobs.looked(env.clock.boot(), !found.is_empty(), longest, idle);
                if !found.is_empty() {
                    // Workers were perhaps not looked for while there was nothing to do.
                    self.workers.no_later(env.clock.boot() + longest);
                }
                new.extend(found);
            }
        }
        new.sort_unstable();
        new.dedup();
        if new.len() > INGEST_MAX {
            new.truncate(INGEST_MAX);
            self.jobs.wake();
        }
        for id in new {
            self.take_in(env, id, out)?;
        }
        Ok(())
    }

    /// The numbers in `jobs/` that are not known yet: in the two newest buckets, and in all that were never listed.
    ///
    /// No bucket is made before the one before it is full, so most looks are at the newest one alone.
    fn list_jobs(&mut self, env: Env) -> Vec<JobId> {
        let is_whole_look = env.chance.bits().is_multiple_of(8);
        if let Some(bucket) = self.filling.take().filter(|_| !is_whole_look) {
            return self.list_bucket(env, bucket).unwrap_or_default();
        }
        let Ok(entries) = env.fs.list(layout::JOBS.as_ref()) else { return Vec::new() };
        let mut buckets: Vec<String> = entries
            .into_iter()
            .map(|e| e.name)
            .filter(|n| n.len() >= 3 && n.bytes().all(|b| b.is_ascii_digit()))
            .collect();
        buckets.sort_by_key(|name| (name.len(), name.clone()));
        let newest = buckets.len().saturating_sub(1);
        let mut found = Vec::new();
        for (i, bucket) in buckets.into_iter().enumerate() {
            // A bucket stops changing some time after the next one was begun.
            if i + 1 < newest && self.listed.contains(&bucket) {
                continue;
            }
            if i + 1 == newest && self.listed.contains(&bucket) && !env.chance.bits().is_multiple_of(8) {
                continue;
            }
            found.extend(self.list_bucket(env, bucket).unwrap_or_default());
        }
        found
    }

    /// Lists one bucket of `jobs/`, and takes it for the newest one if that is not full.
    fn list_bucket(&mut self, env: Env, bucket: String) -> Option<Vec<JobId>> {
        let names = env.fs.list(&Path::new(layout::JOBS).join(&bucket)).ok()?;
        let numbers: Vec<JobId> = names.iter().filter_map(|e| layout::parse_job(&e.name)).collect();
        let is_full = numbers.iter().any(|id| id.0 % layout::BUCKET == layout::BUCKET - 1);
        self.filling = (!is_full).then(|| bucket.clone());
        self.listed.insert(bucket);
        Some(numbers.into_iter().filter(|id| !self.work.knows(*id) && !self.torn.contains_key(id)).collect())
    }

    fn take_in(&mut self, env: Env, id: JobId, out: &mut Outcome) -> Result<(), Halt> {
        if self.work.knows(id) {
            self.torn.remove(&id);
            return Ok(());
        }
        let now = env.clock.boot();
        let later = |tries: u32| now + Duration::from_millis(100 << tries.min(8));
        let tries = self.torn.get(&id).map_or(0, |t| t.1 + 1);
        let path = layout::job(id);
        let (bytes, stat) = match read_owned(env, &path, MANIFEST_MAX, true) {
            Ok(found) => found,
            Err(e) if e.errno == libc::EFBIG => {
                self.torn.remove(&id);
                return self.reject(id, format!("its manifest is larger than {MANIFEST_MAX} bytes"), out);
            }
            Err(e) if e.kind == ErrorKind::Planted => {
                self.torn.remove(&id);
                return self.reject(id, "its manifest is not a regular file".into(), out);
            }
            Err(_) => {
                self.torn.insert(id, (later(tries), tries));
                return Ok(());
            }
        };
        let manifest: Manifest = match from_document(&bytes) {
            Ok(manifest) => manifest,
            Err(BadRecord::Torn) => {
                if tries == 6 {
                    out.notes.push(format!("`{}` is not whole; it is looked at again now and then", path.display()));
                }
                self.torn.insert(id, (later(tries), tries));
                return Ok(());
            }
            Err(BadRecord::Malformed(why)) => {
                self.torn.remove(&id);
                return self.reject(id, why, out);
            }
        };
        // Its submitter may not have come to this. A number that a decision knows must not be lost to a power failure, or another
        // submission would take it.
        if !mutant::is(Mutant::IngestUnsynced) && fs::sync_name(env.fs, &path).is_err() {
            self.torn.insert(id, (later(tries), tries));
            return Ok(());
        }
        self.torn.remove(&id);
        if let Some(of) = self.work.subs.get(&manifest.sub).copied() {
            return self.decide(Op::Alias { job: id, of });
        }
        if let Err(why) = acceptable(&manifest, id) {
            return self.reject(id, why, out);
        }
        let key = (stat.uid, manifest.needs.key.clone());
        if !key.1.is_empty()
            && let Some(of) = self.work.keys.get(&key).copied()
        {
            return self.decide(Op::Alias { job: id, of });
        }
        self.decide(Op::Ingest(Box::new(Ingest {
            job: id,
            sub: manifest.sub,
            sha: Digest::of(&bytes),
            uid: stat.uid,
            name: manifest.name,
            array: manifest.array,
            needs: manifest.needs,
            at_ms: manifest.at_ms,
        })))
    }

    fn reject(&mut self, id: JobId, why: String, out: &mut Outcome) -> Result<(), Halt> {
        out.notes.push(format!("job {id} cannot be taken in: {why}"));
        self.decide(Op::Reject { job: id, why })
    }

    /// Answers requests.
    pub(super) fn answer_requests(&mut self, env: Env, file: &QueueFile, out: &mut Outcome) -> Result<(), Halt> {
        let now = env.clock.boot();
        if !self.control.is_due(now) {
            return Ok(());
        }
        if let Err(wait) = self.budget.take(now, 1, &self.work.limits) {
            self.control.later(now + wait);
            return Ok(());
        }
        let Ok(entries) = env.fs.list(layout::CONTROL.as_ref()) else {
            let (longest, idle) = self.gaps();
            self.control.looked(now, false, longest, idle);
            return Ok(());
        };
        let there: Vec<Nonce> = entries.iter().filter_map(|e| layout::parse_request(&e.name)).collect();
        let mut news = false;
        let mut asked = Vec::new();
        let mut is_cut = false;
        for id in &there {
            if self.work.answered.contains(id) {
                // Its file was not removed yet, perhaps because a predecessor died: once more.
                out.removals.push(layout::request(*id));
                continue;
            }
            let path = layout::request(*id);
            let read = read_owned(env, &path, SMALL_MAX, false);
            let (request, stat) = match read.map(|(bytes, stat)| (from_document::<Request>(&bytes), stat)) {
                Ok((Ok(request), stat)) if request.id == *id && request.version <= CURRENT => (request, stat),
                Ok((Ok(_) | Err(BadRecord::Malformed(_)), _)) => {
                    if self.reported.insert(path.clone()) {
                        out.notes.push(format!(
                            "`{}` is not a request that can be answered; it is left alone",
                            path.display()
                        ));
                    }
                    continue;
                }
                Ok((Err(BadRecord::Torn), _)) | Err(_) => {
                    // Perhaps for a moment only, and what was asked after it has to be answered after it.
                    let looks = self.unread.entry(*id).or_insert(0);
                    *looks += 1;
                    is_cut |= *looks < TORN_LOOKS;
                    continue;
                }
            };
            asked.push((request.at_ms, *id, request.action, stat));
        }
        self.unread.retain(|id, _| there.contains(id));
        // A hint only, but who holds and releases on one host gets both in this order.
        asked.sort_by_key(|(at_ms, id, ..)| (*at_ms, *id));
        for (_, id, action, stat) in asked {
            if is_cut {
                break;
            }
            if self.names_the_unknown(&action) {
                // Its manifest may be there and not have been looked at yet: `fq submit` and `fq cancel` one after the other.
                let since = *self.unanswered.entry(id).or_insert(now);
                if now.saturating_sub(since) < Limits::span(self.work.limits.visible_ms) {
                    self.jobs.wake();
                    continue;
                }
            } else if self.hurry(&action) && self.unanswered.insert(id, now).is_none() {
                // A manifest that stayed torn for long may have become whole just before it was asked for.
                continue;
            }
            self.unanswered.remove(&id);
            news = true;
            let action = self.permitted(action, stat, file);
            self.decide(Op::Answer { id, action, uid: stat.uid })?;
        }
        self.unanswered.retain(|id, _| there.contains(id));
        let gone: Vec<Nonce> = self.work.answered.iter().filter(|id| !there.contains(id)).copied().collect();
        // Forgetting is worth no decision of its own, and an id that this very draft answers is not forgotten by it.
        let settled_only: Vec<Nonce> = gone.into_iter().filter(|id| !self.is_answered_by_draft(*id)).collect();
        if !settled_only.is_empty() && (!self.draft.is_empty() || settled_only.len() > 1000) {
            self.forget_requests(env, settled_only)?;
        }
        let (longest, idle) = self.gaps();
        self.control.looked(env.clock.boot(), news, longest, idle);
        Ok(())
    }

    /// Forgets that requests were answered, once nothing can bring their files back: they would be answered again.
    fn forget_requests(&mut self, env: Env, mut ids: Vec<Nonce>) -> Result<(), Halt> {
        if mutant::is(Mutant::ForgetUnsettled) {
            return self.decide(Op::Forget { ids });
        }
        let Ok(entries) = fs::settle_dir(env.fs, layout::CONTROL.as_ref()) else { return Ok(()) };
        let there: BTreeSet<Nonce> = entries.iter().filter_map(|e| layout::parse_request(&e.name)).collect();
        ids.retain(|id| !there.contains(id));
        if ids.is_empty() { Ok(()) } else { self.decide(Op::Forget { ids }) }
    }

    /// Whether `action` is about a job of which this master has seen no manifest, not even one that stays torn.
    fn names_the_unknown(&self, action: &Action) -> bool {
        let is_young = |id: JobId| self.torn.get(&id).is_none_or(|(_, looks)| *looks < TORN_LOOKS);
        let is_unknown = |target: &Target| !self.work.knows(target.job) && is_young(target.job);
        match action {
            Action::Cancel { targets, .. } | Action::Hold { targets } | Action::Release { targets } => {
                targets.iter().any(is_unknown)
            }
            Action::Retry { targets } => targets.iter().any(|(target, _)| is_unknown(target)),
            Action::Drain { .. } | Action::Collect { .. } => false,
        }
    }

    /// Makes the next look at manifests that are torn and that `action` names due now; says whether there are any.
    fn hurry(&mut self, action: &Action) -> bool {
        let (Action::Cancel { targets, .. } | Action::Hold { targets } | Action::Release { targets }) = action else {
            return false;
        };
        let mut any = false;
        for target in targets {
            if let Some(torn) = self.torn.get_mut(&target.job) {
                torn.0 = Duration::ZERO;
                any = true;
            }
        }
        any
    }

    fn is_answered_by_draft(&self, id: Nonce) -> bool {
        self.draft.iter().any(|op| matches!(op, Op::Answer { id: answered, .. } if *answered == id))
    }

    /// The part of `action` that the owner of the request's file may ask for and that names something known.
    fn permitted(&self, action: Action, stat: Stat, file: &QueueFile) -> Action {
        let is_operator = stat.uid == 0 || stat.uid == file.uid;
        let may = |target: &Target| match self.work.job(target.job) {
            Some(job) => is_operator || job.spec.uid == stat.uid,
            // A manifest that is there but not whole can be cancelled before it is taken in.
            None => self.torn.contains_key(&target.job) && !self.work.knows(target.job),
        };
        let only = |targets: Vec<Target>| targets.into_iter().filter(|t| may(t)).collect();
        match action {
            Action::Cancel { targets, reason } => Action::Cancel { targets: only(targets), reason },
            Action::Hold { targets } => Action::Hold { targets: only(targets) },
            Action::Release { targets } => Action::Release { targets: only(targets) },
            Action::Retry { targets } => {
                Action::Retry { targets: targets.into_iter().filter(|(t, _)| may(t)).collect() }
            }
            Action::Drain { worker } => {
                let owner = self.work.workers.get(&worker).map(|w| w.admit.trust.uid);
                if is_operator || owner == Some(stat.uid) {
                    Action::Drain { worker }
                } else {
                    Action::Hold { targets: Vec::new() }
                }
            }
            Action::Collect { keep_ms } => Action::Collect { keep_ms: keep_ms.filter(|_| is_operator) },
        }
    }
}

/// Reads a whole file of at most `max` bytes, and who owns it, from one open. With `sync` its bytes are durable afterwards, if
/// they are whole.
fn read_owned(env: Env, path: &Path, max: u64, sync: bool) -> Result<(Vec<u8>, Stat), FsError> {
    let mut file = env.fs.open(path)?;
    let stat = file.stat()?;
    if stat.len > max {
        return Err(FsError::new(fs::Call::Read, path, libc::EFBIG));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(stat.len).unwrap_or(0) + 1);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let n = file.read_at(&mut buffer, bytes.len() as u64)?;
        if n == 0 {
            if sync && frame::open_document(&bytes).is_some() {
                file.sync()?;
            }
            return Ok((bytes, stat));
        }
        bytes.extend_from_slice(&buffer[..n]);
        if bytes.len() as u64 > max {
            return Err(FsError::new(fs::Call::Read, path, libc::EFBIG));
        }
    }
}

/// Reads a `HELLO`: `None` if it is not whole yet, an error if it is and says something that cannot be.
fn read_hello(env: Env, file: &QueueFile, wid: &WorkerId) -> Result<Option<Hello>, String> {
    let (bytes, stat) = match read_owned(env, &layout::hello(wid), SMALL_MAX, false) {
        Ok(found) => found,
        Err(e) if e.kind == ErrorKind::Planted => return Err(e.to_string()),
        Err(_) => return Ok(None),
    };
    if frame::open_document(&bytes).is_none() {
        return Ok(None);
    }
    let hello: Hello = from_document(&bytes).map_err(|e| e.to_string())?;
    if hello.wid != *wid || hello.queue != file.id {
        return Err("its HELLO belongs to another worker or queue".into());
    }
    if hello.version > CURRENT {
        return Err(format!("it speaks version {}, this master up to {}", hello.version.0, CURRENT.0));
    }
    if stat.uid != hello.worker.uid || stat.uid != hello.trust.uid {
        return Err(format!("its HELLO is owned by user {} and names user {}", stat.uid, hello.worker.uid));
    }
    Ok(Some(hello))
}

/// Checks what a manifest says before anything rests on it.
fn acceptable(manifest: &Manifest, id: JobId) -> Result<(), String> {
    if manifest.fq != "job" || manifest.job != id {
        return Err(format!("the manifest calls itself `{}` {}", manifest.fq, manifest.job));
    }
    if manifest.version > CURRENT {
        return Err(format!(
            "the manifest is of version {}, this master knows versions up to {}",
            manifest.version.0, CURRENT.0
        ));
    }
    if manifest.array.as_ref().is_some_and(|set| set.is_empty() || set.len() > 10_000_000) {
        return Err("an array has 1 to 10,000,000 tasks".into());
    }
    if manifest.needs.cpus == 0 {
        return Err("a task needs at least one CPU".into());
    }
    if let Some(dependency) = manifest.needs.after.iter().find(|d| d.target.job >= id) {
        return Err(format!("it depends on {}, which is not older than itself", dependency.target));
    }
    Ok(())
}
