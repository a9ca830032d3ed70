#!/usr/bin/env python3
"""Conformance vectors against Hugging-Face-style RoPE and ALiBi, written in PyTorch.

    kernel_vectors.py PROGRAM [FILE.json]

An example of how to test a position strategy of one's own: `PROGRAM kernel --vectors` writes inputs and what must come out, in float64
(experiments/kernel_vectors.schema.json says in which form), and here stands another implementation. RoPE is written as it is in the Hugging Face
world, with cos and sin tables of D columns and a rotate_half; ALiBi as a matrix added to the scores. Logits, outputs and gradients must agree to
1e-12 of each tensor's largest entry. Exit status: 0 they do, 1 they do not, 77 (skipped) where torch is missing. Where the `jsonschema` package is
installed the file is held against the schema, too.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError:
    print("skipped: torch is not installed (pip install torch)")
    sys.exit(77)

TOLERANCE = 1e-12


# ---- the implementations under test: replace them by yours ------------------------------------------------------------------------------------------

def rotate_half(x):
    """(x1, x2) -> (-x2, x1) of the two halves of the last dimension."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rope_tables(length, dim, base=10000.0, stretch=1.0):
    """cos and sin [T, D] of position / stretch times base^(-2k/D), each frequency twice, half by half."""
    frequency = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float64) / stretch, frequency)
    both = torch.cat((angle, angle), dim=-1)
    return both.cos(), both.sin()


def apply_rope(x, tables):
    """x [B, H, T, D]."""
    cos, sin = tables
    return x * cos + rotate_half(x) * sin


def halves_of_pairs(x):
    """(x0, x1), (x2, x3), ... -> x0, x2, ..., x1, x3, ...: what turns weights for interleaved pairs into weights for halves."""
    return torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)


def alibi_bias(heads, length):
    """[H, T, T]: -m_h (i - j), m_h = 2^(-8h/H) for h = 1..H, H a power of two."""
    slope = torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)], dtype=torch.float64)
    position = torch.arange(length, dtype=torch.float64)
    return -slope[:, None, None] * (position[:, None] - position[None, :])


# ---- what runs them on a vector -------------------------------------------------------------------------------------------------------------------

def rope(pairing="interleaved", base=10000.0, scaling="none", factor=1.0):
    def logits(q, k):
        dim = q.shape[-1]
        stretch, own_base = 1.0, base
        if scaling == "linear":
            stretch = factor
        if scaling == "ntk":
            own_base = base * factor ** (dim / (dim - 2))
        tables = rope_tables(q.shape[-2], dim, own_base, stretch)
        if pairing == "interleaved":  # the scores of permuted coordinates are the same
            q, k = halves_of_pairs(q), halves_of_pairs(k)
        return apply_rope(q, tables) @ apply_rope(k, tables).transpose(-1, -2) / math.sqrt(dim)
    return logits


def alibi(q, k):
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + alibi_bias(q.shape[1], q.shape[2])


def none(q, k):
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


KNOWN = {
    "none": none,
    "alibi": alibi,
    "rope": rope(),
    "rope(base=500000,pairing=half)": rope(pairing="half", base=500000.0),
    "rope(scaling=linear,factor=4)": rope(scaling="linear", factor=4.0),
    "rope(scaling=ntk,factor=4)": rope(scaling="ntk", factor=4.0),
}


def tensor(entry):
    data = [math.nan if number is None else number for number in entry["data"]]
    return torch.tensor(data, dtype=torch.float64).reshape(entry["shape"])


def worst_error(vector, logits_of):
    """The largest error over all tensors, relative to each one's largest entry, and its tensor."""
    leaf = {name: tensor(vector["inputs"][name]).requires_grad_() for name in ("q", "k", "v")}
    q, k, v = (leaf[name].transpose(1, 2) for name in ("q", "k", "v"))  # [B, H, T, D]
    logits = logits_of(q, k)
    future = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    output = (logits.masked_fill(future, -math.inf).softmax(-1) @ v).transpose(1, 2)
    (tensor(vector["output_weights"]) * output).sum().backward()
    expected = tensor(vector["logits"])
    assert (expected.isnan() == future).all(), "null must stand where j > i, and only there"
    pairs = [("logits", logits[:, :, ~future], expected[:, :, ~future]), ("output", output, tensor(vector["output"]))]
    pairs += [("gradient of " + name, leaf[name].grad, tensor(vector["gradients"][name])) for name in leaf]
    errors = [((mine - theirs).abs().max() / theirs.abs().max()).item() for _, mine, theirs in pairs]
    return max((error if math.isfinite(error) else math.inf, name) for error, (name, _, _) in zip(errors, pairs))


def check_schema(document):
    try:
        import jsonschema
    except ImportError:
        print("not held against the schema: the jsonschema package is not installed")
        return
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "experiments", "kernel_vectors.schema.json")
    with open(path, encoding="utf-8") as file:
        jsonschema.validate(document, json.load(file))
    print("the file is as its schema says")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        path = sys.argv[2] if len(sys.argv) == 3 else os.path.join(folder, "vectors.json")
        if len(sys.argv) == 2:
            subprocess.run([sys.argv[1], "kernel", "--vectors", path, "--quiet"], check=True)
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    check_schema(document)
    failed, checked = False, 0
    for vector in document["vectors"]:
        if vector["position"] not in KNOWN:
            continue
        error, name = worst_error(vector, KNOWN[vector["position"]])
        checked += 1
        failed |= not error <= TOLERANCE
        print(f"{vector['position']:32} worst relative error {error:.2e} in {name}{'' if error <= TOLERANCE else '  FAILED'}")
    print(f"{checked} of {len(document['vectors'])} vectors checked")
    return 1 if failed or checked == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
