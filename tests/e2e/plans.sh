#!/usr/bin/env bash
# Plans that place and move everything differently train with the same bits, in the memory that they said.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
quiet ferryc profile "$models/gpt2/loss-ts.onnx" --dim batch=4 --dim seq=32 --device "model:$FERRY_SOURCE/tests/data/mixed-device.yaml"

train() { # name, plan options...
    local name=$1
    shift
    ferryc plan -o $name.yaml --json "$@" >$name.json
    quiet ferryc verify $name.yaml
    quiet ferryc emit $name.yaml -o $name
    build_schedule $name
    quiet $name/trainer --data "$models/gpt2/data" --steps 20 --log $name.jsonl
    local peak bytes budget
    peak=$(json peak_bytes $name.json)
    budget=$(json budget_bytes $name.json)
    bytes=$(tail -n 1 $name.jsonl | sed 's/.*"bytes": *\([0-9]*\).*/\1/')
    [ "$peak" = "$bytes" ] || fail "$name: planned $peak bytes, the device pool held $bytes"
    [ "$bytes" -le "$budget" ] || fail "$name: $bytes bytes are over the budget of $budget"
    echo "$name: $(json iteration_ns $name.json) ns, peak $peak, live $(json live_bytes $name.json);" \
        "$(grep -c 'mode: gfgb' $name.yaml) gfgb, $(grep -c 'mode: dha' $name.yaml) dha, $(grep -c 'mode: dfgb' $name.yaml) dfgb, $(grep -c 'mode: reload' $name.yaml) reload," \
        "$(grep -c 'gradient: host' $name.yaml) gradients on the host"
}

train native --algorithm native-offload
train dha --algorithm dha
train deepspeed --algorithm deepspeed-like
train memferry --algorithm memferry
train go0 --algorithm go-memferry --reserve-factor 0
train go50 --algorithm go-memferry --reserve-factor 0.5
train hand --algorithm memferry --mode '*attn*=dfgb' --mode '*mlp*=dha' --mode '*ln_1*=gfgb'
train again --algorithm memferry --recompute 3
train reloaded --mode '*=reload' --recompute 5
[ $(json live_bytes again.json) -lt $(($(json live_bytes memferry.json) * 3 / 4)) ] || fail "recomputation saves no quarter of the memory"
train auto
# The least budget is named, works, and nothing below it does.
expect 3 'least' ferryc plan --dry-run --mem-budget 4K
least=$(grep -oE 'least[^0-9]*[0-9]+ ?K' stderr.txt | grep -oE '[0-9]+' | head -n 1)
[ -n "$least" ] || fail "no least budget named: $(cat stderr.txt)"
train least --mem-budget ${least}K
train reload --mode '*=reload' --mode '*wte*=dha' --mem-budget $((least * 115 / 100))K
expect 3 "least" ferryc plan --dry-run --mem-budget $((least - 4))K

grep -q 'mode: dfgb' hand.yaml || fail "no DFGB in the plan by hand"
train resident --mode '*=resident'
train mixed --mode '*attn*=resident' --mode '*mlp*=reload' --mode '*ln*=dha'
[ "$(grep -c 'mode: resident' resident.yaml)" = 15 ] || fail "not all units are resident"
[ "$(grep -c 'mode: reload' reload.yaml)" -gt 10 ] || fail "hardly a reload in the plan by hand"
grep -q 'load_window_bytes: [1-9]' reload.yaml || fail "no window of loads under a tight budget"
for a in gfgb dha; do
    grep -q "mode: $a" memferry.yaml || fail "memferry does not mix modes: no $a"
done
for name in again reloaded dha deepspeed memferry go0 go50 hand auto reload resident mixed least; do
    same_values native.jsonl $name.jsonl
done
