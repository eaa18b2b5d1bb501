/* PT_LAB_CANDIDATES=FILE: appends to FILE, at the first use of each matmul, the algorithms that
 * cuBLASLt suggests, with their times: for tests/bench/algorithm_table, and for people. */
#include "kernels/cuda/gemm_plan.h"

#include <errno.h>
#include <math.h>

enum { LISTED = 32, ROUNDS = 5 };

struct candidate {
	cublasLtMatmulHeuristicResult_t found;
	bool exact; /* suggested without split-k */
	int number; /* index in the order of cuBLASLt */
	float ms[ROUNDS];
};

/* Adds the suggested algorithms that are not in the list yet; returns the new length. */
static int add_suggested(struct device *d, const struct gemm_plan *p, bool exact,
	struct candidate *list, int n)
{
	cublasLtMatmulHeuristicResult_t found[MANY_CANDIDATES];
	memset(found, 0, sizeof(found));
	int n_found = cuda_gemm_suggested(d, p, exact, found, MANY_CANDIDATES);
	for (int i = 0; i < n_found && i < LISTED; i++) {
		int same = 0;
		while (same < n && memcmp(&list[same].found.algo, &found[i].algo,
					   sizeof(found[i].algo)))
			same++;
		if (same == n)
			list[n++] = {found[i], exact, i, {}};
	}
	return n;
}

static int compare_ms(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return x < y ? -1 : x > y;
}

/* Times all candidates in each round, since the clock changes, and sorts the times. */
static void measure_all(struct device *d, const struct gemm_plan *p,
	const struct cuda_product *x, struct candidate *list, int n)
{
	struct gemm_trial trial;
	if (!cuda_gemm_trial(d, x, &trial))
		return;
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < n; i++)
			list[i].ms[round] =
				cuda_gemm_measure(d, p, x, &trial, &list[i].found.algo);
	for (int i = 0; i < n; i++)
		qsort(list[i].ms, ROUNDS, sizeof(float), compare_ms);
	cuda_gemm_end_trial(d, &trial);
}

static int64_t get_algorithm_attribute(
	const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t what)
{
	uint32_t x = 0;
	size_t n;
	cublasStatus_t rc =
		cublasLtMatmulAlgoConfigGetAttribute(algo, what, &x, sizeof(x), &n);
	return rc == CUBLAS_STATUS_SUCCESS ? (int64_t)x : -1;
}

/* Appends a line: the matmul, a candidate's attributes, its median time, and its bytes in hex. */
static void append_row(const char *name, const struct gemm_plan *p,
	const struct candidate *c, struct str *out)
{
	static const cublasLtMatmulAlgoConfigAttributes_t attributes[] = {
		CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_TILE_ID,
		CUBLASLT_ALGO_CONFIG_STAGES_ID, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
		CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME};
	const struct gemm_key *k = &p->key;
	double ms = (double)c->ms[ROUNDS / 2] / GEMM_TRIALS;
	str_printf(out, "%s\t", name);
	cuda_gemm_key_text(k, out);
	str_printf(out, "\t%s\t%d", c->exact ? "exact" : "fast", c->number);
	for (cublasLtMatmulAlgoConfigAttributes_t a : attributes)
		str_printf(out, "\t%lld",
			(long long)get_algorithm_attribute(&c->found.algo, a));
	str_printf(out, "\t%zu\t%.2f\t%.1f\t%s\t", c->found.workspaceSize, 1e3 * ms,
		2e-9 * (double)(k->m * k->n) * (double)(k->k * k->runs) / ms,
		cuda_gemm_is_usable(true, &c->found.algo) ? "yes" : "no");
	cuda_gemm_algorithm_text(&c->found.algo, out);
	str_putc(out, '\n');
}

/* Appends rows to the file, after *head if it is empty; failure ends the program. */
static void append_to_file(const char *path, struct str *head, const struct str *rows)
{
	FILE *f = fopen(path, "a");
	bool begins = f && !fseek(f, 0, SEEK_END) && ftell(f) == 0;
	if (begins)
		str_puts(head, "#product\tkey\tlist\tnumber\tid\ttile\tstages\tsplits\t"
			       "reduction\tworkspace\tus\tTFLOP/s\texact\talgorithm\n");
	if (!f || (begins && fwrite(head->s, 1, head->len, f) != head->len) ||
		fwrite(rows->s, 1, rows->len, f) != rows->len || fclose(f))
		die(EX_IOERR, "PT_LAB_CANDIDATES: cannot write '%s': %s", path,
			strerror(errno));
}

/* Appends the suggested algorithms of a matmul, with times, to the file of PT_LAB_CANDIDATES. */
void cuda_gemm_list(struct device *d, const char *name, const struct gemm_plan *p,
	const struct cuda_product *x)
{
	struct candidate list[2 * LISTED];
	struct str head = {}, rows = {};
	int n = add_suggested(d, p, true, list, 0);
	n = add_suggested(d, p, false, list, n);
	measure_all(d, p, x, list, n);
	str_puts(&head, "# ");
	cuda_gemm_head(d, &head);
	for (int i = 0; i < n; i++)
		append_row(name, p, &list[i], &rows);
	if (!n) {
		str_printf(&rows, "# no algorithm for %s, ", name);
		cuda_gemm_key_text(&p->key, &rows);
		str_putc(&rows, '\n');
	}
	append_to_file(cuda_of(d)->candidates, &head, &rows);
	str_free(&head);
	str_free(&rows);
}
