/* How other trainers compute and store, which layouts they support, how precisely their times are
 * known, and how their options are named. */
#include "plan/planner.h"

#include <math.h>

#include "parallel/parallel.h"

/* With fused kernels and flash attention, a block keeps both norms, queries, attention and its
 * output; gate, up and their elementwise product. Selective recomputation recomputes only
 * attention, or one matmul in two. */
static const struct kept kept_fused[] = {
	[RECOMPUTE_NONE] = {.dim = 6, .kv = 2, .gated = 3, .plain = 2, .heads = 4},
	[RECOMPUTE_SELECTIVE] = {.dim = 5, .kv = 2, .gated = 3, .plain = 2},
	[RECOMPUTE_MATMULS] = {.dim = 3, .kv = 1, .gated = 1.5, .plain = 1},
	[RECOMPUTE_FULL] = {.dim = 1},
};

/* With PyTorch's unfused kernels. */
static const struct kept kept_eager[] = {
	[RECOMPUTE_NONE] = {.dim = 7.4, .gated = 7, .plain = 4},
	[RECOMPUTE_SELECTIVE] = {.dim = 7.4, .gated = 7, .plain = 4},
	[RECOMPUTE_MATMULS] = {.dim = 7.4, .gated = 7, .plain = 4},
	[RECOMPUTE_FULL] = {.dim = 1},
};

/* For Megatron and torchtitan, one rate of matmuls and one of float8 are fitted to few published
 * times. nanotron's memory is fitted to its Ultra-Scale Playbook. tests/bench/validate_plan has
 * the errors. */
static const struct practice practices[N_TRAINERS] = {
	/* bf16 parameters and gradients, fp32 masters and moments, sharded */
	[BY_MEGATRON] = {.param_bytes = 2,
		.grad_bytes = 2,
		.optimizer_bytes = 12,
		.gather_bytes = 2,
		.fixed_bytes = 2e9,
		.logit_bytes = 4,
		.rate = 1.4,
		.attention_rate = 1.3,
		.float8 = 1.3,
		.attention = 2.333,
		.update_bytes = 30,
		.dim_bytes = 60,
		.ffn_bytes = 24,
		.tp_bytes = 16,
		.reduce_bytes = 2,
		.reduce_exposed = 0.2,
		.step = 20e-3,
		.kept = kept_fused,
		.passes = {3, 3, 3.5, 4},
		.overlap_tp = true},
	/* fp32 parameters, sharded and gathered in bf16 */
	[BY_TORCHTITAN] = {.param_bytes = 4,
		.grad_bytes = 4,
		.optimizer_bytes = 8,
		.gather_bytes = 2,
		.fixed_bytes = 2e9,
		.logit_bytes = 6,
		.rate = 1.05,
		.attention_rate = 0.75,
		.float8 = 1.55,
		.small = 80,
		.attention = 2.333,
		.update_bytes = 28,
		.dim_bytes = 100,
		.ffn_bytes = 30,
		.tp_bytes = 24,
		.reduce_bytes = 4,
		.reduce_exposed = 0.5,
		.step = 20e-3,
		.kept = kept_fused,
		.passes = {3, 3, 3.4, 4}},
	[BY_NANOTRON] = {.param_bytes = 2,
		.grad_bytes = 5.3,
		.optimizer_bytes = 12.6,
		.gather_bytes = 2,
		.fixed_bytes = 0.36e9,
		.logit_bytes = 2.4,
		.kept = kept_eager},
};

void practice_init(enum trainer_kind kind, const struct train_opts *o, struct practice *p)
{
	*p = practices[kind];
	p->float8 = o->dtype == PRECISION_FLOAT8 && p->float8 > 0 ? p->float8 : 1;
}

/* Returns true if Megatron can split the layers: stages have equally many layers, where the
 * embedding and the head may count as one each, and each round of an interleaved pipeline is
 * full. */
static bool megatron_can_split(const struct model *m, const struct layout *l)
{
	int64_t stages = (int64_t)l->degree[AXIS_PP] * l->stages;
	return (m->c.layers % stages == 0 || (m->c.layers + 2) % stages == 0) &&
	       (l->stages == 1 || l->n_micro % l->degree[AXIS_PP] == 0);
}

/* Returns the layers per stage, from which torchtitan derives the number of stages unless it is
 * the default, two per rank of an interleaved pipeline. The embedding and the head count as a
 * layer each. */
static int64_t torchtitan_layers_per_stage(
	const struct model_config *c, const struct layout *l)
{
	return ceil_div(c->layers + 2, (int64_t)l->degree[AXIS_PP] * l->stages);
}

/* Returns true if torchtitan gets these stages. PyTorch's interleaved schedule has rounds of
 * equally many micro-batches. */
static bool torchtitan_can_split(const struct model *m, const struct layout *l)
{
	int64_t pp = l->degree[AXIS_PP], stages = pp * l->stages;
	if (l->stages > 2 && ceil_div(m->c.layers + 2,
				     torchtitan_layers_per_stage(&m->c, l)) != stages)
		return false;
	return l->stages == 1 || l->n_micro % max64(1, l->n_micro / pp) == 0;
}

bool trainer_allows(enum trainer_kind kind, const struct model *m, const struct layout *l)
{
	bool is_all_or_none =
		l->recompute == RECOMPUTE_NONE || l->recompute == RECOMPUTE_FULL;
	int n_shards = l->degree[AXIS_FSDP] * l->degree[AXIS_CP];
	if (kind == BY_PT)
		return true;
	if (l->tile || l->offload || schedule_kinds[l->schedule].splits_backward)
		return false;
	switch (kind) {
	case BY_MEGATRON:
		return l->zero != 2 && l->reshard != RESHARD_NO &&
		       (l->zero < 3 || l->degree[AXIS_PP] == 1) &&
		       (is_all_or_none || l->recompute == RECOMPUTE_SELECTIVE) &&
		       l->schedule != SCHEDULE_GPIPE && megatron_can_split(m, l);
	case BY_TORCHTITAN:
		return (l->zero == 3 || n_shards == 1) && torchtitan_can_split(m, l) &&
		       (is_all_or_none || l->recompute == RECOMPUTE_MATMULS);
	default:
		/* nanotron shards over all data-parallel ranks, or none */
		return l->zero <= 1 && is_all_or_none && l->degree[AXIS_CP] == 1 &&
		       (l->degree[AXIS_DP] == 1 || l->degree[AXIS_FSDP] == 1) &&
		       l->schedule == SCHEDULE_1F1B;
	}
}

bool trainer_has_times(enum trainer_kind kind)
{
	return kind != BY_NANOTRON;
}

struct band time_band(
	enum trainer_kind kind, const struct layout *l, int host_ranks, bool float8)
{
	/* (from few measurements, or wider without any; across: tp spans hosts, or cp is used) */
	static const struct {
		struct band usual, across;
	} bands[N_TRAINERS] = {
		[BY_PT] = {{0.9, 1.2}, {0.9, 1.8}},
		[BY_MEGATRON] = {{0.85, 1.15}, {0.7, 1.5}},
		[BY_TORCHTITAN] = {{0.85, 1.25}, {0.9, 1.8}},
	};
	/* all of Megatron's published times are of float8 */
	bool is_usual = (kind != BY_MEGATRON || float8) && l->degree[AXIS_CP] == 1 &&
			l->degree[AXIS_TP] <= host_ranks;
	return is_usual ? bands[kind].usual : bands[kind].across;
}

const char *time_sources(enum trainer_kind kind, const char *gpu)
{
	static const char *const text[N_TRAINERS] = {
		[BY_PT] =
			"it has four of five of torchtitan's published times on H100 and H200",
		[BY_MEGATRON] =
			("wider than the errors of 8 published times on H100 in float8; "
			 "assumed for all else, such as bf16"),
		[BY_TORCHTITAN] = "from torchtitan's published times on H100 and H200",
	};
	bool is_like_torchtitan = kind == BY_PT || kind == BY_TORCHTITAN;
	if (strcmp(gpu, "h100") && !(is_like_torchtitan && !strcmp(gpu, "h200")))
		return NULL;
	return text[kind];
}

const char *memory_band_text(enum trainer_kind kind)
{
	static const char *const text[N_TRAINERS] = {
		[BY_PT] = "memory of pt is within",
		[BY_MEGATRON] = "memory is assumed to be within",
		[BY_TORCHTITAN] = "memory is assumed to be within",
		[BY_NANOTRON] = "memory is within",
	};
	return text[kind];
}

struct band memory_band(enum trainer_kind kind)
{
	static const struct band bands[N_TRAINERS] = {
		[BY_PT] = {0.97, 1.03},
		[BY_MEGATRON] = {0.8, 1.25},
		[BY_TORCHTITAN] = {0.8, 1.25},
		[BY_NANOTRON] = {0.85, 1.25},
	};
	return bands[kind];
}

static void print_flag(struct str *out, const char *name, int64_t value)
{
	str_printf(out, " --%s %lld", name, (long long)value);
}

/* Prints the attention window, which counts the tokens before the current one. Layers with a window
 * are given by "every Nth without", or by a list: [0]*28+[1]*4 is a window from layer 28 on. */
static void megatron_windows(const struct model_config *c, struct str *out)
{
	if (!c->window)
		return;
	str_printf(out, " --window-size '(%lld,0)'", (long long)c->window - 1);
	if (c->window_skip > 0 && !c->window_from)
		print_flag(out, "window-attn-skip-freq", c->window_skip);
	if (c->window_skip >= 0 && !c->window_from)
		return;
	str_puts(out, " --window-attn-skip-freq '");
	for (int64_t i = 0, n; i < c->layers; i += n) {
		bool has = layer_has_window(c, i);
		for (n = 1; i + n < c->layers && layer_has_window(c, i + n) == has; n++)
			;
		str_printf(out, "%s[%d]*%lld", i ? "+" : "", has, (long long)n);
	}
	str_putc(out, '\'');
}

/* Prints the model as arguments of megatron/training/arguments.py. */
static void megatron_model(const struct model *m, struct str *out)
{
	static const char *const acts[] = {
#define ACT(id, name, kind, word, hf, hf_too, megatron) megatron,
#include "kernels/acts.h"
	};
	const struct model_config *c = &m->c;
	print_flag(out, "num-layers", c->layers);
	print_flag(out, "hidden-size", c->dim);
	print_flag(out, "ffn-hidden-size", c->ffn_dim);
	print_flag(out, "num-attention-heads", c->heads);
	if (c->kv_heads != c->heads) {
		str_puts(out, " --group-query-attention");
		print_flag(out, "num-query-groups", c->kv_heads);
	}
	print_flag(out, "seq-length", c->context);
	print_flag(out, "max-position-embeddings", c->context);
	if (m->head_dim * c->heads != c->dim)
		print_flag(out, "kv-channels", m->head_dim);
	if (acts[m->act])
		str_printf(out, " %s", acts[m->act]);
	if (m->arch->norm == NORM_RMS)
		str_puts(out, " --normalization RMSNorm");
	str_printf(out, " --norm-epsilon %g", c->norm_eps);
	if (!m->bias)
		str_puts(out, " --disable-bias-linear");
	if (m->qkv_bias && !m->bias)
		str_puts(out, " --add-qkv-bias");
	if (m->out_bias && !m->bias)
		warn("bias=attention: Megatron-LM cannot add a bias to attention's output "
		     "(wo) alone; its model has none there");
	megatron_windows(c, out);
	if (c->qk_norm)
		str_puts(out, " --qk-layernorm");
	if (c->nope_every)
		print_flag(out, "no-rope-freq", c->nope_every);
	if (m->arch->rope) {
		str_puts(out, " --position-embedding-type rope");
		print_flag(out, "rotary-base", llround(c->rope_theta));
	}
	if (c->rope_scaling == ROPE_LLAMA3)
		str_printf(out, " --use-rope-scaling --rope-scaling-factor %g",
			c->rope_factor);
	if (!m->tie)
		str_puts(out, " --untie-embeddings-and-output-weights");
}

/* Appends the options of Megatron-LM for the layout. */
static void megatron_arguments(const struct train_opts *o, const struct model *m,
	const struct layout *l, struct str *out)
{
	const int *degree = l->degree;
	megatron_model(m, out);
	print_flag(out, "micro-batch-size", l->micro_batch);
	print_flag(out, "global-batch-size", o->batch);
	print_flag(out, "tensor-model-parallel-size", degree[AXIS_TP]);
	print_flag(out, "pipeline-model-parallel-size", degree[AXIS_PP]);
	print_flag(out, "context-parallel-size", degree[AXIS_CP]);
	if (degree[AXIS_TP] > 1)
		str_puts(out, " --sequence-parallel");
	if (l->stages > 1)
		print_flag(out, "num-virtual-stages-per-pipeline-rank", l->stages);
	if (m->c.layers % ((int64_t)degree[AXIS_PP] * l->stages))
		str_puts(out, " --account-for-embedding-in-pipeline-split "
			      "--account-for-loss-in-pipeline-split");
	if (l->zero == 3)
		str_puts(out, " --use-megatron-fsdp --data-parallel-sharding-strategy "
			      "optim_grads_params --ckpt-format fsdp_dtensor");
	if (l->zero)
		str_puts(out, " --use-distributed-optimizer --overlap-param-gather");
	if (l->zero && degree[AXIS_DP] > 1)
		print_flag(out, "num-distributed-optimizer-instances", degree[AXIS_DP]);
	str_puts(out, " --overlap-grad-reduce --bf16");
	if (o->dtype == PRECISION_FLOAT8)
		str_puts(out, " --fp8-format hybrid");
	if (l->recompute == RECOMPUTE_FULL)
		str_puts(out, " --recompute-granularity full --recompute-method uniform "
			      "--recompute-num-layers 1");
	else if (l->recompute)
		str_puts(out, " --recompute-granularity selective");
}

/* Prints arguments of torchtitan/config/configs.py; the last word is a subcommand of tyro. */
static void torchtitan_arguments(
	const struct train_opts *o, const struct layout *l, struct str *out)
{
	static const char *const schedules[] = {[SCHEDULE_GPIPE] = "GPipe",
		[SCHEDULE_1F1B] = "1F1B",
		[SCHEDULE_INTERLEAVED] = "Interleaved1F1B"};
	static const char *const modes[] = {[RECOMPUTE_NONE] = "none",
		[RECOMPUTE_SELECTIVE] = "selective",
		[RECOMPUTE_MATMULS] = "selective",
		[RECOMPUTE_FULL] = "full"};
	const int *degree = l->degree;
	int64_t context = o->model.context;
	print_flag(out, "training.max_context_length", context);
	print_flag(out, "training.num_tokens_per_microbatch_per_dp_rank",
		l->micro_batch * context);
	print_flag(out, "training.num_tokens_per_train_step", o->batch * context);
	print_flag(out, "parallelism.data_parallel_replicate_degree", degree[AXIS_DP]);
	print_flag(out, "parallelism.data_parallel_shard_degree", degree[AXIS_FSDP]);
	print_flag(out, "parallelism.context_parallel_degree", degree[AXIS_CP]);
	print_flag(out, "parallelism.tensor_parallel_degree", degree[AXIS_TP]);
	print_flag(out, "parallelism.pipeline_parallel_degree", degree[AXIS_PP]);
	if (degree[AXIS_PP] > 1) {
		print_flag(out, "parallelism.num_pp_microbatches", l->n_micro);
		str_printf(out, " --parallelism.pipeline_parallel_schedule %s",
			schedules[l->schedule]);
		if (l->stages > 2)
			print_flag(out, "parallelism.pipeline_parallel_layers_per_stage",
				torchtitan_layers_per_stage(&o->model, l));
	}
	if (l->zero == 3)
		str_printf(out, " --parallelism.fsdp_reshard_after_forward %s",
			l->reshard == RESHARD_NO ? "never" : "always");
	str_printf(out, " activation-checkpoint:%s", modes[l->recompute]);
}

/* Prints keys of nanotron's YAML. */
static void nanotron_arguments(
	const struct train_opts *o, const struct layout *l, struct str *out)
{
	int dp = l->degree[AXIS_DP] * l->degree[AXIS_FSDP];
	str_printf(out,
		" parallelism.dp=%d parallelism.pp=%d parallelism.tp=%d "
		"parallelism.recompute_layer=%s tokens.micro_batch_size=%d "
		"tokens.batch_accumulation_per_replica=%lld tokens.sequence_length=%lld "
		"optimizer.zero_stage=%d",
		dp, l->degree[AXIS_PP], l->degree[AXIS_TP],
		l->recompute ? "true" : "false", l->micro_batch, (long long)l->n_micro,
		(long long)o->model.context, l->zero);
}

void trainer_arguments(enum trainer_kind kind, const struct train_opts *o,
	const struct model *m, const struct layout *l, struct str *out)
{
	if (kind == BY_MEGATRON)
		megatron_arguments(o, m, l, out);
	else if (kind == BY_TORCHTITAN)
		torchtitan_arguments(o, l, out);
	else
		nanotron_arguments(o, l, out);
}
