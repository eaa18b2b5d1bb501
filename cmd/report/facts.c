/* Facts about runs, from their logs: techniques, and properties that differ. */
#include "report/report.h"
#include "options/options.h"

/* Limits for hostile logs: pairs of key and value, and the length of each. */
enum { MAX_PAIRS = 2048, MAX_VALUE = 4096 };

/* Appends a key and its value to the list `to` (struct strs); drops them if the list is
 * full or one is too long. Returns 0. */
static int add_pair(void *to, const char *key, const char *value, struct err *e)
{
	struct strs *pairs = to;
	(void)e;
	if (pairs->n < 2 * MAX_PAIRS && strlen(key) <= MAX_VALUE &&
		strlen(value) <= MAX_VALUE) {
		strs_add(pairs, key);
		strs_add(pairs, value);
	}
	return 0;
}

/* Appends the pairs of key and value of a config. */
static void add_pairs(struct strs *pairs, const char *text, size_t len)
{
	struct err ignored;
	if (text)
		conf_parse(text, len, "a log", add_pair, pairs, &ignored);
}

/* Appends the logged options, and then the command line's, to *pairs. */
static void add_options(struct strs *pairs, const struct run_log *l)
{
	add_pairs(pairs, l->config.s, l->config.len);
	if (l->info.invocation)
		add_pairs(pairs, l->info.invocation, strlen(l->info.invocation));
}

/* Returns the last value of a key in a list of keys and values, or NULL. */
static const char *find_value(const struct strs *pairs, const char *key)
{
	for (int64_t i = pairs->n - 2; i >= 0; i -= 2)
		if (!strcmp(pairs->v[i], key))
			return pairs->v[i + 1];
	return NULL;
}

int report_count_controls(const struct report *r)
{
	int n = 0;
	while (n < r->n && r->runs[n].control < 0)
		n++;
	return n;
}

void report_append_verdict(const struct report_run *run, struct str *out)
{
	const char *words = run->verdict       ? run->verdict
			    : run->control < 0 ? "control"
					       : "not judged";
	const char *reason = strstr(words, ": ");
	str_add(out, words, reason ? (size_t)(reason - words) : strlen(words));
}

static const struct technique {
	const char *key, *plain; /* plain: the value that is not listed */
	const char *axis;	 /* list only if the layout has this axis; NULL: always */
	bool only_value;	 /* list the value without the key */
} techniques[] = {
	{"dtype", "fp32", NULL, true},
	{"optimizer", "adamw", NULL, true},
	{"packing", "stream", NULL, false},
	{"label-smoothing", "0", NULL, false},
	{"z-loss", "0", NULL, false},
	{"kernels", "fused", NULL, false},
	{"recompute", "none", NULL, false},
	{"offload", "none", NULL, false},
	{"tile", "0", NULL, false},
	{"zero", "3", "fsdp", false},
	{"fsdp-kind", "parameter", "fsdp", false},
	{"reshard-after-forward", "yes", "fsdp", false},
	{"sp", "yes", "tp", false},
	{"async-tp", "yes", "tp", false},
	{"cp-comm", "ring", "cp", false},
	{"cp-accumulate", "fp32", "cp", false},
	{"pp-schedule", "1f1b", "pp", false},
	{"edit-workers", "0", NULL, false},
	{"edit-sync-interval", "1", NULL, false},
};

static bool has_axis(const char *layout, const char *axis)
{
	size_t len = strlen(axis);
	for (const char *p = layout; p && *p; p += strcspn(p, " "), p += *p == ' ')
		if (!strncmp(p, axis, len) && p[len] == '=')
			return true;
	return false;
}

void report_append_techniques(const struct run_log *l, struct str *out)
{
	scoped_strs pairs = {0};
	size_t old_len = out->len;
	add_options(&pairs, l);
	for (size_t i = 0; i < ARRAY_LEN(techniques); i++) {
		const struct technique *t = &techniques[i];
		const char *v = find_value(&pairs, t->key);
		if (!v || !strcmp(v, t->plain) ||
			(t->axis && !has_axis(l->info.layout, t->axis)))
			continue;
		str_puts(out, out->len > old_len ? ", " : "");
		str_printf(out, "%s%s%s", t->only_value ? "" : t->key,
			t->only_value ? "" : "=", v);
	}
}

/* Returns true for properties that differ between any two runs, whatever their results. */
static bool is_identity(const char *key)
{
	static const char *const keys[] = {"format", "version", "started", "pid", "job",
		"command", "invocation", "environment", "arithmetic", "out", "PMI_FD",
		"PMI_RANK", "MPI_LOCALRANKID"};
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (!strcmp(keys[i], key))
			return true;
	return false;
}

/* Returns false for an integer that is missing in the log. */
static bool is_stated(const struct h5_field *f, const struct run_info *info)
{
	return f->type != H5_I64 ||
	       *(const int64_t *)((const char *)info + f->offset) != 0;
}

static void add_info(struct strs *pairs, const struct run_info *info)
{
	scoped_str text = {0};
	for (const struct h5_field *f = run_fields; f->name; f++)
		if (is_stated(f, info))
			h5_field_append(&text, f, info);
	add_pairs(pairs, text.s, text.len);
}

/* Appends pairs from NAME=VALUE words, separated by blanks. */
static void add_environment(struct strs *pairs, const char *text)
{
	char *copy = xstrdup(text ? text : ""), *rest = copy, *word;
	while ((word = strsep(&rest, " "))) {
		const char *name = strsep(&word, "=");
		if (word)
			add_pair(pairs, name, word, NULL);
	}
	free(copy);
}

enum group { GROUP_RUN, GROUP_OPTIONS, GROUP_ARITHMETIC, GROUP_ENVIRONMENT, N_GROUPS };
static const char *const group_names[N_GROUPS] = {
	"run", "option", "arithmetic", "environment"};

/* Appends the keys and values of one group of a log's facts to *pairs. */
static void add_group_pairs(const struct run_log *l, enum group g, struct strs *pairs)
{
	if (g == GROUP_RUN)
		add_info(pairs, &l->info);
	else if (g == GROUP_OPTIONS)
		add_options(pairs, l);
	else if (g == GROUP_ARITHMETIC)
		add_pairs(pairs, l->arithmetic.s, l->arithmetic.len);
	else
		add_environment(pairs, l->info.environment);
}

static bool is_listed(const struct differences *d, const char *key)
{
	for (int64_t i = 0; i < d->n; i++)
		if (!strcmp(d->v[i].key, key))
			return true;
	return false;
}

/* Adds a difference if the values of a key differ and the key is not yet listed: many options are
 * part of the arithmetic, too. */
static void add_if_different(
	const struct strs *pairs, const char *key, enum group g, struct differences *d)
{
	const char *first = find_value(&pairs[0], key);
	bool do_differ = false;
	for (int i = 1; i < d->n_runs && !do_differ; i++) {
		const char *v = find_value(&pairs[i], key);
		do_differ = !first != !v || (v && strcmp(first, v) != 0);
	}
	if (!do_differ || is_identity(key) || is_listed(d, key))
		return;
	struct difference entry = {group_names[g], xstrdup(key),
		xcalloc((size_t)d->n_runs, sizeof(*entry.value))};
	for (int i = 0; i < d->n_runs; i++) {
		const char *v = find_value(&pairs[i], key);
		entry.value[i] = v ? xstrdup(v) : NULL;
	}
	d->v = xrealloc(d->v, (size_t)(d->n + 1) * sizeof(*d->v));
	d->v[d->n++] = entry;
}

void differences_init(const struct report *r, struct differences *d)
{
	*d = (struct differences){.n_runs = r->n};
	scoped_ptr struct strs *pairs = xcalloc((size_t)r->n, sizeof(*pairs));
	for (enum group g = 0; g < N_GROUPS; g++) {
		for (int i = 0; i < r->n; i++)
			add_group_pairs(&r->logs[i], g, &pairs[i]);
		for (int i = 0; i < r->n; i++)
			for (int64_t k = 0; k < pairs[i].n; k += 2)
				if (i == 0 || !find_value(&pairs[0], pairs[i].v[k]))
					add_if_different(pairs, pairs[i].v[k], g, d);
		for (int i = 0; i < r->n; i++)
			strs_free(&pairs[i]);
	}
}

void differences_release(struct differences *d)
{
	for (int64_t i = 0; i < d->n; i++) {
		for (int k = 0; k < d->n_runs; k++)
			free(d->v[i].value[k]);
		free(d->v[i].value);
		free(d->v[i].key);
	}
	free(d->v);
	*d = (struct differences){0};
}
