/* The tensor table: placing slices, and moving rows between slices and whole tensors. */
#include "parallel/parallel.h"

#include <string.h>

enum { ALIGN = 16 }; /* floats on a cache line */

/* Slices of which the rank's virtual slices are users. */
static void place_slices(struct tensor *t, const struct tensor_part *part)
{
	int most = t->max_slices ? t->max_slices : part->n;
	t->slices = t->cut == CUT_NONE ? 1 : most < part->n ? most : part->n;
	BUG_ON(part->n % t->slices);
	t->lanes = part->n / t->slices;
	t->first = tensor_slice(t, part->first);
	t->here = tensor_slice(t, part->first + part->here - 1) - t->first + 1;
}

int64_t tensors_place(struct tensor *t, int n, const struct tensor_part *part)
{
	int64_t at = 0;
	for (int i = 0; i < n; i++, t++) {
		bool vector = t->ndim == 1;
		place_slices(t, part);
		if (part->used && !part->used[i])
			t->here = 0;
		t->rows = vector ? 1 : t->dims[0] / (t->cut == CUT_ROWS ? t->slices : 1);
		t->cols = vector ? t->dims[0] / t->slices
				 : t->dims[1] / (t->cut == CUT_COLS ? t->slices : 1);
		BUG_ON(t->rows * t->cols * t->slices != tensor_size(t));
		t->offset = at;
		at += t->here * round_up(t->rows * t->cols, ALIGN);
	}
	return at;
}

int64_t tensor_at(const struct tensor *t, int slice)
{
	BUG_ON(slice < t->first || slice >= t->first + t->here);
	return t->offset + (slice - t->first) * round_up(t->rows * t->cols, ALIGN);
}

int64_t tensor_size(const struct tensor *t)
{
	return t->ndim == 1 ? t->dims[0] : t->dims[0] * t->dims[1];
}

int64_t tensor_file_rows(const struct tensor *t)
{
	return t->dims[0];
}

int64_t tensor_index(const struct tensor *t, int slice, int64_t row)
{
	if (t->ndim == 1)
		return slice * t->cols;
	if (t->cut == CUT_COLS)
		return row * t->dims[1] + slice * t->cols;
	return (slice * t->rows + row) * t->cols;
}

/* Calls for each run of floats that is contiguous both in the whole tensor and in a slice
 * that is here: at index `whole` there, at `part` from the base of the parameters. */
static void each_run(const struct tensor *t, int64_t row, int64_t n,
	void (*fn)(void *with, int64_t whole, int64_t part, int64_t len), void *with)
{
	int64_t width = t->ndim == 1 ? 1 : t->dims[1];
	if (t->cut == CUT_COLS) {
		for (int64_t r = row; r < row + n; r++)
			for (int s = t->first; s < t->first + t->here; s++)
				fn(with, (r - row) * width + s * t->cols,
					tensor_at(t, s) + r * t->cols, t->cols);
		return;
	}
	int64_t per_slice = t->dims[0] / t->slices;
	for (int s = t->first; s < t->first + t->here; s++) {
		int64_t from = max64(row, s * per_slice);
		int64_t to = min64(row + n, (s + 1) * per_slice);
		if (from < to)
			fn(with, (from - row) * width,
				tensor_at(t, s) + (from - s * per_slice) * width,
				(to - from) * width);
	}
}

struct move {
	float *out, *base;
	const float *in, *from;
};

static void get_run(void *with, int64_t whole, int64_t part, int64_t len)
{
	const struct move *m = with;
	memcpy(m->out + whole, m->from + part, (size_t)len * sizeof(float));
}

static void put_run(void *with, int64_t whole, int64_t part, int64_t len)
{
	const struct move *m = with;
	memcpy(m->base + part, m->in + whole, (size_t)len * sizeof(float));
}

void tensor_get_rows(
	const struct tensor *t, const float *base, int64_t row, int64_t n, float *out)
{
	each_run(t, row, n, get_run, &(struct move){.out = out, .from = base});
}

void tensor_put_rows(
	const struct tensor *t, float *base, int64_t row, int64_t n, const float *in)
{
	each_run(t, row, n, put_run, &(struct move){.base = base, .in = in});
}
