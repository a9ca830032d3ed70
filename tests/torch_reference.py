#!/usr/bin/env python3
"""Writes gradients computed by PyTorch, for `sextant audit --against`.

    torch_reference.py CHECKPOINT OUT.safetensors [--tokens FILE] [--sequences N] [--seed S]

The model is PyTorch's own, of the same layout as the checkpoint, in float64 (torch_gradients.py holds it; positions none, rope and alibi). OUT holds the
weights by name, the configuration (`config` in the metadata), the token ids `tokens` [B, T+1], and what PyTorch computed: `loss`, `logits`
[B, T, V], `grad.NAME` for every parameter. Then

    sextant audit --against OUT.safetensors

needs nothing else. Token ids are random unless --tokens names a text file with one sequence of T+1 ids a line. The same file can be made from any other
program: `grad.NAME` tensors are all that is compared.
"""
import argparse
import json
import os
import sys

import torch_gradients as reference  # exits with 77 where torch, numpy or safetensors is missing
import numpy
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def position_of(config):
    """The three strategies that the reference model has, with their default keys."""
    name = config["position"].replace("()", "")
    if name not in ("none", "rope", "alibi"):
        sys.exit(f"torch_reference.py: position '{config['position']}': the reference model has none, rope and alibi with their default keys")
    return name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("out")
    parser.add_argument("--tokens")
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    path = arguments.checkpoint
    if os.path.isdir(path):
        path = os.path.join(path, "checkpoint.safetensors")
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["config"])
    position = position_of(config)
    weights = {name: tensor.to(torch.float64).requires_grad_() for name, tensor in load_file(path).items()
               if not name.startswith("optimizer.") and ".position." not in name}
    if arguments.tokens:
        tokens = torch.from_numpy(numpy.loadtxt(arguments.tokens, dtype=numpy.int64, ndmin=2))
    else:
        generator = torch.Generator().manual_seed(arguments.seed)
        tokens = torch.randint(0, config["vocab"], (arguments.sequences, config["context"] + 1), generator=generator)

    logits = reference.forward(weights, config, position, tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    result = {"tokens": tokens, "loss": loss.detach(), "logits": logits.detach().contiguous()}
    for name, weight in weights.items():
        result[name] = weight.detach().contiguous()
        result["grad." + name] = weight.grad.contiguous()
    config["dtype"] = "f64"
    save_file(result, arguments.out, metadata={"config": json.dumps(config)})
    print(f"loss {loss.item():.12f} nats/token, {len(weights)} gradients in {arguments.out}")


if __name__ == "__main__":
    main()
