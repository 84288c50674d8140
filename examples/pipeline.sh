#!/bin/sh
# A pipeline over a tree of files: count the words of every file, then merge the counts when all are there.
# The files are a task each; the merge is a job that depends on them.
#
#   examples/pipeline.sh DIR     uses the queue in $FQ_DIR, or a temporary one
set -eu
tree=$(cd "${1:?usage: pipeline.sh DIR}" && pwd)
if [ -z "${FQ_DIR:-}" ]; then
    FQ_DIR=$(mktemp -d)/q
    export FQ_DIR
fi

# One task per line; `{}` is the line, as one argument, whatever is in it.
counts=$(find "$tree" -type f \( -name '*.md' -o -name '*.rs' -o -name '*.sh' \) | sort |
    fq submit -J count --each-line - -- wc -w {})

# $FQ_BIN is this fq and $FQ_DIR the queue: a task may read what others have written, here the output of the whole array.
merge=$(fq submit -J merge -d "afterok:$counts" --export COUNTS="$counts" --wrap '
    "$FQ_BIN" logs "$COUNTS" | awk "{ words += \$1; files++ } END { print files, \"files\", words, \"words\" }"')

fq worker --until-empty
fq wait "$merge"
fq logs "$merge"
