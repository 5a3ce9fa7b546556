#!/usr/bin/env bash
# The stitching allocator under PyTorch on a GPU (bench/stitch/check.py). FERRY_PYTHON: a Python with PyTorch.
set -eu
python=${FERRY_PYTHON:-python3}
nvidia-smi -L >/dev/null 2>&1 || { echo "skipped: no GPU"; exit 77; }
"$python" -c 'import torch' 2>/dev/null || { echo "skipped: $python has no PyTorch"; exit 77; }
FERRY_TORCH_LIBRARY=$FERRY_BUILD/lib/libferry_torch.so "$python" "$FERRY_SOURCE/bench/stitch/check.py"
