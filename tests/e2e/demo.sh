#!/usr/bin/env bash
# What the demo and the own trainer promise, in short: byte-level GPT-2 on the shipped text learns.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
cc -O2 -Wall -Wextra -Werror -o bytes_to_tokens "$FERRY_SOURCE/examples/gpt2/bytes_to_tokens.c"
mkdir data
./bytes_to_tokens "$FERRY_SOURCE/examples/gpt2/text.txt" data/tokens.bin
quiet ferryc profile "$FERRY_SOURCE/examples/gpt2/gpt2.onnx" --dim batch=8 --dim seq=64 --loss cross_entropy --warmup 1 --repeats 1
quiet ferryc plan --mem-budget 10700K
quiet ferryc emit
build_schedule schedule
quiet schedule/trainer --data data --steps 60 --lr 3e-3 --log run.jsonl
first=$(head -n 1 run.jsonl | sed 's/.*"loss": *\([0-9.]*\).*/\1/')
last=$(tail -n 1 run.jsonl | sed 's/.*"loss": *\([0-9.]*\).*/\1/')
awk "BEGIN {exit !($first > 5.5 && $last < 3.2)}" || fail "loss $first -> $last"
cc -std=c17 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror ${FERRY_SANITIZE_FLAGS:-} -Ischedule -I"$FERRY_BUILD/include" -o own_trainer \
    "$FERRY_SOURCE/examples/trainer/own_trainer.c" schedule/schedule.c "$FERRY_BUILD/lib/libferry.a" \
    $(sed -n "s/^FERRY_LIBS = //p" "$FERRY_BUILD/lib/ferry.mk")
./own_trainer schedule 60 >own.txt
awk '/step 10 / {first = $4} {last = $4} END {exit !(last < first / 2)}' own.txt || fail "own trainer: $(cat own.txt)"
echo "loss $first -> $last; own trainer: $(tail -n 1 own.txt)"
