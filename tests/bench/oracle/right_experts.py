#!/usr/bin/env python3
"""Makes steps of random small mixtures of experts with PyTorch and transformers, and runs pt-check on each.

    tests/bench/oracle/right_experts.py [--bugs] [--keep DIR] FIRST LAST    seeds; with pt-check on the PATH

A seed sets the family (Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, dots1), the sizes, the precision (fp32, autocast, or bf16
with fp32 master weights), the auxiliary loss, clipping, accumulation and decay groups, and makes two steps: the first
one, and one from moments. With --bugs each step has one of the bugs below. Prints a line per step with another verdict
than expected, and at the end the counts. The exit code is 1 if a right step is called wrong, or a wrong one right.

A bug may be smaller than the bounds: then its effect on the gradients, relative to their bounds, is printed next to the
verdict, and the step counts as "too small" instead of as called right."""
import collections
import copy
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers as hf
from torch.func import functional_call

FAMILIES = ("mixtral", "qwen2", "qwen3", "olmoe", "dots1")
PRECISIONS = ("fp32", "autocast", "bf16")


def make_model(r, family):
    """A configuration, a model, and whether its class has an auxiliary loss."""
    head, heads = r.choice((8, 8, 16)), r.choice((2, 4))
    experts, dim = r.choice((4, 6, 8, 16)), head * heads
    chosen = r.randint(1, 4 if experts > 4 else 3)
    common = dict(hidden_size=dim, num_attention_heads=heads, num_hidden_layers=r.choice((1, 2, 2, 3)),
                  vocab_size=r.choice((61, 128, 300)), num_key_value_heads=heads // r.choice((1, 2)),
                  intermediate_size=2 * dim + 8, max_position_embeddings=256, tie_word_embeddings=r.random() < 0.3,
                  pad_token_id=None, bos_token_id=None, eos_token_id=None, rms_norm_eps=r.choice((1e-5, 1e-6)),
                  num_experts_per_tok=chosen)
    width = r.choice((8, 24, 32))
    if family == "mixtral":
        c = hf.MixtralConfig(**{**common, "num_local_experts": experts, "intermediate_size": width, "head_dim": head})
        kind = hf.MixtralForCausalLM
    elif family == "olmoe":
        c = hf.OlmoeConfig(**{**common, "num_experts": experts, "intermediate_size": width,
                              "norm_topk_prob": r.random() < 0.5})
        kind = hf.OlmoeForCausalLM
    elif family == "dots1":
        groups = r.choice((1, 2, 4) if experts >= 8 else (1, 2))
        top = r.randint(max(1, -(-chosen * groups // experts)), groups)
        c = hf.Dots1Config(**{**common, "n_routed_experts": experts, "moe_intermediate_size": width, "n_group": groups,
                              "topk_group": top, "n_shared_experts": r.choice((1, 2)), "head_dim": head,
                              "norm_topk_prob": r.random() < 0.6, "routed_scaling_factor": r.choice((1.0, 2.5)),
                              "first_k_dense_replace": r.choice((0, 1)) if common["num_hidden_layers"] > 1 else 0,
                              "sliding_window": None})
        kind = hf.Dots1ForCausalLM
    else:
        common |= dict(num_experts=experts, moe_intermediate_size=width, norm_topk_prob=r.random() < 0.5)
        if common["num_hidden_layers"] > 1 and r.random() < 0.5:
            common |= r.choice((dict(decoder_sparse_step=2), dict(mlp_only_layers=[0])))
        if family == "qwen2":
            c, kind = hf.Qwen2MoeConfig(**common, shared_expert_intermediate_size=r.choice((16, 40))), hf.Qwen2MoeForCausalLM
        else:
            c, kind = hf.Qwen3MoeConfig(**common, head_dim=head), hf.Qwen3MoeForCausalLM
    c._attn_implementation = "sdpa"
    c._experts_implementation = "eager"
    return c, kind(c)


def routers_of(model):
    return [m for n, m in model.named_modules() if n.endswith("mlp.gate")]


def experts_of(model):
    return [p for n, p in model.named_parameters() if ".experts." in n]


class Bug:
    """What a bug does to the model before the forward pass, to the gradients, and to the update."""

    def __init__(self, r, model, config, name):
        self.name, self.r = name, r
        self.router = r.choice(routers_of(model))
        self.expert = r.randrange(self.router.weight.shape[0])
        self.factor = r.choice((0, 0.5, 2, -1))
        self.part = r.choice(experts_of(model))
        self.ranks = r.choice((2, 4, 8))

    def wrap(self, around):
        forward = self.router.forward
        self.router.forward = lambda x: around(*forward(x))

    def change_model(self, model):
        if self.name == "gates not normalised, or normalised":
            if hasattr(self.router, "norm_topk_prob"):
                for router in routers_of(model):
                    router.norm_topk_prob = not router.norm_topk_prob
            else:  # Mixtral
                for self.router in routers_of(model):
                    self.wrap(lambda z, g, i: (z, z.float().softmax(-1).gather(1, i), i))
        elif self.name == "rows of an expert dropped":
            self.wrap(lambda z, g, i: (z, g * (i != self.expert), i))
        elif self.name == "gates detached":
            self.wrap(lambda z, g, i: (z, g.detach(), i))
        elif self.name == "rows of an expert to the next one":
            n = self.router.weight.shape[0]
            self.wrap(lambda z, g, i: (z, g, torch.where(i == self.expert, (i + 1) % n, i)))
        elif self.name == "one expert less":
            for router in routers_of(model):
                router.top_k -= 1

    def change_gradients(self, model):
        with torch.no_grad():
            if self.name == "one expert's gradient scaled":
                self.part.grad[self.expert] *= self.factor
            elif self.name == "no gradient of a router":
                self.router.weight.grad.zero_()
            elif self.name == "gradients of experts times ranks":
                for p in experts_of(model):
                    p.grad *= self.ranks if self.factor else 1 / self.ranks


NEEDS_AUX = "aux loss twice", "aux loss missing"
BUGS = ("one expert's gradient scaled", "no gradient of a router", "gates not normalised, or normalised",
        "aux loss twice", "rows of an expert dropped", "no decay of experts", "gates detached",
        "gradients of experts times ranks", "one expert less", "rows of an expert to the next one", "aux loss missing",
        "experts of a micro-batch missing")


def loss_of(model, precision, ids, total, coefficient, micro):
    """The loss of a micro-batch: the sum over its targets divided by their number in the whole batch, and its share of
    the auxiliary loss. Returns it with the cross-entropy alone."""
    inputs, labels = ids[:, :-1], ids[:, 1:]
    options = {"use_cache": False, **({"output_router_logits": True} if coefficient else {})}
    if precision == "bf16":
        weights = {k: v.to(torch.bfloat16) for k, v in model.named_parameters()}
        out = functional_call(model, weights, (inputs,), options)
    else:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            out = model(inputs, **options)
    loss = F.cross_entropy(out.logits.float().flatten(0, 1), labels.flatten(), reduction="sum") / total
    return loss + coefficient * out.aux_loss.float() / micro if coefficient else loss, loss.item()


def backward(model, precision, batch, coefficient, skips_experts=False):
    """Accumulates the gradients of a batch. Returns its loss."""
    total, loss = sum(b[:, 1:].numel() for b in batch), 0.0
    for k, b in enumerate(batch):
        part, own = loss_of(model, precision, b, total, coefficient, len(batch))
        before = [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in experts_of(model)]
        part.backward()
        if skips_experts and k == 0:
            for p, g in zip(experts_of(model), before):
                p.grad = g
        loss += own
    return loss


def gradients_of(model):
    return {n: p.grad.double().clone() for n, p in model.named_parameters() if p.grad is not None}


def make(folder, seed, with_bugs):
    """The cases of a seed: what it is, and the options of pt-check."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    family, precision = FAMILIES[seed % 5], PRECISIONS[seed // 5 % 3]
    config, model = make_model(r, family)
    model.train()
    scale = r.choice((1, 2, 4))
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n.endswith("mlp.gate.weight"):
                p.copy_(r.choice((0.05, 0.3, 1)) * torch.randn_like(p))
            elif p.ndim > 1:
                p.mul_(scale)
            elif r.random() < 0.5:
                p.add_(0.1 * torch.randn_like(p))
        for m in routers_of(model):
            if hasattr(m, "e_score_correction_bias"):
                m.e_score_correction_bias.copy_(0.05 * torch.randn(m.weight.shape[0]))
    has_aux = family != "dots1" and r.random() < 0.5
    name = BUGS[seed % len(BUGS)] if with_bugs else None
    if name in NEEDS_AUX and family == "dots1":
        name = BUGS[0]
    has_aux |= name in NEEDS_AUX
    if name == "one expert less" and config.num_experts_per_tok < 2:
        name = BUGS[1]
    if name == "gates not normalised, or normalised" and config.num_experts_per_tok == 1 and family != "mixtral":
        name = BUGS[1]
    coefficient = r.choice((0.001, 0.01, 0.1)) if has_aux else 0
    if name in NEEDS_AUX:
        coefficient = 0.1
    decay, plain = ([p for p in model.parameters() if (p.ndim > 1) == many] for many in (True, False))
    lr, clip = 10 ** r.uniform(-4, -2.5), r.choice((0, 0.1, 1))
    if name == "no decay of experts":
        lr = max(lr, 1e-3)
    groups = ([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
              if r.random() < 0.5 else [{"params": list(model.parameters()), "weight_decay": 0.1}])
    names = {id(p): n for n, p in model.named_parameters()}
    groups = [dict(g, params=[(names[id(p)], p) for p in g["params"]]) for g in groups]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=r.choice(((0.9, 0.95), (0.9, 0.999))))
    config.save_pretrained(folder)
    balance = ([f"--balance=hf={coefficient}"] if has_aux else ["--balance=none"])
    if not with_bugs and r.random() < 0.4:
        balance = []

    def save(name):
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / name)

    save("step-0.pt")
    for step in (1, 2):
        micro, rows, length = r.choice((1, 2, 4)), r.choice((1, 2, 4)), r.choice((17, 33, 65))
        if name == "experts of a micro-batch missing":
            micro = max(micro, 2)
        batch = [torch.randint(0, config.vocab_size, (rows, length)) for _ in range(micro)]
        optimizer.zero_grad()
        right = None
        if name:
            backward(model, precision, batch, coefficient)
            right = gradients_of(model)
            optimizer.zero_grad()
            bug = Bug(random.Random(seed * 2 + step), model, config, name)
            saved = [(m, m.forward, getattr(m, "norm_topk_prob", None), m.top_k) for m in routers_of(model)]
            bug.change_model(model)
        used = {"aux loss twice": 2 * coefficient, "aux loss missing": 0}.get(name, coefficient)
        loss = backward(model, precision, batch, used, name == "experts of a micro-batch missing")
        effect = {}
        if name:
            bug.change_gradients(model)
            for m, forward, norm, top in saved:
                m.__dict__.pop("forward", None)
                m.top_k = top
                if norm is not None:
                    m.norm_topk_prob = norm
            seen = gradients_of(model)
            effect = {n: ((seen[n] - g).norm() / g.norm()).item() for n, g in right.items() if n in seen and g.norm() > 0}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip if clip else float("inf")).item()
        before = [p.detach().clone() for p in experts_of(model)]
        optimizer.step()
        if name == "no decay of experts":
            effect = {"decay": 1}
            with torch.no_grad():
                for p, old in zip(experts_of(model), before):
                    p.add_(0.1 * lr * old)
        save(f"step-{step}.pt")
        files = []
        for k, b in enumerate(batch):
            files.append(folder / f"batch-{step}-{k}.pt")
            torch.save(b, files[-1])
        yield (family, precision, name, effect), [
            "-c", folder / "config.json", "-p", precision, "--clip", clip, "--lr", repr(lr), *balance,
            "--weight-decay", 0.1, "--grad-norm", f"{norm:.6g}", "--loss", f"{loss:.6g}", "--accumulation", micro,
            folder / f"step-{step - 1}.pt", folder / f"step-{step}.pt", "--batch", *files]


def largest_effect(result, effect):
    """The largest effect of a bug on a gradient, relative to its bound."""
    bounds = {t["file_name"]: (t["gradient"] or {"bound": 1e9})["bound"] for t in result["tensors"]}

    def bound(name):  # (the file's name may be model.NAME, or NAME and more tensors)
        return min((b for n, b in bounds.items() if n.endswith(name)), default=1e9)

    return max((x / (0.5 if n == "decay" else bound(n)) for n, x in effect.items()), default=0)


def main():
    words = sys.argv[1:]
    with_bugs = "--bugs" in words
    keep = words[words.index("--keep") + 1] if "--keep" in words else None
    first, last = map(int, words[-2:])
    torch.set_num_threads(1)
    hf.utils.logging.set_verbosity_error()
    counts, by_bug, failed = collections.Counter(), collections.Counter(), 0
    for seed in range(first, last + 1):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(keep or temporary, f"{seed}")
            folder.mkdir(parents=True, exist_ok=True)
            for step, ((family, precision, bug, effect), options) in enumerate(make(folder, seed, with_bugs), 1):
                seen = subprocess.run(["pt-check", "--json", *map(str, options)], capture_output=True, text=True)
                verdict = {0: "right", 1: "WRONG", 2: "not decided"}.get(seen.returncode, f"exit {seen.returncode}")
                result = json.loads(seen.stdout) if seen.stdout else {"tensors": [], "findings": []}
                expected = verdict == ("WRONG" if with_bugs else "right")
                size = largest_effect(result, effect) if with_bugs else 0
                if with_bugs and verdict == "right" and size < 1:
                    verdict = "too small"
                counts[precision, verdict] += 1
                by_bug[bug, verdict] += with_bugs
                failed += verdict == ("right" if with_bugs else "WRONG") or verdict.startswith("exit")
                if not expected:
                    texts = [f["text"][:120] for f in result["findings"][:3]] or seen.stderr[-200:]
                    print(seed, step, family, precision, bug or "", verdict, f"{size:.3g}" if with_bugs else "", texts,
                          " ".join(str(o) for o in options if str(o).startswith("--balance")), flush=True)
                    if keep:
                        (folder / f"command-{step}").write_text("pt-check " + " ".join(map(str, options)) + "\n")
    for name, table in (("", counts), ("by bug", by_bug if with_bugs else {})):
        print(name)
        for key in sorted(table, key=str):
            print(f"  {table[key]:5}  {', '.join(map(str, key))}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
