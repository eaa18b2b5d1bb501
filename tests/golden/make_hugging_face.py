#!/usr/bin/env python3
"""Makes the models tests/golden/hf-NAME that tests/unit/test_convert.c reads, and checks our exports.

Hugging Face's classes, with random parameters (no bias 0, no norm weight 1), in float32; each as
they save it, config.json (in one line) and model.safetensors, with tokens and the logits that they compute for
them in logits.h5 (u16 [positions], f32 [positions][vocab]).

    python3 -m venv venv
    venv/bin/pip install torch==2.11.0 transformers==5.23.0 numpy==2.4.6 h5py==3.16.0
    venv/bin/python tests/golden/make_hugging_face.py [FOLDER]
    venv/bin/python tests/golden/make_hugging_face.py --check MODEL EXPORT

(mistral-window, qwen2-window, qwen2-skip, qwen3-bias and smollm3-window were made with torch 2.15.0 and transformers 5.24.0.)

The second form loads EXPORT, a directory that pt-ckpt convert has written, and prints the largest
difference of its logits from those of MODEL, one of the directories of the first form.
The test suite needs none of this.
"""
import json
import sys
from pathlib import Path

import h5py
import numpy as np
import torch
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          SmolLM3Config, SmolLM3ForCausalLM)

VOCAB, POSITIONS = 37, 16


def gpt2(**options):
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCAB, n_positions=POSITIONS, n_embd=24, n_layer=2, n_head=4,
        bos_token_id=None, eos_token_id=None, **options))


def llama(model=LlamaForCausalLM, config=LlamaConfig, **options):
    return model(config(
        **{"vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 40,
           "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
           "max_position_embeddings": POSITIONS, "bos_token_id": None, "eos_token_id": None,
           **options}))


# llama3: frequencies that are kept, stretched and in between (see make_golden.py).
CASES = {
    "gpt2": lambda: gpt2(),
    "gpt2-plain": lambda: gpt2(n_inner=40, activation_function="gelu",
                               layer_norm_epsilon=1e-3, tie_word_embeddings=False),
    "llama": lambda: llama(rms_norm_eps=1e-5),
    "llama3": lambda: llama(tie_word_embeddings=True, rope_parameters={
        "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 60}),
    "llama-bias": lambda: llama(attention_bias=True, rope_parameters={
        "rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}),
    "qwen2": lambda: llama(Qwen2ForCausalLM, Qwen2Config, tie_word_embeddings=True,
                           rope_parameters={"rope_type": "default", "rope_theta": 1000.0}),
    # heads that are not hidden size / heads wide
    "mistral": lambda: llama(MistralForCausalLM, MistralConfig, head_dim=10,
                             sliding_window=None),
    # windows of less than the sequence: of all layers, of those from a number on, of all but every 2nd
    "mistral-window": lambda: llama(MistralForCausalLM, MistralConfig, sliding_window=5),
    "qwen2-window": lambda: llama(Qwen2ForCausalLM, Qwen2Config, use_sliding_window=True,
                                  sliding_window=3, max_window_layers=1),
    "qwen2-skip": lambda: llama(Qwen2ForCausalLM, Qwen2Config, use_sliding_window=True,
                                sliding_window=4, max_window_layers=0,
                                layer_types=["sliding_attention", "full_attention"]),
    "qwen3": lambda: llama(Qwen3ForCausalLM, Qwen3Config, head_dim=10,
                           rope_parameters={"rope_type": "default", "rope_theta": 1000.0}),
    "smollm3": lambda: llama(SmolLM3ForCausalLM, SmolLM3Config, num_hidden_layers=4,
                             no_rope_layer_interval=2, pad_token_id=None),
    # biases of attention; windows in the layers without positions, which are the 2nd and the 4th
    "qwen3-bias": lambda: llama(Qwen3ForCausalLM, Qwen3Config, head_dim=10, attention_bias=True),
    "smollm3-window": lambda: llama(SmolLM3ForCausalLM, SmolLM3Config, num_hidden_layers=5,
                                    no_rope_layer_interval=2, pad_token_id=None, attention_bias=True,
                                    use_sliding_window=True, sliding_window=4),
}


def fill(model, name):
    """Large enough that every tensor can be seen in the logits."""
    random = np.random.RandomState(list(name.encode()))
    for parameter in model.parameters():
        shape = tuple(parameter.shape)
        x = random.standard_normal(shape) * (0.3 if len(shape) == 1 else 0.2)
        parameter.data.copy_(torch.tensor(x, dtype=torch.float32))
    for key, parameter in model.named_parameters():
        if "norm" in key or "ln_" in key:
            parameter.data += 1.0 if key.endswith("weight") else 0.0


def logits_of(model, tokens):
    model.eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(torch.tensor(tokens[None].astype(np.int64))).logits[0].numpy()


def make(folder):
    for name, build in CASES.items():
        model, out = build(), folder / f"hf-{name}"
        fill(model, name)
        tokens = np.random.RandomState(7).randint(0, VOCAB, POSITIONS).astype(np.uint16)
        model.save_pretrained(out)
        config = out / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text())) + "\n")
        (out / "generation_config.json").unlink(missing_ok=True)
        with h5py.File(out / "logits.h5", "w") as f:
            f["tokens"] = tokens
            f["logits"] = logits_of(model, tokens).astype(np.float32)


def check(original, export):
    with h5py.File(Path(original) / "logits.h5") as f:
        tokens, want = f["tokens"][:], f["logits"][:]
    have = logits_of(AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32), tokens)
    print(f"{export}: largest difference of a logit {abs(have[:, :VOCAB] - want).max():.3g}, "
          f"of a logit's size {abs(want).max():.3g}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check(*sys.argv[2:])
    else:
        make(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent))
