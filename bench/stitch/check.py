"""On a GPU, under the stitching allocator: tensors of random sizes on several streams keep their contents, memory that runs out is
an exception and goes on working, empty_cache gives memory back. Prints 'check passed'."""
import os
import random
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "pytorch"))
import ferry_torch

MIB = 1 << 20


def main():
    ferry_torch.enable()
    draw = random.Random(1)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    live, bytes_live, wrong = [], 0, torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for n in range(6000):
        if draw.random() < 0.52 and bytes_live < 12000 * MIB or not live:
            words = draw.choice([draw.randint(1, 60000), draw.randint(1 << 17, 1 << 23), draw.choice([1 << 20, 3 << 20, 7 << 21])])
            i = draw.randrange(3)
            with torch.cuda.stream(streams[i]):
                live.append((torch.full((words,), n, dtype=torch.int64, device="cuda"), n, i))
            bytes_live += 8 * words
        else:
            t, value, i = live.pop(draw.randrange(len(live)))
            bytes_live -= 8 * t.numel()
            j = draw.randrange(3) if draw.random() < 0.3 else i
            if j != i:  # used by another stream, which waits for its contents and of which the allocator is told
                streams[j].wait_stream(streams[i])
                t.record_stream(streams[j])
            with torch.cuda.stream(streams[j]):
                bad = (t != value).sum()
                bad.record_stream(streams[0])
            streams[0].wait_stream(streams[j])
            wrong += bad
            del t
    torch.cuda.synchronize()
    s = ferry_torch.stats()
    print("states", [s[f"s{i}"] for i in range(1, 6)], "reserved / live", s["peak_reserved_bytes"] / s["peak_live_bytes"],
          "adopted MiB", s["adopted_bytes"] // MIB, "sblocks", s["sblocks"])
    assert wrong.item() == 0, f"{wrong.item()} words changed"
    assert s["s3"] > 0 and s["s4"] > 0
    try:
        torch.empty(1 << 38, dtype=torch.uint8, device="cuda")
        raise AssertionError("256 GiB were allocated")
    except RuntimeError as e:
        assert "out of memory" in str(e), e
    hold = []
    try:
        while True:
            hold.append(torch.empty(3 << 30, dtype=torch.uint8, device="cuda"))
    except RuntimeError as e:
        assert "out of memory" in str(e), e
    assert len(hold) > 10
    hold[0].fill_(1)
    assert hold[0][-1].item() == 1
    live.clear()
    hold.clear()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    torch.cuda.empty_cache()
    after = torch.cuda.mem_get_info()[0]
    assert after - before > 50 << 30, (before, after)
    assert torch.ones(1000, device="cuda").sum().item() == 1000
    print("check passed")


main()
