#!/usr/bin/env bash
# What inspect prints: layers and parameters, as text and as JSON, the operator table, and what each pass made.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
gpt2="$models/gpt2/loss-ts.onnx"
dims=(--dim batch=4 --dim seq=32)

# has FILE PATTERN...: every pattern (extended) is in the file.
has() {
    local file=$1
    shift
    for pattern in "$@"; do
        grep -Eq -e "$pattern" "$file" || fail "$file has no /$pattern/: $(head -n 5 "$file")"
    done
}

expect 0 'tied to' ferryc inspect "$gpt2" "${dims[@]}"
# hidden 64, vocabulary 512: the embedding has 32768 parameters, c_fc 64 * 256 + 256
has stdout.txt '^input +input_ids i64 \[4, 32\]' 'transformer\.wte +Embedding +32768 +128(\.00)? KiB' \
    'h\.0\.mlp\.c_fc +Linear +16640 ' 'tied to an earlier layer' '^[0-9]+ parameters \([0-9]+ trained\)'
expect 0 '' ferryc inspect "$gpt2" "${dims[@]}" --freeze '*wte*' --freeze '*wpe*'
has stdout.txt '^[0-9]+ parameters \([0-9]+ trained\)'
expect 0 '' ferryc inspect "$gpt2" "${dims[@]}" --json
has stdout.txt '^\{"inputs": \[\{"name": "input_ids", "dtype": "i64", "shape": \[4, 32\]\}' '"op": "Embedding"' \
    '"gradient_bytes": 131072' '"forward_bytes": [0-9]+\}$'
expect 0 '' ferryc inspect --ops
has stdout.txt '^\| operator ' '^\| Conv +\| +7 to 23 \|' '^\| Floor .*\| zero +\|' '^\| Equal .*\| none +\|'
tail -n "$(wc -l <stdout.txt)" "$FERRY_SOURCE/docs/operators.md" | cmp - stdout.txt || fail "docs/operators.md has another table"
expect 0 '' ferryc inspect --ops --json
has stdout.txt '\{"operator": "Shape", "since": 7, "until": 23, "folds": true, "runs": false, "gradient": null, "remark": null\}' \
    '"operator": "MatMul".*"gradient": "yes"'
for pass in lower tie autodiff layers liveness; do
    expect 0 '(linear|layernorm)' ferryc inspect "$gpt2" "${dims[@]}" --dump after:$pass
done
for pass in import infer; do
    expect 0 'Gather' ferryc inspect "$gpt2" "${dims[@]}" --dump after:$pass
done
expect 2 'which model' ferryc inspect
expect 2 'one too many' ferryc inspect "$gpt2" "$gpt2"
expect 2 'nowhere' ferryc inspect nowhere.onnx

# What a file does not show is said once, by the command that reads the model first, with what changes it.
said() { # MODEL PATTERN OPTIONS...: on standard error of profile
    local model=$1 pattern=$2
    shift 2
    expect 0 "$pattern" ferryc profile "$models/$model.onnx" --device "model:$FERRY_SOURCE/tests/data/mixed-device.yaml" "$@"
}
said resnet/ts '6 convolutions .*folds BatchNormalization.*TrainingMode\.TRAINING' --loss cross_entropy --dim batch=4
said resnet/dynamo '6 convolutions .*folds BatchNormalization' --loss cross_entropy --dim batch=4
said gpt2/ts 'has no Dropout.*TrainingMode\.TRAINING' --loss cross_entropy "${dims[@]}"
said llama/dynamo 'only give angles to Sin and Cos' --loss cross_entropy "${dims[@]}"

# The planner's passes: what each algorithm saw and made.
said gpt2/loss-ts '' "${dims[@]}"
load=$(grep -A2 'm.transformer.wte"' profile.yaml | sed -n 's/.*load: {median_ns: \([0-9]*\),.*/\1/p' | head -1)
[ -n "$load" ] || fail "no load time of the embedding in the profile"
dumped() { # PASS PATTERN
    expect 0 "$2" ferryc plan --dry-run --algorithm go-memferry --dump "after:$1"
}
expect 2 "no pass 'nonsense'" ferryc plan --dry-run --dump after:nonsense
expect 2 "no pass 'problem'" ferryc inspect "$gpt2" "${dims[@]}" --dump after:problem
dumped problem "m\.transformer\.wte +131072 +$load "
dumped fp 'fp literal'
dumped fp 'fp slack'
dumped bp 'fp (literal|slack), bp (literal|hidden)'
dumped go 'go +m\.transformer\.wte +gradient (gpu|host) +131072 bytes'
dumped steps 'adamw.*m\.transformer\.wte'
