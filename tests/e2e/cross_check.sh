#!/usr/bin/env bash
# The solver's own branch and bound beside every algorithm, the plan and its bound, on the shipped models.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
closed=0
for model in gpt2 llama resnet; do
    dims=(--dim batch=4)
    [ $model = resnet ] || dims+=(--dim seq=32)
    quiet ferryc profile "$models/$model/loss-ts.onnx" "${dims[@]}" --device "model:$FERRY_SOURCE/tests/data/mixed-device.yaml" -f
    expect 0 '' ferryc plan --dry-run --algorithm optimal --cross-check
    cp stdout.txt $model.txt
    for line in native-offload dha deepspeed-like memferry go-memferry optimal 'this plan' 'proven bound' milp; do
        grep -q "^$line" $model.txt || fail "$model: no line for $line: $(cat $model.txt)"
    done
    milp=$(sed -n 's/^milp *\([0-9]*\) ns .*/\1/p' $model.txt)
    bound=$(sed -n 's/^proven bound *\([0-9]*\) ns .*/\1/p' $model.txt)
    memferry=$(sed -n 's/^memferry *\([0-9]*\) ns .*/\1/p' $model.txt)
    echo "$model: bound $bound ns, memferry $memferry ns, $(grep '^milp' $model.txt)"
    if [ -n "$milp" ]; then
        closed=$((closed + 1))
        [ "$milp" -ge "$bound" ] && [ "$milp" -le "$memferry" ] || fail "$model: the solver has $milp ns"
    fi
done
[ $closed -ge 1 ] || fail "the solver came to no end on any model"
