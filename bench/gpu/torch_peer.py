"""PyTorch on the models of run.sh, with random weights: forward and backward alone (eager, compiled), and a training step with
everything offloaded by hand: parameters loaded, forward, backward, gradients copied out, fused AdamW on the CPU.
Prints rows: model, what, milliseconds (median), MiB of GPU memory at most."""
import argparse
import statistics
import sys
import time

import torch
import transformers as tf


def make(name):
    if name == "bert-base":
        return tf.BertForMaskedLM(tf.BertConfig())
    if name == "roberta-base":
        return tf.RobertaForMaskedLM(tf.RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1))
    if name == "bert-large":
        return tf.BertForMaskedLM(tf.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096))
    if name == "gpt2-medium":
        return tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=1024, n_layer=24, n_head=16))
    if name == "llama-1b":
        return tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                                                  num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True))
    sys.exit(f"no model '{name}'")


def without_dropout(model):
    for m in model.modules():
        if isinstance(m, torch.nn.Dropout):
            m.p = 0.0
    return model


def timed(step, rounds):
    times = []
    for i in range(rounds + 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if i >= 3:
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def row(name, what, ms):
    print(f"{name}\t{what}\t{ms:.2f}\t{torch.cuda.max_memory_allocated() / 2**20:.0f}", flush=True)
    torch.cuda.reset_peak_memory_stats()


def offloaded(model, ids):
    """Masters and state in fp32 on the CPU, bf16 copies pinned there; one step after the other, as a plain program does it."""
    params = list(model.parameters())
    masters = [p.detach().float().cpu() for p in params]
    pinned = [p.detach().cpu().pin_memory() for p in params]
    grads = [torch.empty_like(p, device="cpu").pin_memory() for p in params]
    for m in masters:
        m.grad = torch.zeros_like(m)
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)

    def step():
        for p, h in zip(params, pinned):
            p.data.copy_(h, non_blocking=True)
        model(input_ids=ids, labels=ids).loss.backward()
        for p, g in zip(params, grads):
            g.copy_(p.grad, non_blocking=True)
            p.grad = None
        torch.cuda.synchronize()
        for m, g in zip(masters, grads):
            m.grad.copy_(g)
        optimizer.step()
        for h, m in zip(pinned, masters):
            h.copy_(m)

    return step


def main():
    options = argparse.ArgumentParser()
    options.add_argument("models", nargs="+")
    options.add_argument("--compile", action="append", default=[], help="also with torch.compile, which takes a while")
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--seq", type=int, default=512)
    o = options.parse_args()
    torch.manual_seed(0)
    for name in o.models:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            model = without_dropout(make(name)).train()
        torch.set_default_dtype(torch.float32)
        ids = torch.randint(0, 256, (o.batch, o.seq), device="cuda")

        def both():
            model.zero_grad(set_to_none=True)
            model(input_ids=ids, labels=ids).loss.backward()

        row(name, "forward and backward, eager", timed(both, 7))
        row(name, "offloaded by hand", timed(offloaded(model, ids), 3))
        del model
        torch.cuda.empty_cache()
    for name in o.compile:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            model = without_dropout(make(name)).train()
        torch.set_default_dtype(torch.float32)
        ids = torch.randint(0, 256, (o.batch, o.seq), device="cuda")
        fast = torch.compile(model)

        def both_compiled():
            model.zero_grad(set_to_none=True)
            fast(input_ids=ids, labels=ids).loss.backward()

        row(name, "forward and backward, torch.compile", timed(both_compiled, 7))
        del model, fast
        torch.cuda.empty_cache()


main()
