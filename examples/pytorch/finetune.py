"""Fine-tunes a small language model on a text, byte by byte, with batches of varying length: the case in which PyTorch's allocator
holds much more memory than is in use. With --allocator torch the same without the stitching allocator.

    PYTHONPATH=pytorch python3 examples/pytorch/finetune.py [--allocator ferry|torch] [--steps 100] [--text FILE]"""
import argparse
import os
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

p = argparse.ArgumentParser()
p.add_argument("--allocator", choices=["ferry", "torch"], default="ferry")
p.add_argument("--steps", type=int, default=100)
p.add_argument("--hidden", type=int, default=1024)
p.add_argument("--layers", type=int, default=12)
p.add_argument("--device", default="cuda")
p.add_argument("--text", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpt2", "text.txt"))
options = p.parse_args()

if options.allocator == "ferry" and options.device == "cuda":
    import ferry_torch

    ferry_torch.enable()  # the one line


class Layer(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.qkv, self.out = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x):
        b, s, n = x.shape
        q, k, v = (t.view(b, s, n // 64, 64).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, n))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, n, layers, vocabulary=256, longest=1024):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, n), nn.Embedding(longest, n)
        self.layers = nn.ModuleList(Layer(n) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(n), nn.Linear(n, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(self.norm(x))


torch.manual_seed(0)
draw = random.Random(0)
text = torch.tensor(list(open(options.text, "rb").read()))
model = Model(options.hidden, options.layers).to(options.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
for step in range(options.steps):
    batch, seq = draw.randint(4, 8), draw.randint(128, 1023)
    starts = [draw.randrange(len(text) - seq - 1) for _ in range(batch)]
    rows = torch.stack([text[s : s + seq + 1] for s in starts]).to(options.device)
    with torch.autocast(options.device, torch.bfloat16):
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1).float(), rows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0 or step == options.steps - 1:
        print(f"step {step}: loss {loss.item():.3f}")

if options.device == "cuda":
    if options.allocator == "ferry":
        s = ferry_torch.stats()
        live, reserved = s["peak_live_bytes"], s["peak_reserved_bytes"]
    else:
        live, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"peak live {live / 2**20:.0f} MiB, peak reserved {reserved / 2**20:.0f} MiB, ratio {reserved / live:.3f}")
