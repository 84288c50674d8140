//! Masters on several hosts of the simulated cluster, with all its faults: one chain, and nothing believed that is not on it.

use std::sync::Arc;

use super::*;
use crate::clock::Clock;
use crate::sim::{Armed, CallFault, Cluster, FaultBudget, Profile, SimEnv};

const MINUTE: Duration = Duration::from_secs(60);

/// Makes the queue before the world gets rough.
fn with_queue(seed: u64, profile: Profile, style: HeadStyle) -> Cluster {
    let mut cluster = Cluster::new(seed, profile);
    let host = cluster.add_host("maker");
    cluster.spawn(host, "init", move |env| {
        let options = InitOptions { head_style: style, ..InitOptions::default() };
        let _ = queue::init_on(env.fs(), env.chance(), env.clock(), Path::new("q"), 7, &options);
        // What is there may be missing for a moment.
        while queue::read_file(env.fs(), Path::new("q")).is_err() {
            env.sleep(Duration::from_secs(1));
        }
    });
    match cluster.run_to_end(MINUTE * 10) {
        Ok(true) => cluster,
        Ok(false) => panic!("init does not end"),
        Err(failure) => panic!("{failure}"),
    }
}

/// Leads a term, and makes decisions in it, again and again until `end`; notes what it believes to be bound.
fn reign(env: &SimEnv, name: &str, end: Duration, believed: &Mutex<Vec<DecisionId>>) {
    let rest = |ms: u64| env.sleep(Duration::from_millis(1 + env.chance().bits() % ms));
    let file = loop {
        match queue::read_file(env.fs(), Path::new("q")) {
            Ok(file) => break file,
            Err(_) => rest(500),
        }
    };
    let mut writer = loop {
        match Writer::open(env.fs(), env.chance(), &file) {
            Ok(writer) => break writer,
            Err(e) => assert!(e.may_pass(), "{e}"),
        }
        rest(500);
    };
    while env.clock().boot() < end {
        let is_mine = writer.state().master.as_ref().is_some_and(|leader| leader.w == me(name));
        let (id, mut commit) = if is_mine && !env.chance().bits().is_multiple_of(4) {
            let (me, id) = (author(&writer, name), writer.next_id(env.chance()));
            (id, writer.commit(env.fs(), env.chance(), &me, id, Vec::new()))
        } else {
            lead(env.fs(), env.chance(), &mut writer, name)
        };
        while writer.is_in_doubt() {
            if let Commit::Unknown(e) = &commit {
                assert!(e.may_pass(), "{e}");
            }
            rest(300);
            commit = writer.push(env.fs(), env.chance());
        }
        match commit {
            Commit::Won => believed.lock().unwrap().push(id),
            Commit::Lost | Commit::NotTried(_) | Commit::InDoubt => {}
            Commit::Unknown(e) => assert!(e.may_pass(), "{e}"),
        }
        if env.chance().bits().is_multiple_of(5)
            && let Some(reference) = write_snapshot(env.fs(), writer.state())
        {
            let (me, id) = (author(&writer, name), writer.next_id(env.chance()));
            let commit = writer.commit(env.fs(), env.chance(), &me, id, vec![Op::Snapshot(reference)]);
            if commit == Commit::Won {
                believed.lock().unwrap().push(id);
            }
            while writer.is_in_doubt() {
                rest(300);
                writer.push(env.fs(), env.chance());
            }
        }
        rest(2000);
        if let Err(e) = writer.refresh(env.fs(), env.chance()) {
            assert!(e.may_pass(), "{e}");
        }
    }
}

/// Runs three masters under a plan of faults and checks what they leave; returns the number of decisions.
fn storm(seed: u64, profile: &Profile, style: HeadStyle) -> usize {
    let mut cluster = with_queue(seed, profile.clone(), style);
    let believed: Arc<Mutex<Vec<DecisionId>>> = Arc::default();
    for name in ["a", "b", "c"] {
        let host = cluster.add_host(name);
        let believed = Arc::clone(&believed);
        cluster.spawn_service(host, name, Duration::from_secs(3), move |env| {
            let end = env.clock().boot() + MINUTE;
            reign(env, name, end, &believed);
        });
    }
    let about = || format!("{} seed {seed} {style:?}", profile.name);
    cluster.plan_faults(&FaultBudget::mixed(MINUTE));
    if let Err(failure) = cluster.run_for(MINUTE * 2) {
        panic!("{}: {failure}", about());
    }
    cluster.quiet();
    match cluster.run_to_end(MINUTE * 60) {
        Ok(true) => {}
        Ok(false) => panic!("{}: not at its end\n{}", about(), cluster.trace().join("\n")),
        Err(failure) => panic!("{}: {failure}", about()),
    }
    cluster.view(|view| {
        let names = view.list(layout::HEAD).expect("the head");
        let mut tokens: Vec<DecisionId> = names.iter().filter_map(|name| layout::parse_head(name)).collect();
        tokens.sort();
        // A mover that died last may have left both names, which the next one mends.
        let head = *tokens.last().unwrap_or_else(|| panic!("{}: no token", about()));
        let chain = chain(&head, |path| view.read(&path.to_string_lossy()));
        assert_eq!(chain.len() as u64, head.generation + 1, "{}", about());
        for id in believed.lock().unwrap().iter() {
            assert!(chain.contains(id), "{}: {id} is believed and not bound", about());
        }
        chain.len()
    })
}

#[test]
fn masters_on_any_file_system_make_one_chain_whatever_fails() {
    for profile in Profile::all() {
        // Behind an asynchronous export what was promised may be lost.
        if profile.name == Profile::nfs_async().name {
            continue;
        }
        let mut bound = 0;
        for seed in 0..4 {
            bound += storm(seed, &profile, HeadStyle::Plain);
        }
        assert!(bound > 40, "{}: only {bound} decisions", profile.name);
    }
    for seed in 0..6 {
        storm(seed, &Profile::gluster(), HeadStyle::Dotted);
    }
}

/// `GlusterFS`: the mover dies between the two halves of its rename, and another process is asleep at the old name.
#[test]
fn half_a_rename_is_mended_by_the_next_master() {
    let mut left = 0;
    for seed in 0..20 {
        let mut cluster = with_queue(seed, Profile::gluster(), HeadStyle::Plain);
        let (a, b) = (cluster.add_host("a"), cluster.add_host("b"));
        let victim = cluster.spawn(a, "a", |env| {
            let Ok(file) = queue::read_file(env.fs(), Path::new("q")) else { return };
            let Ok(mut writer) = Writer::open(env.fs(), env.chance(), &file) else { return };
            lead(env.fs(), env.chance(), &mut writer, "a");
        });
        cluster.arm(Armed::next(CallFault::HalfRename).of(victim).at(Call::Rename).on("head"));
        cluster.run_for(MINUTE).unwrap_or_else(|failure| panic!("{failure}"));
        left += cluster.view(|view| {
            let names = view.list(layout::HEAD).expect("the head");
            usize::from(names.iter().filter(|name| layout::parse_head(name).is_some()).count() == 2)
        });
        cluster.spawn(b, "b", |env| {
            let file = loop {
                match queue::read_file(env.fs(), Path::new("q")) {
                    Ok(file) => break file,
                    Err(_) => env.sleep(Duration::from_millis(100)),
                }
            };
            let mut writer = loop {
                match Writer::open(env.fs(), env.chance(), &file) {
                    Ok(writer) => break writer,
                    Err(e) => assert!(e.may_pass(), "{e}"),
                }
                env.sleep(Duration::from_millis(100));
            };
            let mut commit = lead(env.fs(), env.chance(), &mut writer, "b").1;
            while writer.is_in_doubt() {
                env.sleep(Duration::from_millis(100));
                commit = writer.push(env.fs(), env.chance());
            }
            assert_eq!(commit, Commit::Won);
        });
        match cluster.run_to_end(MINUTE * 10) {
            Ok(true) => {}
            Ok(false) => panic!("seed {seed}: not at its end"),
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(left > 0, "at least one rename was cut in half");
}
