#!/usr/bin/env bash
# ThreadSanitizer build: the whole schedule is clean, and it reports most schedules in which one wait is missing. The shadow
# bytes of libferry make accesses visible that happen inside OpenBLAS or through two mappings of a page.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
quiet ferryc profile "$models/gpt2/loss-ts.onnx" --dim batch=4 --dim seq=32 --device "model:$FERRY_SOURCE/tests/data/mixed-device.yaml"
quiet ferryc plan --clip --mode '*mlp*=reload' --mode '*h.0.attn.c_attn*=resident' --mode '*attn.c_proj*=dfgb' --mode '*ln*=dha' --mem-budget 2800K
quiet ferryc emit
cat >drop.h <<'C'
#include <ferry/ferry.h>
#include <stdlib.h>
static inline ferry_status wait_unless_dropped(int n, ferry_stream *s, ferry_event *e)
{
    static int dropped = -2;
    if (dropped == -2)
        dropped = getenv("DROP_WAIT") ? atoi(getenv("DROP_WAIT")) : -1;
    return n == dropped ? FERRY_OK : ferry_stream_wait(s, e);
}
#define ferry_stream_wait(s, e) wait_unless_dropped(__COUNTER__, s, e)
C
sed -i 's/^trainer: /schedule.o: override CFLAGS += -include ..\/drop.h\ntrainer: /' schedule/Makefile
build_schedule schedule
export TSAN_OPTIONS="exitcode=66 halt_on_error=1"
trainer=(schedule/trainer --data "$models/gpt2/data" --steps 4)
quiet "${trainer[@]}"
waits=$(grep -c 'ferry_stream_wait(' schedule/schedule.c)
found=0
missed=()
for ((i = 0; i < waits; i++)); do
    code=0
    DROP_WAIT=$i "${trainer[@]}" >/dev/null 2>&1 || code=$?
    if [ $code -eq 66 ]; then found=$((found + 1)); else missed+=($i); fi
done
echo "ThreadSanitizer reported $found of $waits schedules with one wait less (not: ${missed[*]:-})"
[ $((found * 2)) -gt "$waits" ] || fail "most missing waits go unseen"
