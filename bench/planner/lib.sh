# lib.sh - for the scripts in this folder. FERRYC: the program, default build/bin/ferryc. MODELS: the folder with full-size .onnx
# files, default ../shared/models/full beside the repository. JOBS: programs at once, default all processors.
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
ferryc=${FERRYC:-$root/build/bin/ferryc}
models=${MODELS:-$root/../shared/models/full}
jobs=${JOBS:-$(nproc)}
export OPENBLAS_NUM_THREADS=1 LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# name file tie dims: the TorchScript exporter stores a tied head twice. Texts are 8 rows of 512 tokens, images 32 at once.
list="gpt2 gpt2-ts m.transformer.wte.weight=onnx::MatMul_2862^T batch=8,seq=512
gpt2-medium gpt2-medium-ts m.transformer.wte.weight=onnx::MatMul_5586^T batch=8,seq=512
gpt2-medium-dynamo gpt2-medium-dynamo - batch=8,seq=512
bert-base bert-base-ts m.bert.embeddings.word_embeddings.weight=onnx::MatMul_1480^T batch=8,seq=512
bert-base-dynamo bert-base-dynamo - batch=8,seq=512
bert-large bert-large-ts m.bert.embeddings.word_embeddings.weight=onnx::MatMul_2836^T batch=8,seq=512
roberta-base roberta-base-ts m.roberta.embeddings.word_embeddings.weight=onnx::MatMul_1475^T batch=8,seq=512
llama-1b llama-1b-dynamo m.model.embed_tokens.weight=val_1750^T batch=8,seq=512
vit-base vit-base-ts - batch=32
resnet50 resnet50-ts - batch=32"

# profile_of NAME DEVICE OUTPUT [DIMS]: of a model in the list
profile_of() {
    local name file tie dims options=()
    read -r name file tie dims <<<"$(grep "^$1 " <<<"$list")"
    dims=${4:-$dims}
    for d in ${dims//,/ }; do options+=(--dim "$d"); done
    [ "$tie" = - ] || options+=(--tie "$tie")
    "$ferryc" profile "$models/$file.onnx" --loss cross_entropy "${options[@]}" --device "model:$root/examples/devices/$2.yaml" \
        -o "$3" -f >/dev/null 2>"$3.error"
}

# plan_of PROFILE OUTPUT OPTIONS...: OUTPUT.json; OUTPUT.seconds of the processor; false, without OUTPUT.json, when nothing fits
plan_of() {
    local profile=$1 output=$2 code=0 TIMEFORMAT='%U %S'
    shift 2
    { time "$ferryc" plan "$profile" --dry-run --json "$@" >"$output.json" 2>"$output.error" || code=$?; } 2>"$output.time"
    awk '{printf "%.2f", $1 + $2}' "$output.time" >"$output.seconds"
    [ "$code" = 0 ] && return
    rm -f "$output.json"
    [ "$code" = 3 ] || { echo "ferryc plan $profile $*: exit $code: $(cat "$output.error")" >&2; exit 1; }
    return 1
}

# number KEY FILE, ms KEY FILE: from a plan's JSON; 'no fit' where there is none
number() {
    sed -n "s/^ *\"$1\": \([0-9.-]*\),*\$/\1/p" "$2" | head -1
}
ms() {
    if [ -f "$2" ]; then number "$1" "$2" | awk '{printf "%.2f", $1 / 1e6}'; else printf 'no fit'; fi
}
gib() {
    if [ -f "$2" ]; then number "$1" "$2" | awk '{printf "%.2f", $1 / 1073741824}'; else printf 'no fit'; fi
}

# Runs a function for each line of standard input, as many at once as JOBS says, and prints what they print in order. Ends the
# script when one of them fails.
each_line() {
    local n=0 line at
    at=$(mktemp -d "$work/lines.XXXX")
    while read -r line; do
        [ "$(jobs -rp | wc -l)" -lt "$jobs" ] || wait -n || true
        # shellcheck disable=SC2086 # a line is a list of words
        { "$1" $line >"$at/$n.part" && mv "$at/$n.part" "$at/$n"; } </dev/null &
        n=$((n + 1))
    done
    wait
    for ((i = 0; i < n; i++)); do cat "$at/$i"; done
}
