"""A GPT-2 with nanoGPT's names: layer norms with biases, learned positions, a tied output layer."""
import math

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(c.dim, c.norm_eps) for _ in range(2))
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(c.dim, 3 * c.dim),
                                   "c_proj": nn.Linear(c.dim, c.dim)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(c.dim, 4 * c.dim),
                                  "c_proj": nn.Linear(4 * c.dim, c.dim)})

    def forward(self, x, heads):
        n, length, dim = x.shape
        q, k, v = (t.view(n, length, heads, -1).transpose(1, 2)
                   for t in self.attn["c_attn"](self.ln_1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(n, length, dim))
        y = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](y)


class GPT2(nn.Module):
    def __init__(self, c, seed=1):
        super().__init__()
        self.c, self.bug = c, None
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(c.vocab, c.dim), "wpe": nn.Embedding(c.length, c.dim),
            "h": nn.ModuleList(Block(c) for _ in range(c.layers)),
            "ln_f": nn.LayerNorm(c.dim, c.norm_eps)})
        self.lm_head = nn.Linear(c.dim, c.vocab, bias=False)
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, p in self.named_parameters():
                x = torch.randn(p.shape, generator=g)
                if p.dim() == 2:
                    p.copy_(x * (0.1 if "wte" in name or "wpe" in name else 1 / math.sqrt(p.shape[1])))
                else:
                    p.copy_(0.1 * x + (1 if "ln_" in name and "weight" in name else 0))
        self.lm_head.weight = self.transformer["wte"].weight

    @property
    def blocks(self):
        return self.transformer["h"]

    def forward(self, ids, positions=None):
        t = self.transformer
        x = t["wte"](ids) + t["wpe"](torch.arange(ids.shape[1]))
        for block in t["h"]:
            x = block(x, self.c.heads)
        return self.lm_head(t["ln_f"](x))


def gpt2_config(c):
    return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": c.layers,
            "n_head": c.heads, "n_embd": c.dim, "n_inner": None, "n_positions": c.length,
            "layer_norm_epsilon": c.norm_eps, "activation_function": "gelu_new",
            "vocab_size": c.vocab, "tie_word_embeddings": True, "torch_dtype": "float32"}
