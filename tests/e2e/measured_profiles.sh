#!/usr/bin/env bash
# The committed measurements of a GPU: each profile fits its model, and its plans hold what the paper says of them: memferry is
# faster than native offloading, proved, within the budget, and no plan goes without the kernels' scratch.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
for name in bert-base-bf16 bert-base-fp32 roberta-base-bf16 gpt2-medium-bf16 llama-1b-bf16; do
    profile="$FERRY_SOURCE/bench/profiles/h200-$name.yaml"
    for algorithm in native-offload memferry; do
        ferryc plan "$profile" -o $algorithm.yaml --algorithm $algorithm --json >$algorithm.json 2>stderr.txt || fail "$name: $(cat stderr.txt)"
        [ "$(json peak_bytes $algorithm.json)" -gt $((96 << 20)) ] || fail "$name: no scratch in the peak"
    done
    native=$(json iteration_ns native-offload.json)
    memferry=$(json iteration_ns memferry.json)
    echo "$name: native-offload $native ns, memferry $memferry ns, bound $(json bound_ns memferry.json) ns"
    [ "$memferry" -lt "$native" ] || fail "$name: memferry $memferry ns, native-offload $native ns"
    [ "$memferry" -ge "$(json bound_ns memferry.json)" ] || fail "$name: faster than the proven bound"
    quiet ferryc verify memferry.yaml
    rm -f ./*.yaml
done
