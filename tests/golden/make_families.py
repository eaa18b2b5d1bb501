#!/usr/bin/env python3
"""Makes tests/golden/families, which tests/unit/test_families.c and tests/cli/families.bats read: one step of AdamW of a
tiny model of each family, by transformers in fp32, and its gradients by transformers in float64.

    tests/golden/make_families.py [DIRECTORY]    needs torch and transformers

FAMILY/config.json   as transformers writes it
FAMILY/before.pt     torch.save() of {"model"}
FAMILY/after.pt      torch.save() of {"model", "optimizer"}: after one step, without clipping
FAMILY/batch.npy     [sequences][length + 1]
FAMILY/expected.txt  the loss; then per tensor, by the names and in the order of rows of pt: the norm of its gradient, and
                     the sum of gradient[i] cos(i)
"""
import copy
import sys
from pathlib import Path

import numpy as np
import torch
import transformers as hf

DIM, HEADS, KV, WIDTH, FFN, VOCAB, LENGTH, SEQUENCES = 12, 2, 1, 8, 8, 16, 12, 3
SIZES = dict(hidden_size=DIM, intermediate_size=FFN, num_hidden_layers=2, num_attention_heads=HEADS,
             num_key_value_heads=KV, head_dim=WIDTH, vocab_size=VOCAB, max_position_embeddings=256,
             bos_token_id=None, eos_token_id=None, pad_token_id=None, attn_implementation="eager")
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=100.0)
FAMILIES = {
    "phi3": lambda: hf.Phi3Config(**SIZES, sliding_window=5,
                                  rope_parameters=dict(rope_type="default", rope_theta=100.0,
                                                       partial_rotary_factor=0.75)),
    "olmo2": lambda: hf.Olmo2Config(**SIZES, attention_bias=True),
    "granite": lambda: hf.GraniteConfig(**SIZES, embedding_multiplier=3.0, residual_multiplier=0.4,
                                        attention_multiplier=0.3, logits_scaling=2.5, tie_word_embeddings=True),
    "gemma2": lambda: hf.Gemma2Config(**SIZES, query_pre_attn_scalar=10, sliding_window=5,
                                      attn_logit_softcapping=5.0, final_logit_softcapping=4.0),
    "gemma3": lambda: hf.Gemma3TextConfig(**SIZES, query_pre_attn_scalar=10, sliding_window=5,
                                          layer_types=["sliding_attention", "full_attention"],
                                          rope_parameters={
                                              "full_attention": dict(rope_type="linear", factor=2.0, rope_theta=200.0),
                                              "sliding_attention": dict(rope_type="default", rope_theta=20.0)}),
    "glm4": lambda: hf.Glm4Config(**SIZES),
    "llama-yarn": lambda: hf.LlamaConfig(**SIZES, rope_parameters=YARN),
    "qwen3-yarn": lambda: hf.Qwen3Config(**SIZES, rope_parameters=dict(
        YARN, beta_fast=4.0, beta_slow=0.5, mscale=0.8, mscale_all_dim=0.4)),
}


def make_model(config, weights=None):
    torch.manual_seed(5)
    model = hf.AutoModelForCausalLM.from_config(copy.deepcopy(config))
    model.train()
    if weights is not None:
        model.load_state_dict(weights)
    return model


def spread(model):
    """Weights that show each part of a function: norms are not at their first values, and scores reach their caps."""
    g = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g)
            p.copy_(p + 0.3 * noise if p.ndim == 1 else 0.4 * noise)


class InFloat64:
    """Inside, transformers computes in float64 where it asks for fp32, too: norms, softmax, rotations."""

    def __enter__(self):
        self.was = torch.float32, torch.float, torch.Tensor.float
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_):
        torch.float32, torch.float, torch.Tensor.float = self.was
        torch.set_default_dtype(torch.float32)


def loss_of(model, batch):
    ids = torch.from_numpy(batch.astype(np.int64))
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))


def flat(tensors):
    """The same tensors as views of one storage, which makes the file small."""
    whole, first, done = torch.cat([t.detach().reshape(-1) for t in tensors.values()]), 0, {}
    for name, t in tensors.items():
        done[name] = whole[first:first + t.numel()].view(t.shape)
        first += t.numel()
    return done


def states(model):
    out = flat(dict(model.named_parameters()))
    if model.config.tie_word_embeddings:
        out["lm_head.weight"] = out["model.embed_tokens.weight"]
    return out


def channel_order(rotated, pairs):
    """Where pt's channels of a head are: halves, in which those that are not rotated are last."""
    half, r = WIDTH // 2, rotated // 2
    order = []
    for second in range(2):
        order += [2 * j + second if pairs else second * r + j for j in range(r)]
        order += [rotated + second * (half - r) + j for j in range(half - r)]
    return order


def tensors_of_pt(family, grads):
    """By pt's names, the gradients in its order of rows."""
    rotated = {"phi3": 6, "glm4": 4}.get(family, WIDTH)
    order = channel_order(rotated, family == "glm4")
    both = family in ("gemma2", "gemma3", "glm4")
    stems = {"self_attn.o_proj": "attention.wo", "mlp.down_proj": "feed_forward.w2",
             "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
             "self_attn.q_norm": "attention.q_norm", "self_attn.k_norm": "attention.k_norm",
             "input_layernorm": "attention_norm", "pre_feedforward_layernorm": "ffn_norm",
             "post_attention_layernorm": "ffn_norm", "post_feedforward_layernorm": "ffn_post_norm",
             "post_self_attn_layernorm": "attention_post_norm", "post_mlp_layernorm": "ffn_post_norm"}
    if family in ("olmo2", "gemma2", "gemma3"):
        stems["post_attention_layernorm"] = "attention_post_norm"
    out = {}

    def add(name, g):
        if ".wq." in name or ".wk." in name:
            g = torch.cat([head[order] for head in g.split(WIDTH)])
        out[name] = g

    for name, g in grads.items():
        part = name.split(".")
        if not name.startswith("model.layers."):
            out[{"model.embed_tokens.weight": "tok_embeddings.weight", "model.norm.weight": "norm.weight",
                 "lm_head.weight": "output.weight"}[name]] = g
            continue
        layer, stem, kind = f"layers.{part[2]}.", ".".join(part[3:-1]), "." + part[-1]
        if stem == "self_attn.qkv_proj":
            for at, p in zip("qkv", g.split([HEADS * WIDTH, KV * WIDTH, KV * WIDTH])):
                add(f"{layer}attention.w{at}{kind}", p)
        elif stem == "mlp.gate_up_proj":
            for at, p in zip("13", g.split(FFN)):
                add(f"{layer}feed_forward.w{at}{kind}", p)
        elif stem in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
            add(f"{layer}attention.w{stem[10]}{kind}", g)
        else:
            add(layer + stems[stem] + kind, g)
    return out


def write_expected(path, family, config, weights, batch):
    with InFloat64():
        model = make_model(config, {k: v.double() for k, v in weights.items()})
        loss = loss_of(model, batch)
        loss.backward()
        grads = {n: p.grad for n, p in model.named_parameters()}
        lines = [f"loss {loss.item()!r} 0"]
        for name, g in sorted(tensors_of_pt(family, grads).items()):
            g = g.reshape(-1).numpy()
            assert g.dtype == np.float64
            lines.append(f"{name} {float(np.sqrt((g * g).sum()))!r} {float((g * np.cos(np.arange(len(g)))).sum())!r}")
    path.write_text("\n".join(lines) + "\n")


def make(folder, family):
    folder.mkdir(parents=True, exist_ok=True)
    config = FAMILIES[family]()
    model = make_model(config)
    spread(model)
    batch = np.random.default_rng(3).integers(1, VOCAB, (SEQUENCES, LENGTH + 1)).astype(np.int32)
    np.save(folder / "batch.npy", batch)
    (folder / "config.json").write_text(config.to_json_string())
    before = copy.deepcopy(model.state_dict())
    torch.save({"model": states(model)}, folder / "before.pt")
    write_expected(folder / "expected.txt", family, config, before, batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    loss_of(model, batch).backward()
    optimizer.step()
    state = optimizer.state_dict()
    for what in ("exp_avg", "exp_avg_sq"):
        for i, t in flat({i: s[what] for i, s in state["state"].items()}).items():
            state["state"][i][what] = t
    step = torch.tensor(1.0)
    for s in state["state"].values():
        s["step"] = step
    torch.save({"model": states(model), "optimizer": state}, folder / "after.pt")


if __name__ == "__main__":
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "families"
    for name in FAMILIES:
        make(root / name, name)
