/* Which calls use the kernels for sm_90, and their tensor maps. */
#include "kernels/cuda/attn_hopper.h"
#include "kernels/cuda/cuda_internal.h"

bool attn_hopper_supports(struct device *d, const struct attn *a, enum dtype type,
	struct heads q, struct heads k, struct heads v)
{
	bool sizes = (a->dim > 32 && a->dim <= 64) || (a->dim > 96 && a->dim <= 128);
	bool same_chunk = a->q_rows == a->k_rows && a->q_first[0] == a->k_first[0] &&
			  a->q_first[1] == a->k_first[1] &&
			  a->q_first[0] <= a->q_first[1];
	return !a->start && cuda_of(d)->map_encode && dtype_bytes(type) == 2 && sizes &&
	       same_chunk && a->batch && a->q_rows && !(a->drop.p > 0) && q.whole &&
	       k.whole && v.whole;
}

struct attn_work *attn_work(struct device *d)
{
	return cuda_of(d)->attn_work;
}

dim3 persistent_grid(struct device *d, const struct hopper_order &o)
{
	const struct cuda_device *c = cuda_of(d);
	int64_t blocks = max64(1, c->multiprocessors - c->attn_spare);
	return dim3((unsigned)min64(o.items, blocks));
}

bool rows_storable(struct device *d, struct heads m)
{
	return !m.wide && m.whole && !cuda_lab_off(d, LAB_ATTN_STORE);
}

CUtensorMap rows_map(struct device *d, struct heads m, int64_t batch, enum dtype type)
{
	return rows_storable(d, m) ? tile_map(d, m, batch, type, WARP_ROWS)
				   : CUtensorMap();
}

CUtensorMap tile_map(
	struct device *d, struct heads m, int64_t batch, enum dtype type, int rows)
{
	struct cuda_device *c = cuda_of(d);
	CUtensorMap map;
	const cuuint64_t row = (cuuint64_t)m.stride * 2;
	const cuuint64_t dims[] = {(cuuint64_t)m.dim, (cuuint64_t)(m.stride / m.dim),
		(cuuint64_t)m.rows, (cuuint64_t)batch};
	const cuuint64_t strides[] = {(cuuint64_t)m.dim * 2, row, row * dims[2]};
	const cuuint32_t box[] = {PANEL, 1, (cuuint32_t)rows, 1}, steps[] = {1, 1, 1, 1};
	CUresult rc = c->map_encode(&map,
		type == DT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
				: CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
		4, m.p, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
		CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
		CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	if (rc != CUDA_SUCCESS)
		die(EX_FAILED,
			"%s: cannot map a tensor of %lld x %lld x %lld x %lld elements: "
			"driver error %d; set PT_ATTENTION=mma to use kernels without maps",
			c->model, (long long)batch, (long long)m.rows, (long long)dims[1],
			(long long)m.dim, (int)rc);
	return map;
}
