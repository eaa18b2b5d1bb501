/* Options of other trainers, with what to do instead: features that work in another way, and
 * unsupported ones. Mere other names are in the option table. */
#include "engine/options.h"
#include "options/options.h"

const struct opt_answer train_answers[] = {
	{"lora lora-r lora-rank lora-alpha use-lora peft adapter qlora dora",
		"adapters such as LoRA", "--freeze REGEX trains a part of the model"},
	{"dpo ppo grpo rlhf kto orpo rl reward-model beta-dpo",
		"preference optimization and reinforcement learning",
		"pt-prepare --chat-template makes data for supervised fine-tuning"},
	{"use-moe top-k", NULL,
		"--experts N replaces feed-forward networks by N experts; see pt-experts(7)"},
	{"wandb use-wandb wandb-log wandb-project mlflow comet", NULL,
		"--log-to wandb:DIRECTORY writes runs for wandb sync, tensorboard:DIRECTORY "
		"event files"},
	{"early-stopping early-stopping-patience patience early-stop",
		"rules for early stopping",
		"--ckpt-best keeps the best checkpoint, and pt-compare --follow CONTROL RUN || kill "
		"PID stops a run that differs"},
	{"ema ema-decay use-ema swa model-averaging",
		"averages of weights during training",
		"pt-ckpt ema and pt-ckpt average combine checkpoints (--ckpt-every N --keep 0)"},
	{"find-lr lr-find lr-finder auto-lr-find", "searches for a learning rate",
		"train some --steps with each --lr, and compare the runs with pt-compare"},
	{"tasks eval-tasks lm-eval hellaswag mmlu core-metric-every benchmark",
		"benchmarks such as MMLU",
		"pt-ckpt convert RUN -o DIRECTORY writes a Hugging Face model, which evaluation "
		"harnesses read"},
	{"histograms log-histograms watch", "histograms of weights and gradients",
		"checkpoints are HDF5 files, which h5py reads"},
	{"load-in-4bit load-in-8bit quantize quantization gguf export-gguf onnx",
		"quantized models and GGUF",
		"pt-ckpt convert RUN -o DIRECTORY writes a Hugging Face model, which llama.cpp "
		"converts"},
	{"check-replicas-every", NULL,
		"--check-replicas yes compares replicas in every step"},
	{"parquet streaming", NULL, "pt-prepare reads Parquet and Arrow files"},
	{"epochs n-epochs num-epochs num-train-epochs max-epochs", NULL,
		"--steps counts optimizer steps: an epoch is training tokens / (batch x context)"},
	{"gradient-accumulation-steps gradient-accumulation grad-accum grad-accum-steps "
	 "accumulate-grad-batches",
		NULL,
		"--batch / (--micro-batch x data-parallel ranks) is the accumulation"},
	{"bf16 fp16 fp32 fp8 tf32 amp mixed-precision precision", NULL,
		"--dtype fp32, bf16, fp16 or float8 sets the precision"},
	{"dtype=bfloat16", NULL, "--dtype bf16"},
	{"dtype=float16 dtype=half", NULL, "--dtype fp16"},
	{"dtype=float32 dtype=float", NULL, "--dtype fp32"},
	{"dtype=fp8", NULL, "--dtype float8"},
	{"arch=llama2 arch=llama3 arch=qwen2 arch=qwen2.5 arch=qwen3 arch=mistral arch=smollm2 "
	 "arch=smollm3",
		NULL,
		"a preset sets arch and other options, as --preset qwen3-0.6b does"},
	{"compile torch-compile use-compile", NULL,
		"nothing needs to be compiled: --kernels fused is the default"},
	{"flash-attn flash-attention use-flash-attn attn-implementation", NULL,
		"attention is always computed in blocks, as in flash attention"},
	{"num-workers dataloader-num-workers n-workers", NULL,
		"no worker processes read data; --readers sets which ranks do"},
	{"gpus num-gpus n-gpus ngpu devices nproc nproc-per-node nnodes num-nodes world-size",
		NULL,
		"the launcher sets the number of ranks, as in mpiexec -n 4 pt-train"},
	{"ddp strategy deepspeed deepspeed-config", NULL,
		"--dp, --fsdp, --zero, --tp, --cp and --pp select the layout"},
	{"model model-name model-name-or-path base-model pretrained-model-name-or-path",
		NULL,
		"--preset NAME sets the options of a model, --init-from MODEL reads its weights"},
	{"tokenizer tokenizer-name tokenizer-path tokenizer-type tokenizer-model", NULL,
		"shards contain their vocabulary; pt-prepare --tokenizer selects it"},
	{NULL},
};

void options_man_absent(FILE *f)
{
	fputs(".Bl -bullet -compact\n", f);
	for (const struct opt_answer *a = train_answers; a->names; a++) {
		if (!a->lacks)
			continue;
		scoped_str item = {0};
		str_printf(&item, "%s: %s", a->lacks, a->instead);
		fputs(".It\n", f);
		man_text(f, item.s);
	}
	fputs(".El\n", f);
}
