"""Fine-tuning runs whose allocations are measured: GPT-2, OPT and Llama shapes with random weights in bf16.

A workload is a model name and a set of letters: L LoRA (rank 16 on the attention projections), R recomputation of each layer,
O optimizer on the CPU, A activations kept on the CPU. Batch (4 to 8) and sequence length (128 to 1023) are drawn anew for each
step, from a fixed seed. Needs PyTorch alone."""
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

MODELS = {
    # hidden, layers, heads, key/value heads, feed-forward, vocabulary
    "gpt2": (768, 12, 12, 12, 3072, 50257),
    "gpt2-medium": (1024, 24, 16, 16, 4096, 50257),
    "opt-1.3b": (2048, 24, 32, 32, 8192, 50272),
    "llama-1.1b": (2048, 22, 32, 4, 5632, 32000),
}
POSITIONS = 1024


class Lora(nn.Module):
    """y = base(x) + b(a(x)); the base is frozen."""

    def __init__(self, base, device, rank=16):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False, device=device, dtype=base.weight.dtype)
        self.b = nn.Linear(rank, base.out_features, bias=False, device=device, dtype=base.weight.dtype)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x)) * 2.0


class RmsNorm(nn.Module):
    def __init__(self, n, **where):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n, **where))

    def forward(self, x):
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotate(x):  # [batch, heads, seq, head]
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[2], device=x.device)[:, None] * torch.arange(half, device=x.device)[None, :].float().mul(-9.2 / half).exp()
    cos, sin = torch.cat([angle.cos()] * 2, -1).to(x.dtype), torch.cat([angle.sin()] * 2, -1).to(x.dtype)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Layer(nn.Module):
    def __init__(self, name, lora, **where):
        super().__init__()
        n, _, self.heads, self.kv, ff, _ = MODELS[name]
        self.llama = name.startswith("llama")
        self.gelu = name.startswith("gpt2")
        norm = RmsNorm if self.llama else nn.LayerNorm
        self.norm1, self.norm2 = norm(n, **where), norm(n, **where)
        head = n // self.heads
        linear = lambda i, o: nn.Linear(i, o, bias=not self.llama, **where)
        wrap = lambda m: Lora(m, where["device"]) if lora else m
        self.q, self.k, self.v = wrap(linear(n, n)), linear(n, self.kv * head), wrap(linear(n, self.kv * head))
        self.o = linear(n, n)
        self.up, self.down = linear(n, ff), linear(ff, n)
        self.gate = linear(n, ff) if self.llama else None

    def forward(self, x):
        b, s, n = x.shape
        y = self.norm1(x)
        q, k, v = (p(y).view(b, s, h, -1).transpose(1, 2) for p, h in ((self.q, self.heads), (self.k, self.kv), (self.v, self.kv)))
        if self.llama:
            q, k = rotate(q), rotate(k)
            k, v = (t.repeat_interleave(self.heads // self.kv, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, n)
        x = x + self.o(y)
        y = self.norm2(x)
        if self.llama:
            y = F.silu(self.gate(y)) * self.up(y)
        elif self.gelu:
            y = self.up(y)
            y = 0.5 * y * (1.0 + torch.tanh(0.79788456 * (y + 0.044715 * torch.pow(y, 3.0))))
        else:
            y = F.relu(self.up(y))
        return x + self.down(y)


class Model(nn.Module):
    def __init__(self, name, letters, device):
        super().__init__()
        where = {"device": device, "dtype": torch.bfloat16}
        n, layers, *_, vocab = MODELS[name]
        self.recompute = "R" in letters
        self.tokens = nn.Embedding(vocab, n, **where)
        self.places = None if name.startswith("llama") else nn.Embedding(POSITIONS, n, **where)
        self.layers = nn.ModuleList(Layer(name, "L" in letters, **where) for _ in range(layers))
        self.norm = nn.LayerNorm(n, **where)
        self.head = nn.Linear(n, vocab, bias=False, **where)
        if self.places is not None:
            self.head.weight = self.tokens.weight
        if "L" in letters:
            for key, p in self.named_parameters():
                p.requires_grad_(".a." in key or ".b." in key)

    def forward(self, ids, labels):
        x = self.tokens(ids)
        if self.places is not None:
            x = x + self.places(torch.arange(ids.shape[1], device=ids.device))
        if self.recompute and not x.requires_grad:
            x.requires_grad_(True)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False) if self.recompute else layer(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))


class CpuOptimizer:
    """Gradients go to the CPU, new weights come back: what the GPU sees of an offloaded optimizer. (Plain descent, to save time.)"""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        pin = bool(self.parameters) and self.parameters[0].is_cuda
        self.weights = [torch.empty_like(p, device="cpu", pin_memory=pin).copy_(p.detach()) for p in self.parameters]
        self.gradients = [torch.empty_like(w, pin_memory=pin) for w in self.weights]

    def step(self):
        for p, g in zip(self.parameters, self.gradients):
            g.copy_(p.grad, non_blocking=True)
        if self.parameters[0].is_cuda:
            torch.cuda.synchronize()
        for p, w, g in zip(self.parameters, self.weights, self.gradients):
            w.add_(g, alpha=-1e-4)
            p.data.copy_(w, non_blocking=True)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


def shapes(steps, seed=1):
    draw = random.Random(seed)
    return [(draw.randint(4, 8), draw.randint(128, 1023)) for _ in range(steps)]


class Run:
    def __init__(self, name, letters, device):
        torch.manual_seed(0)
        self.device, self.letters = device, letters
        self.model = Model(name, letters, device)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = CpuOptimizer(trained) if "O" in letters else torch.optim.AdamW(trained, lr=1e-5, foreach=True)
        self.vocab = MODELS[name][5]

    def step(self, batch, seq):
        ids = torch.randint(0, self.vocab, (batch, seq)).to(self.device)
        if "A" in self.letters:
            with torch.autograd.graph.save_on_cpu(pin_memory=False):
                loss = self.model(ids, ids)
        else:
            loss = self.model(ids, ids)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


WORKLOADS = [("opt-1.3b", "LR"), ("opt-1.3b", "R"), ("opt-1.3b", "RO"), ("opt-1.3b", "LRO"), ("gpt2-medium", ""),
             ("llama-1.1b", "LR"), ("llama-1.1b", "RA"), ("gpt2", "L")]
