#!/usr/bin/env python3
"""Makes right steps of random small models with PyTorch and transformers, and runs pt-check on each.

    tests/bench/oracle/right_steps.py FIRST LAST      seeds; with pt-check on the PATH

A seed sets the family, the sizes, the precision (fp32, autocast, or bf16 with fp32 master weights), clipping,
accumulation and decay groups, and makes two steps: the first one, and one from moments. Prints a line per step
that pt-check does not call right, and at the end, per precision, the largest ratio of a distance to its bound,
of the loss of the run to the reference's, and of a tensor's factor to 1. The exit code is 1 if a step was not
called right."""
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

FAMILIES = ("llama", "qwen3", "gpt2", "mistral", "smollm3")
PRECISIONS = ("fp32", "autocast", "bf16")


def make_model(r, family):
    head, heads = r.choice((8, 8, 16, 32)), r.choice((2, 4))
    dim, layers, vocab = head * heads, r.choice((1, 2, 3, 4, 6)), r.choice((61, 128, 300))
    if family == "gpt2":
        c = hf.GPT2Config(n_embd=dim, n_head=heads, n_layer=layers, vocab_size=vocab, n_positions=128,
                          resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        return c, hf.GPT2LMHeadModel(c)
    common = dict(hidden_size=dim, num_attention_heads=heads, num_hidden_layers=layers, vocab_size=vocab,
                  num_key_value_heads=heads // r.choice((1, 2)), intermediate_size=2 * dim + 8,
                  max_position_embeddings=128, tie_word_embeddings=r.random() < 0.4, pad_token_id=None,
                  rms_norm_eps=r.choice((1e-5, 1e-6)))
    if family in ("qwen3", "mistral"):
        common["head_dim"] = head
    if family == "mistral":
        common["sliding_window"] = r.choice((None, 7))
    kinds = {"llama": (hf.LlamaConfig, hf.LlamaForCausalLM), "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM),
             "mistral": (hf.MistralConfig, hf.MistralForCausalLM),
             "smollm3": (hf.SmolLM3Config, hf.SmolLM3ForCausalLM)}
    config, model = kinds[family]
    c = config(**common)
    c._attn_implementation = "sdpa"
    return c, model(c)


def loss_of(model, precision, ids, total):
    """The sum of the losses of the targets, over their number in the whole batch."""
    inputs, labels = ids[:, :-1], ids[:, 1:]
    if precision == "bf16":
        weights = {k: v.to(torch.bfloat16) for k, v in model.named_parameters()}
        logits = functional_call(model, weights, (inputs,), {"use_cache": False}).logits
    else:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            logits = model(inputs, use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum") / total


def make(folder, seed):
    """The cases of a seed: pairs of options and files."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    family, precision = FAMILIES[seed % 5], PRECISIONS[seed // 5 % 3]
    config, model = make_model(r, family)
    model.train()
    scale = r.choice((1, 1, 2, 4))
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.mul_(scale)
            elif r.random() < 0.5:
                p.add_(0.1 * torch.randn_like(p))
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim < 2]
    lr, clip = 10 ** r.uniform(-4, -2.5), r.choice((0, 0.1, 1))
    betas = r.choice(((0.9, 0.95), (0.9, 0.999)))
    groups = ([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
              if r.random() < 0.5 else [{"params": list(model.parameters()), "weight_decay": 0.1}])
    names = {id(p): n for n, p in model.named_parameters()}
    groups = [dict(g, params=[(names[id(p)], p) for p in g["params"]]) for g in groups]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))

    def save(name):
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / name)

    save("step-0.pt")
    for step in (1, 2):
        micro = r.choice((1, 2, 4))
        batch = [torch.randint(0, config.vocab_size, (r.choice((1, 2, 4)), r.choice((17, 33, 65))))
                 for _ in range(1)]
        batch += [torch.randint(0, config.vocab_size, (r.choice((1, 2)), batch[0].shape[1]))
                  for _ in range(micro - 1)]
        total = sum(b[:, 1:].numel() for b in batch)
        optimizer.zero_grad()
        loss = 0.0
        for b in batch:
            part = loss_of(model, precision, b, total)
            part.backward()
            loss += part.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip if clip else float("inf")).item()
        optimizer.step()
        save(f"step-{step}.pt")
        files = []
        for k, b in enumerate(batch):
            files.append(folder / f"batch-{step}-{k}.pt")
            torch.save(b, files[-1])
        yield (family, precision, loss), [
            "-c", folder / "config.json", "-p", precision, "--clip", clip, "--lr", repr(lr),
            "--grad-norm", f"{norm:.6g}", "--loss", f"{loss:.6g}", "--accumulation", micro,
            folder / f"step-{step - 1}.pt", folder / f"step-{step}.pt", "--batch", *files]


def main():
    first, last = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    hf.utils.logging.set_verbosity_error()
    most, n, wrong = {}, 0, 0
    for seed in range(first, last + 1):
        with tempfile.TemporaryDirectory() as folder:
            for (family, precision, loss), options in make(Path(folder), seed):
                seen = subprocess.run(["pt-check", "--json", *map(str, options)], capture_output=True, text=True)
                n += 1
                if seen.returncode:
                    wrong += 1
                    found = json.loads(seen.stdout)["findings"] if seen.stdout else seen.stderr
                    print(seed, family, precision, seen.returncode, found, flush=True)
                if not seen.stdout:
                    continue
                j = json.loads(seen.stdout)

                def note(key, value, of):
                    at = most.setdefault((precision, key), (0, ""))
                    most[precision, key] = max(at, (value, f"{of} {seed}"))

                note("loss", abs(loss / j["loss"] - 1), family)
                for t in j["tensors"]:
                    for test in ("gradient", "moments", "update"):
                        if t[test]:
                            note(test, t[test]["residual"] / t[test]["bound"], f"{family} {t['name']} {t['elements']}")
                    if t["gradient"]:
                        note("factor", abs(t["factor"] - 1), f"{family} {t['name']} {t['elements']}")
    for key in sorted(most):
        print(*key, f"{most[key][0]:.4g}", most[key][1])
    print(f"{n} steps, {wrong} not called right")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
