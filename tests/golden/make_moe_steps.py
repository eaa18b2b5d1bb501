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


def with_bias(model, least=-0.2, largest=0.2):
    for router in routers(model):
        router.e_score_correction_bias.copy_(torch.linspace(least, largest, 8))


def change_stacks(change):
    """Replaces the gradient of each stack of experts, [experts, rows, columns]."""
    def apply(model):
        for name, p in model.named_parameters():
            if ".experts." in name:
                p.grad.copy_(change(name, p.grad.clone()))
    return apply


def swap_experts(name, g):
    return g[[0, 2, 1, 3]] if ".layers.0." in name else g


def zero_expert(name, g):
    if ".layers.1." in name:
        g[3] = 0
    return g


def exchange_halves(name, g):
    return torch.cat(g.chunk(2, 1)[::-1], 1) if name.endswith("gate_up_proj") else g


def transpose(name, g):
    parts = g.chunk(2, 1) if name.endswith("gate_up_proj") else (g,)
    return torch.cat([x.transpose(1, 2) for x in parts], 1)


def sum_experts(name, g):
    return (g[:2] + g[2:]).repeat(2, 1, 1)


def own_rank(ids, first):
    """True for choices of experts on the rank of the token's sequence (2 ranks), or on the first rank."""
    sequence = torch.arange(len(ids)) // 16
    return (ids // 2) == (0 * sequence if first else sequence // 2)[:, None]


def local_gates(first):
    def around(forward):
        def run(x):
            logits, scores, ids = forward(x)
            return logits, torch.where(own_rank(ids, first), scores, scores.detach()), ids
        return run
    return lambda model: wrap(model, around)


def wrap_experts(model, around):
    for name, m in model.named_modules():
        if name.endswith("mlp.experts"):
            m.forward = around(m, m.forward)


def local_inputs(model):
    wrap_experts(model, lambda m, f: lambda x, ids, w: f(x, ids, w * own_rank(ids, False)) +
                 f(x.detach(), ids, w * ~own_rank(ids, False)))


def slice_of_input(model):
    def around(m, f):
        def run(x, ids, w):
            down = m.down_proj
            half = (torch.arange(down.shape[2]) < down.shape[2] // 2).float()
            parts = []
            for h, mask in ((x, half), (x.detach(), 1 - half)):
                del m.down_proj
                m.down_proj = down * mask
                parts.append(f(h, ids, w))
                del m.down_proj
                m.down_proj = down
            return parts[0] + parts[1]
        return run
    wrap_experts(model, around)


def sigmoid_router(by_best=False, masked=float("-inf"), biased=False):
    def around(forward):
        def run(x):
            m = forward.__self__
            logits = F.linear(x.view(-1, m.hidden_dim).float(), m.weight.float())
            s = logits.sigmoid()
            choice = s + m.e_score_correction_bias
            groups = choice.view(-1, m.num_group, m.num_experts // m.num_group)
            best = groups.max(-1)[0] if by_best else groups.topk(2, -1)[0].sum(-1)
            mask = torch.zeros_like(best).scatter_(1, best.topk(m.topk_group, -1)[1], 1)
            choice = choice.masked_fill(mask.repeat_interleave(m.num_experts // m.num_group, 1) < 1, masked)
            ids = choice.topk(m.top_k, -1)[1]
            w = (s + m.e_score_correction_bias if biased else s).gather(1, ids)
            return logits, w / (w.sum(-1, keepdim=True) + 1e-20) * m.routed_scaling_factor, ids
        return run
    return lambda model: wrap(model, around)


def scale_shared(factor):
    def change(model):
        for name, m in model.named_modules():
            if name.endswith("shared_experts"):
                m.forward = (lambda f: lambda x: factor * f(x))(m.forward)
    return change


def ungate_shared(model):
    for name, m in model.named_modules():
        if name.endswith("shared_expert_gate"):
            m.forward = (lambda f: lambda x: f(x) * 0 + 100)(m.forward)


def hf_balance(logits, twice=False, chosen=False, first=False, k=2):
    p = torch.cat([x.softmax(-1) for x in logits])
    n = p.shape[1]
    f = F.one_hot(p.topk(1 if first else k, -1)[1], n).sum(1).float()
    f *= k / f.sum(1, keepdim=True)
    if twice:
        p = p.softmax(-1)
    if chosen:
        p = p * (f > 0)
    return n * (f.mean(0) * p.mean(0)).sum()


def layer_balance(logits, k=2):
    """Megatron's loss, of the last layer only."""
    p = logits[-1].softmax(-1)
    f = F.one_hot(p.topk(k, -1)[1], p.shape[1]).sum(1).float().mean(0) / k
    return p.shape[1] * (f * p.mean(0)).sum()


def megatron_balance(model, sequences):
    """Returns a function of Megatron's loss of all layers: of the micro-batch, or of each sequence. It counts the experts
    with the highest scores, without bias and groups (compute_routing_scores_for_aux_loss)."""
    k, seen = CLASSES["dots1"][2]["num_experts_per_tok"], []
    wrap(model, lambda f: lambda x: (lambda out: (seen.append(out[0]), out)[1])(f(x)))

    def loss(_):
        total = 0
        for logits in seen:
            s = logits.sigmoid().view(sequences, -1, logits.shape[1])
            f = F.one_hot(s.topk(k, -1)[1], s.shape[2]).sum(2).float().mean(1) / k
            total = total + s.shape[2] * (f * (s / s.sum(-1, keepdim=True)).mean(1)).sum(1).mean()
        return total
    return loss


def make(kind, name, patch=None, after=None, dtype=None, balance=0, own=False, term=None, grads=False, **changed):
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
        patched = patch(model)
        term = term or (patched if callable(patched) else None)
    if own and own is not True:
        own(model)
    if own:
        torch.save({"model": copy.deepcopy(model.state_dict())}, OUT / kind / f"{name}-0.pt")
    wants_logits = balance or (term and kind != "dots1")
    out = model(BATCH[:, :-1], use_cache=False, **({"output_router_logits": True} if wants_logits else {}))
    loss = F.cross_entropy(out.logits.float().flatten(0, 1), BATCH[:, 1:].flatten())
    if balance:
        loss = loss + balance * out.aux_loss
    if term:
        loss = loss + 0.05 * term(getattr(out, "router_logits", None))
    loss.backward()
    if after:
        after(model)
    if grads:
        buffers = {n: torch.zeros_like(x) for n, x in model.named_buffers() if n.endswith("correction_bias")}
        torch.save({n: p.grad for n, p in model.named_parameters()} | buffers, OUT / kind / f"{name}.pt")
        return
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


def counts_of_choices():
    """Returns the choices of dots1's experts: [sequence][expert]."""
    config_class, model_class, options = CLASSES["dots1"]
    config = config_class(**{**COMMON, **options})
    config._attn_implementation = config._experts_implementation = "eager"
    model = model_class(config)
    model.load_state_dict(torch.load(OUT / "dots1" / "0.pt")["model"])
    seen = []
    wrap(model, lambda f: lambda x: (lambda out: (seen.append((out[1], out[2])), out)[1])(f(x)))
    model(BATCH[:, :-1], use_cache=False)
    w, ids = seen[0]
    first = ids.gather(1, w.argmax(1, keepdim=True))
    return (F.one_hot(ids, 8).sum(1).view(4, 16, 8).sum(1), F.one_hot(first[:, 0], 8).view(4, 16, 8).sum(1))


def save_biases():
    """Files after a step of which only the bias differs from 0.pt: right, and by bugs."""
    n, first = counts_of_choices()

    def sign(n, doubled=1):
        return torch.sign(n.sum() / 8 - doubled * n).float()

    s = sign(n.sum(0))
    changes = {"right": 0.01 * s, "centered": 0.01 * (s - s.mean()), "reversed": -0.01 * s, "half": 0.01 * sign(n[:2].sum(0)),
               "doubled": 0.01 * sign(n.sum(0), 2), "each-micro": 0.01 * sum(sign(x) for x in n),
               "first-choice": 0.01 * sign(first.sum(0)), "unknown": 0.01 * torch.linspace(-1, 1, 8) ** 2}
    for name, change in {**changes, "rounded": 0.01 * s}.items():
        model = torch.load(OUT / "dots1" / "0.pt")["model"]
        for key, x in model.items():
            if key.endswith("e_score_correction_bias"):
                x += change
                if name == "rounded":
                    x.copy_(x.bfloat16().float())
        torch.save({"model": model}, OUT / "dots1" / f"bias-{name}.pt")


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
for name, change in (("swapped", swap_experts), ("idle", zero_expert), ("halves", exchange_halves), ("summed", sum_experts)):
    make("mixtral", f"grads-{name}", after=change_stacks(change), grads=True)
make("qwen2", "grads-transposed", after=change_stacks(transpose), grads=True, own=True, moe_intermediate_size=8)
make("mixtral", "grads-first-gates", patch=local_gates(True), grads=True)
make("mixtral", "grads-own-gates", patch=local_gates(False), grads=True)
make("mixtral", "grads-own-inputs", patch=local_inputs, grads=True)
make("mixtral", "grads-input-slice", patch=slice_of_input, grads=True)
make("mixtral", "grads-right-balance", term=hf_balance, grads=True)
make("mixtral", "grads-softmax-twice", term=lambda x: hf_balance(x, twice=True), grads=True)
make("mixtral", "grads-chosen-only", term=lambda x: hf_balance(x, chosen=True), grads=True)
make("mixtral", "grads-first-choice", term=lambda x: hf_balance(x, first=True), grads=True)
make("mixtral", "grads-last-layer", term=layer_balance, grads=True)
make("qwen2", "grads-no-shared-gate", patch=ungate_shared, grads=True)
make("dots1", "grads-right", grads=True)
make("dots1", "grads-scaled-twice", grads=True, routed_scaling_factor=6.25)
make("dots1", "grads-by-best", patch=sigmoid_router(by_best=True), grads=True)
make("dots1", "grads-masked-zero", patch=sigmoid_router(masked=0), own=lambda m: with_bias(m, -1.5, -1.02), grads=True,
     topk_group=3)
make("dots1", "grads-biased", patch=sigmoid_router(biased=True), grads=True)
make("dots1", "grads-shared-divided", patch=scale_shared(1 / 2.5), grads=True)
make("dots1", "grads-shared-scaled", patch=scale_shared(2.5), grads=True)
for name, sequences in (("megatron", 1), ("megatron-seq", 4)):
    make("dots1", f"grads-{name}", patch=lambda m: megatron_balance(m, sequences), grads=True)
save_biases()
