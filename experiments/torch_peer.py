"""The model of `sextant bench` in PyTorch, timed on request: what `--peer torch` compares with.

One JSON object a line on stdin, one a line on stdout as the answer; "error" in an answer says what went wrong. Requests, by "do":
  build   vocab, layers, width, heads, context, batch, position (none, rope, alibi), dtype, threads, seed  ->  parameters
  warm    mode (eager, compile)                  some training steps, untimed  ->  peak_memory_bytes
  train   mode, steps                            ->  seconds, for all of them
  sample  mode, position, tokens                 tokens drawn one by one with a cache that holds `position` already  ->  seconds
The first line comes unasked: the version of PyTorch. A training step is loss, backward, clipping and AdamW, as the best PyTorch offers: the fused optimizer
and scaled_dot_product_attention, under torch.compile with shapes fixed.
"""
import json
import math
import os
import sys
import time

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print must not get between the answers


def answer(**values):
    answers.write(json.dumps(values) + "\n")
    answers.flush()


try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as import_error:
    answer(error=str(import_error))
    sys.exit(1)


def alibi_slopes(heads):
    """Press et al., 2022: a geometric sequence, for head counts that are no power of two filled up from the next one."""
    def power(n):
        return [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]
    lower = 2 ** int(math.log2(heads))
    return power(lower) + power(2 * lower)[0::2][: heads - lower]


def rotate(x, cos, sin):
    """RoPE on interleaved pairs of [B, T, H, D]; cos and sin [T, 1, D/2]. Complex numbers are the fastest way without a compiler, which cannot do them."""
    if torch.compiler.is_compiling():
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.complex(cos, sin)).flatten(-2)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-5), nn.LayerNorm(width, eps=1e-5)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, rotation, bias, cache=None):
        """x [B, T, C]; bias is added to the scores, None: plain causal. With a cache (k, v [B, H, N, D], slot [1], keys) one token, which goes into the slot."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            all_k, all_v, slot, keys = cache
            k = all_k.index_copy_(2, slot, k)[:, :, :keys]
            v = all_v.index_copy_(2, slot, v)[:, :, :keys]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None and cache is None)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, vocab, layers, width, heads, position):
        super().__init__()
        self.heads, self.head_dim, self.position = heads, width // heads, position
        self.embedding = nn.Embedding(vocab, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-5)

    def prepare(self, length):
        """The constants for positions below `length`, which no step should compute anew."""
        dtype = self.embedding.weight.dtype
        angle = torch.arange(length, dtype=torch.float64)[:, None, None] * 10000.0 ** (
            -torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        self.cos, self.sin = angle.cos().to(dtype), angle.sin().to(dtype)
        self.slopes = torch.tensor(alibi_slopes(self.heads), dtype=dtype)[:, None, None]

    def training_bias(self, length):
        lag = torch.arange(length)[:, None] - torch.arange(length)[None, :]
        return (-self.slopes * lag).masked_fill(lag < 0, -math.inf) if self.position == "alibi" else None

    def loss(self, tokens, targets, bias):
        length = tokens.shape[1]
        rotation = (self.cos[:length], self.sin[:length]) if self.position == "rope" else None
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, rotation, bias)
        return F.cross_entropy(F.linear(self.norm(x), self.embedding.weight).flatten(0, 1), targets.flatten())

    def draw(self, token, slot, caches, keys, masked):
        """The token after `token` [1, 1], which stands at position `slot` [1]; among the first `keys` of the cache, or with `masked` those up to slot."""
        rotation = (self.cos[slot], self.sin[slot]) if self.position == "rope" else None
        bias = None
        if masked or self.position == "alibi":
            lag = slot - torch.arange(keys)
            bias = -self.slopes * lag if self.position == "alibi" else torch.zeros((), dtype=self.cos.dtype)
            bias = torch.where(lag >= 0, bias, -math.inf).expand(self.heads, 1, keys)
        x = self.embedding(token)
        for block, (k, v) in zip(self.blocks, caches):
            x = block(x, rotation, bias, (k, v, slot, keys))
        return torch.multinomial(F.linear(self.norm(x), self.embedding.weight)[:, -1].softmax(-1), 1)


def peak_memory_bytes():
    with open("/proc/self/status") as status:
        return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")), 0)


def reset_peak_memory():
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # see proc(5)
    except OSError:
        pass


class Peer:
    def build(self, vocab, layers, width, heads, context, batch, position, dtype, threads, seed):
        self.loss = {}
        torch._dynamo.reset()
        reset_peak_memory()
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        torch.set_default_dtype({"f32": torch.float32, "f64": torch.float64}[dtype])
        self.model = Model(vocab, layers, width, heads, position)
        self.model.prepare(context)
        self.bias = self.model.training_bias(context)
        self.batch = [torch.randint(vocab, (batch, context)) for _ in range(2)]
        matrices = [p for p in self.model.parameters() if p.dim() == 2]
        vectors = [p for p in self.model.parameters() if p.dim() != 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
        self.loss = {"eager": self.model.loss, "compile": torch.compile(self.model.loss, dynamic=False)}
        return {"parameters": sum(p.numel() for p in self.model.parameters())}

    def step(self, mode):
        loss = self.loss[mode](*self.batch, self.bias)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def warm(self, mode):
        for _ in range(2):
            self.step(mode)
        return {"peak_memory_bytes": peak_memory_bytes()}

    def train(self, mode, steps):
        start = time.perf_counter()
        for _ in range(steps):
            self.step(mode)
        return {"seconds": time.perf_counter() - start}

    @torch.no_grad()
    def sample(self, mode, position, tokens):
        """A cache full of noise takes as long as one of real keys."""
        warm_up = 3
        capacity = position + tokens + warm_up
        self.model.prepare(capacity)
        caches = [torch.randn(2, 1, self.model.heads, capacity, self.model.head_dim).unbind(0) for _ in self.model.blocks]
        compiled = mode == "compile"
        draw = torch.compile(self.model.draw, dynamic=False) if compiled else self.model.draw
        token = torch.zeros(1, 1, dtype=torch.int64)
        for made in range(warm_up + tokens):
            if made == warm_up:
                start = time.perf_counter()
            slot = position + made
            token = draw(token, torch.tensor([slot]), caches, capacity if compiled else slot + 1, compiled)
            token.item()  # whoever samples wants to see it
        return {"seconds": time.perf_counter() - start}


def main():
    answer(version=torch.__version__)
    peer = Peer()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(**getattr(peer, request.pop("do"))(**request))
        except Exception as error:  # whatever it is, the other side reports it
            answer(error=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")


main()
