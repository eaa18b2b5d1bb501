#!/usr/bin/env python3
"""Makes tests/golden/torch/steps, which tests/cli/check_given.bats reads: steps of PyTorch whose gradients are
saved, with weights of targets, and of PEFT's adapters (LoRA). With torch 2.15, transformers 5.24, peft 0.21:

    OMP_NUM_THREADS=1 tests/golden/make_steps.py [FOLDER]

base/            a Llama of Hugging Face, the model before each step
batch.pt         four sequences
grads.pt         p.grad of the mean loss, by name
sharded.pt       the gradient of one tensor as a DTensor
weighted.pt      the batch, with weights and labels that do not count
weighted.safetensors  the gradients of the sum of weight * -log p / 50
lora/step-N      adapters of PEFT and their optimizer after N steps of AdamW
lora/step-1/full.pt  the same in one file of torch.save(), the optimizer with names
lora/grads-1.pt  the gradients of the second step
lora/alpha-1     after a first step whose scale was alpha, not alpha / r
"""
import os
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from transformers import LlamaConfig, LlamaForCausalLM

out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "torch" / "steps")
out.mkdir(parents=True, exist_ok=True)
os.chdir(out)


def make_base():
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=24, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, bos_token_id=0, eos_token_id=1))
    for p in model.parameters():
        p.data = p.data + 0.1 * torch.randn_like(p) if p.ndim == 1 else 5 * p.data
    model.save_pretrained("base")
    Path("base/generation_config.json").unlink()


def load():
    return LlamaForCausalLM.from_pretrained("base")


def gradients(model):
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def save_gradients(ids):
    model = load()
    model(input_ids=ids, labels=ids).loss.backward()
    torch.save(gradients(model), "grads.pt")


def save_sharded(gradient):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("gloo")
    sharded = distribute_tensor(gradient, init_device_mesh("cpu", (1,)), [Shard(0)])
    torch.save({"lm_head.weight": sharded}, "sharded.pt")
    torch.distributed.destroy_process_group()


def save_weighted(ids):
    model = load()
    labels = ids.clone()
    labels[:, :4] = -100
    weights = torch.randn(ids.shape)
    log_p = model(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    counts = labels[:, 1:] >= 0
    (-(weights[:, 1:] * log_p * counts).sum() / 50).backward()
    torch.save({"input_ids": ids, "labels": labels, "weights": weights}, "weighted.pt")
    save_file(gradients(model), "weighted.safetensors")


def train_adapters(ids, steps, scale, name):
    torch.manual_seed(2)
    model = get_peft_model(load(), LoraConfig(
        r=2, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
    for module in model.modules():
        if isinstance(getattr(module, "scaling", None), dict):
            module.scaling = {k: scale * v for k, v in module.scaling.items()}

    def save(step):
        folder = Path(f"lora/{name}-{step}")
        model.save_pretrained(folder)
        (folder / "README.md").unlink()
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")

    if name == "step":
        save(0)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        if name == "step" and step == 2:
            torch.save(gradients(model), "lora/grads-1.pt")
        optimizer.step()
        save(step)
        if name == "step" and step == 1:
            adapters = {n: p for n, p in model.state_dict().items() if "lora_" in n}
            torch.save({"model": adapters, "optimizer": get_optimizer_state_dict(model, optimizer)},
                       "lora/step-1/full.pt")


make_base()
tokens = torch.randint(0, 24, (4, 12))
torch.save({"input_ids": tokens, "labels": tokens}, "batch.pt")
save_gradients(tokens)
save_sharded(torch.load("grads.pt")["lm_head.weight"])
save_weighted(tokens)
train_adapters(tokens, 2, 1, "step")
train_adapters(tokens, 1, 2, "alpha")
