#!/usr/bin/env python3
"""Compares pt's mixtures of experts with Hugging Face's classes, both ways: a model that pt-train has trained for a few
steps and pt-ckpt has written, and a random model that save_pretrained() has written. Both programs compute in float32.

    venv/bin/pip install torch==2.15.0 transformers==5.24.0
    venv/bin/python tests/golden/check_experts.py [BUILD]

Prints for each family the largest difference of the logits after each of 40 prompts, relative to the largest logit:
of pt from transformers in float64, of transformers in float32 from float64, and of pt from transformers in float32.
Then the number of tokens of greedy text that are equal. Fails if pt differs from float64 by more than 1e-6, unless
transformers in float32 does, too, or a text of 50 tokens differs. The test suite needs none of this.
"""
import copy
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM

BUILD = Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
PROMPTS, TOKENS, BOUND = 40, 50, 1e-6

SIZES = "--arch llama --layers 3 --heads 4 --kv-heads 2 --dim 48 -T 128 --experts 8 --experts-per-token 3".split()
FAMILIES = {
    "Mixtral": "--ffn-dim 40",
    "Olmoe": "--ffn-dim 40 --qk-norm --qk-norm-all --no-router-norm",
    "Qwen2Moe": "--ffn-dim 64 --expert-dim 40 --bias qkv --shared-expert-dim 56 --shared-expert-gate --moe-from 1 "
                "--no-router-norm",
    "Qwen3Moe": "--ffn-dim 64 --expert-dim 40 --qk-norm --head-dim 16 --moe-every 2",
    "Dots1": "--ffn-dim 64 --expert-dim 40 --qk-norm --shared-expert-dim 80 --moe-from 1 --router sigmoid "
             "--router-scale 2.5 --router-bias 0.01 --router-groups 4 --router-top-groups 2",
}
EXPERTS = {"moe_intermediate_size": 40, "num_experts": 8}
KEYS = {
    "Mixtral": {"num_local_experts": 8, "intermediate_size": 40},
    "Olmoe": {"num_experts": 8, "intermediate_size": 40},
    "Qwen2Moe": EXPERTS | {"shared_expert_intermediate_size": 56, "mlp_only_layers": [0], "intermediate_size": 64},
    "Qwen3Moe": EXPERTS | {"norm_topk_prob": True, "head_dim": 16, "decoder_sparse_step": 2, "intermediate_size": 64},
    "Dots1": {"moe_intermediate_size": 40, "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1,
              "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
              "intermediate_size": 64},
}


def run(*command):
    return subprocess.run([str(BUILD / command[0]), *map(str, command[1:])], check=True, capture_output=True,
                          text=True).stdout


def random_model(family, vocab):
    """A model of a class, no bias 0 and no weight of a norm 1."""
    config = getattr(transformers, family + "Config")(
        vocab_size=vocab, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, num_experts_per_tok=3, tie_word_embeddings=False, pad_token_id=None,
        bos_token_id=None, eos_token_id=None, **KEYS[family])
    model = getattr(transformers, family + "ForCausalLM")(config)
    with torch.no_grad():
        for name, x in model.named_parameters():
            x.normal_(1 if "norm" in name else 0, 0.1 if x.ndim == 1 else x.shape[-1] ** -0.5)
        for name, x in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                x.normal_(0, 0.1)
    return model


def compare(what, model, ours, tokenizer, text):
    """`ours` is the file that pt-sample reads."""
    model, exact = model.float().eval(), copy.deepcopy(model).double().eval()
    exact.set_experts_implementation("eager")  # the others have no float64
    worst, equal = np.zeros(3), TOKENS
    with torch.no_grad():
        for i in range(PROMPTS):
            prompt = text[7 * i:8 * i + 1].replace("\n", " ")
            ids = torch.tensor([tokenizer.encode(prompt).ids])
            theirs, wanted = (m(ids).logits[0, -1].numpy() for m in (model, exact))
            lines = run("pt-sample", ours, "-q", "-p", prompt, "--logits", "--threads", 1).splitlines()
            logits = np.array([float.fromhex(line.split()[-1]) for line in lines])
            worst = np.maximum(worst, [np.abs(x).max() / np.abs(wanted).max() for x in (
                logits - wanted, theirs - wanted, logits - theirs)])
        for i in range(0, PROMPTS, 13):
            prompt = text[7 * i:8 * i + 1].replace("\n", " ")
            ids = tokenizer.encode(prompt).ids
            for _ in range(TOKENS):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            written = run("pt-sample", ours, "-q", "-p", prompt, "-n", TOKENS, "-t", 0, "--stop", "none", "--no-echo",
                          "--threads", 1)
            wanted = tokenizer.decode(ids[-TOKENS:])
            equal = min(equal, next((k for k in range(TOKENS) if written[k:k + 1] != wanted[k]), TOKENS))
    good = worst[0] <= max(BOUND, worst[1]) and equal == TOKENS
    print("{:<34} logits {:.1e} {:.1e} {:.1e}, greedy text {} of {}{}".format(
        what, *worst, equal, TOKENS, "" if good else "  WRONG"), flush=True)
    return good


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    transformers.utils.logging.set_verbosity_error()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        text = Path(__file__).read_text(encoding="utf-8")
        (folder / "text").write_text(text, encoding="utf-8")
        run("pt-prepare", "-q", folder / "text", "-o", folder / "data.h5")
        for family, options in FAMILIES.items():
            trained, exported, random, back = (folder / (family + x) for x in ("", ".hf", ".random", ".h5"))
            run("pt-train", "-q", "-d", folder / "data.h5", "-o", trained, *SIZES, *options.split(), "-n", 60, "-b", 4,
                "-m", 4, "--lr", "3e-3", "--warmup", 5, "--eval-every", 0, "-t", 1, "--self-test", "no")
            run("pt-ckpt", "convert", "-q", trained, "-o", exported)
            tokenizer = tokenizers.Tokenizer.from_file(str(exported / "tokenizer.json"))
            model = AutoModelForCausalLM.from_pretrained(exported)
            assert type(model).__name__ == family + "ForCausalLM"
            good &= compare(f"{family}, pt-train to transformers", model, trained, tokenizer, text)
            random_model(family, tokenizer.get_vocab_size()).save_pretrained(random)
            run("pt-ckpt", "convert", "-q", random, "-o", back, "--vocabulary", folder / "data.h5")
            model = AutoModelForCausalLM.from_pretrained(random)
            good &= compare(f"{family}, transformers to pt-sample", model, back, tokenizer, text)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
