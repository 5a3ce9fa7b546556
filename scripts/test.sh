#!/usr/bin/env bash
# Installs, builds and tests everything: the plain build, ASan+UBSan, TSan, emitted schedules with gcc and clang.
# FERRY_TEST_QUICK=1 runs the plain build alone.
set -eu
cd "$(dirname "$0")/.."
scripts/install.sh libonnx-testdata libcmocka-dev clang libclang-rt-14-dev xz-utils
export OPENBLAS_NUM_THREADS=1
jobs=$(nproc)

build() { # folder, cmake options...
    local dir=$1
    shift
    echo "== build $dir"
    cmake -S . -B "$dir" -G Ninja -DFERRY_TESTS=ON "$@" >/dev/null
    cmake --build "$dir" -j "$jobs"
}

run() { # folder, ctest options...
    local dir=$1
    shift
    echo "== test $dir"
    ctest --test-dir "$dir" --no-tests=error --output-on-failure -j "$jobs" "$@"
}

build build
run build
if [ -z "${FERRY_TEST_QUICK:-}" ]; then
    build build-asan -DFERRY_SANITIZE=address
    run build-asan
    build build-tsan -DFERRY_SANITIZE=thread
    run build-tsan
    build build-fuzz -DFERRY_FUZZ=ON -DCMAKE_C_COMPILER=clang -DFERRY_FUZZ_SECONDS=${FERRY_FUZZ_SECONDS:-30}
    run build-fuzz
fi
