#!/usr/bin/env bash
# bf16 with f32 masters: losses and gradients beside those of f32, the same bits in every plan and after a resume, frozen
# parameters, random weights, clipping, export, reports.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
device="model:$FERRY_SOURCE/tests/data/mixed-device.yaml"

make_schedule() { # name, profile, plan options...
    local name=$1 profile=$2
    shift 2
    quiet ferryc plan "$profile" -o $name.yaml "$@"
    quiet ferryc verify $name.yaml
    quiet ferryc emit $name.yaml -o $name
    build_schedule $name
}

near() { # family, tolerance of the gradients, dimensions: 20 steps near PyTorch's in f64, the first step's gradients near those in f32
    local family=$1 tolerance=$2
    shift 2
    for precision in fp32 bf16; do
        quiet ferryc profile "$models/$family/loss-ts.onnx" "$@" --device "$device" --precision $precision -o $family-$precision.profile
        make_schedule $family-$precision $family-$precision.profile --algorithm memferry
        quiet $family-$precision/trainer --data "$models/$family/data" --steps 1 --save $family-$precision.save
    done
    quiet $family-bf16/trainer --data "$models/$family/data" --steps 20 --lr 1e-3 --weight-decay 0.01 --log $family.jsonl
    echo -n "$family: "
    check_log $family.jsonl "$models/$family/reference.json" float64 2e-2
    echo -n "$family: "
    check_moments $family-bf16.save/checkpoint.safetensors $family-fp32.save/checkpoint.safetensors $tolerance
}
near gpt2 2e-2 --dim batch=4 --dim seq=32
near llama 2e-2 --dim batch=4 --dim seq=32
near resnet 2e-1 --dim batch=4 # rounded numbers tie in the pooling, and ReLU cuts others

# Every plan, the same bits; DHA and loads, gradients on both sides.
for plan in "native --algorithm native-offload" "dha --algorithm dha" "go0 --algorithm go-memferry --reserve-factor 0" \
    "deepspeed --algorithm deepspeed-like" "hand --algorithm memferry --mode *attn*=dfgb --mode *mlp*=dha --mode *ln_1*=gfgb"; do
    set -f
    set -- $plan
    set +f
    name=$1
    shift
    make_schedule $name gpt2-bf16.profile "$@"
    quiet $name/trainer --data "$models/gpt2/data" --steps 20 --lr 1e-3 --weight-decay 0.01 --log $name.jsonl
    same_values gpt2.jsonl $name.jsonl
done
grep -q 'ferry_adamw_bf16(s->update, s->host' hand/schedule.c || fail "no update of an f32 master"
grep -q 's->rounded' hand/schedule.c || fail "no copies in bf16"

# A resumed run, clipped, with frozen parameters, which have one buffer, in bf16.
quiet ferryc profile "$models/gpt2/loss-ts.onnx" --dim batch=4 --dim seq=32 --device "$device" --precision bf16 --freeze '*wpe*' \
    --freeze '*.ln_?.*' -o frozen.profile
make_schedule frozen frozen.profile --clip
args=(--data "$models/gpt2/data" --clip 0.5)
quiet frozen/trainer "${args[@]}" --steps 20 --log whole.jsonl --save whole
quiet frozen/trainer "${args[@]}" --steps 10 --log parts.jsonl --save half
quiet frozen/trainer "${args[@]}" --steps 20 --log parts.jsonl --resume half --save parts
same_values whole.jsonl parts.jsonl
cmp whole/checkpoint.safetensors parts/checkpoint.safetensors || fail "checkpoints differ"
quiet ferryc export frozen --weights whole -o trained.onnx
quiet ferryc explain frozen.yaml
quiet ferryc report frozen.yaml
grep -q bf16 report.html || fail "the report does not say bf16"

# Measured on the host, drawn at random; a host budget counts masters and copies.
quiet ferryc profile "$models/gpt2/loss-ts.onnx" --dim batch=4 --dim seq=32 --device host --precision bf16 --warmup 0 --repeats 1 \
    -o host.profile
quiet ferryc plan host.profile -o drawn.yaml
quiet ferryc emit drawn.yaml -o drawn --random-init 1
build_schedule drawn
quiet drawn/trainer --data "$models/gpt2/data" --steps 2
expect 2 'for training' ferryc run "$models/gpt2/loss-ts.onnx" --precision bf16
