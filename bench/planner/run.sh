#!/usr/bin/env bash
# Everything that bench/planner/RESULTS.md shows, written there; the last line is `worst gap PERCENT`.    run.sh [OUTPUT]
# Takes about an hour on two processors with AUTO=no, and more without; lib.sh says what else the environment sets. One part alone prints Markdown:
# models.sh, sizes.sh, limit.sh, paper.sh, sweep.sh. random.sh is a test of its own.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=${1:-$here/RESULTS.md}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for part in models sizes limit paper sweep; do
    start=$SECONDS
    "$here/$part.sh" >"$work/$part.md"
    echo "$part: $((SECONDS - start)) s" >&2
done
{
    cat "$here/words/head.md"
    sed '/^worst /d' "$work/models.md"
    for part in sizes limit paper sweep; do
        echo
        cat "$here/words/$part.md"
        echo
        cat "$work/$part.md"
        [ ! -f "$here/words/$part-after.md" ] || { echo && cat "$here/words/$part-after.md"; }
    done
    echo
    grep '^worst plan' "$work/models.md"
    echo
    grep '^worst gap' "$work/models.md"
} >"$work/results.md"
mv "$work/results.md" "$output"
tail -1 "$output"
