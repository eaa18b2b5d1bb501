#!/usr/bin/env python3
"""Makes the golden files tests/golden/NAME.h5 that tests/unit/test_golden.c compares with.

An independent implementation of both architectures and of a training step, in float64 and
on PyTorch's automatic differentiation. It is written from the papers' definitions, one
elementary operation after the other. But for the names of tensors and options nothing of
it comes from the C code. What can be said in two ways is said in the other one: rotary
positions are a complex product here. The models are then trained a second time, with
PyTorch's own layers, loss, clipping and optimizer, and the largest difference is printed;
check_hugging_face.py compares them with a third implementation.

The test suite reads the files and needs none of this. To make them again:

    python3 -m venv venv
    venv/bin/pip install torch==2.11.0 numpy==2.4.6 h5py==3.16.0
    venv/bin/python tests/golden/make_golden.py [FOLDER [CASE ...]]

The same versions on the same kind of processor give the same bytes. Others may change the
last bits of a float64, which is nothing to a comparison with float32.

A file holds, all datasets contiguous:
    config            the options of pt-train that say the same run
    tokens            u16 [steps][batch][context + 1]: the windows of each step
    begins            u8, likewise, if packing is documents: 1 where a document begins
    context           u8, likewise, if not all tokens count: 1 where one is no target
    weights/NAME      f32: the parameters at the start, not as initialised but all random,
                      so that no bias is 0, no norm weight 1, and nothing hides
    gradients/NAME    f64: of the first step, before clipping
    loss, grad_norm (before clipping), lr     f64 [steps]
"""
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import torch
import torch.nn.functional as F

# ---- the cases ---------------------------------------------------------------------

# Sizes that are no multiples of anything a vector unit likes. The decay of the learning
# rate ends before the steps do.
COMMON = {
    "layers": 3, "heads": 4, "dim": 24, "ffn-dim": 40, "context": 16, "vocab": 37,
    "batch": 4, "steps": 20, "lr": 3e-3, "min-lr": 3e-4, "lr-schedule": "cosine",
    "warmup": 4, "decay-steps": 16, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
    "weight-decay": 0.1, "clip": 1.0,
}

# What an architecture means when an option does not say otherwise.
ARCH = {
    "gpt2": {"norm": "layer", "act": "gelu-tanh", "bias": "yes", "tie": "yes"},
    "llama": {"norm": "rms", "act": "swiglu", "bias": "no", "tie": "no",
              "rope-theta": 1e4, "rope-scaling": "none"},
}

# llama3: the three frequencies of a head of 6 have wavelengths 6.3, 29 and 135. Of these
# 6.3 is below 60/4 and kept, 135 is above 60/1 and stretched, 29 is in between.
CASES = {
    "gpt2": {"arch": "gpt2"},
    "gpt2-plain": {"arch": "gpt2", "act": "gelu", "bias": "no", "tie": "no",
                   "eps": 1e-4, "norm-eps": 1e-3},
    "llama": {"arch": "llama", "kv-heads": 2},
    "llama3": {"arch": "llama", "kv-heads": 2, "tie": "yes", "rope-theta": 100.0,
               "rope-scaling": "llama3", "rope-factor": 8.0, "rope-low": 1.0,
               "rope-high": 4.0, "rope-original": 60, "norm-eps": 1e-6},
    "llama-bias": {"arch": "llama", "bias": "yes", "rope-theta": 50.0,
                   "rope-scaling": "linear", "rope-factor": 2.0},
    "qwen2": {"arch": "llama", "kv-heads": 2, "bias": "qkv", "head-dim": 10,
              "norm-eps": 1e-6, "tie": "yes"},
    "qwen3": {"arch": "llama", "kv-heads": 2, "qk-norm": "yes", "head-dim": 10,
              "norm-eps": 1e-6},
    "smollm3": {"arch": "llama", "kv-heads": 2, "nope-every": 2, "rope-theta": 50.0,
                "norm-eps": 1e-6, "tie": "yes"},
    "gpt2-documents": {"arch": "gpt2", "packing": "documents"},
    "llama-documents": {"arch": "llama", "kv-heads": 2, "packing": "documents"},
    "gpt2-counted": {"arch": "gpt2"},
    "llama-counted": {"arch": "llama", "kv-heads": 2, "packing": "documents"},
    "llama-smoothed": {"arch": "llama", "kv-heads": 2, "label-smoothing": 0.1,
                       "z-loss": 1e-2},
    "mixtral": {"arch": "llama", "kv-heads": 2, "steps": 6, "experts": 6, "ffn-dim": 12,
                "experts-per-token": 2, "balance-loss": 0.0},
    "olmoe": {"arch": "llama", "kv-heads": 2, "qk-norm": "yes", "qk-norm-all": "yes", "steps": 6,
              "experts": 8, "ffn-dim": 12, "experts-per-token": 3, "router-norm": "no",
              "balance-loss": 0.02, "balance-over": "sequence"},
    "qwen2-moe": {"arch": "llama", "kv-heads": 2, "bias": "qkv", "steps": 6, "experts": 5,
                  "experts-per-token": 3, "expert-dim": 12, "shared-expert-dim": 20,
                  "shared-expert-gate": "yes", "router-norm": "no", "moe-from": 1,
                  "balance-loss": 0.0},
    "qwen3-moe": {"arch": "llama", "kv-heads": 2, "qk-norm": "yes", "head-dim": 10,
                  "norm-eps": 1e-6, "steps": 6, "experts": 7, "experts-per-token": 2,
                  "expert-dim": 12, "moe-every": 2, "router-norm": "yes",
                  "balance-loss": 0.05, "balance-over": "sequence", "router-z-loss": 0.01},
    "dots1": {"arch": "llama", "kv-heads": 2, "qk-norm": "yes", "norm-eps": 1e-6, "steps": 6,
              "experts": 8, "experts-per-token": 3, "expert-dim": 12,
              "shared-expert-dim": 24, "moe-from": 1, "router": "sigmoid",
              "router-norm": "yes", "router-scale": 2.5, "router-groups": 4,
              "router-top-groups": 2, "balance-loss": 0.03, "balance-over": "sequence"},
}


def spec_of(case):
    spec = {"norm-eps": 1e-5, "kv-heads": COMMON["heads"],
            "head-dim": COMMON["dim"] // COMMON["heads"], **COMMON, **ARCH[CASES[case]["arch"]], **CASES[case]}
    return {"expert-dim": spec["ffn-dim"], "router": "softmax", "router-norm": "yes",
            "router-scale": 1.0, **spec}


def has_experts(s, layer):
    return ("experts" in s and layer >= s.get("moe-from", 0)
            and (layer + 1) % s.get("moe-every", 1) == 0)


def config_of(case):
    """Only what the case says: the rest is for the architecture to know."""
    options = {**COMMON, **CASES[case]}
    return "".join(f"{key} = {value}\n" for key, value in options.items())


# ---- parameters --------------------------------------------------------------------

def shapes(s):
    dim, ffn = s["dim"], s["ffn-dim"]
    q, kv = s["head-dim"] * s["heads"], s["head-dim"] * s["kv-heads"]
    linear = {"attention.wq": (q, dim), "attention.wk": (kv, dim),
              "attention.wv": (kv, dim), "attention.wo": (dim, q),
              "feed_forward.w1": (ffn, dim), "feed_forward.w2": (dim, ffn)}
    if s["act"] == "swiglu":
        linear["feed_forward.w3"] = (ffn, dim)
    norms = ["norm"]
    table = {"tok_embeddings.weight": (s["vocab"], dim)}
    if s["arch"] == "gpt2":
        table["pos_embeddings.weight"] = (s["context"], dim)
    for block in range(s["layers"]):
        norms += [f"layers.{block}.attention_norm", f"layers.{block}.ffn_norm"]
        if s.get("qk-norm") == "yes":
            for name in "q_norm", "k_norm":
                width = q if name == "q_norm" else kv
                table[f"layers.{block}.attention.{name}.weight"] = (
                    width if "qk-norm-all" in s else s["head-dim"],)
        experts = has_experts(s, block)
        if experts:
            n, f, shared = s["experts"], s["expert-dim"], s.get("shared-expert-dim", 0)
            table[f"layers.{block}.router.weight"] = (n, dim)
            if s["router"] == "sigmoid":
                table[f"layers.{block}.router.bias"] = (n,)
            table[f"layers.{block}.experts.w13.weight"] = (2 * n * f, dim)
            table[f"layers.{block}.experts.w2.weight"] = (n * dim, f)
            if shared:
                table[f"layers.{block}.shared.w1.weight"] = (shared, dim)
                table[f"layers.{block}.shared.w3.weight"] = (shared, dim)
                table[f"layers.{block}.shared.w2.weight"] = (dim, shared)
            if s.get("shared-expert-gate") == "yes":
                table[f"layers.{block}.shared_gate.weight"] = (1, dim)
        for name, shape in linear.items():
            if experts and name.startswith("feed_forward"):
                continue
            table[f"layers.{block}.{name}.weight"] = shape
            if s["bias"] == "yes" or (s["bias"] == "qkv" and name[-2:] in ("wq", "wk", "wv")):
                table[f"layers.{block}.{name}.bias"] = shape[:1]
    for name in norms:
        table[f"{name}.weight"] = (dim,)
        if s["bias"] == "yes" and s["norm"] == "layer":
            table[f"{name}.bias"] = (dim,)
    if s["tie"] == "no":
        table["output.weight"] = (s["vocab"], dim)
    return table


def draw(case):
    """Weights in float32, and tokens. NumPy promises never to change this generator."""
    s = spec_of(case)
    random = np.random.RandomState(list(case.encode()))
    weights = {}
    for name, shape in shapes(s).items():
        x = random.standard_normal(shape)
        if len(shape) == 2:
            x *= shape[1] ** -0.5
        elif name.endswith("norm.weight"):
            x = 1 + 0.3 * x
        else:
            x *= 0.3
        weights[name] = x.astype(np.float32)
    u = random.random_sample((s["steps"], s["batch"], s["context"] + 1))
    return weights, (s["vocab"] * u * u).astype(np.uint16)  # some tokens are frequent


def draw_documents(case):
    """Where documents begin: of one token and of many, and some windows have one only."""
    s = spec_of(case)
    if s.get("packing") != "documents":
        return None
    random = np.random.RandomState(7)
    u = random.random_sample((s["steps"], s["batch"], s["context"] + 1))
    often = random.random_sample((s["steps"], s["batch"], 1)) * 0.4
    return (u < often).astype(np.uint8)


def draw_context(case):
    """Which tokens do not count: of some sequences all, of some none; at least one does in a step."""
    s = spec_of(case)
    if not case.endswith("-counted"):
        return None
    random = np.random.RandomState(11)
    u = random.random_sample((s["steps"], s["batch"], s["context"] + 1))
    part = random.choice([0, 0.1, 0.5, 1], (s["steps"], s["batch"], 1))
    context = (u >= part).astype(np.uint8)
    context[:, 0, 5] = 0
    return context


def documents_of(begins, windows):
    """The number of each input's document in its window, and its position there."""
    n = windows.shape[1] - 1
    if begins is None:
        return torch.zeros((1, n), dtype=torch.int64), torch.arange(n)[None]
    number = torch.cumsum(begins[:, :n], 1)
    before = torch.tril(number[:, :, None] == number[:, None, :], -1)
    return number, before.sum(2)


# ---- the definitions ---------------------------------------------------------------

def layer_norm(x, weight, bias, eps):
    """Ba, Kiros, Hinton 2016"""
    deviation = x - x.mean(-1, keepdim=True)
    y = deviation / torch.sqrt((deviation ** 2).mean(-1, keepdim=True) + eps) * weight
    return y if bias is None else y + bias


def rms_norm(x, weight, eps):
    """Zhang, Sennrich 2019"""
    return x / torch.sqrt((x ** 2).mean(-1, keepdim=True) + eps) * weight


def gelu(x):
    """Hendrycks, Gimpel 2016: x times the normal distribution function"""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))) / 2


def silu(x):
    return x / (1 + torch.exp(-x))


def attention(q, k, v, document):
    """Vaswani et al. 2017, causal; a group of queries shares a key (Ainslie et al. 2023).
    All are [batch, heads, positions, channels], document is [batch, positions]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    n = q.shape[2]
    score = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[3])
    hidden = torch.arange(n) > torch.arange(n)[:, None]
    hidden = hidden | (document[:, None, :, None] != document[:, None, None, :])
    score = score.masked_fill(hidden, -math.inf)
    e = torch.exp(score - score.max(-1, keepdim=True).values)
    return torch.einsum("bhij,bhjd->bhid", e / e.sum(-1, keepdim=True), v)


def cross_entropy(logits, targets, smoothing):
    """Mean over tokens that count of -log of the probability of the one that came. The targets of others
    are -100."""
    logits, targets = logits[targets >= 0], targets[targets >= 0]
    log_p = logits - torch.logsumexp(logits, -1, keepdim=True)
    right = -log_p.gather(1, targets[:, None]).mean()  # Szegedy et al. 2016
    return (1 - smoothing) * right - smoothing * log_p.mean()


PLAIN = SimpleNamespace(layer_norm=layer_norm, rms_norm=rms_norm, gelu=gelu,
                        gelu_tanh=gelu_tanh, silu=silu, attention=attention,
                        cross_entropy=cross_entropy)

TORCH = SimpleNamespace(
    layer_norm=lambda x, w, b, eps: F.layer_norm(x, x.shape[-1:], w, b, eps),
    rms_norm=lambda x, w, eps: F.rms_norm(x, x.shape[-1:], w, eps),
    gelu=F.gelu, gelu_tanh=lambda x: F.gelu(x, approximate="tanh"), silu=F.silu,
    attention=lambda q, k, v, document: F.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.stack([torch.block_diag(*[
            torch.tril(torch.ones(n, n, dtype=torch.bool))
            for n in torch.unique_consecutive(row, return_counts=True)[1]])
            for row in document])[:, None],
        enable_gqa=q.shape[1] != k.shape[1]),
    cross_entropy=lambda logits, targets, smoothing: F.cross_entropy(
        logits, targets, label_smoothing=smoothing))


def rope_frequencies(s):
    """Su et al. 2021; scaled as in Llama 3.1's model card and code (Meta 2024), or all by
    one factor (Chen et al. 2023)."""
    head_dim = s["head-dim"]
    scaled = []
    for j in range(head_dim // 2):
        f = s["rope-theta"] ** (-2 * j / head_dim)
        turns = s.get("rope-original", 0) * f / (2 * math.pi)  # in the original context
        if s["rope-scaling"] == "linear":
            f /= s["rope-factor"]
        elif s["rope-scaling"] == "llama3":
            kept = (turns - s["rope-low"]) / (s["rope-high"] - s["rope-low"])
            kept = min(1.0, max(0.0, kept))
            f *= kept + (1 - kept) / s["rope-factor"]
        scaled.append(f)
    return torch.tensor(scaled, dtype=torch.float64)


def rotate(x, frequencies, position):
    """Channels j and j + half are one complex number, turned by position x frequency:
    Hugging Face's order of channels."""
    half = x.shape[-1] // 2
    angle = position[:, None, :, None] * frequencies
    z = torch.complex(x[..., :half], x[..., half:])
    z = z * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], -1)


# ---- the models --------------------------------------------------------------------

def linear(p, name, x):
    y = x @ p[name + ".weight"].T
    return y + p[name + ".bias"] if name + ".bias" in p else y


def norm(p, name, x, s, ops):
    if s["norm"] == "rms":
        return ops.rms_norm(x, p[name + ".weight"], s["norm-eps"])
    return ops.layer_norm(x, p[name + ".weight"], p.get(name + ".bias"), s["norm-eps"])


def attend(p, block, x, s, ops, document, position):
    def heads(name):
        y = linear(p, f"{block}.attention.{name}", x)
        return y.unflatten(-1, (-1, s["head-dim"])).transpose(1, 2)

    def norm_all(y, name):  # of all heads (Muennighoff et al. 2024)
        y = ops.rms_norm(y.transpose(1, 2).flatten(2), p[f"{block}.attention.{name}.weight"],
                         s["norm-eps"])
        return y.unflatten(-1, (-1, s["head-dim"])).transpose(1, 2)

    q, k, v = heads("wq"), heads("wk"), heads("wv")
    if "qk-norm-all" in s:
        q, k = norm_all(q, "q_norm"), norm_all(k, "k_norm")
    elif s.get("qk-norm") == "yes":  # of each head (Dehghani et al. 2023), as in Qwen3
        q = ops.rms_norm(q, p[f"{block}.attention.q_norm.weight"], s["norm-eps"])
        k = ops.rms_norm(k, p[f"{block}.attention.k_norm.weight"], s["norm-eps"])
    number = 1 + int(block.split(".")[1])
    if s["arch"] == "llama" and number % s.get("nope-every", number + 1) != 0:
        q = rotate(q, rope_frequencies(s), position)
        k = rotate(k, rope_frequencies(s), position)
    y = ops.attention(q, k, v, document).transpose(1, 2).flatten(2)
    return linear(p, f"{block}.attention.wo", y)


def feed_forward(p, block, x, s, ops):
    h = linear(p, f"{block}.feed_forward.w1", x)
    if s["act"] == "swiglu":  # Shazeer 2020
        h = ops.silu(h) * linear(p, f"{block}.feed_forward.w3", x)
    else:
        h = ops.gelu(h) if s["act"] == "gelu" else ops.gelu_tanh(h)
    return linear(p, f"{block}.feed_forward.w2", h)


def route(scores, bias, s):
    """The chosen experts of each token, ascending, and the margin of the closest choice. Groups as in DeepSeek-V3:
    the score of a group is the sum of its two highest scores."""
    choice = scores.detach() + (0 if bias is None else bias.detach())
    margin = math.inf
    if "router-groups" in s:
        groups = choice.unflatten(-1, (s["router-groups"], -1))
        two = groups.topk(2, -1).values.sum(-1)
        best = two.sort(-1, descending=True).values
        top = s["router-top-groups"]
        margin = (best[..., top - 1] - best[..., top]).min().item()
        kept = torch.zeros_like(two).scatter(-1, two.topk(top, -1).indices, 1.0)
        choice = groups.masked_fill(kept[..., None] == 0, -math.inf).flatten(-2)
    k = s["experts-per-token"]
    best = choice.sort(-1, descending=True).values
    margin = min(margin, (best[..., k - 1] - best[..., k]).min().item())
    return choice.topk(k, -1).indices.sort(-1).values, margin


def mixture(p, block, x, s, ops, losses):
    """Jiang et al. 2024, Dai et al. 2024, DeepSeek-AI 2024. Appends the losses of the router (Fedus et al. 2022,
    of each sequence; Zoph et al. 2022) and the margin of its closest choice."""
    z = x @ p[f"{block}.router.weight"].T
    lse = torch.logsumexp(z, -1, keepdim=True)
    scores = torch.exp(z - lse) if s["router"] == "softmax" else 1 / (1 + torch.exp(-z))
    ids, margin = route(scores, p.get(f"{block}.router.bias"), s)
    gates = scores.gather(-1, ids)
    if s["router-norm"] == "yes":
        gates = gates / gates.sum(-1, keepdim=True)
    gates = gates * s["router-scale"]
    n, f, dim = s["experts"], s["expert-dim"], s["dim"]
    w13 = p[f"{block}.experts.w13.weight"].view(n, 2, f, dim)
    w2 = p[f"{block}.experts.w2.weight"].view(n, dim, f)
    y = torch.zeros_like(x)
    for e in range(n):
        gate = (gates * (ids == e)).sum(-1, keepdim=True)
        y = y + gate * ((ops.silu(x @ w13[e, 0].T) * (x @ w13[e, 1].T)) @ w2[e].T)
    if s.get("shared-expert-dim"):
        shared = linear(p, f"{block}.shared.w2", ops.silu(linear(p, f"{block}.shared.w1", x))
                        * linear(p, f"{block}.shared.w3", x))
        if s.get("shared-expert-gate") == "yes":
            shared = shared / (1 + torch.exp(-linear(p, f"{block}.shared_gate", x)))
        y = y + shared
    mean = (scores / scores.sum(-1, keepdim=True)).mean(1)  # [batch, experts]
    used = F.one_hot(ids, n).sum((1, 2)) / ids[0].numel()
    balance = n * (used * mean).sum(-1).mean()
    losses.append(s.get("balance-loss", 0) * balance
                  + s.get("router-z-loss", 0) * (lse ** 2).mean())
    return y, margin


MARGINS = []  # of the closest choice of an expert: float32 must choose the same


def loss_of(p, windows, begins, context, s, ops, losses=None):
    losses = [] if losses is None else losses
    x = p["tok_embeddings.weight"][windows[:, :-1]]
    document, position = documents_of(begins, windows)
    if s["arch"] == "gpt2":
        table = p["pos_embeddings.weight"]
        x = x + (table if begins is None else table[position])
    for i in range(s["layers"]):
        block = f"layers.{i}"
        x = x + attend(p, block, norm(p, f"{block}.attention_norm", x, s, ops), s, ops,
                       document, position)
        h = norm(p, f"{block}.ffn_norm", x, s, ops)
        if has_experts(s, i):
            y, margin = mixture(p, block, h, s, ops, losses)
            MARGINS.append(margin)
            x = x + y
        else:
            x = x + feed_forward(p, block, h, s, ops)
    table = "output.weight" if s["tie"] == "no" else "tok_embeddings.weight"
    logits = norm(p, "norm", x, s, ops) @ p[table].T
    targets = windows if context is None else windows.masked_fill(context > 0, -100)
    logits, targets = logits.flatten(0, 1), targets[:, 1:].flatten()
    loss = ops.cross_entropy(logits, targets, s.get("label-smoothing", 0))
    z = torch.logsumexp(logits[targets >= 0], -1)  # Chowdhery et al. 2022
    return loss + s.get("z-loss", 0) * (z ** 2).mean()


# ---- training ----------------------------------------------------------------------

def lr_of(s, step):
    """Steps from 0; nanoGPT's schedule: a linear warm-up, then half a cosine."""
    if step < s["warmup"]:
        return s["lr"] * (step + 1) / (s["warmup"] + 1)
    if step > s["decay-steps"]:
        return s["min-lr"]
    way = (step - s["warmup"]) / (s["decay-steps"] - s["warmup"])
    return s["min-lr"] + (s["lr"] - s["min-lr"]) * (1 + math.cos(math.pi * way)) / 2


class AdamW:
    """Loshchilov, Hutter 2019, algorithm 2, after clipping by the norm of all gradients
    (Pascanu et al. 2013; PyTorch added the 1e-6). Vectors do not decay."""

    def __init__(self, p, s):
        self.p, self.s, self.t = p, s, 0
        self.m = {name: torch.zeros_like(x) for name, x in p.items()}
        self.v = {name: torch.zeros_like(x) for name, x in p.items()}

    def step(self, grads, lr):
        s = self.s
        self.t += 1
        length = math.sqrt(sum((g ** 2).sum().item() for g in grads.values()))
        shrink = min(1.0, s["clip"] / (length + 1e-6))
        for name, x in self.p.items():
            g = grads[name] * shrink
            m = self.m[name] = s["beta1"] * self.m[name] + (1 - s["beta1"]) * g
            v = self.v[name] = s["beta2"] * self.v[name] + (1 - s["beta2"]) * g ** 2
            m_hat, v_hat = m / (1 - s["beta1"] ** self.t), v / (1 - s["beta2"] ** self.t)
            decay = s["weight-decay"] if x.ndim == 2 else 0
            with torch.no_grad():
                x -= lr * (m_hat / (torch.sqrt(v_hat) + s["eps"]) + decay * x)
        return length


class TorchAdamW:
    def __init__(self, p, s):
        groups = [{"params": [x for x in p.values() if x.ndim == 2]},
                  {"params": [x for x in p.values() if x.ndim == 1], "weight_decay": 0}]
        self.p, self.s = p, s
        self.adamw = torch.optim.AdamW(groups, betas=(s["beta1"], s["beta2"]),
                                       eps=s["eps"], weight_decay=s["weight-decay"])

    def step(self, grads, lr):
        for name, x in self.p.items():
            x.grad = grads[name].clone()
        length = torch.nn.utils.clip_grad_norm_(self.p.values(), self.s["clip"])
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()
        return length.item()


def train(case, ops=PLAIN, optimizer=AdamW):
    s = spec_of(case)
    weights, tokens = draw(case)
    p = {name: torch.tensor(x, dtype=torch.float64, requires_grad=True)
         for name, x in weights.items()}
    trained = {name: x for name, x in p.items() if not name.endswith("router.bias")}
    adamw = optimizer(trained, s)
    begins, context = draw_documents(case), draw_context(case)
    out = SimpleNamespace(weights=weights, tokens=tokens, begins=begins, context=context,
                          loss=[], grad_norm=[], lr=[])

    def of_step(x, step):
        return None if x is None else torch.tensor(x[step], dtype=torch.int64)

    for step in range(s["steps"]):
        windows = torch.tensor(tokens[step], dtype=torch.int64)
        router = []  # losses of routers, which the logged loss does not contain
        loss = loss_of(p, windows, of_step(begins, step), of_step(context, step), s, ops,
                       router)
        grads = dict(zip(trained, torch.autograd.grad(loss + sum(router),
                                                      list(trained.values()))))
        if step == 0:
            out.gradients = {name: g.numpy() for name, g in grads.items()}
        out.loss.append(loss.item())
        out.lr.append(lr_of(s, step))
        out.grad_norm.append(adamw.step(grads, out.lr[-1]))
    return out


# ---- output ------------------------------------------------------------------------

def write(case, run, path):
    with h5py.File(path, "w") as f:
        f.attrs["created_by"] = np.bytes_(
            f"make_golden.py, PyTorch {torch.__version__}, NumPy {np.__version__}")
        f["config"] = np.bytes_(config_of(case))
        f["tokens"] = run.tokens
        if run.begins is not None:
            f["begins"] = run.begins
        if run.context is not None:
            f["context"] = run.context
        for name in run.weights:
            f[f"weights/{name}"] = run.weights[name]
            if name in run.gradients:
                f[f"gradients/{name}"] = run.gradients[name]
        for name in "loss", "grad_norm", "lr":
            f[name] = np.array(getattr(run, name))


def largest_difference(run, other):
    """Of gradients (norm of the difference over the norm), losses and norms. The gradient
    of key biases without rotary positions is 0 but for rounding: nothing to compare."""
    length = np.linalg.norm
    gradients = max(length(g - other.gradients[name]) / length(g)
                    for name, g in run.gradients.items() if length(g) > 1e-12)
    series = [np.max(np.abs(np.divide(getattr(other, name), getattr(run, name)) - 1))
              for name in ("loss", "grad_norm")]
    return gradients, *series


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    print("Largest relative differences between our definitions and PyTorch's own:")
    for case in sys.argv[2:] or CASES:
        MARGINS.clear()
        run = train(case)
        assert min(MARGINS, default=1) > 2e-6, f"{case}: a choice of experts is too close"
        write(case, run, folder / f"{case}.h5")
        differences = largest_difference(run, train(case, TORCH, TorchAdamW))
        print("  {:<12} gradients {:.1e}, losses {:.1e}, norms {:.1e}; ".format(
            case, *differences), end="")
        print("loss {:.4f} to {:.4f}, norm {:.3f} to {:.3f}".format(
            run.loss[0], run.loss[-1], max(run.grad_norm), min(run.grad_norm)))


if __name__ == "__main__":
    main()
