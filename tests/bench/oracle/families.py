"""Tiny random models of transformers, their float64 twins, and attention that bugs can reach."""
import copy
import math
import re
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

FAMILIES = ("llama", "qwen2", "qwen3", "gpt2", "mistral", "smollm3")
RUN = SimpleNamespace(now=None)  # the run whose forward pass is computed

ROLES = {"embed": r"(embed_tokens|wte)$", "block": r"(layers|h)\.\d+$", "rope": r"rotary_emb$",
         "attention": r"\.(self_attn|attn)$", "mlp": r"\.mlp$", "norm1": r"(input_layernorm|ln_1)$",
         "norm2": r"(post_attention_layernorm|ln_2)$", "final": r"(model\.norm|ln_f)$",
         "head": r"lm_head$", "q": r"q_proj$", "k": r"k_proj$", "v": r"v_proj$",
         "o": r"(o_proj|attn\.c_proj)$", "down": r"(down_proj|mlp\.c_proj)$", "gate": r"gate_proj$",
         "act": r"mlp\.act(_fn)?$", "qk_norm": r"[qk]_norm$",
         "norm": r"(layernorm|ln_[12f]|model\.norm|[qk]_norm)$"}


def config_of(c):
    if c.family == "gpt2":
        return AutoConfig.for_model(
            "gpt2", n_layer=c.layers, n_head=c.heads, n_embd=c.dim, n_positions=c.length, vocab_size=c.vocab,
            layer_norm_epsilon=c.norm_eps, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=0, eos_token_id=0)
    o = {"rope_parameters": c.rope or {"rope_type": "default", "rope_theta": c.theta}}
    if c.family in ("llama", "mistral", "qwen3"):
        o["head_dim"] = c.width
    if c.family == "mistral":
        o["sliding_window"] = c.window
    if c.family == "qwen2" and c.window:
        o |= {"use_sliding_window": True, "sliding_window": c.window, "max_window_layers": 1}
    if c.family == "smollm3":
        o["no_rope_layers"] = [int(i != 1) for i in range(c.layers)]
    return AutoConfig.for_model(
        c.family, vocab_size=c.vocab, hidden_size=c.dim, intermediate_size=c.ffn,
        num_hidden_layers=c.layers, num_attention_heads=c.heads, num_key_value_heads=c.kv_heads,
        max_position_embeddings=c.length, rms_norm_eps=c.norm_eps, tie_word_embeddings=c.tie,
        pad_token_id=c.pad, bos_token_id=0, eos_token_id=1, **o)


def model_of(c, config):
    m = AutoModelForCausalLM.from_config(config, attn_implementation=c.attention)
    if c.init == "default":
        return m.train()
    g = torch.Generator().manual_seed(c.seed)
    with torch.no_grad():  # all random: no norm's weight is 1, no bias is 0, and nothing hides
        for name, p in m.named_parameters():
            x = torch.randn(p.shape, generator=g)
            if p.dim() == 2:
                p.copy_(x * (0.4 if re.search("embed|wte|wpe", name) else 1 / math.sqrt(c.dim)))
            else:
                p.copy_(0.1 * x + (re.search(r"(norm|ln_.)\.weight", name) is not None))
    return m.train()


def float64(m):
    """A copy that computes in float64, where transformers would go through float32."""
    m = copy.deepcopy(m).double()
    m.config._attn_implementation = "oracle"
    for name, part in m.named_modules():
        if "RMSNorm" in type(part).__name__:
            part.forward = lambda x, p=part: F.rms_norm(x, x.shape[-1:], p.weight, p.variance_epsilon)
        if re.search(ROLES["rope"], name):
            part.forward = lambda x, position_ids, p=part: turns(p.inv_freq.double(), position_ids,
                                                                 p.attention_scaling)
    return m


def turns(frequencies, positions, scaling=1):
    angle = positions[..., None].to(frequencies.dtype) * frequencies
    angle = torch.cat((angle, angle), -1)
    return angle.cos() * scaling, angle.sin() * scaling


def rotate(x, cos, sin, back=False):
    half = torch.cat(x.chunk(2, -1)[::-1], -1) * torch.cat((-torch.ones(x.shape[-1] // 2),
                                                            torch.ones(x.shape[-1] // 2)))
    return (x * cos + half * sin * (-1 if back else 1)).to(x.dtype)


def sees(config, layer, positions, length):
    """Which keys each query sees, [B or 1, 1, T, T]."""
    see = torch.ones(length, length, dtype=torch.bool).tril()
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window and (not kinds or kinds[layer] == "sliding_attention"):
        see = see.triu(1 - window)
    if positions is None:
        return see[None, None]
    document = (positions == 0).cumsum(1)
    return (see & (document[:, :, None] == document[:, None, :]))[:, None]


def attend(module, q, k, v, _, scaling=None, **others):
    """Attention in plain steps. The bug of the run may change each of them."""
    run, n = RUN.now, q.shape[2]
    a = SimpleNamespace(run=run, layer=module.layer_idx, q=q, k=k, v=v, bias=0, n=n, cap=None,
                        scale=scaling or 1 / math.sqrt(q.shape[-1]),
                        softmax=lambda s: s.softmax(-1), repeat_k=torch.repeat_interleave,
                        repeat_v=torch.repeat_interleave, cos=run.turns[0], sin=run.turns[1],
                        see=sees(module.config, module.layer_idx, run.documents, n))
    if run.attend:
        run.attend(a)
    groups = a.q.shape[1] // a.k.shape[1]
    k, v = (f(x, groups, 1) if f is torch.repeat_interleave else x.repeat(1, groups, 1, 1)
            for f, x in ((a.repeat_k, a.k), (a.repeat_v, a.v)))
    score = (a.q @ k.transpose(2, 3)).to(torch.promote_types(q.dtype, torch.float32)) * a.scale
    if a.cap:
        score = a.cap * torch.tanh(score / a.cap)
    weight = a.softmax((score + a.bias).masked_fill(~a.see, -math.inf))
    return (weight.to(v.dtype) @ v).transpose(1, 2).contiguous(), None


AttentionInterface.register("oracle", attend)


def parts_of(net, role, layer=None):
    for name, part in net.named_modules():
        at = re.search(r"(?:layers|h)\.(\d+)\b", name)
        if re.search(ROLES.get(role, role), name) and (layer is None or not at or int(at[1]) == layer):
            yield part
