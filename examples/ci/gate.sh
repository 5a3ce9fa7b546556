#!/usr/bin/env bash
# Plans the model for a described GPU and compares with the committed baseline: exit 5 when the plan got slower, larger or
# changed beyond the tolerance. No GPU is needed, and the same input gives the same plan on every machine.
#
#     gate.sh             check; the report is left in plan/ whether it passes or not
#     gate.sh --accept    the new plan becomes the baseline; commit it with the change that caused it
set -eu
cd "$(dirname "$0")"
model=../gpt2/gpt2.onnx
device=../devices/a100-pcie3.yaml
mkdir -p plan
ferryc profile "$model" --dim batch=8 --dim seq=64 --loss cross_entropy --device "model:$device" -o plan/profile.yaml
ferryc plan plan/profile.yaml -o plan/plan.yaml --mem-budget 160M
if [ "${1:-}" = --accept ]; then
    cp plan/plan.yaml baseline.yaml
    exit
fi
ferryc report plan/plan.yaml -o plan/report.html
ferryc check plan/plan.yaml --baseline baseline.yaml --tolerance time=1%,peak=1%,modes=2
