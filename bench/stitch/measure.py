"""Runs the workloads on a GPU under PyTorch's caching allocator, its expandable segments, and ours; see run.sh and gpu.sh.

    measure.py OUT [--parallel N] [--steps N] [--passes N] [--trace] [--seconds S] [--allocators a,b] WORKLOAD...

A workload is MODEL:LETTERS. One line of JSON for each run goes to OUT/results.jsonl; --trace writes OUT/traces/*.txt.xz, recorded
from PyTorch's memory history. Each run is a process of its own, forked after the import of PyTorch. Runs that would begin after
S seconds are left out, and said so."""
import argparse
import json
import lzma
import os
import sys
import time

import torch

import workloads

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "pytorch"))
MARK_BYTES = 1000003  # an allocation of this size is not the run's: it marks the end of a step


def write_trace(path, note):
    """PyTorch's memory history as a trace (TRACES.md)."""
    lines, ids, streams = ["ferry-trace 1", f"# {note}"], {}, {}
    count = 0
    for e in torch.cuda.memory._snapshot()["device_traces"][0]:
        if e["action"] == "alloc":
            if e["size"] == MARK_BYTES or e["size"] == (MARK_BYTES + 511) // 512 * 512:
                lines.append("s")
                continue
            stream = streams.setdefault(e["stream"], len(streams))
            lines.append(f"a {e['size']} {stream}" if stream else f"a {e['size']}")
            ids[e["addr"]] = count
            count += 1
        elif e["action"] == "free_completed" and e["addr"] in ids:
            lines.append(f"f {ids.pop(e['addr'])}")
    with lzma.open(path, "wt", preset=9) as f:
        f.write("\n".join(lines) + "\n")


def run(name, letters, allocator, options):
    start = time.time()
    if allocator == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
        if hasattr(torch.cuda.memory, "_set_allocator_settings"):
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    elif allocator.startswith("ferry"):  # ferry-2mib: all chunks of that size, as GMLake's
        import ferry_torch

        ferry_torch.enable(large_chunk=0 if allocator == "ferry" else int(allocator[6:-3]) << 20)
    trace = options.trace and allocator == "caching"
    if trace:
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=10000000)
    r = workloads.Run(name, letters, "cuda")
    result = {"workload": f"{name}:{letters}", "allocator": allocator, "passes": options.passes, "build_s": time.time() - start, "step_ms": [], "vm_calls": []}
    shapes = workloads.shapes(options.steps)
    for _ in range(options.passes):
        for batch, seq in shapes:
            begin = time.time()
            loss = r.step(batch, seq).item()
            result["step_ms"].append(round(1e3 * (time.time() - begin), 2))
            if trace:
                torch.empty(MARK_BYTES, dtype=torch.uint8, device="cuda")
            if allocator.startswith("ferry"):
                s = ferry_torch.stats()
                result["vm_calls"].append(sum(s[k] for k in ("creates", "releases", "maps", "unmaps", "allows", "reserves")))
                result.setdefault("states", []).append([s[f"s{i}"] for i in range(1, 6)])
    result["tokens"] = sum(b * s for b, s in shapes)
    result["loss"] = loss
    if allocator.startswith("ferry"):
        s = ferry_torch.stats()
        result.update(live=s["peak_live_bytes"], reserved=s["peak_reserved_bytes"], stats=s)
    else:
        result.update(live=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved())
        segments = {s["is_expandable"] for s in torch.cuda.memory_snapshot()}
        assert segments == {allocator == "expandable"}, segments
    result["all_s"] = time.time() - start
    if trace:
        os.makedirs(os.path.join(options.out, "traces"), exist_ok=True)
        note = f"{name} {letters or '-'}, bf16, {options.steps} steps, PyTorch {torch.__version__}, {torch.cuda.get_device_name()}"
        write_trace(os.path.join(options.out, "traces", f"{name}-{letters or 'plain'}.txt.xz"), note)
    with open(os.path.join(options.out, "results.jsonl"), "a") as f:
        f.write(json.dumps(result) + "\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("workloads", nargs="+")
    p.add_argument("--parallel", type=int, default=1)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--passes", type=int, default=1)
    p.add_argument("--trace", action="store_true")
    p.add_argument("--seconds", type=float, default=1e9)
    p.add_argument("--allocators", default="caching,ferry,expandable")
    options = p.parse_args()
    os.makedirs(options.out, exist_ok=True)
    jobs = [(*w.split(":"), a) for w in options.workloads for a in options.allocators.split(",")]
    start, running, failed = time.time(), {}, 0
    while jobs or running:
        while jobs and len(running) < options.parallel:
            job = jobs.pop(0)
            if time.time() - start > options.seconds:
                print("left out for time:", *job, flush=True)
                failed = 1
                continue
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    run(*job, options)
                    code = 0
                except BaseException:
                    import traceback

                    traceback.print_exc()
                sys.stderr.flush()
                os._exit(code)
            running[pid] = job
        if running:
            pid, status = os.wait()
            job = running.pop(pid)
            print("failed:" if status else "done:", *job, f"{time.time() - start:.1f} s", flush=True)
            failed |= status != 0
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
