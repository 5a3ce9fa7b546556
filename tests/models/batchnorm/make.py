"""Makes the files of this folder: a small CNN with batch normalization, exported in training mode, 20 batches, and what
PyTorch makes of them in float64 and float32.

    python make.py      (needs torch, onnx, onnxscript, numpy; writes beside itself)

PyTorch's running variance follows the unbiased one of each batch, ONNX' that of the population. The reference follows ONNX:
the outputs of the layers in training mode do not depend on the running statistics, so these are kept apart here."""
import json
import os
import warnings

import numpy as np
import onnx
import onnx.numpy_helper
import torch

warnings.filterwarnings("ignore")
STEPS, BATCH = 20, 8


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm1 = torch.nn.BatchNorm2d(6)
        self.body = torch.nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False) # a bias before a norm has no gradient but noise
        self.norm2 = torch.nn.BatchNorm2d(8, eps=1e-3, momentum=0.3)
        self.skip = torch.nn.Conv2d(6, 8, 1, stride=2)
        self.hidden = torch.nn.Linear(8, 12, bias=False)
        self.norm3 = torch.nn.BatchNorm1d(12)
        self.head = torch.nn.Linear(12, 5)

    def forward(self, pixel_values):
        x = torch.relu(self.norm1(self.stem(pixel_values)))
        x = torch.relu(self.norm2(self.body(x)) + self.skip(x))
        return self.head(torch.tanh(self.norm3(self.hidden(x.mean(dim=(2, 3))))))


def weights():
    torch.manual_seed(20)
    net = Net()
    with torch.no_grad():
        net.hidden.weight.mul_(4)
        for norm in (net.norm1, net.norm2, net.norm3):
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.uniform_(-0.5, 0.5)
            norm.running_mean.uniform_(-0.5, 0.5)
            norm.running_var.uniform_(0.5, 1.5)
    return net.train()


def train(dtype, pixels, labels):
    net = weights().to(dtype)
    running = {}

    def follow(name):
        def hook(module, inputs):
            x, keep = inputs[0].detach(), float(np.float32(1 - module.momentum)) # as the file has it
            axes = [0] + list(range(2, x.dim()))
            for kind, now in (("running_mean", x.mean(axes)), ("running_var", x.var(axes, unbiased=False))):
                key = f"{name}.{kind}"
                old = running.get(key, getattr(module, kind).clone())
                running[key] = old * keep + now * (1 - keep)
        return hook

    for name, module in net.named_modules():
        if name.startswith("norm"):
            module.register_forward_pre_hook(follow(name))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    out = {"loss": [], "grad_norm": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(torch.from_numpy(pixels[step]).to(dtype)),
                                                 torch.from_numpy(labels[step]))
        loss.backward()
        norm = sum(float((p.grad.double() ** 2).sum()) for p in net.parameters()) ** 0.5
        optimizer.step()
        out["loss"].append(float(loss))
        out["grad_norm"].append(norm)
    out["statistics"] = {k: v.tolist() for k, v in sorted(running.items())}
    return out


def export(path, **options):
    net = weights()
    x = torch.zeros(BATCH, 3, 8, 8).normal_()
    torch.onnx.export(net, (x,), path, input_names=["pixel_values"], output_names=["logits"],
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, **options)
    # Tracing ran a forward pass, which moved the running statistics.
    model, first = onnx.load(path), weights().state_dict()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(first[tensor.name].numpy(), tensor.name))
    onnx.save(model, path)


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    random = np.random.default_rng(20)
    labels = random.integers(0, 5, (STEPS, BATCH))
    pixels = random.normal(size=(STEPS, BATCH, 3, 8, 8)).astype(np.float32) * 0.7
    pixels += labels[:, :, None, None, None].astype(np.float32) * 0.2 # something to learn
    os.makedirs("data", exist_ok=True)
    np.save("data/pixel_values.npy", pixels)
    np.save("data/labels.npy", labels.astype(np.int64))
    axes = {"pixel_values": {0: "batch"}, "logits": {0: "batch"}}
    for opset, name in ((17, "ts.onnx"), (13, "ts13.onnx"), (7, "ts7.onnx")):
        export(name, opset_version=opset, dynamo=False, dynamic_axes=axes)
    reference = {str(t).split(".")[1]: train(t, pixels, labels) for t in (torch.float32, torch.float64)}
    with open("reference.json", "w") as f:
        json.dump(reference, f, indent=1)
        f.write("\n")


main()
