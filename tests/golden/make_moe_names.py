#!/usr/bin/env python3
"""Makes tests/golden/moe-names/NAME.pt: the models tests/golden/moe-steps/qwen3 and dots1 under the names of other
programs. The names are from the sources of torchtitan 0.2.2 and 0.3.0 (state_dict_adapter.py) and of Megatron-LM's
core 0.16.1 (sharded_state_dict() of TransformerBlock, TEGroupedMLP, SharedExpertMLP).

    venv/bin/pip install torch==2.15.0
    venv/bin/python tests/golden/make_moe_names.py [FOLDER]
"""
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

HERE = Path(__file__).parent
OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "moe-names"

TITAN = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output",
         "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
         "self_attn.o_proj": "attention.wo", "self_attn.q_norm": "attention.q_norm",
         "self_attn.k_norm": "attention.k_norm", "mlp.gate_proj": "feed_forward.w1",
         "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2", "mlp.gate": "moe.router.gate",
         "mlp.shared_experts.gate_proj": "moe.shared_experts.w1", "mlp.shared_experts.up_proj": "moe.shared_experts.w3",
         "mlp.shared_experts.down_proj": "moe.shared_experts.w2"}


def titan(model, stacks, bias):
    out = {}
    for name, x in model.items():
        layer, rest = "", name
        if name.startswith("model.layers."):
            number, rest = name[len("model.layers."):].split(".", 1)
            layer = f"layers.{number}."
        if rest == "mlp.experts.gate_up_proj":
            w1, w3 = x.chunk(2, 1)
            out |= {layer + stacks.format(1, "EFD"): w1.contiguous(), layer + stacks.format(3, "EFD"): w3.contiguous()}
        elif rest == "mlp.experts.down_proj":
            out[layer + stacks.format(2, "EDF")] = x
        elif rest == "mlp.gate.e_score_correction_bias":
            out[layer + bias] = x
        else:
            stem, kind = rest.rsplit(".", 1)
            out[f"{layer}{TITAN[stem]}.{kind}"] = x
    return out


MEGATRON = {"input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
            "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
            "self_attn.q_norm.weight": "self_attention.q_layernorm.weight",
            "self_attn.k_norm.weight": "self_attention.k_layernorm.weight",
            "mlp.down_proj.weight": "mlp.linear_fc2.weight", "mlp.gate.weight": "mlp.router.weight",
            "mlp.gate.e_score_correction_bias": "mlp.router.expert_bias",
            "mlp.experts.gate_up_proj": "mlp.experts.experts.linear_fc1.weight",
            "mlp.experts.down_proj": "mlp.experts.experts.linear_fc2.weight",
            "mlp.shared_experts.down_proj.weight": "mlp.shared_experts.linear_fc2.weight"}


def megatron(model, layers, heads, width):
    """Each layer as Megatron's core has it: one key-value head has the rows of all its queries before its own."""
    out = {"embedding.word_embeddings.weight": model["model.embed_tokens.weight"],
           "decoder.final_layernorm.weight": model["model.norm.weight"], "output_layer.weight": model["lm_head.weight"]}
    for i in range(layers):
        of = {name.split(".", 3)[3]: x for name, x in model.items() if name.startswith(f"model.layers.{i}.")}
        to = {MEGATRON[name]: x for name, x in of.items() if name in MEGATRON}
        q, k, v = (of[f"self_attn.{x}_proj.weight"].unflatten(0, (-1, width)) for x in "qkv")
        group = heads // k.shape[0]
        to["self_attention.linear_qkv.weight"] = torch.cat([
            torch.cat((q[group * j:group * (j + 1)].flatten(0, 1), k[j], v[j])) for j in range(k.shape[0])])
        is_dense = "mlp.up_proj.weight" in of
        norm = "mlp.linear_fc1.layer_norm_weight" if is_dense else "pre_mlp_layernorm.weight"
        to[norm] = of["post_attention_layernorm.weight"]
        for a in ("mlp.", "mlp.shared_experts."):
            if a + "up_proj.weight" in of:
                to[a + "linear_fc1.weight"] = torch.cat((of[a + "gate_proj.weight"], of[a + "up_proj.weight"]))
        out |= {f"decoder.layers.{i}.{name}": x for name, x in to.items()}
    return out


def stacked(model):
    """Equal layers: one tensor for all."""
    out = {name: x for name, x in model.items() if not name.startswith("decoder.layers.")}
    first = [name.split(".", 3)[3] for name in model if name.startswith("decoder.layers.0.")]
    for rest in first:
        out[f"decoder.layers.{rest}"] = torch.stack([model[f"decoder.layers.{i}.{rest}"] for i in range(2)])
    return out


def per_expert(model, name):
    """A tensor per expert, as in state_dict(): its name is `name`, with {} for the linear and for the number."""
    out = {}
    for key, x in model.items():
        begin, stack, linear = key.partition("mlp.experts.experts.linear_")
        out |= ({begin + name.format(linear=linear[:3], expert=e): y.clone() for e, y in enumerate(x)} if stack
                else {key: x})
    return out


def megatron_step(model, grads):
    """A step as Megatron-core 0.16 saves it: DCP, and the state common to all ranks in common.pt."""
    rate = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    trained = {k: torch.nn.Parameter(x.clone()) for k, x in model.items() if not k.endswith("expert_bias")}
    optimizer = torch.optim.AdamW(trained.values(), **rate)
    for step in (0, 1):
        at = OUT / f"megatron-step-{step}"
        items = model | {k: p.detach().clone() for k, p in trained.items()}
        for k, p in trained.items():
            for what in ("exp_avg", "exp_avg_sq") if step else ():
                items[f"optimizer.state.{what}.{k}"] = optimizer.state[p][what].clone()
            p.grad = grads[k]
        shutil.rmtree(at, ignore_errors=True)
        dcp.save(items, checkpoint_id=at, no_dist=True)
        torch.save({"optimizer": {"state": {"common_step": torch.tensor(float(step))}, "param_groups": [rate]},
                    "iteration": step}, at / "common.pt")
        optimizer.step()


def main():
    OUT.mkdir(exist_ok=True)

    def read(name):
        return torch.load(HERE / "moe-steps" / name / "0.pt")["model"]

    def write(name, model):
        torch.save({"model": model}, OUT / f"{name}.pt")

    qwen3, dots1, mixtral = read("qwen3"), read("dots1"), read("mixtral")
    new, old = "moe.routed_experts.inner_experts.w{}_{}", "moe.experts.w{}"
    write("titan-qwen3", titan(qwen3, new, "moe.expert_bias_E"))
    write("titan-qwen3-old", titan(qwen3, old, "moe.expert_bias"))
    write("titan-dots1", titan(dots1, new, "moe.expert_bias_E"))
    write("titan-dots1-old", titan(dots1, old, "moe.expert_bias"))
    biased = titan(qwen3, new, "moe.expert_bias_E") | {"layers.1.moe.expert_bias_E": torch.ones(5)}
    write("titan-qwen3-bias", biased)
    # AdamW's state under the names of the parameters, as torchtitan saves it
    torch.manual_seed(1)
    moments = [{name: torch.randn_like(x) ** power for name, x in qwen3.items()} for power in (1, 2)]
    for name, change in ("adamw-qwen3", dict), ("adamw-qwen3-titan", lambda x: titan(x, new, "moe.expert_bias_E")):
        model, mean, square = change(qwen3), *map(change, moments)
        state = {k: {"step": torch.tensor(3.0), "exp_avg": mean[k], "exp_avg_sq": square[k]} for k in model}
        torch.save({"model": model, "optimizer": {"state": state}}, OUT / f"{name}.pt")
    # steps with a balance loss: their gradients
    def grads(kind, name):
        return torch.load(HERE / "moe-steps" / kind / f"grads-{name}.pt")

    megatron_step(megatron(dots1, 2, 2, 4), megatron(grads("dots1", "megatron"), 2, 2, 4))
    torch.save(titan(grads("dots1", "megatron"), new, "moe.expert_bias_E"), OUT / "grads-titan.pt")
    write("megatron-qwen3", megatron(qwen3, 2, 2, 4))
    write("megatron-dots1", megatron(dots1, 2, 2, 4))
    write("megatron-dots1-local", per_expert(megatron(dots1, 2, 2, 4),
                                             "mlp.experts.local_experts.{expert}.linear_{linear}.weight"))
    write("megatron-dots1-grouped", per_expert(megatron(dots1, 2, 2, 4), "mlp.experts.linear_{linear}.weight{expert}"))
    write("megatron-mixtral-stacked", stacked(megatron(mixtral, 2, 2, 4)))


if __name__ == "__main__":
    main()
