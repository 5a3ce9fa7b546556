#!/usr/bin/env bash
# All that needs a GPU: the cost table of virtual memory calls, the allocator's check, the memory of every workload under three
# allocators with traces of the first, and the throughput of some. Under 4 minutes on an H200.
#   bench/stitch/gpu.sh OUT [LIBRARY [COSTS]]     LIBRARY: libferry_torch.so, COSTS: bench_stitch_costs; default: build/
#   FERRY_PARTS="costs check memory speed" chooses parts.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$1
export FERRY_TORCH_LIBRARY=${2:-$here/../../build/lib/libferry_torch.so}
costs=${3:-$here/../../build/bin/bench_stitch_costs}
parts=" ${FERRY_PARTS:-costs check memory speed} "
mkdir -p "$out"
failed=0
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader >"$out/device.txt"
if [[ $parts == *" costs "* ]]; then
    "$costs" >"$out/costs.md" || failed=1
fi
if [[ $parts == *" check "* ]]; then
    timeout 60 python3 "$here/check.py" >"$out/check.txt" 2>&1 || failed=1
    tail -3 "$out/check.txt"
fi
if [[ $parts == *" memory "* ]]; then
    all="opt-1.3b:LR gpt2-medium: llama-1.1b:LR opt-1.3b:R opt-1.3b:LRO gpt2:L llama-1.1b:RA opt-1.3b:RO"
    timeout 130 python3 "$here/measure.py" "$out/memory" --parallel 4 --trace --seconds 90 $all || failed=1
fi
if [[ $parts == *" speed "* ]]; then
    # one after the other, and in turns: a machine that others share changes its pace
    for w in opt-1.3b:LR gpt2-medium: llama-1.1b:LR opt-1.3b:R; do
        timeout 60 python3 "$here/measure.py" "$out/speed" --steps 12 --passes 4 --seconds 45 "$w" || failed=1
    done
fi
exit $failed
