"""What is wrong with a step, by float64 on one process: the check of the cases themselves.

Right runs must be right and broken ones wrong before pt-check is judged with them. It reads
the files with PyTorch, and knows the names and options of the run."""
import json
import os
import tempfile
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from gpt2 import GPT2
from llama import Llama, hf_name


def load(path):
    if path.with_name(path.name + "-dcp").exists():
        path = path.with_name(path.name + "-dcp")
    if path.is_dir():
        with tempfile.TemporaryDirectory() as d:
            dcp_to_torch_save(path, f"{d}/all.pt")
            return torch.load(f"{d}/all.pt", weights_only=False)
    return torch.load(path.with_suffix(".pt"), weights_only=False)


def model_of(folder, c):
    f = json.loads((folder / "config.json").read_text())
    if c.names == "nanogpt":
        return GPT2(SimpleNamespace(
            layers=f["n_layer"], heads=f["n_head"], dim=f["n_embd"], length=f["n_positions"],
            norm_eps=f["layer_norm_epsilon"], vocab=f["vocab_size"])).double()
    return Llama(SimpleNamespace(
        layers=f["num_hidden_layers"], heads=f["num_attention_heads"],
        kv_heads=f["num_key_value_heads"], dim=f["hidden_size"], ffn=f["intermediate_size"],
        length=f["max_position_embeddings"], norm_eps=f["rms_norm_eps"], theta=f["rope_theta"],
        vocab=f["vocab_size"], tie=f["tie_word_embeddings"], names=c.names, angles="fp64"
    )).double()


def parameters(state, names, c):
    model = state.get("model", state)
    prefix = {"pt-ddp": "module.", "pt-compiled": "_orig_mod."}.get(c.form, "")
    return {n: model[prefix + (hf_name(n) if c.names == "hf" else n)].double() for n in names}


def moments(state, shapes, c):
    """{name: {exp_avg, exp_avg_sq, step}}; zeros where there is no state yet."""
    state = state["optimizer"]
    by, names = state.get("state", state), list(shapes)
    if c.layout.startswith("ddp"):  # numbers, counted through the groups
        if not c.decay_norms:
            names.sort(key=lambda n: -len(shapes[n]))  # keeps the order of equals
        names = [n for g in state["param_groups"] for n in g.get("param_names", [])] or names
        by = {n: by[i] for i, n in enumerate(names) if i in by}
    elif c.form == "dcp-flat":
        kinds = ("exp_avg", "exp_avg_sq", "step")
        by = {n: {k: by[f"state.{n}.{k}"] for k in kinds} for n in names}
    zero = {"exp_avg": torch.zeros(()), "exp_avg_sq": torch.zeros(()), "step": 0}
    return {n: by.get(n, zero) for n in names}


def tensors_of(b):
    """Inputs, labels and perhaps positions, of any form of a batch."""
    if torch.is_tensor(b):
        return [b[:, :-1], b[:, 1:]]
    if isinstance(b, tuple):
        return [b[0]["input"], b[1], b[0]["positions"]]
    if "loss_mask" in b:
        return [b["tokens"], b["labels"].where(b["loss_mask"] > 0, -100), b["position_ids"]]
    b = list(b.values()) if isinstance(b, dict) else b
    return [*b[:2], *(p["positions"] if isinstance(p, dict) else p for p in b[2:])]


def batch_of(folder):
    files = sorted(folder.glob("batch-*.pt"))
    parts = [tensors_of(torch.load(f)) for f in files]
    x, y, *positions = (torch.cat(p) for p in zip(*parts))
    return x, y, *(positions or [None])


def distance(a, b):
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


def is_right(c, seen):
    """By bounds some ten times what right runs of this size have."""
    rough, all_bf16 = c.precision != "fp32", c.precision == "all-bf16"
    return (not seen["wrong"] and abs(seen["loss"]) < (1e-3 if rough else 1e-6)
            and abs(seen["grad_norm"]) < (5e-3 if rough else 1e-5)
            and seen["square"]["residual"] < (5e-2 if all_bf16 else 1e-5)
            and (seen["update"]["residual"] < 2e-3 or all_bf16))


def judge(folder):
    """A line, and whether the step is right."""
    c = SimpleNamespace(**json.loads((folder / "run.json").read_text()))
    before, after = load(folder / "before"), load(folder / "after")
    m = model_of(folder, c)
    shapes = {n: p.shape for n, p in m.named_parameters()}
    p0, p1 = parameters(before, shapes, c), parameters(after, shapes, c)
    s0, s1 = moments(before, shapes, c), moments(after, shapes, c)
    m.load_state_dict(p0, strict=False)
    x, y, positions = batch_of(folder)
    loss = F.cross_entropy(m(x, positions).flatten(0, 1), y.flatten())
    loss.backward()
    g = {n: p.grad for n, p in m.named_parameters()}
    norm = torch.cat([t.flatten() for t in g.values()]).norm().item()
    factor = min(1, c.clip / (norm + 1e-6)) if c.clip else 1
    beta1, beta2 = c.betas
    off, squares, updates = {}, {}, {}
    for n in shapes:
        a0, a1, v0, v1 = (s[n][k].double() for k in ("exp_avg", "exp_avg_sq") for s in (s0, s1))
        seen = (a1 - beta1 * a0) / (1 - beta1)
        off[n] = distance(seen / factor, g[n])
        squares[n] = distance((v1 - beta2 * v0) / (1 - beta2), seen ** 2)
        # from moments that are not zero, most of exp_avg_sq cancels
        squares[n] -= ((2 ** -23 / (1 - beta2) * v0.norm()) / (seen ** 2).norm()).item()
        t, lr, decay = float(s1[n]["step"]), c.lr, c.decay
        if len(shapes[n]) == 1 and not c.decay_norms:
            lr, decay = c.lr, 0
        if t:
            root = (v1 / (1 - beta2 ** t)).sqrt() + c.eps
            want = p0[n] * (1 - lr * decay) - lr * a1 / (1 - beta1 ** t) / root
            updates[n] = ((want - p1[n]).abs().max() / lr).item()
    bound = 1e-5 if c.precision == "fp32" else 4e-2
    seen = {"loss": c.loss / loss.item() - 1, "grad_norm": c.grad_norm / norm - 1,
            "clip_factor": factor, "wrong": [n for n in off if not off[n] <= bound]}
    line = f"{c.bug or 'right'}: loss {seen['loss']:+.1e} norm {seen['grad_norm']:+.1e}"
    for what, of in (("gradient", off), ("square", squares), ("update", updates)):
        worst = max(of, key=of.get)
        seen[what] = {"worst": worst, "residual": of[worst]}
        line += f", {what} {of[worst]:.1e} {worst.removesuffix('.weight')}"
    c.seen = seen
    (folder / "run.json").write_text(json.dumps(vars(c), indent=1) + os.linesep)
    return line + f", {len(seen['wrong'])} of {len(off)} gradients wrong", is_right(c, seen)
