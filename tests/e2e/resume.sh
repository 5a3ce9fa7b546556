#!/usr/bin/env bash
# Ten steps, a checkpoint and ten more are the same as twenty, to the bit; clipping too, which PyTorch's formula checks.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
quiet ferryc profile "$models/gpt2/dynamo.onnx" --loss cross_entropy --dim batch=4 --dim seq=32 \
    --device "model:$FERRY_SOURCE/tests/data/mixed-device.yaml"
quiet ferryc profile "$models/gpt2/dynamo.onnx" --loss cross_entropy --dim batch=4 --dim seq=32 --freeze '*wpe*' --freeze '*.ln_?.*' \
    --device "model:$FERRY_SOURCE/tests/data/mixed-device.yaml" -o frozen.yaml
for clip in "" "--clip" "frozen.yaml" "--mode *=resident" "--clip --mode *mlp*=resident --mode *attn*=reload"; do
    quiet ferryc plan -o "plan$clip.yaml" $clip
    quiet ferryc emit "plan$clip.yaml" -o "s$clip"
    build_schedule "s$clip"
    args=(--data "$models/gpt2/data")
    [[ $clip = *--clip* ]] && args+=(--clip 0.5)
    quiet "s$clip/trainer" "${args[@]}" --steps 20 --log whole.jsonl --save whole
    quiet "s$clip/trainer" "${args[@]}" --steps 10 --log parts.jsonl --save half
    quiet "s$clip/trainer" "${args[@]}" --steps 20 --log parts.jsonl --resume half --save parts
    same_values whole.jsonl parts.jsonl
    [ "$clip" = "" ] && cp -r whole plain && cp whole.jsonl plain.jsonl
    [ "$clip" = --clip ] && cp -r whole clipped && cp whole.jsonl clipped.jsonl
    cmp whole/checkpoint.safetensors parts/checkpoint.safetensors || fail "checkpoints differ"
    case $clip in # where parameters live changes no bit, of losses or of checkpoints
    *resident*)
        like=plain
        [[ $clip = *--clip* ]] && like=clipped
        same_values $like.jsonl whole.jsonl
        cmp $like/checkpoint.safetensors whole/checkpoint.safetensors || fail "checkpoints of $clip differ"
        ;;
    esac
done
expect 2 'clip' s/trainer --data "$models/gpt2/data" --clip 1
expect 2 'checkpoint' s/trainer --data "$models/gpt2/data" --resume nowhere
head -c 1000 half/checkpoint.safetensors >cut
mkdir broken && mv cut broken/checkpoint.safetensors
expect 4 'checkpoint' s/trainer --data "$models/gpt2/data" --resume broken
