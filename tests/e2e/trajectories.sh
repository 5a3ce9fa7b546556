#!/usr/bin/env bash
# GPT-2 from four exports trains like PyTorch: 20 AdamW steps, loss and gradient norm, fp32 and fp64.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
for model in loss-ts ts ts13 dynamo; do
    loss=(--loss cross_entropy)
    [ $model = loss-ts ] && loss=()
    for precision in fp32 fp64; do
        mkdir $model-$precision
        cd $model-$precision
        quiet ferryc profile "$models/gpt2/$model.onnx" --dim batch=4 --dim seq=32 --device host "${loss[@]}" \
            --precision $precision --warmup 1 --repeats 1
        quiet ferryc plan --mem-budget 64M
        quiet ferryc emit
        build_schedule schedule
        quiet schedule/trainer --data "$models/gpt2/data" --steps 20 --lr 1e-3 --weight-decay 0.01 --log run.jsonl
        tolerance=2e-5
        [ $precision = fp64 ] && tolerance=1e-6
        echo -n "$model $precision: "
        check_log run.jsonl "$models/gpt2/reference.json" float64 $tolerance
        cd ..
    done
done
