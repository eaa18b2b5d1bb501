/* The planning device: its kernels touch no memory, count the FLOPs of matmuls, record their
 * calls, and add up the time that they would take. The training step itself, run on this device
 * with arenas that only measure, gives the memory and the FLOPs of a step.
 *
 * list.h generates the kernels; NOTE_X is what kernel X counts and records, in terms of its
 * declared parameters. The file does not compile if a kernel has no NOTE_. */
#include "kernels/backend.h"
#include "kernels/selftest.h"

void device_plan_record(struct device *d, struct kernel_calls *calls)
{
	d->impl = calls;
}

/* Returns the type of the operands of a matmul or of attention. */
static enum dtype operand_type(const struct kernel_call *c)
{
	enum { DOUT = 3 };
	return c->m[c->kernel == KERNEL_attn_bwd ? DOUT : 1].type;
}

/* Returns the bytes that a kernel reads and writes: the sizes of its matrices, with exceptions. */
static double traffic_bytes(const struct kernel_call *c)
{
	const double f32 = sizeof(float), size = (double)mat_size(c->m[0]);
	double all = 0;
	for (size_t i = 0; i < ARRAY_LEN(c->m); i++)
		all += (double)mat_bytes(c->m[i]);
	switch (c->kernel) {
	case KERNEL_embed_fwd: /* some rows of the table */
		return 2 * (double)mat_bytes(c->m[0]);
	case KERNEL_rope: /* in place */
	case KERNEL_xent_fused:
	case KERNEL_xent_bwd:
		return all + (double)mat_bytes(c->m[0]);
	case KERNEL_narrow:
	case KERNEL_widen:
		return all + size * (double)dtype_bytes((enum dtype)c->n[0]);
	case KERNEL_narrow_scaled:
	case KERNEL_widen_scaled:
		return all + size;
	case KERNEL_groups_bwd_w: /* leaves of equal size */
		return all + (double)((c->n[0] - 1) * mat_bytes(c->m[0]));
	case KERNEL_adamw: /* parameters, gradient, two moments or none */
	case KERNEL_sgd:
	case KERNEL_muon_momentum:
	case KERNEL_muon_update:
		return all + f32 * (double)(c->n[0] * (3 + 2 * c->n[1] + 2 * c->n[2]));
	case KERNEL_grid_sum: /* leaves, rounded, sums, the old sum, the new sum */
		return (double)c->n[0] *
		       ((double)dtype_bytes(c->m[0].type) * (double)c->n[1] +
			       f32 * !!(c->n[3] & GRID_ROUNDED) +
			       2 * f32 *
				       (double)(c->n[2] + !!(c->n[3] & GRID_ADD) +
						!!(c->n[3] & GRID_KEPT)));
	case KERNEL_word_sums:
		return f32 * (double)c->n[0];
	default:
		return all;
	}
}

static bool is_group_kernel(enum kernel_id id)
{
	return id == KERNEL_groups_fwd || id == KERNEL_groups_bwd_x ||
	       id == KERNEL_groups_bwd_w;
}

/* Returns the work of a matmul of groups, with the rows that fill up tiles, over its FLOPs. The
 * last tile of a group is half full on average. A CPU computes few rows more. */
static double padded_fraction(const struct device *d, const struct kernel_call *c)
{
	enum { TILE_ROWS = 64, TILE_TERMS = 32 }; /* kernels/cuda/group_tiles.h */
	bool is_leaf = c->kernel == KERNEL_groups_bwd_w;
	double tile = is_leaf ? TILE_TERMS : TILE_ROWS;
	double rows = (double)c->m[1].rows / (double)c->n[is_leaf ? 1 : 0];
	double padded = rows + tile / 2 > tile ? rows + tile / 2 : tile;
	return d->discrete && rows > 0 ? padded / rows : 1;
}

/* Adds the time that the call would take, and counts the FLOPs since the last call as timed. */
static void add_call_time(struct device *d, const struct kernel_call *c)
{
	struct device_speed *s = d->speed;
	double flops = d->flops - s->counted, bytes = traffic_bytes(c) / s->memory;
	bool is_attention = c->kernel == KERNEL_attn_fwd || c->kernel == KERNEL_attn_bwd;
	double rate = is_attention && s->attention > 0 ? s->attention
						       : s->flops[operand_type(c)];
	double work = flops > 0 ? flops / rate : 0;
	if (is_group_kernel(c->kernel))
		work *= padded_fraction(d, c) / (s->experts > 0 ? s->experts : 1);
	s->seconds += work > bytes ? work : bytes;
	s->counted = d->flops;
}

/* Returns true if the kernel supports matrices with a stride. */
static bool supports_stride(enum kernel_id id)
{
	return id == KERNEL_attn_fwd || id == KERNEL_attn_bwd || id == KERNEL_rope ||
	       id == KERNEL_copy || id == KERNEL_head_norm_bwd_x;
}

/* Records the call if calls are recorded, and adds its time if the device is timed. */
static void record_call(struct device *d, const struct kernel_call *c)
{
	for (size_t i = 0; i < ARRAY_LEN(c->m); i++)
		BUG_ON(c->m[i].stride && !supports_stride(c->kernel));
	if (d->impl)
		kernel_calls_add(d->impl, c);
	if (d->speed)
		add_call_time(d, c);
}

#define NOTE(name, ...) record_call(d, &(struct kernel_call){KERNEL_##name, __VA_ARGS__})

static float dropout_p(const struct dropout *o)
{
	return o ? o->p : 0;
}

/* Counts the FLOPs of y = x w^T, or of either of its gradients. */
static void count_matmul(struct device *d, struct mat y, struct mat x, struct mat w)
{
	BUG_ON(y.rows != x.rows || y.cols != w.rows || x.cols != w.cols);
	d->flops += 2.0 * (double)mat_size(x) * (double)w.rows;
}

/* Returns the number of pairs (i, j) in [0, n)^2 with i - j >= distance. */
static double count_pairs_apart(double n, double distance)
{
	if (distance <= 0) /* all pairs except j - i >= 1 - distance */
		return n * n -
		       (distance > -n ? (n + distance - 1) * (n + distance) / 2 : 0);
	return distance < n ? (n - distance) * (n - distance + 1) / 2 : 0;
}

/* Returns the number of scores between two chunks that the causal mask and the window keep. A chunk
 * has two runs of positions, which may be adjacent, or one if its length is odd. */
static double count_unmasked_scores(const struct attn *a)
{
	double n = 0;
	int runs = a->q_rows % 2 ? 1 : 2;
	for (int i = 0; i < runs; i++) {
		for (int j = 0; j < runs; j++) {
			double len = (double)a->q_rows / runs;
			double apart = (double)(a->q_first[i] - a->k_first[j]);
			n += count_pairs_apart(len, -apart);
			if (a->window)
				n -= count_pairs_apart(len, (double)a->window - apart);
		}
	}
	return n * (double)(a->batch * a->heads);
}

/* Counts the FLOPs of y = x w^T, or of the gradient of x, with a block of w for each group. */
static void count_groups(struct device *d, struct mat y, struct mat x, struct mat w,
	const struct row_groups *g)
{
	int64_t blocks = g->n / g->per_block;
	BUG_ON(y.rows != x.rows || w.rows != y.cols * blocks || x.cols != w.cols);
	d->flops += 2.0 * (double)mat_size(x) * (double)y.cols;
}

/* Counts the FLOPs of the leaves as if all groups had equally many rows. */
static void count_leaves(struct device *d, const struct group_leaf *leaves, int n,
	struct mat x, const struct row_groups *g)
{
	for (int i = 0; i < n; i++)
		d->flops += 2.0 * (double)mat_size(leaves[i].dw) * (double)x.rows /
			    (double)g->n;
}

/* clang-format off */
#define NOTE_embed_fwd		NOTE(embed_fwd, .m = {y, w}, .n = {add})
#define NOTE_embed_bwd		NOTE(embed_bwd, .m = {dw, dy})
#define NOTE_linear_fwd		count_matmul(d, y, x, w); NOTE(linear_fwd, .m = {y, x, w, bias})
#define NOTE_linear_bwd_x	count_matmul(d, dy, dx, w); NOTE(linear_bwd_x, .m = {dx, dy, w}, .n = {add})
#define NOTE_linear_bwd_w	count_matmul(d, dy, x, dw); NOTE(linear_bwd_w, .m = {dw, dy, x}, .n = {add})
#define NOTE_linear_gelu_fwd	count_matmul(d, a, x, w); NOTE(linear_gelu_fwd, .m = {y, a, x, w, bias})
#define NOTE_linear_gelu_bwd	count_matmul(d, dy, da, w); NOTE(linear_gelu_bwd, .m = {da, dy, w, a, sums}); \
				if (sums.p) /* the kernel calls it */ \
					NOTE(bias_bwd, .m = {sums, da})
#define NOTE_linear_row		count_matmul(d, y, x, w); NOTE(linear_row, .m = {y, x, w, bias})
#define NOTE_bias_fwd		NOTE(bias_fwd, .m = {y, bias})
#define NOTE_bias_bwd		NOTE(bias_bwd, .m = {db, dy})
#define NOTE_norm_fwd		NOTE(norm_fwd, .m = {y, stats, x, gamma, beta}, .n = {kind})
#define NOTE_norm_bwd_x		NOTE(norm_bwd_x, .m = {dx, dy, x, stats, gamma}, .n = {kind})
#define NOTE_norm_bwd_w		NOTE(norm_bwd_w, .m = {dgamma, dbeta, dy, x, stats}, .n = {kind, rows})
#define NOTE_norm_bwd		NOTE(norm_bwd, .m = {to->dx, to->dgamma, to->dbeta, dy, x, stats, gamma, to->copy, \
					to->sums}, .n = {kind, rows})
#define NOTE_head_norm_fwd	NOTE(head_norm_fwd, .m = {y, x, gamma})
#define NOTE_head_norm_bwd_x	NOTE(head_norm_bwd_x, .m = {dx, dy, x, gamma})
#define NOTE_head_norm_bwd_w	NOTE(head_norm_bwd_w, .m = {dgamma, dy, x})
#define NOTE_rope		NOTE(rope, .m = {x, rope}, .n = {dim, sign < 0})
#define NOTE_attn_fwd		d->flops += 4.0 * count_unmasked_scores(attn) * (double)attn->dim; /* q k^T, p v */ \
				NOTE(attn_fwd, .m = {o, q, k, v}, .n = {begin && end}, \
					.p = attn->drop.p, .attn = *attn)
#define NOTE_attn_bwd		d->flops += 10.0 * count_unmasked_scores(attn) * (double)attn->dim; \
				/* q k^T recomputed, dv, dp, dq, dk */ \
				NOTE(attn_bwd, .m = {dq, dk, dv, dout, o, q, k, v}, .n = {begin}, \
					.p = attn->drop.p, .attn = *attn)
#define NOTE_attn_row		NOTE(attn_row, .m = {o, q, k, v}, .n = {heads, kv_heads, dim, window})
#define NOTE_act_fwd		NOTE(act_fwd, .m = {y, a, b}, .n = {kind})
#define NOTE_act_bwd		NOTE(act_bwd, .m = {da, db, dy, a, b}, .n = {kind})
#define NOTE_add		NOTE(add, .m = {y, a, b})
#define NOTE_sub		NOTE(sub, .m = {y, a, b})
#define NOTE_dropout		NOTE(dropout, .m = {y, x}, .p = dropout_p(drop))
#define NOTE_residual		NOTE(residual, .m = {y, x, sum, bias}, .p = dropout_p(drop))
#define NOTE_residual_norm	NOTE(residual_norm, .m = {y, x, sum, bias, norm->h, norm->stats, \
					norm->gamma, norm->beta}, .n = {norm->kind}, .p = dropout_p(drop))
#define NOTE_xent_stats		NOTE(xent_stats, .m = {logits}, .n = {min64(logits.cols, vocab - first)}, \
					.p = terms.smoothing)
#define NOTE_xent_join		NOTE(xent_join, .n = {n_slices, rows}, .p = terms.smoothing)
#define NOTE_xent_bwd		NOTE(xent_bwd, .m = {logits}, .n = {min64(logits.cols, vocab - first)}, \
					.p = terms.smoothing)
#define NOTE_xent_fused		NOTE(xent_fused, .m = {logits}, .n = {vocab}, .p = terms.smoothing)
/* The two kernels are what the self-test can run. */
#define NOTE_linear_xent	count_matmul(d, logits, x, w); \
				NOTE(linear_fwd, .m = {logits, x, w}); NOTE_xent_fused
#define ROUTER_INTS		{how->kind * 2 + how->normalize, how->per_row, how->groups, \
					how->top_groups}
#define NOTE_route_fwd		count_matmul(d, mat(NULL, h.rows, wr.rows), h, wr); \
				NOTE(route_fwd, .n = ROUTER_INTS, \
					.m = {gates, wr, h, shared, mat((void *)bias, 1, wr.rows)})
#define NOTE_route_bwd		count_matmul(d, dz, h, wr); \
				NOTE(route_bwd, .m = {dz, wr, h, dg, gates}, .n = ROUTER_INTS, \
					.p = losses && losses->f)
#define NOTE_route_bwd_x	count_matmul(d, dz, dh, wr); NOTE(route_bwd_x, .m = {dh, dz, wr})
#define NOTE_route_bwd_w	count_matmul(d, dz, h, dw); NOTE(route_bwd_w, .m = {dw, dz, h})
#define NOTE_sort_slots		NOTE(sort_slots, .n = {rows, how->per_row, how->experts, \
					rows / chunk_rows})
#define NOTE_slots_drop		NOTE(slots_drop, .m = {kept, gates}, .n = {groups, max_slots, capacity})
#define NOTE_slots_mask		NOTE(slots_mask, .m = {dgates, kept, gates})
#define NOTE_rows_take		NOTE(rows_take, .m = {x, h}, .n = {divisor})
#define NOTE_rows_put		NOTE(rows_put, .m = {h, x})
#define NOTE_slots_combine	NOTE(slots_combine, .m = {y, x, gates, more}, .n = {k, pos != NULL})
#define GROUP_INTS		{groups->n, groups->per_block}
#define NOTE_groups_fwd		count_groups(d, y, x, w, groups); \
				NOTE(groups_fwd, .m = {y, x, w}, .n = GROUP_INTS)
#define NOTE_groups_bwd_x	count_groups(d, dy, dx, w, groups); \
				NOTE(groups_bwd_x, .m = {dx, dy, w}, .n = GROUP_INTS)
#define NOTE_groups_bwd_w	count_leaves(d, leaves, n_leaves, x, groups); \
				if (n_leaves) \
					NOTE(groups_bwd_w, .m = {leaves->dw, dy, x}, \
						.n = {n_leaves, groups->n, leaves->before != NULL})
#define NOTE_expert_act_fwd	NOTE(expert_act_fwd, .m = {a, ab}, .n = {kind})
#define NOTE_expert_act_bwd	NOTE(expert_act_bwd, .m = {dab, ga, z, ab}, \
					.n = {kind, index != NULL, stride})
#define NOTE_counts_sum		NOTE(counts_sum, .n = {n_sets, per_sum, experts, add})
#define NOTE_counts_fractions	NOTE(counts_fractions, .n = {n_sets, experts})
#define NOTE_bias_balance	NOTE(bias_balance, .n = {experts, center})
/* A call with several vectors or matrices is recorded as one call for each. */
#define NOTE_UPDATE(name)	for (int i = 0; i < n_parts; i++) \
					NOTE(name, .m = {parts[i].copy}, .n = {parts[i].n, parts[i].m != NULL, \
					parts[i].v != NULL})
#define NOTE_adamw		NOTE_UPDATE(adamw)
#define NOTE_sgd		NOTE_UPDATE(sgd)
#define NOTE_muon_momentum	NOTE_UPDATE(muon_momentum)
#define NOTE_muon_update	NOTE_UPDATE(muon_update)
#define NOTE_muon_normalize	NOTE(muon_normalize, .m = {x}, .n = {shape->rows, shape->cols, shape->slices})
#define NOTE_muon_unpack	NOTE(muon_unpack, .m = {x}, .n = {shape->rows, shape->cols, shape->slices})
#define NOTE_axpby		NOTE(axpby, .m = {y, x})
#define NOTE_exact_sumsq	for (int i = 0; i < n; i++) \
					NOTE(exact_sumsq, .m = {m[i]})
#define NOTE_exact_sum		NOTE(exact_sum, .n = {n})
#define NOTE_grid_sum		NOTE(grid_sum, .m = {{.type = s->leaf_type}}, .n = {s->n, grid_leaves(s), \
					s->n_parts - grid_leaves(s), grid_writes(s)})
#define NOTE_grid_count		NOTE(grid_count, .n = {0})
#define NOTE_word_sums		for (int i = 0; i < n_parts; i++) \
					NOTE(word_sums, .n = {parts[i].n})
#define NOTE_checksum_word	NOTE(checksum_word, .n = {n})
#define NOTE_step_end		NOTE(step_end, .n = {0})
#define NOTE_round		NOTE(round, .m = {y, x}, .n = {type})
#define NOTE_round_scaled	NOTE(round_scaled, .m = {y, x}, .n = {type})
#define NOTE_narrow		NOTE(narrow, .m = {x}, .n = {type})
#define NOTE_widen		NOTE(widen, .m = {y}, .n = {type})
#define NOTE_narrow_scaled	NOTE(narrow_scaled, .m = {x})
#define NOTE_widen_scaled	NOTE(widen_scaled, .m = {y})
#define NOTE_amax		NOTE(amax, .m = {x})
#define NOTE_normal		NOTE(normal, .m = {x}, .n = {normal->max_deviation > 0})
#define NOTE_zero		NOTE(zero, .m = {x})
#define NOTE_copy		NOTE(copy, .m = {to, from})
#define NOTE_find_nonfinite		return -1
#define NOTE_hash		NOTE(hash, .m = {x})
#define NOTE_combine		NOTE(combine, .n = {n, how->workers, how->vote, how->normalize})
#define NOTE_keep_largest	NOTE(keep_largest, .m = {x}, .n = {k})
#define NOTE_count_sizes	NOTE(count_sizes, .m = {x}, .n = {shift})
#define NOTE_keep_sizes		NOTE(keep_sizes, .m = {x})
#define NOTE_keep_random	NOTE(keep_random, .m = {x})
#define NOTE_round_stochastic	NOTE(round_stochastic, .m = {x})
#define NOTE_quantize		NOTE(quantize, .m = {x}, .n = {rng != NULL})
#define NOTE_dequantize		NOTE(dequantize, .m = {x})
#define NOTE_topk_pack		NOTE(topk_pack, .m = {x}, .n = {k, wide})
#define NOTE_topk_scatter		NOTE(topk_scatter, .m = {x}, .n = {k, wide})
/* clang-format on */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define KERNEL(type, name, ...)              \
	static type plan_##name(__VA_ARGS__) \
	{                                    \
		NOTE_##name;                 \
	}
#include "kernels/list.h"

/* Returns an address that is never accessed, as an arena that only measures does. */
static void *plan_alloc(struct device *d, size_t n_bytes)
{
	static char nothing[64];
	return nothing;
}

static void plan_free(struct device *d, void *p, size_t n_bytes)
{
}

static void plan_move(struct device *d, void *to, const void *from, size_t n_bytes)
{
}
#pragma GCC diagnostic pop

/* Uses the function table of the CPU, except for the functions that access device memory. */
void device_open_plan(struct device *d, enum device_kind kind)
{
	static const struct kernels kernels = {
		.name = "plan",
#define KERNEL(type, name, ...) .name = plan_##name,
#include "kernels/list.h"
	};
	static struct device_ops ops;
	ops = cpu_device_ops;
	ops.alloc = plan_alloc;
	ops.free = plan_free;
	ops.put = ops.get = ops.get_begin = plan_move;
	device_init(d, kind, &kernels, &ops);
}
