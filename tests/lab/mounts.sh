#!/bin/bash
# mounts.sh: a thin layer over lab/nfs and lab/fuse, so that one workload runs on every shared file system.
#
#   export FQ_LAB=DIR          directory with nfs/ and fuse/ (required)
#   . mounts.sh
#   fs_up ceph || exit 0       # nfs4 nfs3 ceph gluster moosefs sshfs ext4 tmpfs; else prints "skipped NAME: reason"
#   on a "cd $(mount_of a) && CMD"; on b ...; kill_client a; mount_again a; fs_down
#
# Client names are a and b. One file system at a time per shell. Every wait is bounded, except what
# the kernel does not let end: see `on`. Log of the start scripts: $SHARED_FS_LOG (default below TMPDIR).
# Run as a program it makes a smoke test of the file systems named: mounts.sh [NAME...].

: "${FQ_LAB:?set FQ_LAB to the lab directory (with nfs/ and fuse/)}"
SHARED_FS=                                   # kind that is up: nfs4, nfs3, ceph, ...
SHARED_FS_DIR=                               # parent of the fuse mounts
SHARED_FS_ALL="nfs4 nfs3 ceph gluster moosefs sshfs"
SHARED_FS_LOG=${SHARED_FS_LOG:-${TMPDIR:-/tmp}/shared-fs.$$.log}
SHARED_FS_UP_SECONDS=${SHARED_FS_UP_SECONDS:-240}    # first start installs packages
case ":$PATH:" in *:/usr/sbin:*) ;; *) PATH=$PATH:/usr/sbin:/sbin; export PATH ;; esac

skipped()   { echo "skipped $1: $2"; return 1; }
is_nfs()    { case $SHARED_FS in nfs*) true ;; *) false ;; esac; }
# one shell word, for any POSIX sh (printf %q is not)
_quote()    { printf "'"; printf %s "$1" | sed "s/'/'\\\\''/g"; printf "'"; }
# last line of the log worth printing
_reason()   { local r; r=$(grep -v '^[[:space:]]*$' "$SHARED_FS_LOG" 2>/dev/null | tail -1); echo "${r:-no message} (log: $SHARED_FS_LOG)"; }
_lab_nfs()  { local c=$1; shift; "$FQ_LAB/nfs/$c" "$@"; }
_lab_fuse() { local c=$1; shift; "$FQ_LAB/fuse/$c" "$SHARED_FS" "$@"; }
# preflight NAME PROGRAM...: cheap reasons why it cannot start
_preflight() {
    [ -z "$SHARED_FS" ] || { skipped "$1" "$SHARED_FS is still up, fs_down first"; return 1; }
    [ "$(id -u)" = 0 ] || { skipped "$1" "needs root"; return 1; }
    command -v apt-get >/dev/null || { skipped "$1" "needs Debian (apt-get)"; return 1; }
    case $1 in
        nfs*) [ -x "$FQ_LAB/nfs/up" ] || { skipped "$1" "no nfs/up in FQ_LAB"; return 1; }
              [ -c /dev/net/tun ] || { skipped "$1" "no /dev/net/tun"; return 1; } ;;
        *)    [ -x "$FQ_LAB/fuse/up" ] || { skipped "$1" "no fuse/up in FQ_LAB"; return 1; }
              case $1 in ext4|tmpfs) ;; *) [ -c /dev/fuse ] || { skipped "$1" "no /dev/fuse"; return 1; } ;; esac ;;
    esac
}

# _nfs_tune GUEST...: segmentation offload between the guests loses a fifth of the packets (300 KB/s for
# bulk data, 6 MB/s without it; `put` can hang). Off in the guests and on the host's end of their cables.
_nfs_tune() {
    command -v ethtool >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 \
        install -y --no-install-recommends ethtool >>"$SHARED_FS_LOG" 2>&1
    command -v ethtool >/dev/null || { echo "shared-fs: no ethtool, NFS bulk data will be slow" >&2; return 0; }
    local g d e ns=/run/netns/lab-${LAB_INST:-nfs}; e=$(command -v ethtool)
    for g in "$@"; do
        "$FQ_LAB/nfs/on" "$g" "for d in vec0 vec1; do $e -K \$d tso off gso off gro off; done" >>"$SHARED_FS_LOG" 2>&1
        for d in "$g-m" "$g-d" swm swd; do nsenter --net="$ns" "$e" -K "$d" tso off gso off gro off; done >>"$SHARED_FS_LOG" 2>&1
    done
    return 0
}
_nfs_guests() { local i; printf server; for ((i = 0; i < $1; i++)); do printf " \\$(printf %o $((97 + i)))"; done; }

# ---- start and stop ----------------------------------------------------------------------------

# nfs_up VERS [N]: 4.2 (default), 4.1, 4.0 or 3; N clients (default 2: a, b)
nfs_up() {
    local v=${1:-4.2} n=${2:-2} name; name=nfs${v%%.*}
    _preflight "$name" || return 1
    export LAB_MNT=vers=$v       # also for `up a` after a crash, which would else mount with the default version
    SHARED_FS=$name
    if ! timeout -k 5 "$SHARED_FS_UP_SECONDS" "$FQ_LAB/nfs/up" -n "$n" -o "$LAB_MNT" >"$SHARED_FS_LOG" 2>&1; then
        local r; r=$(_reason); nfs_down; skipped "$name" "$r"; return 1
    fi
    # a lab that ran already keeps its old options: check
    local got; got=$(on a "awk '\$2==\"/mnt/nfs\"{print \$4}' /proc/mounts")
    case ,$got, in *,vers=$v,*) ;; *) nfs_down; skipped "$name" "mounted with other options: $got"; return 1 ;; esac
    _nfs_tune $(_nfs_guests "$n")
}
nfs_down() { [ ! -x "$FQ_LAB/nfs/down" ] || "$FQ_LAB/nfs/down" >>"$SHARED_FS_LOG" 2>&1; unset LAB_MNT; SHARED_FS=; }

_fuse_up() {
    _preflight "$1" || return 1
    SHARED_FS=$1
    local out
    if ! out=$(timeout -k 5 "$SHARED_FS_UP_SECONDS" "$FQ_LAB/fuse/up" "$1" 2>"$SHARED_FS_LOG"); then
        local r; r=$(_reason); _fuse_down; skipped "$1" "$r"; return 1
    fi
    SHARED_FS_DIR=$(printf '%s\n' "$out" | tail -1)
    _host_up a && _host_up b || { _fuse_down; return 1; }
}
_fuse_down() {
    [ -n "$SHARED_FS" ] || return 0
    _host_kill a; _host_kill b
    "$FQ_LAB/fuse/down" "$SHARED_FS" >>"$SHARED_FS_LOG" 2>&1
    SHARED_FS= SHARED_FS_DIR=
}
ceph_up()    { _fuse_up ceph; }
gluster_up() { _fuse_up gluster; }
moosefs_up() { _fuse_up moosefs; }
sshfs_up()   { _fuse_up sshfs; }

# fs_up NAME: by name; returns 1 and prints "skipped NAME: reason" when it cannot start
fs_up() {
    case ${1:-} in
        nfs4) nfs_up 4.2 ;;
        nfs3) nfs_up 3 ;;
        ceph|gluster|moosefs|sshfs|ext4|tmpfs) _fuse_up "$1" ;;
        *) skipped "${1:-?}" "no such file system; one of $SHARED_FS_ALL ext4 tmpfs" ;;
    esac
}
fs_down() { if is_nfs; then nfs_down; else _fuse_down; fi; }

# ---- hosts -------------------------------------------------------------------------------------

# A FUSE client is only a mount. A host for it: host name and pid namespace of its own, so that what
# runs there is another host to everybody else, and dies at once with its first process.
declare -A SHARED_FS_HOST=()
# _host CLIENT: pid of the host's first process
_host() {
    local p=${SHARED_FS_HOST[$1]:-}
    [ -n "$p" ] && [ -d "/proc/$p/ns" ] || { echo "shared-fs: host $1 is not up" >&2; return 1; }
    echo "$p"
}
_host_up() {
    local i
    # The first process reaps what is orphaned there. bash's wait does that too.
    setsid unshare --fork --pid --mount-proc --uts --kill-child=KILL \
        bash -c 'hostname "$0"; while :; do sleep 3600 & wait; done' "fq-$1" >>"$SHARED_FS_LOG" 2>&1 </dev/null &
    local outer=$!
    for ((i = 0; i < 50; i++)); do
        read -r SHARED_FS_HOST[$1] _ <"/proc/$outer/task/$outer/children" 2>/dev/null
        [ -n "${SHARED_FS_HOST[$1]}" ] && [ "$(nsenter -t "${SHARED_FS_HOST[$1]}" -u hostname 2>/dev/null)" = "fq-$1" ] || { sleep 0.1; continue; }
        # Kept open, so that no later namespace gets this one's number: a new host is another one.
        exec {i}<"/proc/${SHARED_FS_HOST[$1]}/ns/pid"
        return 0
    done
    skipped "$SHARED_FS" "cannot make a pid namespace for client $1"
}
_host_kill() { [ -z "${SHARED_FS_HOST[$1]:-}" ] || kill -9 "${SHARED_FS_HOST[$1]}" 2>/dev/null; unset "SHARED_FS_HOST[$1]"; return 0; }

# ---- use ---------------------------------------------------------------------------------------

# mount_of CLIENT: where this client sees the shared directory (for NFS inside its guest: use with `on`)
mount_of() { if is_nfs; then echo /mnt/nfs; else echo "$SHARED_FS_DIR/$1"; fi; }

# on CLIENT CMD: run a shell command as that client; stdout, stderr and the exit status come back.
# NFS: in the guest (sees the host's root read only; /tmp /run /mnt /dev are its own). FUSE: in the
# client's pid namespace, files as here. A command that touches a cut or frozen FUSE mount is not ended by any signal until
# heal, thaw or kill_client; start such a one in the background (on_bg) and never wait for it before healing.
on() {
    local c=$1; shift
    if is_nfs; then "$FQ_LAB/nfs/on" "$c" "$*"; else nsenter -t "$(_host "$c")" -p -m -u sh -c "$*"; fi
}
# on_bg CLIENT LOG CMD: in the background of that client. LOG is a path as the client sees it
# (NFS guests: below /tmp or the mount). Survives the end of the caller.
on_bg() {
    local c=$1 log=$2; shift 2
    if is_nfs; then
        # the guest's shell reads the command from its own argument, so quote it once
        "$FQ_LAB/nfs/on" "$c" "setsid sh -c $(_quote "$*") >$log 2>&1 </dev/null &"
    else
        setsid nsenter -t "$(_host "$c")" -p -m -u sh -c "$*" >"$log" 2>&1 </dev/null &
        disown
    fi
}
# binary_for CLIENT FILE: path under which the client can run a host binary, or fails with a reason
# (a guest has no view of the host's /tmp, /run, /mnt, /dev). No copy is needed.
binary_for() {
    local f; f=$(readlink -f "$2")
    is_nfs && case $f in /tmp/*|/run/*|/mnt/*|/dev/*) echo "shared-fs: $f is not visible in a guest, build elsewhere" >&2; return 1 ;; esac
    echo "$f"
}
# see CLIENT PATH TEXT [SECONDS]: wait until the client reads TEXT in mount/PATH
see() {
    local i n=$(( ${4:-30} * 5 ))
    for ((i = 0; i < n; i++)); do on "$1" "cat '$(mount_of "$1")/$2' 2>/dev/null" | grep -qF -- "$3" && return 0; sleep 0.2; done
    return 1
}

# ---- faults ------------------------------------------------------------------------------------

# kill_client CLIENT: the host dies at once with all its processes. NFS: silently. FUSE: its TCP connections are closed.
kill_client() { if is_nfs; then _lab_nfs crash "$1"; else _lab_fuse kill "$1"; _host_kill "$1"; fi; }
# power_off CLIENT: like kill_client, but the servers see only silence
power_off()   { if is_nfs; then _lab_nfs crash "$1"; else _lab_fuse power-off "$1"; _host_kill "$1"; fi; }
# mount_again CLIENT: the host comes back, with empty caches
mount_again() {
    if is_nfs; then timeout -k 5 90 "$FQ_LAB/nfs/up" "$1" >>"$SHARED_FS_LOG" 2>&1 && _nfs_tune "$1"
    else timeout -k 5 90 "$FQ_LAB/fuse/mount" "$SHARED_FS" "$1" 2>>"$SHARED_FS_LOG" && _host_up "$1"; fi
}
cut()  { if is_nfs; then _lab_nfs cut "$1"; else _lab_fuse cut "$1"; fi; }
heal() { if is_nfs; then _lab_nfs heal "$1"; else _lab_fuse heal "$1"; fi; }
# freeze and thaw a client (FUSE only; returns 2 on NFS)
freeze() { if is_nfs; then return 2; else _lab_fuse freeze "$1"; fi; }
thaw()   { if is_nfs; then return 2; else _lab_fuse thaw "$1"; fi; }
# server_stop and server_start: outage of the servers, data kept
server_stop()  { if is_nfs; then _lab_nfs crash server; else _lab_fuse stop-server; fi; }
server_start() { if is_nfs; then _lab_nfs up server && _nfs_tune server; else _lab_fuse start-server; fi; }
# clock CLIENT +SECONDS|0: wall clock of a guest (NFS only; returns 2 elsewhere)
clock() { if is_nfs; then _lab_nfs clock "$1" "$2"; else return 2; fi; }

# ---- smoke test --------------------------------------------------------------------------------

_step() { local s r; s=$(date +%s%N); "${@:2}"; r=$?; printf '%-8s %-26s %-6s %6d ms\n' "$SMOKE" "$1" "$([ $r = 0 ] && echo ok || echo FAILED)" $(( ($(date +%s%N) - s) / 1000000 )); [ $r = 0 ] || SMOKE_FAILED=1; }
_write() { on "$1" "echo '$3' >'$(mount_of "$1")/$2'"; }
_runs()  { on "$1" "cp \"$(binary_for "$1" "$(type -P true)")\" '$(mount_of "$1")/true' && '$(mount_of "$1")/true'"; }
_cutwrite() {
    local m; m=$(mount_of a); cut a || return 1
    on_bg a "${SHARED_FS_LOG%.log}.cut" "cat '$m/t2'; echo late >'$m/t3'"
    sleep 3; heal a && see b t3 late 90
}
smoke() {
    SMOKE=$1; local t=$SECONDS
    fs_up "$1" || return 0
    printf '%-8s %-26s ok     %6d s\n' "$1" up $((SECONDS - t))
    _step "b sees a" eval '_write a t1 one && see b t1 one'
    _step "a sees b" eval '_write b t2 two && see a t2 two'
    _step "host binary on the mount" _runs a
    _step "write over cut and heal" _cutwrite
    _step "kill a, b goes on" eval 'kill_client a && _write b t4 four && see b t4 four'
    _step "a comes back" eval 'mount_again a && see a t4 four'
    _step "server outage" eval 'server_stop && server_start && _write a t5 five && see b t5 five 120'
    _step "down" fs_down
}
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    SMOKE_FAILED=0; export LAB_LEASE=${LAB_LEASE:-15}    # short grace period after the NFS server's outage
    trap fs_down EXIT
    for f in ${*:-$SHARED_FS_ALL}; do smoke "$f"; done
    exit $SMOKE_FAILED
fi
