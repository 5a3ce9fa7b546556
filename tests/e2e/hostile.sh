#!/usr/bin/env bash
# Models that mean harm: each is refused with exit code 4 and a message that says what is wrong, in less than 5 seconds and
# 1 GiB, whatever command reads it. Three commands share the models out, since all of them import in the same way.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
device="model:$FERRY_SOURCE/tests/data/mixed-device.yaml"
hostile="$FERRY_BUILD/bin/hostile"
seconds=5 mib=1024
if [ -n "${FERRY_SANITIZE_FLAGS:-}" ]; then # the instrumented program is slower and larger
    seconds=30 mib=4096
fi

printf 'secret!!' >secret.bin
mkdir models models/sub
cd models
printf '12345678' >small.bin
ln -s ../secret.bin link.bin
ln -s .. linked
ln -s loop.bin loop.bin
ln ../secret.bin hard.bin
mkfifo fifo.bin
truncate -s 2G sparse.bin
"$hostile" write >table.txt

# refused NAME PATTERN COMMAND...
refused() {
    local name=$1 pattern=$2 got=0 text
    shift 2
    "$hostile" watch $seconds $mib "$@" >stdout.txt 2>stderr.txt || got=$?
    text=$(<stderr.txt)
    if [[ $got -ne 4 || ! $text =~ $pattern || $text == *'internal error'* || $text == *$'\033'* ]]; then
        echo "FAILED: $name: $*: exit $got, expected 4 with /$pattern/ and plain text:" >&2
        head -c 2000 stderr.txt | cat -v >&2
        failed=1
    fi
    [ ! -e profile.yaml ] || fail "$name: a profile was written"
}

failed=0 count=0
while read -r name pattern; do
    refused "$name" "$pattern" ferryc inspect "$name.onnx"
    count=$((count + 1))
    [ $((count % 4)) -ne 0 ] || refused "$name" "$pattern" ferryc profile "$name.onnx" --loss output:y --device "$device"
done <table.txt
[ $count -gt 80 ] || fail "only $count models"

# the model itself is no file, and a run
mkfifo fifo.onnx
refused fifo 'fifo\.onnx.*regular' ferryc inspect fifo.onnx
truncate -s 2G zeros.onnx
refused zeros 'zeros\.onnx' ferryc inspect zeros.onnx
{ printf '\223NUMPY\001\000\166\000%-117s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }" && head -c 24 /dev/zero; } >x.npy
for name in outside-up outside-hard-link claims-more-than-2-GiB nested-20000; do
    refused $name "$(sed -n "s/^$name //p" table.txt)" ferryc run $name.onnx --input x=x.npy
done
[ $failed -eq 0 ]
