#!/usr/bin/env bash
# GPT-2 exported in training mode: its seven Dropout nodes work as PyTorch's do, and masks depend on seed and step alone.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
quiet ferryc profile "$models/gpt2/dropout-ts.onnx" --dim batch=4 --dim seq=32 --precision fp64 \
    --device "model:$FERRY_SOURCE/tests/data/mixed-device.yaml"
data="$models/gpt2/data"
build() { # name, plan options...
    local name=$1
    shift
    quiet ferryc plan -o $name.yaml "$@"
    quiet ferryc emit $name.yaml -o $name
    quiet make -C $name CFLAGS="-O0 ${FERRY_SANITIZE_FLAGS:-}" LDFLAGS="${FERRY_SANITIZE_FLAGS:-}"
}
build native --algorithm native-offload
build memferry --algorithm memferry
build again --algorithm native-offload --recompute 4

# PyTorch 2 in float64, 60 runs of 200 steps over the same batches: the mean of a run is 6.257519 with a standard deviation of
# 0.000571 between runs; around the mean of its batch a step's loss has a standard deviation of 0.00838. The loss without
# dropout is 6.256793.
quiet native/trainer --data "$data" --steps 200 --lr 0 --weight-decay 0 --seed 1 --log still.jsonl
values still.jsonl | awk '
    {loss[NR] = $1; sum += $1; batch[NR % 20] += $1 / 10}
    END {
        mean = sum / NR
        for (i = 1; i <= NR; i++)
            squares += (loss[i] - batch[i % 20]) ^ 2
        deviation = sqrt(squares / (NR - 20))
        printf "mean loss %.6f, deviation of a step %.5f\n", mean, deviation
        exit !(NR == 200 && mean > 6.257519 - 3 * 0.000571 && mean < 6.257519 + 3 * 0.000571 &&
               deviation > 0.8 * 0.00838 && deviation < 1.2 * 0.00838)
    }' || fail "not the loss of PyTorch's dropout"

# The same bits whatever the plan, and after a checkpoint; another seed gives others.
train=(--data "$data" --lr 1e-3 --seed 5)
quiet native/trainer "${train[@]}" --steps 12 --log native.jsonl
quiet memferry/trainer "${train[@]}" --steps 12 --log memferry.jsonl
same_values native.jsonl memferry.jsonl
quiet again/trainer "${train[@]}" --steps 12 --log again.jsonl
same_values native.jsonl again.jsonl
[ "$(grep -c 'void \*.*dropout_again;' again/schedule.c)" -gt 2 ] || fail "hardly a dropout is computed again"
quiet memferry/trainer "${train[@]}" --steps 5 --log parts.jsonl --save half
quiet native/trainer "${train[@]}" --steps 12 --log parts.jsonl --resume half
same_values native.jsonl parts.jsonl
quiet native/trainer --data "$data" --lr 1e-3 --seed 6 --steps 12 --log other.jsonl
values native.jsonl >a.values
values other.jsonl >b.values
[ "$(sort a.values b.values | uniq -d | wc -l)" = 0 ] || fail "two seeds gave the same masks"
expect 2 'seed' native/trainer --data "$data" --seed -1
