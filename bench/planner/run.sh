#!/usr/bin/env bash
# Tables of all algorithms on full-size models (shapes only) and described GPUs: bench/planner/RESULTS.md.
#   bench/planner/run.sh [MODELS [OUTPUT]]    MODELS: a folder with the .onnx files, default ../shared/models/full
#   FERRYC: the program, default build/bin/ferryc
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
models=${1:-$root/../shared/models/full}
output=${2:-$root/bench/planner/RESULTS.md}
ferryc=${FERRYC:-$root/build/bin/ferryc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
algorithms=(native-offload deepspeed-like dha memferry go-memferry optimal auto)

# name file tie: the TorchScript exporter stores a tied head twice.
list="gpt2 gpt2-ts m.transformer.wte.weight=onnx::MatMul_2862^T
gpt2-medium gpt2-medium-ts m.transformer.wte.weight=onnx::MatMul_5586^T
bert-base bert-base-ts m.bert.embeddings.word_embeddings.weight=onnx::MatMul_1480^T
bert-base-dynamo bert-base-dynamo -
bert-large bert-large-ts m.bert.embeddings.word_embeddings.weight=onnx::MatMul_2836^T
roberta-base roberta-base-ts m.roberta.embeddings.word_embeddings.weight=onnx::MatMul_1475^T
llama-1b llama-1b-dynamo m.model.embed_tokens.weight=val_1750^T"

number() { # KEY FILE
    sed -n "s/^ *\"$1\": \([0-9.-]*\),*\$/\1/p" "$2" | head -1
}
ms() {
    awk "BEGIN {printf \"%.2f\", $1 / 1e6}"
}

{
    echo "# Planner results"
    echo
    echo "Made by \`bench/planner/run.sh\`: batch 8 x 512 tokens, fp32, devices as described in \`examples/devices/\`. Milliseconds a step"
    echo "without contention (\`model_ns\`); the two columns 'with contention' give \`iteration_ns\`."
    echo "The bound is proven for every plan; the gap is that of \`optimal\`. Seconds are those of \`ferryc plan\`, import included."
    worst=0
    for device in "$root"/examples/devices/*.yaml; do
        echo
        echo "## $(basename "$device" .yaml)"
        echo
        echo "| model | units | native-offload | deepspeed-like | dha | memferry | go-memferry | optimal | bound | gap % | memferry with contention | auto with contention | seconds optimal | seconds auto |"
        echo "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
        while read -r name file tie; do
            [ -f "$models/$file.onnx" ] || continue
            profile=$work/profile.yaml
            options=(--loss cross_entropy --dim batch=8 --dim seq=512 --device "model:$device")
            [ "$tie" = - ] || options+=(--tie "$tie")
            if ! "$ferryc" profile "$models/$file.onnx" "${options[@]}" -o "$profile" -f >/dev/null 2>"$work/error"; then
                echo "$name: not imported: $(grep -m1 error "$work/error" | sed "s|$models/||")" >&2
                continue
            fi
            row="| $name |"
            for a in "${algorithms[@]}"; do
                start=$(date +%s.%N)
                "$ferryc" plan "$profile" --algorithm "$a" --dry-run --json >"$work/$a.json" 2>/dev/null
                echo "$(date +%s.%N) $start" | awk '{printf "%.2f", $1 - $2}' >"$work/$a.seconds"
            done
            units=$(grep -cE '^ *"[^"]*": "(gfgb|dha|dfgb)"' "$work/optimal.json")
            row+=" $units |"
            for a in native-offload deepspeed-like dha memferry go-memferry optimal; do
                row+=" $(ms "$(number model_ns "$work/$a.json")") |"
            done
            gap=$(number gap_percent "$work/optimal.json")
            row+=" $(ms "$(number bound_ns "$work/optimal.json")") | $gap |"
            row+=" $(ms "$(number iteration_ns "$work/memferry.json")") | $(ms "$(number iteration_ns "$work/auto.json")") |"
            row+=" $(cat "$work/optimal.seconds") | $(cat "$work/auto.seconds") |"
            echo "$row"
            worst=$(awk "BEGIN {print ($gap > $worst) ? $gap : $worst}")
        done <<<"$list"
    done
    echo
    echo "worst gap $worst"
} >"$work/results.md"
mv "$work/results.md" "$output"
tail -1 "$output"
