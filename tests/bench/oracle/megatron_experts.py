#!/usr/bin/env python3
"""Makes steps of Megatron-LM's own mixture of experts on one CPU, right ones and with bugs, and runs pt-check on each.

    tests/bench/oracle/megatron_experts.py [--keep DIR] [NAME...]     with pt-check on the PATH

Needs torch, psutil and megatron-core (pip installs 0.16.1 with Python 3.11). A step is GPTModel with MoELayer and SequentialMLP,
Megatron's schedule, data-parallel wrapper, gradients in fp32, optimizer and distributed checkpoints; gloo and the stubs of
share/recipes/no_gpu.py replace the GPU. Prints a line per step: what was run, and the verdict of pt-check. The exit code is 1
if a right step is called wrong, or a step with a bug right."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[3] / "share/recipes"))
os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29577", "RANK": "0", "WORLD_SIZE": "1", "TORCHDYNAMO_DISABLE": "1",
               "LOCAL_WORLD_SIZE": "1"}
import no_gpu  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.moe.experts import SequentialMLP  # noqa: E402
from megatron.core.transformer.moe.router import TopKRouter  # noqa: E402
from megatron.core.transformer.moe.shared_experts import SharedExpertMLP  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

moe_utils.te_general_gemm = None  # (0.16.1 does not set it without Transformer Engine)

VOCAB, DIM, HEADS, GROUPS, LENGTH, LAYERS, WIDTH, EXPERTS = 64, 32, 4, 2, 16, 2, 24, 8
LR, DECAY, COEFFICIENT = 1e-3, 0.1, 0.02

# What a model adds to the common configuration: of Megatron-LM, and of Hugging Face's config.json.
MODELS = {
    "mixtral": (dict(), dict(model_type="mixtral", num_local_experts=EXPERTS, intermediate_size=WIDTH)),
    "qwen2": (dict(moe_router_pre_softmax=True, moe_shared_expert_intermediate_size=40, moe_shared_expert_gate=True,
                   moe_layer_freq=[0, 1]),
              dict(model_type="qwen2_moe", num_experts=EXPERTS, moe_intermediate_size=WIDTH, mlp_only_layers=[0],
                   shared_expert_intermediate_size=40, norm_topk_prob=False, intermediate_size=48)),
    "qwen3": (dict(qk_layernorm=True), dict(model_type="qwen3_moe", num_experts=EXPERTS, moe_intermediate_size=WIDTH,
                                            norm_topk_prob=True, intermediate_size=48)),
    "dots1": (dict(qk_layernorm=True, moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
                   moe_router_bias_update_rate=1e-3, moe_router_topk_scaling_factor=2.5, moe_router_num_groups=4,
                   moe_router_group_topk=2, moe_router_topk=4, moe_shared_expert_intermediate_size=WIDTH),
              dict(model_type="dots1", n_routed_experts=EXPERTS, moe_intermediate_size=WIDTH, n_group=4, topk_group=2,
                   num_experts_per_tok=4, n_shared_experts=1, routed_scaling_factor=2.5, norm_topk_prob=True,
                   first_k_dense_replace=0, sliding_window=None, intermediate_size=48)),
}


def configurations(name, balance):
    more, other = MODELS[name]
    common = dict(num_layers=LAYERS, hidden_size=DIM, num_attention_heads=HEADS, num_query_groups=GROUPS,
                  ffn_hidden_size=48, num_moe_experts=EXPERTS, moe_ffn_hidden_size=WIDTH, moe_router_topk=2,
                  moe_router_load_balancing_type=balance, moe_aux_loss_coeff=COEFFICIENT if balance != "none" else 0,
                  moe_token_dispatcher_type="allgather", gated_linear_unit=True,
                  activation_func=torch.nn.functional.silu, normalization="RMSNorm", layernorm_epsilon=1e-5,
                  add_bias_linear=False, attention_dropout=0.0, hidden_dropout=0.0, use_cpu_initialization=True,
                  params_dtype=torch.float32, pipeline_dtype=torch.float32, gradient_accumulation_fusion=False,
                  moe_router_dtype="fp32", masked_softmax_fusion=False, bias_activation_fusion=False,
                  init_method_std=0.2)
    theirs = TransformerConfig(**{**common, **more})
    ours = dict(hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=GROUPS, num_hidden_layers=LAYERS,
                vocab_size=VOCAB, max_position_embeddings=LENGTH, rms_norm_eps=1e-5, rope_theta=10000, num_experts_per_tok=2,
                head_dim=DIM // HEADS, hidden_act="silu", tie_word_embeddings=False, attention_bias=False)
    return theirs, {**ours, **other}


def build(theirs):
    spec = get_gpt_decoder_block_spec(theirs, use_transformer_engine=False, normalization="RMSNorm")
    model = GPTModel(config=theirs, transformer_layer_spec=spec, vocab_size=VOCAB, max_sequence_length=LENGTH,
                     position_embedding_type="rope", rotary_base=10000, share_embeddings_and_output_weights=False)
    wrapped = DistributedDataParallel(theirs, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model)
    theirs.finalize_model_grads_func = finalize_model_grads
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=LR, weight_decay=DECAY, adam_beta1=0.9, adam_beta2=0.95, clip_grad=1.0),
        [wrapped])
    return wrapped, optimizer


def save(folder, model, optimizer, iteration):
    folder.mkdir(parents=True)
    state = model.module.sharded_state_dict()
    tensors = {**state, "optimizer": optimizer.sharded_state_dict(state), "iteration": iteration,
               "args": SimpleNamespace(num_attention_heads=HEADS, seq_length=LENGTH)}
    dist_checkpointing.save(tensors, str(folder))


def run_step(model, optimizer, batches):
    """One iteration of Megatron's schedule. Returns the mean loss and the norm of the gradients."""
    def forward(iterator, model):
        x = next(iterator)
        mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
        out = model(x[:, :-1], torch.arange(LENGTH).expand(len(x), -1), mask, labels=x[:, 1:])
        return out, lambda losses: (losses.mean(), {"loss": losses.mean().detach()})

    model.zero_grad_buffer()
    optimizer.zero_grad()
    losses = get_forward_backward_func()(
        forward_step_func=forward, data_iterator=iter(batches), model=[model], num_microbatches=len(batches),
        seq_length=LENGTH, micro_batch_size=len(batches[0]), forward_only=False)
    norm = optimizer.step()[1]
    return sum(x["loss"].item() for x in losses) / len(losses), float(norm)


def detach_a_row(model):
    """The first row of one expert has no gradient."""
    experts = next(m for m in model.modules() if isinstance(m, SequentialMLP))
    last = experts.local_experts[1].linear_fc2
    forward = last.forward

    def run(x, *args, **kwargs):
        out, bias = forward(x, *args, **kwargs)
        return torch.cat((out[:1].detach(), out[1:])), bias
    last.forward = run


def round_logits(model):
    for router in (m for m in model.modules() if isinstance(m, TopKRouter)):
        router.gating = (lambda gating: lambda x: gating(x).bfloat16().float())(router.gating)


def no_shared_gate(model):
    def around(shared, forward):
        def run(x):
            shared.use_shared_expert_gate = False
            out = forward(x)
            shared.use_shared_expert_gate = True  # (the checkpoint has its weight)
            return out
        return run
    for shared in (m for m in model.modules() if isinstance(m, SharedExpertMLP)):
        shared.forward = around(shared, shared.forward)


def set_of_routers(**options):
    def change(model):
        for router in (m for m in model.modules() if isinstance(m, TopKRouter)):
            for name, value in options.items():
                setattr(router.config, name, value)
    return change


def scale_experts(model):
    for name, p in model.named_parameters():
        if ".experts." in name:
            p.main_grad *= 2


def twice(model):
    set_of_routers(moe_aux_loss_coeff=2 * COEFFICIENT)(model)


# A name, the model, Megatron's balance loss, micro-batches, a bug before the pass, one after it, and for each
# --balance of pt-check the exit code and words of its answer.
NOTE = "the gradients have a loss that balances the experts: --balance "
CASES = [
    ("mixtral", "mixtral", "aux_loss", 2, None, None, [(f"megatron={COEFFICIENT}", 0, ""), ("auto", 0, NOTE + "megatron=0.02")]),
    ("mixtral-sequence", "mixtral", "seq_aux_loss", 2, None, None,
     [(f"deepseek={COEFFICIENT}", 0, ""), ("auto", 0, NOTE + "deepseek=0.02"), (f"megatron={COEFFICIENT}", 1, "deepseek=0.02")]),
    ("mixtral-global", "mixtral", "global_aux_loss", 1, None, None, [(f"megatron={COEFFICIENT}", 0, "")]),
    ("mixtral-none", "mixtral", "none", 2, None, None, [("none", 0, ""), ("auto", 0, "")]),
    ("qwen2", "qwen2", "aux_loss", 2, None, None, [(f"megatron={COEFFICIENT}", 0, ""), ("auto", 0, NOTE + "hf=0.01")]),  # (one layer with experts: the same loss)
    ("qwen3", "qwen3", "aux_loss", 2, None, None, [(f"megatron={COEFFICIENT}", 0, ""), ("auto", 0, NOTE + "megatron=0.02")]),
    ("dots1", "dots1", "none", 2, None, None, [("none", 0, "bias ")]),
    ("dots1-balance", "dots1", "aux_loss", 2, None, None,
     [(f"megatron={COEFFICIENT}", 0, ""), ("auto", 0, NOTE + "megatron=0.02"), (f"deepseek={COEFFICIENT}", 1, "megatron=0.02")]),
    ("dots1-sequence", "dots1", "seq_aux_loss", 2, None, None,
     [(f"megatron-seq={COEFFICIENT}", 0, ""), ("auto", 0, NOTE + "megatron-seq=0.02"),
      (f"deepseek={COEFFICIENT}", 1, "megatron-seq=0.02")]),
    ("balance-doubled", "mixtral", "aux_loss", 2, twice, None, [(f"megatron={COEFFICIENT}", 1, "2 times --balance")]),
    ("softmax-first", "mixtral", "aux_loss", 2, set_of_routers(moe_router_pre_softmax=True), None,
     [(f"megatron={COEFFICIENT}", 1, "as if the gates of a token were not divided by their sum")]),
    ("logits-in-bf16", "mixtral", "aux_loss", 2, round_logits, None, [(f"megatron={COEFFICIENT}", 1, "")]),
    ("token-lost", "mixtral", "aux_loss", 2, detach_a_row, None, [(f"megatron={COEFFICIENT}", 1, "")]),
    ("no-shared-gate", "qwen2", "aux_loss", 2, no_shared_gate, None,
     [(f"megatron={COEFFICIENT}", 1, "as if the shared expert were not multiplied by its gate")]),
    ("experts-twice", "qwen3", "aux_loss", 2, None, scale_experts,
     [(f"megatron={COEFFICIENT}", 1, "the gradients of experts are 2 times as large")]),
]


def make(folder, case):
    """Writes two checkpoints, the micro-batches and the configuration of a case. Returns the loss and the norm."""
    name, kind, balance, micro, before, after, _ = case
    torch.manual_seed(1)
    theirs, ours = configurations(kind, balance)
    model, optimizer = build(theirs)
    save(folder / "iter_0000000", model, optimizer, 0)
    (folder / "config.json").write_text(json.dumps(ours))
    batches = [torch.randint(0, VOCAB, (2, LENGTH + 1)) for _ in range(micro)]
    for i, x in enumerate(batches):
        torch.save(x, folder / f"batch-{i}.pt")
    if before:
        before(model.module)
    if after:
        step = optimizer.step
        optimizer.step = lambda: (after(model.module), step())[1]
    seen = run_step(model, optimizer, batches)
    save(folder / "iter_0000001", model, optimizer, 1)
    return seen


def check(folder, loss, norm, micro, balance):
    command = ["pt-check", "-c", folder / "config.json", folder / "iter_0000000", folder / "iter_0000001", "-p", "fp32",
               "--loss", f"{loss:.7g}", "--grad-norm", f"{norm:.7g}", "--clip", "1", "--lr", LR, "--beta2", "0.95",
               "--accumulation", micro, "--balance", balance, "--batch",
               *(folder / f"batch-{i}.pt" for i in range(micro))]
    out = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    (folder / f"check-{balance}").write_text(" ".join(map(str, command)) + "\n" + out.stdout + out.stderr)
    return out


def main():
    words = argparse.ArgumentParser()
    words.add_argument("--keep", type=Path)
    words.add_argument("names", nargs="*")
    options = words.parse_args()
    warnings.simplefilter("ignore")
    dist.init_process_group()
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        for case in CASES:
            if options.names and case[0] not in options.names:
                continue
            folder = (options.keep or Path(temporary)).resolve() / case[0]
            seen = make(folder, case)
            for balance, code, text in case[-1]:
                out = check(folder, *seen, case[3], balance)
                is_expected = out.returncode == code and text in out.stdout
                failed += not is_expected
                verdict = (out.stdout.splitlines() or out.stderr.splitlines() or [""])[-1]
                print(f"{'' if is_expected else 'NOT EXPECTED: '}{case[0]}, --balance {balance}: {verdict}", flush=True)
    dist.destroy_process_group()
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
