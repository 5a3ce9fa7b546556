#!/usr/bin/env bash
# Installs the packages that ferryc needs on Debian or Ubuntu, when they are missing. Arguments: more packages.
set -eu
packages=(build-essential cmake ninja-build pkg-config protobuf-c-compiler libprotobuf-c-dev libyaml-dev libjansson-dev
    libxxhash-dev libopenblas-dev libglpk-dev "$@")
missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "installing: ${missing[*]}" >&2
sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
