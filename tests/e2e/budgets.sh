#!/usr/bin/env bash
# Budgets from the least to more than enough: more is never slower, the peak keeps the budget, each plan is proved, each schedule
# compiles; those of the tiny GPT-2 train with the same bits.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"

# sweep NAME COUNT KEY OPTIONS...: plans NAME.0.yaml to NAME.COUNT.yaml of profile.yaml; KEY is the time that must not rise
sweep() {
    local name=$1 count=$2 key=$3 code=0 least most before=0 i budget now peak
    shift 3
    ferryc plan --dry-run --json "$@" >most.json 2>/dev/null
    most=$(($(json peak_bytes most.json) / 1024 + 64))
    ferryc plan --dry-run --mem-budget 1K "$@" 2>least.txt >/dev/null || code=$?
    [ $code = 3 ] || fail "$name: a budget of 1 KiB gave exit $code"
    least=$(sed -n 's/.*the least that works is \([0-9]*[KMG]\)iB.*/\1/p' least.txt)
    case $least in
    *M) least=$((${least%M} * 1024)) ;;
    *K) least=${least%K} ;;
    *) fail "$name: no least budget in: $(cat least.txt)" ;;
    esac
    for ((i = 0; i <= count; i++)); do
        budget=$((least + (most - least) * i / count))
        ferryc plan -o $name.$i.yaml --json --mem-budget ${budget}K "$@" >plan.json 2>plan.err || fail "$name: $budget KiB: $(cat plan.err)"
        quiet ferryc verify $name.$i.yaml
        now=$(json "$key" plan.json)
        peak=$(json peak_bytes plan.json)
        [ "$peak" -le $((budget * 1024)) ] || fail "$name: $peak bytes in a budget of $budget KiB"
        [ $before = 0 ] || [ "$now" -le $before ] || fail "$name: $now ns in $budget KiB, $before ns in less"
        before=$now
        [ $i -gt 0 ] || echo -n "$name: $now ns in $least KiB"
    done
    echo ", $before ns in $most KiB"
}

quiet ferryc profile "$models/full/gpt2-ts.onnx" --loss cross_entropy --tie 'm.transformer.wte.weight=onnx::MatMul_2862^T' \
    --dim batch=8 --dim seq=512 --device "model:$FERRY_SOURCE/examples/devices/rtx4090-pcie4.yaml"
sweep gpt2 4 model_ns --algorithm optimal
grep -q '^recompute:' gpt2.0.yaml || fail "the least budget asks for no recomputation"
grep -q '^recompute:' gpt2.4.yaml && fail "recomputation with more memory than the fastest plan needs"
for ((i = 0; i <= 4; i++)); do
    quiet ferryc emit gpt2.$i.yaml --random-init 1 -o full
    quiet gcc -std=c17 -D_GNU_SOURCE -O0 -Wall -Wextra -Werror -I"$FERRY_BUILD/include" -c full/schedule.c -o full.o
done

quiet ferryc profile "$models/gpt2/loss-ts.onnx" --dim batch=4 --dim seq=32 -f --device "model:$FERRY_SOURCE/tests/data/mixed-device.yaml"
sweep optimal 4 model_ns --algorithm optimal
sweep auto 4 iteration_ns
for name in optimal auto; do
    grep -q '^recompute:' $name.1.yaml || fail "$name: no recomputation near the least budget"
    for ((i = 0; i <= 4; i++)); do
        quiet ferryc emit $name.$i.yaml -o tiny
        build_schedule tiny
        quiet tiny/trainer --data "$models/gpt2/data" --steps 4 --log $name.$i.jsonl
        same_values optimal.0.jsonl $name.$i.jsonl
        rm -rf tiny
    done
done
