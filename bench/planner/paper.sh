#!/usr/bin/env bash
# MemFerry's claims by simulation on an A100 behind PCIe 3, as Markdown: time against the baselines, the reserve factor, memory.
. "$(dirname "$0")/lib.sh"
names="bert-base roberta-base bert-large gpt2-medium"
device=a100-pcie3

faster() { # OTHER BASE: by how many percent BASE is slower
    awk -v a="$(number iteration_ns "$1")" -v b="$(number iteration_ns "$2")" 'BEGIN {printf "%+.1f %%", 100 * (b / a - 1)}'
}
less() { # BYTES BASE
    awk -v a="$(number peak_bytes "$1")" -v b="$(number peak_bytes "$2")" 'BEGIN {printf "%+.1f %%", 100 * (a / b - 1)}'
}

row() { # NAME DIMS CLIP
    local at=$work/$1.$2.$3 options=() a
    profile_of "$1" $device "$at.yaml" "$2"
    [ "$3" = no ] || options+=(--clip)
    for a in native-offload deepspeed-like memferry auto; do plan_of "$at.yaml" "$at.$a" --algorithm "$a" "${options[@]}"; done
    plan_of "$at.yaml" "$at.go" --algorithm go-memferry --reserve-factor 0 "${options[@]}"
    printf '| %s | %s | %s |' "$1" "$2" "$3"
    for a in native-offload deepspeed-like memferry go auto; do printf ' %s |' "$(ms iteration_ns "$at.$a.json")"; done
    for a in native-offload deepspeed-like; do printf ' %s |' "$(faster "$at.memferry.json" "$at.$a.json")"; done
    printf ' %s |' "$(faster "$at.auto.json" "$at.native-offload.json")"
    for a in native-offload deepspeed-like memferry go auto; do printf ' %s |' "$(gib peak_bytes "$at.$a.json")"; done
    printf ' %s | %s |\n' "$(less "$at.memferry.json" "$at.deepspeed-like.json")" "$(less "$at.go.json" "$at.memferry.json")"
}

curve() { # NAME
    local at=$work/curve.$1 f
    profile_of "$1" $device "$at.yaml"
    for f in 0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1; do
        plan_of "$at.yaml" "$at.$f" --algorithm go-memferry --reserve-factor $f
        echo "$f $(number iteration_ns "$at.$f.json") $(number model_ns "$at.$f.json") $(number peak_bytes "$at.$f.json")"
    done >"$at.curve"
    for c in 'ms a step:2:1e6' 'without contention:3:1e6' 'GPU GiB:4:1073741824'; do
        IFS=: read -r what column unit <<<"$c"
        printf '| %s, %s |' "$1" "$what"
        awk -v c="$column" -v unit="$unit" '{printf " %.2f |", $c / unit}' "$at.curve"
        # Convex: the slope never falls. What the largest fall is worth, of the whole range.
        awk -v c="$column" '{y[NR] = $c; low = NR == 1 || $c < low ? $c : low; high = NR == 1 || $c > high ? $c : high}
            END { for (i = 2; i < NR; i++) { bend = y[i + 1] - 2 * y[i] + y[i - 1]; worst = bend < worst ? bend : worst; rises += y[i] > y[i - 1] }
                rises += y[NR] > y[NR - 1]
                printf " %s | %s |\n", rises ? "no, " rises " times up" : "yes", worst == 0 || high == low ? "yes" : sprintf("bends by %.1f %% of the range", -100 * worst / (high - low)) }' "$at.curve"
    done
}

echo "| model | input | clip | native-offload | deepspeed-like | memferry | go-memferry, factor 0 | auto | memferry against native-offload | against deepspeed-like | auto against native-offload | GPU GiB native | deepspeed | memferry | go | auto | memferry's memory against deepspeed-like | go's against memferry |"
echo "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
for name in $names; do
    for dims in batch=8,seq=512 batch=8,seq=128; do
        echo "$name $dims no"
        echo "$name $dims yes"
    done
done | each_line row
echo
echo "| reserve factor | 0 | 0.1 | 0.2 | 0.3 | 0.4 | 0.5 | 0.6 | 0.7 | 0.8 | 0.9 | 1 | never rises | convex |"
echo "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
printf '%s\n' bert-base gpt2-medium | each_line curve
