#!/usr/bin/env bash
# Batch normalization in training mode: losses, gradient norms and running statistics are those of PyTorch (the variance that of
# the population, as ONNX says), whatever the plan; a resumed run is the whole one to the bit; the exported file goes on from there.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
family="$models/batchnorm"
mixed="model:$FERRY_SOURCE/tests/data/mixed-device.yaml"

# train NAME PROFILE PLAN-OPTIONS...: 20 steps, to NAME.jsonl and NAME.done
train() {
    local name=$1 profile=$2
    shift 2
    quiet ferryc plan $profile -o $name.yaml "$@"
    quiet ferryc verify $name.yaml
    quiet ferryc emit $name.yaml -o $name
    build_schedule $name
    quiet $name/trainer --data "$family/data" --steps 20 --lr 1e-3 --weight-decay 0.01 --log $name.jsonl --save $name.done
}

# checked NAME TOLERANCE: by PyTorch in float64
checked() {
    check_log $1.jsonl "$family/reference.json" float64 $2
    check_weights $1.done/checkpoint.safetensors "$family/reference.json" float64 $2
}

for precision in fp32 fp64; do
    tolerance=2e-5
    [ $precision = fp64 ] && tolerance=1e-8
    for file in ts ts13 ts7; do # training_mode; before opset 14 five outputs
        quiet ferryc profile "$family/$file.onnx" -o $file.profile.yaml --dim batch=8 --loss cross_entropy --device "$mixed" \
            --precision $precision
        train $file-$precision $file.profile.yaml --algorithm memferry --recompute $([ $file = ts13 ] && echo 1 || echo none)
        checked $file-$precision $tolerance
    done
    quiet ferryc profile "$family/ts.onnx" -o host-$precision.profile.yaml --dim batch=8 --loss cross_entropy --device host \
        --precision $precision --warmup 0 --repeats 1
done

for algorithm in native-offload dha deepspeed-like auto; do
    train $algorithm host-fp32.profile.yaml --algorithm $algorithm
    same_values ts-fp32.jsonl $algorithm.jsonl
    cmp ts-fp32.done/checkpoint.safetensors $algorithm.done/checkpoint.safetensors || fail "$algorithm: checkpoints differ"
done
ferryc explain auto.yaml >explain.txt
ferryc inspect "$family/ts.onnx" --dim batch=8 --loss cross_entropy >inspect.txt
grep -q '6 running statistics' inspect.txt || fail "inspect does not count the running statistics: $(tail -n 1 inspect.txt)"

args=(--data "$family/data" --lr 1e-3 --weight-decay 0.01)
quiet ts-fp32/trainer "${args[@]}" --steps 10 --log parts.jsonl --save half
quiet ts-fp32/trainer "${args[@]}" --steps 20 --log parts.jsonl --resume half --save parts
same_values ts-fp32.jsonl parts.jsonl
cmp ts-fp32.done/checkpoint.safetensors parts/checkpoint.safetensors || fail "a resumed run ends elsewhere"
cmp -s ts-fp32.done/checkpoint.safetensors half/checkpoint.safetensors && fail "ten steps change nothing"

# What starts from the exported file has the statistics of the end.
quiet ferryc export ts-fp32 --weights ts-fp32.done -o trained.onnx
quiet ferryc profile trained.onnx -o trained.profile.yaml --dim batch=8 --loss cross_entropy --device "$mixed"
quiet ferryc plan trained.profile.yaml -o trained.yaml --algorithm memferry
quiet ferryc emit trained.yaml -o trained
check_weights trained/weights.safetensors "$family/reference.json" float64 2e-5
expect 4 'unsupported in bf16' ferryc inspect "$family/ts.onnx" --dim batch=8 --loss cross_entropy --precision bf16
expect 2 '[-][-]tie' ferryc inspect "$family/ts.onnx" --dim batch=8 --loss cross_entropy --tie norm1.running_mean=norm1.bias

# The statistics start at mean 0 and variance 1 when the weights are drawn.
quiet ferryc emit trained.yaml -o random --random-init 1
grep -q 'running.norm1_running_var, T, 6.*1.0, 0.0' random/schedule.c || fail "the variance does not start at 1"
build_schedule random
quiet random/trainer "${args[@]}" --steps 3
