#!/usr/bin/env bash
# Checks and times ferryc on a machine with a GPU, part by part, and writes RESULTS.md.
#
#     bench/gpu/run.sh [PART...]      from a source tree (built on the way), or from what pack.sh packed
#
#     check      the conformance tests on the GPU
#     errors     a GPU that is not there, is too small or gets wrong data (tests/e2e/gpu_errors.sh)
#     tiny       20 steps of a small GPT-2 by every kind of plan, against PyTorch in float64
#     MODEL[/PRECISION]   bert-base, roberta-base, bert-large, gpt2-medium, llama-1b; bf16 or fp32: profile, every algorithm
#                planned, trained and recorded, predicted beside measured
#     torch      PyTorch on the same models: forward and backward, and training with everything offloaded by hand
#     sanitize   compute-sanitizer on a tiny schedule
#     dha        reads and writes of host memory by kernels, and single kernels
#     results    RESULTS.md from what the parts have left
#
# Without a part: all. A part that ran again replaces its rows. OUT=DIR keeps logs and rows (default bench/gpu/out), MODELS=DIR
# has the ONNX files of the large models, BATCH, SEQ and STEPS change the load, ALGORITHMS="..." the plans, DEVICE=cuda:N (or host,
# to try the script itself).
set -u
here=$(realpath "$(dirname "$0")")
source=$(realpath "$here/../..")
build=${FERRY_BUILD:-$source/build}
out=$(realpath -m "${OUT:-$here/out}")
models=${MODELS:-$source/tests/models/full}
device=${DEVICE:-cuda:0}
batch=${BATCH:-8} seq=${SEQ:-512} steps=${STEPS:-20}
algorithms=${ALGORITHMS:-native-offload dha deepspeed-like memferry go-memferry:0 go-memferry:0.5 go-memferry:1 optimal auto}
work=${WORK:-$(mktemp -d)}
mkdir -p "$out" "$work"
bad=0

say() { echo "[$((SECONDS / 60)):$(printf %02d $((SECONDS % 60)))] $*"; }
failed() {
    say "FAILED: $*"
    bad=1
}

if [ ! -x "$build/bin/ferryc" ]; then
    say "build"
    cmake -S "$source" -B "$build" -DFERRY_CUDA=ON >"$out/build.txt" && cmake --build "$build" -j >>"$out/build.txt" || exit 1
fi
export PATH="$build/bin:$PATH" LD_LIBRARY_PATH="$build/lib:${LD_LIBRARY_PATH:-}" LC_ALL=C
# cuDNN may have come with PyTorch
dnn=$("${PYTHON:-python3}" -c 'import nvidia.cudnn; print(list(nvidia.cudnn.__path__)[0] + "/lib")' 2>/dev/null) &&
    LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$dnn"
if [ "$*" != results ]; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.max --format=csv,noheader >"$out/gpu.txt" || [ "$device" = host ] || exit 1
    { nproc; sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1; } | paste -sd' ' >"$out/cpu.txt"
    cat "$out/gpu.txt"
fi

json() { # KEY FILE: a number from JSON
    tr ',{' '\n\n' <"$2" | sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\)\"\{0,1\}.*/\1/p" | head -n 1
}

# ---- a plan's trainer ------------------------------------------------------------------------------------------------

plan_options() { # ALGORITHM[:FACTOR]
    case $1 in
    *:*) echo "--algorithm ${1%:*} --reserve-factor ${1#*:}" ;;
    reload | resident) echo "--algorithm native-offload --mode *=$1" ;;
    *) echo "--algorithm $1" ;;
    esac
}

prepare() { # NAME PROFILE EMIT-OPTIONS PLAN-OPTIONS...: $work/NAME/trainer; what went wrong is in $work/NAME.err
    local name=$1 profile=$2 init=$3
    shift 3
    ferryc plan "$profile" -o "$work/$name.yaml" --json "$@" >"$work/$name.json" 2>"$work/$name.err" &&
        ferryc emit "$work/$name.yaml" -o "$work/$name" $init >/dev/null 2>>"$work/$name.err" &&
        make -s -C "$work/$name" CFLAGS=-O1 2>>"$work/$name.err" && : >"$work/$name.ready"
}

make_data() { # $work/data: bytes of a text as tokens
    mkdir -p "$work/data"
    [ ! -e "$work/data/tokens.bin" ] || return 0
    command -v bytes_to_tokens >/dev/null || cc -O2 -o "$work/bytes_to_tokens" "$source/examples/gpt2/bytes_to_tokens.c"
    PATH="$work:$PATH" bytes_to_tokens "$source/examples/gpt2/text.txt" "$work/data/tokens.bin" >/dev/null
}

# A run of which some step took an eighth longer than another is made again, once: other users of the machine's memory show so.
# The calmer of the two counts.
train_calmly() { # NAME
    local name=$1 last=9999 now
    for try in 1 2; do
        timeout 150 "$work/$name/trainer" --device $device --data "$work/data" --steps $steps --lr 1e-4 --log "$out/$name.jsonl" \
            --record "$work/$name.run.yaml" >"$out/$name.txt" 2>&1 || return 1
        now=$(awk -F'[:,{} ]+' '/^iteration/ {printf "%d", 1000 * $9 / $7}' "$work/$name.run.yaml")
        [ "$now" -lt $last ] && cp "$work/$name.run.yaml" "$out/$name.run.yaml" && last=$now
        [ $last -gt 1125 ] || return 0
    done
    say "$name: noisy, the longest step takes $((last / 10)) % of the shortest"
}

device_used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | head -n 1 | grep . || echo 0; }

# ---- parts -----------------------------------------------------------------------------------------------------------

part_check() {
    export FERRY_TEST_DEVICE=$device
    : >"$out/check.tsv"
    for t in test_attention_kernels test_fused_kernels test_kernels test_kernel_values test_window_kernels test_streams test_pool test_recorder test_adam test_lost_gpu test_gpu_clock test_stitch_gpu; do
        [ -x "$build/bin/$t" ] || continue
        local code=0
        timeout 120 "$t" >"$out/$t.txt" 2>&1 || code=$?
        say "$t: exit $code, $(grep -c ' OK \]' "$out/$t.txt") passed"
        printf '%s\t%s\t%s\n' "$t" $code "$(grep -c ' OK \]' "$out/$t.txt")" >>"$out/check.tsv"
        if [ $code -ne 0 ] && [ $code -ne 77 ]; then
            failed "$t"
            grep -v 'RUN  \|      OK' "$out/$t.txt" | tail -n 20
        fi
    done
    if LD_DEBUG=libs test_window_kernels 2>&1 | grep -q 'calling init.*libcudnn'; then say "convolutions: cuDNN"; else say "convolutions: own kernels, cuDNN was not found"; fi
}

# Every kind of plan, from a description in which modes differ and from the measured GPU; then each precision.
part_tiny() {
    local gpt2="$source/tests/models/gpt2" name tolerance precision rows="$out/tiny.tsv"
    sed 's/^chunk_bytes:.*/chunk_bytes: 2097152/' "$source/tests/data/mixed-device.yaml" >"$work/mixed.yaml"
    : >"$rows"
    for precision in fp32 bf16 fp64; do
        tolerance=1e-4
        [ $precision = bf16 ] && tolerance=2e-2
        [ $precision = fp64 ] && tolerance=1e-6
        local profile="$work/tiny-$precision.yaml"
        if ! ferryc profile "$gpt2/loss-ts.onnx" --dim batch=4 --dim seq=32 --precision $precision --device "model:$work/mixed.yaml" \
            -o "$profile" >/dev/null 2>"$work/tiny.err"; then
            say "tiny $precision: not supported: $(tail -n 1 "$work/tiny.err")"
            continue
        fi
        local kinds="$algorithms reload resident clip"
        [ $precision = fp64 ] && kinds="auto memferry resident"
        for a in $kinds; do
            name=tiny-$precision-${a/:/-}
            if [ "$a" = clip ]; then
                prepare "$name" "$profile" "" --clip
            else
                prepare "$name" "$profile" "" $(plan_options "$a")
            fi &
        done
        wait
        for a in $kinds; do
            name=tiny-$precision-${a/:/-}
            local code=0 said
            if [ ! -e "$work/$name.ready" ]; then
                failed "$name: $(tail -n 2 "$work/$name.err")"
                continue
            fi
            timeout 60 "$work/$name/trainer" --device $device --data "$gpt2/data" --steps 20 --lr 1e-3 --weight-decay 0.01 \
                --log "$out/$name.jsonl" --record "$out/$name.run.yaml" >"$out/$name.txt" 2>&1 || code=$?
            if [ $code -ne 0 ]; then
                failed "$name: exit $code: $(tail -n 2 "$out/$name.txt")"
                continue
            fi
            said=$(check_log "$out/$name.jsonl" "$gpt2/reference.json" float64 $tolerance 2>&1) || failed "$name"
            said=${said#*.jsonl: }
            say "$name: $said"
            printf '%s\t%s\t%s\t%s\n' $precision "$a" "$said" \
                "$(sed -n 's/^iteration: {median_ns: \([0-9]*\).*/\1/p' "$out/$name.run.yaml")" >>"$rows"
        done
    done
}

model_options() {
    case $1 in
    bert-base) echo "bert-base-ts.onnx --tie m.bert.embeddings.word_embeddings.weight=onnx::MatMul_1480^T" ;;
    roberta-base) echo "roberta-base-ts.onnx --tie m.roberta.embeddings.word_embeddings.weight=onnx::MatMul_1475^T" ;;
    bert-large) echo "bert-large-ts.onnx --tie m.bert.embeddings.word_embeddings.weight=onnx::MatMul_2836^T" ;;
    gpt2) echo "gpt2-ts.onnx --tie m.transformer.wte.weight=onnx::MatMul_2862^T" ;;
    gpt2-medium) echo "gpt2-medium-ts.onnx --tie m.transformer.wte.weight=onnx::MatMul_5586^T" ;;
    llama-1b) echo "llama-1b-dynamo.onnx --tie m.model.embed_tokens.weight=val_1750^T" ;;
    *) return 1 ;;
    esac
}

part_model() { # MODEL PRECISION
    local model=$1 precision=$2 key=$1-$2 file tie from=$SECONDS data="$work/data"
    local profile="$out/$key.profile.yaml" rows="$out/$key.tsv"
    file=$(model_options "$model") || { failed "no model '$model'"; return; }
    tie=${file#* }
    file="$models/${file%% *}"
    [ -e "$file" ] || { failed "$key: no $file; say where with MODELS=DIR"; return; }
    make_data
    if ! ferryc profile "$file" --dim batch=$batch --dim seq=$seq --loss cross_entropy $tie --precision $precision --device $device \
        -o "$profile" -f >/dev/null 2>"$out/$key.profile.txt"; then
        failed "$key: $(tail -n 2 "$out/$key.profile.txt")"
        return
    fi
    local took=$((SECONDS - from))
    say "$key: profiled in $took s"
    grep -E 'note: (noise|forward|kernels)|warning' "$out/$key.profile.txt"
    printf 'profile\t%s\t%s\n' $took "$(sed -n 's/.*note: forward and backward: //p' "$out/$key.profile.txt")" >"$rows"
    for a in $algorithms; do
        prepare "$key-${a/:/-}" "$profile" "--random-init 1" $(plan_options "$a") &
    done
    wait
    say "$key: planned and built"
    for a in $algorithms; do
        local name=$key-${a/:/-}
        if [ ! -e "$work/$name.ready" ]; then
            failed "$name: $(tail -n 2 "$work/$name.err")"
            continue
        fi
        train_calmly "$name" || {
            failed "$name: $(tail -n 2 "$out/$name.txt")"
            continue
        }
        awk -v a="$a" -v predicted="$(json iteration_ns "$work/$name.json")" -v compute="$(json compute_ns "$work/$name.json")" \
            -v peak="$(json peak_bytes "$work/$name.json")" -v loss="$(tail -n 1 "$out/$name.jsonl" | sed 's/.*"loss": *\([^,]*\).*/\1/')" \
            -v bound="$(json bound_ns "$work/$name.json")" -F'[:,{} ]+' '
            /^iteration/ {median = $3; least = $7; most = $9}
            /^pool_bytes/ {held = $2}
            /^scratch_bytes/ {held += $2}
            END {printf "run\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%d\n", a, predicted, median, least, most, compute, peak, held, loss, bound}
        ' "$out/$name.run.yaml" >>"$rows"
        tail -n 1 "$rows" | awk -F'\t' -v n="$name" '{printf "  %s: predicted %.2f ms, measured %.2f ms (%.3f), %.2f to %.2f; memory %.0f of %.0f MiB; loss %s\n",
            n, $3 / 1e6, $4 / 1e6, $4 / $3, $5 / 1e6, $6 / 1e6, $9 / 1048576, $8 / 1048576, $10}'
    done
    # the same run without a recorder, and the memory of the whole process: pool, scratch and CUDA's context
    local name=$key-${algorithms##* } before used=0 now
    name=$key-${name#"$key-"}
    name=${name/:/-}
    if [ -e "$work/$name.ready" ]; then
        before=$(device_used)
        "$work/$name/trainer" --device $device --data "$data" --steps $steps --lr 1e-4 --log "$out/$name.plain.jsonl" >/dev/null 2>&1 &
        while kill -0 $! 2>/dev/null; do
            now=$(device_used)
            [ "$now" -gt "$used" ] && used=$now
            sleep 1
        done
        printf 'process\t%s\t%s\t%s\n' "${algorithms##* }" $((used - before)) \
            "$(sed -n '4,$s/.*"ms": *\([0-9.e+-]*\).*/\1/p' "$out/$name.plain.jsonl" | sort -g | awk '{x[NR] = $1} END {print x[int((NR + 1) / 2)]}')" >>"$rows"
        say "$key: the process takes $((used - before)) MiB of the GPU; without a recorder $(tail -n 1 "$rows" | cut -f4) ms"
    fi
}

part_torch() {
    local python=${PYTHON:-python3}
    "$python" -c 'import torch, transformers' 2>/dev/null || { say "torch: skipped, $python has no PyTorch with transformers"; return; }
    timeout ${TORCH_SECONDS:-240} "$python" "$here/torch_peer.py" --batch $batch --seq $seq ${TORCH_MODELS:-bert-base roberta-base bert-large gpt2-medium llama-1b} \
        --compile ${TORCH_COMPILE:-bert-base} \
        >"$out/torch.tsv" 2>"$out/torch.txt" || say "torch: stopped early, see torch.txt"
    cat "$out/torch.tsv"
}

part_sanitize() {
    local sanitizer gpt2="$source/tests/models/gpt2"
    sanitizer=$(command -v compute-sanitizer || ls "$build/sanitizer/bin/compute-sanitizer" /usr/local/cuda/bin/compute-sanitizer 2>/dev/null | head -n 1)
    [ -n "$sanitizer" ] || { say "sanitize: skipped, no compute-sanitizer"; return; }
    : >"$out/sanitize.tsv"
    sed 's/^chunk_bytes:.*/chunk_bytes: 2097152/' "$source/tests/data/mixed-device.yaml" >"$work/mixed.yaml"
    ferryc profile "$gpt2/loss-ts.onnx" --dim batch=2 --dim seq=16 --device "model:$work/mixed.yaml" -f -o "$work/sanitize-profile.yaml" >/dev/null 2>&1
    prepare sanitize "$work/sanitize-profile.yaml" "--random-init 1" --algorithm memferry || { failed "sanitize: $(tail -n 2 "$work/sanitize.err")"; return; }
    make_data
    for tool in memcheck racecheck initcheck; do
        local code=0
        timeout 100 "$sanitizer" --tool $tool --error-exitcode 9 "$work/sanitize/trainer" --device $device --data "$work/data" --steps 2 \
            >"$out/sanitize-$tool.txt" 2>&1 || code=$?
        say "compute-sanitizer $tool: exit $code, $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/sanitize-$tool.txt" | tail -n 1)"
        printf '%s\t%s\t%s\n' $tool $code "$(grep -E 'SUMMARY' "$out/sanitize-$tool.txt" | tail -n 1 | sed 's/=*//; s/SUMMARY: *//')" >>"$out/sanitize.tsv"
        [ $code -eq 0 ] || failed "compute-sanitizer $tool"
    done
}

part_errors() {
    local code=0
    FERRY_BUILD="$build" FERRY_SOURCE="$source" bash "$source/tests/e2e/gpu_errors.sh" >"$out/errors.txt" 2>&1 || code=$?
    say "errors: exit $code $(tail -n 3 "$out/errors.txt" | cut -c 1-300)"
    printf 'gpu_errors.sh\t%s\t%s\n' $code "$(grep -c . "$source/tests/e2e/gpu_errors.sh")" >"$out/errors.tsv"
    [ $code -eq 0 ] || failed "errors"
}

part_dha() {
    { bench_dha && bench_kernels; } >"$out/dha.txt" 2>&1 || failed "dha: $(tail -n 1 "$out/dha.txt")"
    cat "$out/dha.txt"
}

# ---- RESULTS.md ------------------------------------------------------------------------------------------------------

# Products by DHA: of each weight and number of rows the ratios of forward with [k, n] and [n, k], dx and dw, those that miss the
# goal in bold; and why.
dha_table() { # FILE
    printf '\n## Products that read weights and write gradients by DHA\n\n'
    echo "Each number is the time by DHA over the longer of the transfer alone and the product in device memory alone; the goal is"
    echo "1.25, 1.5 for weights below 4 MiB. In bold what misses it. Forward with the weight as [k, n] and as [n, k], dx, dw."
    awk '
        function flush() {
            if (row != "")
                print row " |"
            row = ""
        }
        /rows, weight/ {
            flush()
            if (!($1 in seen)) {
                seen[$1] = 1
                print "\n| type | weight | MiB | rows | [k, n] | [n, k] | dx | dw |"
                print "|---|---|---|---|---|---|---|---|"
            }
            type = $1
            sub(",", "", type)
            sub(",", "", $7)
            row = "| " type " | " $5 " x " $7 " | " $8 " | " $2
        }
        / ratio / {
            for (i = 1; i < NF; i++)
                if ($i == "ratio")
                    row = row " | " ($NF == "MISSED" ? "**" $(i + 1) "**" : $(i + 1))
        }
        /^[a-z0-9]+: [0-9]+ of [0-9]+ met/ {
            flush()
            print "\n" $0 "."
        }
    ' "$1"
    cat <<'END'

Where it is missed, and why, as far as these times tell:

- What is lost is overlap. Where transfer and product take about as long, the time by DHA is nearly their sum: at 1024 to 4096
  rows in f32, at 8192 rows in bf16. The bytes themselves cross at the rate of a load, as the cases of 512 rows show.
- bf16, 4096 rows and more: products of the library start as many blocks as there are processors, each of which fills one. The
  blocks that find the place of a copying block taken begin when the last slab is there, so a slab's product ends late. A limit on
  the processors of a product would help; none is set.
- f32 (no TF32): a product of 2048 x 2048 x 2048 has 256 tiles of 128 x 128 for 132 processors, two rounds; the product of a slab
  has a part of one round and takes as long as a whole one. Slabs that are parts of the sum keep all tiles and read and write the
  result once each. At 8192 rows both hardly count.
- dw in f32: a slab has few tiles, so its sum is split over more blocks and their parts are added in a second pass.
- Weights of 1 MiB: one slab and then its product, which is the sum of both but for the launches.
END
}

model_table() { # FILE
    local key
    key=$(basename "$1" .tsv)
    echo
    echo "## $key, batch $batch x $seq, AdamW"
    awk -F'\t' '
        $1 == "profile" {printf "\nProfiled in %d s. Forward and backward: %s.\n", $2, $3}
        $1 == "run" {
            if (!header++) {
                print "\n| algorithm | predicted ms | measured ms (least to most) | measured / predicted | kernels of the step | GPU memory MiB | of the plan | last loss |"
                print "|---|---|---|---|---|---|---|---|"
            }
            printf "| %s | %.2f | %.2f (%.2f to %.2f) | %.3f | %.0f %% | %.0f | %.3f | %s |\n", $2, $3 / 1e6, $4 / 1e6, $5 / 1e6, $6 / 1e6, $4 / $3,
                100 * $7 / $4, $9 / 1048576, $9 / $8, substr($10, 1, 9)
        }
        $1 == "process" {printf "\nThe whole process of `%s` takes %s MiB of the GPU, with the context of CUDA; a step without a recorder %.2f ms.\n", $2, $3, $4}
    ' "$1"
}

part_results() {
    {
        echo "# ferryc on a GPU"
        echo
        echo "Written by \`bench/gpu/run.sh\`. $(cat "$out/gpu.txt"); host: $(cat "$out/cpu.txt")."
        echo "Measured: median of the recorded steps of one run, \`trainer --record\`. Predicted: \`ferryc plan\` on the profile of the"
        echo "same GPU. Kernels of the step: their time alone, as a share of the measured step. GPU memory: pool and scratch."
        for f in "$out"/*-bf16.tsv "$out"/*-fp32.tsv; do
            [ -e "$f" ] && model_table "$f"
        done
        if [ -s "$out/torch.tsv" ]; then
            printf '\n## PyTorch on the same GPU\n\n| model | what | ms | GPU memory MiB |\n|---|---|---|---|\n'
            awk -F'\t' '{printf "| %s | %s | %s | %s |\n", $1, $2, $3, $4}' "$out/torch.tsv"
        fi
        if [ -s "$out/tiny.tsv" ]; then
            printf '\n## A small GPT-2 against PyTorch in float64, 20 steps\n\n| precision | plan | result | ms a step |\n|---|---|---|---|\n'
            awk -F'\t' '{printf "| %s | %s | %s | %.3f |\n", $1, $2, $3, $4 / 1e6}' "$out/tiny.tsv"
        fi
        if [ -s "$out/check.tsv" ]; then
            printf '\n## Conformance on the GPU\n\n| test | exit | passed |\n|---|---|---|\n'
            awk -F'\t' '{printf "| %s | %s | %s |\n", $1, $2, $3}' "$out/check.tsv"
        fi
        if [ -s "$out/sanitize.tsv" ]; then
            printf '\n## compute-sanitizer on two steps\n\n| tool | exit | says |\n|---|---|---|\n'
            awk -F'\t' '{printf "| %s | %s | %s |\n", $1, $2, $3}' "$out/sanitize.tsv"
        fi
        if [ -s "$out/dha.txt" ]; then
            dha_table "$out/dha.txt"
            printf '\n## Host memory read and written by kernels; single kernels\n\n```\n'
            grep -vE 'rows, weight| ratio | of [0-9]+ met' "$out/dha.txt"
            printf '```\n'
        fi
    } >"$out/RESULTS.md"
    [ ! -d "$source/.git" ] || cp "$out/RESULTS.md" "$here/RESULTS.md"
    say "results: $out/RESULTS.md"
}

[ $# -gt 0 ] || set -- check errors tiny bert-base/bf16 bert-base/fp32 roberta-base/bf16 bert-large/bf16 gpt2-medium/bf16 llama-1b/bf16 torch sanitize dha
for part in "$@"; do
    say "---- $part"
    case $part in
    check | errors | tiny | torch | sanitize | dha) part_$part ;;
    results) ;;
    */*) part_model "${part%/*}" "${part#*/}" ;;
    *) part_model "$part" bf16 ;;
    esac
    part_results
done
exit $bad
