#!/usr/bin/env python3
"""Compares the experts that three programs choose with DeepSeek-V2's routing, for random rows and a random router.

    tests/bench/oracle/group_choice.py      in an environment with torch, transformers, torchtitan and megatron-core

transformers takes the highest score of a group, as DeepSeek does; torchtitan and Megatron-LM take the sum of the two
highest. The sizes are those of DeepSeek-V2: 160 experts in 8 groups, 6 of a token from 3 groups. No GPU is needed."""
import torch
from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function
from torchtitan.models.common.moe import TokenChoiceTopKRouter
from transformers import DeepseekV2Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe

ROWS, DIM, EXPERTS, GROUPS, TOP, CHOSEN = 4096, 64, 160, 8, 3, 6
torch.manual_seed(0)
weight, x = torch.randn(EXPERTS, DIM) / 8, torch.randn(1, ROWS, DIM)


def torchtitan():
    router = TokenChoiceTopKRouter.__new__(TokenChoiceTopKRouter)
    torch.nn.Module.__init__(router)
    router.gate = torch.nn.Linear(DIM, EXPERTS, bias=False)
    router.gate.weight.data = weight
    router.num_experts, router.num_expert_groups, router.num_limited_groups = EXPERTS, GROUPS, TOP
    router.top_k, router.score_func, router.route_norm, router.route_scale = CHOSEN, "softmax", False, 1.0
    router._debug_force_load_balance = False
    return router(x)[1][0].sort(-1)[0]


def megatron():
    routing = topk_routing_with_score_function(x[0] @ weight.T, CHOSEN, num_groups=GROUPS, group_topk=TOP,
                                               score_function="softmax", use_pre_softmax=True)
    return routing[1].nonzero()[:, 1].view(ROWS, CHOSEN)


def transformers():
    block = DeepseekV2Moe(DeepseekV2Config(hidden_size=DIM, n_routed_experts=EXPERTS, n_group=GROUPS, topk_group=TOP,
                                           num_experts_per_tok=CHOSEN, topk_method="group_limited_greedy"))
    block.gate.weight.data = weight
    ids = [t for t in block.gate(x[0]) if not t.is_floating_point()]
    return ids[0].sort(-1)[0]


right = transformers()
for program in (torchtitan, megatron):
    n = (program() != right).any(-1).sum().item()
    print(f"{program.__name__}: {n} of {ROWS} tokens have other experts than in transformers")
