/* The blocks use no memory bandwidth, unlike those of NCCL. Their shared memory leaves no space for a
 * block of attention or of a large matmul on the same multiprocessor. The emulated GPU runs none. */
#include "kernels/cuda/cuda_internal.h"

extern "C" {
#include "tests/bench/spin.h"
}

#ifdef PT_EMULATED

static void spin_begin(struct device *d, int blocks)
{
	(void)d, (void)blocks;
}

static void spin_end(struct device *d)
{
	(void)d;
}

#else

enum { SPIN_THREADS = 512, SPIN_SHARED = 40 << 10 };

struct flags {
	unsigned n_running, stop;
};

/* Pinned memory; and a stream that is not the device's, since device_wait() does not wait for it. */
static struct flags *flags;
static cudaStream_t stream;

static __device__ inline uint64_t nanoseconds(void)
{
	uint64_t t;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	return t;
}

static __global__ void __launch_bounds__(SPIN_THREADS) spin_kernel(struct flags *f)
{
	if (threadIdx.x == 0) {
		const uint64_t end = nanoseconds() + 10000000000;
		atomicAdd_system(&f->n_running, 1u);
		while (!*(volatile unsigned *)&f->stop && nanoseconds() < end)
			__nanosleep(500);
	}
	__syncthreads();
}

static void spin_begin(struct device *d, int blocks)
{
	if (!flags) {
		flags = (struct flags *)cuda_alloc_pinned(d, sizeof(*flags));
		cuda_check(d, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
			"spin");
	}
	*flags = {};
	device_wait(d);
	spin_kernel<<<(unsigned)blocks, SPIN_THREADS, SPIN_SHARED, stream>>>(flags);
	cuda_check(d, cudaGetLastError(), "spin");
	while (*(volatile unsigned *)&flags->n_running < (unsigned)blocks) {
		cudaError_t rc = cudaStreamQuery(stream);
		if (rc != cudaErrorNotReady)
			cuda_check(d, rc ? rc : cudaErrorLaunchTimeout, "spin");
		cudaGetLastError(); /* forgets cudaErrorNotReady */
	}
}

static void spin_end(struct device *d)
{
	*(volatile unsigned *)&flags->stop = 1;
	cuda_check(d, cudaStreamSynchronize(stream), "spin");
}

#endif

extern "C" __attribute__((visibility("default")))
const struct spin pt_spin = {spin_begin, spin_end};
