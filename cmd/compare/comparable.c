/* Reads from logs whether their runs can be compared, and whether they read the same batches. */
#include "compare/judge_internal.h"
#include "options/options.h"

#include <math.h>

/* torchtitan's note on convergence (docs/converging.md) asks users to keep some of the first ones
 * equal; here they are read from the logs. */
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

/* Copies a value to its property, if the key is one of them. to: struct properties. Returns 0. */
static int store_property(void *to, const char *key, const char *value, struct err *e)
{
	struct properties *p = to;
	(void)e;
	for (int k = 0; k < N_PROPERTIES; k++)
		if (!strcmp(key, keys[k]))
			snprintf(p->value[k], sizeof(p->value[k]), "%s", value);
	return 0;
}

void read_properties(const struct run_log *l, struct properties *p)
{
	struct err e;
	memset(p, 0, sizeof(*p));
	if (l->config.len)
		conf_parse(l->config.s, l->config.len, "config", store_property, p, &e);
	/* Keeps the file name of the data, since directories depend on the machine. pt's
	 * arithmetic then replaces it by a hash of the data. */
	char *slash = strrchr(p->value[KEY_DATA], '/');
	if (slash)
		memmove(p->value[KEY_DATA], slash + 1, strlen(slash));
	if (l->arithmetic.len)
		conf_parse(l->arithmetic.s, l->arithmetic.len, "arithmetic",
			store_property, p, &e);
}

static bool are_both_stated(
	const struct properties *a, const struct properties *b, int key)
{
	return a->value[key][0] && b->value[key][0];
}

static bool are_values_equal(
	const struct properties *a, const struct properties *b, int key)
{
	return !strcmp(a->value[key], b->value[key]);
}

/* Returns true if both logs state a property. The number of parameters is skipped if both state the
 * model's shape: pt counts vocabulary padding, which depends on the tensor-parallel degree. */
static bool is_compared(const struct properties *a, const struct properties *b, int key)
{
	bool have_shapes =
		are_both_stated(a, b, KEY_DIM) && are_both_stated(a, b, KEY_LAYERS);
	return are_both_stated(a, b, key) && !(key == KEY_PARAMETERS && have_shapes);
}

/* Returns the relative rounding of token counts: other programs print three digits or more. */
static double token_rounding(const struct run_log *l)
{
	return l->info.format && strcmp(l->info.format, "pt-run") != 0 ? 0.01 : 0;
}

/* Token counts of two logs in their common rows. */
struct token_rows {
	int64_t n;
	double first[3],
		last[3]; /* step, tokens of a, tokens of b: in the first and last row */
	double sum,
		squares; /* sum of (b's growth - a's growth)^2 over rows after the first */
};

/* Summarizes the token counts of two logs in their common rows. */
static struct token_rows collect_token_rows(
	const struct run_log *a, const struct run_log *b)
{
	struct token_rows t = {.n = 0};
	for (int64_t i = 0, j = 0; i < a->n_rows && j < b->n_rows;) {
		double x = run_log_value(a, i, COL_STEP),
		       y = run_log_value(b, j, COL_STEP);
		double current[] = {x, run_log_value(a, i, COL_TOKENS),
			run_log_value(b, j, COL_TOKENS)};
		i += !(x > y);
		j += !(y > x);
		if (x != y || !(x > 0) || is_absent(current[1]) || is_absent(current[2]))
			continue;
		if (!t.n++)
			memcpy(t.first, current, sizeof(current));
		else {
			double growth = current[2] - t.last[2] - (current[1] - t.last[1]);
			t.sum += growth;
			t.squares += growth * growth;
		}
		memcpy(t.last, current, sizeof(current));
	}
	return t;
}

/* Returns true if neither token_rounding nor chance explains a difference of token counts: if
 * samples differ in length, the number of tokens depends on the seed. */
static bool do_counts_differ(
	const double row[3], double rounding, double sd, int64_t n, int64_t df)
{
	const double level = 0.001;
	double d = fabs(row[2] - row[1]);
	double chance = df > 0 ? student_quantile(level, df) * sd * sqrt((double)n) : 0;
	return d > rounding * row[1] && d > chance;
}

/* Compares the token counts in the first and last common row; row[]: where they differ. */
static bool do_tokens_differ(
	const struct run_log *a, const struct run_log *b, double row[3])
{
	struct token_rows t = collect_token_rows(a, b);
	int64_t n = t.n - 1; /* rows after the first */
	double rounding = fmax(token_rounding(a), token_rounding(b));
	double squares = t.squares - (n > 0 ? t.sum * t.sum / (double)n : 0);
	double sd = n > 1 && squares > 0 ? sqrt(squares / (double)(n - 1)) : 0;
	bool differs_first = t.n && do_counts_differ(t.first, rounding, sd, 1, n - 1);
	memcpy(row, differs_first ? t.first : t.last, sizeof(t.first));
	return differs_first ||
	       (t.n && do_counts_differ(t.last, rounding, sd, t.n, n - 1));
}

bool are_comparable(const struct run_log *control, const struct run_log *test,
	struct str *differences)
{
	struct properties a, b;
	size_t old_len = differences->len;
	double row[3];
	read_properties(control, &a);
	read_properties(test, &b);
	for (int k = 0; k < N_COMPARED; k++)
		if (is_compared(&a, &b, k) && !are_values_equal(&a, &b, k))
			str_printf(differences, "%s%s: %s, %s",
				differences->len > old_len ? "; " : "", keys[k],
				a.value[k], b.value[k]);
	if (do_tokens_differ(control, test, row))
		str_printf(differences, "%stokens after step %.0f: %.0f, %.0f",
			differences->len > old_len ? "; " : "", row[0], row[1], row[2]);
	return differences->len == old_len;
}

int same_batches(const struct properties *a, const struct properties *b)
{
	static const int order[] = {
		KEY_SEED, KEY_DATA, KEY_BATCH, KEY_CONTEXT, KEY_SAMPLING};
	if (!are_both_stated(a, b, KEY_SEED) || !are_both_stated(a, b, KEY_DATA))
		return -1;
	for (size_t i = 0; i < ARRAY_LEN(order); i++)
		if (!are_values_equal(a, b, order[i]))
			return 0;
	/* with data-per-rank, the order depends on the number of ranks */
	return strcmp(a->value[KEY_DATA_PER_RANK], "yes") ? 1 : -1;
}

/* Returns false if the clock decides when ranks synchronize, or NCCL the order of sums. */
static bool is_repeatable(const struct run_log *l)
{
	struct properties p;
	read_properties(l, &p);
	return strcmp(p.value[KEY_ASYNC], "yes") && strcmp(p.value[KEY_NUMERICS], "fast");
}

bool same_arithmetic(const struct run_log *a, const struct run_log *b)
{
	return a->info.arithmetic && a->info.arithmetic == b->info.arithmetic &&
	       is_repeatable(a);
}
