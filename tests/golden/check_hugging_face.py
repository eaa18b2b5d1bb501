#!/usr/bin/env python3
"""Compares the models of make_golden.py with Hugging Face's GPT-2, Llama, Qwen, SmolLM3, Mixtral, OLMoE, Qwen-MoE
and dots.llm1: the same weights, the same windows, the loss and every gradient of the first step. Prints; writes
nothing. Beside the packages of make_golden.py it needs

    venv/bin/pip install transformers==5.23.0

GPT-2 agrees to 2e-15. Hugging Face's Llama computes norms and angles in float32, whatever
the weights are, so there the agreement ends at about 5e-7.
"""
import numpy as np
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

from make_golden import CASES, spec_of, train

# Ours to theirs. Their GPT-2 keeps its matrices transposed, and q, k and v in one.
LLAMA = {
    "tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head",
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj", "attention.wo": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm",
    "feed_forward.w1": "mlp.gate_proj", "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
    "router": "mlp.gate", "shared_gate": "mlp.shared_expert_gate",
    "shared.w1": "mlp.shared_expert.gate_proj", "shared.w3": "mlp.shared_expert.up_proj",
    "shared.w2": "mlp.shared_expert.down_proj",
}
GPT2 = {
    "tok_embeddings": "transformer.wte", "pos_embeddings": "transformer.wpe",
    "norm": "transformer.ln_f", "output": "lm_head",
    "attention_norm": "ln_1", "ffn_norm": "ln_2",
    "attention.wq": "attn.c_attn", "attention.wk": "attn.c_attn",
    "attention.wv": "attn.c_attn", "attention.wo": "attn.c_proj",
    "feed_forward.w1": "mlp.c_fc", "feed_forward.w2": "mlp.c_proj",
}


def llama(s):
    rope = {"rope_type": "default" if s["rope-scaling"] == "none" else s["rope-scaling"],
            "rope_theta": s["rope-theta"]}
    if s["rope-scaling"] != "none":
        rope["factor"] = s["rope-factor"]
    if s["rope-scaling"] == "llama3":
        rope |= {"low_freq_factor": s["rope-low"], "high_freq_factor": s["rope-high"],
                 "original_max_position_embeddings": s["rope-original"]}
    name = ("Qwen3" if s.get("qk-norm") == "yes" else "Qwen2" if s["bias"] == "qkv"
            else "SmolLM3" if "nope-every" in s else "Llama")
    config = getattr(transformers, name + "Config")
    return getattr(transformers, name + "ForCausalLM")(config(
        head_dim=s["head-dim"], no_rope_layer_interval=s.get("nope-every"), pad_token_id=None,
        vocab_size=s["vocab"], hidden_size=s["dim"], intermediate_size=s["ffn-dim"],
        num_hidden_layers=s["layers"], num_attention_heads=s["heads"],
        num_key_value_heads=s["kv-heads"], max_position_embeddings=s["context"],
        rms_norm_eps=s["norm-eps"], rope_parameters=rope,
        attention_bias=s["bias"] == "yes", mlp_bias=s["bias"] == "yes",
        tie_word_embeddings=s["tie"] == "yes"))


def experts(s):
    """The classes of mixtures of experts. (transformers has the matrices of all experts in one parameter.)"""
    common = dict(
        pad_token_id=None, vocab_size=s["vocab"], hidden_size=s["dim"], intermediate_size=s["ffn-dim"],
        num_hidden_layers=s["layers"], num_attention_heads=s["heads"], head_dim=s["head-dim"],
        num_key_value_heads=s["kv-heads"], max_position_embeddings=s["context"],
        rms_norm_eps=s["norm-eps"], rope_parameters={"rope_type": "default", "rope_theta": s["rope-theta"]},
        num_experts_per_tok=s["experts-per-token"], tie_word_embeddings=False)
    few = dict(moe_intermediate_size=s["expert-dim"], norm_topk_prob=s["router-norm"] == "yes",
               mlp_only_layers=list(range(s.get("moe-from", 0))),
               decoder_sparse_step=s.get("moe-every", 1))
    if s["router"] == "sigmoid":
        return transformers.Dots1ForCausalLM(transformers.Dots1Config(
            **common, **few, n_routed_experts=s["experts"], n_group=s["router-groups"],
            topk_group=s["router-top-groups"], routed_scaling_factor=s["router-scale"],
            first_k_dense_replace=s["moe-from"],
            n_shared_experts=s["shared-expert-dim"] // s["expert-dim"]))
    if "shared-expert-dim" in s:
        return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
            **common, **few, num_experts=s["experts"],
            shared_expert_intermediate_size=s["shared-expert-dim"]))
    if "qk-norm-all" in s:
        return transformers.OlmoeForCausalLM(transformers.OlmoeConfig(
            **common, num_experts=s["experts"], norm_topk_prob=s["router-norm"] == "yes"))
    if s.get("qk-norm") == "yes":
        return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
            **common, **few, num_experts=s["experts"]))
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        **common, num_local_experts=s["experts"]))


def gpt2(s):
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=s["vocab"], n_positions=s["context"], n_embd=s["dim"],
        n_layer=s["layers"], n_head=s["heads"], n_inner=s["ffn-dim"],
        activation_function="gelu" if s["act"] == "gelu" else "gelu_new",
        layer_norm_epsilon=s["norm-eps"], tie_word_embeddings=s["tie"] == "yes",
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def place(model, s, name, grad=False):
    """Their parameter, or its gradient, seen as our tensor."""
    stem, kind = name.rsplit(".", 1)
    table = GPT2 if s["arch"] == "gpt2" else LLAMA
    where = model
    if stem.startswith("layers."):
        _, number, stem = stem.split(".", 2)
        where = model.transformer.h if s["arch"] == "gpt2" else model.model.layers
        where = where[int(number)]
    if stem.startswith("experts."):
        x = where.get_parameter("mlp." + {"experts.w13": "experts.gate_up_proj",
                                          "experts.w2": "experts.down_proj"}[stem])
        return (x.grad if grad else x.data).flatten(0, 1)
    if stem + "." + kind == "router.bias":
        return where.get_buffer("mlp.gate.e_score_correction_bias")
    theirs = table[stem]
    if stem.startswith("shared.") and s["router"] == "sigmoid":
        theirs = theirs.replace("shared_expert", "shared_experts")
    x = where.get_parameter(f"{theirs}.{kind}")
    x = x.grad if grad else x.data
    inside = stem.startswith(("attention.", "feed_forward."))
    if s["arch"] == "gpt2" and inside:
        x = x.T if kind == "weight" else x
        if table[stem].endswith("c_attn"):
            x = x.chunk(3)["qkv".index(stem[-1])]
    return x


def main():
    for case in CASES:
        if "packing" in CASES[case]:  # one document a sequence is all that these models know
            continue
        if "experts" in CASES[case]:  # their losses that balance have other definitions
            CASES[case] |= {"balance-loss": 0.0, "router-z-loss": 0.0}
        s, run = spec_of(case), train(case)
        make = gpt2 if s["arch"] == "gpt2" else experts if "experts" in s else llama
        model = make(s).double()
        if "experts" in s:
            model.set_experts_implementation("eager")  # the others have no float64
        for name, x in model.named_parameters():  # where we have no bias they have 0
            x.data.fill_(0 if name.endswith("bias") else np.nan)
        for name, x in run.weights.items():
            place(model, s, name).copy_(torch.tensor(x))
        windows = torch.tensor(run.tokens[0], dtype=torch.int64)
        logits = model(windows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        worst = max((np.linalg.norm(g - place(model, s, name, True).numpy()) /
                     np.linalg.norm(g), name) for name, g in run.gradients.items()
                    if np.linalg.norm(g) > 1e-12)
        print("{:<12} loss {:.1e}, gradients {:.1e} ({})".format(
            case, abs(loss.item() / run.loss[0] - 1), *worst))


if __name__ == "__main__":
    main()
