"""A Llama with the names and the rotary convention of torchtitan, and tensor parallelism as
Megatron has it: the moves between ranks are written by hand, so that one can be left out.

The bugs that are inside of the model are planted here, each at its place; model.bug names
the one that is on."""
import math
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

# ---- moves between the ranks of tensor parallelism ---------------------------------------


class Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, there, back):
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx, g):
        return ctx.back(g), None, None


def same(x):
    return x.clone()


class Alone:
    """One rank: nothing to move."""
    rank, sequence = 0, False

    def enter(self, x, bug=None):
        return x

    leave = embed = logits = enter


class TensorParallel:
    def __init__(self, group, sequence):
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.sequence = sequence  # are the parts outside of products split by position?

    def sum(self, x):
        x = x.contiguous().clone()
        dist.all_reduce(x, group=self.group)
        return x

    def gather(self, x, dim):
        parts = [torch.empty_like(x.contiguous()) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, dim)

    def own(self, x, dim):
        return x.chunk(self.size, dim)[self.rank].contiguous()

    def enter(self, x, bug=None):
        """Before a column-parallel product."""
        if self.sequence:
            return Move.apply(x, lambda x: self.gather(x, 1), lambda g: self.own(self.sum(g), 1))
        return Move.apply(x, same, same if bug == "enter-missing" else self.sum)

    def leave(self, x, missing=False):
        """After a row-parallel product."""
        if self.sequence:
            return Move.apply(x, lambda x: self.own(self.sum(x), 1), lambda g: self.gather(g, 1))
        return Move.apply(x, same if missing else self.sum, same)

    def embed(self, x, bug=None):
        """After the rows of the vocabulary that this rank has. The gradient is whole already:
        who sums it has it twice."""
        if bug == "embedding-twice":
            return Move.apply(x, self.sum, self.sum)
        return self.leave(x)

    def logits(self, x, bug=None):
        return Move.apply(x, lambda x: self.gather(x, 2), lambda g: self.own(g, 2))


SPLIT = {"tok_embeddings": 0, "output": 0, "wq": 0, "wk": 0, "wv": 0, "wo": 1,
         "w1": 0, "w2": 1, "w3": 0}


def split(model, mesh):
    """Makes each parameter one of the ranks of mesh."""
    for name, module in model.named_modules():
        if "weight" in module._parameters:
            dim = SPLIT.get(name.rsplit(".", 1)[-1])
            place = Replicate() if dim is None else Shard(dim)
            module.weight = nn.Parameter(distribute_tensor(module.weight.data, mesh, [place]))
    if model.c.tie:
        model.output.weight = model.tok_embeddings.weight


def local(w, placements=None):
    return w.to_local(grad_placements=placements) if isinstance(w, DTensor) else w


# ---- the model ---------------------------------------------------------------------------


def turn(x, positions, c, halves):
    """Rotates channels 2j and 2j + 1 of [B, T, H, W], or j and j + W/2 as Hugging Face does.
    Positions are [B or 1, T]. Most trainers compute angles in float32."""
    width = x.shape[-1]
    high = torch.float64 if x.dtype == torch.float64 else torch.float32
    angles = high if c.angles == "fp32" else torch.float64
    f = 1 / c.theta ** (torch.arange(0, width, 2).to(angles) / width)
    angle = (positions.to(angles)[:, :, None] * f)[:, :, None, :]
    cos, sin = angle.cos().to(high), angle.sin().to(high)
    a, b = x.chunk(2, -1) if halves else (x[..., 0::2], x[..., 1::2])
    parts = (a * cos - b * sin, a * sin + b * cos)
    y = torch.cat(parts, -1) if halves else torch.stack(parts, -1).flatten(-2)
    return y.type_as(x)


class Norm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(c.dim)), c.norm_eps

    def enter(self, x, m):
        """The norm, and the move into the products that follow."""
        if (m.bug == "norms-not-summed" and m.last is not self
                or m.bug == "one-norm-not-summed" and m.one is self):
            # the weight sees the gradient of this rank's slice only
            return m.tp.enter(F.rms_norm(x, x.shape[-1:], None, self.eps)) * local(self.weight)
        summed = m.tp.sequence and m.bug != "sequence-norms-not-summed"
        w = local(self.weight, [Partial()] if summed else None)
        return m.tp.enter(F.rms_norm(x, x.shape[-1:], w, self.eps), m.bug)


def product(layer, x):
    return F.linear(x, local(layer.weight))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.width = c.dim // c.heads
        self.wq = nn.Linear(c.dim, c.heads * self.width, bias=False)
        self.wk = nn.Linear(c.dim, c.kv_heads * self.width, bias=False)
        self.wv = nn.Linear(c.dim, c.kv_heads * self.width, bias=False)
        self.wo = nn.Linear(c.heads * self.width, c.dim, bias=False)

    def forward(self, x, m):
        n, length = x.shape[:2]
        q, k, v = (product(w, x).view(n, length, -1, self.width)
                   for w in (self.wq, self.wk, self.wv))
        at = torch.arange(length)[None] if m.positions is None else m.positions
        q, k = (turn(t, at, m.c, m.halves) for t in (q, k))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        groups = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
        see = torch.ones(length, length, dtype=torch.bool).tril()
        if m.positions is not None:
            document = (m.positions == 0).cumsum(1)
            see = (see & (document[:, :, None] == document[:, None, :]))[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=see)
        return product(self.wo, y.transpose(1, 2).reshape(n, length, -1))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w1 = nn.Linear(c.dim, c.ffn, bias=False)
        self.w2 = nn.Linear(c.ffn, c.dim, bias=False)
        self.w3 = nn.Linear(c.dim, c.ffn, bias=False)

    def forward(self, x, m):
        gate, up = product(self.w1, x), product(self.w3, x)
        return product(self.w2, F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention, self.feed_forward = Attention(c), FeedForward(c)
        self.attention_norm, self.ffn_norm = Norm(c), Norm(c)

    def forward(self, x, m):
        y = m.tp.leave(self.attention(self.attention_norm.enter(x, m), m),
                       m.bug in ("leave-missing", "leaves-missing"))
        x = x + y
        return x + m.tp.leave(self.feed_forward(self.ffn_norm.enter(x, m), m),
                              m.bug in ("ffn-leave-missing", "leaves-missing"))


class Llama(nn.Module):
    def __init__(self, c, seed=1):
        super().__init__()
        self.c = c
        self.tok_embeddings = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleDict({str(i): Block(c) for i in range(c.layers)})
        self.norm = Norm(c)
        self.output = nn.Linear(c.dim, c.vocab, bias=False)
        self.tp, self.bug, self.halves = Alone(), None, c.names == "hf"
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():  # all random, so that no norm's weight is 1 and nothing hides
            for name, p in self.named_parameters():
                x = torch.randn(p.shape, generator=g)
                std = 0.5 if "tok" in name else 1 / math.sqrt(p.shape[-1])
                p.copy_(x * std if p.dim() == 2 else 1 + 0.1 * x)
        if c.tie:
            self.output.weight = self.tok_embeddings.weight

    @property
    def blocks(self):
        return self.layers.values()

    def forward(self, ids, positions=None):
        """Documents begin where positions are 0; without them a sequence is one."""
        m = SimpleNamespace(tp=self.tp, c=self.c, bug=self.bug, halves=self.halves,
                            last=self.norm, positions=positions,
                            one=self.layers["1"].ffn_norm)
        w = local(self.tok_embeddings.weight)
        ids = ids - self.tp.rank * len(w)
        here = (ids >= 0) & (ids < len(w))
        x = F.embedding(ids.clamp(0, len(w) - 1), w) * here[..., None].to(w.dtype)
        x = self.tp.embed(x, self.bug)
        if self.bug == "embedding-part-missing":
            x = x.detach()
        for block in self.layers.values():
            x = block(x, m)
        w = local(self.output.weight)
        if self.bug == "head-part-missing":
            w = w.detach()
        return self.tp.logits(F.linear(self.norm.enter(x, m), w))


# ---- Hugging Face's names ----------------------------------------------------------------

HF = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head",
      "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj",
      "attention.wv": "self_attn.v_proj", "attention.wo": "self_attn.o_proj",
      "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
      "feed_forward.w3": "mlp.up_proj", "attention_norm": "input_layernorm",
      "ffn_norm": "post_attention_layernorm"}


def hf_name(name):
    stem = name.removesuffix(".weight")
    if not stem.startswith("layers."):
        return HF[stem] + ".weight"
    _, layer, rest = stem.split(".", 2)
    return f"model.layers.{layer}.{HF[rest]}.weight"


def hf_config(c):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "num_hidden_layers": c.layers, "num_attention_heads": c.heads,
            "num_key_value_heads": c.kv_heads, "hidden_size": c.dim,
            "intermediate_size": c.ffn, "max_position_embeddings": c.length,
            "rms_norm_eps": c.norm_eps, "rope_theta": c.theta, "rope_scaling": None,
            "vocab_size": c.vocab, "tie_word_embeddings": c.tie, "torch_dtype": "float32"}
