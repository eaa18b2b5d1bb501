#!/usr/bin/env python3
"""Makes tests/golden/llmc-llama, which tests/unit/test_convert.c reads.

A small Llama 3 with random parameters, built and written by train_llama3.py of karpathy/llm.c (commit f1e2ace):
model.bin in fp32, half.bin in bf16, and logits.h5 with tokens and the logits that its classes compute for them
(u16 [positions], f32 [positions][vocab]).

    python3 -m venv venv
    venv/bin/pip install torch==2.11.0 numpy==2.4.6 h5py==3.16.0
    venv/bin/python tests/golden/make_llmc.py path/to/llm.c [FOLDER]

The test suite needs none of this.
"""
import sys
import types
from pathlib import Path

import h5py
import numpy as np
import torch

VOCAB, POSITIONS = 37, 16


def load(folder):
    """The script imports tiktoken, which only its tokenizer needs."""
    names = ("tiktoken", "tiktoken.load")
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    sys.modules["tiktoken.load"].load_tiktoken_bpe = None
    sys.path.insert(0, folder)
    import train_llama3
    return train_llama3


def build(llm):
    """40 channels in the feed-forward layers: 0.6 times 64 is 38, rounded up to a multiple of 8."""
    return llm.LLaMA(llm.LlamaConfig(
        block_size=POSITIONS, vocab_size=VOCAB, n_layer=2, n_head=4, n_kv_head=2, n_embd=24,
        ffn_dim_multiplier=0.6, multiple_of=8, rope_theta=500000.0, use_scaled_rope=True,
        use_kv=False))


def fill(model):
    """Large enough that every tensor can be seen in the logits."""
    random = np.random.RandomState(11)
    for name, parameter in model.named_parameters():
        x = random.standard_normal(tuple(parameter.shape)) * 0.2
        parameter.data.copy_(torch.tensor(x, dtype=torch.float32))
        if ".ln_" in name:
            parameter.data += 1.0


def main(llmc, out):
    llm = load(llmc)
    model = build(llm)
    fill(model)
    model.train()  # without a cache of keys and values
    tokens = np.random.RandomState(7).randint(0, VOCAB, POSITIONS).astype(np.uint16)
    x = torch.tensor(tokens[None].astype(np.int64))
    with torch.no_grad():
        logits, _ = model(x, targets=x)
    out.mkdir(exist_ok=True)
    llm.write_model(model, str(out / "model.bin"), "float32")
    llm.write_model(model, str(out / "half.bin"), "bfloat16")
    with h5py.File(out / "logits.h5", "w") as f:
        f["tokens"] = tokens
        f["logits"] = logits[0].numpy().astype(np.float32)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else
                           Path(__file__).parent / "llmc-llama"))
