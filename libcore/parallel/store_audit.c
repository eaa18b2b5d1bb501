/* Checksums of the leaves of an audited micro-batch (store_audit.h). */
#include "parallel/store_audit.h"

void audit_leaf(struct store *s, const struct bucket *b, const struct entry *e,
	int64_t row, struct mat x)
{
	struct device *d = s->c.device;
	const struct store_audit *a = s->audit;
	if (!a)
		return;
	const struct grid_check check = {.u = a->u,
		.key = a->key,
		.bucket = (uint32_t)(b->entry->t - s->c.tensors),
		.first = e->pos + row * e->cols,
		.word = &a->word[e->t - s->c.tensors]};
	d->k->grid_sum(d,
		&(struct grid_sum){.parts = &(struct grid_part){.leaf = x.p},
			.n_parts = 1,
			.leaf_type = x.type,
			.n = mat_size(x),
			.levels = b->levels,
			.check = &check},
		s->impl->grid);
}
