"""Mixtral of transformers, as tests/bench/experts compares it with pt-train: each line of standard
input is a number of steps, which the loop and the grouped matmuls do in turns. Prints the lines
"FORM SECONDS PROCESSOR-SECONDS" of each step, then "done".

The shape is read from a config file as `pt-train --print-config` prints it. A step is forward,
backward with the balance loss, clipping and AdamW. The types are fp32; bf16, by autocast; and
bf16-weights, a model whose weights and optimizer are in bf16."""

import argparse
import sys
import time

import torch
from transformers import MixtralConfig, MixtralForCausalLM

from common import say
from torch_gpt import Shape


class Experts(Shape):
    def __init__(self, path):
        super().__init__(path)
        with open(path, encoding="utf-8") as f:
            conf = dict(line.split(" = ", 1) for line in f if " = " in line)
        self.experts, self.per_token = int(conf["experts"]), int(conf["experts-per-token"])
        self.ffn = int(conf["expert-dim"]) or self.ffn
        self.balance = float(conf["balance-loss"]) / self.per_token


class Form:
    """A model, and its optimizer."""

    def __init__(self, s, name, dtype):
        config = MixtralConfig(
            vocab_size=s.vocab, hidden_size=s.dim, intermediate_size=s.ffn,
            num_hidden_layers=s.layers, num_attention_heads=s.heads,
            num_key_value_heads=s.kv_heads, head_dim=s.dim // s.heads,
            max_position_embeddings=s.context, sliding_window=None, use_cache=False,
            num_local_experts=s.experts, num_experts_per_tok=s.per_token,
            output_router_logits=s.balance > 0, router_aux_loss_coef=s.balance)
        torch.manual_seed(1)
        self.name, self.autocast = name, dtype == "bf16"
        self.model = MixtralForCausalLM._from_config(
            config, attn_implementation="sdpa", experts_implementation=name).train()
        if dtype == "bf16-weights":
            self.model.to(torch.bfloat16)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=s.lr, betas=s.betas, weight_decay=s.decay, fused=True)
        self.clip = s.clip

    def step(self, tokens):
        begin = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = self.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss.item()
        end = time.perf_counter(), time.process_time()
        return end[0] - begin[0], end[1] - begin[1]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("config")
    p.add_argument("--dtype", choices=("fp32", "bf16", "bf16-weights"), default="fp32")
    p.add_argument("--threads", type=int, default=1)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    s = Experts(args.config)
    forms = [Form(s, name, args.dtype) for name in ("eager", "grouped_mm")]
    for line in sys.stdin:
        for form in forms:
            for _ in range(int(line)):
                tokens = torch.randint(s.vocab, (s.batch, s.context))
                say(form.name, *(f"{x:.6f}" for x in form.step(tokens)))
        say("done")


main()
