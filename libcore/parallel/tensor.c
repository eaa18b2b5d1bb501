/* The tensor table: slices, and the places of their elements in the whole tensor. */
#include "parallel/tensor.h"

/* Sets the slices that this rank's virtual slices use. */
static void place_slices(struct tensor *t, const struct tensor_part *part)
{
	int max = t->max_slices ? t->max_slices : part->n;
	t->slices = t->tp_split == TP_SPLIT_NONE ? 1 : max < part->n ? max : part->n;
	BUG_ON(part->n % t->slices);
	t->users_per_slice = part->n / t->slices;
	t->first = tensor_slice(t, part->first);
	t->local = tensor_slice(t, part->first + part->local - 1) - t->first + 1;
}

void tensors_place(struct tensor *t, int n, const struct tensor_part *part)
{
	for (int i = 0; i < n; i++, t++) {
		place_slices(t, part);
		if (part->used && !part->used[i])
			t->local = 0;
		t->rows = t->ndim == 1 ? 1 : t->dims[0];
		t->cols = t->ndim == 1 ? t->dims[0] : t->dims[1];
		if (t->ndim == 1 || t->tp_split == TP_SPLIT_COLS)
			t->cols /= t->slices;
		else
			t->rows /= t->slices;
		BUG_ON(t->rows * t->cols * t->slices != tensor_size(t));
		t->expert_rows = t->experts ? t->rows / t->experts : 0;
		BUG_ON(t->experts && t->rows % t->experts);
		BUG_ON(t->blocks && (t->ndim == 1 || t->rows % t->blocks));
		t->held_rows = t->rows;
		t->held_first = 0;
		if (t->experts && part->ep > 1) {
			BUG_ON(t->experts % part->ep || t->ndim == 1);
			t->held_rows /= part->ep;
			t->held_first = part->place * t->held_rows;
		}
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
	int64_t block_rows = tensor_adjacent_rows(t), block = row / block_rows;
	return ((block * t->slices + slice) * block_rows + row % block_rows) * t->cols;
}

int64_t tensor_adjacent_rows(const struct tensor *t)
{
	bool interleaves = t->tp_split == TP_SPLIT_ROWS && t->slices > 1;
	if (t->ndim == 1)
		return t->cols;
	return t->blocks && interleaves ? t->rows / t->blocks : t->rows;
}
