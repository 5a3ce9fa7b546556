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
    printf '| %s | %s |' "$2" "$(grep -c '^ *{"name":' "$at.native-offload.json")"
    for a in "${algorithms[@]:0:6}"; do printf ' %s |' "$(ms model_ns "$at.$a.json")"; done
    if [ -f "$at.optimal.json" ]; then
        gap=$(number gap_percent "$at.optimal.json")
        printf ' %s | %s |' "$(ms bound_ns "$at.optimal.json")" "$gap"
        echo "$gap $2 on $1" >"$at.gap"
        # What the time is made of says where the bound may be weak.
        awk -v gap="$gap" -v c="$(ms compute_ns "$at.optimal.json")" -v h="$(ms h2d_ns "$at.optimal.json")" \
            -v d="$(ms d2h_ns "$at.optimal.json")" -v u="$(ms update_ns "$at.optimal.json")" -v m="$2" 'BEGIN {
            if (gap <= 0.1) exit
            printf "- %s: %s %% above the bound. Busy in a step: compute %s ms, loads %s ms, stores %s ms, updates %s ms. ", m, gap, c, h, d, u
            print "Either the budget keeps faster plans out (the bound knows no budget), or branch and bound ended at its node limit." }' >"$at.why"
    else
        printf ' - | - |'
    fi
    printf ' %s | %s | %s | %s |\n' "$(ms iteration_ns "$at.memferry.json")" "$([ "$AUTO" = no ] && echo - || ms iteration_ns "$at.auto.json")" \
        "$(cat "$at.optimal.seconds")" "$(cat "$at.auto.seconds" 2>/dev/null || echo -)"
}

[ $# -gt 0 ] || set -- $(cd "$root/examples/devices" && ls -- *.yaml | sed 's/\.yaml$//')
for device in "$@"; do
    echo
    echo "### $device"
    echo
    echo "| model | units | native-offload | deepspeed-like | dha | memferry | go-memferry | optimal | bound | gap % | memferry with contention | auto with contention | seconds optimal | seconds auto |"
    echo "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    awk -v d="$device" '{print d, $1}' <<<"$list" | each_line row
    if cat "$work/$device".*.why 2>/dev/null | grep -q .; then echo; cat "$work/$device".*.why; fi
done
echo
cat "$work"/*.gap | sort -g | awk '{worst = $1} END {print "worst gap " worst + 0}'
