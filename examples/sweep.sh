#!/bin/sh
# A parameter sweep: which number of neighbours tells three species of iris apart best?
# One array job with a task per parameter, a worker that ends when nothing is left, and the results in one table.
#
#   examples/sweep.sh            uses the queue in $FQ_DIR, or a temporary one
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${FQ_DIR:-}" ]; then
    FQ_DIR=$(mktemp -d)/q
    export FQ_DIR
fi

job=$(fq submit -J knn -a 1-25:2 --wrap "awk -v k=\$FQ_ARRAY_TASK_ID -f '$here/knn.awk' '$here/data/iris.csv'")
fq worker --until-empty
fq wait "$job"

echo "neighbours  told right  of"
fq logs "$job" | sort -k2,2nr -k1,1n | awk '{ printf "%10d  %10d  %d\n", $1, $2, $3 }'
