//! What was acted upon is still there when the server has lost power; each test also plays the variant that forgets to make it so.

use super::*;
use crate::sim::Fault;

/// Plays with a precaution left out, or with none.
fn with<T>(mutant: Option<Mutant>, play: impl FnOnce() -> T) -> T {
    match mutant {
        Some(mutant) => mutant::with(mutant, play),
        None => play(),
    }
}

/// A submitter dies before the name of its manifest is durable, a master takes it in, the server loses power, and somebody else
/// submits. Returns the number that the second one was given, and whether that is its job.
fn submitted_after_a_power_failure(seed: u64, mutant: Option<Mutant>) -> (JobId, bool) {
    with(mutant, || {
        let mut desk = Desk::new(seed, Profile::beegfs());
        desk.masters();
        desk.cluster.run_for(secs(10)).unwrap_or_else(|e| panic!("{e}"));
        desk.cluster.spawn(desk.hosts[1], "hasty", |env| {
            let manifest = toy(1, JobId(1));
            let mut file = env.fs().create(&layout::job(JobId(1)), 0o600).expect("a manifest");
            file.write(&to_document(&manifest)).and_then(|()| file.sync()).expect("its bytes");
        });
        desk.cluster.run_for(secs(3)).unwrap_or_else(|e| panic!("{e}"));
        desk.cluster.inject(Fault::PowerLoss(secs(2)));
        desk.cluster.run_for(secs(10)).unwrap_or_else(|e| panic!("{e}"));
        let number = Rc::new(Cell::new(JobId(0)));
        let given = number.clone();
        desk.cluster.spawn(desk.hosts[1], "client", move |env| {
            given.set(crate::client::submit::bind(env.fs(), 0o600, &mut toy(2, JobId(0))).expect("a number"));
        });
        desk.cluster.run_for(secs(60)).unwrap_or_else(|e| panic!("{e}"));
        let state = desk.state();
        (number.get(), state.job(number.get()).is_some_and(|job| job.spec.sub == Nonce(2)))
    })
}

#[test]
fn a_number_that_a_decision_knows_is_given_to_nobody_else_after_a_power_failure() {
    let mut missed = 0;
    for seed in 330..336 {
        assert_eq!(submitted_after_a_power_failure(seed, None), (JobId(2), true), "seed {seed}");
        missed += u32::from(!submitted_after_a_power_failure(seed, Some(Mutant::IngestUnsynced)).1);
    }
    assert!(missed > 0, "the test shows nothing");
}

/// Loses power once `seen` is a decision that counts for somebody; returns it, and the newest decision that is left.
fn what_is_left(desk: &mut Desk, seen: &Cell<u64>) -> (u64, u64) {
    let was_seen = desk.cluster.run_until(|_| seen.get() > 1, secs(60));
    assert!(was_seen.unwrap_or_else(|e| panic!("{e}")), "nothing was decided");
    desk.cluster.inject(Fault::PowerLoss(secs(2)));
    desk.cluster.run_for(secs(20)).unwrap_or_else(|e| panic!("{e}"));
    (seen.get(), desk.state().at.generation)
}

/// A move of the token is done and reports an error, and the server loses power as soon as its master acts upon the decision.
fn won_by_a_move_that_failed(seed: u64, mutant: Option<Mutant>) -> (u64, u64) {
    with(mutant, || {
        let mut desk = Desk::new(seed, Profile::beegfs());
        desk.cluster.look_every(Duration::ZERO);
        let seen = Rc::new(Cell::new(0));
        let sees = seen.clone();
        desk.submit(1);
        desk.cluster.spawn(desk.hosts[0], "master", move |env| {
            let world = Env { fs: env.fs(), clock: env.clock(), chance: env.chance(), host: env.host() };
            let file = queue::read_file(env.fs(), std::path::Path::new("q")).expect("a queue");
            let me = WorkerId::new("a", Nonce(1));
            let mut master = Master::new(file, Options { me, nudges: true }, env.clock().boot());
            while sees.get() < 2 {
                let step = master.step(world);
                sees.set(master.state().map_or(0, |state| state.at.generation));
                env.sleep_until(step.next.max(env.clock().boot() + Duration::from_millis(1)));
            }
        });
        let failed = Armed::next(CallFault::Failed(libc::EIO)).at(Call::Rename).on("decisions/head");
        desk.cluster.arm(failed.after(1));
        what_is_left(&mut desk, &seen)
    })
}

/// A master dies between the move of the token and its sync, somebody sees the decision and settles it, and the server loses power.
fn settled_by_a_reader(seed: u64, mutant: Option<Mutant>) -> (u64, u64) {
    with(mutant, || {
        let mut desk = Desk::new(seed, Profile::beegfs());
        desk.cluster.look_every(Duration::ZERO);
        let seen = Rc::new(Cell::new(0));
        let sees = seen.clone();
        desk.submit(1);
        desk.cluster.spawn(desk.hosts[0], "master", master);
        desk.cluster.arm(Armed::next(CallFault::CrashAfter).at(Call::Rename).on("decisions/head").after(1));
        desk.cluster.spawn(desk.hosts[1], "reader", move |env| {
            while sees.get() < 2 {
                if let Ok(reader) = Reader::open(env.fs())
                    && reader.settle(env.fs()).is_ok()
                {
                    sees.set(reader.state().at.generation);
                }
                env.sleep(Duration::from_millis(200));
            }
        });
        what_is_left(&mut desk, &seen)
    })
}

#[track_caller]
fn holds(play: fn(u64, Option<Mutant>) -> (u64, u64), mutant: Mutant) {
    let seeds = 350..366;
    for seed in seeds.clone() {
        let (seen, left) = play(seed, None);
        assert!(left >= seen, "seed {seed}: decision {seen} counted for somebody, {left} is left");
    }
    let falls_back = |seed| {
        let (seen, left) = play(seed, Some(mutant));
        left < seen
    };
    assert!(seeds.clone().any(falls_back), "the test shows nothing");
}

#[test]
fn a_decision_whose_move_reported_an_error_counts_only_once_it_is_durable() {
    holds(won_by_a_move_that_failed, Mutant::MoveUnsynced);
}

#[test]
fn what_a_reader_has_settled_is_there_after_a_power_failure() {
    holds(settled_by_a_reader, Mutant::UnsettledReport);
}
