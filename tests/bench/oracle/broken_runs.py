#!/usr/bin/env python3
"""Makes the steps that pt-check is judged with: right ones, and runs that are really broken.

    python3 -m venv venv
    venv/bin/pip install torch==2.15.0 numpy==2.4.6
    venv/bin/python tests/bench/oracle/broken_runs.py FOLDER [CASE...]

Each case of cases.py is a run of 2 to 4 processes (gloo, CPUs), and becomes a folder:
    before, after   two consecutive checkpoints: DCP, or torch.save (.pt) of a DDP run
    batch-RANK.pt   what data-parallel rank RANK read in the step between them
    config.json     the model in Hugging Face's keys, as the user believes it to be
    run.json        what the run logged, its options, the cause, and what judge.py saw
FOLDER/cases.txt lists cause, what must be said, and the exit code."""
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner
import torch.multiprocessing
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP

import nanotron
from cases import CASES, SEED
from gpt2 import GPT2, gpt2_config
from judge import judge
from llama import Llama, TensorParallel, hf_config, hf_name, split


def own(x):
    """What this rank has of a tensor."""
    return x.to_local() if isinstance(x, DTensor) else x


def sum_over(x, group=None):
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x


# ---- the optimizer -----------------------------------------------------------------------


class AdamW(torch.optim.AdamW):
    """PyTorch's, until bug is set."""
    bug, rank, names = None, 0, {}

    def step(self, closure=None):
        if not self.bug:
            return super().step()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.wrong(p, group)

    @torch.no_grad()
    def wrong(self, p, group):
        bug, s, lr, decay = self.bug, self.state[p], group["lr"], group["weight_decay"]
        beta1, beta2 = group["betas"]
        if not s:
            s.update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(p),
                     exp_avg_sq=torch.zeros_like(p))
        x, g, m, v = (own(t) for t in (p, p.grad, s["exp_avg"], s["exp_avg_sq"]))
        if bug == "steps-from-1":
            s["step"].zero_()
        s["step"] += 1
        t = s["step"].item()
        m.mul_(beta1).add_(g, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        if bug == "update-one-shard-stale" and self.rank == 1:
            return
        if bug == "embedding-shard-stale" and self.rank == 1 and "tok" in self.names[p]:
            return
        if bug == "lr-by-rank" and self.rank == 1:
            lr = lr / 2
        m_hat, v_hat = m / (1 - beta1 ** t), v / (1 - beta2 ** t)
        x.mul_(1 - lr * decay).sub_(lr * m_hat / (v_hat.sqrt() + group["eps"]))


def optimizer_of(net, c):
    named = [(n.removeprefix("module."), p) for n, p in net.named_parameters() if p.requires_grad]
    options = {"lr": c.lr, "betas": c.betas, "eps": c.eps, "foreach": False}
    if c.named:  # a group for each kind of layer, whose parameters are named
        part = lambda n: "attention" in n or ("norm" in n) * 2
        opt = AdamW([{"params": [x for x in named if part(x[0]) == k], "weight_decay": c.decay}
                     for k in range(3)], **options)
        opt.names = {p: n for n, p in named}
        return opt
    if c.decay_norms:
        opt = AdamW([p for _, p in named], weight_decay=c.decay, **options)
    else:
        matrices, norms = ([p for _, p in named if (p.dim() == 2) == two] for two in (True, False))
        opt = AdamW([{"params": matrices, "weight_decay": c.decay},
                     {"params": norms, "weight_decay": 0.0}], **options)
    opt.names = {p: n for n, p in named}
    return opt


# ---- layouts -----------------------------------------------------------------------------


class Run:
    """One rank of a run: model, optimizer, groups."""

    def __init__(self, c):
        self.c, self.rank = c, dist.get_rank()
        m = self.model = (GPT2 if c.names == "nanogpt" else Llama)(c, 1 + SEED)
        if c.precision == "all-bf16":
            m.to(torch.bfloat16)
        if c.bug == "tie-lost":
            m.output.weight.data.copy_(m.tok_embeddings.weight.data)
        self.dp, self.tp, self.shards = dist.group.WORLD, None, None
        self.net = self.ddp() if c.layout.startswith("ddp") else self.fsdp()
        self.dp_rank, self.dp_size = dist.get_rank(self.dp), dist.get_world_size(self.dp)
        self.opt = optimizer_of(self.net, c)

    def ddp(self):
        if self.c.bug == "ddp-one-ignored":
            DDP._set_params_and_buffers_to_ignore_for_model(
                self.model, ["layers.0.attention.wo.weight"])
        net = DDP(self.model)
        if self.c.bug == "no-division":
            net.register_comm_hook(None, lambda _, bucket: all_reduce(bucket.buffer()))
        if self.c.bug == "sum-in-bf16":
            net.register_comm_hook(None, lambda _, bucket: all_reduce(
                bucket.buffer().bfloat16() / 2, bucket.buffer()))
        return net

    def fsdp(self):
        c, m, world = self.c, self.model, dist.get_world_size()
        if "tp" in c.layout:
            mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
            split(m, mesh["tp"])
            self.tp, shards = mesh["tp"].get_group(), mesh["dp"]
            self.dp = self.shards = shards.get_group()
            m.tp = TensorParallel(self.tp, c.layout.endswith("sp"))
        elif c.layout == "hsdp":
            shards = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            self.shards = shards["shard"].get_group()
        else:
            shards, self.shards = init_device_mesh("cpu", (world,)), dist.group.WORLD
        policy = {}
        if c.precision.startswith("fsdp-bf16"):
            reduce = torch.bfloat16 if c.precision == "fsdp-bf16-reduce" else torch.float32
            policy["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, reduce)
        for block in m.blocks:
            fully_shard(block, mesh=shards, **policy)
        fully_shard(m, mesh=shards, **policy)
        if c.bug == "no-division":
            for part in (m, *m.blocks):
                part.set_force_sum_reduction_for_comms(True)  # all that gloo has
                part.set_gradient_divide_factor(1.0)
        return m

    # ---- a step

    def batch(self, step):
        """Inputs, labels and perhaps positions of this rank. A label of -100 does not count."""
        c = self.c
        g = torch.Generator().manual_seed(7 + step + 1000 * SEED)
        tokens = torch.randint(0, c.vocab, (c.batch, c.length + 1), generator=g)
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].clone()
        if c.mask:  # sequence i has some 3 i prompt tokens that do not count
            for i in range(c.batch):
                y[i, :3 * i] = -100
        parts = [x, y]
        if c.documents:
            begins = torch.rand(x.shape, generator=g) < 0.1
            begins[:, 0] = True
            at = torch.arange(c.length).expand(x.shape)
            parts.append(at - (at * begins).cummax(1).values)
        return [t.chunk(self.dp_size)[self.dp_rank].contiguous() for t in parts]

    def losses(self, batch, bug):
        """The loss of each micro-batch, divided so that gradients add up to the mean."""
        c, accumulate = self.c, self.c.accumulate
        x, y, *positions = batch
        counted = sum_over((y != -100).sum(), self.dp)
        if bug in ("rank-reads-anothers", "rank-reads-anothers-logged"):
            x, y = (broadcast(t, self.dp) for t in (x, y))
        parts = list(zip(*(t.chunk(accumulate) for t in (x, y, *positions))))
        for x, y, *positions in parts:
            with torch.autocast("cpu", torch.bfloat16, enabled=c.precision == "autocast"):
                logits = self.net(x, *positions)
            logits = logits.float().flatten(0, 1)
            total = F.cross_entropy(logits, y.flatten(), reduction="sum")
            if bug == "mean-of-means":
                yield total / (y != -100).sum() / accumulate
            else:
                yield total * (self.dp_size / counted)

    def backward(self, batch, bug):
        logged = 0
        for loss in self.losses(batch, bug):
            loss.backward()
            logged += loss.detach()
        return (sum_over(logged, self.dp) / self.dp_size).item()

    def spoil(self, bug):
        """Bugs between backward and clipping, in this rank's part of the gradients."""
        shard = dist.get_rank(self.shards) if self.shards else 0
        tp = dist.get_rank(self.tp) if self.tp else 0
        for name, p in self.model.named_parameters():
            if p.grad is None:
                continue
            g, factor = own(p.grad), 1
            if bug == "divided-twice":
                factor = 1 / self.dp_size
            if bug == "one-shard-twice" and shard == 1:
                factor = 2
            if bug == "wo-slice-twice" and tp == 1 and ".wo." in name:
                factor = 2
            if factor != 1:
                g.mul_(factor)
            if bug == "slice-of-another" and name == "layers.1.attention.wk.weight":
                g.copy_(broadcast(g, self.tp))
            if bug == "embedding-rows-lost" and tp == 1 and "tok" in name:
                g.zero_()

    def clip(self, bug):
        grads = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        if not bug or not bug.startswith("clip-"):
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(),
                                                  self.c.clip or float("inf"), foreach=False)
            return own(norm.full_tensor() if isinstance(norm, DTensor) else norm).item()
        square = torch.zeros(())
        for g in grads.values():
            square += own(g).float().square().sum()
        if bug != "clip-by-rank":
            square = sum_over(square, self.shards)
        if bug == "clip-norms-counted-twice":
            square = sum_over(square, self.tp)
        norm = square.sqrt()
        for g in grads.values():
            own(g).mul_(min(1, self.c.clip / (norm + 1e-6)))
        return norm.item()

    def step(self, number, bug):
        self.model.bug = self.opt.bug = None
        batch = self.batch(number)
        if bug in OF_THE_OPTIMIZER:
            self.opt.bug, self.opt.rank = bug, dist.get_rank(self.shards) if self.shards else 0
        else:
            self.model.bug = bug
        self.opt.zero_grad()
        stale = self.go_back(bug)
        if bug == "ddp-no-sync":
            with self.net.no_sync():
                loss = self.backward(batch, bug)
        else:
            loss = self.backward(batch, bug)
        self.come_back(stale)
        self.spoil(bug)
        if bug == "rank-reads-anothers-logged":
            batch = [broadcast(t, self.dp) for t in batch]
        self.old = [own(p).detach().clone() for p in self.model.parameters()]
        norm = self.clip(bug)
        if bug == "replica-lost" and dist.get_rank(self.tp) == 1:
            for p in self.model.parameters():
                if p.dim() == 1:
                    own(self.opt.state[p]["exp_avg"]).zero_()
        for _ in range(2 if bug == "step-twice" else 1):
            self.opt.step()
        return {"batch": batch, "loss": loss, "grad_norm": norm}

    def go_back(self, bug):
        """Rank 1, or all, send their shards of before the last update: the gather began too early."""
        early = bug == "gather-too-early" and dist.get_rank(self.shards) == 1
        if not early and bug != "all-gathers-too-early":
            return None
        now = [own(p).detach().clone() for p in self.model.parameters()]
        self.put(self.old)
        return now

    def come_back(self, now):
        if now:
            self.put(now)

    @torch.no_grad()
    def put(self, values):
        for p, x in zip(self.model.parameters(), values):
            own(p).copy_(x)

    # ---- files

    def save(self, folder, name, step):
        if self.c.layout.startswith("ddp"):
            if self.rank == 0:
                torch.save(self.plain(step), folder / f"{name}.pt")
            return
        if self.c.form == "nanotron":
            named = dict(self.model.named_parameters())
            nanotron.save(folder / name, dist.get_rank(self.tp), 2, {n: own(p).detach() for n, p in named.items()},
                          {n: {k: own(x) for k, x in self.opt.state[p].items()} if step else {}
                           for n, p in named.items()},
                          {k: v for k, v in self.opt.param_groups[0].items() if k != "params"})
            name += "-dcp"  # for judge.py
        flat = self.c.form == "dcp-flat"
        model, opt = get_state_dict(self.model, self.opt, options=StateDictOptions(
            flatten_optimizer_state_dict=flat))
        state = {**model, "optimizer": opt} if flat else {"model": model, "optimizer": opt}
        state["train_state"] = {"step": torch.tensor(step, dtype=torch.int32)}
        dcp.save(state, checkpoint_id=folder / name,
                 planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True))

    def plain(self, step):
        form, model = self.c.form, self.model.state_dict()
        if self.c.names == "hf":
            model = {hf_name(n): x for n, x in model.items()}
        prefix = {"pt-ddp": "module.", "pt-compiled": "_orig_mod."}.get(form, "")
        model = {prefix + n: x for n, x in model.items()}
        state = {"step": step, "model": model}
        if not (self.c.mistake == "no-moments" and step):
            state["optimizer"] = self.opt.state_dict()
        return state


OF_THE_OPTIMIZER = ("steps-from-1", "embedding-shard-stale", "lr-by-rank", "update-one-shard-stale")
# Nothing is wrong that judge.py looks at.
UNSEEN = ("rank-reads-anothers-logged", "steps-from-1", "replica-lost")


def all_reduce(x, out=None):
    """A hook of DDP: the sum, in the type of x, given as that of out."""
    future = dist.all_reduce(x, async_op=True).get_future()
    return future.then(lambda f: x if out is None else out.copy_(x))


def broadcast(x, group):
    """What the group's first rank has."""
    x = x.clone()
    dist.broadcast(x, group=group, group_src=0)
    return x


def write(folder, c, run, seen):
    batch = seen["batch"]
    tp = dist.get_rank(run.tp) if run.tp else 0
    if tp == 0 and not (c.mistake == "half-batch" and run.rank):
        if c.batch_form == "tokens":
            batch = torch.cat((batch[0], batch[1][:, -1:]), 1)
        elif c.batch_form == "dict":
            batch = dict(zip(("input_ids", "labels", "position_ids"), batch))
        elif c.batch_form == "titan":
            batch = ({"input": batch[0], "positions": batch[2]}, batch[1])
        elif c.batch_form == "megatron":
            x, y = batch
            following = torch.cat((x[:, 1:], y[:, -1:]), 1)
            batch = {"tokens": x, "labels": following, "loss_mask": (y != -100).float(),
                     "position_ids": torch.arange(c.length).expand(x.shape).contiguous()}
        torch.save(batch, folder / f"batch-{run.dp_rank}.pt")
    if run.rank:
        return
    config = gpt2_config if c.names == "nanogpt" else hf_config
    believed = type(c)(**{**vars(c), **c.believed})
    model = config(believed)
    if c.form == "nanotron":
        del model["model_type"], model["architectures"]
        model |= {"is_llama_config": True, "rope_interleaved": True}
    (folder / "config.json").write_text(json.dumps(model, indent=1) + "\n")
    keys = ("layout", "precision", "accumulate", "clip", "lr", "betas", "eps", "decay",
            "decay_norms", "warm", "form", "names", "bug", "mistake", "cause", "say",
            "code")
    log = {k: getattr(c, k) for k in keys} | {k: seen[k] for k in ("loss", "grad_norm")}
    (folder / "run.json").write_text(json.dumps(log, indent=1) + "\n")


def make(c, out):
    folder = out / c.name
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    dist.barrier()
    torch.manual_seed(0)
    run = Run(c)
    for step in range(c.warm):
        run.step(step, None)
    run.save(folder, "before", c.warm)
    seen = run.step(c.warm, c.bug)
    if c.mistake == "two-steps":
        run.step(c.warm + 1, None)
    if c.mistake == "other-batch":
        seen["batch"] = run.batch(c.warm + 1)
    run.save(folder, "after", c.warm + 1)
    write(folder, c, run, seen)
    dist.barrier()


def rank_main(rank, world, names, out, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for name in names:
        if rank == 0:
            print("make ", name, flush=True)
        make(CASES[name], out)
    dist.destroy_process_group()


def main():
    out, names = Path(sys.argv[1]), sys.argv[2:] or list(CASES)
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    for world in (2, 3, 4):
        here = [n for n in names if CASES[n].world == world]
        if here:
            with tempfile.TemporaryDirectory() as d:
                torch.multiprocessing.spawn(rank_main, (world, here, out, f"{d}/store"), world)
    failed = False
    for name in names:
        if CASES[name].mistake != "no-moments":
            line, right = judge(out / name)
            print(f"{name:<28} {line}", flush=True)
            if right != (CASES[name].code == 0 or CASES[name].bug in UNSEEN):
                failed = True
                print(f"{name} is {'right' if right else 'wrong'}", flush=True)
    with open(out / "cases.txt", "w", encoding="utf-8") as f:
        print("#case\tcause\tmust say\texit", file=f)
        for name, c in CASES.items():
            print(name, c.cause, c.say, c.code, sep="\t", file=f)
    sys.exit(failed)


if __name__ == "__main__":
    main()
