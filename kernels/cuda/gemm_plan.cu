/* Plans: the cuBLASLt algorithm for each shape of matmul. At its first use, the candidates of
 * cuBLASLt's heuristic are timed, and the fastest is used from then on. */
#include "kernels/cuda/gemm_plan.h"

/* Ends the program if a cuBLASLt call failed; reports the CUDA error that caused it, if any. */
void cuda_cublas_check(struct device *d, cublasStatus_t rc, const char *what)
{
	if (rc == CUBLAS_STATUS_SUCCESS)
		return;
	if (rc == CUBLAS_STATUS_ALLOC_FAILED)
		cuda_check(d, cudaErrorMemoryAllocation, what);
	cuda_check(d, cudaGetLastError(), what);
	die(EX_FAILED, "%s: %s: %s (%s)", cuda_of(d)->model, what,
		cublasLtGetStatusString(rc), cublasLtGetStatusName(rc));
}

/* ---- keys of plans --------------------------------------------------------------------- */

static cudaDataType_t cuda_type(int64_t type)
{
	static const cudaDataType_t types[] = {
		CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2};
	return types[type];
}

static bool is_byte(int64_t type)
{
	return dtype_bytes((enum dtype)type) == 1;
}

/* Returns the bytes between the runs of an operand, as struct cuda_product explains. */
static int64_t run_stride_bytes(struct mat m, bool along_sum)
{
	return along_sum ? m.cols * dtype_bytes(m.type) : mat_bytes(m);
}

/* Returns the common alignment of the matrices of all runs, at most 16 bytes, the widest load:
 * larger alignments of a slice's weights depend on the layout, and the choice must not. */
static int64_t common_alignment(const struct cuda_product *p)
{
	uintptr_t addresses = (uintptr_t)p->a.p | (uintptr_t)p->b.p | (uintptr_t)p->d.p |
			      (uintptr_t)p->bias | (uintptr_t)p->aux | 16;
	if (p->runs > 1)
		addresses |=
			(uintptr_t)(run_stride_bytes(p->a, p->ta) |
				    run_stride_bytes(p->b, !p->tb) | mat_bytes(p->d));
	return (int64_t)(addresses & -addresses);
}

/* Returns the epilogue of the plan: with the bias, if the matmul has one. */
static int64_t plan_epilogue(const struct cuda_product *p)
{
	if (p->bias)
		return p->epilogue == EPILOGUE_GELU ? EPILOGUE_GELU_BIAS : EPILOGUE_BIAS;
	return p->epilogue;
}

static struct gemm_key make_key(const struct cuda_product *p)
{
	struct gemm_key k = {p->ta, p->tb, p->d.cols, p->d.rows,
		p->ta ? p->a.cols : p->a.rows, p->a.type, p->b.type, p->d.type,
		plan_epilogue(p), p->add, common_alignment(p), p->runs};
	return k;
}

/* Returns the link to the plan of a key, or the link at which to add it. */
static struct gemm_plan **find_plan(struct cuda_device *c, const struct gemm_key *key)
{
	if (!c->plans)
		c->plans = (struct plans *)xcalloc(1, sizeof(*c->plans));
	uint64_t h = 0;
	int64_t words[sizeof(*key) / sizeof(int64_t)];
	memcpy(words, key, sizeof(*key));
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		h = hash_mix(h + (uint64_t)words[i]);
	struct gemm_plan **at = &c->plans->bucket[h % PLAN_BUCKETS];
	while (*at && memcmp(&(*at)->key, key, sizeof(*key)))
		at = &(*at)->next;
	return at;
}

struct gemm_plan *cuda_get_plan(struct cuda_device *c, const struct gemm_key *key)
{
	struct gemm_plan **at = find_plan(c, key);
	if (!*at) {
		*at = (struct gemm_plan *)xcalloc(1, sizeof(**at));
		(*at)->key = *key;
		c->plans->n++;
	}
	return *at;
}

/* Frees all plans and their descriptors, and sets the device's table of plans to NULL. */
void cuda_plans_free(struct device *d)
{
	struct plans *all = cuda_of(d)->plans;
	for (int i = 0; all && i < PLAN_BUCKETS; i++) {
		for (struct gemm_plan *p = all->bucket[i], *next; p; p = next) {
			next = p->next;
			if (p->desc) { /* described: it has its layouts too */
				cublasLtMatmulDescDestroy(p->desc);
				cublasLtMatrixLayoutDestroy(p->a);
				cublasLtMatrixLayoutDestroy(p->b);
				cublasLtMatrixLayoutDestroy(p->d);
			}
			free(p);
		}
	}
	free(all);
	cuda_of(d)->plans = NULL;
}

void cuda_forget_algorithms(struct device *d)
{
	cuda_plans_free(d);
	cuda_of(d)->measures = false;
}

/* ---- cuBLASLt descriptors -------------------------------------------------------------- */

/* Sets an attribute of a descriptor: a layout, matmul or preference. */
#define SET(kind, of, attribute, value)                                               \
	cuda_cublas_check(d,                                                          \
		cublasLt##kind##SetAttribute(of, attribute, &(value), sizeof(value)), \
		#attribute)

/* Creates the layout of `runs` matrices: contiguous, or with `in_rows` parts of the same rows. */
static cublasLtMatrixLayout_t create_layout(struct device *d, int64_t type, int64_t rows,
	int64_t cols, int64_t runs, bool in_rows)
{
	cublasLtMatrixLayout_t l;
	int32_t count = (int32_t)runs;
	int64_t stride = in_rows ? rows : rows * cols;
	cuda_cublas_check(d,
		cublasLtMatrixLayoutCreate(&l, cuda_type(type), (uint64_t)rows,
			(uint64_t)cols, in_rows ? rows * runs : rows),
		"cublasLtMatrixLayoutCreate");
	if (runs == 1)
		return l;
	SET(MatrixLayout, l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
	SET(MatrixLayout, l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
	return l;
}

/* Creates the cuBLASLt descriptors of a plan: operation, epilogue and layouts, from its key. */
static void create_descriptors(struct device *d, struct gemm_plan *p)
{
	static const cublasLtEpilogue_t epilogues[N_EPILOGUES] = {
		CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
		CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
		CUBLASLT_EPILOGUE_DGELU};
	const struct gemm_key *k = &p->key;
	bool fast = k->a == DT_F32 && !cuda_of(d)->o.exact;
	cublasOperation_t ta = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasOperation_t tb = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasStatus_t rc = cublasLtMatmulDescCreate(&p->desc,
		fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
	cuda_cublas_check(d, rc, "cublasLtMatmulDescCreate");
	cublasLtMatmulDesc_t desc = p->desc;
	SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_TRANSA, ta);
	SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_TRANSB, tb);
	SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogues[k->epilogue]);
	/* The heuristic uses the alignment of these addresses. */
	const void *place = (const void *)(uintptr_t)k->align;
	if (k->epilogue == EPILOGUE_BIAS || k->epilogue == EPILOGUE_GELU_BIAS) {
		int32_t type = cuda_type(k->d);
		SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
		SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, place);
	}
	if (k->epilogue >= EPILOGUE_GELU) {
		SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, k->m);
		SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, place);
	}
	/* The heuristic also depends on scales, which not all kernels support. Fast accumulation
	 * is for the forward, where both operands are e4m3, as in torchao. */
	const void *scale = (const void *)(uintptr_t)SCALE_ALIGN;
	int8_t coarse = !cuda_of(d)->o.exact && k->a == DT_E4M3 && k->b == DT_E4M3;
	if (is_byte(k->a)) {
		SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale);
		SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale);
		SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, coarse);
	}
	int64_t a_rows = k->ta ? k->k : k->m, a_cols = k->ta ? k->m : k->k;
	int64_t b_rows = k->tb ? k->n : k->k, b_cols = k->tb ? k->k : k->n;
	p->a = create_layout(d, k->a, a_rows, a_cols, k->runs, k->ta);
	p->b = create_layout(d, k->b, b_rows, b_cols, k->runs, !k->tb);
	p->d = create_layout(d, k->d, k->m, k->n, k->runs, false);
}

/* Enqueues to = (x->add ? x->d : 0) + op(a) op(b); sets pointers in the plan's descriptor. */
static cublasStatus_t run_plan(struct device *d, const struct gemm_plan *p,
	const struct cuda_product *x, void *to, const cublasLtMatmulAlgo_t *algo)
{
	struct cuda_device *c = cuda_of(d);
	const float one = 1, beta = x->add ? 1 : 0;
	cublasLtMatmulDesc_t desc = p->desc;
	if (x->bias)
		SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, x->bias);
	if (x->aux)
		SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, x->aux);
	if (is_byte(p->key.a)) { /* NULL: no scale */
		SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, x->a.scale);
		SET(MatmulDesc, desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x->b.scale);
	}
	const void *from = x->add ? x->d.p : to;
	return cublasLtMatmul(c->cublas, desc, &one, x->a.p, p->a, x->b.p, p->b, &beta,
		from, p->d, to, p->d, algo, c->gemm_workspace, GEMM_WORKSPACE,
		cuda_stream(d));
}

bool cuda_gemm_is_usable(bool exact, const cublasLtMatmulAlgo_t *algo)
{
	int32_t splits = 1;
	uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
	size_t n;
	if (!exact)
		return true;
	cublasLtMatmulAlgoConfigGetAttribute(
		algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof(splits), &n);
	cublasLtMatmulAlgoConfigGetAttribute(
		algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme), &n);
	return (splits == 0 || splits == 1) && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

int cuda_gemm_suggested(struct device *d, const struct gemm_plan *p, bool exact,
	cublasLtMatmulHeuristicResult_t *found, int asked)
{
	cublasLtMatmulPreference_t pref;
	size_t max_bytes = GEMM_WORKSPACE;
	uint32_t align = (uint32_t)p->key.align;
	uint32_t schemes = exact ? CUBLASLT_REDUCTION_SCHEME_NONE
				 : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	int n_found = 0, n = 0;
	cuda_cublas_check(d, cublasLtMatmulPreferenceCreate(&pref),
		"cublasLtMatmulPreferenceCreate");
	SET(MatmulPreference, pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, max_bytes);
	SET(MatmulPreference, pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
	SET(MatmulPreference, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align);
	SET(MatmulPreference, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align);
	SET(MatmulPreference, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align);
	SET(MatmulPreference, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align);
	cublasStatus_t rc = cublasLtMatmulAlgoGetHeuristic(cuda_of(d)->cublas, p->desc,
		p->a, p->b, p->d, p->d, pref, asked, found, &n_found);
	cublasLtMatmulPreferenceDestroy(pref);
	if (rc == CUBLAS_STATUS_NOT_SUPPORTED || rc == CUBLAS_STATUS_INVALID_VALUE)
		return 0;
	cuda_cublas_check(d, rc, "cublasLtMatmulAlgoGetHeuristic");
	for (int i = 0; i < n_found; i++)
		if (found[i].state == CUBLAS_STATUS_SUCCESS &&
			found[i].workspaceSize <= GEMM_WORKSPACE)
			found[n++] = found[i];
	return n;
}

/* Gets the usable algorithms among `asked` suggested ones; returns their number. Exact matmuls
 * exclude split-k algorithms, which choose the number of splits themselves. */
static int usable_algorithms(struct device *d, const struct gemm_plan *p,
	cublasLtMatmulHeuristicResult_t *found, int asked)
{
	bool exact = cuda_of(d)->o.exact;
	int n = 0, n_found = cuda_gemm_suggested(d, p, exact, found, asked);
	for (int i = 0; i < n_found; i++)
		if (cuda_gemm_is_usable(exact, &found[i].algo))
			found[n++] = found[i];
	return n;
}

/* Creates what a measurement needs. The result goes to x->d, or to other memory if the matmul adds
 * to x->d. Returns false if there is no memory. */
bool cuda_gemm_trial(struct device *d, const struct cuda_product *x, struct gemm_trial *t)
{
	size_t n_bytes = (size_t)mat_bytes(x->d);
	t->own = x->add && n_bytes > CUDA_WORKSPACE;
	t->to = x->add ? cuda_workspace(d, min64((int64_t)n_bytes, CUDA_WORKSPACE))
		       : x->d.p;
	if (t->own && cudaMalloc(&t->to, n_bytes) != cudaSuccess) {
		cudaGetLastError();
		return false;
	}
	cuda_check(d, cudaEventCreate(&t->begin), "measuring a matmul");
	cuda_check(d, cudaEventCreate(&t->end), "measuring a matmul");
	return true;
}

void cuda_gemm_end_trial(struct device *d, struct gemm_trial *t)
{
	cudaEventDestroy(t->begin);
	cudaEventDestroy(t->end);
	if (t->own)
		cuda_check(d, cudaFree(t->to), "free");
}

/* Returns the milliseconds of GEMM_TRIALS calls, after one that is not timed; infinity: failed. */
float cuda_gemm_measure(struct device *d, const struct gemm_plan *p,
	const struct cuda_product *x, const struct gemm_trial *t,
	const cublasLtMatmulAlgo_t *algo)
{
	cudaStream_t stream = cuda_stream(d);
	float ms;
	if (!algo)
		x->unfused(d, x);
	else if (run_plan(d, p, x, t->to, algo) != CUBLAS_STATUS_SUCCESS)
		return INFINITY;
	cuda_check(d, cudaEventRecord(t->begin, stream), "measuring a matmul");
	for (int i = 0; i < GEMM_TRIALS; i++) {
		if (algo)
			cuda_cublas_check(
				d, run_plan(d, p, x, t->to, algo), "cublasLtMatmul");
		else
			x->unfused(d, x);
	}
	cuda_check(d, cudaEventRecord(t->end, stream), "measuring a matmul");
	cuda_await(d, t->end, "measuring a matmul");
	cuda_check(d, cudaEventElapsedTime(&ms, t->begin, t->end), "measuring a matmul");
	return ms;
}

/* ---- choosing -------------------------------------------------------------------------- */

/* Times the candidates and returns the fastest, or the first unless another is clearly faster; -1:
 * the unfused kernels. The timed calls overwrite the result of the matmul. */
static int fastest_algorithm(struct device *d, const struct gemm_plan *p,
	const struct cuda_product *x, const cublasLtMatmulHeuristicResult_t *found, int n)
{
	const float clearly = 0.97f;
	struct gemm_trial trial;
	int best = 0;
	float best_ms = INFINITY;
	if (!cuda_gemm_trial(d, x, &trial))
		return 0;
	for (int i = 0; i < n; i++) {
		float ms = cuda_gemm_measure(d, p, x, &trial, &found[i].algo);
		if (ms < best_ms * (i ? clearly : 1)) {
			best = i;
			best_ms = ms;
		}
	}
	if (x->unfused && cuda_gemm_measure(d, p, x, &trial, NULL) < best_ms)
		best = -1;
	cuda_gemm_end_trial(d, &trial);
	return best;
}

/* Returns the candidate that equals the algorithm read from text; -1: none, with a warning. The
 * algorithm comes from a file, so it is never passed to cuBLASLt unchecked. */
static int find_saved_algorithm(
	const struct gemm_plan *p, const cublasLtMatmulHeuristicResult_t *found, int n)
{
	for (int i = 0; i < n; i++)
		if (!memcmp(&found[i].algo, &p->algo, sizeof(p->algo)))
			return i;
	warn("matmul with a result of [%lld, %lld] and sums of %lld terms: the saved cuBLASLt "
	     "algorithm is not available on this GPU; using another one, so bits may differ",
		(long long)p->key.n, (long long)p->key.m, (long long)p->key.k);
	return -1;
}

/* Sets the multiprocessors of a chosen algorithm, if PT_LAB_MATMUL_SPARE leaves some to other
 * streams. The heuristic does not get the number, since another algorithm may have other bits. */
static void spare_multiprocessors(struct device *d, struct gemm_plan *p)
{
	int32_t n = max(1, cuda_of(d)->multiprocessors - cuda_of(d)->matmul_spare);
	if (p->desc && cuda_of(d)->matmul_spare)
		SET(MatmulDesc, p->desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, n);
}

/* Makes a plan ready: with its saved algorithm, the fastest candidate, or the unfused kernels. */
static void choose_algorithm(struct device *d, const char *name, struct gemm_plan *p,
	const struct cuda_product *x)
{
	cublasLtMatmulHeuristicResult_t found[MANY_CANDIDATES];
	bool measures = cuda_of(d)->measures;
	memset(found, 0, sizeof(found));
	if (x->unfused && !p->from_text && !measures) { /* not timed: run unfused */
		p->ready = true;
		return;
	}
	create_descriptors(d, p);
	if (cuda_of(d)->candidates)
		cuda_gemm_list(d, name, p, x);
	if (p->from_text) {
		int n_all = usable_algorithms(d, p, found, MANY_CANDIDATES);
		int saved = find_saved_algorithm(p, found, n_all);
		p->from_text = false;
		p->ready = p->possible = saved >= 0;
		if (p->ready)
			return;
	}
	int n = usable_algorithms(d, p, found, CANDIDATES);
	if (!n)
		n = usable_algorithms(d, p, found, MANY_CANDIDATES);
	p->ready = true;
	p->possible = n > 0;
	if (!n)
		return;
	int best = measures && (n > 1 || x->unfused)
			   ? fastest_algorithm(d, p, x, found, n)
			   : 0;
	p->unfused = best < 0;
	p->possible = best >= 0;
	if (p->possible)
		p->algo = found[best].algo;
}

/* Disables a plan, warns and returns true if cuBLASLt rejects its own suggestion for float8 in
 * runs, which is not documented: the heuristic does not check all needs of the kernels. */
static bool disable_if_rejected(struct gemm_plan *p, const char *name, cublasStatus_t rc)
{
	bool unsure = p->key.runs > 1 && is_byte(p->key.a);
	if (!unsure ||
		(rc != CUBLAS_STATUS_NOT_SUPPORTED && rc != CUBLAS_STATUS_INVALID_VALUE))
		return false;
	warn("%s: cuBLASLt does not support float8 sums in %lld parts (%s); using slower kernels",
		name, (long long)p->key.runs, cublasLtGetStatusName(rc));
	p->possible = false;
	return true;
}

void cuda_warn_converted(
	struct device *d, const char *name, const struct cuda_product *x, size_t n_bytes)
{
	struct gemm_key key = make_key(x);
	struct gemm_plan *p = cuda_get_plan(cuda_of(d), &key);
	if (p->converted)
		return;
	p->converted = true;
	warn("%s: matmul with a result of [%lld, %lld] and sums of %lld terms: "
	     "cuBLASLt has no algorithm%s for 16-bit operands; converting them to fp32, "
	     "which is several times slower and needs %.1f MB",
		name, (long long)key.n, (long long)key.m, (long long)key.k,
		cuda_of(d)->o.exact ? " without split-K" : "", (double)n_bytes * 1e-6);
}

bool cuda_gemm(struct device *d, const char *name, const struct cuda_product *x)
{
	struct gemm_key key = make_key(x);
	struct gemm_plan *p = cuda_get_plan(cuda_of(d), &key);
	if (!p->ready && cuda_graph_capturing(d)) { /* timing would synchronize */
		cuda_graph_reject(d, "the step has a matmul of a new shape");
		return true;
	}
	if (!p->ready) {
		choose_algorithm(d, name, p, x);
		spare_multiprocessors(d, p);
	}
	if (!p->possible)
		return false;
	const int64_t sizes[] = {
		key.n, key.m, key.k, key.a, key.b, key.d, key.align, key.runs};
	struct cuda_launch l = {name, 0, 0, 0, ARRAY_LEN(sizes)};
	for (int i = 0; i < l.n_args; i++)
		l.args[i] = cuda_arg_of(sizes[i]);
	cuda_before_launch(d, &l);
	cublasStatus_t rc = run_plan(d, p, x, x->d.p, &p->algo);
	if (!disable_if_rejected(p, name, rc))
		cuda_cublas_check(d, rc, name);
	cuda_after_launch(d, name);
	return p->possible;
}
