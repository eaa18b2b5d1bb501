/* Layouts for tests of law 1. */
#include "base/file.h"
#include "tests/support/layouts.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

/* ---- models ---------------------------------------------------------------------- */

/* Options of all runs, which those of a layout override. The gradient is clipped, and has several
 * buckets. */
static const char common[] =
	"context=16 dim=16 heads=4 layers=4 micro-batch=2 batch=8 warmup=2 lr=0.01 "
	"clip=0.5 eval-windows=5 eval-every=0 bucket=3000 threads=1 dp=1 ckpt-wait=yes "
	"loss-scale=6e4 loss-scale-window=2";

static const struct model_row {
	const char *name, *options;
} models[] = {
	{"gpt2", "arch=gpt2 dropout=0.1"},
	{"gpt2-untied", "arch=gpt2 tie=no heads=6 dim=24"},
	{"llama", "arch=llama kv-heads=2 ffn-dim=24"},
	{"llama-tied", "arch=llama tie=yes kv-heads=1 ffn-dim=24 layers=5 dropout=0.1"},
	/* heads of their own size, and biases of queries, keys and values only */
	{"qwen", "arch=llama kv-heads=2 head-dim=6 bias=qkv ffn-dim=24"},
	{"gpt2-heads", "arch=gpt2 heads=6 dim=24 head-dim=5 bias=qkv"},
	/* a window that is less than a chunk with cp=2 and more than one with cp=4, in layers 1 and 3 */
	{"llama-window",
		"arch=llama kv-heads=2 ffn-dim=24 sliding-window=7 sliding-window-from=1 sliding-window-skip=3"},
	/* norms of queries and keys, layers without positions */
	{"qwen3", "arch=llama kv-heads=2 head-dim=6 qk-norm=yes ffn-dim=24"},
	{"smollm3",
		"arch=llama tie=yes kv-heads=1 ffn-dim=24 nope-every=2 qk-norm=yes bias=attention sliding-window=9 sliding-window-skip=-2 dropout=0.1"},
	/* experts in every layer; with a dense first layer, a shared expert and groups */
	{"mixtral",
		"arch=llama kv-heads=2 experts=8 experts-per-token=2 expert-dim=12 router-z-loss=0.01 balance-loss=0.1"},
	{"qwen2-moe",
		"arch=llama kv-heads=2 bias=qkv ffn-dim=24 moe-every=2 moe-not=3 experts=6 experts-per-token=2 expert-dim=8 shared-expert-dim=12 shared-expert-gate=yes router-norm=no"},
	{"olmoe",
		"arch=llama kv-heads=2 qk-norm=yes qk-norm-all=yes experts=8 experts-per-token=3 expert-dim=8 router-norm=no balance-over=model"},
	{"qwen3-moe",
		"arch=llama kv-heads=2 head-dim=6 qk-norm=yes experts=8 experts-per-token=3 expert-dim=8 router-norm=no"},
	{"dots1",
		"arch=llama kv-heads=2 qk-norm=yes ffn-dim=24 moe-from=1 experts=8 experts-per-token=2 expert-dim=8 shared-expert-dim=8 router=sigmoid router-groups=4 router-top-groups=2 router-scale=2.5 balance-over=sequence router-bias=0.01"},
};

/* ---- the table ------------------------------------------------------------------- */

/* clang-format off */
const struct test_layout layouts[] = {
	/* one rank with several virtual ranks */
	{"gpt2", "threads=2"},
	{"gpt2", "recompute=full"},
	{"gpt2", "recompute=matmuls"},
	{"llama", "recompute=selective virtual=tp=2,cp=2 threads=2"},
	/* one technique */
	{"gpt2", "dp=2"},
	{"llama", "batch=6 dp=2"},
	{"gpt2", "dp=3"},
	{"gpt2", "dp=4"},
	{"llama-tied", "batch=10 dp=4"},
	{"gpt2", "fsdp=2 zero=1"},
	{"llama", "fsdp=2 zero=1 fsdp-kind=flat"},
	{"llama-tied", "fsdp=2 zero=2"},
	{"gpt2", "batch=6 fsdp=2 zero=2 fsdp-kind=flat"},
	{"gpt2", "fsdp=2 zero=3"},
	{"llama", "batch=6 fsdp=2 zero=3"},
	{"gpt2", "fsdp=3 zero=3 fsdp-kind=flat"},
	{"llama", "fsdp=4 zero=3 reshard-after-forward=no"},
	{"llama-tied", "fsdp=4 zero=3 reshard-after-forward=keep-last"},
	{"gpt2", "batch=10 fsdp=5 zero=3"},
	{"llama", "batch=16 fsdp=7 zero=3"},
	{"gpt2", "batch=18 fsdp=8 zero=2"},
	{"gpt2", "dp=2 fsdp=2 zero=3"},
	{"gpt2", "tp=2"},
	{"gpt2", "tp=2 sp=no"},
	{"gpt2", "tp=2 virtual=tp=4"},
	{"gpt2-untied", "tp=3"},
	{"gpt2-untied", "tp=2 virtual=tp=6 sp=no"},
	{"gpt2", "tp=4"},
	{"llama", "tp=4"},
	{"llama", "tp=4 sp=no"},
	{"llama-tied", "tp=4"},
	{"llama-tied", "tp=4 sp=no"},
	{"llama-tied", "tp=2 virtual=tp=4"},
	{"gpt2", "cp=2"},
	{"gpt2", "cp=2 cp-comm=gather"},
	{"llama", "cp=4"},
	{"llama", "cp=4 cp-comm=gather"},
	{"llama-tied", "cp=2 virtual=cp=4"},
	{"llama-tied", "cp=2 cp-comm=gather virtual=cp=4"},
	{"gpt2", "pp=2 pp-schedule=gpipe"},
	{"gpt2", "pp=2 pp-schedule=1f1b"},
	{"gpt2", "pp=2 pp-schedule=interleaved"},
	{"gpt2", "pp=2 pp-schedule=zb-h1"},
	{"llama-tied", "pp=3 pp-schedule=1f1b"},
	{"llama-tied", "pp=3 pp-schedule=zb-h1 recompute=full"},
	{"llama", "batch=10 pp=4 pp-schedule=zb-h1"},
	{"llama", "pp=4 pp-schedule=1f1b recompute=selective"},
	{"gpt2", "layers=8 batch=6 pp=3 pp-schedule=interleaved"},
	/* one micro-batch a step: of one rank alone, gradients take the place of activations */
	{"gpt2-untied", "batch=2 tile=2 offload=params"},
	{"llama-tied", "batch=2 pp=2 pp-schedule=1f1b recompute=selective"},
	{"qwen3", "batch=2 cp=2 zero=3 recompute=full dtype=bf16"},
	/* documents */
	{"gpt2", "packing=documents threads=2 recompute=selective"},
	{"gpt2", "packing=documents dp=2 tp=2 virtual=tp=2,cp=2 sp=no"},
	{"gpt2", "packing=documents cp=2 tp=2 recompute=full"},
	{"gpt2", "packing=documents pp=2 fsdp=2 zero=3 virtual=tp=2,cp=2 pp-schedule=zb-h1 recompute=matmuls"},
	{"llama", "packing=documents fsdp=2 zero=3 virtual=tp=2,cp=4"},
	{"llama", "packing=documents cp=4 tp=2 cp-comm=gather"},
	{"llama", "packing=documents pp=2 cp=2 virtual=tp=2,cp=4 pp-schedule=interleaved"},
	{"llama-tied", "packing=documents batch=6 pp=2 cp=2 tp=2 zero=1 dtype=bf16 pp-schedule=1f1b"},
	/* windows */
	{"llama", "sliding-window=5 threads=2 recompute=selective"},
	{"llama-window", "dp=2 tp=2 virtual=tp=2,cp=2"},
	{"llama-window", "cp=2 tp=2 recompute=full"},
	{"llama-window", "cp=4 fsdp=2 zero=3 cp-comm=gather"},
	{"llama-window", "pp=2 cp=2 virtual=tp=2,cp=4 pp-schedule=interleaved"},
	{"gpt2", "sliding-window=1 packing=documents cp=2 pp=2 pp-schedule=zb-h1"},
	{"llama-window", "packing=documents cp=2 tp=2 dtype=bf16 recompute=matmuls"},
	/* two and three techniques */
	{"llama", "cp=4 zero=3"},
	{"gpt2", "dp=2 tp=2"},
	{"gpt2-untied", "batch=6 fsdp=2 tp=3 zero=3"},
	{"llama-tied", "fsdp=2 tp=4 zero=3 sp=no"},
	{"llama", "cp=2 tp=4"},
	{"llama", "cp=4 tp=2 cp-comm=gather"},
	{"llama", "cp=2 tp=2 virtual=tp=4,cp=4"},
	{"llama-tied", "pp=2 tp=4 pp-schedule=interleaved layers=4"},
	{"gpt2", "dp=2 cp=2 tp=2"},
	{"llama", "fsdp=2 cp=2 tp=2 zero=3"},
	{"gpt2", "dp=2 fsdp=2 tp=2 zero=3"},
	/* large layers */
	{"llama", "fsdp=2 zero=3 tile=2"},
	{"gpt2", "batch=6 fsdp=2 tp=2 zero=3 tile=4"},
	{"llama-tied", "batch=6 fsdp=2 zero=3 tile=4 recompute=selective"},
	{"gpt2-untied", "batch=10 dp=2 fsdp=2 zero=3 tile=2 virtual=tp=2"},
	{"gpt2", "zero=3 tile=4 offload=all"},
	{"gpt2-untied", "dp=2 tile=2 offload=all"},
	{"gpt2", "pp=2 zero=0 tile=2 offload=params pp-schedule=1f1b"},
	{"llama-tied", "pp=2 fsdp=2 zero=3 tile=4 recompute=full dtype=bf16 pp-schedule=zb-h1"},
	{"llama", "cp=2 tp=2 zero=3 tile=4 offload=all"},
	/* matmul weights gathered in 16 bits */
	{"llama", "fsdp=2 zero=3 dtype=bf16"},
	{"llama", "fsdp=2 zero=3 dtype=bf16 gather-dtype=fp32"},
	{"gpt2-untied", "batch=6 fsdp=3 zero=3 dtype=bf16 fsdp-kind=flat"},
	{"gpt2", "batch=10 fsdp=4 zero=3 dtype=bf16 reshard-after-forward=no"},
	{"llama-tied", "fsdp=2 zero=3 dtype=bf16 reshard-after-forward=keep-last"},
	{"gpt2-untied", "batch=6 fsdp=2 zero=3 dtype=bf16 offload=params"},
	{"llama", "dp=2 fsdp=2 zero=3 dtype=bf16"},
	{"llama", "fsdp=2 tp=2 zero=3 dtype=bf16 fsdp-kind=flat"},
	{"gpt2-untied", "batch=6 pp=2 fsdp=2 zero=3 dtype=bf16 pp-schedule=1f1b"},
	{"llama", "fsdp=4 zero=3 dtype=fp16"},
	{"llama", "fsdp=2 cp=2 zero=3 dtype=fp16 fsdp-kind=flat recompute=full"},
	{"llama", "batch=6 fsdp=2 zero=3 dtype=fp16 tile=2"},
	/* pieces of rows: uneven, fewer rows than pieces, several pieces a rank */
	{"gpt2-untied", "batch=4 micro-batch=1 cp=2 tp=3 virtual=tp=6,cp=4"},
	{"gpt2-untied", "batch=4 micro-batch=1 tp=3 virtual=tp=6,cp=4 sp=no recompute=full"},
	{"gpt2-untied", "batch=6 micro-batch=3 tp=2 virtual=tp=6 async-tp=no dtype=bf16"},
	{"llama", "batch=6 micro-batch=3 cp=2 tp=2 virtual=tp=4,cp=4 recompute=full dtype=float8 float8-skip-ends=no"},
	{"llama", "batch=6 micro-batch=3 tp=4 virtual=cp=4 sp=no dtype=float8 float8-skip-ends=no"},
	/* float8 weights gathered in 8 bits */
	{"llama", "fsdp=2 tp=2 zero=3 dtype=float8 float8-skip-ends=no fsdp-kind=flat recompute=matmuls"},
	{"gpt2-untied", "batch=6 pp=2 fsdp=2 zero=3 dtype=float8 float8-skip-ends=no reshard-after-forward=no pp-schedule=zb-h1"},
	/* the remaining pairs of techniques */
	{"gpt2-untied", "batch=6 dp=2 cp=2 zero=3 fsdp-kind=flat reshard-after-forward=no optimizer=sgd recompute=selective"},
	{"gpt2-untied", "pp=2 cp=2 zero=1 cp-comm=gather pp-schedule=zb-h1 recompute=full"},
	{"llama", "pp=2 cp=2 zero=1 pp-schedule=1f1b optimizer=muon recompute=matmuls"},
	{"llama-tied", "batch=6 pp=2 fsdp=2 zero=3 fsdp-kind=flat reshard-after-forward=no pp-schedule=interleaved recompute=full"},
	{"gpt2", "pp=2 cp=2 tp=2 zero=2 fsdp-kind=flat cp-comm=gather pp-schedule=gpipe recompute=matmuls residual-dtype=bf16"},
	{"gpt2", "batch=6 pp=2 fsdp=2 tp=2 zero=3 fsdp-kind=flat reshard-after-forward=keep-last pp-schedule=zb-h1 recompute=matmuls residual-dtype=bf16"},
	{"gpt2", "pp=2 cp=2 tp=2 zero=1 sp=no cp-comm=gather pp-schedule=interleaved recompute=selective"},
	{"gpt2", "pp=2 cp=2 tp=2 zero=3 fsdp-kind=flat reshard-after-forward=no pp-schedule=1f1b recompute=full"},
	{"gpt2", "pp=2 dp=2 fsdp=2 zero=3 fsdp-kind=flat reshard-after-forward=no pp-schedule=gpipe recompute=selective"},
	{"gpt2-untied", "batch=6 pp=2 fsdp=2 tp=2 zero=1 fsdp-kind=flat sp=no pp-schedule=gpipe recompute=full residual-dtype=bf16"},
	{"gpt2-untied", "batch=6 pp=2 dp=2 tp=2 sp=no pp-schedule=zb-h1"},
	{"gpt2-untied", "batch=6 dp=2 cp=2 tp=2 zero=1 cp-comm=gather recompute=full"},
	{"gpt2-untied", "batch=6 pp=2 fsdp=2 tp=2 zero=2 fsdp-kind=flat sp=no pp-schedule=1f1b recompute=selective residual-dtype=bf16"},
	{"llama", "pp=2 cp=2 tp=2 zero=3 fsdp-kind=flat reshard-after-forward=keep-last cp-comm=gather pp-schedule=interleaved recompute=selective"},
	{"llama-tied", "batch=6 pp=2 dp=2 cp=2 zero=3 fsdp-kind=flat reshard-after-forward=no cp-comm=gather pp-schedule=1f1b recompute=matmuls"},
	{"llama-tied", "pp=2 cp=2 tp=2 zero=2 fsdp-kind=flat sp=no pp-schedule=zb-h1 recompute=full residual-dtype=bf16"},
	{"llama-tied", "pp=2 cp=2 tp=2 zero=3 reshard-after-forward=keep-last sp=no pp-schedule=gpipe"},
	{"llama-tied", "batch=6 pp=2 dp=2 cp=2 zero=2 pp-schedule=interleaved"},
	{"llama-tied", "batch=6 pp=2 fsdp=2 tp=2 zero=3 reshard-after-forward=no sp=no pp-schedule=zb-h1 recompute=matmuls"},
	{"llama-tied", "batch=10 pp=2 dp=2 fsdp=2 zero=3 reshard-after-forward=keep-last pp-schedule=1f1b recompute=full"},
	/* also with reduced precision and offload */
	{"gpt2-untied", "pp=2 pp-schedule=1f1b offload=all dtype=bf16 recompute=selective"},
	{"gpt2-untied", "pp=2 pp-schedule=gpipe offload=optimizer dtype=fp16 recompute=full"},
	{"llama", "cp=2 zero=3 fsdp-kind=flat reshard-after-forward=no cp-comm=gather offload=grads dtype=fp16 recompute=full"},
	{"llama-tied", "cp=2 zero=3 fsdp-kind=flat reshard-after-forward=keep-last offload=all dtype=float8 recompute=matmuls"},
	{"gpt2-untied", "batch=6 dp=2 tp=2 async-tp=no offload=all dtype=fp16 optimizer=muon recompute=matmuls residual-dtype=bf16"},
	{"gpt2-untied", "pp=2 tp=2 sp=no pp-schedule=zb-h1 async-tp=no offload=params dtype=fp16 optimizer=sgd recompute=full"},
	{"gpt2-untied", "pp=2 cp=2 zero=1 fsdp-kind=flat pp-schedule=1f1b dtype=fp16 recompute=selective residual-dtype=bf16"},
	{"gpt2-untied", "pp=2 cp=2 zero=1 pp-schedule=zb-h1 dtype=bf16 recompute=matmuls"},
	{"llama", "pp=2 cp=2 zero=2 fsdp-kind=flat cp-comm=gather pp-schedule=interleaved offload=grads dtype=fp16 optimizer=sgd recompute=selective residual-dtype=bf16"},
	{"llama-tied", "pp=2 fsdp=2 zero=3 reshard-after-forward=keep-last pp-schedule=zb-h1 recompute=selective offload=grads dtype=fp16 optimizer=muon"},
	{"gpt2", "batch=6 pp=2 fsdp=2 tp=2 zero=1 fsdp-kind=flat pp-schedule=1f1b async-tp=no offload=grads dtype=float8 optimizer=sgd recompute=matmuls residual-dtype=bf16"},
	{"gpt2", "pp=2 cp=2 tp=2 zero=3 fsdp-kind=flat reshard-after-forward=keep-last cp-comm=gather pp-schedule=gpipe async-tp=no offload=all dtype=bf16 optimizer=sgd recompute=matmuls"},
	{"gpt2-untied", "batch=6 dp=2 cp=2 tp=2 zero=2 fsdp-kind=flat async-tp=no offload=optimizer dtype=bf16 residual-dtype=bf16"},
	{"llama", "batch=6 pp=2 dp=2 cp=2 zero=2 cp-comm=gather pp-schedule=gpipe offload=optimizer dtype=float8 optimizer=muon recompute=full"},
	{"llama", "pp=2 cp=2 tp=2 sp=no pp-schedule=interleaved offload=params dtype=float8 recompute=matmuls"},
	{"llama-tied", "batch=6 pp=2 fsdp=2 tp=2 zero=3 fsdp-kind=flat reshard-after-forward=no sp=no pp-schedule=interleaved async-tp=no offload=grads dtype=bf16 optimizer=muon residual-dtype=bf16"},
	{"llama-tied", "pp=2 fsdp=2 tp=2 zero=3 fsdp-kind=flat reshard-after-forward=no sp=no pp-schedule=zb-h1 async-tp=no dtype=float8 recompute=selective"},
	/* zero bubble with two stages per rank */
	{"llama-tied", "pp=2 fsdp=2 zero=3 tile=4 recompute=full pp-schedule=zbv"},
	{"llama-tied", "layers=8 batch=16 pp=4 pp-schedule=zbv"},
	{"llama-tied", "batch=6 pp=2 dp=2 tp=2 pp-schedule=zbv optimizer=muon"},
	{"gpt2", "layers=8 batch=10 pp=4 pp-schedule=interleaved-zb"},
	{"llama", "batch=6 pp=2 dp=2 cp=2 zero=3 fsdp-kind=flat reshard-after-forward=keep-last pp-schedule=zbv recompute=full offload=all dtype=bf16 residual-dtype=bf16 optimizer=sgd"},
	{"llama", "batch=10 pp=2 dp=2 cp=2 zero=3 fsdp-kind=flat reshard-after-forward=no pp-schedule=interleaved-zb recompute=full offload=grads dtype=bf16 residual-dtype=bf16 optimizer=sgd"},
	{"gpt2", "batch=6 pp=2 cp=2 tp=2 zero=1 sp=no cp-comm=gather pp-schedule=zbv recompute=matmuls async-tp=no offload=grads dtype=fp16 optimizer=muon"},
	{"gpt2", "batch=10 pp=2 cp=2 tp=2 zero=3 reshard-after-forward=keep-last cp-comm=gather pp-schedule=interleaved-zb recompute=matmuls async-tp=no offload=params dtype=float8 optimizer=muon"},
	{"gpt2", "pp=2 fsdp=2 tp=2 zero=2 fsdp-kind=flat pp-schedule=zbv recompute=selective dtype=float8"},
	{"llama", "pp=2 fsdp=2 tp=2 zero=2 sp=no pp-schedule=interleaved-zb recompute=selective dtype=fp16"},
	{"gpt2", "pp=2 fsdp=2 zero=1 pp-schedule=interleaved-zb recompute=matmuls dtype=fp16"},
	{"llama", "pp=2 cp=2 zero=3 reshard-after-forward=no pp-schedule=zbv recompute=full dtype=bf16"},
	/* terms of the loss */
	{"gpt2-untied", "tp=3 label-smoothing=0.1"},
	{"llama", "fsdp=2 cp=2 tp=2 zero=3 label-smoothing=0.2 z-loss=0.01"},
	{"gpt2", "pp=2 dp=2 label-smoothing=0.1 z-loss=0.01 dtype=bf16 pp-schedule=zb-h1"},
	/* heads of their own size */
	{"qwen", "tp=4 sp=no"},
	{"qwen", "cp=2 tp=2 virtual=tp=4,cp=4 dtype=bf16 recompute=selective"},
	{"gpt2-heads", "batch=6 pp=2 fsdp=2 zero=3 fsdp-kind=flat pp-schedule=zb-h1 recompute=matmuls"},
	{"qwen", "fsdp=2 tp=2 zero=2 optimizer=muon recompute=full"},
	{"gpt2-heads", "batch=6 tp=3 zero=1 dtype=float8 float8-skip-ends=no"},
	{"qwen", "zero=3 fsdp=2 tile=2 offload=all"},
	/* frozen tensors, and groups of learning rates */
	{"gpt2-untied", "batch=6 dp=2 freeze=tok_|pos_|layers\\.[0-2]\\. lr-scale-of=^output=0.1"},
	{"gpt2", "fsdp=2 zero=1 freeze=layers\\.[12]\\.|norm"},
	{"gpt2", "pp=2 tp=2 pp-schedule=1f1b freeze=tok_ recompute=selective"},
	{"llama", "batch=6 fsdp=2 zero=2 freeze=^(?!output) lr-scale-of=output=3"},
	{"llama", "pp=2 cp=2 virtual=tp=2,cp=2 pp-schedule=zb-h1 freeze=tok_|layers\\.[0-2]\\. recompute=full residual-dtype=bf16"},
	{"llama-tied", "fsdp=2 tp=2 zero=3 fsdp-kind=flat dtype=bf16 freeze=layers\\.[01]\\.|wq optimizer=muon lr-scale-of=w2=0.5"},
	{"qwen", "fsdp=2 zero=3 tile=2 offload=all freeze=tok_|layers\\.0|bias"},
	{"gpt2-untied", "batch=10 dp=2 fsdp=2 zero=3 freeze=output|w1 optimizer=sgd offload=optimizer"},
	{"gpt2-untied", "pp=2 tp=2 sp=no pp-schedule=interleaved dtype=float8 freeze=(tok|pos)_|layers\\.[01]\\. optimizer=sgd lr-scale-of=norm=2"},
	{"llama", "fsdp=2 cp=2 zero=2 offload=grads dtype=fp16 freeze=layers\\.[013]\\."},
	/* experts */
	{"mixtral", "recompute=full threads=2"},
	{"mixtral", "batch=6 fsdp=2 zero=3 tile=2 recompute=selective"},
	{"dots1", "batch=10 dp=2 fsdp=2 zero=3 tile=4 dtype=bf16"},
	{"qwen2-moe", "pp=2 zero=0 tile=2 offload=params pp-schedule=1f1b"},
	{"qwen3-moe", "batch=6 pp=2 tp=2 fsdp=2 zero=3 tile=4 pp-schedule=zb-h1 offload=all"},
	{"mixtral", "batch=6 dp=2 cp=2 tp=2 sp=no balance-over=model"},
	{"qwen3-moe", "fsdp=2 cp=2 zero=3 balance-over=model balance-loss=1 recompute=matmuls"},
	{"dots1", "dp=2 tp=2 router-bias-center=yes dtype=fp16"},
	{"dots1", "fsdp=2 cp=2 zero=1 balance-over=micro-batch balance-loss=1"},
	{"dots1", "fsdp=2 zero=2 pp=2 pp-schedule=1f1b balance-loss=0"},
	{"olmoe", "fsdp=2 cp=2 zero=3 dtype=bf16 recompute=selective"},
	{"olmoe", "pp=2 dp=2 pp-schedule=zb-h1 balance-over=sequence recompute=full"},
	{"qwen2-moe", "tp=2 virtual=tp=4,cp=2 recompute=selective"},
	{"qwen2-moe", "pp=2 cp=2 zero=3 pp-schedule=zb-h1 recompute=full dtype=bf16"},
	{"qwen2-moe", "batch=6 dp=2 tp=2 sp=no async-tp=no recompute=matmuls"},
	{"mixtral", "virtual=tp=2,cp=2 recompute=matmuls recompute-every=2"},
	{"mixtral", "dp=2"},
	{"dots1", "batch=10 dp=4"},
	{"mixtral", "fsdp=2 zero=1"},
	{"qwen3-moe", "batch=6 fsdp=2 zero=2"},
	{"mixtral", "fsdp=3 zero=3 batch=10"},
	{"dots1", "fsdp=2 zero=3 fsdp-kind=flat recompute=selective"},
	{"mixtral", "dp=2 fsdp=2 zero=3 reshard-after-forward=no"},
	{"mixtral", "tp=2"},
	{"dots1", "tp=2 sp=no virtual=tp=4"},
	{"qwen3-moe", "tp=4 dtype=bf16 recompute=selective"},
	{"mixtral", "tp=2 async-tp=no dtype=bf16"},
	{"mixtral", "cp=2"},
	{"dots1", "cp=4 cp-comm=gather"},
	{"mixtral", "pp=2 pp-schedule=1f1b"},
	{"dots1", "pp=2 pp-schedule=interleaved recompute=full"},
	{"qwen3-moe", "pp=2 pp-schedule=zb-h1"},
	{"dots1", "pp=2 pp-schedule=zbv recompute=selective dtype=bf16"},
	{"mixtral", "pp=2 pp-schedule=gpipe tp=2 recompute=matmuls"},
	{"dots1", "batch=6 fsdp=2 cp=2 tp=2 zero=3"},
	{"mixtral", "cp=2 tp=2 virtual=tp=4,cp=4 recompute=full dtype=fp16"},
	{"qwen3-moe", "batch=6 pp=2 fsdp=2 zero=3 dtype=bf16 pp-schedule=interleaved-zb recompute=full residual-dtype=bf16"},
	{"dots1", "fsdp=2 zero=3 offload=all dtype=bf16"},
	{"mixtral", "batch=2 offload=params"},
	{"qwen3-moe", "dp=2 offload=grads optimizer=sgd"},
	{"dots1", "batch=2 cp=2 zero=3 recompute=full packing=documents"},
	{"mixtral", "dp=2 tp=2 virtual=tp=2,cp=2 sp=no packing=documents sliding-window=7"},
	{"dots1", "pp=2 tp=2 sp=no dtype=fp16 pp-schedule=zb-h1 recompute=matmuls residual-dtype=bf16 dropout=0.1"},
	{"mixtral", "fsdp=2 tp=2 zero=3 freeze=router|layers\\.1\\.experts.w2|layers\\.0 lr-scale-of=w13=0.5"},
	{"dots1", "freeze=tok_|layers\\.[01]\\. threads=2"},
	/* experts that ranks divide, each with memory for all rows that there may be */
	{"mixtral", "batch=6 dp=2 cp=2 tp=2 expert-capacity=0.75"},
	{"dots1", "fsdp=2 zero=3 ep=2 expert-room=4 recompute=full dtype=bf16 expert-capacity=1"},
	{"qwen2-moe", "pp=2 tp=2 sp=no pp-schedule=zb-h1 recompute=selective expert-capacity=1"},
	{"qwen3-moe", "dp=2 cp=2 ep=4 expert-room=4 recompute=matmuls expert-capacity=0.5"},
	{"mixtral", "dp=2 ep=2 expert-room=4"},
	{"dots1", "batch=10 dp=4 ep=4 expert-room=4"},
	{"dots1", "batch=10 dp=2 fsdp=2 zero=3 tile=2 ep=4 expert-room=4"},
	{"qwen2-moe", "batch=10 dp=4 ep=2 expert-room=4 recompute=full"},
	{"qwen2-moe", "batch=6 fsdp=3 zero=3 ep=3 expert-room=4 dtype=bf16"},
	{"mixtral", "fsdp=4 zero=3 ep=2 expert-room=4 fsdp-kind=flat"},
	{"dots1", "batch=10 fsdp=4 zero=1 ep=4 expert-room=4 recompute=selective"},
	{"qwen3-moe", "batch=10 fsdp=4 zero=2 ep=2 expert-room=4 optimizer=sgd"},
	{"mixtral", "batch=18 dp=2 fsdp=4 zero=3 ep=2 expert-room=4 reshard-after-forward=no"},
	{"dots1", "dp=2 fsdp=2 zero=3 ep=4 expert-room=4 dtype=fp16 recompute=matmuls"},
	{"mixtral", "batch=22 fsdp=8 zero=3 ep=8 expert-room=4"},
	{"qwen3-moe", "dp=2 tp=2 ep=2 expert-room=4 sp=no"},
	{"dots1", "batch=6 fsdp=2 tp=2 zero=3 ep=2 expert-room=4 virtual=tp=4 recompute=matmuls"},
	{"mixtral", "cp=2 fsdp=2 zero=3 ep=4 expert-room=4 balance-over=sequence"},
	{"qwen3-moe", "batch=6 dp=2 cp=2 ep=2 expert-room=4 virtual=cp=4 dtype=bf16"},
	{"dots1", "batch=10 pp=2 dp=2 ep=2 expert-room=4 pp-schedule=1f1b"},
	{"qwen2-moe", "pp=2 fsdp=2 zero=3 ep=2 expert-room=4 pp-schedule=zb-h1 recompute=selective"},
	{"mixtral", "batch=10 pp=2 fsdp=2 cp=2 zero=2 ep=4 expert-room=4 pp-schedule=interleaved"},
	{"qwen3-moe", "fsdp=2 zero=3 ep=2 expert-room=4 offload=all dtype=bf16"},
	{"dots1", "batch=14 dp=2 fsdp=2 zero=2 ep=2 expert-room=4 offload=grads"},
	{"mixtral", "dp=2 ep=2 expert-room=4 offload=params packing=documents"},
	{"mixtral", "fsdp=2 zero=3 ep=2 expert-room=4 freeze=router|layers\\.1\\.experts.w2|layers\\.0"},
	/* experts and Muon: a matrix of an expert on one rank */
	{"mixtral", "dp=2 ep=2 expert-room=4 optimizer=muon"},
	{"dots1", "batch=10 fsdp=2 tp=2 zero=3 ep=2 expert-room=4 virtual=tp=4 optimizer=muon"},
	{"qwen2-moe", "pp=2 fsdp=2 cp=2 zero=2 dtype=bf16 pp-schedule=1f1b optimizer=muon"},
	{"qwen3-moe", "batch=6 cp=2 fsdp=2 tp=2 zero=3 fsdp-kind=flat sp=no ep=4 expert-room=4 offload=grads optimizer=muon"},
	/* the balance of experts over all layers with a pipeline, and over the batch before */
	{"olmoe", "pp=2 pp-schedule=gpipe balance-loss=1"},
	{"olmoe", "batch=10 pp=4 pp-schedule=1f1b balance-loss=1 recompute=full"},
	{"olmoe", "pp=2 fsdp=2 cp=2 zero=3 pp-schedule=zb-h1 balance-loss=1 dtype=bf16"},
	{"mixtral", "batch=6 pp=2 dp=2 tp=2 sp=no pp-schedule=zbv balance-over=model balance-loss=1"},
	{"dots1", "pp=2 fsdp=2 cp=2 zero=2 ep=4 expert-room=4 pp-schedule=interleaved balance-over=model balance-loss=1"},
	{"mixtral", "batch=10 dp=4 ep=4 expert-room=4 balance-over=batch balance-loss=1"},
	{"qwen3-moe", "pp=2 cp=2 tp=2 zero=1 pp-schedule=interleaved-zb balance-over=batch balance-loss=1 dtype=fp16"},
	{"dots1", "batch=6 fsdp=3 zero=3 balance-over=batch balance-loss=1 recompute=full"},
	{"mixtral", "tp=2 batch=6 balance-over=batch balance-loss=1"},
	/* norms of queries and keys, which all slices share */
	{"qwen3", "tp=4"},
	{"qwen3", "tp=2 sp=no virtual=tp=4 recompute=selective"},
	{"qwen3", "batch=6 cp=2 tp=2 virtual=tp=4,cp=4 dtype=bf16 recompute=matmuls"},
	{"qwen3", "cp=2 cp-comm=gather fsdp=2 zero=3 recompute=full packing=documents"},
	{"qwen3", "pp=2 tp=2 pp-schedule=zb-h1 dtype=float8 float8-skip-ends=no"},
	{"smollm3", "pp=2 cp=2 virtual=tp=2,cp=2 pp-schedule=zb-h1 recompute=matmuls dtype=float8"},
	{"smollm3", "pp=2 fsdp=2 zero=3 fsdp-kind=flat tile=2 pp-schedule=interleaved dtype=fp16 optimizer=muon"},
	{"smollm3", "batch=6 fsdp=2 tp=2 zero=3 offload=all residual-dtype=bf16 dtype=bf16"},
	{"qwen3", "batch=6 tp=2 cp=2 freeze=norm|layers\\.0 virtual=tp=4 lr-scale-of=wq=0.5"},
	/* several leaves, in one round of one rank */
	{"gpt2", "batch=2 zero=2 virtual=cp=2"},
	{"llama-tied", "batch=2 tp=2 zero=3 virtual=cp=2"},
};
/* clang-format on */
const int n_layouts = ARRAY_LEN(layouts);

/* ---- options --------------------------------------------------------------------- */

/* Appends words `key=value` as lines. */
static void add_lines(struct str *text, const char *words)
{
	for (; *words; words++)
		str_putc(text, *words == ' ' ? '\n' : *words);
	str_putc(text, '\n');
}

static const char *model_options(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(models); i++)
		if (!strcmp(models[i].name, name))
			return models[i].options;
	die(EX_USAGE, "no model is called %s", name);
}

int layout_ranks(const struct train_opts *o)
{
	int64_t n = 1;
	for (int a = 0; a < N_AXES; a++)
		n *= o->axis[a];
	return (int)n;
}

/* Large enough for every text of the tests. */
enum { VOCABULARY = 14 };

static int check(const struct train_opts *o, struct err *e)
{
	struct model m;
	if (options_model_init(o, &m, VOCABULARY, e))
		return -1;
	int rc = layout_check(o, &m, e);
	model_release(&m);
	return rc;
}

bool layout_can_deal(const struct train_opts *o)
{
	struct train_opts dealt = *o;
	struct err e = {0};
	dealt.deal = DEAL_SPEED;
	return !check(&dealt, &e);
}

static const char *device_asked(void)
{
	const char *asked = getenv("PT_TEST_DEVICE");
	return asked ? asked : "cpu";
}

int layout_options(const struct test_layout *l, struct train_opts *o, struct err *e)
{
	struct str text = {0};
	str_printf(&text, "steps=%d\n", LAYOUT_STEPS);
	add_lines(&text, common);
	add_lines(&text, model_options(l->model));
	add_lines(&text, l->options);
	str_printf(&text, "device=%s\n", device_asked());
	if (strstr(l->options, "offload=") && strcmp(device_asked(), "cuda"))
		str_printf(&text, "offload-to=%s\n", file_temporary_directory());
	int rc = opts_from_text(&train_program, o, text.s, false, e);
	str_free(&text);
	if (rc || options_check(o, e) || layout_resolve(o, layout_ranks(o), e))
		return -1;
	return check(o, e);
}

void layout_arithmetic(const struct train_opts *o, struct str *text)
{
	options_print_saved(o, text);
}

void layout_control(const char *arithmetic, struct train_opts *o)
{
	struct err e = {0};
	struct str text = {0};
	str_printf(&text, "%sdp=1\nthreads=1\nckpt-wait=yes\ndevice=%s\n", arithmetic,
		device_asked());
	if (opts_from_text(&train_program, o, text.s, false, &e) || options_check(o, &e))
		die_err(&e);
	str_free(&text);
}

/* ---- techniques ------------------------------------------------------------------ */

#define NAME(name, text, group) text,
const char *const technique_names[] = {TECHNIQUES(NAME)};
#undef NAME
#define GROUP(name, text, group) group,
static const int groups[] = {TECHNIQUES(GROUP)};
#undef GROUP

static uint64_t bit(enum technique t)
{
	return UINT64_C(1) << t;
}

static uint64_t pipeline_technique(const struct train_opts *o)
{
	static const enum technique of[SCHEDULE_KINDS] = {
		[SCHEDULE_GPIPE] = TECH_GPIPE,
		[SCHEDULE_1F1B] = TECH_1F1B,
		[SCHEDULE_INTERLEAVED] = TECH_INTERLEAVED,
		[SCHEDULE_ZB_H1] = TECH_ZB_H1,
		[SCHEDULE_INTERLEAVED_ZB] = TECH_INTERLEAVED_ZB,
		[SCHEDULE_ZBV] = TECH_ZBV,
	};
	return o->resolved.degree[AXIS_PP] > 1 ? bit(of[o->pp_schedule]) : 0;
}

static uint64_t store_techniques(const struct train_opts *o)
{
	uint64_t t = 0;
	int ranks = layout_data_ranks(o);
	if (o->resolved.degree[AXIS_DP] > 1)
		t |= bit(TECH_DP);
	if (o->resolved.degree[AXIS_FSDP] * o->resolved.degree[AXIS_CP] > 1 && o->zero)
		t |= bit((enum technique)(TECH_ZERO1 + o->zero - 1));
	if (o->zero && o->fsdp_kind == FSDP_FLAT)
		t |= bit(TECH_FLAT);
	if (o->zero == 3 && o->reshard == RESHARD_NO)
		t |= bit(TECH_RESHARD_NO);
	if (o->zero == 3 && o->reshard == RESHARD_KEEP_LAST)
		t |= bit(TECH_KEEP_LAST);
	if (layout_micro_batches(o) % ranks)
		t |= bit(TECH_UNEVEN);
	if (o->offload)
		t |= bit(offloads_params((enum offload)o->offload) ? TECH_OFF_PARAMS
								   : TECH_OFF_STATE);
	if (offloads_grads((enum offload)o->offload))
		t |= bit(TECH_OFF_GRADS);
	return t;
}

static uint64_t model_techniques(const struct train_opts *o)
{
	struct err e = {0};
	struct model m;
	if (options_model_init(o, &m, VOCABULARY, &e))
		die_err(&e);
	uint64_t t = bit(o->model.arch == ARCH_LLAMA ? TECH_LLAMA : TECH_GPT2) |
		     bit(m.tie ? TECH_TIED : TECH_UNTIED);
	if (m.c.kv_heads < m.c.heads)
		t |= bit(TECH_GROUPED);
	if (o->dtype)
		t |= bit((enum technique)(TECH_BF16 + o->dtype - 1));
	if (o->optimizer == OPTIMIZER_SGD)
		t |= bit(TECH_SGD);
	if (o->optimizer == OPTIMIZER_MUON)
		t |= bit(TECH_MUON);
	model_release(&m);
	return t;
}

uint64_t layout_techniques(const struct train_opts *o)
{
	uint64_t t = model_techniques(o) | store_techniques(o) | pipeline_technique(o);
	if (o->resolved.degree[AXIS_TP] > 1)
		t |= bit(o->sp ? TECH_SP : TECH_NO_SP);
	if (o->resolved.degree[AXIS_CP] > 1)
		t |= bit(o->cp_comm == CP_GATHER ? TECH_GATHER : TECH_RING);
	if (o->resolved.degree[AXIS_TP] > 1 && !o->async_tp)
		t |= bit(TECH_NO_ASYNC);
	if (o->recompute)
		t |= bit((enum technique)(TECH_SELECTIVE + o->recompute - 1));
	if (o->residual_dtype)
		t |= bit(TECH_RESIDUAL);
	return t;
}

bool techniques_meet(enum technique a, enum technique b)
{
	uint64_t both = bit(a) | bit(b);
	bool resharding = both & (bit(TECH_RESHARD_NO) | bit(TECH_KEEP_LAST));
	bool fewer = both & (bit(TECH_ZERO1) | bit(TECH_ZERO2));
	bool grouped_gpt2 = both == (bit(TECH_GROUPED) | bit(TECH_GPT2));
	bool rest = both & bit(TECH_OFF_PARAMS) &&
		    both & (bit(TECH_ZERO1) | bit(TECH_ZERO2) | bit(TECH_RESHARD_NO));
	return groups[a] != groups[b] && !(resharding && fewer) && !grouped_gpt2 && !rest;
}

/* ---- random layouts -------------------------------------------------------------- */

/* A sequence of random choices. */
struct dice {
	uint64_t seed;
	int64_t at;
};

static int roll(struct dice *d, int n)
{
	return (int)(test_uniform(d->seed, d->at++) * n);
}

/* Appends one of the comma-separated words; "" adds nothing. */
static void choose(struct dice *d, struct str *out, const char *words)
{
	int n = 1;
	for (const char *p = words; *p; p++)
		n += *p == ',';
	for (n = roll(d, n); n > 0; n--)
		words = strchr(words, ',') + 1;
	size_t len = strcspn(words, ",");
	if (len && out->len)
		str_putc(out, ' ');
	str_add(out, words, len);
}

/* Assigns the prime factors of the number of ranks to axes. */
static void roll_degrees(struct dice *d, struct str *out, int max_ranks)
{
	int degree[N_AXES] = {1, 1, 1, 1, 1}, ranks = 1 + roll(d, max_ranks);
	for (int p = 2; p <= ranks; p++)
		for (; ranks % p == 0; ranks /= p)
			degree[roll(d, N_AXES)] *= p;
	for (int a = 0; a < N_AXES; a++)
		if (degree[a] > 1)
			str_printf(out, "%s%s=%d", out->len ? " " : "", axis_names[a],
				degree[a]);
}

static bool has_experts(const char *model)
{
	return strstr(model_options(model), "experts=");
}

bool layout_has_experts(const struct test_layout *l)
{
	return has_experts(l->model);
}

/* Appends options that change the bits of a run. */
static void roll_arithmetic(struct dice *d, struct str *out, bool experts)
{
	choose(d, out, ",batch=2,batch=4,batch=6,batch=10,batch=14,batch=22");
	choose(d, out, ",,layers=5,layers=8");
	choose(d, out,
		",,,virtual=tp=2,virtual=cp=2,virtual=tp=4;cp=2,virtual=tp=2;cp=4");
	choose(d, out, ",,,,freeze=(tok|pos)_|layers\\.[01]\\.,freeze=norm|w1");
	choose(d, out, ",,,,dtype=bf16,dtype=fp16,dtype=float8");
	choose(d, out, ",,residual-dtype=bf16");
	choose(d, out, ",,optimizer=sgd,optimizer=muon,optimizer=muon");
	choose(d, out, ",,packing=documents");
	if (!experts)
		return;
	choose(d, out, ",,experts-per-token=1,experts-per-token=2,experts-per-token=3");
	choose(d, out,
		",balance-loss=0,balance-over=micro-batch;balance-loss=1,"
		"balance-over=sequence;balance-loss=0.5,balance-over=model;balance-loss=0.5,"
		"balance-over=batch;balance-loss=0.5");
	choose(d, out, ",,router-z-loss=0.1");
	choose(d, out, ",,shared-expert-dim=8");
	choose(d, out, ",,router=sigmoid,router=sigmoid;router-bias=0.02");
}

/* Appends options that change no bit: who computes what, and how. */
static void roll_layout(struct dice *d, struct str *out, bool experts, int max_ranks)
{
	roll_degrees(d, out, max_ranks);
	if (experts)
		choose(d, out, ",ep=2,ep=2,ep=3,ep=4,ep=4,ep=6,ep=8,ep=8");
	if (strstr(out->s ? out->s : "", " ep="))
		str_puts(out, " expert-room=8"); /* memory for all rows that may arrive */
	choose(d, out, ",,zero=0,zero=1,zero=2,zero=3");
	choose(d, out, ",fsdp-kind=flat");
	choose(d, out, ",,reshard-after-forward=no,reshard-after-forward=keep-last");
	choose(d, out, ",sp=no");
	choose(d, out, ",cp-comm=gather");
	choose(d, out,
		",pp-schedule=gpipe,pp-schedule=interleaved,pp-schedule=zb-h1,"
		"pp-schedule=interleaved-zb,pp-schedule=zbv");
	choose(d, out, ",,pp-split=even");
	choose(d, out, ",,recompute=selective,recompute=matmuls,recompute=full");
	choose(d, out, ",,threads=2");
	choose(d, out, ",,bucket=0,bucket=20000");
	choose(d, out, ",async-tp=no");
	choose(d, out, ",,,tile=2,tile=4");
	choose(d, out, ",gather-dtype=fp32");
	choose(d, out,
		",,,,,,offload=optimizer,offload=grads,offload=params,offload=all");
}

/* Sets l->options to two lists of options. Returns false if they are too long. */
static bool set_options(
	struct test_layout *l, const struct str *arithmetic, const struct str *layout)
{
	int n = snprintf(l->options, sizeof(l->options), "%s%s%s",
		arithmetic->len ? arithmetic->s : "",
		arithmetic->len && layout->len ? " " : "", layout->len ? layout->s : "");
	for (char *p = l->options; *p; p++) /* of one word */
		if (*p == ';')
			*p = strncmp(p, ";cp=", 4) ? ' ' : ',';
	return n < (int)sizeof(l->options);
}

void layout_random(struct test_layout *l, uint64_t seed, int64_t index, int max_ranks)
{
	struct dice d = {.seed = hash_mix(seed) + (uint64_t)index};
	struct str arithmetic = {0}, layout = {0};
	struct train_opts o;
	struct err e = {0};
	bool experts = roll(&d, 2);
	do {
		do
			l->model = models[roll(&d, ARRAY_LEN(models))].name;
		while (has_experts(l->model) != experts);
		str_clear(&arithmetic);
		str_clear(&layout);
		roll_arithmetic(&d, &arithmetic, experts);
		roll_layout(&d, &layout, experts, max_ranks);
	} while (!set_options(l, &arithmetic, &layout) || layout_options(l, &o, &e));
	str_free(&arithmetic);
	str_free(&layout);
}

/* Appends the words of a layout that roll_arithmetic() may have drawn. */
static void keep_arithmetic(const char *options, struct str *out)
{
	static const char *const keys[] = {"batch", "layers", "virtual", "freeze",
		"dtype", "residual-dtype", "optimizer", "packing", "experts-per-token",
		"balance-over", "balance-loss", "router-z-loss", "shared-expert-dim",
		"router", "router-bias"};
	for (const char *word = options; *word; word += strspn(word, " ")) {
		size_t n = strcspn(word, " "), key = strcspn(word, "=");
		for (size_t i = 0; i < ARRAY_LEN(keys); i++)
			if (strlen(keys[i]) == key && !strncmp(word, keys[i], key))
				str_printf(
					out, "%s%.*s", out->len ? " " : "", (int)n, word);
		word += n;
	}
}

/* Returns true if both have the same arithmetic; of experts, also different degrees --ep. */
static bool is_other(const struct train_opts *a, const struct train_opts *b)
{
	struct str x = {0}, y = {0};
	layout_arithmetic(a, &x);
	layout_arithmetic(b, &y);
	bool same = !strcmp(x.s, y.s);
	str_free(&x);
	str_free(&y);
	return same && (!a->model.experts || a->ep != b->ep);
}

bool layout_random_other(struct test_layout *other, const struct test_layout *l,
	uint64_t seed, int64_t index, int max_ranks)
{
	enum { TRIES = 3000 };
	struct dice d = {.seed = hash_mix(~seed) + (uint64_t)index};
	struct str arithmetic = {0}, layout = {0};
	struct train_opts first, o;
	struct err e = {0};
	bool found = false;
	if (layout_options(l, &first, &e))
		die_err(&e);
	keep_arithmetic(l->options, &arithmetic);
	other->model = l->model;
	for (int i = 0; i < TRIES && !found; i++) {
		str_clear(&layout);
		roll_layout(&d, &layout, has_experts(l->model), max_ranks);
		found = set_options(other, &arithmetic, &layout) &&
			!layout_options(other, &o, &e) && is_other(&first, &o);
	}
	str_free(&arithmetic);
	str_free(&layout);
	return found;
}
