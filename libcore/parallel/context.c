/* Context parallelism: chunks of sequences, and the ring that brings keys and values. */
#include "parallel/parallel.h"

void chunk_runs(const struct chunks *c, int chunk, int64_t first[2], int64_t *len)
{
	*len = c->context / (2 * c->n);
	first[0] = chunk * *len;
	first[1] = (2 * c->n - 1 - chunk) * *len;
}

void chunk_positions(const struct chunks *c, int chunk, int32_t *pos)
{
	int64_t first[2], len, rows = c->context / c->n;
	chunk_runs(c, chunk, first, &len);
	if (c->n == 1) /* one run; its length may be odd */
		len = rows;
	for (int64_t i = 0; i < rows; i++)
		pos[i] = (int32_t)(i < len ? first[0] + i : first[1] + i - len);
}

struct ring ring_begin(const struct chunks *c)
{
	return (struct ring){c, -1};
}

bool ring_next(struct ring *r)
{
	return ++r->step < r->c->n;
}

int ring_keys_for(const struct ring *r, int query_chunk)
{
	return (query_chunk - r->step + r->c->n) % r->c->n;
}
