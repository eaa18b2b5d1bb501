/* What logs state about their runs: whether these can be compared, and read the same batches. */
#include "compare/judge_internal.h"
#include "options/options.h"

#include <math.h>

/* torchtitan's note on convergence (docs/converging.md) demands some of the first ones of whoever makes
 * the runs; here they are read from the logs. */
static const char *const keys[N_PROPERTIES] = {
	[KEY_DATA] = "data",
	[KEY_BATCH] = "batch",
	[KEY_CONTEXT] = "context",
	[KEY_TOKENS] = "tokens-per-step",
	[KEY_SAMPLING] = "sampling",
	[KEY_PACKING] = "packing",
	[KEY_WARMUP] = "warmup",
	[KEY_ARCH] = "arch",
	[KEY_LAYERS] = "layers",
	[KEY_HEADS] = "heads",
	[KEY_KV_HEADS] = "kv-heads",
	[KEY_DIM] = "dim",
	[KEY_FFN_DIM] = "ffn-dim",
	[KEY_ACT] = "act",
	[KEY_BIAS] = "bias",
	[KEY_TIE] = "tie",
	[KEY_PARAMETERS] = "parameters",
	[KEY_SEED] = "seed",
	[KEY_DATA_PER_RANK] = "data-per-rank",
	[KEY_ASYNC] = "edit-use-async",
	[KEY_NUMERICS] = "numerics",
};

static int take(void *to, const char *key, const char *value, struct err *e)
{
	struct properties *p = to;
	(void)e;
	for (int k = 0; k < N_PROPERTIES; k++)
		if (!strcmp(key, keys[k]))
			snprintf(p->value[k], sizeof(p->value[k]), "%s", value);
	return 0;
}

/* If the text is damaged, those before the damage. */
void properties_of(const struct run_log *l, struct properties *p)
{
	struct err e;
	memset(p, 0, sizeof(*p));
	if (l->config.len)
		conf_parse(l->config.s, l->config.len, "config", take, p, &e);
	/* Another program's log may name the data; the directory depends on the machine. pt's
	 * arithmetic has the hash of the data. */
	char *slash = strrchr(p->value[KEY_DATA], '/');
	if (slash)
		memmove(p->value[KEY_DATA], slash + 1, strlen(slash));
	if (l->arithmetic.len)
		conf_parse(l->arithmetic.s, l->arithmetic.len, "arithmetic", take, p, &e);
}

static bool both_state(const struct properties *a, const struct properties *b, int key)
{
	return a->value[key][0] && b->value[key][0];
}

static bool equal(const struct properties *a, const struct properties *b, int key)
{
	return !strcmp(a->value[key], b->value[key]);
}

/* pt's number of parameters includes the padding of the vocabulary, which depends on the tensor-parallel
 * degree; where both logs state the shape of the model, that is what is compared. */
static bool is_compared(const struct properties *a, const struct properties *b, int key)
{
	bool shapes = both_state(a, b, KEY_DIM) && both_state(a, b, KEY_LAYERS);
	return both_state(a, b, key) && !(key == KEY_PARAMETERS && shapes);
}

/* Logs of others round what they print, to three digits or more. */
static double rounding(const struct run_log *l)
{
	return l->info.format && strcmp(l->info.format, "pt-run") != 0 ? 0.01 : 0;
}

/* The tokens of the first step that both logs have. */
static bool tokens_differ(const struct run_log *a, const struct run_log *b, double at[3])
{
	for (int64_t i = 0, j = 0; i < a->n_rows && j < b->n_rows;) {
		double x = run_log_value(a, i, COL_STEP),
		       y = run_log_value(b, j, COL_STEP);
		bool here = x == y && x > 0 && run_log_has(a, i, COL_TOKENS) &&
			    run_log_has(b, j, COL_TOKENS);
		at[0] = x;
		at[1] = run_log_value(a, i, COL_TOKENS);
		at[2] = run_log_value(b, j, COL_TOKENS);
		if (here)
			return fabs(at[1] - at[2]) >
			       fmax(rounding(a), rounding(b)) * at[1];
		i += !(x > y);
		j += !(y > x);
	}
	return false;
}

bool comparable(const struct run_log *control, const struct run_log *test,
	struct str *differences)
{
	struct properties a, b;
	size_t before = differences->len;
	double at[3];
	properties_of(control, &a);
	properties_of(test, &b);
	for (int k = 0; k < N_COMPARED; k++)
		if (is_compared(&a, &b, k) && !equal(&a, &b, k))
			str_printf(differences, "%s%s: %s, %s",
				differences->len > before ? "; " : "", keys[k],
				a.value[k], b.value[k]);
	if (tokens_differ(control, test, at))
		str_printf(differences, "%stokens after step %.0f: %.0f, %.0f",
			differences->len > before ? "; " : "", at[0], at[1], at[2]);
	return differences->len == before;
}

int same_batches(const struct properties *a, const struct properties *b)
{
	static const int order[] = {
		KEY_SEED, KEY_DATA, KEY_BATCH, KEY_CONTEXT, KEY_SAMPLING};
	if (!both_state(a, b, KEY_SEED) || !both_state(a, b, KEY_DATA))
		return -1;
	for (size_t i = 0; i < ARRAY_LEN(order); i++)
		if (!equal(a, b, order[i]))
			return 0;
	/* the order then depends on the number of ranks */
	return strcmp(a->value[KEY_DATA_PER_RANK], "yes") ? 1 : -1;
}

/* Synchronisation by the clock, and sums in NCCL's order, are not repeatable. */
static bool repeatable(const struct run_log *l)
{
	struct properties p;
	properties_of(l, &p);
	return strcmp(p.value[KEY_ASYNC], "yes") && strcmp(p.value[KEY_NUMERICS], "fast");
}

bool same_arithmetic(const struct run_log *a, const struct run_log *b)
{
	return a->info.arithmetic && a->info.arithmetic == b->info.arithmetic &&
	       repeatable(a);
}
