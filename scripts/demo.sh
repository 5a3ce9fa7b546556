#!/usr/bin/env bash
# From a clone to a trained model: installs what is missing, builds ferryc, and trains a byte-level GPT-2 on a shipped text
# within a memory budget.
set -eu
cd "$(dirname "$0")/.."
say() { printf '\n== %s\n' "$*"; }

say "packages and build"
scripts/install.sh
cmake -S . -B build -G Ninja -DFERRY_TESTS=OFF >/dev/null
cmake --build build
export PATH="$PWD/build/bin:$PATH" OPENBLAS_NUM_THREADS=1

work=build/demo
mkdir -p "$work/data"
say "the text becomes byte tokens"
cc -O2 -o "$work/bytes_to_tokens" examples/gpt2/bytes_to_tokens.c
"$work/bytes_to_tokens" examples/gpt2/text.txt "$work/data/tokens.bin"

# A GPU when there is one and this build has the backend for it; device memory comes in chunks of 2 MiB there.
device=host budget=10700K
if [ -e /dev/nvidiactl ] && grep -q cuda build/lib/ferry.mk; then
    device=cuda:0 budget=14M
fi

say "profile: GPT-2, batch 8 x 64, each layer measured on $device"
cd "$work"
ferryc profile ../../examples/gpt2/gpt2.onnx --dim batch=8 --dim seq=64 --loss cross_entropy --device $device

say "plan: without a limit, and within a budget of $budget"
ferryc plan -o roomy.yaml
ferryc plan --mem-budget $budget

say "emit and build the schedule"
ferryc emit
ferryc verify
make -C schedule

say "train"
steps=${DEMO_STEPS:-300}
schedule/trainer --device $device --data data --steps "$steps" --lr 3e-3 --log run.jsonl --save checkpoint | awk 'NR % 25 == 1 || /step '"$steps"'\//'

first=$(head -n 1 run.jsonl | sed 's/.*"loss": *\([0-9.]*\).*/\1/')
last=$(tail -n 1 run.jsonl | sed 's/.*"loss": *\([0-9.]*\).*/\1/')
say "done: loss $first -> $last in $steps steps"
echo "look at build/demo/schedule/schedule.c (the schedule), build/demo/plan.yaml (the plan), and try: ferryc explain"
