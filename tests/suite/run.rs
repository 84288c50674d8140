//! `fq run`: one command over many arguments, with a worker of its own.

use crate::support::Room;

#[test]
fn run_prints_outputs_in_order_and_goes_on_where_it_stopped() {
    let room = Room::new();
    room.file("bad", "");
    let script = "echo x >> ran.{}; echo out {}; test {} != b || ! test -e bad";
    let run = || room.fq(["run", "-j", "2", "-k", "sh", "-c", script, ":::", "a", "b", "c"]).without("FQ_DIR");
    let said = run().exits(1);
    assert_eq!(said.stdout_text(), "out a\nout b\nout c\n");
    said.says("`b` failed with exit code 1").says("3 tasks, 2 done, 1 not");
    std::fs::remove_file(room.path("bad")).expect("it was made");
    assert_eq!(run().succeeds().stdout_text(), "out a\nout b\nout c\n");
    let ran = |name: &str| std::fs::read_to_string(room.path(name)).expect("the task ran").lines().count();
    assert_eq!((ran("ran.a"), ran("ran.b"), ran("ran.c")), (1, 2, 1), "what is done is not run again");
}

#[test]
fn run_takes_arguments_from_standard_input_byte_for_byte() {
    let room = Room::new();
    let said = room.fq(["run", "-k", "printf", "%s."]).without("FQ_DIR").stdin(b"two words\n$HOME;\n\xff\n").succeeds();
    assert_eq!(said.stdout, b"two words.$HOME;.\xff.");
    room.fq(["run", "true", ":::"]).without("FQ_DIR").exits(2).says("there are no arguments");
}
