/* Token offsets of a shard: one sorted list per split of a file. */
#include "data/offsets.h"

/* Reads at most `max` offsets: ascending, and less than `end`. */
static int read_offsets(struct offsets *o, struct h5 *h, const char *name,
	const char *path, int64_t max, int64_t end, struct err *e)
{
	void *at = NULL;
	if (h5_get(h, path, H5_I64, -1, max, &at, &o->n, e))
		return -1;
	o->at = at;
	int64_t least = 0;
	for (int64_t i = 0; i < o->n; least = o->at[i++] + 1)
		if (o->at[i] < least || o->at[i] >= end)
			return err_set(e, EX_DATAERR,
				"%s: %s: element %lld is %lld, but must be from %lld to %lld",
				name, path, (long long)i, (long long)o->at[i],
				(long long)least, (long long)end - 1);
	return 0;
}

int documents_read(struct offsets *o, struct h5 *h, const char *name, enum split s,
	int64_t tokens, struct err *e)
{
	const char *path = document_paths[s];
	*o = (struct offsets){0};
	if (!h5_has(h, path))
		return err_set(e, EX_DATAERR,
			"%s: has no %s, which --packing documents needs; prepare the text "
			"again, or train with --packing stream",
			name, path);
	return read_offsets(o, h, name, path, tokens, tokens, e);
}

int counted_read(struct offsets *o, bool *counted, struct h5 *h, const char *name,
	enum split s, int64_t tokens, struct err *e)
{
	const char *path = counted_paths[s];
	*o = (struct offsets){0};
	*counted = h5_has(h, path);
	if (!*counted)
		return 0;
	int64_t max = min64(tokens + 1, 2 * (int64_t)SHARD_MAX_SPANS);
	if (read_offsets(o, h, name, path, max, tokens + 1, e))
		return -1;
	if (o->n % 2)
		return err_set(e, EX_DATAERR,
			"%s: %s: the span from token %lld has no end", name, path,
			(long long)o->at[o->n - 1]);
	return 0;
}

void offsets_release(struct offsets *o)
{
	free(o->at);
	*o = (struct offsets){0};
}

/* Returns the number of offsets before token `at`. */
static int64_t offsets_before(const struct offsets *o, int64_t at)
{
	int64_t lo = 0, hi = o->n;
	while (lo < hi) {
		int64_t mid = lo + (hi - lo) / 2;
		if (o->at[mid] < at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

void documents_mark(const struct offsets *o, int64_t at, int64_t n, int32_t *tokens)
{
	for (int64_t i = offsets_before(o, at); i < o->n && o->at[i] < at + n; i++)
		tokens[o->at[i] - at] |= DOCUMENT_BEGINS;
}

void counted_mark(const struct offsets *o, int64_t at, int64_t n, int32_t *tokens)
{
	int64_t next = offsets_before(o, at + 1); /* an odd one ends a span */
	for (int64_t t = at; t < at + n; next++) {
		int64_t end = next < o->n ? min64(o->at[next], at + n) : at + n;
		for (; t < end; t++)
			tokens[t - at] |= next % 2 ? 0 : TOKEN_CONTEXT;
	}
}

uint64_t offsets_hash(const struct offsets *o)
{
	return hash_bytes(o->at, (size_t)o->n * sizeof(*o->at), 0);
}
