#!/usr/bin/env bash
# Wrong input: the documented exit code and a message that names the file, the place and the remedy.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
gpt2="$models/gpt2/loss-ts.onnx"
dims=(--dim batch=4 --dim seq=32)
device="model:$FERRY_SOURCE/tests/data/mixed-device.yaml"

expect 2 'not a command' ferryc frobnicate
expect 2 'nowhere.onnx' ferryc profile nowhere.onnx
echo "this is no model" >text.onnx
expect 4 'text.onnx' ferryc profile text.onnx
head -c 100000 "$gpt2" >cut.onnx
expect 4 'cut.onnx' ferryc profile cut.onnx "${dims[@]}"
: >empty.onnx
expect 4 'empty.onnx' ferryc profile empty.onnx
mkdir folder.onnx
expect 4 'folder.onnx' ferryc profile folder.onnx
expect 2 'seq.*--dim|--dim.*seq' ferryc profile "$gpt2" --dim batch=4
expect 2 'nothing' ferryc profile "$gpt2" "${dims[@]}" --dim nothing=3
expect 4 'unsupported_op\.onnx.*Frobnicate|Frobnicate.*unsupported_op\.onnx' ferryc profile "$FERRY_SOURCE/tests/data/onnx/unsupported_op.onnx"
expect 2 'cuda|device' ferryc profile "$gpt2" "${dims[@]}" --device gpu7
expect 1 'cuda|CUDA|GPU' ferryc profile "$gpt2" "${dims[@]}" --device cuda:0
expect 2 'loss' ferryc profile "$models/gpt2/ts.onnx" "${dims[@]}"
expect 2 'mse|cross_entropy' ferryc profile "$models/gpt2/ts.onnx" "${dims[@]}" --loss perplexity
expect 2 'no_such' ferryc profile "$gpt2" "${dims[@]}" --freeze 'no_such*'

# missing external data: shapes are enough to profile and plan, weights are not there to emit
expect 0 '' ferryc profile "$models/full/gpt2-ts.onnx" --loss cross_entropy --dim batch=1 --dim seq=8 --device "$device" -o full.yaml
expect 0 '' ferryc plan full.yaml -o full-plan.yaml --algorithm native-offload
expect 4 'weights.data.*random-init|random-init' ferryc emit full-plan.yaml -o full

expect 0 '' ferryc profile "$gpt2" "${dims[@]}" --device "$device"
expect 2 "64.*unit|unit|64M" ferryc plan --mem-budget 64
expect 2 'mode' ferryc plan --mode '*=fast'
expect 2 'zzz' ferryc plan --mode 'zzz*=dha'
expect 2 'optimal|algorithm' ferryc plan --algorithm magic
expect 3 'least' ferryc plan --mem-budget 64K
[ ! -e plan.yaml ] || fail "a plan was written although none fits"
expect 3 'host' ferryc plan --host-budget 1K # with everything on the GPU only inputs and results are left
expect 0 '' ferryc plan
expect 0 '' ferryc emit

# output that is not ours
cp plan.yaml own.yaml
echo "mine" >plan.yaml
expect 2 'plan.yaml.*-f|-f' ferryc plan
grep -qx mine plan.yaml || fail "a foreign plan.yaml was overwritten"
expect 0 '' ferryc plan -f
cmp plan.yaml own.yaml
echo "/* mine */" >schedule/schedule.c
cp -r schedule before
expect 2 'schedule.c' ferryc emit
diff -r schedule before || fail "emit changed files although one was not ours"
expect 0 '' ferryc emit -f
echo "/* my change */" >>schedule/trainer.c
cp schedule/trainer.c mine.c
expect 0 'trainer.c' ferryc emit
cmp schedule/trainer.c mine.c || fail "an edited trainer.c was overwritten"

# plans and profiles that do not belong together, or were edited
expect 0 '' ferryc profile "$gpt2" --dim batch=2 --dim seq=32 --device "$device" -f
expect 4 'profile' ferryc emit -o again
[ ! -e again ] || fail "emit made a folder for a plan of another profile"
expect 0 '' ferryc profile "$gpt2" "${dims[@]}" --device "$device" -f
expect 0 '' ferryc verify
awk '/reserved_bytes/ {print; next} {gsub(/\[\[[0-9]+, /, "[[0, "); print}' plan.yaml >overlap.yaml
cmp -s plan.yaml overlap.yaml && fail "the layout was not edited"
expect 1 'share' ferryc verify overlap.yaml
expect 1 'share' ferryc emit overlap.yaml -o overlap
[ ! -e overlap ] || fail "an unproved schedule was written"
sed 's/^schema: .*/schema: ferryc\/plan\/9/' plan.yaml >schema.yaml
expect 4 'schema.yaml:[0-9]+' ferryc verify schema.yaml
echo 'surprise: 1' >>schema.yaml
sed 's/^algorithm: .*/&\nsurprise: 1/' plan.yaml >unknown.yaml
expect 4 'unknown.yaml:[0-9]+.*surprise' ferryc verify unknown.yaml
expect 2 'missing.yaml' ferryc verify missing.yaml

# data
build_schedule schedule
mkdir data
cp "$models/gpt2/data/"*.npy data
expect 2 'data' schedule/trainer
expect 2 'nodata' schedule/trainer --data nodata
tail -c +129 data/input_ids.npy >ids
head -c 128 data/input_ids.npy >data/broken.npy
printf '\377\377\000\000\000\000\000\000' >>data/broken.npy
tail -c +9 ids >>data/broken.npy
mv data/broken.npy data/input_ids.npy
expect 4 '65535.*(512|table)|token|id' schedule/trainer --data data --steps 1
head -c 200 "$models/gpt2/data/labels.npy" >data/labels.npy
expect 4 'labels.npy' schedule/trainer --data data --steps 1
expect 2 'steps' schedule/trainer --data data --steps none
