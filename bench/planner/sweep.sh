#!/usr/bin/env bash
# Plans for 40 budgets from the least to more than enough, as Markdown: time never rises, the peak keeps the budget, each plan is
# proved, each schedule compiles. Ends with 1 when one of these is not so.    sweep.sh [BUDGETS [ALGORITHM [DEVICE]]]; NAMES: of models
. "$(dirname "$0")/lib.sh"
budgets=${1:-40} algorithm=${2:-optimal} device=${3:-rtx4090-pcie4}
key=model_ns # what the algorithm minimises
[ "$algorithm" = optimal ] || key=iteration_ns

point() { # NAME NUMBER MIB
    local at=$work/$1.$2 peak
    "$ferryc" plan "$work/$1.yaml" -o "$at.plan.yaml" --json --algorithm "$algorithm" --mem-budget "$3M" >"$at.json"
    peak=$(number peak_bytes "$at.json")
    [ "$peak" -le $(($3 * 1048576)) ] || { echo "$1: $peak bytes are over the budget of $3 MiB" >&2; return 1; }
    "$ferryc" verify "$at.plan.yaml" >/dev/null
    "$ferryc" emit "$at.plan.yaml" --random-init 1 -o "$at.schedule" >/dev/null 2>&1
    gcc -std=c17 -D_GNU_SOURCE -O0 -Wall -Wextra -Werror -I"$(dirname "$ferryc")/../include" -c "$at.schedule/schedule.c" -o "$at.o"
    rm -rf "$at.schedule" "$at.o"
    echo "$2 $3 $(number $key "$at.json") $peak $(grep -c 'mode: gfgb' "$at.plan.yaml")" \
        "$(grep -c 'mode: dfgb' "$at.plan.yaml") $(grep -c 'mode: dha' "$at.plan.yaml") $(grep -cE 'mode: (reload|resident)' "$at.plan.yaml")" \
        "$(grep -c 'gradient: host' "$at.plan.yaml")"
}

echo "| model | budgets | least MiB | ms at the least | ms at the half | ms at the most | most MiB used | different plans | worst peak / budget |"
echo "|---|---|---|---|---|---|---|---|---|"
for name in ${NAMES:-gpt2-medium llama-1b}; do
    profile_of $name "$device" "$work/$name.yaml"
    "$ferryc" plan "$work/$name.yaml" --dry-run --json --algorithm "$algorithm" >"$work/$name.most.json"
    most=$(($(number peak_bytes "$work/$name.most.json") / 1048576 * 21 / 20))
    code=0
    "$ferryc" plan "$work/$name.yaml" --dry-run --algorithm "$algorithm" --mem-budget 4K >/dev/null 2>"$work/least" || code=$?
    [ "$code" = 3 ]
    least=$(sed -n 's/.*the least that works is \([0-9]*\)MiB.*/\1/p' "$work/least")
    for ((i = 0; i < budgets; i++)); do
        echo "$name $i $((least + (most - least) * i / (budgets - 1)))"
    done | each_line point >"$work/$name.points"
    [ "$(wc -l <"$work/$name.points")" = "$budgets" ]
    awk -v name="$name" -v n="$budgets" '
        { if (NR > 1 && $3 > before) { print name ": slower with " $2 " MiB than with less" > "/dev/stderr"; bad = 1 }
          before = $3; t[NR] = $3; plan[$3 " " $4] = 1; used = $4 > used ? $4 : used; full = $4 / $2 / 1048576 > full ? $4 / $2 / 1048576 : full
          if (NR == 1) least = $2 }
        END { if (bad) exit 1
          different = 0; for (p in plan) different++
          printf "| %s | %d | %d | %.2f | %.2f | %.2f | %d | %d | %.4f |\n", name, n, least, t[1] / 1e6, t[int(n / 2)] / 1e6, t[n] / 1e6,
              used / 1048576, different, full }' "$work/$name.points"
done
