"""A script of a stranger: Hugging Face's Trainer and a Mistral. BUG=divide."""
import os
import sys

import torch
from pt.trainer import SaveStep  # pt
from transformers import MistralConfig, MistralForCausalLM, Trainer, TrainingArguments, set_seed

set_seed(1)
model = MistralForCausalLM(MistralConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=64, max_position_embeddings=32, sliding_window=None))
if os.environ.get("BUG") == "divide":  # the bug: micro-batches are summed, not averaged
    for p in model.parameters():
        p.register_hook(lambda g: 2 * g)
data = [{"input_ids": x, "labels": x} for x in torch.randint(64, (32, 24))]
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=2, save_strategy="no",
    learning_rate=1e-3, weight_decay=0.1, use_cpu=True, report_to=[])
trainer = Trainer(model, arguments, train_dataset=data)
trainer.add_callback(SaveStep(sys.argv[1], step=2))  # pt
trainer.train()
