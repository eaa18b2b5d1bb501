/* Plans as text, one per line: bits depend on the choice, so it is saved and passed to other
 * processes. */
#include "kernels/cuda/gemm_plan.h"

#include <inttypes.h>

enum { MAX_PLANS = 1 << 16 };

/* Appends the cuBLASLt version and GPU model for which the choices are valid. */
void cuda_gemm_head(struct device *d, struct str *out)
{
	const struct cuda_device *c = cuda_of(d);
	str_printf(out, "cublasLt %zu, sm_%d, %s\n", cublasLtGetVersion(), c->arch,
		c->model);
}

void cuda_gemm_key_text(const struct gemm_key *k, struct str *out)
{
	str_printf(out,
		"%c%c %" PRId64 " %" PRId64 " %" PRId64 " %s %s %s %d %d %" PRId64
		" %" PRId64,
		k->ta ? 't' : 'n', k->tb ? 't' : 'n', k->m, k->n, k->k,
		dtype_table[k->a].name, dtype_table[k->b].name, dtype_table[k->d].name,
		(int)k->epilogue, (int)k->add, k->align, k->runs);
}

void cuda_gemm_algorithm_text(const cublasLtMatmulAlgo_t *algo, struct str *out)
{
	unsigned char bytes[sizeof(*algo)];
	memcpy(bytes, algo, sizeof(bytes));
	for (size_t i = 0; i < sizeof(bytes); i++)
		str_printf(out, "%02x", bytes[i]);
}

/* Appends a plan: its key, and its algorithm, or the word "apart" for unfused kernels. */
static void append_plan_line(const struct gemm_plan *p, struct str *out)
{
	cuda_gemm_key_text(&p->key, out);
	str_putc(out, ' ');
	if (p->unfused)
		str_puts(out, "apart");
	else
		cuda_gemm_algorithm_text(&p->algo, out);
	str_putc(out, '\n');
}

static int compare_keys(const void *a, const void *b)
{
	const struct gemm_plan *const *x = (const struct gemm_plan *const *)a;
	const struct gemm_plan *const *y = (const struct gemm_plan *const *)b;
	return memcmp(&(*x)->key, &(*y)->key, sizeof((*x)->key));
}

/* Appends the chosen algorithms by key, after a line with the cuBLASLt version and GPU model. */
void cuda_algorithms(struct device *d, struct str *out)
{
	struct plans *all = cuda_of(d)->plans;
	int64_t n = 0;
	if (!all)
		return;
	cuda_gemm_head(d, out);
	struct gemm_plan **list =
		(struct gemm_plan **)xmalloc((size_t)all->n * sizeof(*list));
	for (int i = 0; i < PLAN_BUCKETS; i++)
		for (struct gemm_plan *p = all->bucket[i]; p; p = p->next)
			if (p->from_text || p->unfused || (p->ready && p->possible))
				list[n++] = p;
	qsort(list, (size_t)n, sizeof(*list), compare_keys);
	for (int64_t i = 0; i < n; i++)
		append_plan_line(list[i], out);
	free(list);
}

static int64_t find_type(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(dtype_table); i++)
		if (!strcmp(dtype_table[i].name, name))
			return (int64_t)i;
	return -1;
}

/* Parses n_bytes bytes; -1: malformed, or another number of bytes. */
static int read_hex(const char *s, void *to, size_t n_bytes)
{
	static const char digits[] = "0123456789abcdef";
	unsigned char *out = (unsigned char *)to;
	if (strlen(s) != 2 * n_bytes || strspn(s, digits) != 2 * n_bytes)
		return -1;
	for (size_t i = 0; i < n_bytes; i++)
		out[i] = (unsigned char)((strchr(digits, s[2 * i]) - digits) << 4 |
					 (strchr(digits, s[2 * i + 1]) - digits));
	return 0;
}

/* Returns true if the epilogue is possible: GELU needs 16 bits and rows of 16-byte packs. */
static bool is_valid_epilogue(const struct gemm_key *k)
{
	bool narrow = dtype_bytes((enum dtype)k->a) == 2 && k->d == k->a && k->b == k->a;
	return k->epilogue < EPILOGUE_GELU ||
	       (k->epilogue < N_EPILOGUES && narrow && k->m % 8 == 0 && k->align >= 16 &&
		       !k->add && k->runs == 1);
}

/* Parses a line of the text, and checks all numbers. Returns -1 if it is malformed. */
static int parse_plan_line(const char *line, struct gemm_plan *p)
{
	struct gemm_key *k = &p->key;
	char transposes[3], a[5], b[5], to[5];
	int end = 0;
	memset(p, 0, sizeof(*p));
	if (sscanf(line,
		    "%2[nt] %10" SCNd64 " %10" SCNd64 " %10" SCNd64
		    " %4s %4s %4s %1" SCNd64 " %1" SCNd64 " %2" SCNd64 " %3" SCNd64 " %n",
		    transposes, &k->m, &k->n, &k->k, a, b, to, &k->epilogue, &k->add,
		    &k->align, &k->runs, &end) != 11 ||
		!end || line[end - 1] != ' ' || strlen(transposes) != 2)
		return -1;
	k->ta = transposes[0] == 't';
	k->tb = transposes[1] == 't';
	k->a = find_type(a);
	k->b = find_type(b);
	k->d = find_type(to);
	bool is_valid = k->m > 0 && k->n > 0 && k->k > 0 && k->a >= 0 && k->b >= 0 &&
			k->d >= 0 && k->epilogue >= 0 && k->add >> 1 == 0 &&
			k->align > 0 && k->align <= 64 && !(k->align & (k->align - 1)) &&
			k->runs > 0 && k->runs <= MAX_RUNS && is_valid_epilogue(k);
	if (!is_valid)
		return -1;
	p->unfused = p->ready =
		k->epilogue >= EPILOGUE_GELU && !strcmp(line + end, "apart");
	p->from_text = !p->unfused;
	return p->unfused ? 0 : read_hex(line + end, &p->algo, sizeof(p->algo));
}

/* Adds a line's plan unless its shape has one; -1: malformed, or too many plans, *e set. */
static int accept_plan_line(
	struct device *d, const char *line, int64_t number, struct err *e)
{
	struct cuda_device *c = cuda_of(d);
	struct gemm_plan parsed;
	if (parse_plan_line(line, &parsed) || (c->plans && c->plans->n >= MAX_PLANS))
		return err_set(e, EX_DATAERR,
			"matmul algorithms: line %lld is malformed, or the text has too many lines",
			(long long)number);
	if (parsed.unfused && c->o.exact) /* exact: always the epilogue */
		return 0;
	struct gemm_plan *p = cuda_get_plan(c, &parsed.key);
	if (!p->ready && !p->from_text) {
		p->algo = parsed.algo;
		p->from_text = parsed.from_text;
		p->unfused = p->ready = parsed.unfused;
	}
	return 0;
}

/* Adds a text's plans; warns and ignores it if of another GPU or cuBLASLt. -1: malformed. */
int cuda_set_algorithms(struct device *d, const char *text, struct err *e)
{
	struct str head = {}, line = {};
	int rc = 0;
	cuda_gemm_head(d, &head);
	for (int64_t number = 1; *text && !rc; number++) {
		size_t n = strcspn(text, "\n");
		str_clear(&line);
		str_add(&line, text, n);
		str_puts(&line, "\n");
		text += n + (text[n] == '\n');
		if (number == 1 && !strcmp(line.s, head.s))
			continue;
		if (number == 1 && !strncmp(line.s, "cublasLt ", 9)) {
			warn("ignoring the matmul algorithms chosen with %.*s: this is %.*s; "
			     "bits may differ",
				(int)n, line.s, (int)head.len - 1, head.s);
			break;
		}
		line.s[n] = '\0';
		rc = accept_plan_line(d, line.s, number, e);
	}
	str_free(&head);
	str_free(&line);
	return rc;
}
