"""GPT-2 and Llama in PyTorch, written for speed: fused attention,
torch.compile, autocast to bfloat16, fused AdamW. What tests/bench/gpu compares pt-train with.

The shape is read from a config file as `pt-train --print-config` prints it. Tokens are drawn
at random beforehand, on the device. Prints "KEY VALUE" lines; exits with 3 where there is not
enough memory."""

import argparse
import math
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

from common import about, say, wait


class Shape:
    """The options of pt-train that affect the model or its speed."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            lines = [line.split("=", 1) for line in f if "=" in line and line[0] != "#"]
        conf = {key.strip(): value.strip().strip('"') for key, value in lines}
        self.llama = conf["arch"] == "llama"
        self.layers, self.heads, self.dim = (int(conf[k]) for k in ("layers", "heads", "dim"))
        self.kv_heads = int(conf["kv-heads"]) or self.heads
        self.context = int(conf["context"])
        multiple = int(conf["vocab-multiple"])
        self.vocab = int(conf["vocab"])
        self.padded = (self.vocab + multiple - 1) // multiple * multiple
        self.ffn = int(conf["ffn-dim"]) or self.ffn_by_arch()
        self.bias = self.by_arch(conf["bias"])
        self.tie = self.by_arch(conf["tie"])
        self.gelu = "none" if conf["act"] == "gelu" else "tanh"
        self.theta = float(conf["rope-theta"])
        self.batch, self.micro = int(conf["batch"]), int(conf["micro-batch"])
        self.lr, self.decay, self.clip = (
            float(conf[k]) for k in ("lr", "weight-decay", "clip"))
        self.betas = float(conf["beta1"]), float(conf["beta2"])

    def by_arch(self, value):
        return value == "yes" or (value == "by-arch" and not self.llama)

    def ffn_by_arch(self):
        return math.ceil(8 * self.dim / 3 / 256) * 256 if self.llama else 4 * self.dim


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.kv_heads, self.size = s.heads, s.kv_heads, s.dim // s.heads
        self.into = nn.Linear(s.dim, (s.heads + 2 * s.kv_heads) * self.size, bias=s.bias)
        self.out = nn.Linear(s.dim, s.dim, bias=s.bias)

    def forward(self, x, rope):
        batch, length, dim = x.shape
        x = self.into(x).view(batch, length, -1, self.size).transpose(1, 2)
        q, k, v = x.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if rope is not None:
            q, k = turn(q, *rope), turn(k, *rope)
        x = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads)
        return self.out(x.transpose(1, 2).reshape(batch, length, dim))


def turn(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Gelu(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.kind = s.gelu
        self.up = nn.Linear(s.dim, s.ffn, bias=s.bias)
        self.down = nn.Linear(s.ffn, s.dim, bias=s.bias)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate=self.kind))


class SwiGlu(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate = nn.Linear(s.dim, s.ffn, bias=s.bias)
        self.up = nn.Linear(s.dim, s.ffn, bias=s.bias)
        self.down = nn.Linear(s.ffn, s.dim, bias=s.bias)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


def norm(s):
    return nn.RMSNorm(s.dim, eps=1e-5) if s.llama else nn.LayerNorm(s.dim, bias=s.bias)


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.norm1, self.attention = norm(s), Attention(s)
        self.norm2, self.ffn = norm(s), SwiGlu(s) if s.llama else Gelu(s)

    def forward(self, x, rope):
        x = x + self.attention(self.norm1(x), rope)
        return x + self.ffn(self.norm2(x))


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.tokens = nn.Embedding(s.padded, s.dim)
        self.positions = None if s.llama else nn.Embedding(s.context, s.dim)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = norm(s)
        self.head = nn.Linear(s.dim, s.padded, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                ends = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * s.layers) if ends else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        if s.tie:
            self.head.weight = self.tokens.weight
        angle = torch.arange(s.context)[:, None] * s.theta ** -(
            torch.arange(0, s.dim // s.heads, 2) / (s.dim // s.heads))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight
        rope = (self.cos, self.sin) if self.positions is None else None
        for block in self.blocks:
            x = block(x, rope)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def optimizer(model, s, device):
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": s.decay},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=s.lr, betas=s.betas, fused=device.type == "cuda")


def train(args, s, device):
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    with device:
        model = Model(s)
    adamw = optimizer(model, s, device)
    step_of = model if args.compile == "no" else torch.compile(model)
    if args.compile == "blocks":
        for block in model.blocks:
            block.compile()
        step_of = model
    data = torch.randint(s.vocab, (8, s.micro, s.context + 1), device=device)
    tokens, targets = data[:, :, :-1].contiguous(), data[:, :, 1:].contiguous()
    parts, times, micro = s.batch // s.micro, [], 0
    for step in range(1, args.steps + 1):
        wait(device)
        begin = time.perf_counter()
        loss = 0
        for _ in range(parts):
            rows = micro % len(data)
            micro += 1
            with torch.autocast(device.type, torch.bfloat16, enabled=args.dtype == "bf16"):
                part = step_of(tokens[rows], targets[rows]) / parts
            part.backward()
            loss = loss + part.detach()
        if s.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), s.clip)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        loss = loss.item()
        wait(device)
        times.append(time.perf_counter() - begin)
        # flushed at once, since the caller may stop this program
        say("step", step, f"loss={loss:.4f}", f"dt={times[-1]:.6f}")
        if step > args.warmup:
            say("tps", f"{s.batch * s.context / times[-1]:.8g}")
            if device.type == "cuda":
                say("mem", torch.cuda.max_memory_allocated())


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("config", nargs="?")
    p.add_argument("--device", default="cuda")
    p.add_argument("--steps", type=int, default=14)
    p.add_argument("--warmup", type=int, default=4)
    p.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16")
    p.add_argument("--compile", choices=("model", "blocks", "no"), default="model")
    args = p.parse_args()
    device = torch.device(args.device)
    about(device)
    try:
        if args.config:
            train(args, Shape(args.config), device)
    except torch.cuda.OutOfMemoryError as e:
        say("oom", str(e).splitlines()[0])
        sys.exit(3)


if __name__ == "__main__":
    main()
