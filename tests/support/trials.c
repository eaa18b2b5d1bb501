/* The trials of the self-test, against any device. */
#include "tests/support/trials.h"

#include <omp.h>

struct mat shape(int64_t rows, int64_t cols, enum dtype type)
{
	static char there;
	return mat_typed(&there, rows, cols, type);
}

struct mat with_amax(struct mat m)
{
	static float amax;
	m.amax = &amax;
	return m;
}

struct mat with_scale(struct mat m)
{
	static const float scale = 1;
	m.scale = &scale;
	return m;
}

struct mat with_transposed(struct mat m, bool only)
{
	m.transposed = m.p;
	if (only)
		m.p = NULL;
	return m;
}

const struct tolerance same_bits;

static void take_memory(struct trial *t, struct arena memory[SIDES])
{
	const size_t size_bytes = (size_t)64 << 20;
	struct device *reference = t->d[CPU];
	device_arena_init(t->d[GPU], &memory[GPU], "a trial", size_bytes);
	if (reference->discrete)
		arena_init_over(&memory[CPU], "a trial",
			device_shared(reference, size_bytes), size_bytes);
	else
		arena_init(&memory[CPU], "a trial", size_bytes);
}

/* Kernels of a CPU run on as many threads as the device that was opened last. */
static void use_threads(struct device *d)
{
	if (!d->discrete)
		omp_set_num_threads(d->threads);
}

/* The memory is kept, since calls are many and small. */
void check_call(
	struct kernel_call call, struct device *reference, struct tolerance allowed)
{
	static struct arena memory[2][SIDES]; /* for a reference on the host, or not */
	struct err e = {0};
	struct trial t = {.d = {test_device(), reference}, .turn = use_threads, .e = &e};
	struct arena *of = memory[reference->discrete];
	if (!of[GPU].base)
		take_memory(&t, of);
	for (enum side s = GPU; s < SIDES; s++) {
		arena_reset(&of[s], 0);
		t.memory[s] = &of[s];
	}
	trial_begin(&t);
	trial_run(&t, &call, &allowed);
	use_threads(t.d[GPU]);
	if (e.code)
		fail_msg("%s", e.msg);
}

/* ---- every kernel ------------------------------------------------------------------------ */

static void add_all(struct kernel_calls *to, const struct kernel_call *calls, size_t n)
{
	for (size_t i = 0; i < n; i++)
		kernel_calls_add(to, &calls[i]);
}

#define ADD_ALL(to, calls) add_all(to, calls, ARRAY_LEN(calls))

/* clang-format off */
/* Matrices that kernels take in any type have this one. */
static void add_norms(struct kernel_calls *to, int64_t rows, int64_t cols, enum dtype type)
{
	const struct mat x = shape(rows, cols, type), y = with_amax(x), wide = shape(rows, cols, DT_F32);
	const struct mat row = shape(1, cols, DT_F32), stats = shape(2, rows, DT_F32), none = {0};
	const int64_t some = rows - rows / 3;
	for (int kind = 0; kind < 2; kind++) {
		const struct mat beta = kind == NORM_LAYER ? row : none;
		const struct kernel_call calls[] = {
			{KERNEL_norm_fwd, .m = {y, stats, wide, row, beta}, .n = {kind}},
			{KERNEL_norm_fwd, .m = {y, stats, wide, row, none}, .n = {kind}},
			{KERNEL_residual_norm, .m = {wide, wide, x, row, y, stats, row, beta}, .n = {kind}},
			{KERNEL_residual_norm, .m = {wide, wide, x, none, y, stats, row, beta}, .n = {kind}, .p = 0.1f},
			{KERNEL_norm_bwd_x, .m = {wide, x, wide, stats, row}, .n = {kind}},
			{KERNEL_norm_bwd_w, .m = {row, beta, x, wide, stats}, .n = {kind, rows}},
			{KERNEL_norm_bwd_w, .m = {row, beta, x, wide, stats}, .n = {kind, some}},
			{KERNEL_norm_bwd, .m = {wide, row, beta, x, wide, stats, row}, .n = {kind, rows}},
			{KERNEL_norm_bwd, .m = {wide, row, beta, x, wide, stats, row}, .n = {kind, some}},
		};
		/* of one column y is +-1, or 0, and what x does next to nothing */
		add_all(to, calls, cols > 1 ? ARRAY_LEN(calls) : 2);
	}
}

static void add_layers(struct kernel_calls *to, int64_t rows, int64_t cols, enum dtype type)
{
	enum { TOKENS = 31, DIM = 24 };
	const struct mat x = shape(rows, cols, type), y = with_amax(x), wide = shape(rows, cols, DT_F32);
	const struct mat row = shape(1, cols, DT_F32), table = shape(TOKENS, cols, DT_F32), none = {0},
		head = shape(1, DIM, DT_F32);
	const int64_t real = max64(1, cols - 5);
	const struct kernel_call calls[] = {
		{KERNEL_embed_fwd, .m = {wide, table}, .n = {0}},
		{KERNEL_embed_fwd, .m = {wide, table}, .n = {1}},
		{KERNEL_embed_bwd, .m = {table, wide}},
		{KERNEL_bias_fwd, .m = {x, row}},
		{KERNEL_bias_bwd, .m = {row, x}},
		{KERNEL_head_norm_fwd, .m = {shape(rows, 3 * DIM, type), shape(rows, 3 * DIM, type), head}},
		{KERNEL_head_norm_bwd_x, .m = {shape(rows, 3 * DIM, type), shape(rows, 3 * DIM, type),
			shape(rows, 3 * DIM, type), head}},
		{KERNEL_head_norm_bwd_w, .m = {head, shape(rows, 3 * DIM, type), shape(rows, 3 * DIM, type)}},
		{KERNEL_rope, .m = {shape(rows, 4 * DIM, type), shape(rows, DIM, DT_F32)}, .n = {DIM, 0}},
		{KERNEL_add, .m = {wide, wide, x}},
		{KERNEL_sub, .m = {wide, wide, wide}},
		{KERNEL_axpby, .m = {x, x}},
		{KERNEL_dropout, .m = {x, x}, .p = 0},
		{KERNEL_dropout, .m = {x, x}, .p = 0.1f},
		{KERNEL_dropout, .m = {wide, x}, .p = 0.5f},
		{KERNEL_dropout, .m = {x, wide}, .p = 0.9f},
		{KERNEL_residual, .m = {wide, wide, x, row}, .p = 0.1f},
		{KERNEL_residual, .m = {wide, wide, x, none}, .p = 0},
		{KERNEL_xent_stats, .m = {x}, .n = {real}}, /* with padding, and without */
		{KERNEL_xent_stats, .m = {x}, .n = {cols}},
		{KERNEL_xent_join, .n = {3, rows}},
		{KERNEL_xent_bwd, .m = {x}, .n = {real}},
		{KERNEL_xent_bwd, .m = {x}, .n = {cols}},
		{KERNEL_xent_fused, .m = {x}, .n = {real}},
	};
	ADD_ALL(to, calls);
	for (int kind = 0; kind < N_ACT_KINDS; kind++) {
		const bool gated = act_is_gated((enum act_kind)kind);
		const struct mat b = gated ? x : none, db = gated ? y : none;
		const struct kernel_call acts[] = {
			{KERNEL_act_fwd, .m = {y, x, b}, .n = {kind}},
			{KERNEL_act_bwd, .m = {y, db, x, x, b}, .n = {kind}},
		};
		ADD_ALL(to, acts);
	}
}

static void add_matmuls(struct kernel_calls *to, int64_t rows, int64_t cols)
{
	enum { OUT = 530, PERIOD = 256 /* of the self-test's rows */ };
	const struct mat x = shape(rows, cols, DT_F32), y = shape(rows, OUT, DT_F32);
	const struct mat w = shape(OUT, cols, DT_F32), bias = shape(1, OUT, DT_F32);
	const int64_t few = min64(rows, PERIOD);
	const struct kernel_call calls[] = {
		{KERNEL_linear_fwd, .m = {y, x, w, bias}},
		{KERNEL_linear_row, .m = {y, x, w, bias}},
		{KERNEL_linear_bwd_x, .m = {x, y, w}, .n = {1}},
		{KERNEL_linear_bwd_w, .m = {w, with_rows(y, few), with_rows(x, few)}},
		{KERNEL_linear_gelu_fwd, .m = {y, y, x, w, bias}},
		{KERNEL_linear_gelu_bwd, .m = {with_rows(x, few), with_rows(y, few), w, with_rows(x, few), with_rows(x, 1)}},
	};
	ADD_ALL(to, calls);
}

static void add_casts(struct kernel_calls *to, struct mat x)
{
	const struct kernel_call calls[] = {
		{KERNEL_narrow, .m = {x}, .n = {DT_BF16}},
		{KERNEL_narrow, .m = {x}, .n = {DT_F16}},
		{KERNEL_widen, .m = {x}, .n = {DT_BF16}},
		{KERNEL_widen, .m = {x}, .n = {DT_F16}},
		{KERNEL_narrow_scaled, .m = {x}},
		{KERNEL_widen_scaled, .m = {x}},
		{KERNEL_round_scaled, .m = {x, x}, .n = {DT_E4M3}},
		{KERNEL_round_scaled, .m = {x, x}, .n = {DT_E5M2}},
		{KERNEL_amax, .m = {x}},
		{KERNEL_zero, .m = {x}},
		{KERNEL_copy, .m = {x, x}},
		{KERNEL_hash, .m = {x}},
		{KERNEL_normal, .m = {x}, .n = {0}},
		{KERNEL_normal, .m = {x}, .n = {1}},
	};
	for (enum dtype type = DT_F32; type <= DT_E5M2; type++)
		kernel_calls_add(to, &(struct kernel_call){KERNEL_round, .m = {x, x}, .n = {type}});
	ADD_ALL(to, calls);
}

static void add_state(struct kernel_calls *to, struct mat x)
{
	const int64_t n = mat_size(x), k = max64(1, x.cols / 3), slices = x.cols < 3 ? 1 : 3;
	const int64_t cols = x.cols / slices * slices;
	const struct kernel_call calls[] = {
		{KERNEL_adamw, .n = {n, 1, 1}},
		{KERNEL_sgd, .n = {n, 1}},
		{KERNEL_sgd, .n = {n, 0}},
		{KERNEL_muon_momentum, .n = {n, 1}},
		{KERNEL_muon_update, .n = {n, 0}},
		{KERNEL_muon_normalize, .m = {x}, .n = {x.rows, cols, slices}},
		{KERNEL_muon_unpack, .m = {x}, .n = {x.rows, cols, slices}},
		{KERNEL_step_end},
		{KERNEL_exact_sum, .n = {n}},
		{KERNEL_exact_sumsq, .m = {x}},
		{KERNEL_grid_sum, .n = {n, 2, 1, GRID_ADD | GRID_KEPT | GRID_ROUNDED}},
		{KERNEL_grid_sum, .n = {n, 2, 1, GRID_KEPT | GRID_ROUNDED | GRID_CHECKED}},
		{KERNEL_grid_sum,
			.m = {{.type = DT_BF16}},
			.n = {n, 1, 0, GRID_ADD | GRID_KEPT}},
		{KERNEL_grid_count},
		{KERNEL_word_sums, .n = {n}},
		{KERNEL_checksum_word, .n = {k}},
		{KERNEL_combine, .n = {n, 5, SIGN_VOTE_SUM, true}},
		{KERNEL_combine, .n = {n, 8, SIGN_VOTE_COUNT, false}},
		{KERNEL_keep_largest, .m = {x}, .n = {k}},
		{KERNEL_count_sizes, .m = {x}, .n = {24}},
		{KERNEL_count_sizes, .m = {x}, .n = {16}},
		{KERNEL_keep_sizes, .m = {x}},
		{KERNEL_keep_random, .m = {x}},
		{KERNEL_round_stochastic, .m = {x}},
		{KERNEL_quantize, .m = {x}, .n = {false}},
		{KERNEL_quantize, .m = {x}, .n = {true}},
		{KERNEL_dequantize, .m = {x}},
		{KERNEL_topk_pack, .m = {x}, .n = {k, true}},
		{KERNEL_topk_pack, .m = {x}, .n = {k, x.cols > 1 << 16}},
		{KERNEL_topk_scatter, .m = {x}, .n = {k, true}},
		{KERNEL_topk_scatter, .m = {x}, .n = {k, x.cols > 1 << 16}},
	};
	ADD_ALL(to, calls);
}

/* Routers of each kind, with and without a bias, groups and a shared gate; rows of experts. */
static void add_experts(struct kernel_calls *to, int64_t rows, int64_t cols, enum dtype type)
{
	enum { EXPERTS = 24, K = 3, GROUPS = 4, CHUNKS = 2 };
	const struct mat h = shape(rows, cols, type), wr = shape(EXPERTS, cols, DT_F32), none = {0};
	const struct mat slots = shape(K * rows, cols, type), wide = shape(rows, 2 * cols, type);
	const struct mat w = shape(EXPERTS * 40, cols, type), y = shape(rows, 40, type);
	const struct mat gates = shape(rows, K, DT_F32), more_gates = shape(rows, K + 1, DT_F32);
	const struct mat slot_gates = shape(K * rows, 1, DT_F32);
	const struct mat dz = shape(rows, EXPERTS, DT_F32), bias = shape(1, EXPERTS, DT_F32);
	for (int how = 0; how < 16; how++) {
		const bool shared = how & 4, grouped = how & 8;
		const int64_t groups = grouped ? GROUPS : 0, best = grouped ? 2 : 0;
		const struct mat g = shared ? more_gates : gates;
		const struct kernel_call calls[] = {
			{KERNEL_route_fwd, .m = {g, wr, h, shared ? shape(1, cols, DT_F32) : none, how & 1 ? bias : none},
				.n = {how % 4, K, groups, best}},
			{KERNEL_route_bwd, .m = {dz, wr, h, g, g}, .n = {how % 4, K, groups, best}, .p = grouped},
		};
		ADD_ALL(to, calls);
	}
	const struct kernel_call calls[] = {
		{KERNEL_route_bwd_x, .m = {h, dz, wr}},
		{KERNEL_route_bwd_w, .m = {wr, dz, h}},
		{KERNEL_sort_slots, .n = {rows, K, EXPERTS, CHUNKS}},
		{KERNEL_sort_slots, .n = {rows, 1, 1, 1}},
		{KERNEL_slots_drop, .m = {slot_gates, slot_gates}, .n = {EXPERTS * CHUNKS, rows, rows / EXPERTS}},
		{KERNEL_slots_drop, .m = {slot_gates, slot_gates}, .n = {1, 700, 300}},
		{KERNEL_slots_mask, .m = {more_gates, more_gates, more_gates}},
		{KERNEL_rows_take, .m = {slots, h}, .n = {K}},
		{KERNEL_rows_put, .m = {slots, slots}},
		{KERNEL_slots_combine, .m = {h, slots, gates, h}, .n = {K, true}},
		{KERNEL_slots_combine, .m = {h, slots, more_gates, h}, .n = {K, false}},
		{KERNEL_slots_combine, .m = {h, slots}, .n = {K, true}},
		{KERNEL_groups_fwd, .m = {y, h, w}, .n = {EXPERTS, 1}},
		{KERNEL_groups_bwd_x, .m = {h, y, w}, .n = {EXPERTS * CHUNKS, CHUNKS}},
		{KERNEL_groups_bwd_w, .m = {shape(40, cols, DT_F32), y, h}, .n = {1, EXPERTS, false}},
		{KERNEL_groups_bwd_w, .m = {shape(40, cols, type), y, h}, .n = {1, EXPERTS, true}},
		{KERNEL_expert_act_fwd, .m = {h, wide}, .n = {ACT_SWIGLU}},
		{KERNEL_expert_act_bwd, .m = {wide, h, h, wide}, .n = {ACT_SWIGLU, true, 1}},
		{KERNEL_expert_act_bwd, .m = {wide, h, h, wide}, .n = {ACT_GEGLU_TANH, false, K + 1}},
		{KERNEL_counts_sum, .n = {6, 3, EXPERTS, true}},
		{KERNEL_counts_sum, .n = {rows, rows, EXPERTS, false}},
		{KERNEL_counts_fractions, .n = {6, EXPERTS}},
		{KERNEL_bias_balance, .n = {EXPERTS, true}},
		{KERNEL_bias_balance, .n = {EXPERTS, false}},
	};
	ADD_ALL(to, calls);
}

const struct kernel_calls *calls_of_attention(void)
{
	enum { BATCH = 2, SEQ = 150, HEADS = 4, KV_HEADS = 2, DIM = 24, ROWS = 19 };
	const struct mat q = shape(BATCH * SEQ, HEADS * DIM, DT_F32), k = shape(BATCH * SEQ, KV_HEADS * DIM, DT_F32);
	const struct mat few = shape(ROWS, HEADS * DIM, DT_F32), keys = shape(SEQ, KV_HEADS * DIM, DT_F32);
	static struct kernel_calls calls;
	kernel_calls_release(&calls);
	for (int64_t window = 0; window < 100; window += 70)
		kernel_calls_add(&calls, &(struct kernel_call){
			KERNEL_attn_row, .m = {few, few, keys, keys}, .n = {HEADS, KV_HEADS, DIM, window}});
	for (int how = 0; how < 8; how++) {
		const bool whole = how & 1, documents = how & 2, window = how & 4; /* else a chunk, and one before it */
		const struct attn attn = {.batch = BATCH, .heads = HEADS, .kv_heads = KV_HEADS, .dim = DIM,
			.q_rows = SEQ, .k_rows = SEQ, .q_first = {75, 225}, .k_first = {whole ? 75 : 0, whole ? 225 : 300},
			.scale = 0.3f, .start = documents ? &(int32_t){0} : NULL, .window = window ? 100 : 0};
		kernel_calls_add(&calls, &(struct kernel_call){KERNEL_attn_fwd,
			.m = {q, q, k, k}, .n = {whole}, .p = 0.1f, .attn = attn});
		kernel_calls_add(&calls, &(struct kernel_call){KERNEL_attn_bwd,
			.m = {q, k, k, q, q, q, k, k}, .n = {whole}, .p = 0.1f, .attn = attn});
	}
	return &calls;
}
/* clang-format on */

const struct kernel_calls *calls_of_layers(int64_t rows, int64_t cols, enum dtype type)
{
	static struct kernel_calls calls;
	kernel_calls_release(&calls);
	add_layers(&calls, rows, cols, type);
	add_norms(&calls, rows, cols, type);
	return &calls;
}

const struct kernel_calls *calls_of_experts(int64_t rows, int64_t cols, enum dtype type)
{
	static struct kernel_calls calls;
	kernel_calls_release(&calls);
	add_experts(&calls, rows, cols, type);
	return &calls;
}

const struct kernel_calls *calls_of_matmuls(int64_t rows, int64_t cols)
{
	static struct kernel_calls calls;
	kernel_calls_release(&calls);
	add_matmuls(&calls, rows, cols);
	return &calls;
}

const struct kernel_calls *calls_of_tensors(int64_t rows, int64_t cols)
{
	static struct kernel_calls calls;
	kernel_calls_release(&calls);
	add_casts(&calls, shape(rows, cols, DT_F32));
	add_state(&calls, shape(rows, cols, DT_F32));
	return &calls;
}
