#!/usr/bin/env bash
# --record and report --measured: the record agrees with the log and changes no number; wrong records are refused by name.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
device="model:$FERRY_SOURCE/tests/data/mixed-device.yaml"
quiet ferryc profile "$models/gpt2/loss-ts.onnx" --dim batch=4 --dim seq=32 --device "$device"
quiet ferryc plan --recompute 3
quiet ferryc emit
build_schedule schedule
train=(schedule/trainer --data "$models/gpt2/data")
quiet "${train[@]}" --steps 12 --log plain.jsonl
quiet "${train[@]}" --steps 12 --log recorded.jsonl --record run.yaml
same_values plain.jsonl recorded.jsonl

# steps 4 to 12; each part once; what a part takes lies between its least and most, and all of compute within a step
grep -qx 'first_step: 4' run.yaml || fail "$(head -n 12 run.yaml)"
grep -qx 'steps: 9' run.yaml || fail "$(head -n 12 run.yaml)"
grep -q "^plan_hash: \"$(grep -o 'SCHEDULE_PLAN_HASH "[0-9a-f]*"' schedule/schedule.h | cut -d'"' -f2)\"" run.yaml || fail "no hash of the plan"
parts=$(grep -c '{stream:' run.yaml)
[ "$parts" -eq "$(grep -c '^    PART_[a-z0-9_]*,$' schedule/schedule.c)" ] || fail "$parts parts"
for what in load_input forward backward recompute store_loss store load norm adamw; do
    grep -q "what: $what," run.yaml || fail "no $what was recorded"
done
awk -F'[:,{} ]+' '
    /^iteration/ { median = $3; mean = $5; least = $7; most = $9; if (!(0 < least && least <= median && median <= most)) bad = bad " iteration" }
    /stream: compute/ { n = NF; for (i = 1; i < n; i++) { if ($i == "median_ns") m = $(i + 1); if ($i == "min_ns") lo = $(i + 1); if ($i == "max_ns") hi = $(i + 1) }
        if (!(lo <= m && m <= hi)) bad = bad " part"; sum += lo }
    END { if (sum > most) bad = bad " sum " sum " of " most; if (bad) { print bad; exit 1 } }' run.yaml || fail "times"
# the median step of the log, in ms, is that of the record, within a factor of two on a machine with other work
logged=$(sed -n '5,12s/.*"ms": *\([0-9.e+-]*\).*/\1/p' recorded.jsonl | sort -g | sed -n 4p)
median=$(sed -n 's/^iteration: {median_ns: \([0-9]*\).*/\1/p' run.yaml)
awk "BEGIN { r = $median / 1e6 / $logged; exit !(r > 0.5 && r < 2) }" || fail "recorded $median ns, logged $logged ms"

# the page and the trace with it
expect 0 '' ferryc report --measured run.yaml
grep -q 'one step: predicted .*, measured' stdout.txt || fail "$(cat stdout.txt)"
steps=$(ferryc verify 2>/dev/null | grep -oE '[0-9]+ steps' | grep -oE '[0-9]+')
check_report report.html trace.json "$steps" "$(sed -n 's/^  iteration_ns: //p' plan.yaml)" "$parts"
grep -q 'Predicted and measured' report.html || fail "the page has no comparison"
expect 0 '' ferryc report
grep -q 'Predicted and measured' report.html && fail "a comparison with nothing"

# wrong records
expect 2 'none.yaml' ferryc report --measured none.yaml
expect 4 'plan.yaml.*ferryc/plan/1.*ferryc/run/1' ferryc report --measured plan.yaml
quiet ferryc plan -o other.yaml --algorithm dha
expect 4 'run.yaml:3.*another plan' ferryc report other.yaml --measured run.yaml
expect 4 'run.yaml:[0-9]+.*(parts|plan has)' ferryc report other.yaml --measured run.yaml --force
sed 's/what: forward/what: sideways/' run.yaml >wrong.yaml
expect 4 'wrong.yaml:[0-9]+.*sideways' ferryc report --measured wrong.yaml
sed '/what: norm/d' run.yaml >short.yaml
expect 4 'short.yaml:[0-9]+.*parts' ferryc report --measured short.yaml
sed 's/median_ns: [0-9]*/median_ns: -1/' run.yaml >negative.yaml
expect 4 'negative.yaml:[0-9]+.*median_ns' ferryc report --measured negative.yaml
head -c 300 run.yaml >cut.yaml
expect 4 'cut.yaml' ferryc report --measured cut.yaml

# too few steps; no place for the file, and then no half of it
expect 2 'record needs 2 steps' "${train[@]}" --steps 1 --record few.yaml
[ ! -e few.yaml ] || fail "a record of too few steps"
expect 0 '' "${train[@]}" --steps 2 --record few.yaml
grep -qx 'first_step: 1' few.yaml || fail "$(head -n 8 few.yaml)"
code=0
"${train[@]}" --steps 2 --record nowhere/run.yaml 2>stderr.txt >stdout.txt || code=$?
[ $code -ne 0 ] && grep -q 'nowhere/run.yaml' stderr.txt || fail "a record without a folder: exit $code"
