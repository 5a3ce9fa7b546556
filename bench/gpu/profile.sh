#!/usr/bin/env bash
# Runs on a machine with a GPU and a C compiler what pack.sh --profile packed: profiles GPT-2 there, a tiny one and one of
# 124M parameters, plans, emits, trains, and prints predicted beside measured times. Usage: profile.sh [OUT]
set -u
here=$(realpath "$(dirname "$0")")
out=${1:-$here/out}
mkdir -p "$out"
export LD_LIBRARY_PATH="$here/lib:${LD_LIBRARY_PATH:-}" PATH="$here/bin:$PATH"
cd "$here"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
bad=0
profile() { # output, model options...
    local to=$1 from=$SECONDS
    shift
    ferryc profile "$@" --device cuda:0 -o "$to" || { bad=1; return 1; }
    echo "$to: profiled in $((SECONDS - from)) s"
}
run() { # name, profile, data, emit option, plan options...
    local name=$1 profile=$2 data=$3 init=$4
    shift 4
    ferryc plan "$profile" -o "$name.yaml" --json "$@" >"$out/$name.json" 2>"$out/$name.err" &&
        ferryc emit "$name.yaml" -o "$name" $init >/dev/null 2>>"$out/$name.err" &&
        make -s -C "$name" FERRY="$here" 2>>"$out/$name.err" &&
        timeout 120 "$name/trainer" --device cuda:0 --data "$data" --steps 30 --lr 1e-4 --log "$out/$name.jsonl" \
            >"$out/$name.txt" 2>&1 || { echo "$name: failed"; tail -n 3 "$out/$name.err" "$out/$name.txt"; bad=1; return; }
    local predicted measured
    predicted=$(tr ',{' '\n\n' <"$out/$name.json" | sed -n 's/.*"iteration_ns": *\([0-9]*\).*/\1/p' | head -n 1)
    measured=$(sed -n 's/.*"ms": *\([0-9.e+-]*\).*/\1/p' "$out/$name.jsonl" | tail -n 20 | sort -g | sed -n 10p)
    awk -v n="$name" -v p="$predicted" -v m="$measured" \
        'BEGIN {printf "%s: predicted %.3f ms, measured %.3f ms, measured / predicted %.3f\n", n, p / 1e6, m, m / (p / 1e6)}'
}
test_gpu_clock || bad=1
profile tiny.yaml tests/models/gpt2/loss-ts.onnx --dim batch=4 --dim seq=32 && {
    cp tiny.yaml "$out"
    run tiny-auto tiny.yaml tests/models/gpt2/data ""
    run tiny-native tiny.yaml tests/models/gpt2/data "" --algorithm native-offload
    run tiny-dha tiny.yaml tests/models/gpt2/data "" --algorithm dha
}
profile bench/profiles/h200-gpt2-ts.yaml tests/models/full/gpt2-ts.onnx --dim batch=8 --dim seq=512 --loss cross_entropy && {
    cp bench/profiles/h200-gpt2-ts.yaml "$out"
    run full-native bench/profiles/h200-gpt2-ts.yaml full "--random-init 1" --algorithm native-offload
    run full-auto bench/profiles/h200-gpt2-ts.yaml full "--random-init 1"
    run full-memferry bench/profiles/h200-gpt2-ts.yaml full "--random-init 1" --algorithm memferry
    run full-dha bench/profiles/h200-gpt2-ts.yaml full "--random-init 1" --algorithm dha
}
exit $bad
