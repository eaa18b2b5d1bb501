/* Finds documents with the text of an earlier document, by equal hashes of 128 bits. */
#include "prepare/assembly.h"

enum { BUCKET_BITS = 8 };

struct hashed_document {
	struct hash128 hash;
	int64_t number;
};

/* Orders by hash, then by number, so that the first document of a text comes first. */
static int compare_hashes(const void *a, const void *b)
{
	const struct hashed_document *x = a, *y = b;
	if (x->hash.high != y->hash.high)
		return x->hash.high > y->hash.high ? 1 : -1;
	if (x->hash.low != y->hash.low)
		return x->hash.low > y->hash.low ? 1 : -1;
	return (x->number > y->number) - (x->number < y->number);
}

/* Writes the hash of each kept document into a bucket. Sets *n to the number of all documents. */
static int scatter_hashes(
	const struct assembly *a, struct buckets *b, int64_t *n, struct err *e)
{
	struct walk w;
	struct document d;
	int rc;
	walk_begin(&w, a);
	while ((rc = walk_next(&w, &d, e)) > 0) {
		struct hashed_document s = {d.hash, d.number};
		if (d.fate == FATE_KEPT &&
			buckets_append(b, (int)(d.hash.high >> (64 - BUCKET_BITS)), &s,
				sizeof(s), e)) {
			rc = -1;
			break;
		}
	}
	*n = w.number;
	walk_end(&w);
	return rc;
}

/* Sorts the hashes of a bucket, and marks each document that follows one with the same hash. */
static int mark_duplicates_in_bucket(
	struct assembly *a, struct buckets *b, int bucket, struct err *e)
{
	const char *p;
	int64_t n_bytes;
	if (buckets_map(b, bucket, &p, &n_bytes, e))
		return -1;
	if (!n_bytes)
		return 0;
	scoped_ptr struct hashed_document *all = xmalloc((size_t)n_bytes);
	memcpy(all, p, (size_t)n_bytes);
	int64_t n = n_bytes / (int64_t)sizeof(*all);
	qsort(all, (size_t)n, sizeof(*all), compare_hashes);
	for (int64_t i = 1; i < n; i++)
		if (hash128_same(all[i].hash, all[i - 1].hash))
			a->duplicates[all[i].number / 64] |= (uint64_t)1
							     << all[i].number % 64;
	return 0;
}

int mark_duplicates(struct assembly *a, struct err *e)
{
	int64_t n;
	struct buckets *b = buckets_open(a->encoding->pieces, 1 << BUCKET_BITS, e);
	if (!b)
		return -1;
	int rc = scatter_hashes(a, b, &n, e);
	if (!rc)
		a->duplicates = xcalloc((size_t)(n / 64 + 1), sizeof(uint64_t));
	for (int i = 0; i < 1 << BUCKET_BITS && !rc; i++)
		rc = mark_duplicates_in_bucket(a, b, i, e);
	buckets_close(b);
	return rc;
}
