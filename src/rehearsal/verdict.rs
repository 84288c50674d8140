//! What must hold when all has ended and nothing goes wrong any more.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::check;
use crate::decision::Reader;
use crate::process::Stream;
use crate::protocol::id::{AttemptId, JobId, TaskId};
use crate::protocol::layout;
use crate::protocol::lifecycle::TaskState;
use crate::protocol::record::{Manifest, from_document};
use crate::sim::{ChildRun, View};

use super::history::History;
use super::roles::Desk;
use super::script::{self, Part};
use super::truth::Truth;
use super::{Report, Stage, Trouble};

impl Stage {
    /// Judges the whole queue.
    pub(super) fn judge(&mut self, has_ended: bool) -> Result<Report, Box<Trouble>> {
        let Some(mut history) = self.history.take() else {
            return Err(self.trouble(vec!["nothing was played".into()]));
        };
        let is_strict = self.care.keepers == 100 && self.care.suspends == 0;
        let (found, overlaps) = self.cluster.view(|view| {
            history.look(view);
            let mut found = std::mem::take(&mut history.violations);
            if history.may_fall_back() && view.has_lost_power() {
                // What was promised may be gone, and with it what it was to lead to. What is left holds together.
                return (found, 0);
            }
            history.close(view);
            found.append(&mut history.violations);
            if !has_ended {
                found.push(format!("not everything has ended; {}", history.describe_roles()));
            }
            found.extend(
                self.parts
                    .iter()
                    .enumerate()
                    .flat_map(|(at, part)| task_states(&history, &self.desk, at, part, self.is_forgetful)),
            );
            found.extend(nothing_is_lost(view, &history));
            found.extend(what_readers_see(view, &history));
            let overlaps = overlaps(view);
            if is_strict {
                found.extend(overlaps.iter().cloned());
            }
            (found, overlaps.len() as u64)
        });
        if !found.is_empty() {
            return Err(self.trouble(found));
        }
        Ok(Report {
            seed: self.seed,
            profile: self.profile.name,
            digest: self.cluster.digest(),
            calls: self.cluster.calls(),
            decisions: history.state.at.generation,
            tasks: history.state.counts().ended(),
            ends: history.accepted.len() as u64,
            lost: history.lost,
            takeovers: history.state.term.saturating_sub(1),
            fallbacks: history.fallbacks,
            halts: self.desk.halts.borrow().len() as u64,
            overlaps,
            simulated: self.cluster.now(),
            faults: self.cluster.faults(),
        })
    }
}

/// Every task has ended in a way that it may, and what it publishes is there.
fn task_states(history: &History, desk: &Desk, at: usize, part: &Part, is_forgetful: bool) -> Vec<String> {
    let Some(id) = desk.numbers.borrow().get(at).copied() else {
        return vec![format!("`{}` was not submitted", part.name)];
    };
    let mut found = Vec::new();
    if is_forgetful && history.state.pruned.contains(id.0) {
        return found;
    }
    for index in part.indices() {
        let state = history.state.task(TaskId { job: id, index }).map(|(_, task)| task.state);
        if !state.is_some_and(|state| part.ends.contains(&state)) {
            let expected = part.ends.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
            found.push(format!("`{}` {id}: expected {expected}: {}", part.name, history.describe(id)));
            return found;
        }
        // It may be missing where it could not be read back, and of an attempt that was ended early; the store has it all.
        let files = desk.files.borrow();
        let published = part.file(index).and_then(|path| Some((files.get(&path)?, path)));
        if let Some((bytes, path)) = published
            && !script::output(part.name, index, Stream::Stdout).starts_with(bytes)
            && state == Some(TaskState::Done)
        {
            found.push(format!("`{}` is not what the task wrote", path.display()));
        }
    }
    found
}

/// Every whole manifest is a job or another name of one, and no submission is two jobs.
fn nothing_is_lost(view: &View<'_>, history: &History) -> Vec<String> {
    let mut found = Vec::new();
    let mut jobs = BTreeMap::new();
    for bucket in view.list(layout::JOBS).unwrap_or_default() {
        for name in view.list(&format!("{}/{bucket}", layout::JOBS)).unwrap_or_default() {
            let Some(id) = layout::parse_job(&name) else { continue };
            let bytes = view.read(&layout::job(id).to_string_lossy()).unwrap_or_default();
            let Ok(manifest) = from_document::<Manifest>(&bytes) else { continue };
            if !history.state.knows(id) {
                found.push(format!("job {id} is bound and whole and was not taken in"));
            }
            if history.state.pruned.contains(id.0) {
                // Which job it was another name of is forgotten; that none was taken in twice is seen decision by decision.
                continue;
            }
            let job: JobId = history.state.aliases.get(&id).copied().unwrap_or(id);
            // By what the user calls it: a client that gave it another number of its own would still have submitted it twice.
            let known = *jobs.entry(manifest.name.clone()).or_insert(job);
            if known != job {
                found.push(format!("`{}` was submitted once and became two jobs, {known} and {job}", manifest.name));
            }
        }
    }
    found
}

/// A reader that comes now sees what was decided, and a check of the whole directory finds nothing.
fn what_readers_see(view: &View<'_>, history: &History) -> Vec<String> {
    let truth = Truth::now(view);
    let mut found = Vec::new();
    match Reader::open(&truth) {
        Err(error) => found.push(format!("the queue cannot be read: {error}")),
        Ok(reader) if reader.state().at == history.state.at && *reader.state() != history.state => {
            found.push("a snapshot and what follows it give another state than all decisions".into());
        }
        Ok(_) => {}
    }
    let report = check::check(&truth, true, &mut |_| {});
    let broken = report.problems.iter().filter(|p| p.severity == check::Severity::Error);
    found.extend(broken.map(|problem| format!("check: {problem}")));
    found
}

/// Attempts that began while an earlier one of the same task ran.
fn overlaps(view: &View<'_>) -> Vec<String> {
    let mut by_task: BTreeMap<TaskId, Vec<(u32, &ChildRun)>> = BTreeMap::new();
    for child in view.children() {
        // `<queue>.<worker>.<attempt>`, and a worker's id ends in `~<nonce>`.
        let attempt = child.token.rsplit_once('~').and_then(|(_, rest)| rest.split_once('.'));
        let Some(attempt) = attempt.and_then(|(_, text)| text.parse::<AttemptId>().ok()) else {
            return vec![format!("a child has the token `{}`", child.token)];
        };
        by_task.entry(attempt.task).or_default().push((attempt.number, child));
    }
    let mut found = Vec::new();
    for (task, runs) in by_task {
        for (number, run) in &runs {
            let earlier = runs.iter().filter(|(n, _)| n < number);
            let together = |old: &ChildRun| old.ended.unwrap_or(Duration::MAX) > run.started;
            for (old, _) in earlier.filter(|(_, old)| together(old)) {
                found.push(format!("attempt {number} of {task} began while attempt {old} still ran"));
            }
            if runs.iter().filter(|(n, _)| n == number).count() > 1 {
                found.push(format!("attempt {number} of {task} was started twice"));
            }
        }
    }
    found
}
