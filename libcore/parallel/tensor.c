/* The tensor table: slices, and where their elements are in the whole tensor. */
#include "parallel/tensor.h"

/* The slices that this rank's virtual slices use. */
static void place_slices(struct tensor *t, const struct tensor_part *part)
{
	int most = t->max_slices ? t->max_slices : part->n;
	t->slices = t->tp_split == TP_SPLIT_NONE ? 1 : most < part->n ? most : part->n;
	BUG_ON(part->n % t->slices);
	t->users_per_slice = part->n / t->slices;
	t->first = tensor_slice(t, part->first);
	t->local = tensor_slice(t, part->first + part->local - 1) - t->first + 1;
}

void tensors_place(struct tensor *t, int n, const struct tensor_part *part)
{
	for (int i = 0; i < n; i++, t++) {
		bool vector = t->ndim == 1;
		place_slices(t, part);
		if (part->used && !part->used[i])
			t->local = 0;
		t->rows = vector ? 1
				 : t->dims[0] /
					   (t->tp_split == TP_SPLIT_ROWS ? t->slices : 1);
		t->cols = vector ? t->dims[0] / t->slices
				 : t->dims[1] /
					   (t->tp_split == TP_SPLIT_COLS ? t->slices : 1);
		BUG_ON(t->rows * t->cols * t->slices != tensor_size(t));
	}
}

int64_t tensor_size(const struct tensor *t)
{
	return t->dims[0] * tensor_width(t);
}

int64_t tensor_width(const struct tensor *t)
{
	return t->ndim == 1 ? 1 : t->dims[1];
}

int64_t tensor_index(const struct tensor *t, int slice, int64_t row)
{
	if (t->ndim == 1)
		return slice * t->cols + row;
	if (t->tp_split == TP_SPLIT_COLS)
		return row * t->dims[1] + slice * t->cols;
	return (slice * t->rows + row) * t->cols;
}
