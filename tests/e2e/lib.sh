# lib.sh - for the end-to-end tests. CMake sets FERRY_BUILD (the build folder), FERRY_SOURCE, and FERRY_SANITIZE_FLAGS for
# programs that link libferry.a. Each test works in a fresh folder that goes away with it.
set -eu
export PATH="$FERRY_BUILD/bin:$PATH" OPENBLAS_NUM_THREADS=1 LC_ALL=C
models="$FERRY_SOURCE/tests/models"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# expect CODE PATTERN COMMAND...: the command ends with CODE and its standard error matches PATTERN (extended).
expect() {
    local code=$1 pattern=$2 got=0
    shift 2
    "$@" >stdout.txt 2>stderr.txt || got=$?
    if [ "$got" -ne "$code" ] || { [ -n "$pattern" ] && ! grep -Eq -e "$pattern" stderr.txt; }; then
        echo "command: $*" >&2
        echo "exit $got, expected $code with /$pattern/; standard error:" >&2
        cat stderr.txt >&2
        exit 1
    fi
}

quiet() {
    local code=0
    "$@" >quiet.txt 2>&1 || code=$?
    if [ "$code" -ne 0 ]; then
        echo "command: $* (exit $code)" >&2
        cat quiet.txt >&2
        exit 1
    fi
}

# build_schedule DIR: with the sanitizer of this build, if it has one.
build_schedule() {
    quiet make -C "$1" CFLAGS="-O1 -g ${FERRY_SANITIZE_FLAGS:-}" LDFLAGS="${FERRY_SANITIZE_FLAGS:-}"
}

# json KEY FILE: a number or a word from flat JSON.
json() {
    sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\)\"\{0,1\}.*/\1/p" "$2" | head -n 1
}

# values LOG: loss and gradient norm of each step, as printed (17 digits: equal text is equal bits).
values() {
    sed 's/.*"loss": *\([^,]*\), *"grad_norm": *\([^,}]*\).*/\1 \2/' "$1"
}

same_values() {
    values "$1" >a.values
    values "$2" >b.values
    cmp a.values b.values || fail "$1 and $2 differ"
}
