/* The clusters by name, and the text of a cluster. */
#include "plan/cluster.h"
#include "kernels/kernels.h"
#include "options/options.h"

#define GB 1e9
#define US 1e-6
#define GIB ((int64_t)1 << 30)

/* Bandwidths are per direction, from NVIDIA's data sheets, with one network adapter per GPU: 400
 * Gbit/s, or 200 for A100. NCCL reaches about 370 GB/s of the 450 of an H100's NVLink
 * (github.com/NVIDIA/nccl-tests/issues/212).
 *
 * Latencies are from NCCL's own model (src/graph/tuning.cc, protocol "simple"): 8.4 us for a launch,
 * and 3.4 us for a message over NVLink, or 14 us over the network.
 *
 * The capacities leave 3 or 4 GiB of the memory to CUDA, cuBLASLt and NCCL.
 *
 * With this efficiency, the prediction for one H100 equals the measurement in tests/bench/results; for
 * the other GPUs it is assumed. */
#define NVLINK_US (8.4 + 3.4)
#define NETWORK_US (8.4 + 14)

/* clang-format off */
static const struct cluster clusters[] = {
	{"h100", "NVIDIA H100 80GB HBM3",
		{{{450 * GB, NVLINK_US * US}, {50 * GB, NETWORK_US * US}}, 8, false}, 3350 * GB, 64 * GB, 0.47, 0, 0, 0, 0, 76 * GIB},
	{"h200", "NVIDIA H200",
		{{{450 * GB, NVLINK_US * US}, {50 * GB, NETWORK_US * US}}, 8, false}, 4800 * GB, 64 * GB, 0.47, 0, 0, 0, 0, 136 * GIB},
	{"b200", "NVIDIA B200",
		{{{900 * GB, NVLINK_US * US}, {50 * GB, NETWORK_US * US}}, 8, false}, 8000 * GB, 64 * GB, 0.47, 0, 0, 0, 0, 175 * GIB},
	{"a100", "NVIDIA A100-SXM4-80GB",
		{{{300 * GB, NVLINK_US * US}, {25 * GB, NETWORK_US * US}}, 8, false}, 2039 * GB, 32 * GB, 0.47, 0, 0, 0, 0, 76 * GIB},
	/* a host of two cores; measure its flops by pt-train --peak-flops measure */
	{"cpu", "",
		{{{5 * GB, 5 * US}, {1 * GB, 50 * US}}, 2, false}, 5 * GB, 0, 0.7, 0, 0, 50e9, 2, 0},
};
/* clang-format on */

/* ---- values ---------------------------------------------------------------------- */

enum { N_KEYS = 11 };

/* The key of a value, and where the value is in a cluster: a double in `unit`, an int, or bytes. */
struct value {
	const char *key;
	double *number, unit, max;
	double *latency; /* for a link: seconds, after a colon in microseconds */
	int *whole;
	int64_t *bytes;
	bool unset; /* not printed */
};

/* Lists the keys of a cluster, and where their values are. */
static void list_values(struct cluster *c, struct value v[static N_KEYS])
{
	struct link *host = &c->links.link[LINK_HOST];
	struct link *network = &c->links.link[LINK_NETWORK];
	const struct value all[N_KEYS] = {
		{.key = "gpus", .whole = &c->links.host_ranks, .unit = 1, .max = 1 << 20},
		{.key = "nvlink",
			.number = &host->bytes_per_second,
			.unit = GB,
			.max = 1e9,
			.latency = &host->latency},
		{.key = "net",
			.number = &network->bytes_per_second,
			.unit = GB,
			.max = 1e9,
			.latency = &network->latency},
		{.key = "memory", .number = &c->memory, .unit = GB, .max = 1e9},
		{.key = "pcie",
			.number = &c->pcie,
			.unit = GB,
			.max = 1e9,
			.unset = !c->pcie},
		{.key = "efficiency", .number = &c->efficiency, .unit = 1, .max = 1},
		{.key = "attention",
			.number = &c->attention,
			.unit = 1,
			.max = 1,
			.unset = !c->attention},
		{.key = "experts",
			.number = &c->experts,
			.unit = 1,
			.max = 1,
			.unset = !c->experts},
		{.key = "flops",
			.number = &c->flops,
			.unit = GB,
			.max = 1e9,
			.unset = !c->flops},
		{.key = "cores",
			.whole = &c->cores,
			.unit = 1,
			.max = 1 << 20,
			.unset = !c->cores},
		{.key = "capacity", .bytes = &c->capacity, .unset = true},
	};
	memcpy(v, all, sizeof(all));
}

/* Sets a number of the cluster from text, in the value's unit. Fails if it is out of range. */
static int set_number(const char *text, const struct value *v, struct err *e)
{
	int64_t n;
	double x;
	if (v->whole ? parse_int(text, &n) || n < 1 || (double)n > v->max
		     : parse_double(text, &x) || !(x > 0 && x <= v->max))
		return err_set(e, EX_USAGE, "--cluster: %s is '%s'; give %s up to %g",
			v->key, text, v->whole ? "a whole number" : "a positive number",
			v->max);
	if (v->whole)
		*v->whole = (int)n;
	else
		*v->number = x * v->unit;
	return 0;
}

/* Sets a value of the cluster: bytes, a number, or NUMBER:MICROSECONDS. Cuts the text. */
static int set_value(char *text, const struct value *v, struct err *e)
{
	char *colon = v->latency ? strchr(text, ':') : NULL;
	double us;
	if (v->bytes)
		return parse_size(text, v->bytes) || *v->bytes < 0
			       ? err_set(e, EX_USAGE, "--cluster: %s is '%s'; give bytes",
					 v->key, text)
			       : 0;
	if (colon)
		*colon++ = '\0';
	if (colon && (parse_double(colon, &us) || us < 0 || us > 1e9))
		return err_set(e, EX_USAGE,
			"--cluster: the latency of %s is '%s'; give microseconds", v->key,
			colon);
	if (colon)
		*v->latency = us * US;
	return set_number(text, v, e);
}

/* ---- the text -------------------------------------------------------------------- */

/* Sets one value of the cluster from KEY=VALUE, which it cuts at the equals sign. */
static int set_item(struct cluster *c, char *item, struct err *e)
{
	struct value v[N_KEYS];
	const char *names[N_KEYS];
	char *value = strchr(item, '=');
	list_values(c, v);
	if (value)
		*value++ = '\0';
	for (int i = 0; i < N_KEYS; i++) {
		names[i] = v[i].key;
		if (value && !strcmp(item, v[i].key))
			return set_value(value, &v[i], e);
	}
	return err_none_of(e, "--cluster", item, names, N_KEYS);
}

/* Sets *c to the row of the table with this name, or to the first row if `name` is KEY=VALUE. */
static int init_cluster(const char *name, struct cluster *c, struct err *e)
{
	scoped_str names = {0};
	*c = clusters[0];
	if (strchr(name, '='))
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(clusters); i++) {
		*c = clusters[i];
		if (!strcmp(name, clusters[i].name))
			return 0;
		str_printf(&names, "%s%s", i ? ", " : "", clusters[i].name);
	}
	/* no suggestion: the nearest name is a different GPU */
	return err_set(e, EX_USAGE,
		"--cluster: '%s' is none of %s; for another device give its values, as in "
		"h100,flops=165000,memory=1008,capacity=22G: see Clusters in pt-plan(1)",
		name, names.s);
}

double cluster_compute_fraction(const struct cluster *c, int ranks)
{
	return c->cores && ranks > c->cores ? (double)c->cores / ranks : 1;
}

double cluster_peak(const struct cluster *c, enum dtype type, bool exact, int ranks)
{
	struct device gpu = {.model = c->model, .exact = exact};
	double peak = c->flops ? c->flops : device_peak(&gpu, type);
	if (c->cores && ranks < c->cores) /* threads use all cores of a share */
		peak *= (double)c->cores / ranks;
	/* devices without fp8 units compute in 16 bits */
	return peak > 0 || type == DT_BF16 ? peak
					   : cluster_peak(c, DT_BF16, exact, ranks);
}

int cluster_parse(const char *text, struct cluster *c, struct err *e)
{
	char *copy = xstrdup(text), *rest = copy, *item = strsep(&rest, ",");
	int rc = init_cluster(item, c, e);
	if (!rc && strchr(item, '='))
		rc = set_item(c, item, e);
	while (!rc && (item = strsep(&rest, ",")))
		rc = set_item(c, item, e);
	free(copy);
	if (!rc && *c->model && c->cores)
		return err_set(e, EX_USAGE,
			"--cluster: cores= needs a cluster of CPUs, but %s has GPUs; remove cores=",
			c->name);
	return rc;
}

void cluster_print(const struct cluster *c, struct str *out)
{
	struct cluster copy = *c;
	struct value v[N_KEYS];
	list_values(&copy, v);
	str_puts(out, c->name);
	for (int i = 0; i < N_KEYS; i++) {
		if (v[i].unset)
			continue;
		str_printf(out, ",%s=", v[i].key);
		if (v[i].whole)
			str_printf(out, "%d", *v[i].whole);
		else
			str_printf(out, "%g", *v[i].number / v[i].unit);
		if (v[i].latency)
			str_printf(out, ":%g", *v[i].latency / US);
	}
}

bool cluster_is_unmodified(const struct cluster *c)
{
	struct cluster original;
	struct err e;
	scoped_str text = {0}, given = {0};
	if (init_cluster(c->name, &original, &e))
		return false;
	original.links.host_ranks = c->links.host_ranks;
	original.attention = c->attention;
	original.experts = c->experts;
	cluster_print(&original, &text);
	cluster_print(c, &given);
	return !strcmp(text.s, given.s);
}
