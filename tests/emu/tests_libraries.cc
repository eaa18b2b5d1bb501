/* Tests of the emulator's runtime and matmuls. */
#include "tests/emu/inside.h"
#include "tests/emu/tests.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- memory ------------------------------------------------------------------------- */

static bool copies(void)
{
	enum { N = 1000 };
	float x[N], y[N], *d, *pinned;
	EMU_EXPECT(!cudaMalloc((void **)&d, sizeof(x)));
	EMU_EXPECT(!cudaMallocHost((void **)&pinned, sizeof(x)));
	EMU_EXPECT((uintptr_t)d % 256 == 0);
	for (int i = 0; i < N; i++)
		x[i] = (float)i;
	EMU_EXPECT(!cudaMemcpy(d, x, sizeof(x), cudaMemcpyHostToDevice));
	emu_launch(dim3(1), dim3(N), 0, [=] { d[threadIdx.x] *= 2; });
	EMU_EXPECT(!cudaMemset(d, 0, 2 * sizeof(float)));
	EMU_EXPECT(!cudaMemcpyAsync(pinned, d, sizeof(x), cudaMemcpyDeviceToHost, NULL));
	EMU_EXPECT(!cudaMemcpy(y, d, sizeof(x), cudaMemcpyDefault));
	for (int i = 0; i < N; i++)
		EMU_EXPECT(y[i] == (i < 2 ? 0 : 2 * x[i]) && pinned[i] == y[i]);
	/* Copies beyond the end are refused. */
	EMU_EXPECT(cudaMemcpy(d, x, sizeof(x), cudaMemcpyDeviceToHost) ==
		   cudaErrorInvalidMemcpyDirection);
	EMU_EXPECT(cudaMemcpy(d, x, sizeof(x), cudaMemcpyHostToHost) ==
		   cudaErrorInvalidMemcpyDirection);
	EMU_EXPECT(cudaMemcpy(d + 1, x, sizeof(x), cudaMemcpyHostToDevice) ==
		   cudaErrorInvalidValue);
	EMU_EXPECT(cudaMemcpyAsync(d, pinned + 1, sizeof(x), cudaMemcpyDefault, NULL) ==
		   cudaErrorInvalidValue);
	EMU_EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
	EMU_EXPECT(cudaGetLastError() == cudaSuccess);
	EMU_EXPECT(cudaFree(d + 64) == cudaErrorInvalidValue);
	EMU_EXPECT(!cudaFree(d) && !cudaFreeHost(pinned));
	EMU_EXPECT(cudaFree(d) == cudaErrorInvalidValue);
	return true;
}

static bool new_memory(void)
{
	float *d, x[2];
	EMU_EXPECT(!cudaMalloc((void **)&d, sizeof(x)));
	EMU_EXPECT(!cudaMemcpy(x, d, sizeof(x), cudaMemcpyDeviceToHost));
	EMU_EXPECT(isnan(x[0]) && isnan(x[1]));
	return true;
}

static bool memory_ends(void)
{
	void *a, *b;
	size_t n_free, total;
	setenv("PT_EMU_MEMORY", "1048576", 1);
	EMU_EXPECT(!cudaMalloc(&a, 1 << 19));
	EMU_EXPECT(cudaMalloc(&b, (1 << 19) + 1) == cudaErrorMemoryAllocation && !b);
	EMU_EXPECT(!cudaMemGetInfo(&n_free, &total));
	EMU_EXPECT(n_free == 1 << 19 && total == 1 << 20);
	EMU_EXPECT(!cudaFree(a) && !cudaMalloc(&b, (1 << 19) + 1));
	return true;
}

static bool touched_by_program(void)
{
	float *d;
	EMU_EXPECT(!cudaMalloc((void **)&d, 4096));
	emu_launch(dim3(1), dim3(1), 0, [=] { *d = 0; });
	return *(volatile float *)d == 0;
}

static bool not_guarded(void)
{
	setenv("PT_EMU_GUARD", "no", 1);
	return touched_by_program();
}

/* Arguments of a kernel may point to memory that it can access, to the end of it, and to no
 * memory. */
static bool given(const void *p)
{
	void *d, *pinned;
	EMU_EXPECT(!cudaMalloc(&d, 1024));
	EMU_EXPECT(!cudaMallocHost(&pinned, 1024));
	const void *const all[] = {d, (char *)d + 1024, pinned, NULL, (void *)64, p};
	for (const void *x : all)
		emu_pointer("kernel", x);
	return true;
}

static bool given_what_it_reaches(void)
{
	return given(NULL);
}

static bool given_what_it_does_not(void)
{
	int here = 0;
	return given(&here);
}

static bool beyond_memory(void)
{
	float *d;
	EMU_EXPECT(!cudaMalloc((void **)&d, 1024));
	emu_launch(dim3(1), dim3(257), 0, [=] { d[threadIdx.x] = 1; });
	return true;
}

static bool a_broken_device(void)
{
	int n = 0, *count = &n;
	setenv("PT_EMU_FAIL", "2", 1);
	for (int i = 0; i < 3; i++) {
		emu_launch(dim3(1), dim3(1), 0, [=] { ++*count; });
		EMU_EXPECT(cudaDeviceSynchronize() ==
			   (i ? cudaErrorIllegalAddress : cudaSuccess));
	}
	EMU_EXPECT(n == 1);
	EMU_EXPECT(cudaGetLastError() == cudaErrorIllegalAddress);
	EMU_EXPECT(cudaGetLastError() == cudaErrorIllegalAddress);
	return true;
}

static bool events(void)
{
	cudaStream_t s;
	cudaEvent_t a, b;
	float ms = -1;
	EMU_EXPECT(!cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	EMU_EXPECT(!cudaEventCreate(&a) && !cudaEventCreate(&b));
	EMU_EXPECT(!cudaEventRecord(a, s) && !cudaEventRecord(b, s));
	EMU_EXPECT(!cudaEventSynchronize(b));
	EMU_EXPECT(!cudaEventElapsedTime(&ms, a, b) && ms >= 0 && ms < 1000);
	EMU_EXPECT(!cudaEventDestroy(a) && !cudaEventDestroy(b) && !cudaStreamDestroy(s));
	return true;
}

/* With lazy streams, a program that does not wait reads old values. */
static bool laziness(void)
{
	int *pinned, *d, *to;
	cudaStream_t s, other;
	cudaEvent_t e;
	setenv("PT_EMU_LAZY", "yes", 1);
	EMU_EXPECT(!cudaMallocHost((void **)&pinned, 4) && !cudaMalloc((void **)&d, 4));
	EMU_EXPECT(!cudaMallocHost((void **)&to, 4));
	EMU_EXPECT(!cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	EMU_EXPECT(!cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	EMU_EXPECT(!cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	/* Changed too early, and after the wait. */
	*pinned = 1;
	*to = 0;
	EMU_EXPECT(!cudaMemcpyAsync(d, pinned, 4, cudaMemcpyHostToDevice, s));
	*pinned = 2;
	EMU_EXPECT(!cudaEventRecord(e, s) && cudaEventQuery(e) == cudaErrorNotReady);
	EMU_EXPECT(!cudaEventSynchronize(e) && !cudaEventQuery(e));
	*pinned = 3;
	emu_launch(
		dim3(1), dim3(1), 0, [=] { *d *= 10; }, s);
	EMU_EXPECT(!cudaMemcpyAsync(to, d, 4, cudaMemcpyDeviceToHost, s));
	EMU_EXPECT(*to == 0);
	EMU_EXPECT(!cudaStreamSynchronize(s) && *to == 20);
	/* Another stream overtakes, unless it waits. */
	for (int waits = 0; waits < 2; waits++) {
		*to = 5;
		EMU_EXPECT(!cudaMemset(d, 0, 4));
		emu_launch(
			dim3(1), dim3(1), 0, [=] { *d = 7; }, s);
		EMU_EXPECT(!cudaEventRecord(e, s));
		if (waits)
			EMU_EXPECT(!cudaStreamWaitEvent(other, e, 0));
		EMU_EXPECT(!cudaMemcpyAsync(to, d, 4, cudaMemcpyDeviceToHost, other));
		EMU_EXPECT(!cudaStreamSynchronize(other) && *to == (waits ? 7 : 0));
		EMU_EXPECT(!cudaDeviceSynchronize());
	}
	return true;
}

/* With a late first stream, a stream that does not wait for it is too early. */
static bool first_is_late(void)
{
	int *pinned, *d;
	cudaStream_t s, other;
	cudaEvent_t e;
	setenv("PT_EMU_LAZY", "first", 1);
	EMU_EXPECT(!cudaMallocHost((void **)&pinned, 4) && !cudaMalloc((void **)&d, 8));
	EMU_EXPECT(!cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	EMU_EXPECT(!cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	EMU_EXPECT(!cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	for (int waits = 0; waits < 2; waits++) {
		*pinned = 1;
		EMU_EXPECT(!cudaMemset(d, 0, 8));
		emu_launch(
			dim3(1), dim3(1), 0, [=] { d[1] = d[0]; }, s);
		EMU_EXPECT(!cudaEventRecord(e, s));
		if (waits)
			EMU_EXPECT(!cudaStreamWaitEvent(other, e, 0));
		EMU_EXPECT(!cudaMemcpyAsync(d, pinned, 4, cudaMemcpyDefault, other));
		EMU_EXPECT(!cudaStreamSynchronize(s));
		EMU_EXPECT(!cudaMemcpyAsync(pinned, d + 1, 4, cudaMemcpyDefault, other));
		EMU_EXPECT(*pinned == !waits);
	}
	return true;
}

static bool not_pinned(void)
{
	int *d, mine = 1;
	EMU_EXPECT(!cudaMalloc((void **)&d, 4));
	EMU_EXPECT(cudaMemcpyAsync(d, &mine, 4, cudaMemcpyHostToDevice, NULL));
	return false;
}

/* Captured operations run at each launch, with the contents of pinned memory at that time. */
static bool graphs(void)
{
	int *pinned, *d, *to;
	cudaStream_t s;
	cudaEvent_t e;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	EMU_EXPECT(!cudaMallocHost((void **)&pinned, 4) && !cudaMalloc((void **)&d, 8));
	EMU_EXPECT(!cudaEventCreate(&e));
	EMU_EXPECT(!cudaMallocHost((void **)&to, 4) && !cudaMemset(d, 0, 8));
	EMU_EXPECT(!cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	EMU_EXPECT(!cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
	*pinned = 1;
	*to = -1;
	EMU_EXPECT(!cudaMemcpyAsync(d, pinned, 4, cudaMemcpyHostToDevice, s));
	emu_launch(
		dim3(1), dim3(1), 0, [=] { d[1] += *d; }, s);
	EMU_EXPECT(!cudaMemcpyAsync(to, d + 1, 4, cudaMemcpyDeviceToHost, s));
	EMU_EXPECT(!cudaEventRecordWithFlags(e, s, cudaEventRecordExternal));
	EMU_EXPECT(!cudaMemsetAsync(d, 0xff, 4, s));
	EMU_EXPECT(!cudaMemcpyAsync(pinned, d, 4, cudaMemcpyDeviceToHost, s));
	EMU_EXPECT(!cudaStreamEndCapture(s, &graph));
	EMU_EXPECT(cudaEventRecordWithFlags(e, s, cudaEventRecordExternal) ==
			   cudaErrorIllegalState &&
		   cudaGetLastError() == cudaErrorIllegalState);
	EMU_EXPECT(!cudaGraphInstantiate(&exec, graph, 0) && !cudaGraphDestroy(graph));
	EMU_EXPECT(!cudaStreamSynchronize(s) && *to == -1);
	for (int i = 0, sum = 0; i < 3; i++) {
		*pinned = 10 + i;
		sum += 10 + i;
		EMU_EXPECT(!cudaGraphLaunch(exec, s));
		EMU_EXPECT(!cudaEventSynchronize(e) && *to == sum);
		EMU_EXPECT((*pinned == 10 + i) == !!getenv("PT_EMU_LAZY"));
		EMU_EXPECT(!cudaStreamSynchronize(s) && *pinned == -1);
	}
	EMU_EXPECT(!cudaGraphExecDestroy(exec));
	return true;
}

static bool lazy_graphs(void)
{
	setenv("PT_EMU_LAZY", "yes", 1);
	return graphs();
}

/* Waits and allocations end the capture. */
static bool captures_end(void)
{
	enum { WAYS = 8 };
	int *d, mine = 1;
	void *more;
	cudaStream_t s;
	cudaEvent_t e;
	cudaGraph_t graph;
	EMU_EXPECT(!cudaMalloc((void **)&d, 4) && !cudaEventCreate(&e));
	EMU_EXPECT(!cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	for (int way = 0; way < WAYS; way++) {
		const cudaError_t refused = cudaErrorStreamCaptureUnsupported;
		int before = mine;
		EMU_EXPECT(!cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
		cudaError_t rc =
			way == 0   ? cudaStreamSynchronize(s)
			: way == 1 ? cudaDeviceSynchronize()
			: way == 2 ? cudaEventSynchronize(e)
			: way == 3 ? cudaMalloc(&more, 4)
			: way == 4 ? cudaMallocHost(&more, 4)
			: way == 5 ? cudaMemcpyAsync(d, &mine, 4, cudaMemcpyDefault, s)
			: way == 6 ? cudaMemcpyAsync(&mine, d, 4, cudaMemcpyDefault, s)
				   : cudaMemcpy(d, &mine, 4, cudaMemcpyDefault);
		EMU_EXPECT(rc == refused && cudaGetLastError() == refused);
		emu_launch(
			dim3(1), dim3(1), 0, [=] { *d = 0; }, s);
		EMU_EXPECT(cudaGetLastError() == cudaErrorStreamCaptureInvalidated);
		EMU_EXPECT(cudaStreamEndCapture(s, &graph) ==
				   cudaErrorStreamCaptureInvalidated &&
			   !graph && mine == before);
		cudaGetLastError();
		EMU_EXPECT(!cudaStreamSynchronize(s));
	}
	cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	EMU_EXPECT(!cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
	EMU_EXPECT(!cudaThreadExchangeStreamCaptureMode(&mode));
	EMU_EXPECT(!cudaMallocHost(&more, 4));
	EMU_EXPECT(!cudaThreadExchangeStreamCaptureMode(&mode));
	EMU_EXPECT(!cudaStreamEndCapture(s, &graph) && !cudaGraphDestroy(graph));
	return true;
}

/* ---- matmuls ------------------------------------------------------------------------ */

enum { M = 32, N = 24, K = 48, LD = 64, SIZE = LD * LD };

struct matrix {
	cudaDataType type;
	bool row; /* -major */
	float x[SIZE];
	void *d;
};

static size_t bytes(cudaDataType type)
{
	return type == CUDA_R_32F ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 1;
}

/* Numbers that every format can represent; on the device in the format. */
static bool matrix_make(struct matrix *m, cudaDataType type, bool row, int seed)
{
	alignas(4) unsigned char raw[SIZE * 4];
	m->type = type;
	m->row = row;
	for (int i = 0; i < SIZE; i++) {
		float x = m->x[i] = (float)((i * 7919 + seed) % 15 - 7);
		if (type == CUDA_R_32F)
			((float *)raw)[i] = x;
		else if (type == CUDA_R_16BF)
			((__nv_bfloat16 *)raw)[i] = __float2bfloat16_rn(x);
		else if (type == CUDA_R_16F)
			((__half *)raw)[i] = __float2half_rn(x);
		else if (type == CUDA_R_8F_E4M3)
			((__nv_fp8_e4m3 *)raw)[i] = __nv_fp8_e4m3(x);
		else /* has fewer numbers */
			((__nv_fp8_e5m2 *)raw)[i] =
				__nv_fp8_e5m2(m->x[i] = x - fmodf(x, 2));
	}
	return !cudaMalloc(&m->d, SIZE * bytes(type)) &&
	       !cudaMemcpy(m->d, raw, SIZE * bytes(type), cudaMemcpyHostToDevice);
}

/* The index of element (i, j), row-major or column-major. */
static int at(const struct matrix *m, int i, int j)
{
	return m->row ? i * LD + j : j * LD + i;
}

static bool matrix_read(struct matrix *m)
{
	alignas(4) unsigned char raw[SIZE * 4];
	if (cudaMemcpy(raw, m->d, SIZE * bytes(m->type), cudaMemcpyDeviceToHost))
		return false;
	for (int i = 0; i < SIZE; i++)
		m->x[i] = m->type == CUDA_R_32F ? ((float *)raw)[i]
			  : m->type == CUDA_R_16BF
				  ? __bfloat162float(((__nv_bfloat16 *)raw)[i])
				  : __half2float(((__half *)raw)[i]);
	return true;
}

static cublasLtMatrixLayout_t layout(const struct matrix *m, int rows, int cols)
{
	cublasLtMatrixLayout_t l;
	int32_t order = m->row ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
	cublasLtMatrixLayoutCreate(&l, m->type, (uint64_t)rows, (uint64_t)cols, LD);
	cublasLtMatrixLayoutSetAttribute(
		l, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof(order));
	return l;
}

struct problem {
	struct matrix a, b, d, bias, scale, aux;
	bool ta, tb, with_bias, scaled;
	int32_t gelu; /* an epilogue, or 0 */
	int64_t aux_ld;
};

static cublasStatus_t multiply(struct problem *p)
{
	cublasLtHandle_t h;
	cublasLtMatmulDesc_t desc;
	cublasLtMatmulPreference_t pref;
	cublasLtMatmulHeuristicResult_t r[4];
	int32_t ta = p->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
	int32_t tb = p->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
	int32_t epilogue = CUBLASLT_EPILOGUE_BIAS, split = 0;
	uint64_t room = 1 << 20;
	float alpha = 2, beta = p->gelu ? 0 : 3;
	int n = 0;
	cublasLtMatrixLayout_t la = layout(&p->a, p->ta ? K : M, p->ta ? M : K);
	cublasLtMatrixLayout_t lb = layout(&p->b, p->tb ? N : K, p->tb ? K : N);
	cublasLtMatrixLayout_t ld = layout(&p->d, M, N);
	cublasLtCreate(&h);
	cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	cublasLtMatmulDescSetAttribute(
		desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof(ta));
	cublasLtMatmulDescSetAttribute(
		desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof(tb));
	if (p->with_bias) {
		cublasLtMatmulDescSetAttribute(
			desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
		cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
			&p->bias.d, sizeof(p->bias.d));
	}
	if (p->gelu) {
		cublasLtMatmulDescSetAttribute(
			desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->gelu, sizeof(p->gelu));
		cublasLtMatmulDescSetAttribute(desc,
			CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p->aux.d,
			sizeof(p->aux.d));
		cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
			&p->aux_ld, sizeof(p->aux_ld));
	}
	if (p->scaled)
		cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
			&p->scale.d, sizeof(p->scale.d));
	cublasLtMatmulPreferenceCreate(&pref);
	cublasLtMatmulPreferenceSetAttribute(
		pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof(room));
	cublasStatus_t rc =
		cublasLtMatmulAlgoGetHeuristic(h, desc, la, lb, ld, ld, pref, 4, r, &n);
	if (rc)
		return rc;
	cublasLtMatmulAlgoConfigGetAttribute(
		&r[1].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof(split), NULL);
	if (n != 3 || split != 2)
		return CUBLAS_STATUS_INTERNAL_ERROR;
	rc = cublasLtMatmul(h, desc, &alpha, p->a.d, la, p->b.d, lb, &beta, p->d.d, ld,
		p->d.d, ld, &r[2].algo, NULL, 0, NULL);
	cublasLtMatmulPreferenceDestroy(pref);
	cublasLtMatmulDescDestroy(desc);
	cublasLtMatrixLayoutDestroy(la);
	cublasLtMatrixLayoutDestroy(lb);
	cublasLtMatrixLayoutDestroy(ld);
	cublasLtDestroy(h);
	return rc;
}

static bool problem_good(struct problem *p)
{
	float before[SIZE];
	memcpy(before, p->d.x, sizeof(before));
	EMU_EXPECT(!multiply(p));
	EMU_EXPECT(matrix_read(&p->d));
	for (int i = 0; i < M; i++)
		for (int j = 0; j < N; j++) {
			float s = 0;
			for (int k = 0; k < K; k++)
				s += p->a.x[p->ta ? at(&p->a, k, i) : at(&p->a, i, k)] *
				     p->b.x[p->tb ? at(&p->b, j, k) : at(&p->b, k, j)];
			s *= 2 * (p->scaled ? p->scale.x[0] : 1);
			s += 3 * before[at(&p->d, i, j)] +
			     (p->with_bias ? p->bias.x[i] : 0);
			if (p->d.type == CUDA_R_16BF)
				s = __bfloat162float(__float2bfloat16_rn(s));
			if (p->d.type == CUDA_R_16F)
				s = __half2float(__float2half_rn(s));
			EMU_EXPECT(s == p->d.x[at(&p->d, i, j)]);
			before[at(&p->d, i, j)] = p->d.x[at(&p->d, i, j)];
		}
	EMU_EXPECT(!memcmp(before, p->d.x, sizeof(before))); /* no other memory changed */
	return true;
}

static bool problem(cudaDataType in, cudaDataType out, int how)
{
	struct problem p = {};
	p.ta = how & 1;
	p.tb = how & 2;
	p.with_bias = how & 32;
	p.scaled = how & 64;
	EMU_EXPECT(matrix_make(&p.a, in, how & 4, 1));
	EMU_EXPECT(matrix_make(
		&p.b, in == CUDA_R_8F_E5M2 ? CUDA_R_8F_E4M3 : in, how & 8, 2));
	EMU_EXPECT(matrix_make(&p.d, out, how & 16, 3));
	EMU_EXPECT(matrix_make(&p.bias,
		bytes(in) == 1 && out == CUDA_R_32F ? CUDA_R_16BF : out, false, 4));
	EMU_EXPECT(matrix_make(&p.scale, CUDA_R_32F, false, 5));
	EMU_EXPECT(problem_good(&p));
	return !cudaFree(p.a.d) && !cudaFree(p.b.d) && !cudaFree(p.d.d) &&
	       !cudaFree(p.bias.d) && !cudaFree(p.scale.d);
}

static bool matrix_products(void)
{
	for (int how = 0; how < 64; how++)
		EMU_EXPECT(problem(CUDA_R_32F, CUDA_R_32F, how));
	for (int how = 0; how < 64; how += 7) {
		EMU_EXPECT(problem(CUDA_R_16BF, CUDA_R_16BF, how));
		EMU_EXPECT(problem(CUDA_R_16BF, CUDA_R_32F, how));
		EMU_EXPECT(problem(CUDA_R_16F, CUDA_R_16F, how));
		EMU_EXPECT(problem(CUDA_R_16F, CUDA_R_32F, how));
	}
	/* fp8: A transposed, B not. */
	for (int how = 1; how < 128; how += 32) {
		EMU_EXPECT(problem(CUDA_R_8F_E4M3, CUDA_R_32F, how));
		EMU_EXPECT(problem(CUDA_R_8F_E5M2, CUDA_R_16BF, how));
	}
	return true;
}

static bool products_refused(void)
{
	struct problem p = {};
	matrix_make(&p.a, CUDA_R_8F_E4M3, false, 1);
	matrix_make(&p.b, CUDA_R_8F_E4M3, false, 1);
	matrix_make(&p.d, CUDA_R_16BF, false, 1);
	EMU_EXPECT(multiply(&p) == CUBLAS_STATUS_NOT_SUPPORTED); /* A not transposed */
	p.ta = true;
	EMU_EXPECT(multiply(&p) == CUBLAS_STATUS_SUCCESS);
	matrix_make(&p.scale, CUDA_R_32F, false, 5);
	p.scaled = true;
	EMU_EXPECT(multiply(&p) == CUBLAS_STATUS_SUCCESS);
	p.scale.d = (float *)p.scale.d + 2; /* the heuristic still finds algorithms */
	EMU_EXPECT(multiply(&p) == CUBLAS_STATUS_NOT_SUPPORTED);
	p.scaled = false;
	matrix_make(&p.a, CUDA_R_8F_E5M2, false, 1);
	matrix_make(&p.b, CUDA_R_8F_E5M2, false, 1);
	EMU_EXPECT(multiply(&p) == CUBLAS_STATUS_NOT_SUPPORTED);
	matrix_make(&p.a, CUDA_R_16BF, false, 1);
	matrix_make(&p.b, CUDA_R_16BF, false, 1);
	EMU_EXPECT(multiply(&p) == CUBLAS_STATUS_SUCCESS);
	p.b.d = (char *)p.b.d + 2; /* not aligned */
	EMU_EXPECT(multiply(&p) == CUBLAS_STATUS_NOT_SUPPORTED);
	matrix_make(&p.b, CUDA_R_16F, false, 1);
	EMU_EXPECT(multiply(&p) == CUBLAS_STATUS_NOT_SUPPORTED);
	return true;
}

/* The epilogue of a matmul may be GELU, which stores its argument, or GELU's derivative at a
 * stored argument; the argument's columns are of multiples of 16 bytes. */
static bool gelu_epilogues(void)
{
	struct problem p = {};
	const double c = sqrt(2 / M_PI);
	p.with_bias = true;
	p.gelu = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
	p.aux_ld = LD;
	matrix_make(&p.a, CUDA_R_16BF, false, 1);
	matrix_make(&p.b, CUDA_R_16BF, false, 2);
	matrix_make(&p.d, CUDA_R_16BF, false, 3);
	matrix_make(&p.bias, CUDA_R_16BF, false, 4);
	matrix_make(&p.aux, CUDA_R_16BF, false, 5);
	for (int i = 0; i < SIZE; i++) /* arguments near 0, where GELU is not linear */
		p.a.x[i] /= 256;
	unsigned short raw[SIZE];
	for (int i = 0; i < SIZE; i++)
		raw[i] = (unsigned short)(emu_bits<uint32_t>(p.a.x[i]) >> 16);
	EMU_EXPECT(!cudaMemcpy(p.a.d, raw, sizeof(raw), cudaMemcpyHostToDevice));
	for (int back = 0; back < 2; back++) {
		p.gelu = back ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
		p.with_bias = !back;
		EMU_EXPECT(!multiply(&p) && matrix_read(&p.d) && matrix_read(&p.aux));
		for (int i = 0; i < M; i++)
			for (int j = 0; j < N; j++) {
				double s = back ? 0 : (double)p.bias.x[i];
				double kept = (double)p.aux.x[at(&p.aux, i, j)];
				for (int k = 0; k < K; k++)
					s += 2 * (double)p.a.x[at(&p.a, i, k)] *
					     (double)p.b.x[at(&p.b, k, j)];
				double x = back ? kept : s;
				double t = tanh(c * (x + 0.044715 * x * x * x));
				double want = 0.5 * x * (1 + t);
				if (back)
					want = s *
					       (0.5 * (1 + t) +
						       0.5 * x * (1 - t * t) * c *
							       (1 + 0.134145 * x * x));
				double have = (double)p.d.x[at(&p.d, i, j)];
				EMU_EXPECT(fabs(have - want) <= 4e-3 * fabs(want) + 1e-6);
				EMU_EXPECT(back || fabs(kept - s) <= 4e-3 * fabs(s));
			}
	}
	p.aux_ld = LD - 4;
	EMU_EXPECT(multiply(&p) == CUBLAS_STATUS_INVALID_VALUE);
	p.aux_ld = M - 8;
	EMU_EXPECT(multiply(&p) == CUBLAS_STATUS_INVALID_VALUE);
	p.aux_ld = LD;
	p.aux.d = (char *)p.aux.d + 8;
	EMU_EXPECT(multiply(&p) == CUBLAS_STATUS_NOT_SUPPORTED);
	p.aux.d = NULL;
	EMU_EXPECT(multiply(&p) == CUBLAS_STATUS_INVALID_VALUE);
	matrix_make(&p.aux, CUDA_R_32F, false, 5);
	matrix_make(&p.d, CUDA_R_32F, false, 5);
	EMU_EXPECT(multiply(&p) == CUBLAS_STATUS_NOT_SUPPORTED);
	return true;
}

const struct emu_test emu_tests_libraries[] = {
	{"copies", copies, NULL},
	{"new_memory", new_memory, NULL},
	{"memory_ends", memory_ends, NULL},
	{"touched_by_program", touched_by_program,
		"the program touches memory of the device"},
	{"not_guarded", not_guarded, NULL},
	{"given_what_it_reaches", given_what_it_reaches, NULL},
	{"given_what_it_does_not", given_what_it_does_not, "is memory of the program"},
	{"beyond_memory", beyond_memory, "touches"},
	{"a_broken_device", a_broken_device, NULL},
	{"events", events, NULL},
	{"laziness", laziness, NULL},
	{"first_is_late", first_is_late, NULL},
	{"not_pinned", not_pinned, "that is not pinned"},
	{"graphs", graphs, NULL},
	{"lazy_graphs", lazy_graphs, NULL},
	{"captures_end", captures_end, NULL},
	{"matrix_products", matrix_products, NULL},
	{"products_refused", products_refused, NULL},
	{"gelu_epilogues", gelu_epilogues, NULL},
	{NULL, NULL, NULL},
};
