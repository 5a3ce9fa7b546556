#!/usr/bin/env bash
# Line coverage of the host build: builds with gcov in build-coverage, runs the tests there, prints a table by folder and the files
# under FERRY_COVERAGE_LEAST (80) percent. Arguments go to ctest: scripts/coverage.sh -R 'test_plan|e2e_plans'.
set -eu
cd "$(dirname "$0")/.."
scripts/install.sh libonnx-testdata libcmocka-dev clang xz-utils
export OPENBLAS_NUM_THREADS=1
dir=build-coverage
cmake -S . -B $dir -G Ninja -DFERRY_COVERAGE=ON -DFERRY_CUDA=OFF -DCMAKE_BUILD_TYPE=Debug >/dev/null
cmake --build $dir -j "$(nproc)"
find $dir -name '*.gcda' -delete
# The demo builds its own tree. A test that fails is reported, and what ran still counts.
ctest --test-dir $dir -j "$(nproc)" --output-on-failure -E 'e2e_demo' "$@" || echo "coverage: some tests failed" >&2

root=$PWD
find "$root/$dir/CMakeFiles" -name '*.gcda' | while read -r data; do
    (cd "$root/$dir" && gcov -n -r -s "$root" -o "$(dirname "$data")" "$data" 2>/dev/null)
done | awk -v least="${FERRY_COVERAGE_LEAST:-80}" '
    /^File / { gsub(/^File .|.$/, ""); file = $0 }
    # A file that is compiled into several objects counts by the object that ran most of it.
    /^Lines executed:/ && file != "" && file !~ /^\// && file !~ /pb-c/ {
        split($0, part, /[:% ]+/)
        percent = part[3]; lines = part[5]
        if (!(file in size) || percent * lines > hit[file]) { size[file] = lines; hit[file] = percent * lines }
        file = ""
    }
    END {
        for (f in size) {
            folder = f; if (sub(/\/[^\/]*$/, "", folder) == 0) folder = "."
            lines_of[folder] += size[f]; hit_of[folder] += hit[f]
            all += size[f]; all_hit += hit[f]
        }
        if (all == 0) { print "no coverage was recorded"; exit 1 }
        printf "%-40s %8s %8s\n", "folder", "lines", "covered"
        for (folder in lines_of)
            printf "%-40s %8d %7.1f%%\n", folder, lines_of[folder], hit_of[folder] / lines_of[folder] | "sort"
        close("sort")
        printf "%-40s %8d %7.1f%%\n\nunder %d%%:\n", "all", all, all_hit / all, least
        for (f in size)
            if (size[f] > 0 && hit[f] / size[f] < least)
                printf "%-40s %8d %7.1f%%\n", f, size[f], hit[f] / size[f] | "sort"
        close("sort")
    }'
