#!/usr/bin/env bash
# Runs on a machine with a GPU what pack.sh packed: the conformance tests on cuda:0, then 20 steps of every plan against
# PyTorch. Usage: check.sh [OUT], from anywhere; logs go to OUT.
set -u
here=$(realpath "$(dirname "$0")")
out=${1:-$here/out}
mkdir -p "$out"
export LD_LIBRARY_PATH="$here/lib:${LD_LIBRARY_PATH:-}" FERRY_TEST_DEVICE=cuda:0
bad=0
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
for t in "$here"/bin/test_*; do
    name=$(basename "$t")
    timeout 120 "$t" >"$out/$name.log" 2>&1
    code=$?
    echo "$name: exit $code"
    if [ $code -ne 0 ]; then
        bad=1
        grep -v 'RUN  \|      OK' "$out/$name.log" | tail -n 25
    fi
done
for t in "$here"/trainers/*/; do
    name=$(basename "$t")
    [ "${name#full}" = "$name" ] || continue
    tolerance=1e-4
    [ "${name#fp64}" != "$name" ] && tolerance=1e-6
    timeout 60 "$t/trainer" --device cuda:0 --data "$here/gpt2/data" --steps 20 --lr 1e-3 --weight-decay 0.01 \
        --log "$out/$name.jsonl" >"$out/$name.txt" 2>&1
    code=$?
    echo -n "$name: exit $code; "
    if [ $code -ne 0 ]; then
        bad=1
        tail -n 3 "$out/$name.txt"
        continue
    fi
    "$here/bin/check_log" "$out/$name.jsonl" "$here/gpt2/reference.json" float64 $tolerance || bad=1
done
first=
for t in "$here"/trainers/full*/; do
    name=$(basename "$t")
    timeout 200 "$t/trainer" --device cuda:0 --data "$here/full" --steps 12 --lr 1e-4 --log "$out/$name.jsonl" \
        >"$out/$name.txt" 2>&1
    code=$?
    echo "$name: exit $code; predicted $(cat "$t/predicted.txt")"
    [ $code -eq 0 ] || bad=1
    tail -n 4 "$out/$name.txt"
    [ -n "$first" ] || first="$out/$name.jsonl"
    paste <(sed 's/.*"loss": *\([^,]*\).*/\1/' "$first") <(sed 's/.*"loss": *\([^,]*\).*/\1/' "$out/$name.jsonl") |
        awk '{d = $1 - $2; d = d < 0 ? -d : d; if (d > most) most = d} END {print "  largest difference of the losses: " most + 0}'
done
"$here/bin/bench_dha" || bad=1
"$here/bin/bench_kernels" || bad=1
exit $bad
