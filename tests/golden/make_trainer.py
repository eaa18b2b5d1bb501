#!/usr/bin/env python3
"""Makes the checkpoints in tests/golden/torch that tests/cli/check_trainer.bats reads, with the libraries themselves.

trainer/     checkpoint-0 of Trainer.save_model() and checkpoint-1 of Trainer, a Qwen3; the micro-batches of the step
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
    for name, make in (("trainer", make_trainer), ("accelerate", make_accelerate)):
        shutil.rmtree(out / name, ignore_errors=True)
        (out / name).mkdir(parents=True)
        make(out / name)


main()
