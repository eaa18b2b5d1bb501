"""A step of another trainer in one process, which plays all data-parallel ranks and micro-batches.

A bug is a dictionary {place: function}. Each place of a step calls its function, if the bug has one:
    old        before the forward pass: parameters, moments     model      the modules, in the forward pass
    batch      tokens, targets, positions                       attend     the steps of attention
    positions, documents   what the model gets of them          weights    the weights of the targets
    loss       the loss of a micro-batch                        parts      gradients of each rank's micro-batches
    grads      gradients after the sum over ranks               clip       clipping; returns the logged norm
    optim      the update of one parameter                      after      parameters and moments after the update"""
import copy
import json
import random
from types import SimpleNamespace

import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

from families import RUN, config_of, float64, model_of, parts_of, turns

BF16 = torch.bfloat16


class Run:
    def __init__(self, c):
        torch.manual_seed(c.seed)
        self.c, self.rng = c, random.Random(c.seed)
        self.config = config_of(c)
        self.model = model_of(c, self.config)
        if c.precision == "bf16-stored":
            for p in self.model.parameters():
                p.data = p.data.to(BF16)
        self.named = dict(self.model.named_parameters())
        for name, p in self.named.items():
            p.requires_grad_(not any(s in name for s in c.frozen))
        self.trained = {n: p for n, p in self.named.items() if p.requires_grad}
        self.opt, self.schedule = self.optimizer()
        self.layer = self.rng.randrange(c.layers)
        self.undo, self.gradient = [], {}
        self.clear()

    def clear(self):
        self.attend = self.turns = self.documents = None

    def optimizer(self):
        c, named = self.c, list(self.trained.items())
        if c.groups == "all":
            groups = list(self.named.values())
        elif c.groups == "decay":
            groups = [{"params": [p for _, p in named if (p.dim() == 2) == two],
                       "weight_decay": c.decay * two} for two in (True, False)]
        elif c.groups == "named":
            groups = [{"params": [(n, p) for n, p in named if ("norm" in n or "ln_" in n) == k]}
                      for k in (True, False)]
        elif c.groups == "two-lr":
            groups = [{"params": [p for n, p in named if ("emb" in n or "wte" in n) == k],
                       "lr": c.lr * (1 + k)} for k in (False, True)]
        else:
            groups = [p for _, p in named]
        how = {} if c.opt == "single" else {"fused": True} if c.opt == "fused" else {"foreach": True}
        kind = torch.optim.Adam if c.opt == "adam" else torch.optim.AdamW
        opt = kind([g for g in groups if not isinstance(g, dict) or g["params"]], lr=c.lr, betas=c.betas,
                   eps=c.eps, weight_decay=0 if c.opt == "adam" else c.decay, **(how or {"foreach": False}))
        form = {"warmup": lambda n: (n + 1) / (c.warm + 3), "cosine": lambda n: 1 / (1 + n), "from-0": lambda n: n / 4,
                None: None}[c.schedule]
        return opt, torch.optim.lr_scheduler.LambdaLR(opt, form) if form else None

    # ---- the batch

    def batch(self, number):
        """Returns tokens, targets (-100: does not count), and positions or None."""
        c, g = self.c, torch.Generator().manual_seed(1000 * self.c.seed + number)
        tokens = torch.randint(0, c.vocab, (c.batch, c.length + 1), generator=g)
        if c.tokens == "few":
            tokens = tokens % 5
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].clone()
        at = torch.arange(c.length).expand(x.shape)
        positions = None
        if c.documents:
            begins = torch.rand(x.shape, generator=g) < 0.12
            begins[:, 0] = True
            positions = at - (at * begins).cummax(1).values
        if c.mask == "prompt":
            y[at < torch.randint(0, c.length * 2 // 3, (c.batch, 1), generator=g)] = -100
        elif c.mask == "scattered":
            y[torch.rand(y.shape, generator=g) < 0.3] = -100
        elif c.mask == "end":
            y[at >= torch.randint(c.length // 2, c.length, (c.batch, 1), generator=g)] = -100
        elif c.mask == "whole":  # the first sequences have no target that counts
            y[:c.per] = -100
        elif c.mask == "few":
            y[at != torch.randint(0, c.length - 1, (c.batch, 1), generator=g)] = -100
        if c.labels == "hf":
            y[:, -1] = -100
        return x, y, positions

    def rows(self, rank, micro):
        n = self.c.batch // (self.c.ranks * self.c.accumulate)
        at = (rank * self.c.accumulate + micro) * n
        return slice(at, at + n)

    @property
    def micros(self):
        return [(r, a) for r in range(self.c.ranks) for a in range(self.c.accumulate)]

    def counted(self, y):
        return (y != -100).float()

    # ---- forward and backward

    def network(self):
        if not self.c.precision.startswith("bf16") or self.c.precision == "bf16-stored":
            return self.model
        net = copy.deepcopy(self.model)
        for p in net.parameters():
            p.data = p.data.to(BF16)
        return net

    def logits(self, net, x, positions):
        RUN.now = self
        with torch.autocast("cpu", BF16, enabled=self.c.precision == "autocast"):
            return net(input_ids=x, position_ids=positions, use_cache=False).logits

    def backward(self, net, number, bug):
        """Returns the batch, the logged loss, and the gradients of each rank's micro-batches."""
        batch = self.batch(number)
        x, y, positions = batch
        if "batch" in bug:
            x, y, positions = bug["batch"](self, x.clone(), y.clone(), positions)
        self.documents_all, at = positions, positions
        if "documents" in bug:
            self.documents_all = bug["documents"](self, positions)
        if "positions" in bug:
            at = bug["positions"](self, torch.arange(x.shape[1]).expand(x.shape) if at is None else at)
        w = self.counted(y) / self.counted(y).sum()
        if "weights" in bug:
            w = bug["weights"](self, y, w)
        self.attend = bug.get("attend")
        for part in parts_of(net, "rope"):
            self.undo.append(part.register_forward_hook(lambda m, a, turns: setattr(self, "turns", turns)).remove)
        if self.turns is None:
            self.turns = (None, None)
        if "model" in bug:
            bug["model"](self, net)
        parts, logged = {}, 0
        named = {n: p for n, p in net.named_parameters() if p.requires_grad}
        for rank, micro in self.micros:
            self.rank, self.micro, rows = rank, micro, self.rows(rank, micro)
            self.documents = None if self.documents_all is None else self.documents_all[rows]
            self.tokens = x[rows]
            logits = self.logits(net, x[rows], None if at is None else at[rows])
            loss = bug.get("loss", plain_loss)(self, logits, y[rows], w[rows])
            loss.backward()
            logged += loss.item()
            parts[rank, micro] = {n: p.grad for n, p in named.items()}
            for p in named.values():
                p.grad = None
        while self.undo:
            self.undo.pop()()
        self.clear()
        return batch, logged, parts

    def reduce(self, parts):
        """Sums the gradients over the micro-batches of each rank, and then over the ranks."""
        kind = BF16 if self.c.precision == "bf16-reduce" else torch.float32
        g = {}
        for name in self.trained:
            own = [sum_of(parts[r, a][name] for a in range(self.c.accumulate)) for r in range(self.c.ranks)]
            own = [x for x in own if x is not None]
            g[name] = sum_of(x.to(kind) for x in own).to(self.named[name].dtype) if own else None
        return g

    def step(self, number, bug=None):
        bug = bug or {}
        net = self.network()
        if "old" in bug:
            bug["old"](self, net)
        batch, loss, parts = self.backward(net, number, bug)
        if "parts" in bug:
            bug["parts"](self, parts)
        g = self.reduce(parts)
        if "grads" in bug:
            bug["grads"](self, g)
        for name, p in self.trained.items():
            p.grad = g[name]
        self.gradient, self.before = g, {n: p.detach().clone() for n, p in self.named.items()}
        self.group_lr = [group["lr"] for group in self.opt.param_groups]
        norm = bug.get("clip", clip)(self, {n: x for n, x in g.items() if x is not None})
        if "optim" in bug:
            self.update(bug["optim"])
        else:
            self.opt.step()
        if "after" in bug:
            with torch.no_grad():
                bug["after"](self)
        self.opt.zero_grad()
        if self.schedule:
            self.schedule.step()
        return {"batch": batch, "loss": loss, "grad_norm": float(norm)}

    @torch.no_grad()
    def update(self, bug):
        """Computes AdamW in plain steps; the bug changes fields of o."""
        names = {p: n for n, p in self.named.items()}
        for number, group in enumerate(self.opt.param_groups):
            for p in group["params"]:
                s = self.opt.state[p]
                if not s:
                    s.update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                s["step"] += 1
                o = SimpleNamespace(run=self, name=names[p], x=p.clone(), g=p.grad, m=s["exp_avg"].clone(),
                                    v=s["exp_avg_sq"].clone(), t=s["step"].item(), lr=group["lr"], group=number,
                                    decay=group["weight_decay"], beta1=group["betas"][0], t_v=s["step"].item(),
                                    beta2=group["betas"][1], eps=group["eps"], rate=1, direction=adam, save=lambda o: None)
                if o.g is None:
                    continue
                bug(o)
                o.m = o.beta1 * o.m + (1 - o.beta1) * o.g
                o.v = o.beta2 * o.v + (1 - o.beta2) * o.g.square()
                d = o.direction(o)
                o.p = o.x * (1 - o.lr * o.decay) - o.lr * o.rate * d
                o.save(o)
                p.copy_(o.p), s["exp_avg"].copy_(o.m), s["exp_avg_sq"].copy_(o.v)

    # ---- states and files

    def state(self):
        return {n: p.detach().clone() for n, p in self.named.items()}, copy.deepcopy(self.opt.state_dict())

    @torch.no_grad()
    def restore(self, state):
        for n, p in self.named.items():
            p.copy_(state[0][n])
        self.opt.load_state_dict(copy.deepcopy(state[1]))

    def moments(self):
        return {n: {k: v.clone() for k, v in self.opt.state.get(p, {}).items()} for n, p in self.trained.items()}

    def save(self, path):
        if not self.c.form.startswith("dcp"):
            end = "_state_dict" if self.c.form == "long" else ""
            torch.save({"model" + end: self.model.state_dict(), "optimizer" + end: self.opt.state_dict()},
                       path.with_suffix(".pt"))
            return path.with_suffix(".pt")
        lr = [g["lr"] for g in self.opt.param_groups]  # get_state_dict() would set it to 0
        m, o = get_state_dict(self.model, self.opt, options=StateDictOptions(
            flatten_optimizer_state_dict=self.c.form == "dcp-flat"))
        for group, rate in zip(self.opt.param_groups, lr):
            group["lr"] = rate
        state = {**m, "optimizer": o} if self.c.form == "dcp-flat" else {"model": m, "optimizer": o}
        dcp.save(state, checkpoint_id=path, no_dist=True)
        return path

    def save_batch(self, directory, batch):
        x, y, positions = batch
        if self.c.labels == "hf":  # equal to the inputs where they count
            y = torch.cat((torch.where(y[:, :1] == -100, -100, x[:, :1]), y[:, :-1]), 1)
        names = ("input_ids", "labels", "position_ids") if self.c.labels == "hf" else ("inputs", "labels", "positions")
        files = []
        for r, a in self.micros:
            rows = self.rows(r, a)
            if self.c.labels == "tokens":
                parts = torch.cat((x[rows], y[rows, -1:]), 1)
            else:
                parts = {n: t[rows].contiguous() for n, t in zip(names, (x, y, positions)) if t is not None}
            files.append(directory / f"batch-{r}-{a}.pt")
            torch.save(parts, files[-1])
        return files


def sum_of(parts):
    parts = [x for x in parts if x is not None]
    total = parts[0].clone() if parts else None
    for x in parts[1:]:
        total += x
    return total


def nll(logits, y):
    return F.cross_entropy(logits.float().transpose(1, 2), y, reduction="none")


def plain_loss(run, logits, y, w):
    return (nll(logits, y) * w).sum()


def norm_of(g):
    return torch.stack([x.float().norm() for x in g.values()]).norm() if g else torch.zeros(())


def scale(g, factor):
    for x in g.values():
        x.mul_(factor)


def clip(run, g):
    norm = norm_of(g)
    if run.c.clip:
        scale(g, min(1, run.c.clip / (norm + 1e-6)))
    return norm


def adam(o):
    return (o.m / (1 - o.beta1 ** o.t)) / ((o.v / (1 - o.beta2 ** o.t_v)).sqrt() + o.eps)


# ---- the float64 judge ---------------------------------------------------------


def truth(run, state, number):
    """Returns loss, gradients and norm of the right step from this state, in float64."""
    x, y, positions = run.batch(number)
    m = float64(run.model)
    with torch.no_grad():
        for n, p in m.named_parameters():
            p.copy_(state[0][n])
    run.documents, run.attend, run.turns, RUN.now = positions, None, (None, None), run
    logits = m(input_ids=x, position_ids=positions, use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    loss.backward()
    g = {n: p.grad for n, p in m.named_parameters() if n in run.trained}
    norm = torch.stack([t.norm() for t in g.values()]).norm().item()
    return {"loss": loss.item(), "g": g, "norm": norm}


def measure(run, before, before_moments, seen, true, lr):
    """Returns the distance of a step from the right one: loss, norm, each gradient, squares, update, count."""
    c = run.c
    t = c.warm + 1 + (c.form.startswith("dcp") and not c.warm)  # get_state_dict() makes a step 0
    factor = min(1, c.clip / (true["norm"] + 1e-6)) if c.clip else 1
    d = {"loss": abs(seen["loss"] - true["loss"]) / max(1, abs(true["loss"])),
         "norm": abs(seen["grad_norm"] / true["norm"] - 1), "g": {}, "factor": {}, "square": 0, "update": 0, "step": 0}
    after, rate = run.moments(), dict(zip((id(p) for g in run.opt.param_groups for p in g["params"]),
                                         (r for g, r in zip(run.opt.param_groups, lr) for _ in g["params"])))
    decay = {id(p): g["weight_decay"] for g in run.opt.param_groups for p in g["params"]}
    for n, p in run.named.items():
        p0, p1 = before[n].double(), p.detach().double()
        stored = 2 ** -8 if p.dtype == BF16 else 2 ** -23
        if n not in run.trained:
            d["update"] = max(d["update"], float((p0 != p1).any()))
            continue
        s0 = before_moments[n] or {k: torch.zeros(()) for k in ("exp_avg", "exp_avg_sq", "step")}
        s1 = after[n] or {k: torch.zeros(p.shape) for k in ("exp_avg", "exp_avg_sq")}
        m0, m1, v0, v1 = s0["exp_avg"].double(), s1["exp_avg"].double(), s0["exp_avg_sq"].double(), s1["exp_avg_sq"].double()
        g = (m1 - c.betas[0] * m0) / (1 - c.betas[0])
        want = true["g"][n] * factor
        tiny = true["norm"] * factor * 1e-7  # gradients that are 0 but for rounding
        rounding = stored * m0.norm().item() / (1 - c.betas[0])
        d["g"][n] = max(0, (g - want).norm().item() - tiny - rounding) / max(want.norm().item(), 1e-30)
        if want.norm() > 30 * tiny:
            d["factor"][n] = abs(((g * want).sum() / want.square().sum()).item() - 1)
        off = (v1 - c.betas[1] * v0 - (1 - c.betas[1]) * g ** 2).norm().item()
        rounding = (2 * stored * v0.norm() + 4 * stored * (1 - c.betas[1]) * (g.abs() * m0.abs().max() / (1 - c.betas[0])).norm()).item()
        d["square"] = max(d["square"], (off - rounding) / max(1e-30, (1 - c.betas[1]) * (g ** 2).norm().item()))
        root = (v1 / (1 - c.betas[1] ** t)).sqrt() + c.eps
        rate_ = max(rate[id(p)], 1e-9)
        p_want = p0 * (1 - rate[id(p)] * decay[id(p)]) - rate[id(p)] * m1 / (1 - c.betas[0] ** t) / root
        d["update"] = max(d["update"], (((p_want - p1).abs() - stored * p0.abs()).max() / rate_).item())
        d["step"] = max(d["step"], float(float(s1.get("step", t)) != t))
    return d


def visible(precision, d, noise):
    """Returns what is off by more than rounding and by more than the bounds in pt-check(1)."""
    rough = precision != "fp32"
    noise = noise or {k: {n: 0 for n in d["g"]} if k in ("g", "factor") else 0 for k in d}
    off = [n for n in d["g"] if not d["g"][n] <= max(4 * noise["g"][n], 2e-3 if rough else 1.2e-5)
           or not d["factor"].get(n, 0) <= (0.025 + 2 * noise["factor"].get(n, 0) if rough else 1)]
    seen = {"gradients": len(off), "loss": not d["loss"] <= max(4 * noise["loss"], 2e-3 if rough else 2e-6),
            "norm": not d["norm"] <= max(4 * noise["norm"], 1e-2 if rough else 2e-5),
            "squares": not d["square"] <= max(4 * noise["square"], 1e-1 if precision == "bf16-stored" else 3e-6),
            "update": not d["update"] <= max(4 * noise["update"], 1e-3), "step": bool(d["step"])}
    return {k: v for k, v in seen.items() if v}


def make(case, directory):
    """Writes the files of a case to a directory. Returns the options for pt-check and what the judge found."""
    c, bug, said = case.c, case.bug, case.said or case.c.precision
    run = Run(c)
    run.case = case
    for number in range(c.warm):
        run.before_last = run.state()
        run.step(number)
    before = run.save(directory / "before")  # get_state_dict() may make moments
    state, moments, schedule = run.state(), run.moments(), copy.deepcopy(run.schedule and run.schedule.state_dict())
    run.kept, run.begin = run.gradient, state
    true = truth(run, state, c.warm)
    seen = run.step(c.warm)
    noise = measure(run, state[0], moments, seen, true, run.group_lr)
    d = noise
    if bug:
        run.restore(state)
        if run.schedule:
            run.schedule.load_state_dict(schedule)
        right_lr = run.group_lr
        seen = run.step(c.warm, bug)
        d = measure(run, state[0], moments, seen, true, right_lr)
    after = run.save(directory / "after")
    batch = run.save_batch(directory, seen["batch"])
    config = run.config.to_dict() | {"architectures": [type(run.model).__name__]}
    (directory / "config.json").write_text(json.dumps(config, indent=1, default=str) + "\n")
    o = ["-c", directory / "config.json", "-p", said if said in ("auto", "fp32", "autocast") else "bf16",
         "--" + c.kind, c.ranks, "--accumulation", c.accumulate]
    told = c.tell
    o += ["--clip", c.clip] if "clip" in told else []
    o += ["--grad-norm", f"{seen['grad_norm']:.{c.digits}g}"] if "norm" in told else []
    o += ["--loss", f"{seen['loss']:.{c.digits}g}"] if "loss" in told else []
    o += ["--lr", repr(run.group_lr[0] if not bug else right_lr[0])] if "lr" in told else []
    o += ["--weight-decay", c.decay] if "decay" in told else []
    for name in c.frozen:
        o += ["--freeze", FREEZE.get(name, name)]
    worst = max(d["g"], key=d["g"].get)
    off = visible(said, d, noise if said in (c.precision, "auto") else None)
    for key, value, right in (("loss", seen["loss"], true["loss"]), ("norm", seen["grad_norm"], true["norm"])):
        if f"{value:.{c.digits}g}" == f"{right:.{c.digits}g}":
            off.pop(key, None)  # the log does not show it
    return {"options": [str(x) for x in o], "before": before, "after": after, "batch": batch,
            "seen": {"loss": seen["loss"], "true loss": true["loss"], "grad_norm": seen["grad_norm"], "true norm": true["norm"],
                     "worst": [worst, d["g"][worst]], "noise": max(noise["g"].values()),
                     "update": d["update"], "square": d["square"]},
            "visible": off}


FREEZE = {"embed_tokens": "tok_embeddings", "wpe": "pos_embeddings", "h.0.": r"layers\.0\."}  # names as pt-check prints them
