#!/usr/bin/env python3
"""Makes tests/golden/moe-steps: steps of small mixtures of experts by transformers, for tests/cli/check_experts.bats.

    tests/golden/make_moe_steps.py      in an environment with torch and transformers 5

CLASS/0.pt is the model, 1.pt a right step of AdamW; what the others have is in their names. The bugs change the model
or its gradients, so one batch serves all."""
import copy
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers

OUT = Path(__file__).parent / "moe-steps"
COMMON = dict(hidden_size=8, intermediate_size=12, num_attention_heads=2, num_key_value_heads=1, head_dim=4,
              vocab_size=16, max_position_embeddings=32, tie_word_embeddings=False, pad_token_id=None, bos_token_id=None,
              eos_token_id=None, num_hidden_layers=2, initializer_range=0.3)
CLASSES = {
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM, dict(num_local_experts=4)),
    "qwen2": (transformers.Qwen2MoeConfig, transformers.Qwen2MoeForCausalLM,
              dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=6, shared_expert_intermediate_size=8)),
    "qwen3": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM,
              dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=6, decoder_sparse_step=2,
                   norm_topk_prob=True)),
    "dots1": (transformers.Dots1Config, transformers.Dots1ForCausalLM,
              dict(n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, moe_intermediate_size=4,
                   first_k_dense_replace=1, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5)),
}
BATCH = torch.randint(0, 16, (4, 17), generator=torch.Generator().manual_seed(3))


def routers(model):
    return [m for name, m in model.named_modules() if name.endswith("mlp.gate")]


def wrap(model, around):
    for router in routers(model):
        router.forward = around(router.forward)


def experts_times(factor):
    def change(model):
        for name, p in model.named_parameters():
            if ".experts." in name:
                p.grad *= factor
    return change


def remove_router_gradients(model):
    for router in routers(model):
        router.weight.grad = None


def detach_gates(model):
    wrap(model, lambda f: lambda x: (lambda out: (out[0], out[1].detach(), out[2]))(f(x)))


def detach_input(model):
    wrap(model, lambda f: lambda x: f(x.detach()))


def zero_routers(model):
    for router in routers(model):
        torch.nn.init.zeros_(router.weight)


def exchange_norm(model):
    for router in routers(model):
        router.norm_topk_prob = not router.norm_topk_prob


def no_shared_expert(model):
    for name, m in model.named_modules():
        if name.endswith(("shared_expert", "shared_experts")):
            m.forward = (lambda f: lambda x: 0 * f(x))(m.forward)


def with_bias(model):
    for router in routers(model):
        router.e_score_correction_bias.copy_(torch.linspace(-0.2, 0.2, 8))


def make(kind, name, patch=None, after=None, dtype=None, balance=0, own=False, **changed):
    config_class, model_class, options = CLASSES[kind]
    config = config_class(**{**COMMON, **options})
    (OUT / kind).mkdir(parents=True, exist_ok=True)
    if name == "1":
        config.save_pretrained(OUT / kind)
    for key, value in changed.items():
        setattr(config, key, value)
    config._attn_implementation = config._experts_implementation = "eager"
    torch.manual_seed(1)
    model = model_class(config)
    if kind == "dots1":
        with_bias(model)
    if dtype:
        model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    if name == "1":
        torch.save({"model": copy.deepcopy(model.state_dict())}, OUT / kind / "0.pt")
    if dtype:
        torch.save({"model": copy.deepcopy(model.state_dict())}, OUT / kind / f"{name}-0.pt")
    if patch:
        patch(model)
    if own:
        torch.save({"model": copy.deepcopy(model.state_dict())}, OUT / kind / f"{name}-0.pt")
    out = model(BATCH[:, :-1], use_cache=False, **({"output_router_logits": True} if balance else {}))
    loss = F.cross_entropy(out.logits.float().flatten(0, 1), BATCH[:, 1:].flatten())
    (loss + balance * out.aux_loss if balance else loss).backward()
    if after:
        after(model)
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, OUT / kind / f"{name}.pt")


def split(tensors, mixtral):
    """The names of transformers 4 and of saved files: a tensor per matrix of an expert."""
    gate, up, down, moe = (("w1", "w3", "w2", "block_sparse_moe") if mixtral
                           else ("gate_proj", "up_proj", "down_proj", "mlp"))
    out = {}
    for name, x in tensors.items():
        layer, _, stack = name.partition(".mlp.experts.")
        for e in range(x.shape[0] if stack else 0):
            begin = f"{layer}.{moe}.experts.{e}"
            if stack == "down_proj":
                out[f"{begin}.{down}.weight"] = x[e].clone()
            else:
                half = x.shape[1] // 2
                out[f"{begin}.{gate}.weight"], out[f"{begin}.{up}.weight"] = x[e, :half].clone(), x[e, half:].clone()
        if not stack:
            out[name.replace(".mlp.gate.", f".{moe}.gate.")] = x.clone()
    return out


def save_split(kind):
    for step in ("0", "1"):
        state = torch.load(OUT / kind / f"{step}.pt")
        model = {"model": split(state["model"], kind == "mixtral")}
        if "optimizer" in state:
            names = list(state["model"])
            moments = {what: split({n: state["optimizer"]["state"][i][what] for i, n in enumerate(names)},
                                   kind == "mixtral") for what in ("exp_avg", "exp_avg_sq")}
            model["optimizer"] = {"state": {n: {"step": torch.tensor(1.0), **{w: moments[w][n] for w in moments}}
                                            for n in model["model"]},
                                  "param_groups": [{"params": list(model["model"]), "lr": 1e-3, "betas": (0.9, 0.95),
                                                    "eps": 1e-8, "weight_decay": 0.1}]}
        torch.save(model, OUT / kind / f"split-{step}.pt")


OUT.mkdir(exist_ok=True)
torch.save(BATCH, OUT / "batch.pt")
for kind in CLASSES:
    make(kind, "1")
make("qwen3", "bf16", dtype=torch.bfloat16)
make("mixtral", "ties", patch=zero_routers, own=True)
make("mixtral", "experts-4-times", after=experts_times(4))
make("mixtral", "experts-half", after=experts_times(0.5))
make("mixtral", "three-experts", num_experts_per_tok=3)
make("qwen3", "no-router", after=remove_router_gradients)
make("qwen3", "detached-gates", patch=detach_gates)
make("qwen3", "detached-input", patch=detach_input)
make("qwen3", "no-norm", patch=exchange_norm)
make("qwen2", "norm", patch=exchange_norm)
make("qwen2", "no-shared", patch=no_shared_expert)
make("qwen2", "balance", balance=0.01)
make("dots1", "no-scale", routed_scaling_factor=1.0)
make("dots1", "no-groups", n_group=1, topk_group=1)
for kind in ("mixtral", "qwen3"):
    save_split(kind)
