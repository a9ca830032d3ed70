#!/usr/bin/env python3
"""The whole model's loss, logits and gradients against PyTorch in float64.

    torch_gradients.py PROGRAM

The model is written here a second time, from the description of the checkpoint's layout, and differentiated by PyTorch's autograd. For each
position strategy a small model is trained for some steps, `PROGRAM grads` computes loss, logits and gradients on random tokens, and every tensor must
agree to 1e-9 of its largest entry. Exit status: 0 they do, 1 they do not, 77 (skipped) where torch, numpy or safetensors is missing.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    import torch.nn.functional as F
    from safetensors import safe_open
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error.name} is not installed")
    sys.exit(77)

TOLERANCE = 1e-9
SHAPES = [  # layers, width, heads, context, sequences, tied
    (2, 32, 4, 24, 3, True),
    (1, 16, 1, 7, 1, False),
    (3, 48, 3, 65, 2, True),  # alibi's rule for heads that are no power of two; more than one tile
]


def rotate(x, base):
    """RoPE on interleaved pairs, [B, H, T, D]: R(n w_k), w_k = base^(-2k/D)."""
    length, dim = x.shape[-2:]
    frequency = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def alibi_slopes(heads):
    """Press et al., 2022: a geometric sequence; for other head counts every second slope of twice the next lower power of two is appended."""
    def power(n):
        return [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]
    lower = 2 ** int(math.log2(heads))
    return power(lower) + power(2 * lower)[0::2][: heads - lower]


def forward(w, config, position, tokens):
    heads, epsilon = config["heads"], config["norm_epsilon"]
    batch, length = tokens.shape
    width = config["width"]
    bias = torch.full((length, length), -math.inf, dtype=torch.float64).triu(1).expand(heads, -1, -1)
    if position == "alibi":
        lag = torch.arange(length)[:, None] - torch.arange(length)[None, :]
        bias = bias - torch.tensor(alibi_slopes(heads), dtype=torch.float64)[:, None, None] * lag
    x = w["tok_embed.weight"][tokens]
    for layer in range(config["layers"]):
        p = f"blocks.{layer}."
        norm = F.layer_norm(x, (width,), w[p + "norm1.weight"], w[p + "norm1.bias"], epsilon)
        qkv = norm @ w[p + "attn.qkv.weight"].T + w[p + "attn.qkv.bias"]
        q, k, v = (part.view(batch, length, heads, -1).transpose(1, 2) for part in qkv.split(width, dim=-1))
        if position == "rope":
            q, k = rotate(q, 10000.0), rotate(k, 10000.0)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads) + bias
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + mixed @ w[p + "attn.out.weight"].T + w[p + "attn.out.bias"]
        norm = F.layer_norm(x, (width,), w[p + "norm2.weight"], w[p + "norm2.bias"], epsilon)
        up = F.gelu(norm @ w[p + "mlp.up.weight"].T + w[p + "mlp.up.bias"], approximate="tanh")
        x = x + up @ w[p + "mlp.down.weight"].T + w[p + "mlp.down.bias"]
    x = F.layer_norm(x, (width,), w["norm_f.weight"], w["norm_f.bias"], epsilon)
    return x @ w["tok_embed.weight" if config["tied"] else "lm_head.weight"].T


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join([program, *map(str, arguments)])}\nexit status {done.returncode}: {done.stderr}")


def compare(program, folder, position, shape):
    """The worst error over all tensors, relative to each one's largest entry, and its tensor."""
    layers, width, heads, context, sequences, tied = shape
    data, out = os.path.join(folder, "data.txt"), os.path.join(folder, f"{position}-{width}")
    generator = numpy.random.default_rng(width)
    with open(data, "wb") as file:
        file.write(generator.integers(32, 127, 20000, dtype=numpy.uint8).tobytes())
    run(program, "train", "--data", data, "--out", out, "--layers", layers, "--width", width, "--heads", heads, "--context", context,
        "--position", position, "--batch", 4, "--steps", 20, "--lr", 0.01, "--dtype", "f64", *([] if tied else ["--untied"]))
    rows = generator.integers(0, 256, (sequences, context + 1))
    tokens, result = os.path.join(folder, "tokens.txt"), os.path.join(folder, "grads.safetensors")
    numpy.savetxt(tokens, rows, fmt="%d")
    run(program, "grads", out, "--tokens", tokens, "--out", result, "--dtype", "f64")

    checkpoint = os.path.join(out, "checkpoint.safetensors")
    with safe_open(checkpoint, "pt") as file:
        config = json.loads(file.metadata()["config"])
    ours = load_file(result)
    names = [name.removeprefix("grad.") for name in ours if name.startswith("grad.")]
    stored = load_file(checkpoint)
    weights = {name: stored[name].clone().requires_grad_() for name in names}
    assert config["tied"] == tied and ("lm_head.weight" in weights) != tied
    assert all(weight.dtype == torch.float64 for weight in weights.values())

    logits = forward(weights, config, position, torch.from_numpy(rows[:, :-1]))
    loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(rows[:, 1:]).flatten())
    loss.backward()
    pairs = [("loss", ours["loss"], loss.detach()), ("logits", ours["logits"], logits.detach())]
    pairs += [(name, ours["grad." + name], weights[name].grad) for name in names]
    worst = (0.0, "")
    for name, mine, theirs in pairs:
        if mine.shape != theirs.shape:
            sys.exit(f"{name}: shape {tuple(mine.shape)}, PyTorch has {tuple(theirs.shape)}")
        error = ((mine - theirs).abs().max() / theirs.abs().max()).item()
        worst = max(worst, (error if math.isfinite(error) else math.inf, name))
    return worst


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for position in ("none", "rope", "alibi"):
            for shape in SHAPES:
                error, name = compare(sys.argv[1], folder, position, shape)
                failed |= not error <= TOLERANCE
                print(f"{position:6} layers {shape[0]} width {shape[1]} heads {shape[2]} T {shape[3]}: worst relative error {error:.2e} in {name}"
                      f"{'' if error <= TOLERANCE else '  FAILED'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
