#!/usr/bin/env bash
# A measured device saved as numbers: another model is planned with it where the device is not.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
gpt2=(--dim batch=4 --dim seq=32)

quiet ferryc profile "$models/gpt2/loss-ts.onnx" "${gpt2[@]}" --warmup 0 --repeats 3 --save-device here.yaml
quiet ferryc plan -o measured.yaml
quiet ferryc profile "$models/gpt2/loss-ts.onnx" "${gpt2[@]}" --device model:here.yaml -o modelled.yaml
quiet ferryc plan modelled.yaml -o plan.yaml
quiet ferryc verify plan.yaml
# the machine's facts travel with the numbers
for key in memory_bytes host_memory_bytes chunk_bytes; do
    diff <(grep -m1 " $key" profile.yaml) <(grep -m1 " $key" modelled.yaml) || fail "$key"
done
quiet ferryc profile "$models/resnet/loss-ts.onnx" --dim batch=4 --device model:here.yaml -o resnet.yaml
quiet ferryc plan resnet.yaml -o resnet-plan.yaml

# measured in one precision
expect 2 'here\.yaml.*f64' ferryc profile "$models/gpt2/loss-ts.onnx" "${gpt2[@]}" --precision fp64 --device model:here.yaml -o no.yaml
# numbers are not measured, and a file of someone else's is kept
expect 2 'already a device described by numbers' ferryc profile "$models/gpt2/loss-ts.onnx" "${gpt2[@]}" --device model:here.yaml \
    --save-device again.yaml -o no.yaml
echo mine >other.yaml
expect 2 'other\.yaml: exists' ferryc profile "$models/gpt2/loss-ts.onnx" "${gpt2[@]}" --repeats 1 \
    --save-device other.yaml -o no.yaml
[ "$(cat other.yaml)" = mine ] || fail "overwritten"
[ ! -e no.yaml ] && [ ! -e again.yaml ] || fail "written in spite of an error"
