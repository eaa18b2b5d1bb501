"""Inference of the models of torch_gpt.py: drawing tokens one at a time with a cache of keys and
values, as pt-sample does, and evaluation. What tests/bench/run compares these with.

  torch_sample.py CONFIG --tokens N      prints tokens per second of a prompt of --prompt tokens,
                                         and of those drawn after it, in processor
                                         time of each thread
  torch_sample.py CONFIG --eval WINDOWS  prints tokens per second of a forward with the loss"""

import argparse
import time

import torch
import torch.nn.functional as F

from common import about, say
from torch_gpt import Model, Shape, turn


def clock():
    return time.process_time() / torch.get_num_threads()


def attend(layer, x, rope, cache, first):
    """The rows of x are at positions first, first + 1, and so on."""
    batch, length, dim = x.shape
    x = layer.into(x).view(batch, length, -1, layer.size).transpose(1, 2)
    q, k, v = x.split((layer.heads, layer.kv_heads, layer.kv_heads), dim=1)
    if rope is not None:
        q, k = turn(q, *rope), turn(k, *rope)
    end = first + length
    cache[0][:, :, first:end], cache[1][:, :, first:end] = k, v
    x = F.scaled_dot_product_attention(
        q, cache[0][:, :, :end], cache[1][:, :, :end], is_causal=length > 1,
        enable_gqa=layer.kv_heads != layer.heads)
    return layer.out(x.transpose(1, 2).reshape(batch, length, dim))


def feed(model, tokens, caches, first):
    """The logits after the last of the tokens."""
    end = first + tokens.shape[1]
    x = model.tokens(tokens)
    rope = None
    if model.positions is not None:
        x = x + model.positions.weight[first:end]
    else:
        rope = (model.cos[first:end], model.sin[first:end])
    for block, cache in zip(model.blocks, caches):
        x = x + attend(block.attention, block.norm1(x), rope, cache, first)
        x = x + block.ffn(block.norm2(x))
    return model.head(model.norm(x[:, -1:]))[0, 0]


def draw(logits, vocab):
    top, ids = torch.topk(logits[:vocab].float(), min(200, vocab))
    return ids[torch.multinomial(torch.softmax(top / 0.8, 0), 1)].view(1, 1)


def sample(model, s, args):
    dtype = next(model.parameters()).dtype
    shape = (1, s.kv_heads, s.context, s.dim // s.heads)
    caches = [[torch.zeros(shape, dtype=dtype) for _ in "kv"] for _ in range(s.layers)]
    prompt = torch.randint(s.vocab, (1, args.prompt))
    for _ in range(2):  # the first round warms up
        begin = clock()
        token = draw(feed(model, prompt, caches, 0), s.vocab)
        after = clock()
        for i in range(args.tokens):
            token = draw(feed(model, token, caches, args.prompt + i), s.vocab)
        end = clock()
    say("prompt", f"{args.prompt / (after - begin):.6g}")
    say("tps", f"{args.tokens / (end - after):.6g}")


def evaluate(model, s, args):
    data = torch.randint(s.vocab, (args.eval, 1, s.context + 1))
    model(data[0, :, :-1], data[0, :, 1:])
    begin = clock()
    for window in data:
        model(window[:, :-1], window[:, 1:]).item()
    say("tps", f"{args.eval * s.context / (clock() - begin):.6g}")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("config")
    p.add_argument("--tokens", type=int, default=100)
    p.add_argument("--prompt", type=int, default=1)
    p.add_argument("--eval", type=int, default=0)
    p.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    p.add_argument("--threads", type=int, default=0)
    args = p.parse_args()
    about(torch.device("cpu"))
    if args.threads:
        torch.set_num_threads(args.threads)
    s = Shape(args.config)
    with torch.inference_mode():
        model = Model(s).to(torch.bfloat16 if args.dtype == "bf16" else torch.float32)
        (evaluate if args.eval else sample)(model, s, args)


if __name__ == "__main__":
    main()
