#!/usr/bin/env bash
# gradient_column.sh SOURCE FERRYC COVERED...: the gradient column of `ferryc inspect --ops` is what the gradient tests compare with
# differences. COVERED are the lists of operators that test_onnx_gradients --covered wrote.
set -eu
export LC_ALL=C
source=$1 ferryc=$2
shift 2
status=0
"$ferryc" inspect --ops | awk -F'|' '$6 ~ /yes|zero/ {gsub(/ /, "", $2); print $2}' | sort -u >claimed.txt
sort -u "$@" >covered.txt
[ "$(wc -l <claimed.txt)" -gt 80 ] || { echo "only $(wc -l <claimed.txt) operators have a gradient"; exit 1; }
comm -23 claimed.txt covered.txt >elsewhere.txt
list=$source/tests/onnx/gradients_elsewhere.txt
grep -v '^#' "$list" | while IFS=': ' read -r op file; do
    grep -q "\"$op\"" "$source/$file" || { echo "$file does not test $op"; exit 1; }
done || status=1
grep -v '^#' "$list" | cut -d: -f1 | sort -u | diff - elsewhere.txt || {
    echo "the operators above have a gradient that no test compares (>), or are listed without need (<): $list"
    status=1
}
echo "$(wc -l <claimed.txt) operators with a gradient, $(comm -12 claimed.txt covered.txt | wc -l) in the test data," \
    "$(wc -l <elsewhere.txt) in other tests"
exit $status
