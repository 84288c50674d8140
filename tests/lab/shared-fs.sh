#!/bin/bash
# shared-fs.sh: one array of 500 tasks over two clients of a real shared file system, under faults.
#
#   FQ_LAB=DIR tests/lab/shared-fs.sh [NAME...]      nfs4 nfs3 ceph gluster moosefs sshfs ext4 tmpfs; default: the first four
#
# On each file system: client a makes the queue, b submits, a worker with a master in it runs on each. First a, whose
# master leads, dies hard and comes back; later b is cut off for a while and healed. At the end every task must be done, its
# result accepted exactly once, its output right to the byte, one token alone in `decisions/head`, and nothing running.
# The last lines are a table; the exit status is 0 if each row is as promised. What cannot start here is skipped with a reason;
# 77 if that is everything.
#
# Needs root and the lab directory (`mounts.sh` says what it looks like). Settings in the environment:
#   FQ          the program (default: the release build); must not lie in /tmp /run /mnt /dev, a guest has its own
#   TASKS=500 NAP=1 CPUS=4       tasks, seconds each sleeps, tasks at once on each client
#   CUT=40                       seconds that b is cut off
#   LIMITS=small|default         small leases, or those that a new queue has
#   MINUTES=15                   for one file system
#   KEEP=DIR                     where logs and a copy of each queue go (default: a new directory below /var/tmp)

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
KEEP=${KEEP:-$(mktemp -d /var/tmp/shared-fs.XXXXXX)}; mkdir -p "$KEEP"
SHARED_FS_LOG=$KEEP/lab.log
. "$here/mounts.sh" || exit 2
FQ=$(readlink -f "${FQ:-${CARGO_TARGET_DIR:-$here/../../target}/release/fq}")
TASKS=${TASKS:-500} NAP=${NAP:-1} CPUS=${CPUS:-4} CUT=${CUT:-40} LIMITS=${LIMITS:-small} MINUTES=${MINUTES:-15}
[ -x "$FQ" ] || { echo "no program $FQ: cargo build --release" >&2; exit 2; }
small='{"beat_ms":2000,"self_fence_ms":10000,"grace_ms":2000,"suspect_ms":8000,"lease_ms":30000,"takeover_ms":12000,"visible_ms":30000}'

now_ms() { date +%s%3N; }
say()    { printf '%s %-8s %s\n' "$(date +%T)" "$fs" "$*" | tee -a "$KEEP/$fs.log" >&2; }
seconds() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", (b - a) / 1000 }'; }
# ask CLIENT CMD: one short command, never longer than 20 s
ask()    { local c=$1; shift; on "$c" "timeout -k 2 20 $*" 2>>"$KEEP/$fs.log"; }
queue()  { echo "$(mount_of "$1")/q"; }
# counts CLIENT: "done lost" as this client sees it now, or nothing
counts() {
    ask "$1" "$FQ status --json --dir $(queue "$1")" |
        python3 -c 'import json, sys; s = json.load(sys.stdin); print(s["tasks"]["done"], s["workers"]["lost"])' 2>/dev/null
}
# until_seen CLIENT TEST: looks until the test holds of $ended and $lost, at most as long as the file system has
until_seen() {
    local c=$1 seen; shift
    while [ "$(now_ms)" -lt "$deadline" ]; do
        seen=$(counts "$c") && [ -n "$seen" ] && read -r ended lost <<<"$seen"
        eval "$*" && return 0
        sleep 1
    done
    say "time is up while waiting for: $*"
    return 1
}
# A worker ends itself when the storage stalls for longer than its self-fence time. What starts it again here is the
# batch system elsewhere.
work() {
    on_bg "$1" "/tmp/fq-worker-$fs-$1.log" \
        "until $FQ worker --until-empty -c $CPUS --dir $(queue "$1"); do echo worker ended with \$?; sleep 1; done"
}
# left CLIENT: processes of tasks that still run there
left() { on "$1" "grep -lsz ^FQ_ATTEMPT_TOKEN= /proc/[0-9]*/environ | wc -l"; }
keep() {
    local c
    for c in a b; do
        if is_nfs; then on "$c" "cat /tmp/fq-worker-$fs-$c.log"; else cat "/tmp/fq-worker-$fs-$c.log"; fi >"$KEEP/$fs.worker-$c.log" 2>/dev/null
    done
    on b "tar -C $(mount_of b) -cf - q" >"$KEEP/$fs.tar" 2>/dev/null
}

# promise NAME: prints its row
promise() {
    fs=$1
    local start t lost_before noticed_a=- noticed_b=- faults=none wrong=- verdict=ok a b
    fs_up "$fs" || return 0
    start=$(now_ms); deadline=$((start + MINUTES * 60000))
    ended=0 lost=0 a=$(queue a) b=$(queue b)
    say "up"
    ask a "$FQ init --dir $a" || { bad "init failed"; return 1; }
    [ "$LIMITS" = default ] || ask a "printf %s '$small' >$a/.limits && mv $a/.limits $a/limits.json"
    ask b "$FQ submit --dir $b -a 0-$((TASKS - 1)) --wrap 'sleep $NAP; echo out-\$FQ_ARRAY_TASK_ID'" >/dev/null || { bad "submit failed"; return 1; }
    work a    # it leads
    until_seen b 'ask b ls $b/decisions/beacon | grep -q term' || { bad "a does not lead"; return 1; }
    work b
    until_seen b '[ $ended -ge $((TASKS / 5)) ]' || { bad "only $ended done"; return 1; }
    if ! is_base "$fs"; then
        faults="kill a"; lost_before=$lost; t=$(now_ms)
        power_off a; say "a is dead at $ended done"
        mount_again a || { bad "a does not come back"; return 1; }
        say "a is back after $(seconds "$t" "$(now_ms)") s"
        work a
        until_seen b '[ $lost -gt $lost_before ]' || { bad "nobody noticed that a is dead"; return 1; }
        noticed_a=$(seconds "$t" "$(now_ms)")
        say "a was declared lost after $noticed_a s, $ended done"
        # The new worker on a is to be in the middle of it.
        until_seen b '[ $ended -ge $((TASKS / 2)) ]' || { bad "only $ended done"; return 1; }
        faults="kill a, cut b"; lost_before=$lost; t=$(now_ms)
        cut b; say "b is cut off at $ended done"
        # Beside the looks, which hang on some file systems while b is cut off.
        { sleep "$CUT"; heal b; say "b is healed"; } &
        healer=$!
        until_seen a saw_b_lost || { bad "nobody noticed that b is cut off, $ended done"; return 1; }
        wait $healer; healer=
        revive b || { bad "b does not come back"; return 1; }
    fi
    until_seen a '[ $ended -ge $TASKS ]' || { bad "only $ended done"; return 1; }
    t=$(now_ms); say "all done after $(seconds "$start" "$t") s"
    # --until-empty ends the workers.
    until_seen a '[ "$(left a)$(left b)" = 00 ] && ! is_working a && ! is_working b' || verdict="a worker is left"
    keep
    wrong=$(on a "timeout 300 python3 $here/verify.py $FQ $a $TASKS" 2>&1 | tee -a "$KEEP/$fs.log" | tail -1)
    case $wrong in "0 / 0 / 0") ;; *) verdict="see $KEEP/$fs.log" ;; esac
    row "$fs" "$TASKS" "$faults" "$wrong" "$noticed_a" "$noticed_b" "$(seconds "$start" "$t")" "$verdict"
    fs_down
}
# One look after the cut: notes when b was declared lost; true then, or when there is nothing left to notice it by.
saw_b_lost() {
    [ "$lost" -gt "$lost_before" ] || { [ "$ended" -ge "$TASKS" ]; return; }
    noticed_b=$(seconds "$t" "$(now_ms)"); say "b was declared lost after $noticed_b s, $ended done"
}
# A server may have evicted a client that was away (CephFS): its mount stays dead until somebody mounts again.
revive() {
    local i
    for i in 1 2 3 4; do ask "$1" "ls $(queue "$1")" >/dev/null && return 0; sleep 3; done
    say "the mount of $1 is dead for good: mounted again"
    kill_client "$1"; mount_again "$1" && work "$1"
}
is_base()    { case $1 in ext4|tmpfs) true ;; *) false ;; esac; }
is_working() { [ "$(on "$1" "ps -eo args | grep -c '[f]q worker --until-empty'")" != 0 ]; }
bad()  { say "FAILED: $1"; [ -z "${healer:-}" ] || wait "$healer"; healer=; keep; row "$fs" "$TASKS" - - - - - "FAILED: $1"; fs_down; }
row()  { printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$@" >>"$KEEP/table"; [ "$8" = ok ] || failed=1; }

failed=0
trap fs_down EXIT
{ echo '| fs | tasks | faults | wrong / lost / double | a noticed, s | b noticed, s | total, s | |'; echo '|---|---|---|---|---|---|---|---|'; } >"$KEEP/table"
for name in ${*:-nfs4 nfs3 ceph gluster}; do promise "$name"; done
cat "$KEEP/table"
echo "logs and copies of the queues: $KEEP" >&2
[ "$(wc -l <"$KEEP/table")" -gt 2 ] || exit 77
exit $failed
