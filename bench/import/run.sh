#!/usr/bin/env bash
# run.sh FERRY_BUILD MODEL.onnx...: a table of seconds and peak memory of each command from an export to an object file, weights not
# needed, on a described GPU. Images get a batch of 8, texts 8 rows of 512 tokens. Last a file of more than 5000 nodes.
set -eu
build=$(cd "${1:?the build folder}" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# timed COMMAND...: "SECONDS MiB", or the last line of what went wrong
timed() {
    if /usr/bin/time -f '%e %M' -o "$work/time" "$@" >"$work/out" 2>&1; then
        awk '{printf "%.2f s, %.0f MiB", $1, $2 / 1024}' "$work/time"
    else
        tail -n 1 "$work/out" | cut -c 1-60
        return 1
    fi
}

echo '| model | inspect | profile | plan native-offload | plan auto | emit | gcc -O1 -c |'
echo '|---|---|---|---|---|---|---|'
for model in "$@"; do
    model=$(realpath "$model")
    dims=(--dim batch=8)
    case $(basename "$model") in vit* | resnet*) ;; *) dims+=(--dim seq=512) ;; esac
    mkdir -p "$work/run" && cd "$work/run"
    printf '| %s' "$(basename "$model" .onnx)"
    for step in inspect profile native auto emit compile; do
        case $step in
        inspect) command=("$build/bin/ferryc" inspect "$model" --loss cross_entropy "${dims[@]}") ;;
        profile) command=("$build/bin/ferryc" profile "$model" --loss cross_entropy "${dims[@]}"
            --device "model:$source/examples/devices/h200-pcie5.yaml") ;;
        native) command=("$build/bin/ferryc" plan --algorithm native-offload -o native.yaml) ;;
        auto) command=("$build/bin/ferryc" plan) ;;
        emit) command=("$build/bin/ferryc" emit --random-init 1) ;;
        compile) command=(gcc -std=c17 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror "-I$build/include" -c schedule/schedule.c) ;;
        esac
        printf ' | '
        timed "${command[@]}" || break
    done
    echo ' |'
    cd "$work" && rm -rf run
done

"$build/bin/gpt2_stack" 250 768 12 50257 512 "$work/stack.onnx" >/dev/null 2>"$work/nodes"
import=$(timed "$build/bin/ferryc" inspect "$work/stack.onnx" --loss cross_entropy --dim batch=8)
printf '\nImport of a GPT-2 of 250 blocks, %s: %s\n' "$(cat "$work/nodes")" "$import"
