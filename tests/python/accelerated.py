"""A script of a stranger: accelerate and a Qwen3 of transformers, two micro-batches. BUG=reduce, divide."""
import os
import sys

import pt  # pt
import torch
from accelerate import Accelerator
from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed

BUG, MICRO, CLIP = os.environ.get("BUG", ""), 2, 1.0

set_seed(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1 if BUG == "divide" else MICRO)
model = Qwen3ForCausalLM(Qwen3Config(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                     num_key_value_heads=2, head_dim=8, vocab_size=64, max_position_embeddings=32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if BUG == "reduce":  # the bug: the model is not wrapped, so gradients are not summed over the ranks
    optimizer = accelerator.prepare(optimizer)
else:
    model, optimizer = accelerator.prepare(model, optimizer)
pt.save_step(sys.argv[1], model, optimizer)  # pt
batches, losses = [], []  # pt
for micro in range(MICRO):
    x = torch.randint(64, (4, 24), generator=torch.Generator().manual_seed(10 * micro + accelerator.process_index))
    batch = {"input_ids": x, "labels": x}
    accelerator.gradient_state._set_sync_gradients(micro == MICRO - 1)
    loss = model(**batch).loss
    accelerator.backward(loss)
    batches.append(batch)  # pt
    losses.append(loss.item())  # pt
norm = accelerator.clip_grad_norm_(model.parameters(), CLIP)
optimizer.step()
optimizer.zero_grad()
pt.save_step(sys.argv[1], model, optimizer, batches, loss=losses, grad_norm=norm, clip=CLIP)  # pt
accelerator.end_training()
