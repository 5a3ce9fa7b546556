#!/usr/bin/env bash
# The same input gives the same bytes, and the schedule compiles without a warning under gcc and clang.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
cp "$models/gpt2/ts.onnx" .
cp "$FERRY_SOURCE/examples/devices/a100-pcie3.yaml" device.yaml
for round in one two; do
    mkdir $round
    cd $round
    quiet ferryc profile ../ts.onnx --loss cross_entropy --dim batch=4 --dim seq=32 --device model:../device.yaml
    quiet ferryc plan --mem-budget 160M
    quiet ferryc emit
    cd ..
done
diff -r one/profile.yaml two/profile.yaml
diff -r one/plan.yaml two/plan.yaml
diff -r one/schedule two/schedule
for cc in gcc clang; do
    for f in schedule trainer; do
        $cc -std=c17 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -I"$FERRY_BUILD/include" -c one/schedule/$f.c -o $f.o ||
            fail "$f.c does not compile with $cc"
    done
done
