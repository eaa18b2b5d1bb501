/* The router of experts: choices, gates, their gradients, load balance, and the order of slots. A
 * warp has a row. */
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/groups.h"
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/experts.h"
#include "kernels/optimizer.h"
}

enum { ROUTE_WARPS = 4, ROUTE_THREADS = ROUTE_WARPS * WARP };

/* for scores.inc */
#define LOGISTIC sigmoid
#define EXP expf
#define LOG1P log1pf
#define EXPM1 expm1f

/* Returns the score of a logit that is a function of it; for softmax, x. */
static __device__ inline float score_of(const struct router &how, float z, float x)
{
	switch (how.kind) {
#define SCORE(id, word, score, slope) \
	case ROUTER_##id:             \
		return score;
#include "kernels/scores.inc"
	default:
		return x;
	}
}

/* Returns the derivative of the logarithm of a score, for softmax without the sum's part. */
static __device__ inline float log_slope(const struct router &how, float s)
{
	switch (how.kind) {
#define SCORE(id, word, score, slope) \
	case ROUTER_##id:             \
		return slope;
#include "kernels/scores.inc"
	default:
		return 1.0f;
	}
}

/* The scores of a warp's row, in shared memory. */
struct warp_scores {
	float p[MAX_ROUTER_EXPERTS]; /* for softmax, e^(z - max z), to be divided by `sum` */
	int keys[MAX_ROUTER_EXPERTS];
	int ids[MAX_EXPERTS_PER_ROW];
};

struct score_sums {
	float sum, lse;
};

/* Computes the scores of a row of logits; returns their sum and the log-sum-exp. */
static __device__ inline struct score_sums compute_scores(
	struct warp_scores &s, const float *z, const struct router &how)
{
	const int n = (int)how.experts, lane = lane_number();
	float max = -INFINITY, sum = 0, total = 0;
	for (int e = lane; e < n; e += WARP)
		max = fmaxf(max, z[e]);
	max = warp_max(max);
	for (int e = lane; e < n; e += WARP) {
		float x = expf(z[e] - max);
		sum += x;
		x = score_of(how, z[e], x);
		total += x;
		s.p[e] = x;
	}
	__syncwarp();
	sum = warp_sum(sum);
	return {warp_sum(total), max + logf(sum)};
}

/* ---- choices --------------------------------------------------------------------------- */

/* Keys are integers in the order of the scores. Scores of NaN have the key of -infinity. */
enum {
	KEY_CHOSEN = INT32_MIN,
	KEY_MASKED = INT32_MIN + 1,
	KEY_INFINITE = INT32_MIN + 0x7fffff
};

static __device__ inline int score_key(float x)
{
	int bits = __float_as_int(x + 0.0f); /* 0 and -0 have one key */
	return x != x ? (int)KEY_INFINITE : bits < 0 ? bits ^ INT32_MAX : bits;
}

static __device__ inline float key_score(int key)
{
	return __int_as_float(key < 0 ? key ^ INT32_MAX : key);
}

/* Returns the index of the largest key, the lowest of equal ones. All lanes get it. */
static __device__ inline int largest_key(const int *keys, int n)
{
	int best = INT32_MIN, at = INT32_MAX;
	for (int i = lane_number(); i < n; i += WARP) {
		int key = keys[i];
		if (at == INT32_MAX || key > best) {
			best = key;
			at = i;
		}
	}
	for (int i = WARP / 2; i; i /= 2) {
		int key = __shfl_xor_sync(ALL_LANES, best, i);
		int other = __shfl_xor_sync(ALL_LANES, at, i);
		if (key > best || (key == best && other < at)) {
			best = key;
			at = other;
		}
	}
	return at;
}

/* Returns the key of the sum of the two best scores of a group. */
static __device__ inline int group_key(const int *keys, int n)
{
	int best = INT32_MIN, second = INT32_MIN;
	for (int i = 0; i < n; i++) {
		int key = keys[i];
		second = key > best ? best : max(key, second);
		best = max(best, key);
	}
	return n < 2 ? best : score_key(key_score(best) + key_score(second));
}

/* Masks the keys of all groups except the best ones. `groups` is memory for a key of each. */
static __device__ inline void mask_groups(
	int *keys, int *groups, const struct router &how)
{
	const int size = (int)(how.experts / how.groups), n = (int)how.groups;
	for (int g = lane_number(); g < n; g += WARP)
		groups[g] = group_key(keys + g * size, size);
	__syncwarp();
	for (int i = 0; i < (int)how.top_groups; i++) {
		int g = largest_key(groups, n);
		__syncwarp();
		if (lane_number() == 0)
			groups[g] = KEY_CHOSEN;
		__syncwarp();
	}
	for (int e = lane_number(); e < (int)how.experts; e += WARP)
		if (groups[e / size] != KEY_CHOSEN)
			keys[e] = KEY_MASKED;
	__syncwarp();
}

static __device__ inline void compute_keys(struct warp_scores &s, int *groups,
	const float *z, float sum, const float *bias, const struct router &how)
{
	const bool softmax = how.kind == ROUTER_SOFTMAX, grouped = how.groups > 1;
	const float scale = softmax ? 1.0f / sum : 1.0f;
	for (int e = lane_number(); e < (int)how.experts; e += WARP) {
		float x = s.p[e] * scale + (bias ? bias[e] : 0.0f);
		s.keys[e] = score_key(softmax && !bias && !grouped ? z[e] : x);
	}
	__syncwarp();
	if (grouped)
		mask_groups(s.keys, groups, how);
}

/* Inserts x into n ascending ids. */
static __device__ inline void insert_id(int *ids, int n, int x)
{
	for (; n > 0 && ids[n - 1] > x; n--)
		ids[n] = ids[n - 1];
	ids[n] = x;
}

/* Chooses the experts of row i into s.ids; s.keys are computed unless they are forced. */
static __device__ inline void choose_experts(
	struct warp_scores &s, const struct router &how, int64_t i)
{
	for (int j = 0; j < (int)how.per_row; j++) {
		int e = how.force ? (int)((how.pos[i] * how.per_row + j) % how.force)
				  : largest_key(s.keys, (int)how.experts);
		__syncwarp();
		if (lane_number() == 0) {
			s.keys[e] = KEY_CHOSEN;
			insert_id(s.ids, j, e);
		}
		__syncwarp();
	}
}

struct route_args {
	int32_t *ids, *counts;
	float *gates, *lse;
	int n_gates;
	const float *logits, *bias, *shared;
	int64_t first, rows; /* rows of the logits */
};

static __global__ void __launch_bounds__(ROUTE_THREADS)
	route_kernel(struct route_args x, struct router how)
{
	__shared__ struct warp_scores all[ROUTE_WARPS];
	__shared__ int groups[ROUTE_WARPS][MAX_ROUTER_EXPERTS / 2];
	struct warp_scores &s = all[warp_number()];
	const int k = (int)how.per_row, lane = lane_number();
	int64_t own = (int64_t)blockIdx.x * ROUTE_WARPS + warp_number(),
		i = x.first + own;
	if (own >= x.rows)
		return;
	const float *z = x.logits + own * how.experts;
	struct score_sums sums = compute_scores(s, z, how);
	if (!how.force)
		compute_keys(s, groups[warp_number()], z, sums.sum, x.bias, how);
	choose_experts(s, how, i);
	float chosen = 0;
	for (int j = 0; j < k; j++)
		chosen += s.p[s.ids[j]];
	float divisor = how.normalize		     ? chosen + 1e-20f
			: how.kind == ROUTER_SOFTMAX ? sums.sum
						     : 1.0f;
	for (int j = lane; j < k; j += WARP) {
		int e = s.ids[j];
		float gate = how.scale * (s.p[e] / divisor);
		x.ids[i * k + j] = e;
		x.gates[i * x.n_gates + j] = sums.lse != sums.lse ? sums.lse : gate;
		if (x.counts)
			atomicAdd(&x.counts[i / how.seq_rows * how.experts + e], 1);
	}
	if (lane == 0) {
		x.lse[i] = sums.lse;
		if (x.n_gates > k)
			x.gates[i * x.n_gates + k] = sigmoid(x.shared[own]);
	}
}

/* Calls fn(first row, rows, logits, memory for a number per row) for ranges of rows, with the
 * logits computed. */
template <typename F>
static void by_logits(
	struct device *d, const char *name, struct mat h, struct mat wr, F fn)
{
	enum { MAX_BYTES = 16 << 20 };
	int64_t row_bytes = (wr.rows + 1) * (int64_t)sizeof(float);
	int64_t step = max64(64, MAX_BYTES / row_bytes);
	for (int64_t first = 0; first < h.rows; first += step) {
		int64_t rows = min64(step, h.rows - first);
		float *logits = (float *)cuda_workspace(d, (size_t)(rows * row_bytes));
		struct mat part = mat_rows(h, first, rows);
		cuda_router_logits(d, name, logits, part, wr);
		fn(part, first, logits, logits + rows * wr.rows);
	}
}

static void check_router(
	struct mat gates, struct mat h, struct mat wr, const struct router *how)
{
	BUG_ON(wr.rows != how->experts || wr.cols != h.cols || gates.rows != h.rows);
	BUG_ON(how->experts > MAX_ROUTER_EXPERTS || how->per_row > MAX_EXPERTS_PER_ROW);
	BUG_ON(how->per_row > how->experts || how->per_row < 1);
	BUG_ON(gates.cols != how->per_row && gates.cols != how->per_row + 1);
	BUG_ON(how->groups > 1 &&
		(how->experts % how->groups || how->groups > MAX_ROUTER_EXPERTS / 2));
	BUG_ON(how->force && (how->force < how->per_row || how->force > how->experts));
}

void cuda_route_fwd(struct device *d, int32_t *ids, struct mat gates, float *lse,
	int32_t *counts, struct mat h, struct mat wr, const float *bias,
	struct mat shared, const struct router *how)
{
	check_router(gates, h, wr, how);
	BUG_ON((gates.cols > how->per_row) != (shared.p != NULL));
	if (counts)
		cuda_zero(d, mat(counts, ceil_div(h.rows, how->seq_rows), how->experts));
	by_logits(d, "route_fwd", h, wr,
		[&](struct mat part, int64_t first, float *logits, float *extra) {
			if (shared.p)
				cuda_router_logits(d, "route_fwd", extra, part, shared);
			const struct route_args args = {ids, counts, floats_of(gates),
				lse, (int)gates.cols, logits, bias, extra, first,
				part.rows};
			launch(d, "route_fwd", grid_of(ceil_div(part.rows, ROUTE_WARPS)),
				ROUTE_THREADS, 0, route_kernel, args, *how);
		});
}

/* ---- gradients ------------------------------------------------------------------------- */

struct route_bwd_args {
	float *dz, *dshared;
	const float *dg, *gates, *lse, *logits;
	const int32_t *ids;
	int n_gates;
	int64_t first, rows, all_rows;
	struct router_losses losses;
	bool has_losses;
};

/* Writes the gradient that comes from the gates. */
static __device__ inline void set_gate_grads(float *dz, const struct route_bwd_args &x,
	const struct warp_scores &s, float total, int64_t i, const struct router &how)
{
	const int k = (int)how.per_row, n = (int)how.experts;
	const bool plain = how.kind == ROUTER_SOFTMAX && !how.normalize;
	const float *dg = x.dg + i * x.n_gates, *gates = x.gates + i * x.n_gates;
	float sum = 0;
	for (int j = 0; j < k; j++)
		sum += gates[j] * dg[j];
	for (int e = lane_number(); e < n; e += WARP)
		dz[e] = plain ? -(s.p[e] / total) * sum : 0.0f;
	__syncwarp();
	const float mean = how.normalize ? sum / how.scale : 0.0f;
	for (int j = lane_number(); j < k; j += WARP) {
		int e = x.ids[i * k + j];
		float slope = log_slope(how, s.p[e]);
		dz[e] = plain ? dz[e] + gates[j] * dg[j]
			      : gates[j] * slope * (dg[j] - mean);
	}
	__syncwarp();
}

/* Adds the gradients of the losses, and writes the losses of row i. */
static __device__ inline void add_loss_grads(float *dz, const struct route_bwd_args &x,
	const struct warp_scores &s, const float *z, float total, int64_t i,
	const struct router &how)
{
	const int n = (int)how.experts, lane = lane_number();
	const struct router_losses &l = x.losses;
	const float lse = x.lse[i], weight_z = l.weights[1];
	float mean = 0;
	if (l.f) {
		int64_t set = l.seq_rows ? (l.first_row + i) / l.seq_rows : 0;
		const float *f = l.f + set * how.experts;
		float factor = l.weights[0] * (float)n;
		for (int e = lane; e < n; e += WARP)
			mean += f[e] * (s.p[e] / total);
		mean = warp_sum(mean);
		for (int e = lane; e < n; e += WARP) {
			float slope = log_slope(how, s.p[e]);
			dz[e] += factor * (s.p[e] / total) * slope * (f[e] - mean);
		}
	}
	for (int e = lane; e < n && weight_z != 0; e += WARP)
		dz[e] += 2.0f * weight_z * lse * expf(z[e] - lse);
	if (l.values && lane == 0) {
		l.values[i] = (float)n * mean;
		l.values[x.all_rows + i] = lse * lse;
	}
}

static __global__ void __launch_bounds__(ROUTE_THREADS)
	route_bwd_kernel(struct route_bwd_args x, struct router how)
{
	__shared__ struct warp_scores all[ROUTE_WARPS];
	struct warp_scores &s = all[warp_number()];
	int64_t own = (int64_t)blockIdx.x * ROUTE_WARPS + warp_number(),
		i = x.first + own;
	if (own >= x.rows)
		return;
	const float *z = x.logits + own * how.experts;
	float *dz = x.dz + i * how.experts;
	float total = compute_scores(s, z, how).sum;
	set_gate_grads(dz, x, s, total, i, how);
	if (x.has_losses)
		add_loss_grads(dz, x, s, z, total, i, how);
	if (x.n_gates > how.per_row && lane_number() == 0) {
		int64_t at = i * x.n_gates + how.per_row;
		float g = x.gates[at];
		x.dshared[i] = x.dg[at] * g * (1.0f - g);
	}
}

void cuda_route_bwd(struct device *d, struct mat dz, float *dshared, struct mat dg,
	const int32_t *ids, struct mat gates, const float *lse, struct mat h,
	struct mat wr, const struct router *how, const struct router_losses *losses)
{
	check_router(gates, h, wr, how);
	BUG_ON(dz.cols != how->experts || dz.rows != h.rows || dg.cols != gates.cols);
	by_logits(d, "route_bwd", h, wr,
		[&](struct mat part, int64_t first, float *logits, float *) {
			struct route_bwd_args args = {floats_of(dz), dshared,
				floats_of(dg), floats_of(gates), lse, logits, ids,
				(int)gates.cols, first, part.rows, h.rows, {},
				losses != NULL};
			if (losses)
				args.losses = *losses;
			launch(d, "route_bwd", grid_of(ceil_div(part.rows, ROUTE_WARPS)),
				ROUTE_THREADS, 0, route_bwd_kernel, args, *how);
		});
}

/* ---- order of slots -------------------------------------------------------------------- */

enum { SORT_WARPS = 8, SORT_THREADS = SORT_WARPS * WARP };

struct sort_args {
	int32_t *pos, *slots, *offsets;
	const int32_t *ids;
	int64_t rows, chunk_rows, chunks, slot_stride;
	int k;
};

/* Returns the slot of row i that has the expert, or -1. */
static __device__ inline int slot_of(const struct sort_args &x, int64_t i, int expert)
{
	int slot = -1;
	for (int j = 0; j < x.k; j++)
		slot = x.ids[i * x.k + j] == expert ? j : slot;
	return slot;
}

/* A block has a group. PLACE: gives each of its slots a place; otherwise sets offsets[group + 1] to
 * their number. */
template <bool PLACE>
static __global__ void __launch_bounds__(SORT_THREADS)
	sort_slots_kernel(struct sort_args x)
{
	const int64_t group = blockIdx.x, chunk = group % x.chunks;
	const int expert = (int)(group / x.chunks);
	int64_t first = chunk * x.chunk_rows, end = min64(first + x.chunk_rows, x.rows);
	int64_t at = PLACE ? x.offsets[group] : 0;
	for (int64_t from = first; from < end; from += SORT_THREADS) {
		int64_t i = from + threadIdx.x;
		int slot = i < end ? slot_of(x, i, expert) : -1;
		unsigned total, before = count_before<SORT_WARPS>(slot >= 0, &total);
		if (PLACE && slot >= 0) {
			x.pos[i * x.k + slot] = (int32_t)(at + before);
			x.slots[at + before] = (int32_t)(i * x.slot_stride + slot);
		}
		at += total;
	}
	if (!PLACE && threadIdx.x == 0)
		x.offsets[group + 1] = (int32_t)at;
}

/* Turns the numbers offsets[1], ..., offsets[n] into their running sums; offsets[0] = 0. */
static __global__ void __launch_bounds__(SORT_THREADS)
	sum_offsets_kernel(int32_t *offsets, int64_t n)
{
	int32_t before = 0;
	for (int64_t first = 0; first < n; first += SORT_THREADS) {
		int64_t i = first + threadIdx.x;
		int32_t sum = i < n ? offsets[i + 1] : 0;
		for (int step = 1; step < WARP; step *= 2) {
			int32_t other = __shfl_up_sync(ALL_LANES, sum, step);
			sum += lane_number() >= step ? other : 0;
		}
		/* the sums of warps: lane 31 of each */
		int32_t last = __shfl_sync(ALL_LANES, sum, WARP - 1);
		int32_t of_warp = gather_warps<SORT_WARPS>(last, 0);
		int32_t own = warp_sum(lane_number() < warp_number() ? of_warp : 0);
		if (i < n)
			offsets[i + 1] = before + own + sum;
		before += warp_sum(of_warp);
	}
	if (threadIdx.x == 0)
		offsets[0] = 0;
}

void cuda_sort_slots(struct device *d, int32_t *pos, int32_t *slots, int32_t *offsets,
	const int32_t *ids, int64_t rows, int64_t chunk_rows, int64_t slot_stride,
	const struct router *how)
{
	const int64_t chunks = ceil_div(rows, chunk_rows), groups = how->experts * chunks;
	const struct sort_args args = {pos, slots, offsets, ids, rows, chunk_rows, chunks,
		slot_stride, (int)how->per_row};
	BUG_ON(rows * slot_stride > INT32_MAX || slot_stride < how->per_row);
	launch(d, "sort_slots", grid_of(groups), SORT_THREADS, 0,
		sort_slots_kernel<false>, args);
	launch(d, "sort_slots", 1, SORT_THREADS, 0, sum_offsets_kernel, offsets, groups);
	launch(d, "sort_slots", grid_of(groups), SORT_THREADS, 0, sort_slots_kernel<true>,
		args);
}

/* ---- capacity -------------------------------------------------------------------------- */

/* The keys of a group, DROP_THREADS at a time, and one thread per slot, which counts the slots
 * before its own. A block per DROP_THREADS slots that a group may have. */
enum { DROP_THREADS = 256 };

static __global__ void __launch_bounds__(DROP_THREADS)
	slots_drop_kernel(float *kept, int64_t *n_dropped, const float *gates,
		const int32_t *slots, const int32_t *offsets, int64_t capacity)
{
	__shared__ int keys[DROP_THREADS];
	const int first = offsets[blockIdx.x], n = offsets[blockIdx.x + 1] - first;
	const int me = (int)threadIdx.x, mine = (int)blockIdx.y * DROP_THREADS + me;
	if (n <= capacity || (int)blockIdx.y * DROP_THREADS >= n)
		return;
	const int slot = slots[first + min(mine, n - 1)], key = score_key(gates[slot]);
	int64_t before = 0;
	for (int at = 0; at < n; at += DROP_THREADS) {
		__syncthreads(); /* the last keys are read */
		keys[me] = at + me < n ? score_key(gates[slots[first + at + me]])
				       : (int)KEY_CHOSEN;
		__syncthreads();
		for (int i = 0; i < min(DROP_THREADS, n - at); i++)
			before += keys[i] > key || (keys[i] == key && at + i < mine);
	}
	if (mine < n && before >= capacity)
		kept[slot] = 0;
	if (mine == 0)
		atomicAdd((unsigned long long *)n_dropped,
			(unsigned long long)(n - capacity));
}

void cuda_slots_drop(struct device *d, struct mat kept, int64_t *n_dropped,
	struct mat gates, const int32_t *slots, const int32_t *offsets, int64_t groups,
	int64_t max_slots, int64_t capacity)
{
	const struct group_grid grid = slots_grid(groups, max_slots, DROP_THREADS);
	BUG_ON(!group_grid_fits(grid));
	launch(d, "slots_drop", dim3((unsigned)grid.x, (unsigned)grid.y), DROP_THREADS, 0,
		slots_drop_kernel, (float *)kept.p, n_dropped, (const float *)gates.p,
		slots, offsets, capacity);
}

static __global__ void __launch_bounds__(THREADS)
	slots_mask_kernel(float *dgates, const float *kept, const float *gates, int64_t n)
{
	int64_t i = thread_number();
	if (i < n && kept[i] == 0 && gates[i] != 0)
		dgates[i] = 0;
}

void cuda_slots_mask(
	struct device *d, struct mat dgates, struct mat kept, struct mat gates)
{
	int64_t n = mat_size(dgates);
	launch(d, "slots_mask", grid_of(ceil_div(n, THREADS)), THREADS, 0,
		slots_mask_kernel, (float *)dgates.p, (const float *)kept.p,
		(const float *)gates.p, n);
}

/* ---- load balance ---------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) counts_sum_kernel(int64_t *sums,
	const int32_t *counts, int64_t n_sets, int64_t per_sum, int64_t experts, bool add)
{
	int64_t i = thread_number(), set = i / experts * per_sum, e = i % experts;
	int64_t end = min64(set + per_sum, n_sets);
	if (set >= n_sets)
		return;
	int64_t sum = add ? sums[i] : 0;
	for (; set < end; set++)
		sum += counts[set * experts + e];
	sums[i] = sum;
}

void cuda_counts_sum(struct device *d, int64_t *sums, const int32_t *counts,
	int64_t n_sets, int64_t per_sum, int64_t experts, bool add)
{
	int64_t n = ceil_div(n_sets, per_sum) * experts;
	launch(d, "counts_sum", grid_of(ceil_div(n, THREADS)), THREADS, 0,
		counts_sum_kernel, sums, counts, n_sets, per_sum, experts, add);
}

static __device__ inline int64_t sum_counts(const int64_t *counts, int64_t n)
{
	int64_t sum = 0;
	for (int64_t e = 0; e < n; e++)
		sum += counts[e];
	return sum;
}

static __global__ void __launch_bounds__(THREADS)
	counts_fractions_kernel(float *f, const int64_t *counts, int64_t n_sets,
		int64_t experts, const struct update *update)
{
	int64_t i = thread_number();
	if (i >= n_sets * experts || (update && update->off))
		return;
	int64_t sum = sum_counts(counts + i / experts * experts, experts);
	f[i] = (float)(sum ? (double)counts[i] / (double)sum : 1 / (double)experts);
}

void cuda_counts_fractions(struct device *d, float *f, const int64_t *counts,
	int64_t n_sets, int64_t experts, const struct update *update)
{
	launch(d, "counts_fractions", grid_of(ceil_div(n_sets * experts, THREADS)),
		THREADS, 0, counts_fractions_kernel, f, counts, n_sets, experts, update);
}

static __device__ inline int load_sign(int64_t sum, int64_t n, int64_t count)
{
	return (sum > n * count) - (sum < n * count);
}

static __global__ void __launch_bounds__(THREADS)
	bias_balance_kernel(float *bias, const int64_t *counts, int64_t n, float rate,
		bool center, const struct update *update)
{
	int64_t e = thread_number(), sum = sum_counts(counts, n), signs = 0;
	if (e >= n || (update && update->off))
		return;
	for (int64_t i = 0; i < n; i++)
		signs += load_sign(sum, n, counts[i]);
	float mean = center ? rate * ((float)signs / (float)n) : 0.0f;
	bias[e] += rate * (float)load_sign(sum, n, counts[e]) - mean;
}

void cuda_bias_balance(struct device *d, float *bias, const int64_t *counts,
	int64_t experts, float rate, bool center, const struct update *update)
{
	launch(d, "bias_balance", grid_of(ceil_div(experts, THREADS)), THREADS, 0,
		bias_balance_kernel, bias, counts, experts, rate, center, update);
}
