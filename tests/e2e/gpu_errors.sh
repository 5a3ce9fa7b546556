#!/usr/bin/env bash
# A GPU that is not there, is too small or gets wrong data: exit 1 (4 for data) and a message that names it; never the host
# instead. What needs a GPU is left out where there is none.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
gpt2="$models/gpt2/loss-ts.onnx"
sed 's/^chunk_bytes:.*/chunk_bytes: 2097152/' "$FERRY_SOURCE/tests/data/mixed-device.yaml" >device.yaml
quiet ferryc profile "$gpt2" --dim batch=4 --dim seq=32 --device model:device.yaml
quiet ferryc plan
quiet ferryc emit
build_schedule schedule
train=(schedule/trainer --data "$models/gpt2/data" --steps 2)
expect 2 "unknown device 'gpu0'" "${train[@]}" --device gpu0
expect 2 "unknown device 'cuda'" "${train[@]}" --device cuda
expect 1 "device 'cuda:99'" "${train[@]}" --device cuda:99
expect 1 "cuda:99" ferryc profile "$gpt2" --dim batch=4 --dim seq=32 --device cuda:99 -o none.yaml
[ ! -e none.yaml ] || fail "a profile of no GPU"
grep -q 'step 1' stdout.txt && fail "it trained"
if ! "${train[@]}" --device cuda:0 >stdout.txt 2>stderr.txt; then
    grep -Eq "device 'cuda:0'.*(no NVIDIA driver|no such GPU|has no CUDA backend|cuBLAS)" stderr.txt || fail "$(cat stderr.txt)"
    echo "the rest skipped: $(cat stderr.txt)"
    exit 0
fi

# ids that no row has
mkdir data
cp "$models/gpt2/data/"*.npy data
{
    head -c 128 data/input_ids.npy
    printf '\377\377\000\000\000\000\000\000'
    tail -c +137 data/input_ids.npy
} >wrong.npy
mv wrong.npy data/input_ids.npy
expect 4 'embedding: id 65535 at position 0 is out of range' schedule/trainer --data data --steps 2 --device cuda:0

# more memory than the GPU has: everything is given back, and the next run works
sed 's/^memory_bytes:.*/memory_bytes: 9000000000000/; s/^host_memory_bytes:.*/host_memory_bytes: 9000000000000/' \
    "$FERRY_SOURCE/examples/devices/h200-pcie5.yaml" >large.yaml
quiet ferryc profile "$gpt2" --dim batch=2000000 --dim seq=32 --device model:large.yaml -f -o huge.yaml
quiet ferryc plan huge.yaml -o huge-plan.yaml --algorithm native-offload
quiet ferryc emit huge-plan.yaml -o huge
build_schedule huge
expect 1 "pool of [0-9]+ bytes does not fit" huge/trainer --data "$models/gpt2/data" --steps 2 --device cuda:0
expect 0 '' "${train[@]}" --device cuda:0

# more pinned memory than the machine has: 65 G parameters, read in place, with their gradients and the optimizer's state
gpt2_stack 1 16384 16 4000000 32 pinned.onnx >/dev/null
quiet ferryc profile pinned.onnx --dim batch=1 --loss cross_entropy --device model:large.yaml -f -o pinned.yaml
quiet ferryc plan pinned.yaml -o pinned-plan.yaml --algorithm dha
quiet ferryc emit pinned-plan.yaml -o pinned --random-init 1
build_schedule pinned
mkdir tokens
{
    printf '\210\330\064\001\001\000\000\000\000\020\000\000' # the format's number, version 1, 4096 tokens
    head -c 9204 /dev/zero
} >tokens/tokens.bin
expect 1 'no memory: pinned memory of [0-9]+ bytes' pinned/trainer --data tokens --steps 1 --device cuda:0
expect 0 '' "${train[@]}" --device cuda:0
