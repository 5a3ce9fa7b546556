#!/usr/bin/env bash
# report, diff and check: what they write, what they refuse, and the exit codes that CI relies on.
. "${FERRY_SOURCE:?}/tests/e2e/lib.sh"
device="model:$FERRY_SOURCE/tests/data/mixed-device.yaml"
quiet ferryc profile "$models/gpt2/loss-ts.onnx" --dim batch=4 --dim seq=32 --device "$device"
quiet ferryc plan
quiet ferryc plan -o slow.yaml --algorithm dha --recompute 1

# ---- report: a page and a trace that an independent checker accepts
mkdir shown
for plan in plan slow; do
    expect 0 '' ferryc report $plan.yaml -o shown/$plan.html
    period=$(sed -n 's/^  iteration_ns: //p' $plan.yaml)
    steps=$(ferryc verify $plan.yaml 2>/dev/null | grep -oE '[0-9]+ steps' | grep -oE '[0-9]+')
    check_report shown/$plan.html shown/trace.json "$steps" "$period"
done
grep -q '1 segment computed again' shown/slow.html || fail "the page does not say what is computed again"
grep -q '"cat": "recompute"' shown/trace.json || fail "the trace does not say what is computed again"
cp shown/trace.json trace.before
cp shown/slow.html slow.before
expect 0 '' ferryc report slow.yaml -o shown/slow.html
cmp shown/trace.json trace.before && cmp shown/slow.html slow.before || fail "the same plan gave other bytes"
grep -qE '20[0-9]{2}-[0-9]{2}|/(home|tmp|work)/' shown/slow.html shown/trace.json && fail "a date or a path of this machine is in the report"
for algorithm in native-offload dha deepspeed-like memferry go-memferry auto; do
    grep -q "<th scope=\"row\">$algorithm<" shown/plan.html || fail "the table has no $algorithm"
done
# the checker is able to fail
sed '0,/<td/s//<td <b/' shown/slow.html >broken.html
check_report broken.html shown/trace.json "$steps" "$period" 2>/dev/null && fail "a broken page was accepted"
sed '0,/"ph": "f"/s//"ph": "s"/' shown/trace.json >broken.json
check_report shown/slow.html broken.json "$steps" "$period" 2>/dev/null && fail "a flow without an end was accepted"

expect 2 'missing.yaml' ferryc report missing.yaml
echo mine >mine.html
expect 2 'mine.html.*not written by ferryc' ferryc report -o mine.html
[ ! -e trace.json ] || fail "half of a report was written"
expect 0 '' ferryc report -f -o mine.html
echo ' ' >>trace.json
expect 2 'trace.json.*edited' ferryc report -o mine.html
expect 2 'trace.json' ferryc report -o trace.json
expect 2 'nofolder' ferryc report -o nofolder/report.html

# ---- diff
expect 0 '' ferryc diff plan.yaml plan.yaml
grep -q 'All 15 units are the same' stdout.txt || fail "$(cat stdout.txt)"
expect 0 '' ferryc diff plan.yaml slow.yaml
grep -qE '^~ m.transformer.h.1.mlp.c_fc +(gfgb|dfgb|reload|resident) +-> dha' stdout.txt || fail "$(cat stdout.txt)"
expect 0 '' ferryc diff plan.yaml slow.yaml --json
[ "$(grep -c '"name"' stdout.txt)" -gt 5 ] || fail "$(cat stdout.txt)"
expect 2 'which plans' ferryc diff plan.yaml
expect 2 'no.yaml' ferryc diff plan.yaml no.yaml
sed '0,/mode: [a-z]*/s//mode: fast/' plan.yaml >wrong.yaml
expect 4 'wrong.yaml:[0-9]+.*fast' ferryc diff plan.yaml wrong.yaml

# ---- check: 0 passes, 5 regression, 1 not proved, 2 usage, 4 wrong data
expect 0 '' ferryc check --baseline plan.yaml
expect 0 '' ferryc check plan.yaml --baseline slow.yaml --tolerance modes=100,peak=400%
expect 5 'slow.yaml against plan.yaml: slower by [0-9.]+% .*units changed' ferryc check slow.yaml --baseline plan.yaml
expect 5 'slower by' ferryc check slow.yaml --baseline plan.yaml --tolerance modes=100,peak=100%
expect 5 'changed \(tolerance 0\)' ferryc check slow.yaml --baseline plan.yaml --tolerance time=1000%,peak=1000%
expect 0 '' ferryc check slow.yaml --baseline plan.yaml --tolerance time=1000%,peak=1000%,modes=100
expect 5 '' ferryc check slow.yaml --baseline plan.yaml --json
grep -q '"ok": false' stdout.txt || fail "$(cat stdout.txt)"
expect 5 'larger by' ferryc check plan.yaml --baseline slow.yaml --tolerance modes=100
awk '/reserved_bytes/ {print; next} {gsub(/\[\[[0-9]+, /, "[[0, "); print}' plan.yaml >overlap.yaml
expect 1 'share' ferryc check overlap.yaml --baseline plan.yaml
expect 2 'baseline' ferryc check plan.yaml
expect 2 'no.yaml' ferryc check plan.yaml --baseline no.yaml
expect 2 'time.*percentage' ferryc check plan.yaml --baseline plan.yaml --tolerance time=5
expect 4 'wrong.yaml:[0-9]+' ferryc check plan.yaml --baseline wrong.yaml
# results that were edited do not fool the gate
sed 's/^  iteration_ns: .*/  iteration_ns: 1/' slow.yaml >lies.yaml
expect 5 'edited' ferryc check lies.yaml --baseline plan.yaml --tolerance modes=100,peak=100%
# a baseline needs neither its profile nor its model
mkdir alone && cp plan.yaml alone/baseline.yaml && sed -i 's/path: .*/path: "gone.yaml"/' alone/baseline.yaml
expect 0 '' ferryc check --baseline alone/baseline.yaml

# ---- the example for CI: accepts its own baseline, and stops a slower plan
cp -r "$FERRY_SOURCE/examples" examples
cd examples/ci
expect 0 '' ./gate.sh --accept
expect 0 '' ./gate.sh
[ -s plan/report.html ] || fail "gate.sh wrote no report"
cp baseline.yaml kept.yaml
sed -i 's/^  iteration_ns: .*/  iteration_ns: 1000/' baseline.yaml
expect 5 'slower by' ./gate.sh
cd ../..

# ---- a browser runs the page without a word on its console
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
    echo "browser test skipped: no chromium here"
    exit 0
fi
console() { # prints what a page says on the console and its document after scripts ran
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/browser" \
        --enable-logging=stderr --window-size="$2",900 --dump-dom "file://$work/$1" >dom.txt 2>log.txt || true
    grep -E 'CONSOLE' log.txt || true
}
echo '<!DOCTYPE html><html><body><script>nothing_of_this_name();</script></body></html>' >wrong.html
[ -n "$(console wrong.html 1280)" ] || { echo "browser test skipped: this browser does not report errors"; exit 0; }
for width in 1280 390; do
    said=$(console shown/plan.html $width)
    [ -z "$said" ] || fail "the browser says: $said"
    grep -q '<html lang="en" class="js">' dom.txt || fail "the page's script did not come to its end"
done
# zoom doubles, the pointer names the bytes that are live, a span lights up what belongs to its unit
cat >act.js <<'JS'
const rect = (e) => e.getBoundingClientRect();
const point = (e, on) => on.dispatchEvent(new PointerEvent("pointermove",
    { clientX: rect(e).left + rect(e).width / 2, clientY: rect(e).top + 3, bubbles: true }));
const memory = document.querySelector("svg.memory"), span = document.querySelector("g.ld[data-u] rect");
document.querySelector("[data-act=in]").click();
point(memory, memory);
document.body.dataset.zoom = memory.getAttribute("viewBox");
document.body.dataset.live = document.querySelector(".tip").textContent;
point(span, span);
document.body.dataset.lit = document.querySelectorAll("svg.time g.on").length;
document.body.dataset.wide = document.documentElement.scrollWidth - innerWidth;
JS
for width in 1280 390; do
    { sed '/^<\/body>/,$d' shown/plan.html && echo '<script>' && cat act.js && echo '</script></body></html>'; } >acted.html
    said=$(console acted.html $width)
    [ -z "$said" ] || fail "the browser says: $said"
    grep -q 'data-zoom="25000 0 50000 200"' dom.txt || fail "no zoom: $(grep -o '<body.*' dom.txt)"
    grep -q 'data-live="[0-9.]* us: [0-9.]* [KM]iB live' dom.txt || fail "no bytes: $(grep -o '<body.*' dom.txt)"
    grep -qE 'data-lit="([3-9]|[0-9]{2,})"' dom.txt || fail "no unit: $(grep -o '<body.*' dom.txt)"
    grep -qE 'data-wide="(0|-[0-9]+)"' dom.txt || fail "wider than $width pixels: $(grep -o '<body.*' dom.txt)"
done
echo "the browser ran the page"
