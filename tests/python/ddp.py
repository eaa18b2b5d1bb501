"""A script of a stranger: DDP and a Llama of transformers, two micro-batches. BUG=reduce, divide."""
import contextlib
import os
import sys

import pt  # pt
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import LlamaConfig, LlamaForCausalLM

BUG, MICRO, CLIP = os.environ.get("BUG", ""), 2, 0.5

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = DDP(LlamaForCausalLM(LlamaConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=64, max_position_embeddings=32)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(2):
    batches, losses = [], []
    if step == 1:  # pt
        pt.save_step(sys.argv[1], model, optimizer)  # pt
    for micro in range(MICRO):
        x = torch.randint(64, (4, 24), generator=torch.Generator().manual_seed(100 * step + 10 * micro + rank))
        quiet = micro < MICRO - 1 or (BUG == "reduce" and step == 1)  # the bug: no all-reduce
        with model.no_sync() if quiet else contextlib.nullcontext():
            loss = model(input_ids=x, labels=x).loss
            (loss if BUG == "divide" else loss / MICRO).backward()  # the bug: no division by the micro-batches
        batches.append({"input_ids": x, "labels": x})  # pt
        losses.append(loss.item())  # pt
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:  # pt
        pt.save_step(sys.argv[1], model, optimizer, batches, loss=losses, grad_norm=norm, clip=CLIP)  # pt
dist.destroy_process_group()
