#!/usr/bin/env bash
# The full GPT-2 (124M, shapes only) on a described GPU: the layout is tight, the plan is proved, the schedule compiles.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
quiet ferryc profile "$models/full/gpt2-ts.onnx" --loss cross_entropy --tie 'm.transformer.wte.weight=onnx::MatMul_2862^T' \
    --dim batch=8 --dim seq=512 --device "model:$FERRY_SOURCE/examples/devices/h200-pcie5.yaml"
for algorithm in native-offload memferry go-memferry auto; do
    ferryc plan -o $algorithm.yaml --algorithm $algorithm --json >plan.json
    peak=$(json peak_bytes plan.json)
    live=$(json live_bytes plan.json)
    echo "$algorithm: peak/live $peak/$live = $(awk "BEGIN {printf \"%.4f\", $peak / $live}")," \
        "$(awk "BEGIN {printf \"%.2f\", $(json iteration_ns plan.json) / 1e6}") ms"
    [ $((peak * 100)) -le $((live * 105)) ] || fail "$algorithm: more than 5% above the live bytes"
    quiet ferryc verify $algorithm.yaml
done
expect 4 'random-init' ferryc emit auto.yaml
quiet ferryc emit auto.yaml --random-init 1
gcc -std=c17 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -I"$FERRY_BUILD/include" -c schedule/schedule.c -o schedule.o
