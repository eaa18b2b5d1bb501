#!/usr/bin/env python3
"""Makes the checkpoints in tests/golden/torch that tests/cli/check_trainer.bats reads, with the libraries themselves.

trainer/     checkpoint-0 of Trainer.save_model() and checkpoint-1 of Trainer, a Qwen3; the micro-batches of the step
trainer-moe/ the same of five mixtures of experts: safetensors with a tensor per matrix, an optimizer with stacks; and the
             optimizer of transformers 4 (a number per matrix, in the order of named_parameters()) made from two of these
accelerate/  two directories of save_state(), a GPT-2: model.safetensors beside optimizer.bin, and pytorch_model.bin in
             the second; the batch of the step

    python3 -m venv venv
    venv/bin/pip install torch==2.15.0 transformers==5.24.0 accelerate==1.15.0
    venv/bin/python tests/golden/make_trainer.py [DIRECTORY]

The test suite needs none of this.
"""
import shutil
import sys
from pathlib import Path

import torch
import transformers as hf
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM, Trainer, TrainingArguments, set_seed

VOCAB, LENGTH = 32, 12


def keep(directory, names):
    for f in directory.iterdir():
        if f.name not in names:
            f.unlink()


class Saving(Trainer):
    n = 0

    def training_step(self, model, inputs, *args, **kwargs):
        torch.save(dict(inputs), Path(self.args.output_dir) / f"batch-{self.n}.pt")
        self.n += 1
        return super().training_step(model, inputs, *args, **kwargs)


def make_trainer(out):
    set_seed(1)
    model = Qwen3ForCausalLM(Qwen3Config(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, vocab_size=VOCAB, max_position_embeddings=16, tie_word_embeddings=True))
    data = [{"input_ids": x, "labels": x} for x in torch.randint(VOCAB, (8, LENGTH))]
    trainer = Saving(model, TrainingArguments(
        str(out), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=1, save_steps=1,
        logging_steps=1, report_to=[], use_cpu=True, weight_decay=0.1, learning_rate=1e-3, max_grad_norm=0.5),
        train_dataset=data)
    trainer.save_model(str(out / "checkpoint-0"))
    trainer.train()
    keep(out / "checkpoint-0", ("config.json", "model.safetensors"))
    keep(out / "checkpoint-1", ("config.json", "model.safetensors", "optimizer.pt", "trainer_state.json",
                                "training_args.bin"))


COMMON = dict(hidden_size=8, intermediate_size=12, num_attention_heads=2, num_key_value_heads=1, head_dim=4, vocab_size=16,
              max_position_embeddings=32, tie_word_embeddings=False, pad_token_id=None, bos_token_id=None, eos_token_id=None,
              num_hidden_layers=2, initializer_range=0.3)
QWEN3 = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=6, decoder_sparse_step=2, norm_topk_prob=True)
EXPERTS = {
    "mixtral": (hf.MixtralConfig, hf.MixtralForCausalLM, dict(num_local_experts=4)),
    "qwen2_moe": (hf.Qwen2MoeConfig, hf.Qwen2MoeForCausalLM,
                  dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=6, shared_expert_intermediate_size=8)),
    "qwen3_moe": (hf.Qwen3MoeConfig, hf.Qwen3MoeForCausalLM, QWEN3),
    "olmoe": (hf.OlmoeConfig, hf.OlmoeForCausalLM, dict(num_experts=5, num_experts_per_tok=2)),
    "dots1": (hf.Dots1Config, hf.Dots1ForCausalLM,
              dict(n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, moe_intermediate_size=4,
                   first_k_dense_replace=1, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5)),
    "square": (hf.Qwen3MoeConfig, hf.Qwen3MoeForCausalLM, QWEN3 | dict(num_experts=8, moe_intermediate_size=8)),
}


def number_matrices(at, model):
    """Gives each matrix of an expert its own number, as the classes of transformers 4 do: the router, then the experts."""
    old = torch.load(at / "optimizer.pt")
    decay = trainer_decay(model)
    moments = dict(zip([n for n, _ in model.named_parameters() if n in decay] +
                       [n for n, _ in model.named_parameters() if n not in decay], old["state"].values()))
    order = {}
    for n, _ in model.named_parameters():
        stem, stack, last = n.partition(".experts.")
        if stack and last == "gate_up_proj":
            order[stem + ".gate.weight"] = moments[stem + ".gate.weight"]
            up, down = moments[n], moments[stem + ".experts.down_proj"]
            for e in range(up["exp_avg"].shape[0]):
                for part, begin in (("gate_proj", 0), ("up_proj", 1)):
                    order[f"{stem}.experts.{e}.{part}.weight"] = {
                        k: x if k == "step" else x[e].chunk(2)[begin].clone() for k, x in up.items()}
                order[f"{stem}.experts.{e}.down_proj.weight"] = {
                    k: x if k == "step" else x[e].clone() for k, x in down.items()}
        elif not stack and n not in order:
            order[n] = moments[n]
    groups = [[n for n in order if order[n]["exp_avg"].ndim > 1], [n for n in order if order[n]["exp_avg"].ndim == 1]]
    numbered = groups[0] + groups[1]
    old["state"] = {i: order[n] for i, n in enumerate(numbered)}
    old["param_groups"][0]["params"] = list(range(len(groups[0])))
    old["param_groups"][1]["params"] = list(range(len(groups[0]), len(numbered)))
    torch.save(old, at / "optimizer.pt")


def trainer_decay(model):
    return {n for n, p in model.named_parameters() if p.ndim > 1}


def make_experts(out):
    for name, (config, kind, more) in EXPERTS.items():
        set_seed(1)
        c = config(**{**COMMON, **more})
        c._experts_implementation = "eager"
        model = kind(c)
        data = [{"input_ids": x, "labels": x} for x in torch.randint(16, (4, LENGTH))]
        (out / name).mkdir()
        trainer = Saving(model, TrainingArguments(
            str(out / name), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=1, save_steps=1,
            report_to=[], use_cpu=True, weight_decay=0.1, learning_rate=1e-3, max_grad_norm=0.5), train_dataset=data)
        trainer.save_model(str(out / name / "checkpoint-0"))
        trainer.train()
        for step in (0, 1):
            keep(out / name / f"checkpoint-{step}", ("config.json", "model.safetensors", "optimizer.pt"))
        if name in ("qwen3_moe", "square"):
            shutil.copytree(out / name, out / f"{name}-4")
            number_matrices(out / f"{name}-4/checkpoint-1", model)
            if name == "square":
                shutil.rmtree(out / name)


def make_accelerate(out):
    set_seed(2)
    accelerator = Accelerator(cpu=True)
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=VOCAB, n_positions=LENGTH,
                                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    model.config.save_pretrained(out)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    x = torch.randint(VOCAB, (2, LENGTH))
    for step in range(2):
        accelerator.backward(model(input_ids=x, labels=x).loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.save_state(str(out / f"step-{step + 1}"), safe_serialization=not step)
        keep(out / f"step-{step + 1}", ("model.safetensors", "pytorch_model.bin", "optimizer.bin"))
    torch.save({"input_ids": x, "labels": x}, out / "batch.pt")


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "torch")
    makers = {"trainer": make_trainer, "trainer-moe": make_experts, "accelerate": make_accelerate}
    for name, make in makers.items():
        shutil.rmtree(out / name, ignore_errors=True)
        (out / name).mkdir(parents=True)
        make(out / name)


main()
