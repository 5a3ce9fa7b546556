#!/usr/bin/env bash
# The largest GPT-2 stack that trains on a V100 of 32 GB by each algorithm, as Markdown: batch 1 x 512, hidden size 2048.
. "$(dirname "$0")/lib.sh"
tools=$(dirname "$ferryc")

fits() { # LAYERS OUTPUT OPTIONS...
    local at=$work/v100.$1
    if [ ! -f "$at.yaml" ]; then
        local own=$at.$BASHPID
        "$tools/gpt2_stack" "$1" 2048 16 50257 512 "$own.onnx" >"$own.params" 2>/dev/null
        "$ferryc" profile "$own.onnx" --loss cross_entropy --dim batch=1 --device "model:$root/examples/devices/v100-pcie3.yaml" \
            -o "$own.yaml" >/dev/null 2>&1
        mv "$own.params" "$at.params"
        mv "$own.yaml" "$at.yaml"
    fi
    local layers=$1
    shift
    plan_of "$work/v100.$layers.yaml" "$@" --mem-budget 31744M --host-budget 1T
}

row() { # NAME OPTIONS...
    local name=$1 low=1 high=2 middle
    shift
    while fits $high "$work/limit.$name" "$@"; do low=$high high=$((high * 2)); done
    while [ $((high - low)) -gt 1 ]; do
        middle=$(((low + high) / 2))
        if fits $middle "$work/limit.$name" "$@"; then low=$middle; else high=$middle; fi
    done
    fits $low "$work/limit.$name" "$@"
    echo "| $name | $low | $(awk '{printf "%.2f", $1 / 1e9}' "$work/v100.$low.params") | $(ms iteration_ns "$work/limit.$name.json") |" \
        "$(gib peak_bytes "$work/limit.$name.json") | $(gib host_bytes "$work/limit.$name.json") |"
    awk '{print $1}' "$work/v100.$low.params" >"$work/limit.$name.most"
}

echo "| algorithm | layers | Gparam | ms a step at this size | GPU GiB | pinned GiB |"
echo "|---|---|---|---|---|---|"
{
    echo "native-offload --algorithm native-offload"
    echo "deepspeed-like --algorithm deepspeed-like"
    echo "memferry --algorithm memferry"
    echo "go-memferry --algorithm go-memferry --reserve-factor 0"
    echo "optimal --algorithm optimal"
} | each_line row
echo
awk -v go="$(cat "$work/limit.go-memferry.most")" -v ds="$(cat "$work/limit.deepspeed-like.most")" \
    -v native="$(cat "$work/limit.native-offload.most")" -v best="$(cat "$work/limit.optimal.most")" 'BEGIN {
    printf "go-memferry trains %.2f times the model of native-offload and %.2f times that of deepspeed-like; optimal %.2f times that of native-offload.\n",
        go / native, go / ds, best / native }'
