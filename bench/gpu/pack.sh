#!/usr/bin/env bash
# Packs what check.sh needs on a machine with a GPU that cannot build ferryc: stripped test programs and trainers, their
# data and references.
# Usage: bench/gpu/pack.sh BUILD FOLDER [--profile]. BUILD is a build folder with the CUDA backend.
# --profile: packs ferryc with the libraries that it needs, and what profile.sh there runs, instead.
set -eu
build=$(realpath "$1")
source=$(realpath "$(dirname "$0")/../..")
mkdir -p "$2"
to=$(realpath "$2")
models="$source/tests/models"
export PATH="$build/bin:$PATH"
rm -rf "${to:?}"/*
mkdir -p "$to/bin" "$to/lib"
pack_blas() {
# The programs link OpenBLAS, which only the host backend calls.
cat >"$to/lib/blas.c" <<'EOF'
#include <stdlib.h>
void cblas_sgemm(void) { abort(); }
void cblas_dgemm(void) { abort(); }
void openblas_set_num_threads(int n) { (void)n; }
EOF
cc -shared -fPIC -Wl,-soname,libopenblas.so.0 -o "$to/lib/libopenblas.so.0" "$to/lib/blas.c"
rm "$to/lib/blas.c"
}

if [ "${3:-}" = --profile ]; then
    strip -o "$to/bin/ferryc" "$build/bin/ferryc"
    ldd "$build/bin/ferryc" | awk '$2 == "=>" {print $3}' |
        grep -v '/lib\(c\|m\|openblas\|gfortran\|quadmath\|gcc_s\)\.so' | xargs -I{} cp -L {} "$to/lib"
    ln -s libjansson.so.4 "$to/lib/libjansson.so"
    pack_blas
    ln -s libopenblas.so.0 "$to/lib/libopenblas.so"
    cupti=$(find "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")/../" -name 'libcupti.so.1[0-9]' | head -n 1)
    cp -L "$cupti" "$to/lib"
    strip -g -o "$to/lib/libferry.a" "$build/lib/libferry.a"
    cudart=$(grep -o '[^ ]*libcudart_static.a' "$build/lib/ferry.mk")
    strip -o "$to/bin/test_gpu_clock" "$build/bin/test_gpu_clock"
    cp -L /usr/lib/x86_64-linux-gnu/libcmocka.so.0 "$to/lib"
    cp "$cudart" "$to/lib"
    sed "s|$cudart|\$(FERRY)/lib/libcudart_static.a|; s|-lopenblas|-L\$(FERRY)/lib -lopenblas|" "$build/lib/ferry.mk" >"$to/lib/ferry.mk"
    cp -r "$build/include" "$to"
    mkdir -p "$to/tests/models/full" "$to/bench/profiles" "$to/full"
    cp "$models/full/gpt2-ts.onnx" "$to/tests/models/full"
    cp -r "$models/gpt2" "$to/tests/models"
    cp "$source/bench/gpu/profile.sh" "$to"
    cc -O2 -o "$to/bin/bytes_to_tokens" "$source/examples/gpt2/bytes_to_tokens.c"
    "$to/bin/bytes_to_tokens" "$source/examples/gpt2/text.txt" "$to/full/tokens.bin"
    du -sh "$to"
    exit 0
fi
mkdir "$to/gpt2"
cp "$source/bench/gpu/check.sh" "$to"
cp -r "$models/gpt2/data" "$models/gpt2/reference.json" "$to/gpt2"

for t in test_kernels test_kernel_values test_attention_kernels test_window_kernels test_streams test_pool test_adam test_lost_gpu; do
    strip -o "$to/bin/$t" "$build/bin/$t"
done
strip -o "$to/bin/check_log" "$build/bin/check_log"
strip -o "$to/bin/bench_dha" "$build/bin/bench_dha"
strip -o "$to/bin/bench_kernels" "$build/bin/bench_kernels"
for l in libcmocka.so.0 libjansson.so.4; do
    cp -L "/usr/lib/x86_64-linux-gnu/$l" "$to/lib"
done
pack_blas

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
sed 's/^chunk_bytes:.*/chunk_bytes: 2097152/' "$source/tests/data/mixed-device.yaml" >device.yaml
emit() { # name, profile, plan options...
    local name=$1 profile=$2
    shift 2
    ferryc plan "$profile" -o "$name.yaml" "$@" >/dev/null 2>plan.log || { cat plan.log >&2; exit 1; }
    ferryc emit "$name.yaml" -o "$name" $init >/dev/null
    make -s -C "$name"
    mkdir -p "$to/trainers/$name"
    strip -o "$to/trainers/$name/trainer" "$name/trainer"
    cp "$name"/*.safetensors "$to/trainers/$name"
    sed -n 's/^ \* One step: //p' "$name/schedule.c" >"$to/trainers/$name/predicted.txt"
}
profile() { # name, device, more...
    local name=$1 device=$2
    shift 2
    ferryc profile "$models/gpt2/loss-ts.onnx" --dim batch=4 --dim seq=32 --device "model:$device" -o "$name.yaml" "$@" 2>/dev/null
}
init=
profile h200 "$source/examples/devices/h200-pcie5.yaml"
profile mixed device.yaml
profile double device.yaml --precision fp64
emit h200-auto h200.yaml
emit native mixed.yaml --algorithm native-offload
emit dha mixed.yaml --algorithm dha
emit deepspeed mixed.yaml --algorithm deepspeed-like
emit memferry mixed.yaml --algorithm memferry
emit go50 mixed.yaml --algorithm go-memferry --reserve-factor 0.5
emit go0 mixed.yaml --algorithm go-memferry --reserve-factor 0
emit clip mixed.yaml --clip
emit fp64-auto double.yaml
# GPT-2 of 124M parameters, drawn at random, on bytes of a text: every plan gives the same losses, and the times stand
# beside the predicted ones.
mkdir "$to/full"
cc -O2 -o bytes_to_tokens "$source/examples/gpt2/bytes_to_tokens.c"
./bytes_to_tokens "$source/examples/gpt2/text.txt" "$to/full/tokens.bin"
ferryc profile "$models/full/gpt2-ts.onnx" --dim batch=4 --dim seq=512 --loss cross_entropy \
    --device "model:$source/examples/devices/h200-pcie5.yaml" -o full.yaml 2>/dev/null
init="--random-init 1"
emit full-native full.yaml --algorithm native-offload
emit full-auto full.yaml
emit full-memferry full.yaml --algorithm memferry
emit full-dha full.yaml --algorithm dha
du -sh "$to"
