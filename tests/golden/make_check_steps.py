#!/usr/bin/env python3
"""Makes tests/golden/check-steps: steps of a small Llama by optimizers of PyTorch, for tests/cli/check_optimizers.bats.

    tests/golden/make_check_steps.py      in an environment with torch and transformers

Matrices have the learning rate 1e-3 and decay, norms 2e-3 and none. step-0.pt has the model alone, step-1.pt and
step-2.pt are right; what the others have is in their names."""
import copy
import json
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers

OUT = Path(__file__).parent / "check-steps"
CONFIG = transformers.LlamaConfig(
    hidden_size=8, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1, vocab_size=16,
    intermediate_size=12, max_position_embeddings=32, tie_word_embeddings=False, pad_token_id=None, rms_norm_eps=1e-5)
BETAS = (0.9, 0.95)


def groups(model, split=lambda p: p.ndim > 1):
    named = list(model.named_parameters())
    return [{"params": [p for _, p in named if split(p)], "lr": 1e-3, "weight_decay": 0.1},
            {"params": [p for _, p in named if not split(p)], "lr": 2e-3, "weight_decay": 0.0}]


def begin(kind=torch.optim.AdamW, **options):
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(CONFIG)
    return model, kind(groups(model), betas=options.pop("betas", BETAS), **options)


def step(model, optimizer, zero=True):
    if zero:
        model.zero_grad()
    logits = model(BATCH[:, :-1], use_cache=False).logits
    F.cross_entropy(logits.flatten(0, 1), BATCH[:, 1:].flatten()).backward()
    optimizer.step()


def state_of(model, optimizer):
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        if "betas" in group:
            group["betas"] = BETAS  # as configured, whatever the bug made of them
    return {"model": model.state_dict(), "optimizer": state}


def save(name, state):
    torch.save(state, OUT / f"{name}.pt")


def stochastic(x):
    bits = x.view(torch.int32)
    return ((bits + torch.randint(0, 65536, bits.shape, dtype=torch.int32)) & -65536).view(torch.float32)


OUT.mkdir(exist_ok=True)
(OUT / "config.json").write_text(json.dumps(CONFIG.to_dict()))
torch.manual_seed(0)
BATCH = torch.randint(0, 16, (2, 9))
save("batch", BATCH)

model, optimizer = begin()
save("step-0", {"model": model.state_dict()})
step(model, optimizer)
save("step-1", state_of(model, optimizer))
before = {k: v.clone() for k, v in model.state_dict().items()}
ended = copy.deepcopy(state_of(model, optimizer))  # the next rate of a schedule is 0, and one tensor only decayed
for group in ended["optimizer"]["param_groups"]:
    group["lr"] = 0.0
first = begin()[0].state_dict()
key = "model.layers.0.self_attn.o_proj.weight"
ended["model"][key] = first[key] * (1 - 1e-4)
save("ended-1", ended)
step(model, optimizer)
right = state_of(model, optimizer)
save("step-2", right)

planted = dict(right, model=dict(right["model"]))
planted["model"][key] = 2 * right["model"][key] - before[key]
save("rate-of-one-2", planted)
planted = dict(right, model=dict(right["model"]))
for k, v in right["model"].items():
    if v.ndim < 2:
        planted["model"][k] = (v + before[k]) / 2
save("rate-of-norms-2", planted)

for name, kind, options in (("maximize", torch.optim.AdamW, {"maximize": True}), ("nadam", torch.optim.NAdam, {"decoupled_weight_decay": True}),
                            ("beta1", torch.optim.AdamW, {"betas": (0.95, 0.95)})):
    model, optimizer = begin(kind, **options)
    step(model, optimizer)
    save(f"{name}-1", state_of(model, optimizer))

model, optimizer = begin(amsgrad=True)
step(model, optimizer)
step(model, optimizer)
save("amsgrad-2", state_of(model, optimizer))

model, optimizer = begin()
step(model, optimizer)
step(model, optimizer, zero=False)
save("kept-2", state_of(model, optimizer))

model, optimizer = begin()
step(model, optimizer)
for group in optimizer.param_groups:
    group["betas"] = BETAS[::-1]
step(model, optimizer)
save("exchanged-2", state_of(model, optimizer))

model, optimizer = begin()
step(model, optimizer)
for s in optimizer.state.values():
    s["step"].zero_()
save("reset-1", state_of(model, optimizer))
step(model, optimizer)
save("reset-2", state_of(model, optimizer))

model, optimizer = begin()
step(model, optimizer)
torch.manual_seed(5)
with torch.no_grad():
    for p in model.parameters():
        p.copy_(stochastic(p))
    for s in optimizer.state.values():
        s["exp_avg_sq"].copy_(s["exp_avg_sq"].bfloat16())
save("bf16-1", state_of(model, optimizer))

model, optimizer = begin()
step(model, optimizer)
state = state_of(model, optimizer)
for i in (2, 3):
    of = state["optimizer"]["state"][i]
    state["optimizer"]["state"][i] = {"step": of["step"], "momentum_buffer": of["exp_avg"]}
save("mixed-1", state)

torch.manual_seed(1)
model = transformers.LlamaForCausalLM(CONFIG)
matrices, vectors = (g["params"] for g in groups(model))
both = torch.optim.SGD(matrices, lr=1e-3, momentum=0.9), torch.optim.AdamW(vectors, lr=1e-3)
step(model, both[0])
both[1].step()
save("muon-1", {"model": model.state_dict(),
                "optimizer": {"muon": both[0].state_dict(), "adamw": both[1].state_dict()}})

# a token of the batch has no gradient as an input
for name in ("padding", "padding-tied"):
    config = copy.deepcopy(CONFIG)
    config.pad_token_id, config.tie_word_embeddings = int(BATCH[0, 2]), name == "padding-tied"
    (OUT / f"{name}.json").write_text(json.dumps(config.to_dict()))
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(groups(model), betas=BETAS)
    save(f"{name}-0", {"model": model.state_dict()})
    step(model, optimizer)
    save(f"{name}-1", state_of(model, optimizer))
