"""Writes two small models of dots.llm1, DIRECTORY/balanced and DIRECTORY/skewed. They differ in the
bias of the router: in the skewed one, expert 0 of each layer is one of each token's two experts."""

import os
import sys

import torch
from transformers import Dots1Config, Dots1ForCausalLM

torch.manual_seed(1)
model = Dots1ForCausalLM(Dots1Config(
    vocab_size=65, hidden_size=384, intermediate_size=768, moe_intermediate_size=768,
    num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=6, head_dim=64,
    n_shared_experts=1, n_routed_experts=8, num_experts_per_tok=2, first_k_dense_replace=1,
    n_group=1, topk_group=1, routed_scaling_factor=1.0, norm_topk_prob=True,
    max_position_embeddings=256, tie_word_embeddings=False))
for name, bias in (("balanced", 0.0), ("skewed", 10.0)):
    for key, buffer in model.named_buffers():
        if key.endswith("e_score_correction_bias"):
            buffer[0] = bias
    model.save_pretrained(os.path.join(sys.argv[1], name))
