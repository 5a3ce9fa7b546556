#!/usr/bin/env bash
# Compares brute force, the optimum, its bound and the solver's answer on many random instances.
#   bench/planner/random.sh [INSTANCES]     default 2000; BUILD: the build folder, default build
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
FERRY_RANDOM_INSTANCES=${1:-2000} "${BUILD:-$root/build}/bin/test_optimal"
