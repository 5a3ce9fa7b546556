#!/usr/bin/env bash
# ferryc run: the forward pass alone. The loss of GPT-2 on the first batch is PyTorch's, and wrong inputs are named.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
gpt2="$models/gpt2/loss-ts.onnx"

# first_batch NAME: the first of the 20 batches [4, 32] of i64 in a file of its own
first_batch() {
    local text="{'descr': '<i8', 'fortran_order': False, 'shape': (4, 32), }"
    { printf '\223NUMPY\001\000\166\000%-117s\n' "$text" && tail -c +129 "$models/gpt2/data/$1.npy" | head -c 1024; } >"$1.npy"
}
first_batch input_ids
first_batch labels
inputs=(--input input_ids=input_ids.npy --input labels=labels.npy)

reference=$(awk '/"float64"/ {found = 1} found && /loss/ {getline; gsub(/[ ,]/, ""); print; exit}' "$models/gpt2/reference.json")
for precision in fp32 fp64; do
    quiet ferryc run "$gpt2" "${inputs[@]}" --precision $precision -o out-$precision
    loss=$(ls out-$precision | head -n 1)
    got=$(od -A n -t f4 -j 128 -N 4 "out-$precision/$loss")
    awk -v got="$got" -v want="$reference" 'BEGIN {exit !(got / want < 1 + 2e-6 && got / want > 1 - 2e-6)}' ||
        fail "$precision: the loss is $got, PyTorch has $reference"
done

# logits in the model's type and shape
quiet ferryc run "$models/gpt2/ts.onnx" --input input_ids=input_ids.npy -o logits
grep -q 'f32 \[4, 32, 512\]' quiet.txt || fail "no logits [4, 32, 512]"
quiet ferryc run "$models/gpt2/ts.onnx" --input input_ids=input_ids.npy --dim batch=4 --dim seq=32 -o logits

expect 2 'labels.*missing' ferryc run "$gpt2" --input input_ids=input_ids.npy
expect 2 'nothing' ferryc run "$gpt2" "${inputs[@]}" --input nothing=labels.npy
expect 2 'twice' ferryc run "$gpt2" "${inputs[@]}" --input labels=labels.npy
expect 2 'gone.npy' ferryc run "$gpt2" --input input_ids=gone.npy --input labels=labels.npy
expect 2 'which model' ferryc run "${inputs[@]}"
expect 2 'training' ferryc run "$gpt2" "${inputs[@]}" --loss mse
expect 2 'NAME=FILE' ferryc run "$gpt2" --input labels
expect 2 'nowhere' ferryc run "$gpt2" "${inputs[@]}" --dim nowhere=3
expect 4 'seq.*32' ferryc run "$gpt2" "${inputs[@]}" --dim seq=16
echo text >text.npy
expect 4 'text.npy' ferryc run "$gpt2" --input input_ids=text.npy --input labels=labels.npy
expect 4 "input_ids.*\[\]" ferryc run "$gpt2" --input input_ids="out-fp32/$loss" --input labels=labels.npy
{ printf '\223NUMPY\001\000\166\000%-117s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 32), }" && head -c 512 /dev/zero; } >real.npy
expect 4 "labels.*f32" ferryc run "$gpt2" --input input_ids=input_ids.npy --input labels=real.npy
printf '\377\377' >wrong && { head -c 128 input_ids.npy && cat wrong && tail -c +131 input_ids.npy; } >wrong.npy
expect 4 '65535' ferryc run "$gpt2" --input input_ids=wrong.npy --input labels=labels.npy
[ ! -e outputs ] || fail "a run that failed made a folder"
