/*
 * The formulas of pt-plan against step times that others measured:
 *   validate_plan VTRAIN [FOUNDRY]
 * VTRAIN: data/ of github.com/VIA-Research/vTrain, FOUNDRY: scripts/train/benchmarking/README.md of
 * github.com/mosaicml/llm-foundry. The few parameters of how that trainer computes are fitted on a
 * tenth of the rows, those whose hash is a multiple of ten, and the errors are of the others.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/planner.h"

enum { MOST_ROWS = 4096 };

struct row {
	struct shape s;
	struct layout l;
	double seconds, predicted;
	bool fitted;
};

/* What is fitted: each value times a factor. */
struct fit {
	struct cluster c;
	struct practice p;
	double peak;
};

static const struct kept kept[4];

static struct shape gpt(
	double layers, double dim, double heads, double vocab, double context)
{
	struct shape s = {.layers = layers,
		.dim = dim,
		.heads = heads,
		.kv_dim = dim,
		.ffn_dim = 4 * dim,
		.vocab = vocab,
		.context = context,
		.tied = true};
	s.block = 12 * dim * dim;
	s.embedding = vocab * dim;
	return s;
}

/* FNV-1a of the line. */
static uint64_t hash_of(const char *text)
{
	uint64_t h = 14695981039346656037u;
	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * 1099511628211u;
	return h ^ h >> 32;
}

/* gpus, batch, micro-batch, dim, heads, layers, context, tp, dp, pp, milliseconds. */
static bool vtrain_row(const char *line, int skip, struct row *r)
{
	double v[12];
	const char *at = line;
	char *end;
	for (int i = 0; i < 11 + skip; i++) {
		v[i] = strtod(at, &end);
		if (end == at || !isfinite(v[i]) || (i < 10 + skip && *end != ','))
			return false;
		at = end + 1;
	}
	const double *x = v + skip;
	if (x[2] < 1 || x[8] < 1 || x[1] / x[2] / x[8] > 1e9)
		return false;
	*r = (struct row){
		.s = gpt(x[5], x[3], x[4], 51200, x[6]), .seconds = x[10] / 1e3};
	r->l = (struct layout){.stages = 1,
		.schedule = SCHEDULE_1F1B,
		.micro_batch = (int)x[2],
		.n_micro = (int64_t)(x[1] / x[2] / x[8])};
	r->l.degree[AXIS_PP] = (int)x[9];
	r->l.degree[AXIS_DP] = (int)x[8];
	r->l.degree[AXIS_TP] = (int)x[7];
	r->l.degree[AXIS_FSDP] = r->l.degree[AXIS_CP] = 1;
	return r->l.n_micro > 0 && r->seconds > 0 && r->l.degree[AXIS_PP] > 0 &&
	       r->l.degree[AXIS_TP] > 0;
}

static int read_rows(const char *dir, const char *name, int skip, struct row *rows)
{
	char path[4096], line[1024];
	int n = 0;
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	FILE *f = fopen(path, "r");
	while (f && n < MOST_ROWS && fgets(line, sizeof(line), f))
		if (vtrain_row(line, skip, &rows[n]))
			rows[n++].fitted = hash_of(line) % 10 == 0;
	if (f)
		fclose(f);
	else
		fprintf(stderr, "%s: cannot be read\n", path);
	return n;
}

/* ---- fitting -------------------------------------------------------------------------------- */

static double error_of(struct fit *f, struct row *rows, int n)
{
	double sum = 0;
	int all = 0;
	for (int i = 0; i < n; i++) {
		struct times t;
		if (!rows[i].fitted)
			continue;
		estimate_time(&rows[i].s, &rows[i].l, &f->c, &f->p, f->peak, &t);
		sum += fabs(log(t.step / rows[i].seconds));
		all++;
	}
	return sum / all;
}

/* One value after the other is multiplied, as long as that helps. */
static void fit_values(
	struct fit *f, double **value, int n_values, struct row *rows, int n)
{
	double best = error_of(f, rows, n);
	for (double step = 2; step > 1.01; step = sqrt(step)) {
		for (bool better = true; better;) {
			better = false;
			for (int i = 0; i < 2 * n_values; i++) {
				double *x = value[i / 2], before = *x;
				*x *= i % 2 ? step : 1 / step;
				double e = error_of(f, rows, n);
				if (e < best - 1e-6) {
					best = e;
					better = true;
				} else {
					*x = before;
				}
			}
		}
	}
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Returns the number of errors within 15 %, and adds the number of all to *all. */
static int print_errors(
	const char *name, struct fit *f, struct row *rows, int n, int *all)
{
	double *e = calloc((size_t)n + 1, sizeof(*e));
	int m = 0, within = 0, fitted = 0;
	for (int i = 0; i < n; i++) {
		struct times t;
		fitted += rows[i].fitted;
		if (rows[i].fitted)
			continue;
		estimate_time(&rows[i].s, &rows[i].l, &f->c, &f->p, f->peak, &t);
		e[m] = fabs(t.step / rows[i].seconds - 1);
		within += e[m++] <= 0.15;
	}
	qsort(e, (size_t)m, sizeof(*e), ascending);
	if (m)
		printf("%-24s fitted on %4d rows, errors of the other %4d: median %5.1f %%, p90 "
		       "%5.1f %%, within 15 %%: %5.1f %%\n",
			name, fitted, m, 100 * e[m / 2], 100 * e[m * 9 / 10],
			100.0 * within / m);
	free(e);
	*all += m;
	return within;
}

/* Megatron-LM in fp16 on A100: no recomputation, unfused attention, no overlap. */
static struct fit megatron(void)
{
	struct fit f = {.peak = 312e12};
	struct err e = {0};
	if (cluster_parse("a100", &f.c, &e))
		exit(err_say(&e));
	f.p = (struct practice){.param_bytes = 2,
		.grad_bytes = 4,
		.optimizer_bytes = 12,
		.gather_bytes = 2,
		.attention = 4,
		.update_bytes = 40,
		.dim_bytes = 150,
		.score_bytes = 20,
		.whole_bytes = 20,
		.tp_bytes = 16,
		.reduce_bytes = 2,
		.launch = 1e-3,
		.small = 1e10,
		.step = 5e-3,
		.kept = kept,
		.passes = {3, 3.03, 3.4, 3.8}};
	return f;
}

/* Without rows there is nothing that the formulas are validated by. */
static int found(const char *path, int n)
{
	if (!n)
		fprintf(stderr, "%s: no rows of measurements\n", path);
	return n ? 0 : -1;
}

static int validate_vtrain(const char *dir)
{
	static struct row one[MOST_ROWS], many[MOST_ROWS];
	int n = read_rows(dir, "ground_truth_single.csv", 0, one);
	int m = read_rows(dir, "ground_truth_multi.csv", 1, many);
	struct fit f = megatron();
	int all = 0;
	if (found(dir, n && m ? n : 0))
		return -1;
	double *values[] = {&f.c.efficiency, &f.c.memory, &f.p.dim_bytes,
		&f.p.score_bytes, &f.p.launch, &f.p.small, &f.p.step, &f.p.tp_bytes,
		&f.p.reduce_bytes, &f.p.whole_bytes, &f.p.update_bytes,
		&f.c.links.link[LINK_HOST].latency,
		&f.c.links.link[LINK_HOST].bytes_per_second};
	fit_values(&f, values, ARRAY_LEN(values), one, n);
	print_errors("vTrain, one host", &f, one, n, &all);
	printf("  efficiency %.3f, half of it at %.3g GFLOP a matmul; %.3g ms a block, %.3g ms a step; "
	       "%.3g bytes per score\n",
		f.c.efficiency, f.p.small / 1e9, 1e3 * f.p.launch, 1e3 * f.p.step,
		f.p.score_bytes);
	double *network[] = {&f.c.links.link[LINK_NETWORK].bytes_per_second,
		&f.c.efficiency, &f.p.dim_bytes, &f.p.score_bytes, &f.p.launch};
	fit_values(&f, network, ARRAY_LEN(network), many, m);
	print_errors("vTrain, several hosts", &f, many, m, &all);
	return 0;
}

/* ---- llm-foundry ---------------------------------------------------------------------------- */

/* MPT: layers and width by the name in the table (scripts/train/yamls of that repository). */
static const struct {
	const char *name;
	double layers, dim, heads;
} mpt[] = {{"125m", 12, 768, 12}, {"350m", 24, 1024, 16}, {"760m", 24, 1536, 12},
	{"1b", 24, 2048, 16}, {"3b", 32, 2560, 20}, {"7b", 32, 4096, 32},
	{"13b", 40, 5120, 40}, {"30b", 48, 7168, 56}, {"70b", 80, 8192, 64}};

static const struct {
	const char *name;
	double peak, memory, inside, network;
} gpus[] = {{"h100_80gb", 989.4e12, 3350e9, 450e9, 50e9},
	{"a100_80gb", 312e12, 2039e9, 300e9, 25e9},
	{"a100_40gb", 312e12, 1555e9, 300e9, 25e9}};

enum { CELLS = 20, KINDS = 6 };

/* The kind of a row: the GPU, and fp8 or 16 bits. -1: not a row of the tables. */
static int foundry_row(char *line, struct row *r)
{
	char *cell[CELLS], *rest = line + 1;
	int n = 0, gpu = -1, model = -1;
	for (char *c; n < CELLS && (c = strsep(&rest, "|"));) {
		while (*c == ' ')
			c++;
		c[strcspn(c, " \n")] = '\0';
		cell[n++] = c;
	}
	if (n < 19)
		return -1;
	for (size_t i = 0; i < ARRAY_LEN(gpus); i++)
		gpu = strcmp(cell[3], gpus[i].name) ? gpu : (int)i;
	for (size_t i = 0; i < ARRAY_LEN(mpt); i++)
		model = strcmp(cell[0], mpt[i].name) ? model : (int)i;
	double ranks = strtod(cell[2], NULL);
	double micro = strtod(cell[7], NULL), times = strtod(cell[8], NULL);
	double tokens = strtod(cell[12], NULL), context = strtod(cell[1], NULL);
	if (gpu < 0 || model < 0 || tokens <= 0 || ranks < 1 || micro < 1 || times < 1)
		return -1;
	*r = (struct row){.s = gpt(mpt[model].layers, mpt[model].dim, mpt[model].heads,
				  50368, context),
		.seconds = micro * times * context / tokens};
	r->l = (struct layout){.stages = 1,
		.zero = 3,
		.reshard = strcmp(cell[16], "FULL_SHARD") ? RESHARD_NO : RESHARD_YES,
		.recompute = strcmp(cell[17], "True") ? RECOMPUTE_NONE : RECOMPUTE_FULL,
		.micro_batch = (int)micro,
		.n_micro = (int64_t)times,
		.degree = {1, 1, (int)ranks, 1, 1}};
	return 2 * gpu + (strstr(cell[14], "fp8") != NULL);
}

static struct fit foundry_fit(int kind)
{
	struct fit f = megatron();
	f.peak = gpus[kind / 2].peak;
	f.c.memory = gpus[kind / 2].memory;
	f.c.links.link[LINK_HOST].bytes_per_second = gpus[kind / 2].inside;
	f.c.links.link[LINK_NETWORK].bytes_per_second = gpus[kind / 2].network;
	f.c.efficiency = 0.6;
	f.p.attention = 4;
	f.p.score_bytes = 0.1;
	f.p.overlap_sum = true;
	return f;
}

static int validate_foundry(const char *path)
{
	static struct row rows[KINDS][MOST_ROWS / 4];
	int n[KINDS] = {0}, within = 0, all = 0;
	char line[2048];
	FILE *f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		struct row r;
		uint64_t hash = hash_of(line);
		int k = *line == '|' ? foundry_row(line, &r) : -1;
		if (k < 0 || n[k] == MOST_ROWS / 4)
			continue;
		r.fitted = hash % 10 == 0;
		rows[k][n[k]++] = r;
	}
	if (f)
		fclose(f);
	for (int k = 0; k < KINDS; k++) {
		struct fit x = foundry_fit(k);
		double *values[] = {&x.c.efficiency, &x.p.attention};
		char name[64];
		int fitted = 0;
		for (int i = 0; i < n[k]; i++)
			fitted += rows[k][i].fitted;
		if (!fitted)
			continue;
		fit_values(&x, values, ARRAY_LEN(values), rows[k], n[k]);
		snprintf(name, sizeof(name), "llm-foundry, %s%s", gpus[k / 2].name,
			k % 2 ? " fp8" : "");
		within += print_errors(name, &x, rows[k], n[k], &all);
	}
	if (all)
		printf("llm-foundry, all         %d of %d within 15 %%: %.1f %%\n",
			within, all, 100.0 * within / all);
	return found(path, all);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: validate_plan VTRAIN/data [FOUNDRY/README.md]\n");
		return 64;
	}
	int rc = validate_vtrain(argv[1]);
	if (argc > 2)
		rc |= validate_foundry(argv[2]);
	return rc ? 1 : 0;
}
