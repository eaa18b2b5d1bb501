/* Where the documents of a shard begin: a sorted list of token numbers for each split of a file. */
#include "data/documents.h"

#include <stdlib.h>

static int check_order(const struct documents *d, const char *name, const char *path,
	int64_t tokens, struct err *e)
{
	int64_t least = 0;
	for (int64_t i = 0; i < d->n; least = d->at[i++] + 1)
		if (d->at[i] < least || d->at[i] >= tokens)
			return err_set(e, EX_DATAERR,
				"%s: %s: document %lld begins at token %lld, but the one "
				"before it ends at %lld or later, and there are %lld "
				"tokens",
				name, path, (long long)i, (long long)d->at[i],
				(long long)least, (long long)tokens);
	return 0;
}

int documents_read(struct documents *d, struct h5 *h, const char *name, enum split s,
	int64_t tokens, struct err *e)
{
	const char *path = document_paths[s];
	void *at = NULL;
	*d = (struct documents){0};
	if (!h5_has(h, path))
		return err_set(e, EX_DATAERR,
			"%s: has no %s, which --packing documents needs: prepare the text "
			"again, or train with --packing stream",
			name, path);
	if (h5_get(h, path, H5_I64, -1, tokens, &at, &d->n, e))
		return -1;
	d->at = at;
	return check_order(d, name, path, tokens, e);
}

void documents_free(struct documents *d)
{
	free(d->at);
	*d = (struct documents){0};
}

/* The number of documents that begin before token `at`. */
static int64_t begun_before(const struct documents *d, int64_t at)
{
	int64_t lo = 0, hi = d->n;
	while (lo < hi) {
		int64_t mid = lo + (hi - lo) / 2;
		if (d->at[mid] < at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

void documents_mark(const struct documents *d, int64_t at, int64_t n, int32_t *tokens)
{
	for (int64_t i = begun_before(d, at); i < d->n && d->at[i] < at + n; i++)
		tokens[d->at[i] - at] |= DOCUMENT_BEGINS;
}

uint64_t documents_hash(const struct documents *d)
{
	return hash_bytes(d->at, (size_t)d->n * sizeof(*d->at), 0);
}
