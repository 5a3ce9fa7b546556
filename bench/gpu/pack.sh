#!/usr/bin/env bash
# Packs what run.sh needs on a machine with a GPU and a C compiler that cannot build ferryc itself: programs, libferry, models,
# data. Usage: bench/gpu/pack.sh BUILD FOLDER [MODELS]. BUILD is a build folder with the CUDA backend, MODELS one with the ONNX
# files of the large models, SANITIZER=DIR has compute-sanitizer's bin and lib. There: FOLDER/bench/gpu/run.sh PART...
set -eu
build=$(realpath "$1")
source=$(realpath "$(dirname "$0")/../..")
mkdir -p "$2"
to=$(realpath "$2")
models=${3:-$source/tests/models/full}
rm -rf "${to:?}"/*
mkdir -p "$to/build/bin" "$to/build/lib" "$to/bench/gpu" "$to/tests/models/full" "$to/tests/data" "$to/examples/gpt2"

for p in ferryc check_log gpt2_stack bench_dha bench_kernels test_attention_kernels test_fused_kernels test_kernels test_kernel_values test_window_kernels test_streams test_pool test_recorder test_adam \
    test_lost_gpu test_gpu_clock test_stitch_gpu; do
    strip -o "$to/build/bin/$p" "$build/bin/$p"
done
cc -O2 -o "$to/build/bin/bytes_to_tokens" "$source/examples/gpt2/bytes_to_tokens.c"
# Shared libraries that a machine may lack. OpenBLAS is called by the host backend alone.
for p in ferryc test_kernels check_log; do
    ldd "$build/bin/$p"
done | awk '$2 == "=>" {print $3}' | sort -u | grep -v '/lib\(c\|m\|openblas\|gfortran\|quadmath\|gcc_s\|stdc++\)\.so' |
    xargs -I{} cp -L {} "$to/build/lib"
cat >"$to/blas.c" <<'EOF'
#include <stdlib.h>
void cblas_sgemm(void) { abort(); }
void cblas_dgemm(void) { abort(); }
void openblas_set_num_threads(int n) { (void)n; }
EOF
cc -shared -fPIC -Wl,-soname,libopenblas.so.0 -o "$to/build/lib/libopenblas.so.0" "$to/blas.c"
rm "$to/blas.c"
ln -s libopenblas.so.0 "$to/build/lib/libopenblas.so"
ln -s libjansson.so.4 "$to/build/lib/libjansson.so"
cupti=$(find "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")/../" -name 'libcupti.so.1[0-9]' | head -n 1)
cp -L "$cupti" "$to/build/lib"

strip -g -o "$to/build/lib/libferry.a" "$build/lib/libferry.a"
cudart=$(grep -o '[^ ]*libcudart_static.a' "$build/lib/ferry.mk")
cp "$cudart" "$to/build/lib"
sed "s|$cudart|\$(FERRY)/lib/libcudart_static.a|; s|-lopenblas|-L\$(FERRY)/lib -lopenblas|" "$build/lib/ferry.mk" >"$to/build/lib/ferry.mk"
cp -r "$build/include" "$to/build"

cp "$source/bench/gpu/run.sh" "$source/bench/gpu/torch_peer.py" "$to/bench/gpu"
cp "$source/tests/data/mixed-device.yaml" "$to/tests/data"
mkdir -p "$to/tests/e2e"
mkdir -p "$to/examples/devices"
cp "$source/examples/devices/h200-pcie5.yaml" "$to/examples/devices"
cp "$source/tests/e2e/lib.sh" "$source/tests/e2e/gpu_errors.sh" "$to/tests/e2e"
cp "$source/examples/gpt2/text.txt" "$to/examples/gpt2"
cp -r "$source/tests/models/gpt2" "$to/tests/models"
for m in bert-base-ts roberta-base-ts bert-large-ts gpt2-ts gpt2-medium-ts llama-1b-dynamo; do
    [ ! -e "$models/$m.onnx" ] || cp "$models/$m.onnx" "$to/tests/models/full"
done
[ -z "${SANITIZER:-}" ] || cp -rL "$SANITIZER" "$to/build/sanitizer"
du -sh "$to"
