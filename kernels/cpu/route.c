/* The router of experts: choices, gates, their gradients, load balance, and the order of slots. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pieces.h"

/* Logits are computed for so many rows at a time, so that they stay in the cache. */
enum { ROUTE_ROWS = 256 };

/* The largest number of experts, in whole vectors. */
enum { MAX_LOGITS = MAX_ROUTER_EXPERTS };

/* Computes logits [rows, E] = h wr^T in fp32, for few rows. */
static void router_logits(float *logits, struct mat h, struct mat wr)
{
	const struct gemm g = {
		.m = h.rows,
		.n = wr.rows,
		.k = h.cols,
		.left = {h.p, h.cols, false, h.type},
		.right = {wr.p, wr.cols, false, wr.type},
		.c = logits,
		.c_stride = wr.rows,
		.type = DT_F32,
		.alpha = 1,
	};
	K(gemm)(&g);
}

/* for scores.inc */
#define LOGISTIC sigmoid_f
#define EXP exp_f
#define LOG1P log1pf
#define EXPM1 expm1f

/* Returns the derivative of the logarithm of a score, for softmax without the sum's part. */
static inline float log_slope(const struct router *how, float s)
{
	switch (how->kind) {
#define SCORE(id, word, score, slope) \
	case ROUTER_##id:             \
		return slope;
#include "kernels/scores.inc"
	default:
		return 1.0f;
	}
}

/* The scores of a row. */
struct scores {
	/* functions of the logits; for softmax, e^(z - max z), to be divided by `sum` */
	float p[MAX_LOGITS];
	float sum; /* sum of p */
	float lse; /* log-sum-exp of the logits */
};

static void compute_scores(
	struct scores *s, const float *logits, const struct router *how)
{
	const int64_t n = how->experts;
	float max = max_of(logits, n);
	for (int64_t e = 0; e < n; e++)
		s->p[e] = exp_f(logits[e] - max);
	s->sum = sum_of(s->p, n);
	s->lse = max + logf(s->sum);
	switch (how->kind) {
#define SCORE(id, word, score, slope)              \
	case ROUTER_##id:                          \
		for (int64_t e = 0; e < n; e++) {  \
			const float z = logits[e]; \
			s->p[e] = score;           \
		}                                  \
		break;
#include "kernels/scores.inc"
	default:
		return;
	}
	s->sum = sum_of(s->p, n);
}

/* ---- choices ------------------------------------------------------------------------- */

/* Keys are integers in the order of the scores. Scores of NaN have the key of -infinity. */
enum { KEY_CHOSEN = INT32_MIN, KEY_MASKED, KEY_INFINITE = (int32_t)0x807fffff };

/* Returns the key of a score; 0 and -0 have one key. */
static inline int32_t score_key(float x)
{
	int32_t bits = (int32_t)bits_of(x + 0.0f);
	int32_t key = bits < 0 ? bits ^ INT32_MAX : bits;
	return x != x ? KEY_INFINITE : key;
}

static inline float key_score(int32_t key)
{
	return float_of((uint32_t)(key < 0 ? key ^ INT32_MAX : key));
}

/* Returns the index of the largest key, the lowest of equal ones. */
static int64_t largest_key(const int32_t *keys, int64_t n)
{
	int32_t max = INT32_MIN, first = INT32_MAX;
	for (int64_t i = 0; i < n; i++)
		max = keys[i] > max ? keys[i] : max;
	for (int32_t i = 0; i < (int32_t)n; i++) {
		int32_t at = keys[i] == max ? i : INT32_MAX;
		first = at < first ? at : first;
	}
	return first;
}

/* Returns the key of the sum of the two best scores of a group. */
static int32_t group_key(const int32_t *keys, int64_t n)
{
	int32_t best = INT32_MIN, second = INT32_MIN;
	for (int64_t i = 0; i < n; i++) {
		int32_t key = keys[i];
		second = key > best ? best : key > second ? key : second;
		best = key > best ? key : best;
	}
	return n < 2 ? best : score_key(key_score(best) + key_score(second));
}

/* Masks the keys of all groups except the best ones. */
static void mask_groups(int32_t *keys, const struct router *how)
{
	int32_t groups[MAX_LOGITS];
	int64_t size = how->experts / how->groups;
	for (int64_t g = 0; g < how->groups; g++)
		groups[g] = group_key(keys + g * size, size);
	for (int64_t i = 0; i < how->top_groups; i++)
		groups[largest_key(groups, how->groups)] = KEY_CHOSEN;
	for (int64_t g = 0; g < how->groups; g++)
		for (int64_t e = g * size; e < (g + 1) * size && groups[g] != KEY_CHOSEN;
			e++)
			keys[e] = KEY_MASKED;
}

/* Computes the keys of all experts. The logits have the order of softmax, but fewer ties. */
static void compute_keys(int32_t *keys, const float *z, const struct scores *s,
	const float *bias, const struct router *how)
{
	const int64_t n = how->experts;
	const bool softmax = how->kind == ROUTER_SOFTMAX;
	const float scale = softmax ? 1.0f / s->sum : 1.0f;
	if (softmax && !bias && how->groups <= 1)
		for (int64_t e = 0; e < n; e++)
			keys[e] = score_key(z[e]);
	else if (bias)
		for (int64_t e = 0; e < n; e++)
			keys[e] = score_key(s->p[e] * scale + bias[e]);
	else
		for (int64_t e = 0; e < n; e++)
			keys[e] = score_key(s->p[e] * scale);
	if (how->groups > 1)
		mask_groups(keys, how);
}

/* Inserts x into n ascending ids. */
static void insert_id(int32_t *ids, int64_t n, int32_t x)
{
	for (; n > 0 && ids[n - 1] > x; n--)
		ids[n] = ids[n - 1];
	ids[n] = x;
}

/* Chooses the experts of row i. */
static void choose_experts(int32_t *ids, const float *z, const struct scores *s,
	const float *bias, const struct router *how, int64_t i)
{
	int32_t keys[MAX_LOGITS];
	if (!how->force)
		compute_keys(keys, z, s, bias, how);
	for (int64_t j = 0; j < how->per_row; j++) {
		int64_t e;
		if (how->force) {
			e = (how->pos[i] * how->per_row + j) % how->force;
		} else {
			e = largest_key(keys, how->experts);
			keys[e] = KEY_CHOSEN;
		}
		insert_id(ids, j, (int32_t)e);
	}
}

/* Returns the sum of the scores of the chosen experts, in ascending order. */
static float chosen_sum(const struct scores *s, const int32_t *ids, int64_t k)
{
	float sum = 0;
	for (int64_t j = 0; j < k; j++)
		sum += s->p[ids[j]];
	return sum;
}

/* Returns what the scores of chosen experts are divided by. */
static float gate_divisor(
	const struct scores *s, const int32_t *ids, const struct router *how)
{
	const float tiny = 1e-20f; /* as in DeepSeek's and transformers' code */
	if (how->normalize)
		return chosen_sum(s, ids, how->per_row) + tiny;
	return how->kind == ROUTER_SOFTMAX ? s->sum : 1.0f;
}

/* Sets the gates of a row. NaN in any logit makes lse NaN. */
static void set_gates(float *gates, const struct scores *s, const int32_t *ids,
	const struct router *how)
{
	float divisor = gate_divisor(s, ids, how);
	for (int64_t j = 0; j < how->per_row; j++) {
		float gate = how->scale * (s->p[ids[j]] / divisor);
		gates[j] = s->lse != s->lse ? s->lse : gate;
	}
}

static void check_router(
	struct mat gates, struct mat h, struct mat wr, const struct router *how)
{
	BUG_ON(wr.rows != how->experts || wr.cols != h.cols || gates.rows != h.rows);
	BUG_ON(how->experts > MAX_ROUTER_EXPERTS || how->per_row > MAX_EXPERTS_PER_ROW);
	BUG_ON(how->per_row > how->experts || how->per_row < 1);
	BUG_ON(gates.cols != how->per_row && gates.cols != how->per_row + 1);
	BUG_ON(how->groups > 1 && how->experts % how->groups);
	BUG_ON(how->force && (how->force < how->per_row || how->force > how->experts));
}

/* Sets the counts of all sets of rows. */
static void count_slots(
	int32_t *counts, const int32_t *ids, int64_t rows, const struct router *how)
{
	int64_t sets = ceil_div(rows, how->seq_rows);
	memset(counts, 0, (size_t)(sets * how->experts) * sizeof(*counts));
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < how->per_row; j++)
			counts[i / how->seq_rows * how->experts +
				ids[i * how->per_row + j]]++;
}

void K(route_fwd)(struct device *d, int32_t *ids, struct mat gates, float *lse,
	int32_t *counts, struct mat h, struct mat wr, const float *bias,
	struct mat shared, const struct router *how)
{
	const int64_t k = how->per_row, n_experts = how->experts;
	float logits[ROUTE_ROWS]; /* logits of the shared expert */
	float *z = K(thread_floats)(ROUTE_ROWS * n_experts);
	check_router(gates, h, wr, how);
	BUG_ON((gates.cols > k) != (shared.p != NULL));
	for (int64_t at = 0; at < h.rows; at += ROUTE_ROWS) {
		struct mat part = mat_rows(h, at, min64(ROUTE_ROWS, h.rows - at));
		router_logits(z, part, wr);
		if (shared.p)
			router_logits(logits, part, shared);
#pragma omp parallel for if (part.rows * n_experts > PARALLEL_FROM)
		for (int64_t i = at; i < at + part.rows; i++) {
			const float *own = z + (i - at) * n_experts;
			struct scores s;
			compute_scores(&s, own, how);
			choose_experts(ids + i * k, own, &s, bias, how, i);
			set_gates(mat_row(gates, i), &s, ids + i * k, how);
			lse[i] = s.lse;
			if (shared.p)
				mat_row(gates, i)[k] = sigmoid_f(logits[i - at]);
		}
	}
	if (counts)
		count_slots(counts, ids, h.rows, how);
}

/* ---- gradients ----------------------------------------------------------------------- */

/* Sets the gradient of the logits that comes from the gates. */
static void add_gate_grads(float *dz, const float *dg, const float *gates,
	const int32_t *ids, const struct scores *s, const struct router *how)
{
	const int64_t k = how->per_row;
	const bool softmax = how->kind == ROUTER_SOFTMAX;
	float sum = 0; /* sum of g dg */
	for (int64_t j = 0; j < k; j++)
		sum += gates[j] * dg[j];
	if (softmax && !how->normalize) {
		for (int64_t e = 0; e < how->experts; e++)
			dz[e] = -(s->p[e] / s->sum) * sum;
		for (int64_t j = 0; j < k; j++)
			dz[ids[j]] += gates[j] * dg[j];
		return;
	}
	for (int64_t e = 0; e < how->experts; e++)
		dz[e] = 0;
	const float mean = how->normalize ? sum / how->scale : 0;
	for (int64_t j = 0; j < k; j++) {
		float slope = log_slope(how, s->p[ids[j]]);
		dz[ids[j]] = gates[j] * slope * (dg[j] - mean);
	}
}

/* Adds the gradient of the balance loss; sets *value to E sum f p. */
static void add_balance_grads(float *dz, float *value, const float *f, float weight,
	const struct scores *s, const struct router *how)
{
	const int64_t n = how->experts;
	float mean = 0, factor = weight * (float)n;
	for (int64_t e = 0; e < n; e++)
		mean += f[e] * (s->p[e] / s->sum);
	for (int64_t e = 0; e < n; e++) {
		float slope = log_slope(how, s->p[e]);
		dz[e] += factor * (s->p[e] / s->sum) * slope * (f[e] - mean);
	}
	*value = (float)n * mean;
}

/* Adds the gradient of the z-loss. */
static void add_z_grads(float *dz, const float *z, float lse, float weight, int64_t n)
{
	float factor = 2.0f * weight * lse;
	for (int64_t e = 0; e < n; e++)
		dz[e] += factor * exp_f(z[e] - lse);
}

/* Computes the gradient of one row of logits, and the row's losses. */
static void row_grads(float *dz, const float *z, const float *dg, const float *gates,
	const int32_t *ids, float lse, int64_t i, int64_t rows, const struct router *how,
	const struct router_losses *losses)
{
	struct scores s;
	compute_scores(&s, z, how);
	add_gate_grads(dz, dg, gates, ids, &s, how);
	if (!losses)
		return;
	float balance = 0;
	if (losses->f) {
		int64_t set =
			losses->seq_rows ? (losses->first_row + i) / losses->seq_rows : 0;
		add_balance_grads(dz, &balance, losses->f + set * how->experts,
			losses->weights[0], &s, how);
	}
	if (losses->weights[1] != 0)
		add_z_grads(dz, z, lse, losses->weights[1], how->experts);
	if (losses->values) {
		losses->values[i] = balance;
		losses->values[rows + i] = lse * lse;
	}
}

void K(route_bwd)(struct device *d, struct mat dz, float *dshared, struct mat dg,
	const int32_t *ids, struct mat gates, const float *lse, struct mat h,
	struct mat wr, const struct router *how, const struct router_losses *losses)
{
	const int64_t k = how->per_row, n_experts = how->experts;
	float *z = K(thread_floats)(ROUTE_ROWS * n_experts);
	check_router(gates, h, wr, how);
	BUG_ON(dz.cols != n_experts || dz.rows != h.rows || dg.cols != gates.cols);
	for (int64_t at = 0; at < h.rows; at += ROUTE_ROWS) {
		struct mat part = mat_rows(h, at, min64(ROUTE_ROWS, h.rows - at));
		router_logits(z, part, wr);
#pragma omp parallel for if (part.rows * n_experts > PARALLEL_FROM)
		for (int64_t i = at; i < at + part.rows; i++)
			row_grads(mat_row(dz, i), z + (i - at) * n_experts,
				mat_row(dg, i), mat_row(gates, i), ids + i * k, lse[i], i,
				h.rows, how, losses);
	}
	for (int64_t i = 0; i < h.rows && gates.cols > k; i++) {
		float g = mat_row(gates, i)[k];
		dshared[i] = mat_row(dg, i)[k] * g * (1.0f - g);
	}
}

void K(route_bwd_x)(struct device *d, struct mat dh, struct mat dz, struct mat wr)
{
	BUG_ON(dh.rows != dz.rows || dz.cols != wr.rows || dh.cols != wr.cols);
	const struct gemm g = {
		.m = dh.rows,
		.n = dh.cols,
		.k = dz.cols,
		.left = {dz.p, dz.cols, false, dz.type},
		.right = {wr.p, wr.cols, true, wr.type},
		.c = dh.p,
		.c_stride = dh.cols,
		.type = dh.type,
		.add = true,
		.alpha = 1,
	};
	K(gemm)(&g);
}

void K(route_bwd_w)(struct device *d, struct mat dw, struct mat dz, struct mat h)
{
	BUG_ON(dw.rows != dz.cols || dw.cols != h.cols || dz.rows != h.rows);
	const struct gemm g = {
		.m = dw.rows,
		.n = dw.cols,
		.k = h.rows,
		.left = {dz.p, dz.cols, true, dz.type},
		.right = {h.p, h.cols, true, h.type},
		.c = dw.p,
		.c_stride = dw.cols,
		.type = dw.type,
		.alpha = 1,
	};
	K(gemm)(&g);
}

/* ---- order of slots ------------------------------------------------------------------ */

/* A counting sort: offsets[g + 1] is the number of slots of group g, then the group's next free
 * place, and at last its end. */
void K(sort_slots)(struct device *d, int32_t *pos, int32_t *slots, int32_t *offsets,
	const int32_t *ids, int64_t rows, int64_t chunk_rows, int64_t slot_stride,
	const struct router *how)
{
	const int64_t k = how->per_row, chunks = ceil_div(rows, chunk_rows);
	const int64_t groups = how->experts * chunks;
	int32_t *next = offsets + 1, at = 0;
	BUG_ON(rows * slot_stride > INT32_MAX || slot_stride < k);
	memset(offsets, 0, (size_t)(groups + 1) * sizeof(*offsets));
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < k; j++)
			next[ids[i * k + j] * chunks + i / chunk_rows]++;
	for (int64_t g = 0; g < groups; g++) {
		int32_t count = next[g];
		next[g] = at;
		at += count;
	}
	for (int64_t i = 0; i < rows; i++) {
		for (int64_t j = 0; j < k; j++) {
			int32_t to = next[ids[i * k + j] * chunks + i / chunk_rows]++;
			pos[i * k + j] = to;
			slots[to] = (int32_t)(i * slot_stride + j);
		}
	}
}

/* ---- capacity ------------------------------------------------------------------------ */

/* The slot at a place of a group. */
struct candidate {
	float gate;
	int32_t place;
};

/* Orders by falling gate, then by rising place. NaN comes last. */
static int compare_candidates(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;
	float g = isnan(x->gate) ? -INFINITY : x->gate;
	float h = isnan(y->gate) ? -INFINITY : y->gate;
	return g > h ? -1 : g < h ? 1 : (x->place > y->place) - (x->place < y->place);
}

void K(slots_drop)(struct device *d, struct mat kept, int64_t *n_dropped,
	struct mat gates, const int32_t *slots, const int32_t *offsets, int64_t groups,
	int64_t max_slots, int64_t capacity)
{
	scoped_ptr struct candidate *list = xcalloc((size_t)max_slots, sizeof(*list));
	for (int64_t g = 0; g < groups; g++) {
		int64_t n = offsets[g + 1] - offsets[g];
		BUG_ON(n > max_slots);
		if (n <= capacity)
			continue;
		for (int32_t i = offsets[g]; i < offsets[g + 1]; i++)
			list[i - offsets[g]] =
				(struct candidate){((float *)gates.p)[slots[i]], i};
		qsort(list, (size_t)n, sizeof(*list), compare_candidates);
		for (int64_t i = capacity; i < n; i++)
			((float *)kept.p)[slots[list[i].place]] = 0;
		*n_dropped += n - capacity;
	}
}

void K(slots_mask)(struct device *d, struct mat dgates, struct mat kept, struct mat gates)
{
	const float *x = kept.p, *y = gates.p;
	float *to = dgates.p;
	for (int64_t i = 0; i < mat_size(dgates); i++)
		if (fpclassify(x[i]) == FP_ZERO && fpclassify(y[i]) != FP_ZERO)
			to[i] = 0;
}

/* ---- load balance -------------------------------------------------------------------- */

void K(counts_sum)(struct device *d, int64_t *sums, const int32_t *counts, int64_t n_sets,
	int64_t per_sum, int64_t experts, bool add)
{
	if (!add)
		memset(sums, 0,
			(size_t)(ceil_div(n_sets, per_sum) * experts) * sizeof(*sums));
	for (int64_t s = 0; s < n_sets; s++)
		for (int64_t e = 0; e < experts; e++)
			sums[s / per_sum * experts + e] += counts[s * experts + e];
}

static int64_t sum_counts(const int64_t *counts, int64_t n)
{
	int64_t sum = 0;
	for (int64_t e = 0; e < n; e++)
		sum += counts[e];
	return sum;
}

void K(counts_fractions)(struct device *d, float *f, const int64_t *counts,
	int64_t n_sets, int64_t experts, const struct update *update)
{
	if (update && update->off)
		return;
	for (int64_t s = 0; s < n_sets; s++, counts += experts, f += experts) {
		int64_t sum = sum_counts(counts, experts);
		for (int64_t e = 0; e < experts; e++)
			f[e] = (float)(sum ? (double)counts[e] / (double)sum
					   : 1 / (double)experts);
	}
}

void K(bias_balance)(struct device *d, float *bias, const int64_t *counts,
	int64_t experts, float rate, bool center, const struct update *update)
{
	int64_t sum = sum_counts(counts, experts), signs = 0;
	if (update && update->off)
		return;
	for (int64_t e = 0; e < experts; e++)
		signs += (sum > experts * counts[e]) - (sum < experts * counts[e]);
	float mean = center ? rate * ((float)signs / (float)experts) : 0;
	for (int64_t e = 0; e < experts; e++) {
		int sign = (sum > experts * counts[e]) - (sum < experts * counts[e]);
		bias[e] += rate * (float)sign - mean;
	}
}
