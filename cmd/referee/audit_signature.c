/* Signatures of micro-batches (audit.h): the device computes them, the host gets them when it
 * needs them. */
#include "referee/audit.h"

/* Words after the checksums of tensors. */
enum { WORD_LOSS, WORD_RECORDS, MORE_WORDS };

enum { BEFORE, AFTER, N_LOSSES };

/* ---- memory ---------------------------------------------------------------------- */

/* Returns the 64-bit words of the device memory of a signature. */
static int64_t memory_words(const struct trainer *t)
{
	return t->model.n_tensors + N_LOSSES * EXACT_WORDS + AUDIT_HASHES;
}

/* Sets the places of a signature's memory, which begins at `at`. Returns its end. */
static uint64_t *place_memory(
	const struct trainer *t, struct audit_memory *x, uint64_t *at)
{
	x->leaf = at;
	x->loss = (struct exact *)(void *)(at + t->model.n_tensors);
	x->hash = (uint64_t *)(void *)(x->loss + N_LOSSES);
	return at + memory_words(t);
}

void audit_signatures_open(struct trainer *t)
{
	struct audit *a = t->audit;
	uint32_t u[GRID_BLOCK];
	a->n_words = t->model.n_tensors + MORE_WORDS;
	a->memory.n_bytes = sizeof(u) + 2 * (size_t)memory_words(t) * sizeof(uint64_t);
	a->memory.u = device_alloc(&t->d, a->memory.n_bytes);
	if (!a->memory.u)
		die(EX_FAILED, "out of memory: --referee needs %zu bytes",
			a->memory.n_bytes);
	grid_weights(a->c.seed, u);
	device_put(&t->d, a->memory.u, u, sizeof(u));
	uint64_t *at = (uint64_t *)(void *)(a->memory.u + GRID_BLOCK);
	place_memory(t, &a->memory.copy, place_memory(t, &a->memory.own, at));
}

void audit_signatures_close(struct trainer *t)
{
	struct audit *a = t->audit;
	audit_signature_release(&a->own);
	audit_signature_release(&a->copy);
	device_free(&t->d, a->memory.u, a->memory.n_bytes);
}

void audit_signature_release(struct audit_signature *x)
{
	free(x->word);
	free(x->record);
	*x = (struct audit_signature){0};
}

/* Enqueues zeros for n words. */
static void zero_words(struct trainer *t, void *x, int64_t n)
{
	enum { FLOATS = sizeof(uint64_t) / sizeof(float) };
	t->d.k->zero(&t->d, mat(x, 1, n * FLOATS));
}

void audit_signature_begin(
	struct trainer *t, struct audit_signature *x, const struct audit_memory *memory)
{
	zero_words(t, memory->leaf, memory_words(t));
	x->n_records = x->n_fetched = 0;
	x->memory = memory;
}

/* ---- what is signed ---------------------------------------------------------------- */

/* Gets the hashes that the device has memory for. */
static void fetch_hashes(struct trainer *t, struct audit_signature *x)
{
	uint64_t hash[AUDIT_HASHES];
	int64_t n = x->n_records - x->n_fetched;
	device_get(&t->d, hash, x->memory->hash, (size_t)n * sizeof(*hash));
	for (int64_t i = 0; i < n; i++)
		x->record[x->n_fetched + i].hash = hash[i];
	x->n_fetched = x->n_records;
}

/* Appends a result to the records of a signature. The store hashes leaves. context: a trainer. */
static void record_result(void *context, const struct result *x)
{
	struct trainer *t = context;
	struct audit *a = t->audit;
	struct audit_signature *to = a->now;
	if (a->inner)
		a->inner->see(a->inner->with, x);
	if (x->extent == EXTENT_LEAF)
		return;
	if (to->n_records - to->n_fetched == AUDIT_HASHES) {
		fetch_hashes(t, to);
		zero_words(t, to->memory->hash, AUDIT_HASHES);
	}
	BUG_ON(mat_stride(x->x) != x->x.cols);
	t->d.k->hash(&t->d, to->memory->hash + to->n_records - to->n_fetched, x->x, 0, 0,
		x->x.cols);
	to->record = xgrow(to->record, to->n_records, sizeof(*to->record));
	struct audit_record *r = &to->record[to->n_records++];
	*r = (struct audit_record){.layer = x->at.layer, .gradient = x->gradient};
	snprintf(r->name, sizeof(r->name), "%s", x->name);
}

void audit_observe_begin(struct trainer *t, struct audit_signature *to, bool drops)
{
	struct audit *a = t->audit;
	a->now = to;
	a->inner = t->pass.observer;
	a->observer = (struct observer){.see = record_result, .with = t};
	a->leaves = (struct store_audit){.drops = drops,
		.u = a->memory.u,
		.key = a->key,
		.word = to->memory->leaf};
	t->pass.observer = &a->observer;
	t->store->audit = &a->leaves;
}

void audit_observe_end(struct trainer *t)
{
	t->pass.observer = t->audit->inner;
	t->store->audit = NULL;
}

void audit_observe_loss(struct trainer *t, struct audit_signature *to, bool after)
{
	struct exact *x = &to->memory->loss[after ? AFTER : BEFORE];
	t->d.k->copy(&t->d, mat(x, 1, EXACT_FLOATS), mat(t->pass.loss, 1, EXACT_FLOATS));
}

/* ---- on the host ------------------------------------------------------------------- */

/* Returns an exact sum modulo GRID_PRIME, which is linear. */
static uint64_t fold_exact(const struct exact *x)
{
	const int64_t prime = GRID_PRIME;
	uint64_t base = ((uint64_t)1 << EXACT_DIGIT) % GRID_PRIME, sum = 0;
	for (int i = EXACT_LIMBS - 1; i >= 0; i--)
		sum = (sum * base + (uint64_t)((x->limb[i] % prime + prime) % prime)) %
		      GRID_PRIME;
	return sum;
}

void audit_signature_fetch(struct trainer *t, struct audit_signature *x)
{
	struct exact loss[N_LOSSES];
	int64_t n = t->model.n_tensors;
	uint64_t hash = 0;
	if (!x->word)
		x->word = xcalloc((size_t)t->audit->n_words, sizeof(*x->word));
	device_get(&t->d, x->word, x->memory->leaf, (size_t)n * sizeof(*x->word));
	device_get(&t->d, loss, x->memory->loss, sizeof(loss));
	fetch_hashes(t, x);
	for (int64_t i = 0; i < n; i++)
		x->word[i] %= GRID_PRIME;
	x->word[n + WORD_LOSS] =
		(fold_exact(&loss[AFTER]) + GRID_PRIME - fold_exact(&loss[BEFORE])) %
		GRID_PRIME;
	for (int64_t i = 0; i < x->n_records; i++)
		hash = hash_bytes(&x->record[i].hash, sizeof(hash), hash);
	x->word[n + WORD_RECORDS] = hash % GRID_PRIME;
}
