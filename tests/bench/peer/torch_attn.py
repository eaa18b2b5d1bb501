"""PyTorch's attention at the shapes of tests/bench/bench_attn.c, for each of its backends.
Lines "PASS HEAD-SIZE LENGTH BACKEND TFLOP/S SECONDS"; unsupported shapes are omitted."""

import argparse

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import say, seconds_a_call

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def measure(args, device, name, tokens, length, dim):
    width = 2 * dim if args.tiny else 2048
    heads, batch = width // dim, tokens // length
    # [batch, length, heads, dim] in memory, as the layer before it stores them
    q, k, v, dout = (
        torch.randn(batch, length, heads, dim, device=device, dtype=torch.bfloat16)
        .transpose(1, 2)
        for _ in range(4)
    )
    for x in q, k, v:
        x.requires_grad_()
    with sdpa_kernel(BACKENDS[name]):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def forward():
            with torch.no_grad():
                F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def backward():
            torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

        flops = batch * heads * dim * length * length
        for what, call, matmuls in ("fwd", forward, 2), ("bwd", backward, 5):
            s = seconds_a_call(device, call, args.tiny)
            say(what, dim, length, name, f"{matmuls * flops / s * 1e-12:.4g}", f"{s:.6g}")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--device", default="cuda")
    p.add_argument("--tiny", action="store_true")
    args = p.parse_args()
    device = torch.device(args.device)
    tokens, first = (256, 128) if args.tiny else (16384, 1024)
    names = ("flash", "cudnn") if device.type == "cuda" else ("math",)
    for name in names:
        for dim in 64, 128:
            length = first
            while length <= tokens:
                try:
                    measure(args, device, name, tokens, length, dim)
                except RuntimeError as e:
                    why = str(e).splitlines()[0]
                    say("#", f"{name}, heads of {dim}, length {length}: {why}")
                length *= 2


main()
