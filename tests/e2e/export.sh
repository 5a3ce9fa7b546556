#!/usr/bin/env bash
# Trained weights go back into the ONNX file: the exported model starts where the training stopped.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
mixed="model:$FERRY_SOURCE/tests/data/mixed-device.yaml"

# schedule_of MODEL DIR OPTIONS...
schedule_of() {
    local model=$1 dir=$2
    shift 2
    quiet ferryc profile "$model" -o $dir.profile.yaml --device "$mixed" "$@"
    quiet ferryc plan $dir.profile.yaml -o $dir.plan.yaml --algorithm memferry
    quiet ferryc emit $dir.plan.yaml -o $dir
    build_schedule $dir
}

loss_at() { # STEP LOG
    sed -n "s/.*\"step\": *$1, *\"loss\": *\([^,]*\),.*/\1/p" "$2"
}

# A shell's view of a file's last entry: an export ends with 51 bytes that say whose it is.
same_but_mark() {
    cmp -n "$(stat -c %s "$1")" "$1" "$2" || fail "$2 is not $1 with a mark at its end"
    [ "$(stat -c %s "$2")" -eq $(($(stat -c %s "$1") + 51)) ] || fail "$2 has another size than $1 with a mark"
}

# round NAME FAMILY PRECISION TOLERANCE OPTIONS...: there are 20 batches, so step 21 meets the batch of step 1 again. The exported
# model's first loss is the resumed run's 21st: to the bit in fp32, whose values the file holds as they are; in fp64 the
# file's fp32 rounds them.
round() {
    local name=$1 family=$2 precision=$3 tolerance=$4 dir=$2-$1-$3 resumed first
    local model="$models/$family/$name.onnx" data="$models/$family/data"
    shift 4
    echo -n "$dir: "
    schedule_of "$model" $dir --precision $precision "$@"
    if [ $precision = fp32 ]; then
        quiet ferryc export $dir --weights $dir/weights.safetensors -o $dir.same.onnx
        same_but_mark "$model" $dir.same.onnx
    fi
    quiet $dir/trainer --data "$data" --steps 20 --save $dir.done
    quiet $dir/trainer --data "$data" --steps 21 --resume $dir.done --log $dir.resumed.jsonl
    quiet ferryc export $dir --weights $dir.done -o $dir.onnx
    schedule_of $dir.onnx $dir.again --precision $precision "$@"
    quiet $dir.again/trainer --data "$data" --steps 1 --log $dir.again.jsonl
    resumed=$(loss_at 21 $dir.resumed.jsonl)
    first=$(loss_at 1 $dir.again.jsonl)
    echo "resumed $resumed, exported $first"
    [ -n "$first" ] || fail "no loss"
    awk "BEGIN {d = $resumed - $first; exit !((d < 0 ? -d : d) <= $tolerance * $resumed)}" || fail "$dir: losses differ"
}

tokens=(--dim batch=4 --dim seq=32)
round loss-ts gpt2 fp32 0 "${tokens[@]}"
round loss-ts gpt2 fp64 1e-6 "${tokens[@]}"
round ts gpt2 fp32 0 "${tokens[@]}" --loss cross_entropy # the head is the transpose of the embedding
round dynamo gpt2 fp32 0 "${tokens[@]}" --loss cross_entropy
round ts bert fp32 0 "${tokens[@]}" --loss cross_entropy
round dynamo23 bert fp32 0 "${tokens[@]}" --loss cross_entropy
round dynamo llama fp32 0 "${tokens[@]}" --loss cross_entropy # rotary frequencies are no parameters
round ts resnet fp32 0 --dim batch=4 --loss cross_entropy
round dynamo resnet fp32 0 --dim batch=4 --loss cross_entropy
round dynamo vit fp32 0 --dim batch=4 --loss cross_entropy
round ts vit fp32 0 --dim batch=4 --loss cross_entropy
round ts batchnorm fp32 0 --dim batch=8 --loss cross_entropy # running statistics come along
round ts13 batchnorm fp64 1e-6 --dim batch=8 --loss cross_entropy
round if branches fp32 0 --dim batch=5 --loss cross_entropy # a parameter of a branch

# The same weights in a file beside the model; what ferryc export wrote it may overwrite, nothing else.
done=gpt2-ts-fp32.done
quiet ferryc export gpt2-ts-fp32 --weights $done -o far.onnx --external
[ "$(stat -c %s far.onnx)" -lt 200000 ] || fail "the weights are still in far.onnx"
schedule_of far.onnx far "${tokens[@]}" --loss cross_entropy
quiet far/trainer --data "$models/gpt2/data" --steps 1 --log far.jsonl
[ "$(loss_at 1 far.jsonl)" = "$(loss_at 1 gpt2-ts-fp32.again.jsonl)" ] || fail "external weights train otherwise"
quiet ferryc export far --weights $done -o near.onnx
quiet ferryc export gpt2-ts-fp32 --weights $done -o here.onnx
[ "$(stat -c %s near.onnx)" -ge 400000 ] || fail "external weights did not come along"
schedule_of near.onnx near "${tokens[@]}" --loss cross_entropy
for name in near far; do # the header has the model's hash
    sed 's/"model":"[0-9a-f]*"//' $name/weights.safetensors >$name.weights
done
cmp near.weights far.weights || fail "near.onnx has other weights"
quiet ferryc export gpt2-ts-fp32 --weights $done -o here.onnx
printf x >>here.onnx
expect 2 'here.onnx.*not written by ferryc' ferryc export gpt2-ts-fp32 --weights $done -o here.onnx
expect 0 '' ferryc export gpt2-ts-fp32 --weights $done -o here.onnx -f
expect 2 'far.onnx.data.*belongs' ferryc export far --weights $done -o far.onnx.data -f

# What does not belong together.
expect 2 'which weights' ferryc export gpt2-ts-fp32
expect 2 'nowhere' ferryc export nowhere --weights $done
expect 2 'nowhere' ferryc export gpt2-ts-fp32 --weights nowhere
expect 4 'another model' ferryc export gpt2-dynamo-fp32 --weights $done -o wrong.onnx
cp "$models/gpt2/ts.onnx" mine.onnx
quiet ferryc emit gpt2-ts-fp32.plan.yaml -o moved
sed "s|^  path:.*|  path: \"../mine.onnx\"|" gpt2-ts-fp32/schedule.yaml >moved/schedule.yaml
expect 2 'mine.onnx.*belongs' ferryc export moved --weights $done -o mine.onnx -f
expect 0 '' ferryc export moved --weights $done -o ok.onnx
printf '\322\001\001x' >>mine.onnx # an unknown field: another file, and the same model
expect 4 'mine.onnx.*hash' ferryc export moved --weights $done -o wrong.onnx
expect 0 '' ferryc export moved --weights $done -o kept.onnx --force
mv mine.onnx away.onnx
expect 2 'mine.onnx.*--model|--model' ferryc export moved --weights $done -o wrong.onnx
expect 0 '' ferryc export moved --weights $done -o wherever.onnx --force --model away.onnx
sed 's/^tool:.*/&\nsurprise: 1/' gpt2-ts-fp32/schedule.yaml >moved/schedule.yaml
expect 4 'schedule.yaml:[0-9]+.*surprise' ferryc export moved --weights $done -o wrong.onnx
head -c 5000 $done/checkpoint.safetensors >cut.safetensors
expect 4 'cut.safetensors' ferryc export gpt2-ts-fp32 --weights cut.safetensors -o wrong.onnx
[ ! -e wrong.onnx ] || fail "something was written in spite of an error"
