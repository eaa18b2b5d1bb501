"""A script of a stranger: FSDP2 and a GPT-2 of transformers. BUG=reduce, divide."""
import os
import sys

import pt  # pt
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import GPT2Config, GPT2LMHeadModel

BUG, CLIP = os.environ.get("BUG", ""), 0.5

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=32, resid_pdrop=0.0,
                                   embd_pdrop=0.0, attn_pdrop=0.0))
for part in (*model.transformer.h, model):
    fully_shard(part)
if BUG == "reduce":  # the bug: gradients are not summed over the ranks
    class KeepOwn:
        def allocate(self, size, *, dtype, device):
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
            output_tensor.copy_(input_tensor.view(world, -1)[rank].view_as(output_tensor))

    for part in (*model.transformer.h, model):
        part.set_custom_reduce_scatter(KeepOwn())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
for step in range(1):
    x = torch.randint(64, (4, 24), generator=torch.Generator().manual_seed(10 * step + rank))
    pt.save_step(sys.argv[1], model, optimizer)  # pt
    loss = model(input_ids=x, labels=x).loss
    (loss * world if BUG == "divide" else loss).backward()  # the bug: gradients are not divided by the ranks
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    batch = {"input_ids": x, "labels": x}  # pt
    pt.save_step(sys.argv[1], model, optimizer, batch, loss=loss, grad_norm=norm, clip=CLIP)  # pt
pt.save_step(sys.argv[1], None, None)  # after a whole step, further calls do nothing
dist.destroy_process_group()
