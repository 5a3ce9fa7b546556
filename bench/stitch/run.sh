#!/usr/bin/env bash
# Replays the traces (all .txt.xz of a folder) against models of PyTorch's allocator and against ours, on the host's memory: a
# table, then the worst ratio of ours. Fails when it is above 1.03, or ours is worse than expandable segments on any trace.
#   bench/stitch/run.sh [TRACES [REPLAY]]     default: bench/stitch/traces, build/bin/bench_stitch
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
traces=${1:-$here/traces}
replay=${2:-$here/../../build/bin/bench_stitch}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$replay" --head
for trace in "$traces"/*.txt.xz; do
    name=$(basename "$trace" .txt.xz)
    xz -dc "$trace" | "$replay" "$name" >"$work/rows"
    grep '^|' "$work/rows"
    sed -n 's/^ratios //p' "$work/rows" >>"$work/ratios"
done
awk '{ worst = $3 > worst ? $3 : worst; behind += $3 > $2 }
     END { if (behind) print "worse than expandable segments on " behind " traces"
           printf "worst reserved/live %.4f\n", worst; exit NR == 0 || behind > 0 || worst > 1.03 }' "$work/ratios"
