/* The part of cuBLASLt that we use, with its names and prototypes. Matrices are column-major
 * unless their layout says otherwise; sums are in fp32, in the order of k. It offers several
 * algorithms, which compute the same; the second claims to split k. The fastest algorithm
 * differs between handles, as on a GPU with noisy timings. */
#include "tests/emu/inside.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- contents of descriptors -------------------------------------------------------- */

struct layout {
	cudaDataType type;
	int32_t order, batch;
	uint64_t rows, cols;
	int64_t ld, stride;
};

struct desc {
	cublasComputeType_t compute;
	cudaDataType scale_type;
	int32_t transposed[2], epilogue, bias_type, pointer_mode;
	const void *bias;
	void *aux;
	int64_t aux_ld;
	int32_t aux_type;
	const float *scale[2], *d_scale;
	float *d_amax;
	int8_t fast;
	int32_t sms; /* without effect */
};

struct algo {
	int32_t id, split;
	uint32_t tile, reduction;
	uint32_t align[4]; /* of the arguments */
	int32_t scaled;	   /* supports scales */
	int32_t epilogue;  /* its epilogue */
};

struct preference {
	uint64_t workspace_bytes;
	uint32_t align[4], reductions;
};

static_assert(sizeof(struct layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "layout");
static_assert(sizeof(struct desc) <= sizeof(cublasLtMatmulDescOpaque_t), "desc");
static_assert(sizeof(struct algo) <= sizeof(cublasLtMatmulAlgo_t), "algo");
static_assert(
	sizeof(struct preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "pref");

static cublasStatus_t set(void *to, size_t n_bytes, const void *from, size_t n)
{
	if (!from || n != n_bytes)
		return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(to, from, n);
	return CUBLAS_STATUS_SUCCESS;
}

#define SET(field) return set(&(field), sizeof(field), from, n)

/* ---- the library -------------------------------------------------------------------- */

enum { FIRST_ID = 10, ALGOS = 3, MORE_SPLIT = 8, SPLIT_WORKSPACE = 1 << 16 };

struct cublasLtContext {
	int quickest; /* the algorithm's id */
};

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
	static unsigned n_handles;
	*handle = (cublasLtHandle_t)calloc(1, sizeof(**handle));
	bool last = ((unsigned)getpid() + n_handles++) % 2;
	(*handle)->quickest = FIRST_ID + (last ? ALGOS - 1 : 0);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
	free(handle);
	return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
	return CUBLAS_VERSION;
}

size_t cublasLtGetCudartVersion(void)
{
	return CUDART_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t rc)
{
	switch (rc) {
	case CUBLAS_STATUS_SUCCESS:
		return "CUBLAS_STATUS_SUCCESS";
	case CUBLAS_STATUS_INVALID_VALUE:
		return "CUBLAS_STATUS_INVALID_VALUE";
	case CUBLAS_STATUS_NOT_SUPPORTED:
		return "CUBLAS_STATUS_NOT_SUPPORTED";
	case CUBLAS_STATUS_EXECUTION_FAILED:
		return "CUBLAS_STATUS_EXECUTION_FAILED";
	default:
		return "CUBLAS_STATUS_...";
	}
}

const char *cublasLtGetStatusString(cublasStatus_t rc)
{
	return cublasLtGetStatusName(rc);
}

/* ---- descriptors -------------------------------------------------------------------- */

static struct layout *layout_of(cublasLtMatrixLayout_t l)
{
	return (struct layout *)l;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type,
	uint64_t rows, uint64_t cols, int64_t ld)
{
	*l = (cublasLtMatrixLayout_t)calloc(1, sizeof(**l));
	struct layout *m = layout_of(*l);
	m->type = type;
	m->batch = 1;
	m->rows = rows;
	m->cols = cols;
	m->ld = ld;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
	free(l);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
	cublasLtMatrixLayoutAttribute_t attr, const void *from, size_t n)
{
	struct layout *m = layout_of(l);
	switch (attr) {
	case CUBLASLT_MATRIX_LAYOUT_TYPE:
		SET(m->type);
	case CUBLASLT_MATRIX_LAYOUT_ORDER:
		SET(m->order);
	case CUBLASLT_MATRIX_LAYOUT_ROWS:
		SET(m->rows);
	case CUBLASLT_MATRIX_LAYOUT_COLS:
		SET(m->cols);
	case CUBLASLT_MATRIX_LAYOUT_LD:
		SET(m->ld);
	case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
		SET(m->batch);
	case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
		SET(m->stride);
	default:
		return CUBLAS_STATUS_INVALID_VALUE;
	}
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc,
	cublasComputeType_t compute, cudaDataType_t scale_type)
{
	*desc = (cublasLtMatmulDesc_t)calloc(1, sizeof(**desc));
	struct desc *d = (struct desc *)*desc;
	d->compute = compute;
	d->scale_type = scale_type;
	d->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
	d->bias_type = d->aux_type = -1;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
	free(desc);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
	cublasLtMatmulDescAttributes_t attr, const void *from, size_t n)
{
	struct desc *d = (struct desc *)desc;
	switch (attr) {
	case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
		SET(d->compute);
	case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
		SET(d->scale_type);
	case CUBLASLT_MATMUL_DESC_POINTER_MODE:
		SET(d->pointer_mode);
	case CUBLASLT_MATMUL_DESC_TRANSA:
		SET(d->transposed[0]);
	case CUBLASLT_MATMUL_DESC_TRANSB:
		SET(d->transposed[1]);
	case CUBLASLT_MATMUL_DESC_EPILOGUE:
		SET(d->epilogue);
	case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
		SET(d->bias);
	case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
		SET(d->bias_type);
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
		SET(d->aux);
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
		SET(d->aux_ld);
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
		SET(d->aux_type);
	case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
		SET(d->scale[0]);
	case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
		SET(d->scale[1]);
	case CUBLASLT_MATMUL_DESC_D_SCALE_POINTER:
		SET(d->d_scale);
	case CUBLASLT_MATMUL_DESC_AMAX_D_POINTER:
		SET(d->d_amax);
	case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
		SET(d->fast);
	case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
		SET(d->sms);
	default:
		return CUBLAS_STATUS_INVALID_VALUE;
	}
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
	*pref = (cublasLtMatmulPreference_t)calloc(1, sizeof(**pref));
	struct preference *p = (struct preference *)*pref;
	for (int i = 0; i < 4; i++)
		p->align[i] = 256;
	p->reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
	free(pref);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
	cublasLtMatmulPreferenceAttributes_t attr, const void *from, size_t n)
{
	struct preference *p = (struct preference *)pref;
	switch (attr) {
	case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
		SET(p->workspace_bytes);
	case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
		SET(p->reductions);
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
		SET(p->align[0]);
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
		SET(p->align[1]);
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
		SET(p->align[2]);
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
		SET(p->align[3]);
	default:
		return CUBLAS_STATUS_INVALID_VALUE;
	}
}

/* ---- supported matmuls -------------------------------------------------------------- */

static size_t bytes_of(cudaDataType type)
{
	switch (type) {
	case CUDA_R_32F:
		return 4;
	case CUDA_R_16BF:
	case CUDA_R_16F:
		return 2;
	case CUDA_R_8F_E4M3:
	case CUDA_R_8F_E5M2:
		return 1;
	default:
		return 0;
	}
}

/* The rows of an operand after its transposition. */
static uint64_t rows_of(const struct layout *m, int transposed)
{
	return transposed ? m->cols : m->rows;
}

static bool layout_good(const struct layout *m, int batch)
{
	uint64_t run = m->order == CUBLASLT_ORDER_ROW ? m->cols : m->rows;
	return bytes_of(m->type) && m->rows && m->cols && m->ld >= (int64_t)run &&
	       m->batch == batch &&
	       (m->order == CUBLASLT_ORDER_COL || m->order == CUBLASLT_ORDER_ROW);
}

/* That of the result; with fp8 a 16-bit type. */
static int bias_type(const struct layout *a, const struct layout *to)
{
	return bytes_of(a->type) == 1 && to->type == CUDA_R_32F ? CUDA_R_16BF : to->type;
}

/* Rules of fp8: A transposed and B not, not both e5m2, columns of multiples of 16 bytes. */
static bool fp8_good(const struct desc *d, const struct layout *a, const struct layout *b,
	const struct layout *to)
{
	return d->transposed[0] && !d->transposed[1] &&
	       !(a->type == CUDA_R_8F_E5M2 && b->type == CUDA_R_8F_E5M2) &&
	       a->order == CUBLASLT_ORDER_COL && b->order == CUBLASLT_ORDER_COL &&
	       a->ld % 16 == 0 && b->ld % 16 == 0 && a->rows % 16 == 0 &&
	       to->rows % 16 == 0 && to->ld * (int64_t)bytes_of(to->type) % 16 == 0;
}

static bool has_bias(const struct desc *d)
{
	return d->epilogue == CUBLASLT_EPILOGUE_BIAS ||
	       d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool has_aux(const struct desc *d)
{
	return d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
	       d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
	       d->epilogue == CUBLASLT_EPILOGUE_DGELU;
}

/* The argument of GELU has the type of the result, and columns of multiples of 16 bytes. */
static cublasStatus_t check_epilogue(
	const struct desc *d, const struct layout *a, const struct layout *to)
{
	if (!has_aux(d))
		return d->epilogue == CUBLASLT_EPILOGUE_DEFAULT || has_bias(d)
			       ? CUBLAS_STATUS_SUCCESS
			       : CUBLAS_STATUS_NOT_SUPPORTED;
	if (!d->aux || d->aux_ld < (int64_t)to->rows || d->aux_ld % 8)
		return CUBLAS_STATUS_INVALID_VALUE;
	bool good = (uintptr_t)d->aux % 16 == 0 && bytes_of(a->type) == 2 &&
		    to->type == a->type && to->order == CUBLASLT_ORDER_COL &&
		    to->batch == 1 && (d->aux_type < 0 || d->aux_type == to->type);
	return good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static cublasStatus_t check(const struct desc *d, const struct layout *a,
	const struct layout *b, const struct layout *c, const struct layout *to)
{
	bool narrow = bytes_of(a->type) == 1;
	if (!layout_good(a, to->batch) || !layout_good(b, to->batch) ||
		!layout_good(c, to->batch) || !layout_good(to, to->batch))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (to->rows != rows_of(a, d->transposed[0]) || c->rows != to->rows ||
		to->cols != rows_of(b, !d->transposed[1]) || c->cols != to->cols ||
		rows_of(a, !d->transposed[0]) != rows_of(b, d->transposed[1]))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (d->scale_type != CUDA_R_32F ||
		d->pointer_mode != CUBLASLT_POINTER_MODE_HOST ||
		(d->compute != CUBLAS_COMPUTE_32F &&
			d->compute != CUBLAS_COMPUTE_32F_FAST_TF32 &&
			d->compute != CUBLAS_COMPUTE_32F_PEDANTIC))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (bytes_of(a->type) != bytes_of(b->type) || (!narrow && a->type != b->type) ||
		(narrow && !fp8_good(d, a, b, to)) || d->d_scale || d->d_amax ||
		(!narrow && (d->scale[0] || d->scale[1] || d->fast)))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	/* The result is fp32 or has the type of the operands; for fp8 operands any type
	 * except fp8. */
	if (bytes_of(to->type) == 1 || c->type != to->type ||
		(to->type != CUDA_R_32F && to->type != a->type && !narrow) ||
		(d->bias_type >= 0 && d->bias_type != bias_type(a, to)))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	return check_epilogue(d, a, to);
}

/* Stores the range of suggested algorithms for 16-bit operands in *begin and *end. PT_EMU_ALGORITHMS=none:
 * no algorithm. split: eight that split sums without a reduction come first, which exact matmuls must
 * detect by themselves. only-split: only these eight. */
static void algo_range(const struct layout *a, int *begin, int *end)
{
	const char *how = getenv("PT_EMU_ALGORITHMS");
	*begin = 0, *end = ALGOS;
	if (!how || bytes_of(a->type) != 2)
		return;
	if (!strcmp(how, "none"))
		*end = 0;
	else
		*begin = -MORE_SPLIT;
	if (!strcmp(how, "only-split"))
		*end = 0;
}

static bool has_scales(const struct desc *d)
{
	return d->scale[0] || d->scale[1];
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
	cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
	cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t to,
	cublasLtMatmulPreference_t pref, int asked,
	cublasLtMatmulHeuristicResult_t results[], int *found)
{
	const struct preference *p = (const struct preference *)pref;
	*found = 0;
	if (!handle || !pref || asked <= 0)
		return CUBLAS_STATUS_INVALID_VALUE;
	cublasStatus_t rc = check((const struct desc *)desc, layout_of(a), layout_of(b),
		layout_of(c), layout_of(to));
	if (rc)
		return rc;
	int begin, end;
	algo_range(layout_of(a), &begin, &end);
	for (int i = begin; i < end && *found < asked; i++) {
		cublasLtMatmulHeuristicResult_t *r = &results[*found];
		const struct desc *d = (const struct desc *)desc;
		struct algo algo = {FIRST_ID + (i < 0 ? 1 : i), i < 0 || i == 1 ? 2 : 1,
			(uint32_t)(20 + i),
			(uint32_t)(i == 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
					  : CUBLASLT_REDUCTION_SCHEME_NONE),
			{}, has_scales(d), d->epilogue};
		for (int j = 0; j < 4; j++)
			algo.align[j] = p->align[j] < 16 ? p->align[j] : 16;
		size_t workspace = algo.split > 1 ? SPLIT_WORKSPACE : 0;
		if (workspace > p->workspace_bytes || (algo.reduction & ~p->reductions))
			continue;
		memset(r, 0, sizeof(*r));
		memcpy(&r->algo, &algo, sizeof(algo));
		r->workspaceSize = workspace;
		r->wavesCount = 1;
		++*found;
	}
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
	cublasLtMatmulAlgoConfigAttributes_t attr, void *to, size_t n, size_t *written)
{
	const struct algo *a = (const struct algo *)algo;
	if (written)
		*written = sizeof(int32_t);
	switch (attr) {
	case CUBLASLT_ALGO_CONFIG_ID:
		return set(to, sizeof(a->id), &a->id, n);
	case CUBLASLT_ALGO_CONFIG_TILE_ID:
		return set(to, sizeof(a->tile), &a->tile, n);
	case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
		return set(to, sizeof(a->split), &a->split, n);
	case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
		return set(to, sizeof(a->reduction), &a->reduction, n);
	default:
		return CUBLAS_STATUS_INVALID_VALUE;
	}
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
	cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
	cublasLtMatrixLayout_t to, const cublasLtMatmulAlgo_t *algo,
	cublasLtMatmulHeuristicResult_t *result)
{
	const struct algo *how = (const struct algo *)algo;
	if (how->id < FIRST_ID || how->id >= FIRST_ID + ALGOS)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	result->state = check((const struct desc *)desc, layout_of(a), layout_of(b),
		layout_of(c), layout_of(to));
	result->workspaceSize = how->split > 1 ? SPLIT_WORKSPACE : 0;
	result->wavesCount = 1;
	return result->state;
}

/* ---- matmuls ------------------------------------------------------------------------ */

static float table[3][1 << 16]; /* values of e4m3, e5m2 and fp16 */

static void tables_make(void)
{
	for (unsigned i = 0; i < 1 << 16; i++) {
		__half_raw r;
		r.x = (unsigned short)i;
		table[2][i] = __half2float(__half(r));
		for (int j = 0; j < 2 && i < 256; j++)
			table[j][i] = __half2float(__half(__nv_cvt_fp8_to_halfraw(
				(__nv_fp8_storage_t)i, j ? __NV_E5M2 : __NV_E4M3)));
	}
}

static float load(const void *p, cudaDataType type, int64_t i)
{
	switch (type) {
	case CUDA_R_32F:
		return ((const float *)p)[i];
	case CUDA_R_16BF:
		return emu_bits<float>((uint32_t)((const uint16_t *)p)[i] << 16);
	case CUDA_R_16F:
		return table[2][((const uint16_t *)p)[i]];
	case CUDA_R_8F_E4M3:
		return table[0][((const uint8_t *)p)[i]];
	default:
		return table[1][((const uint8_t *)p)[i]];
	}
}

static void store(void *p, cudaDataType type, int64_t i, float x)
{
	if (type == CUDA_R_32F)
		((float *)p)[i] = x;
	else if (type == CUDA_R_16BF)
		((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(x);
	else
		((__half *)p)[i] = __float2half_rn(x);
}

/* x[rows, cols], row-major, from a matrix or its transpose. */
static void unpack(float *x, const struct layout *m, const void *p, bool transposed)
{
	bool flip = transposed == (m->order == CUBLASLT_ORDER_ROW);
	int64_t rows = (int64_t)rows_of(m, transposed),
		cols = (int64_t)rows_of(m, !transposed);
	/* flip: the stored runs are the columns of x */
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < cols; j++)
			x[i * cols + j] =
				load(p, m->type, flip ? j * m->ld + i : i * m->ld + j);
}

/* c[m, n] = a[m, k] b[k, n] */
__attribute__((target_clones("default", "avx2", "avx512f"))) static void multiply(
	float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k)
{
	const int64_t WIDE = 128;
	memset(c, 0, (size_t)(m * n) * sizeof(*c));
	for (int64_t first = 0; first < n; first += WIDE) {
		int64_t wide = n - first < WIDE ? n - first : WIDE;
		for (int64_t i = 0; i < m; i++) {
			float *to = c + i * n + first;
			const float *x = a + i * k, *from = b + first;
			int64_t l = 0;
			for (; l + 4 <= k; l += 4, x += 4, from += 4 * n)
				for (int64_t j = 0; j < wide; j++)
					to[j] = to[j] + x[0] * from[j] +
						x[1] * from[n + j] +
						x[2] * from[2 * n + j] +
						x[3] * from[3 * n + j];
			for (; l < k; l++, x++, from += n)
				for (int64_t j = 0; j < wide; j++)
					to[j] += *x * from[j];
		}
	}
}

/* An enqueued matmul, with copies of the descriptors, which may change before it runs. */
struct matmul {
	struct desc desc;
	struct layout a, b, c, d;
	const char *a_at, *b_at, *c_at;
	char *d_at;
	float alpha, beta;
};

/* The tanh form, and its derivative. */
static float gelu(float x)
{
	return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
	float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
	return 0.5f * (1 + t) +
	       0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 0.134145f * x * x);
}

/* Element (i, j) of the result from its sum. */
static float with_epilogue(
	const struct matmul *p, cudaDataType of_bias, int64_t i, int64_t j, float x)
{
	int64_t at = j * p->desc.aux_ld + i;
	if (has_bias(&p->desc))
		x += load(p->desc.bias, of_bias, i);
	if (p->desc.epilogue == CUBLASLT_EPILOGUE_DGELU)
		return x * gelu_slope(load(p->desc.aux, p->d.type, at));
	if (!has_aux(&p->desc))
		return x;
	store(p->desc.aux, p->d.type, at, x);
	return gelu(x);
}

/* A sum in the precision of fp8 tensor cores without promotion (fast accumulation). */
static float coarse(float x)
{
	return emu_bits<float>(emu_bits<uint32_t>(x) & ~0x3ffu);
}

static void finish(const struct matmul *p, int64_t batch, const float *sum)
{
	const struct layout *cl = &p->c, *dl = &p->d;
	const char *c = p->c_at + batch * cl->stride * (int64_t)bytes_of(cl->type);
	char *d = p->d_at + batch * dl->stride * (int64_t)bytes_of(dl->type);
	cudaDataType of_bias = (cudaDataType)bias_type(&p->a, dl);
	float scale = p->alpha;
	for (int i = 0; i < 2; i++)
		scale *= p->desc.scale[i] ? *p->desc.scale[i] : 1;
	for (int64_t i = 0; i < (int64_t)dl->rows; i++)
		for (int64_t j = 0; j < (int64_t)dl->cols; j++) {
			bool c_row = cl->order == CUBLASLT_ORDER_ROW;
			bool d_row = dl->order == CUBLASLT_ORDER_ROW;
			int64_t c_i = c_row ? i * cl->ld + j : j * cl->ld + i;
			int64_t d_i = d_row ? i * dl->ld + j : j * dl->ld + i;
			float all = sum[i * (int64_t)dl->cols + j];
			float x = scale * (p->desc.fast ? coarse(all) : all);
			if (p->beta != 0)
				x += p->beta * load(c, cl->type, c_i);
			store(d, dl->type, d_i, with_epilogue(p, of_bias, i, j, x));
		}
}

/* The function of kernels.h that has such matmuls. */
static const char *function_of(const struct desc *d)
{
	if (d->aux)
		return d->transposed[0] ? "linear_gelu_fwd" : "linear_gelu_bwd";
	return d->transposed[0]	  ? "linear_fwd"
	       : d->transposed[1] ? "linear_bwd_w"
				  : "linear_bwd_x";
}

static void matmul_now(void *arg)
{
	const struct matmul *p = (const struct matmul *)arg;
	int64_t m = (int64_t)p->d.rows, n = (int64_t)p->d.cols;
	int64_t k = (int64_t)rows_of(&p->a, !p->desc.transposed[0]);
	if (emu_breaks() || emu_is_short(function_of(&p->desc)))
		return;
	if (!table[2][1])
		tables_make();
	float *x = (float *)malloc((size_t)(m * k + k * n + m * n) * sizeof(float));
	float *y = x + m * k, *z = y + k * n;
	emu_memory(true);
	for (int64_t i = 0; i < p->d.batch; i++) {
		unpack(x, &p->a, p->a_at + i * p->a.stride * (int64_t)bytes_of(p->a.type),
			p->desc.transposed[0]);
		unpack(y, &p->b, p->b_at + i * p->b.stride * (int64_t)bytes_of(p->b.type),
			p->desc.transposed[1]);
		multiply(z, x, y, m, n, k);
		finish(p, i, z);
	}
	emu_memory(false);
	free(x);
}

/* Advances the clock of events, for each matmul by an algorithm that is not the fastest. */
static void takes_longer(void *)
{
	emu_clock_on(1e-2);
}

/* Whether all matrices of a batch have the alignment that an algorithm needs. */
static bool aligned(
	const struct algo *how, const void *const p[4], const struct layout *const l[4])
{
	for (int i = 0; how && i < 4; i++) {
		uintptr_t places = (uintptr_t)p[i];
		if (l[i]->batch > 1)
			places |= (uintptr_t)l[i]->stride * bytes_of(l[i]->type);
		if (how->align[i] && places % how->align[i])
			return false;
	}
	return true;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
	const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
	cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
	cublasLtMatrixLayout_t c_layout, void *to, cublasLtMatrixLayout_t to_layout,
	const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
	cudaStream_t stream)
{
	const struct desc *d = (const struct desc *)desc;
	const struct layout *al = layout_of(a_layout), *bl = layout_of(b_layout);
	const struct layout *cl = layout_of(c_layout), *dl = layout_of(to_layout);
	cublasStatus_t rc =
		handle ? check(d, al, bl, cl, dl) : CUBLAS_STATUS_NOT_INITIALIZED;
	const void *const all[4] = {a, b, c, to};
	const struct layout *const layouts[4] = {al, bl, cl, dl};
	if (rc)
		return rc;
	const struct algo *how = (const struct algo *)algo;
	if (how && ((has_scales(d) && !how->scaled) || how->epilogue != d->epilogue))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (how && how->split > 1 && (!workspace || workspace_bytes < SPLIT_WORKSPACE))
		return CUBLAS_STATUS_INVALID_VALUE;
	const char *refused = getenv("PT_EMU_REFUSE");
	if (refused && !strcmp(refused, "float8-runs") && bytes_of(al->type) == 1 &&
		al->batch > 1)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	/* fp8; the heuristic knows of the operands' alignment, but ignores that of their scales */
	uintptr_t scales = (uintptr_t)d->scale[0] | (uintptr_t)d->scale[1];
	if (!aligned(how, all, layouts) ||
		(bytes_of(al->type) == 1 && ((uintptr_t)a | (uintptr_t)b | scales) % 16))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	struct matmul p = {*d, *al, *bl, *cl, *dl, (const char *)a, (const char *)b,
		(const char *)c, (char *)to, *(const float *)alpha, *(const float *)beta};
	for (const void *x : all)
		emu_pointer("a product", x);
	if (has_aux(d)) {
		emu_pointer("a product's epilogue", d->aux);
		if (p.beta != 0)
			return CUBLAS_STATUS_NOT_SUPPORTED;
	}
	for (const float *x : d->scale)
		emu_pointer("a scale of a product", x);
	emu_ask(stream, matmul_now, &p, sizeof(p));
	if (how && how->id != handle->quickest)
		emu_ask(stream, takes_longer, NULL, 0);
	return CUBLAS_STATUS_SUCCESS;
}
