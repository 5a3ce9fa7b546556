"""Tables of what measure.py wrote: table.py OUT/results.jsonl"""
import json
import statistics
import sys

MIB = 1 << 20
runs = {}
for line in open(sys.argv[1]):
    r = json.loads(line)
    runs.setdefault(r["workload"], {})[r["allocator"]] = r

print("| workload | allocator | peak live MiB | peak reserved MiB | reserved / live | first pass s | later pass: tokens/s | median step against "
      "caching | steps with virtual memory calls |\n|---|---|---|---|---|---|---|---|---|")
for workload, of in runs.items():
    for allocator in ("caching", "expandable", "ferry", "ferry-2mib"):
        if allocator not in of:
            continue
        r = of[allocator]
        steps = r["step_ms"]
        first = len(steps) // r["passes"]
        later = steps[first:]
        speed = f"{r['tokens'] * (r['passes'] - 1) / sum(later) * 1e3:.0f}" if later else ""
        beside = ""
        if later and "caching" in of:
            beside = f"{statistics.median(a / b for a, b in zip(later, of['caching']['step_ms'][first:])):.2f}"
        calls = [b - a for a, b in zip([0] + r["vm_calls"], r["vm_calls"])]
        busy = ", ".join(str(i + 1) for i, n in enumerate(calls) if n > 0)
        print(f"| {workload} | {allocator} | {r['live'] / MIB:.0f} | {r['reserved'] / MIB:.0f} | {r['reserved'] / r['live']:.3f} | "
              f"{sum(steps[:first]) / 1e3:.1f} | {speed} | {beside} | {busy} |")
