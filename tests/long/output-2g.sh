#!/bin/sh
# 2 GiB of standard output from one task, in under 100 MiB of worker memory, and back byte for byte.
# usage: tests/long/output-2g.sh [FQ [BYTES]]     needs three times as much space in TMPDIR; not part of the suite
set -eu
fq=${1:-target/release/fq} bytes=${2:-2147483648}
fq=$(cd "$(dirname "$fq")" && pwd)/$(basename "$fq")
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
export FQ_DIR="$room/q"

"$fq" init
job=$("$fq" submit --wrap "yes 'fifteen letters' | head -c $bytes")
gate=$("$fq" submit --wrap "until [ -e '$room/go' ]; do sleep 0.1; done")
"$fq" worker -c 1 --until-empty &
keeper=$!
"$fq" wait "$job"
worker=$(cat "/proc/$keeper/task/$keeper/children")
peak=0
for pid in $keeper $worker; do
    kib=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$pid/status" 2>/dev/null || echo 0)
    [ "${kib:-0}" -le "$peak" ] || peak=$kib
done
: >"$room/go"
"$fq" wait "$gate"
wait "$keeper"
expected=$(yes 'fifteen letters' | head -c "$bytes" | sha256sum)
found=$("$fq" result "$job" | sha256sum)
echo "peak memory of the worker: $((peak / 1024)) MiB"
[ "$expected" = "$found" ] || { echo "the output came back wrong" >&2; exit 1; }
[ "$peak" -lt 102400 ] || { echo "that is too much" >&2; exit 1; }
echo "$bytes bytes of output came back byte for byte"
