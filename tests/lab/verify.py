#!/usr/bin/env python3
"""verify.py FQ QUEUE TASKS: is the end of job 1, `echo out-$FQ_ARRAY_TASK_ID` TASKS times, right?

Reads the decision chain and the journals itself, by spec/records.md, so that no bug of fq can hide here, and compares
with what fq says. Prints what it found; the last line is `WRONG / LOST / DOUBLE`, which must be zeros.
"""

import hashlib
import json
import os
import subprocess
import sys


def document(path):
    """The lines of a framed document; fails if it is torn."""
    data = open(path, "rb").read()
    body, _, end = data.rstrip(b"\n").rpartition(b"\n")
    body += b"\n"
    assert json.loads(end)["end"] == "sha256:" + hashlib.sha256(body).hexdigest(), f"torn: {path}"
    return hashlib.sha256(data).hexdigest(), [json.loads(line) for line in body.splitlines()]


def chain(queue):
    """The groups that still stand, from the first to the head, and whether that is the whole chain."""
    tokens = [n for n in os.listdir(f"{queue}/decisions/head") if ".gone-" not in n and not n.startswith((".t-", ".nudge-"))]
    assert len(tokens) == 1, f"not one token alone: {tokens}"
    at, want, groups = tokens[0].removeprefix(".head.").replace("-", "."), None, []
    while at is not None:
        number, nonce = at.split(".")
        name = f"{queue}/decisions/log/{int(number) // 1000:03}/{int(number):09}.{nonce}.jsonl"
        if not os.path.exists(name):
            return groups[::-1], False
        sha, lines = document(name)
        assert want is None or sha == want, f"{at} is not what its successor names"
        assert lines[0]["id"] == at
        groups.append(lines)
        at, want = lines[0].get("prev"), lines[0].get("prev_sha")
    return groups[::-1], True


def journals(queue):
    """Starts and ends in all journals: lists of (worker, line)."""
    starts, ends = [], []
    for worker in os.listdir(f"{queue}/store/log"):
        seen = set()
        for segment in sorted(os.listdir(f"{queue}/store/log/{worker}")):
            for line in open(f"{queue}/store/log/{worker}/{segment}", "rb"):
                try:
                    line = json.loads(line)
                except ValueError:
                    break
                if line["seq"] in seen:
                    continue
                seen.add(line["seq"])
                if line["t"] == "start":
                    starts.append((worker, line))
                if line["t"] == "end":
                    ends.append((worker, line))
    return starts, ends


def main():
    fq, queue, tasks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    run = lambda *a: subprocess.run([fq, *a, "--dir", queue], stdout=subprocess.PIPE, timeout=120)
    wrong = lost = double = 0

    groups, whole = chain(queue)
    starts, ends = journals(queue)
    by_line = {(worker, end["seq"]): end for worker, end in ends}
    accepted, gone, terms = {}, {}, set()
    for header, *ops in groups:
        terms.add((header["term"], header["by"]))
        for op in ops:
            if op["op"] == "gone":
                gone[op["w"]] = (op["how"], op.get("why"), header["at_ms"])
            if op["op"] != "read":
                continue
            for seen in op["seen"]:
                if "ended" not in seen:
                    continue
                if op["w"] in gone:
                    print(f"accepted of {op['w']}, which is over: {seen}")
                    wrong += 1
                ended = seen["ended"]
                line = by_line.get((op["w"], ended["line"]))
                if line is None or line["a"] != ended["a"]:
                    print(f"accepted, but its journal does not say so: {op['w']} {ended}")
                    wrong += 1
                if ended["how"] == {"ran": {"exit": 0}}:
                    accepted.setdefault(ended["a"].split(".")[0], []).append((op["w"], ended["a"]))
    for task, by in accepted.items():
        if len(by) > 1:
            print(f"{task} was accepted {len(by)} times: {by}")
            double += 1
    if whole:
        for i in range(tasks):
            if f"1_{i}" not in accepted:
                print(f"1_{i} was never accepted")
                lost += 1

    status = json.loads(run("status", "--json").stdout)
    others = {state: n for state, n in status["tasks"].items() if n and state != "done"}
    if others or status["tasks"]["done"] != tasks:
        print(f"tasks by state: {status['tasks']}")
        lost += abs(tasks - status["tasks"]["done"])
    got, want = run("logs", "1").stdout, b"".join(b"out-%d\n" % i for i in range(tasks))
    if got != want:
        print(f"logs: {len(got)} bytes, expected {len(want)}")
        differing = set(want.splitlines()) ^ set(got.splitlines())
        wrong += max(1, len(differing))
    listed = subprocess.run([fq, "fsck", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if listed.returncode == 0:
        fsck = run("fsck", "--full")
        print(f"fsck --full: exit {fsck.returncode}")
        if fsck.returncode:
            print(fsck.stdout.decode())
            wrong += 1
    else:
        print("fsck --full: skipped, no such command")

    attempts = {}
    for _, end in ends:
        attempts.setdefault(end["a"].split(".")[0], []).append(end["a"])
    print(
        f"decisions: {len(groups)}{'' if whole else ' (older ones pruned)'}, terms {sorted(terms)}; "
        f"{len(starts)} starts and {len(ends)} ends of {tasks} tasks"
    )
    for worker, (how, why, at_ms) in gone.items():
        print(f"{worker}: {how}{': ' + why if why else ''} at {at_ms}")
    print(f"{wrong} / {lost} / {double}")


main()
