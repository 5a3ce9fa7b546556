#!/usr/bin/env bash
# Models from several exports train like PyTorch: 20 AdamW steps, loss and gradient norm, fp32 and fp64.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"

trajectory() { # family, file, loss, dims, tie; - for none
    local family=$1 file=$2 options=()
    [ "$3" = - ] || options+=(--loss "$3")
    for dim in ${4//,/ }; do
        options+=(--dim "$dim")
    done
    [ "$5" = - ] || options+=(--tie "$5")
    for precision in fp32 fp64; do
        local tolerance=2e-5
        [ $precision = fp64 ] && tolerance=1e-6
        mkdir $family-$file-$precision
        cd $family-$file-$precision
        # Plans change no bit of the numbers (plans.sh), so one file of a family is measured and planned in full, and one
        # computes activations again.
        local device="model:$FERRY_SOURCE/tests/data/mixed-device.yaml" plan=(--algorithm memferry)
        [ $file = loss-ts ] && device=host plan=(--mem-budget 64M)
        [ $file = ts ] && plan=(--recompute 2)
        quiet ferryc profile "$models/$family/$file.onnx" --device "$device" "${options[@]}" --precision $precision \
            --warmup 0 --repeats 1
        quiet ferryc plan "${plan[@]}"
        quiet ferryc emit
        quiet make -C schedule CFLAGS="-O0 ${FERRY_SANITIZE_FLAGS:-}" LDFLAGS="${FERRY_SANITIZE_FLAGS:-}"
        quiet schedule/trainer --data "$models/$family/data" --steps 20 --lr 1e-3 --weight-decay 0.01 --log run.jsonl
        echo -n "$family $file $precision: "
        check_log run.jsonl "$models/$family/reference.json" float64 $tolerance
        cd ..
    done
}

while read -r family file loss dims tie; do
    trajectory "$family" "$file" "$loss" "$dims" "$tie" </dev/null
done <<'END'
gpt2    loss-ts  -              batch=4,seq=32  -
gpt2    ts       cross_entropy  batch=4,seq=32  -
gpt2    ts13     cross_entropy  batch=4,seq=32  -
gpt2    dynamo   cross_entropy  batch=4,seq=32  -
bert    loss-ts  -              batch=4,seq=32  -
bert    ts       cross_entropy  batch=4,seq=32  -
bert    dynamo   cross_entropy  batch=4,seq=32  -
bert    dynamo23 cross_entropy  batch=4,seq=32  -
llama   loss-ts  -              batch=4,seq=32  -
llama   ts       cross_entropy  batch=4,seq=32  -
llama   dynamo   cross_entropy  batch=4,seq=32  -
resnet  loss-ts  -              batch=4         -
resnet  ts       cross_entropy  batch=4         -
resnet  dynamo   cross_entropy  batch=4         -
vit     loss-ts  -              batch=4         -
vit     ts       cross_entropy  batch=4         -
vit     dynamo   cross_entropy  batch=4         -
END
