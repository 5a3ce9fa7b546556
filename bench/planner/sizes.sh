#!/usr/bin/env bash
# What planning costs as models grow: GPT-2 stacks of hidden size 768, batch 8 x 512, as Markdown.    sizes.sh [DEVICE]
. "$(dirname "$0")/lib.sh"
tools=$(dirname "$ferryc")
device=${1:-h200-pcie5}

row() { # LAYERS
    local at=$work/stack.$1 params units memferry knapsack optimal gap
    params=$("$tools/gpt2_stack" "$1" 768 12 50257 512 "$at.onnx" 2>/dev/null)
    "$ferryc" profile "$at.onnx" --loss cross_entropy --dim batch=8 --device "model:$root/examples/devices/$device.yaml" \
        -o "$at.yaml" >/dev/null 2>&1
    read -r units memferry knapsack optimal gap <<<"$("$tools/plan_time" "$at.yaml")"
    plan_of "$at.yaml" "$at.native" --algorithm native-offload --mem-budget 1T --host-budget 1T
    plan_of "$at.yaml" "$at.optimal" --algorithm optimal --mem-budget 1T --host-budget 1T
    echo "| $1 | $units | $(awk "BEGIN {printf \"%.0f\", $params / 1e6}") | $memferry | $knapsack | $(awk "BEGIN {printf \"%.2f\", $optimal / 1e3}") |" \
        "$gap | $(cat "$at.native.seconds") | $(cat "$at.optimal.seconds") |"
}

echo "| layers of GPT-2 | units | Mparam | Alg. 1 and 2, 4 readings: ms | knapsack, mean of 33 limits: ms | optimum and proof: s | gap % | plan native-offload: s | plan optimal: s |"
echo "|---|---|---|---|---|---|---|---|---|"
printf '%s\n' 12 24 48 96 167 | each_line row
