/* Checksums of the sums of gradients (check_sums.h). */
#include "parallel/check_sums.h"

/* The words of a bucket, by rank of the world: [CHECK_SENT] what the rank sent, minus what others
 * received of it; [CHECK_ADDED] what the rank received, minus what it rounded or sent again. */
enum { CHECK_SENT, CHECK_ADDED, N_CHECK };

/* Returns the words of a bucket, by rank; for a tied weight the common ones of both stages. */
static uint64_t *bucket_words(const struct store *s, const struct bucket *b, int what)
{
	const struct store_checks *x = &s->impl->checks;
	int64_t bucket = b->tied ? x->buckets - 1 : b - s->impl->bucket;
	return &x->word[(bucket * N_CHECK + what) * x->ranks];
}

void checks_open(struct store *s)
{
	struct store_checks *x = &s->impl->checks;
	if (!s->c.check_sums)
		return;
	x->u = xcalloc(GRID_BLOCK, sizeof(*x->u));
	x->key = grid_check_key(s->c.seed);
	grid_weights(s->c.seed, x->u);
}

void checks_close(struct store *s)
{
	free(s->impl->checks.u);
	free(s->impl->checks.word);
}

/* Returns true if the sums of a bucket are checked: not the sums over workers of local SGD. */
static bool checks_sums(const struct store *s, const struct bucket *b)
{
	return s->impl->checks.u && b->levels && !s->add_workers && !b->all.c->planned;
}

/* Returns the checks of a bucket whose element `first` comes first. A bucket has the number of its
 * first tensor, which is the same on both stages of a tied weight. */
static struct grid_check check_at(const struct store *s, const struct bucket *b,
	int64_t first, uint64_t *word, bool subtract)
{
	const struct store_checks *x = &s->impl->checks;
	return (struct grid_check){.u = x->u,
		.key = x->key,
		.bucket = (uint32_t)(b->entry->t - s->c.tensors),
		.first = first,
		.word = word,
		.subtract = subtract};
}

/* Adds the checksum of n elements, a leaf or a sum, to a word. */
static void add_checksum(struct store *s, const struct bucket *b, struct grid_part part,
	int64_t n, struct grid_check check)
{
	struct device *d = s->c.device;
	struct grid ignored = *s->impl->grid;
	d->k->grid_sum(d,
		&(struct grid_sum){.parts = &part,
			.n_parts = 1,
			.n = n,
			.levels = b->levels,
			.check = &check},
		&ignored);
}

/* ---- the words of a step --------------------------------------------------------- */

/* Zeroes the gaps of a bucket's vector, which sums add too. `width`: floats per element. */
static void zero_gaps(struct store *s, const struct bucket *b, float *vector, int width)
{
	struct device *d = s->c.device;
	for (int i = 0; i < b->n_entries; i++) {
		const struct entry *e = &b->entry[i];
		int64_t end = e->pos + e->rows * e->cols;
		int64_t gap = (i + 1 < b->n_entries ? e[1].pos : b->n) - end;
		if (gap)
			d->k->zero(d, mat(vector + width * end, 1, width * gap));
	}
}

/* Returns the word for a part of a sum: of the step, or while a wrong sum is located, of the bucket
 * and this rank. */
static uint64_t *own_word(const struct store *s, const struct bucket *b, int what)
{
	return s->impl->checks.word ? &bucket_words(s, b, what)[s->c.mesh->world->rank]
				    : &s->impl->grid->check;
}

void check_contribution(struct store *s, struct bucket *b)
{
	bool sums = b->leaves.adds;
	int rank = b->sums.first->c->rank;
	if (!checks_sums(s, b) || b->sums.form[b->turns.last_round][rank] == SUM_NONE)
		return;
	zero_gaps(s, b, sums ? (float *)(void *)b->leaves.sum : b->leaves.memory,
		sums ? SUM_INT64 : SUM_LEAF);
	add_checksum(s, b,
		(struct grid_part){
			sums ? NULL : b->leaves.memory, sums ? b->leaves.sum : NULL},
		b->n, check_at(s, b, 0, own_word(s, b, CHECK_SENT), false));
}

/* Returns the checksum of a bucket's results, with `first` to be set; u NULL: not checked. */
static struct grid_check check_of_result(struct store *s, const struct bucket *b)
{
	/* Two stages round the sum of a tied weight; only the first one counts it. */
	bool counts = s->impl->checks.word || !b->tied || !s->c.mesh->coord[AXIS_PP];
	uint64_t *word = counts ? own_word(s, b, CHECK_ADDED) : &s->impl->checks.ignored;
	return checks_sums(s, b) ? check_at(s, b, 0, word, true)
				 : (struct grid_check){.u = NULL};
}

void check_grid_sum(
	struct store *s, const struct bucket *b, struct grid_sum g, int64_t pos)
{
	const struct sum_plan *p = &bucket_owners(b)->plan;
	struct grid_check check = check_of_result(s, b);
	struct grid_part part = *g.parts;
	int64_t end = pos + g.n, first;
	sum_piece(p, p->c->rank, &first);
	g.parts = &part;
	g.check = check.u && g.rounded ? &check : NULL;
	for (; pos < end; pos += g.n) {
		g.n = end - pos;
		if (g.check)
			g.n = min64(g.n, sum_locate(p, p->wants[p->c->rank], first + pos,
						 &check.first));
		s->c.device->k->grid_sum(s->c.device, &g, s->impl->grid);
		g.sum = g.sum ? g.sum + g.n : NULL;
		g.rounded = g.rounded ? g.rounded + g.n : NULL;
		part.sum = part.sum ? part.sum + g.n : NULL;
		part.leaf = part.leaf ? (const float *)part.leaf + g.n : NULL;
	}
}

/* ---- where a wrong sum is -------------------------------------------------------- */

struct sum_check check_of_sum(
	struct store *s, const struct bucket *b, const struct sum_group *g)
{
	struct sum_check x = {.result = check_of_result(s, b)};
	if (x.result.u && s->impl->checks.word) {
		x.sent = bucket_words(s, b, CHECK_SENT);
		x.added = own_word(s, b, CHECK_ADDED);
		x.ranks = g->ranks;
	}
	return x;
}

static bool locates(const struct store *s, const struct bucket *b)
{
	return checks_sums(s, b) && s->impl->checks.word;
}

void check_row_of_one(struct store *s, struct bucket *b, bool leaf)
{
	const struct grid_part part = {
		leaf ? b->leaves.memory : NULL, leaf ? NULL : b->leaves.sum};
	for (int what = 0; what < N_CHECK && locates(s, b); what++)
		add_checksum(s, b, part, b->n,
			check_at(s, b, 0, own_word(s, b, what), what == CHECK_SENT));
}

void check_sent_again(struct store *s, struct bucket *b, const struct sum_call *call)
{
	const struct sum_plan *p = call->plan;
	const int64_t *sum = call->own;
	for (int i = 0; i < p->n_origin && locates(s, b); i++) {
		for (int what = 0; what < N_CHECK; what++)
			add_checksum(s, b, (struct grid_part){.sum = sum},
				p->origin[i].len,
				check_at(s, b, p->origin[i].pos, own_word(s, b, what),
					what == CHECK_ADDED));
		sum += p->origin[i].len;
	}
}

/* Adds the checksum of this rank's piece of a bucket, at `sum`, to a word. */
static void add_piece(struct store *s, const struct bucket *b, const int64_t *sum,
	uint64_t *word, bool subtract)
{
	const struct sum_plan *p = &bucket_owners(b)->plan;
	int64_t first, n = sum_piece(p, p->c->rank, &first);
	for (int64_t i = 0, len, index; i < n; i += len) {
		len = min64(
			n - i, sum_locate(p, p->wants[p->c->rank], first + i, &index));
		add_checksum(s, b, (struct grid_part){.sum = sum + i}, len,
			check_at(s, b, index, word, subtract));
	}
}

void check_tied(struct store *s, struct bucket *b, const int64_t *sent,
	const int64_t *received, int other)
{
	if (!locates(s, b))
		return;
	add_piece(s, b, sent, own_word(s, b, CHECK_SENT), false);
	add_piece(s, b, received, &bucket_words(s, b, CHECK_SENT)[other], true);
	add_piece(s, b, received, own_word(s, b, CHECK_ADDED), false);
}

uint64_t store_check_word(struct store *s)
{
	uint64_t word = 0; /* also in a plan */
	if (s->impl->checks.u)
		device_get(s->c.device, &word, &s->impl->grid->check, sizeof(word));
	return word;
}

void store_locate_sums(struct store *s)
{
	struct store_checks *x = &s->impl->checks;
	const struct comm *world = s->c.mesh->world;
	x->ranks = world->size;
	x->buckets = comm_max_i64(s->c.mesh->world, s->impl->n_trained) + 1;
	x->n_words = x->buckets * N_CHECK * x->ranks;
	x->word = xcalloc((size_t)x->n_words, sizeof(*x->word));
}

/* Appends what a rank of the world did wrong in a bucket. Collective. */
static void name_finding(
	struct store *s, int64_t bucket, int what, int rank, struct str *out)
{
	struct comm *world = s->c.mesh->world;
	scoped_str text = {0};
	if (world->rank == rank) {
		const struct bucket *b = s->impl->bucket;
		while (bucket < s->impl->checks.buckets - 1 ? b - s->impl->bucket < bucket
							    : !b->tied)
			b++;
		const struct entry *last = &b->entry[b->n_entries - 1];
		str_printf(&text, "%srank %d %s the bucket of %s", out->len ? "; " : "",
			rank,
			what == CHECK_SENT
				? "sent other numbers than it computed, in"
				: "added wrongly, or changed a sum that it kept, in",
			b->entry->t->name);
		if (last != b->entry)
			str_printf(&text, " to %s", last->t->name);
	}
	comm_bcast_str(world, &text, rank);
	str_add(out, text.s, text.len);
}

bool store_located_sums(struct store *s, struct str *out)
{
	enum { MAX_FINDINGS = 4 };
	struct store_checks *x = &s->impl->checks;
	int64_t n = 0;
	comm_sum_i64(s->c.mesh->world, (int64_t *)x->word, x->n_words);
	for (int64_t i = 0; i < x->n_words; i++) {
		int64_t row = i / x->ranks;
		if (x->word[i] % GRID_PRIME && n++ < MAX_FINDINGS)
			name_finding(s, row / N_CHECK, (int)(row % N_CHECK),
				(int)(i % x->ranks), out);
	}
	if (n > MAX_FINDINGS)
		str_printf(out, "; %lld more", (long long)n - MAX_FINDINGS);
	free(x->word);
	x->word = NULL;
	return n > 0;
}
