#!/usr/bin/env bash
# The algorithms on full-size models and described GPUs, as Markdown.    models.sh [DEVICE...]
# AUTO=no leaves out `auto`, which takes nine tenths of the time.
. "$(dirname "$0")/lib.sh"
AUTO=${AUTO:-yes}
algorithms=(native-offload deepspeed-like dha memferry go-memferry optimal auto)

row() { # DEVICE NAME
    local at=$work/$1.$2 a gap
    if ! profile_of "$2" "$1" "$at.yaml"; then
        echo "| $2 | not imported: $(grep -m1 error "$at.yaml.error" | sed "s|$models/||; s/|/\\\\|/g") |"
        return
    fi
    for a in "${algorithms[@]}"; do
        [ "$a$AUTO" = autono ] || plan_of "$at.yaml" "$at.$a" --algorithm "$a" || true
    done
    printf '| %s | %s |' "$2" "$(grep -c '^ *{"name":' "$(ls "$at".*.json | head -1)")"
    for a in "${algorithms[@]:0:6}"; do printf ' %s |' "$(ms model_ns "$at.$a.json")"; done
    if [ -f "$at.optimal.json" ]; then
        plan_of "$at.yaml" "$at.free" --algorithm optimal --mem-budget 1T --host-budget 1T
        gap=$(number gap_percent "$at.optimal.json") free=$(number gap_percent "$at.free.json")
        printf ' %s | %s | %s |' "$(ms bound_ns "$at.optimal.json")" "$free" "$gap"
        echo "$free $2 on $1" >"$at.gap"
        echo "$gap $2 on $1" >"$at.kept"
        awk -v gap="$gap" -v free="$free" -v m="$2" -v d="$1" -v peak="$(gib peak_bytes "$at.free.json")" \
            -v memory="$(gib budget_bytes "$at.optimal.json")" -v host="$(gib host_bytes "$at.free.json")" 'BEGIN {
            if (free > 0.1) printf "- %s: %s %% between plan and bound, without a budget. Branch and bound ended at its limit of work, not at the optimum.\n", m, free
            if (gap - free > 0.1) printf "- %s: %s %% above the bound under the memory of this device. The plan that is %s %% above it takes %s GiB of GPU memory (there are %s) and %s GiB of pinned memory.\n", m, gap, free, peak, memory, host }' >"$at.why"
    else
        printf ' - | - | - |'
    fi
    printf ' %s | %s | %s | %s |\n' "$(ms iteration_ns "$at.memferry.json")" "$([ "$AUTO" = no ] && echo - || ms iteration_ns "$at.auto.json")" \
        "$(cat "$at.optimal.seconds")" "$(cat "$at.auto.seconds" 2>/dev/null || echo -)"
}

[ $# -gt 0 ] || set -- $(cd "$root/examples/devices" && ls -- *.yaml | sed 's/\.yaml$//')
for device in "$@"; do
    echo
    echo "### $device"
    echo
    echo "| model | units | native-offload | deepspeed-like | dha | memferry | go-memferry | optimal | bound | gap %, no budget | gap % | memferry with contention | auto with contention | seconds optimal | seconds auto |"
    echo "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    awk -v d="$device" '{print d, $1}' <<<"$list" | each_line row
    if cat "$work/$device".*.why 2>/dev/null | grep -q .; then echo; cat "$work/$device".*.why; fi
done
echo
sort -g "$work"/*.kept | awk '{worst = $0} END {print "worst plan under a device\047s memory: " worst}'
sort -g "$work"/*.gap | awk '{worst = $1} END {print "worst gap " worst + 0}'
