#!/usr/bin/env python3
"""Makes tests/golden/titan-steps: steps of torchtitan's Qwen3 with experts, for tests/cli/check_experts.bats.

    tests/golden/make_titan_steps.py        in an environment with torch and torchtitan 0.3

On CPUs: attention is PyTorch's scaled dot product, and experts are plain matmuls in fp32 instead of torch._grouped_mm in
bf16. softmax-0.pt is a model, softmax-1.pt a right step; softmax-bias-*: with a bias of the choice; sigmoid-*: with the routing of DeepSeek-V3 (groups, bias)."""
import json
from pathlib import Path
from types import MethodType

import torch
import torch.nn.functional as F
import torchtitan.models.qwen3 as qwen3
from torchtitan.models.common.embedding import Embedding
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.moe import GroupedExperts
from torchtitan.models.common.rope import CosSinRoPE

OUT = Path(__file__).parent / "titan-steps"
VOCAB, DIM, HEAD, WIDTH, EXPERTS = 16, 8, 4, 6, 8
BATCH = torch.randint(0, VOCAB, (4, 17), generator=torch.Generator().manual_seed(3))


def experts(self, x, counts):
    ends, out = counts.cumsum(0).tolist(), []
    for e, (begin, end) in enumerate(zip([0] + ends[:-1], ends)):
        rows = x[begin:end]
        out.append((F.silu(rows @ self.w1_EFD[e].T) * (rows @ self.w3_EFD[e].T)) @ self.w2_EDF[e].T)
    return torch.cat(out)


def attention(self, q, k, v, *, scale=None, enable_gqa=False, **_):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa).transpose(1, 2)


def model_of(score):
    layers = qwen3._build_qwen3_moe_layers(
        fuse_qkv=False, n_layers=2, dim=DIM, n_heads=2, n_kv_heads=1, head_dim=HEAD, moe_hidden_dim=WIDTH,
        num_experts=EXPERTS, top_k=2, attn_backend="flex", moe_comm_backend="standard",
        rope=CosSinRoPE.Config(dim=HEAD, max_seq_len=32, theta=1e4))
    for layer in layers:
        router = layer.moe.router
        router.score_func = score
        if score == "sigmoid":
            router.route_scale, router.num_expert_groups, router.num_limited_groups = 2.5, 4, 2
    config = qwen3.Qwen3Model.Config(
        vocab_size=VOCAB, dim=DIM, norm=qwen3._qwen3_norm(DIM), layers=layers,
        tok_embeddings=Embedding.Config(num_embeddings=VOCAB, embedding_dim=DIM, param_init=qwen3._EMBEDDING_INIT),
        lm_head=Linear.Config(in_features=DIM, out_features=VOCAB, param_init=qwen3._LINEAR_INIT))
    model = config.build()
    model.init_states()
    for name, part in model.named_modules():
        if name.endswith("inner_attention"):
            part.forward = MethodType(attention, part)
        if isinstance(part, GroupedExperts):
            part.forward = MethodType(experts, part)
    return model


def biases_of(model):
    return [b for name, b in model.named_buffers() if name.endswith("expert_bias_E")]


def make(score, biased=False):
    name = f"{score}-bias" if biased else score
    torch.manual_seed(1)
    model = model_of(score)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.copy_(0.3 * torch.randn_like(p))
        for b in biases_of(model) if biased or score == "sigmoid" else []:
            b.copy_(0.1 * torch.randn_like(b))
    optimizer = torch.optim.AdamW(list(model.named_parameters()), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    torch.save({"model": model.state_dict()}, OUT / f"{name}-0.pt")
    logits = model(BATCH[:, :-1], attention_masks=None, positions=torch.arange(16).expand(4, 16))
    F.cross_entropy(logits.flatten(0, 1), BATCH[:, 1:].flatten()).backward()
    for b in biases_of(model):  # (any change, as by the hook before the optimizer's step)
        b.add_(1e-3)
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, OUT / f"{name}-1.pt")
    if biased:
        return
    config = dict(vocab_size=VOCAB, hidden_size=DIM, num_attention_heads=2, num_key_value_heads=1, head_dim=HEAD,
                  num_hidden_layers=2, intermediate_size=WIDTH, moe_intermediate_size=WIDTH, num_experts_per_tok=2,
                  max_position_embeddings=32, rms_norm_eps=model.norm.eps or 1e-6, rope_theta=1e4, hidden_act="silu",
                  tie_word_embeddings=False, attention_bias=False, norm_topk_prob=True)
    config |= (dict(model_type="qwen3_moe", num_experts=EXPERTS) if score == "softmax" else
               dict(model_type="dots1", n_routed_experts=EXPERTS, n_group=4, topk_group=2, n_shared_experts=0,
                    routed_scaling_factor=2.5, sliding_window=None))
    (OUT / f"{score}.json").write_text(json.dumps(config))


OUT.mkdir(exist_ok=True)
torch.save(BATCH, OUT / "batch.pt")
for score in ("softmax", "sigmoid"):
    make(score)
make("softmax", biased=True)
