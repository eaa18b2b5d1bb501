"""Tools that plant bugs in a run of step.py. Most return {place: function}."""
import copy
import math
import re

import torch
import torch.nn.functional as F

from families import parts_of, rotate
from step import adam, clip, nll, norm_of, plain_loss, scale, sum_of

ROLES_EMBED = r"embed_tokens|wte"

def hook(role, f, one=True):
    """Replaces the output of the modules with this role by f(run, input, output), in one layer or all."""
    def plant(run, net):
        for part in parts_of(net, role, run.layer if one else None):
            def changed(m, args, kwargs, y):
                x = args[0] if args else kwargs.get("hidden_states")
                return (f(run, x, y[0]), *y[1:]) if isinstance(y, tuple) else f(run, x, y)
            run.undo.append(part.register_forward_hook(changed, with_kwargs=True).remove)
    return {"model": plant}

def swap(role, f, one=True):
    """Computes f(run, module, input) instead of the modules with this role, in one layer or all."""
    def plant(run, net):
        for part in parts_of(net, role, run.layer if one else None):
            part.forward = lambda x, m=part: f(run, m, x)
            run.undo.append(lambda m=part: vars(m).pop("forward"))
    return {"model": plant}

def rope(f):
    """Replaces cos and sin of the rotations in all layers by f(run, cos, sin)."""
    def plant(run, net):
        for part in parts_of(net, "rope"):
            run.undo.append(part.register_forward_hook(lambda m, a, y: tuple(
                t.to(y[0].dtype) for t in f(run, *y)), prepend=True).remove)
    return {"model": plant}

def frequencies(f):
    """Replaces the frequencies of the rotations by f(run, frequencies)."""
    def plant(run, net):
        for part in parts_of(net, "rope"):
            old = part.inv_freq
            part.inv_freq = f(run, old.clone())
            run.undo.append(lambda m=part, x=old: setattr(m, "inv_freq", x))
    return {"model": plant}

def attend(f, one=False):
    """Calls f(a), which changes steps of attention (families.attend), in one layer or all."""
    def changed(a):
        if not one or a.layer == a.run.layer:
            f(a)
    return {"attend": changed}

def swapped_weights(run, net):
    a, b = (dict(parts_of_layer(net, i)) for i in (0, 1))
    for n in a:
        a[n].data, b[n].data = b[n].data, a[n].data
    run.undo.append(lambda: [swap_data(a[n], b[n]) for n in a])

def parts_of_layer(net, layer):
    block = list(parts_of(net, "block", layer))[0]
    return block.named_parameters()

def swap_data(a, b):
    a.data, b.data = b.data, a.data

def set_(**fields):
    """Returns a function that sets fields of its argument; a field that is a function is called with the argument."""
    return lambda a: [setattr(a, k, f(a) if callable(f) and k not in ("softmax", "direction", "save") else f)
                      for k, f in fields.items()] and None

def one_of(run, pattern, of=None):
    names = [n for n in (of or run.trained) if re.search(pattern, n)]
    return names[run.case.pick % len(names)]

def each(pattern, f):
    """Calls f(run, gradient), which works in place, for each tensor whose name matches."""
    return {"grads": lambda run, g: [f(run, g[n]) for n in g if re.search(pattern, n)]}

def one(pattern, f):
    return {"grads": lambda run, g: f(run, g[one_of(run, pattern, g)])}

def part(chosen, factor):
    """Multiplies the gradients of the chosen micro-batches by a factor."""
    def spoil(run, parts):
        for key in parts:
            if chosen(run, *key):
                scale({n: x for n, x in parts[key].items() if x is not None}, factor(run) if callable(factor) else factor)
    return {"parts": spoil}

def own_only(pattern):
    """Uses the gradients of rank 0 alone as if they were the mean over the ranks."""
    def spoil(run, parts):
        for (r, a), g in parts.items():
            for n, x in g.items():
                if re.search(pattern, n):
                    x.mul_(run.c.ranks if r == 0 else 0)
    return {"parts": spoil}

def rounded(kind, what="parts", pattern="."):
    """Rounds gradients to a narrow type."""
    def spoil(run, parts):
        for g in parts.values() if what == "parts" else [parts]:
            for n, x in g.items():
                if re.search(pattern, n) and x is not None:
                    x.copy_(x.to(kind))
    return {what: spoil}

def weights(f):
    """Replaces the weights of the targets by f(run, y, w, at); at: their positions."""
    return {"weights": lambda run, y, w: f(run, y, w, torch.arange(y.shape[1]).expand(y.shape))}

def groups_mean(run, y, key):
    """Returns the weights of targets in a mean of the means of groups. key: the group of each target."""
    counted, w = run.counted(y), torch.zeros(y.shape)
    n = int(key.max()) + 1
    for k in range(n):
        here = (key == k) & (counted > 0)
        w[here] = 1 / max(1, int(here.sum())) / n
    return w

def by_rank(run, y, micro):
    key = torch.zeros(y.shape, dtype=torch.long)
    for i, (r, a) in enumerate(run.micros):
        key[run.rows(r, a)] = i if micro else r
    return key

def labels(f):
    return {"batch": lambda run, x, y, p: (x, f(run, x, y), p)}

def extra(f):
    """Adds f(run, logits, y, w) to the loss."""
    return {"loss": lambda run, logits, y, w: plain_loss(run, logits, y, w) + f(run, logits.float(), y, w)}

def of_logits(f):
    return {"loss": lambda run, logits, y, w: plain_loss(run, f(run, logits.float()), y, w)}

def clipped(norm):
    """Clips, and logs, by norm(run, g) instead of the norm."""
    def bug(run, g):
        n = norm(run, g)
        scale(g, min(1, run.c.clip / (n + 1e-6)))
        return n
    return {"clip": bug}

def clip_apart(groups):
    """Clips each group of views that groups(run, g) lists by a norm of its own."""
    def bug(run, g):
        true = norm_of(g)
        for group in groups(run, g):
            scale(group, min(1, run.c.clip / (norm_of(group) + 1e-6)))
        return true
    return {"clip": bug}

def clip_parts(key):
    """Clips the mean gradient of each rank, or of each micro-batch, before the sum."""
    def bug(run, parts):
        n = run.c.ranks * (run.c.accumulate if key == "micro" else 1)
        own = {}
        for (r, a), g in parts.items():
            own.setdefault((r, a) if key == "micro" else r, []).append(g)
        for list_ in own.values():
            total = {m: sum_of(g[m] for g in list_) for m in list_[0] if list_[0][m] is not None}
            factor = min(1, run.c.clip / (norm_of(total).item() * n + 1e-6))
            for g in list_:
                scale({m: x for m, x in g.items() if x is not None}, factor)
    return {"parts": bug}

def chunks_of(x, n, i):
    return x.chunk(n, 0)[i] if i < len(x.chunk(n, 0)) else x[:0]

def shards(run, g):
    return [{m: chunks_of(x, 2, i) for m, x in g.items()} for i in (0, 1)]

def optim(**fields):
    """Sets fields of the update in step.py."""
    return {"optim": set_(**fields)}

def for_some(chosen, **fields):
    f = set_(**fields)
    return {"optim": lambda o: f(o) if chosen(o) else None}

def saved(f):
    return {"optim": lambda o: setattr(o, "save", f)}

def masked_rows(f):
    """Updates only the elements where f(update, parameter) is 1."""
    def bug(o):
        o.save = lambda o: setattr(o, "p", torch.where(f(o, o.x) > 0, o.p, o.x))
    return {"optim": bug}

def shard_mask(o, x):
    m = torch.zeros_like(x)
    chunks_of(m, 2, 0).fill_(1)
    return m

def nadam(o):
    return (o.beta1 * o.m / (1 - o.beta1 ** (o.t + 1)) + (1 - o.beta1) * o.g / (1 - o.beta1 ** o.t)) / (
        (o.v / (1 - o.beta2 ** o.t)).sqrt() + o.eps)

def stochastic(o):
    p = o.p
    x = p.view(torch.int32) + torch.randint(0, 1 << 16, p.shape, dtype=torch.int32)
    o.p = (x & -65536).view(torch.float32)

def exchanged_moments(pattern):
    def bug(run, net):
        names = [n for n in run.trained if re.search(pattern, n)]
        a = names[run.case.pick % len(names)]
        b = next(n for n in names if n != a and run.trained[n].shape == run.trained[a].shape)
        s = run.opt.state
        a, b = run.trained[a], run.trained[b]
        s[a], s[b] = s[b], s[a]
    return {"old": bug}

def lost_moments(*keys):
    def bug(run, net):
        for s in run.opt.state.values():
            for k in keys:
                s[k].zero_()
    return {"old": bug}

def stale(one_shard):
    """Computes with the parameters before the last update, or with a shard of them."""
    def bug(run, net):
        old = run.before_last[0]
        for n, p in net.named_parameters():
            now = p.data.clone()
            x = p.data.clone()
            (chunks_of(x, 2, 1) if one_shard else x).copy_((chunks_of(old[n], 2, 1) if one_shard else old[n]))
            p.data = x
            run.undo.append(lambda p=p, now=now: setattr(p, "data", now))
    return {"old": bug}

def kept_gradients(run, g):
    """Adds the gradients of the previous step: zero_grad() is missing."""
    for n, x in run.kept.items():
        g[n] += x

def focal(run, logits, y, w):
    loss = nll(logits, y)
    return ((1 - (-loss).exp()) ** 2 * loss * w).sum()

def entropy(run, logits, y, w):
    p = logits.log_softmax(-1)
    return 0.01 * run.case.size * (w * (p.exp() * p).sum(-1)).sum()

def layer_norm(run, m, x):
    return F.layer_norm(x, x.shape[-1:], m.weight, None, m.variance_epsilon)

def eps_of(f):
    def plant(run, net):
        for m in parts_of(net, "norm"):
            field = "eps" if hasattr(m, "eps") else "variance_epsilon"
            old = getattr(m, field)
            setattr(m, field, f(old))
            run.undo.append(lambda m=m, field=field, old=old: setattr(m, field, old))
    return {"model": plant}

def wrong_norm(run, m, x):
    """Computes a norm whose backward pass treats the root of the mean square as a constant."""
    root = (x.float().square().mean(-1, keepdim=True) + m.variance_epsilon).rsqrt().detach()
    return m.weight * (x.float() * root).to(x.dtype)

class Once(torch.autograd.Function):
    """The identity; the backward pass multiplies by a tensor or number."""
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None

def no_bias(role):
    return swap(role, lambda run, m, x: F.linear(x, m.weight, None), one=False)

def alibi(a):
    at = torch.arange(a.n)
    slopes = 2.0 ** (-8 * (1 + torch.arange(a.q.shape[1])) / a.q.shape[1])
    a.bias = -slopes[:, None, None] * (at[:, None] - at[None]).abs()

def unroped(a):
    """Takes the rotation away, or adds it in a layer that has none."""
    flags = getattr(a.run.config, "no_rope_layers", None)
    back = not flags or bool(flags[a.layer])
    a.q, a.k = (rotate(x, a.cos[:, None], a.sin[:, None], back) for x in (a.q, a.k))

def scaled(config, parameters):
    config = copy.deepcopy(config)
    config.rope_parameters = parameters
    return config

def interleaved(a, x):
    """Rotates channels 2j and 2j + 1 where the model rotates j and j + w / 2."""
    x = rotate(x, a.cos[:, None], a.sin[:, None], True)
    w = x.shape[-1] // 2
    cos, sin = (t[:, None, :, :w] for t in (a.cos, a.sin))
    p, q = x[..., 0::2], x[..., 1::2]
    return torch.stack((p * cos - q * sin, p * sin + q * cos), -1).flatten(-2).to(x.dtype)

def exchange(g, a, b):
    g[a], g[b] = g[b].clone(), g[a].clone()

def exchange_gates(run, net):
    for m in parts_of(net, "mlp"):
        m.forward = lambda x, m=m: m.down_proj(m.gate_proj(x) * m.act_fn(m.up_proj(x)))
        run.undo.append(lambda m=m: vars(m).pop("forward"))

def keep_input(run, net):
    for block in parts_of(net, "block", run.layer):
        run.undo.append(block.register_forward_pre_hook(lambda m, a, k: setattr(
            run, "residual", a[0] if a else k["hidden_states"]), with_kwargs=True).remove)

def parallel(run, net):
    """Gives the MLP of one layer the input of its attention."""
    keep_input(run, net)
    for m in parts_of(net, "norm2", run.layer):
        m.forward = lambda x, m=m: type(m).forward(m, run.residual)
        run.undo.append(lambda m=m: vars(m).pop("forward"))

def double_bias(run, net, role):
    for m in parts_of(net, role):
        run.undo.append(m.register_forward_hook(lambda m, a, y: y + m.bias).remove)

def block_twice(run, net):
    for m in parts_of(net, "block", run.layer):
        m.forward = lambda *a, m=m, **k: type(m).forward(m, type(m).forward(m, *a, **k), *a[1:], **k)
        run.undo.append(lambda m=m: vars(m).pop("forward"))

def head_order(run, net):
    """Exchanges the outputs of the first two query heads."""
    def turned(m, args):
        x = args[0]
        w = run.c.width
        return (torch.cat((x[..., w:2 * w], x[..., :w], x[..., 2 * w:]), -1),)
    for m in parts_of(net, "o", run.layer):
        run.undo.append(m.register_forward_pre_hook(turned).remove)

def last_uses(tokens):
    """Returns 1 at the last use of each token in this micro-batch, and 0 elsewhere."""
    flat = tokens.flatten()
    at = torch.zeros(int(flat.max()) + 1, dtype=torch.long)
    for i, t in enumerate(flat.tolist()):
        at[t] = i
    return (at[flat] == torch.arange(len(flat))).float().view(tokens.shape)

class BadSoftmax(torch.autograd.Function):
    """Softmax whose backward pass lacks the sum over the row."""
    @staticmethod
    def forward(ctx, s):
        p = s.softmax(-1)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0] * g

bad_softmax = BadSoftmax.apply
