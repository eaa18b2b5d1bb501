#include "tests/support/store_layouts.h"

#include <string.h>

/* ---- a model --------------------------------------------------------------------- */

static void add(struct tensor *list, int *n, const char *name, int unit, int64_t rows,
	int64_t cols, enum tp_split tp_split, int uses, int max_slices)
{
	struct tensor *t = &list[(*n)++];
	*t = (struct tensor){.unit = unit,
		.ndim = cols ? 2 : 1,
		.dims = {rows, cols},
		.tp_split = tp_split,
		.uses = uses,
		.max_slices = max_slices,
		.init = INIT_NORMAL,
		.std = 1};
	snprintf(t->name, sizeof(t->name), "%d.%s", unit, name);
}

/* The matrices of experts: two with four rows each, one slice of them per virtual rank, and one. */
static void add_stacks(struct tensor *list, int *n, int unit)
{
	const int experts = STORE_EXPERTS;
	add(list, n, "w13", unit, 2 * experts * 4, 3, TP_SPLIT_ROWS, 1, 0);
	list[*n - 1].experts = experts;
	list[*n - 1].blocks = 2 * experts;
	add(list, n, "w2", unit, experts * 3, 4, TP_SPLIT_COLS, 1, 0);
	list[*n - 1].experts = list[*n - 1].blocks = experts;
}

bool store_expert_is_idle(
	const struct tensor *t, int64_t expert, int64_t micro, int chunk)
{
	uint64_t key[] = {
		(uint64_t)t->unit, (uint64_t)expert, (uint64_t)micro, (uint64_t)chunk};
	return t->experts && hash_bytes(key, sizeof(key), 1) % 3 == 0;
}

void store_table(struct tensor *list, int64_t rows)
{
	int n = 0;
	add(list, &n, "tokens", 0, rows ? rows : 24, 8, TP_SPLIT_ROWS, 2, 0);
	add(list, &n, "positions", 0, 11, 8, TP_SPLIT_NONE, 1, 0);
	for (int u = 1; u < STORE_UNITS - 1; u++) {
		add(list, &n, "norm", u, 8, 0, TP_SPLIT_NONE, 1, 0);
		add(list, &n, "wq", u, 20, 8, TP_SPLIT_ROWS, 1, 0);
		add(list, &n, "bq", u, 20, 0, TP_SPLIT_ROWS, 1, 0);
		add(list, &n, "wk", u, 10, 8, TP_SPLIT_ROWS, 1, 2);
		add(list, &n, "wo", u, 9, 20, TP_SPLIT_COLS, 1, 0);
		if (u % 2)
			add_stacks(list, &n, u);
	}
	add(list, &n, "norm", STORE_UNITS - 1, 8, 0, TP_SPLIT_NONE, 1, 0);
	BUG_ON(n != STORE_TENSORS);
	for (int i = 0; i < n; i++) /* keys are used by several slices: those stay */
		list[i].tile = strstr(list[i].name, ".w")
				       ? 1 + (list[i].tp_split == TP_SPLIT_COLS)
				       : 0;
}

/* Units of stage `at` of n. */
int store_first_unit(int n, int at)
{
	return (int)part_begin(STORE_UNITS, n, at);
}

bool store_has_use(const struct mesh *m, const struct tensor *t, int use)
{
	int n = m->degree[AXIS_PP], at = m->coord[AXIS_PP];
	if (use == 1)
		return t->uses > 1 && at == n - 1;
	return t->unit >= store_first_unit(n, at) &&
	       t->unit < store_first_unit(n, at + 1);
}

/* The number of what a slice is used with: its unit, or a tile's. */
int store_used_with(const struct store *s, const struct tensor *t, int virtual_slice)
{
	if (!s->c.tile || !t->tile || t->users_per_slice > 1)
		return t->unit;
	return store_tile_unit(s, t->unit, t->tile, virtual_slice);
}

/* ---- layouts --------------------------------------------------------------------- */

const struct store_layout store_layouts[] = {
	/* pp dp fsdp cp tp */
	{{1, 2, 1, 1, 1}, 0, false, 0},
	{{1, 3, 1, 1, 1}, 0, false, 0},
	{{1, 1, 4, 1, 1}, 1, false, 0},
	{{1, 1, 4, 1, 1}, 2, false, 0},
	{{1, 1, 3, 1, 1}, 3, false, 0},
	{{1, 1, 3, 1, 1}, 3, true, 0},
	{{1, 1, 8, 1, 1}, 1, true, 0},
	{{1, 2, 2, 1, 1}, 3, false, 0},
	{{1, 2, 3, 1, 1}, 2, true, 0},
	{{1, 3, 2, 1, 1}, 3, false, 0},
	{{1, 2, 4, 1, 1}, 1, false, 0},
	{{1, 2, 2, 2, 1}, 2, false, 0},
	{{1, 2, 2, 1, 2}, 3, false, 0},
	{{1, 1, 1, 1, 2}, 0, false, 0},
	{{1, 1, 1, 1, 4}, 0, false, 0},
	{{1, 2, 1, 1, 2}, 0, false, 0},
	{{1, 1, 2, 1, 4}, 3, false, 0},
	{{1, 1, 1, 2, 1}, 0, false, 0},
	{{1, 1, 1, 4, 1}, 3, false, 0},
	{{1, 2, 1, 4, 1}, 0, false, 0},
	{{1, 1, 2, 2, 2}, 3, true, 0},
	{{2, 1, 1, 1, 1}, 0, false, 0},
	{{4, 1, 1, 1, 1}, 0, false, 0},
	{{2, 2, 1, 1, 2}, 0, false, 0},
	{{2, 1, 2, 2, 1}, 3, false, 0},
	{{2, 1, 2, 1, 2}, 2, true, 0},
	{{2, 1, 3, 1, 1}, 1, false, 0},
	/* the same, with a file */
	{{1, 1, 1, 1, 1}, 0, false, 0, OFFLOAD_OPTIMIZER},
	{{1, 1, 1, 1, 1}, 0, false, 0, OFFLOAD_PARAMS},
	{{1, 1, 1, 1, 1}, 0, false, 0, OFFLOAD_GRADS},
	{{1, 1, 1, 1, 1}, 3, true, 0, OFFLOAD_ALL},
	{{1, 2, 1, 1, 1}, 0, false, 0, OFFLOAD_PARAMS},
	{{1, 3, 1, 1, 1}, 0, false, 0, OFFLOAD_GRADS},
	{{1, 1, 1, 2, 2}, 0, false, 0, OFFLOAD_ALL},
	{{1, 2, 3, 1, 1}, 2, true, 0, OFFLOAD_OPTIMIZER},
	{{1, 2, 3, 1, 1}, 2, true, 0, OFFLOAD_GRADS},
	{{1, 1, 4, 1, 1}, 1, false, 0, OFFLOAD_GRADS},
	{{1, 1, 3, 1, 1}, 3, false, 0, OFFLOAD_PARAMS},
	{{1, 2, 2, 1, 1}, 3, true, 0, OFFLOAD_ALL},
	{{1, 1, 2, 2, 2}, 3, true, 0, OFFLOAD_PARAMS},
	{{2, 1, 2, 2, 1}, 3, false, 0, OFFLOAD_PARAMS},
	{{2, 2, 1, 1, 2}, 0, false, 0, OFFLOAD_GRADS},
	{{2, 1, 1, 1, 1}, 0, false, 0, OFFLOAD_GRADS},
	{{2, 2, 2, 1, 1}, 1, false, 0, OFFLOAD_GRADS},
	{{2, 2, 2, 1, 1}, 3, false, 0, OFFLOAD_GRADS},
	/* a slice at a time */
	{{1, 1, 1, 1, 1}, 0, false, 0, OFFLOAD_ALL, true},
	{{1, 1, 3, 1, 1}, 3, false, 0, OFFLOAD_NONE, true},
	{{1, 2, 2, 1, 1}, 3, true, 0, OFFLOAD_NONE, true},
	{{1, 1, 2, 1, 2}, 3, false, 0, OFFLOAD_PARAMS, true},
	{{1, 1, 2, 2, 2}, 3, true, 0, OFFLOAD_GRADS, true},
	{{2, 1, 2, 2, 1}, 3, false, 0, OFFLOAD_OPTIMIZER, true},
	/* on several hosts */
	{{1, 4, 1, 1, 1}, 0, .host_ranks = 2},
	{{1, 6, 1, 1, 1}, 0, .host_ranks = 3},
	{{1, 8, 1, 1, 1}, 0, .host_ranks = 2},
	{{1, 2, 1, 2, 2}, 0, .host_ranks = 4},
	{{1, 1, 6, 1, 1}, 1, .host_ranks = 2},
	{{1, 1, 4, 1, 1}, 2, .host_ranks = 2},
	{{1, 1, 8, 1, 1}, 3, .flat = true, .host_ranks = 4},
	{{1, 1, 8, 1, 1}, 3, .host_ranks = 2},
	{{1, 2, 4, 1, 1}, 3, .host_ranks = 2},
	{{1, 2, 4, 1, 1}, 2, .host_ranks = 4},
	{{1, 1, 2, 2, 2}, 3, .flat = true, .host_ranks = 4},
	{{2, 3, 1, 1, 1}, 0, .host_ranks = 2},
	{{2, 1, 4, 1, 1}, 3, .host_ranks = 2},
	{{2, 4, 1, 1, 1}, 0, .host_ranks = 2},
	{{1, 4, 1, 1, 1}, 0, .offload = OFFLOAD_GRADS, .host_ranks = 2},
	{{1, 2, 4, 1, 1}, 3, .offload = OFFLOAD_ALL, .host_ranks = 2},
	{{2, 4, 1, 1, 1}, 0, .offload = OFFLOAD_GRADS, .host_ranks = 2},
	{{1, 1, 4, 1, 1}, 1, .offload = OFFLOAD_GRADS, .host_ranks = 2},
	{{2, 1, 4, 1, 1}, 1, .host_ranks = 2},
	{{2, 1, 4, 1, 1}, 1, .offload = OFFLOAD_GRADS, .host_ranks = 2},
	{{2, 1, 4, 1, 1}, 3, .offload = OFFLOAD_GRADS, .host_ranks = 2},
	{{1, 1, 4, 1, 2}, 3, .tile = true, .host_ranks = 4},
	/* experts */
	{{1, 2, 1, 1, 1}, 0, .ep = 2},
	{{1, 4, 1, 1, 1}, 0, .ep = 2},
	{{1, 4, 1, 1, 1}, 0, .ep = 4},
	{{1, 1, 2, 1, 1}, 3, .ep = 2},
	{{1, 1, 4, 1, 1}, 3, .ep = 2},
	{{1, 1, 8, 1, 1}, 3, .flat = true, .ep = 4},
	{{1, 1, 4, 1, 1}, 1, .ep = 4},
	{{1, 1, 4, 1, 1}, 1, .ep = 2},
	{{1, 1, 4, 1, 1}, 2, .ep = 2},
	{{1, 2, 4, 1, 1}, 3, .ep = 2},
	{{1, 2, 4, 1, 1}, 2, .ep = 4},
	{{1, 4, 2, 1, 1}, 3, .ep = 4},
	{{1, 2, 2, 1, 1}, 1, .ep = 4},
	{{1, 1, 1, 4, 1}, 0, .ep = 2},
	{{1, 1, 2, 4, 1}, 3, .ep = 4},
	{{1, 2, 2, 2, 1}, 3, .ep = 2},
	{{1, 2, 1, 1, 2}, 0, .ep = 2},
	{{1, 1, 4, 1, 2}, 3, .flat = true, .ep = 2},
	{{2, 2, 2, 1, 1}, 3, .ep = 2},
	{{2, 4, 1, 1, 1}, 0, .ep = 4},
	{{1, 2, 1, 1, 1}, 0, .offload = OFFLOAD_PARAMS, .ep = 2},
	{{1, 3, 2, 1, 1}, 3, .offload = OFFLOAD_ALL, .ep = 2},
	{{1, 1, 4, 1, 1}, 3, .offload = OFFLOAD_ALL, .ep = 2},
	{{1, 1, 4, 1, 1}, 2, .offload = OFFLOAD_GRADS, .ep = 4},
	{{1, 1, 4, 1, 1}, 3, .offload = OFFLOAD_PARAMS, .ep = 4},
	{{1, 8, 1, 1, 1}, 0, .host_ranks = 4, .ep = 2},
	{{1, 1, 8, 1, 1}, 3, .host_ranks = 4, .ep = 2},
	{{1, 1, 8, 1, 1}, 2, .host_ranks = 4, .ep = 4},
	{{1, 2, 4, 1, 1}, 3, .host_ranks = 4, .ep = 4},
	{{1, 8, 1, 1, 1}, 0, .host_ranks = 2, .ep = 4},
};
const int n_store_layouts = ARRAY_LEN(store_layouts);

const struct store_layout store_workers[] = {
	{{1, 4, 1, 1, 1}, 0, false, 0},
	{{1, 1, 3, 1, 1}, 1, false, 0},
	{{1, 1, 4, 1, 1}, 2, false, 0},
	{{1, 1, 1, 2, 2}, 3, false, 0},
	{{1, 2, 2, 1, 1}, 1, false, 0},
	{{1, 2, 2, 1, 1}, 3, true, 0},
	{{2, 2, 1, 1, 1}, 0, false, 0},
	{{2, 1, 2, 1, 1}, 1, false, 0},
	{{2, 1, 2, 1, 1}, 3, false, 0},
	{{1, 4, 1, 1, 1}, 0, .host_ranks = 2},
	{{1, 1, 4, 1, 1}, 1, .host_ranks = 2},
	{{1, 1, 4, 1, 1}, 3, .host_ranks = 2},
	{{1, 1, 1, 1, 1}, 0, false, 0, OFFLOAD_GRADS},
	{{1, 1, 4, 1, 1}, 3, false, 0, OFFLOAD_ALL},
	{{1, 4, 1, 1, 1}, 0, .offload = OFFLOAD_GRADS, .host_ranks = 2},
	{{1, 1, 4, 1, 1}, 1, .offload = OFFLOAD_GRADS, .host_ranks = 2},
	{{1, 2, 2, 1, 1}, 3, false, 0, OFFLOAD_GRADS},
	{{2, 1, 1, 1, 1}, 0, false, 0, OFFLOAD_GRADS},
	{{2, 1, 2, 1, 1}, 3, false, 0, OFFLOAD_GRADS},
};
const int n_store_workers = ARRAY_LEN(store_workers);
