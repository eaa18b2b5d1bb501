/* Checksums of the sums of gradients (check_sums.h). */
#include "parallel/check_sums.h"

/* The words of a bucket, by rank of the world.
 * SENT: what the rank computed, minus what it sent. ADDED: what the rank received, minus what it
 * rounded or sent again. BY_...: what all ranks computed for this rank's piece, minus what the rank
 * received through shared memory, MPI or NCCL. */
enum { CHECK_SENT, CHECK_ADDED, CHECK_BY_SHARED, CHECK_BY_MPI, CHECK_BY_NCCL, N_CHECK };

static const char *const route_names[N_CHECK] = {[CHECK_BY_SHARED] = "shared memory",
	[CHECK_BY_MPI] = "MPI",
	[CHECK_BY_NCCL] = "NCCL"};

/* Returns the number of a bucket among the words; a tied weight has the same on both stages. */
static int64_t bucket_number(const struct store *s, const struct bucket *b)
{
	return b->tied ? s->impl->checks.buckets - 1 : b - s->impl->bucket;
}

/* Returns the words of a bucket, by rank. */
static uint64_t *bucket_words(const struct store *s, const struct bucket *b, int what)
{
	const struct store_checks *x = &s->impl->checks;
	return &x->word[(bucket_number(s, b) * N_CHECK + what) * x->ranks];
}

void checks_open(struct store *s, struct arena *run, bool measuring)
{
	struct store_checks *x = &s->impl->checks;
	uint32_t u[GRID_BLOCK];
	if (!s->c.check_sums)
		return;
	x->u = arena_alloc(run, sizeof(u));
	x->key = grid_check_key(s->c.seed);
	grid_weights(s->c.seed, u);
	if (!measuring)
		device_put(s->c.device, x->u, u, sizeof(u));
}

/* Frees the words of buckets. */
static void free_words(struct store *s)
{
	struct store_checks *x = &s->impl->checks;
	device_free(s->c.device, x->word, (size_t)x->n_words * sizeof(*x->word));
	x->word = NULL;
}

void checks_close(struct store *s)
{
	if (s->impl->checks.word)
		free_words(s);
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
	d->k->grid_sum(d,
		&(struct grid_sum){.parts = &part,
			.n_parts = 1,
			.n = n,
			.levels = b->levels,
			.check = &check},
		s->impl->grid);
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

struct grid_check check_of_contribution(
	const struct store *s, const struct bucket *b, int64_t first)
{
	return checks_sums(s, b)
		       ? check_at(s, b, first, own_word(s, b, CHECK_SENT), false)
		       : (struct grid_check){.u = NULL};
}

static bool locates(const struct store *s, const struct bucket *b)
{
	return checks_sums(s, b) && s->impl->checks.word;
}

/* Returns the word for messages of a group, by the library that transfers them. */
static int route_of(const struct sum_group *g)
{
	return g->plan.shared ? CHECK_BY_SHARED
	       : g->c->nccl   ? CHECK_BY_NCCL
			      : CHECK_BY_MPI;
}

/* Returns elements of a vector from `pos` on. */
static struct grid_part part_of(const void *vector, enum sum_form form, int64_t pos)
{
	return form == SUM_LEAF
		       ? (struct grid_part){.leaf = (const float *)vector + pos}
		       : (struct grid_part){.sum = (const int64_t *)vector + pos};
}

/* While a wrong sum is located: counts a contribution to a group's sum for the owners of pieces. */
static void count_for_owners(struct store *s, const struct bucket *b,
	const struct sum_group *g, const void *vector, enum sum_form form)
{
	const struct sum_plan *p = &g->plan;
	for (int r = 0; r < p->c->size && locates(s, b); r++) {
		uint64_t *word = &bucket_words(s, b, route_of(g))[g->ranks[r]];
		int64_t first, n = sum_piece(p, r, &first);
		for (int64_t i = 0, len, pos, index; i < n; i += len) {
			len = min64(n - i, sum_locate(p, p->wants[r], first + i, &index));
			sum_locate_in_vector(p, p->wants[r], first + i, &pos);
			add_checksum(s, b, part_of(vector, form, pos), len,
				check_at(s, b, index, word, false));
		}
	}
}

void check_contribution(struct store *s, struct bucket *b)
{
	enum sum_form form = b->leaves.adds ? SUM_INT64 : SUM_LEAF;
	void *vector = form == SUM_LEAF ? (void *)b->leaves.memory : b->leaves.sum;
	int rank = b->sums.first->c->rank;
	if (!checks_sums(s, b) || b->sums.form[b->turns.last_round][rank] == SUM_NONE)
		return;
	zero_gaps(s, b, vector, (int)form);
	for (int i = 0; i < b->n_entries; i++) {
		struct entry *e = &b->entry[i];
		if (!e->checked)
			add_checksum(s, b, part_of(vector, form, e->pos),
				e->rows * e->cols, check_of_contribution(s, b, e->pos));
		e->checked = false;
	}
	count_for_owners(s, b, b->sums.first, vector, form);
}

/* Returns the checksum of a bucket's results, with `first` to be set; u NULL: not checked. */
static struct grid_check check_of_result(struct store *s, const struct bucket *b)
{
	/* Two stages round the sum of a tied weight; only the first one counts it. */
	bool counts = s->impl->checks.word || !b->tied || !s->c.mesh->coord[AXIS_PP];
	uint64_t *word = counts ? own_word(s, b, CHECK_ADDED) : &s->impl->grid->ignored;
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
	if (locates(s, b)) {
		x.sent = bucket_words(s, b, CHECK_SENT);
		x.received = own_word(s, b, route_of(g));
		x.added = own_word(s, b, CHECK_ADDED);
		x.ranks = g->ranks;
	}
	return x;
}

void check_row_of_one(struct store *s, struct bucket *b, bool leaf)
{
	const int words[] = {CHECK_SENT, route_of(b->sums.first), CHECK_ADDED};
	const struct grid_part part = {
		leaf ? b->leaves.memory : NULL, leaf ? NULL : b->leaves.sum};
	for (size_t i = 0; i < ARRAY_LEN(words) && locates(s, b); i++)
		add_checksum(s, b, part, b->n,
			check_at(s, b, 0, own_word(s, b, words[i]),
				words[i] != CHECK_ADDED));
}

void check_sent_again(struct store *s, struct bucket *b, const struct sum_group *g,
	const struct sum_call *call)
{
	const struct sum_plan *p = call->plan;
	const int64_t *sum = call->own;
	for (int i = 0; i < p->n_origin && locates(s, b); i++) {
		for (int what = CHECK_SENT; what <= CHECK_ADDED; what++)
			add_checksum(s, b, (struct grid_part){.sum = sum},
				p->origin[i].len,
				check_at(s, b, p->origin[i].pos, own_word(s, b, what),
					what == CHECK_ADDED));
		sum += p->origin[i].len;
	}
	count_for_owners(s, b, g, call->own, SUM_INT64);
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

void check_tied(struct store *s, struct bucket *b, const struct comm *pair,
	const int64_t *sent, const int64_t *received, int other)
{
	int route = pair->nccl ? CHECK_BY_NCCL : CHECK_BY_MPI;
	if (!locates(s, b))
		return;
	add_piece(s, b, sent, own_word(s, b, CHECK_SENT), false);
	add_piece(s, b, sent, &bucket_words(s, b, route)[other], false);
	add_piece(s, b, received, &bucket_words(s, b, CHECK_SENT)[other], true);
	add_piece(s, b, received, own_word(s, b, route), true);
	add_piece(s, b, received, own_word(s, b, CHECK_ADDED), false);
}

void store_check_sums(struct store *s, uint64_t *word)
{
	enum { FLOATS = sizeof(*word) / sizeof(float) };
	s->c.device->k->copy(
		s->c.device, mat(word, 1, FLOATS), mat(&s->impl->grid->check, 1, FLOATS));
}

void store_locate_sums(struct store *s)
{
	struct store_checks *x = &s->impl->checks;
	const struct comm *world = s->c.mesh->world;
	x->ranks = world->size;
	x->buckets = comm_max_i64(s->c.mesh->world, s->impl->n_trained) + 1;
	x->n_words = x->buckets * N_CHECK * x->ranks;
	size_t n_bytes = (size_t)x->n_words * sizeof(*x->word);
	x->word = device_alloc(s->c.device, n_bytes);
	if (!x->word)
		die(EX_FAILED, "out of memory: locating a wrong sum needs %zu bytes",
			n_bytes);
}

/* Returns the bucket of this rank with a number among the words. */
static const struct bucket *numbered_bucket(const struct store *s, int64_t number)
{
	const struct bucket *b = s->impl->bucket;
	while (bucket_number(s, b) != number)
		b++;
	return b;
}

/* Appends the ranks with a wrong word of a kind in a bucket, as they count over all workers, whose
 * ranks are consecutive. Returns their number. */
static int list_wrong(const struct store *s, const struct bucket *b, const uint64_t *word,
	int what, const char *before, struct str *out)
{
	int n = 0, first = comm_place()->rank - s->c.mesh->world->rank;
	for (int i = 0; i < (b->tied ? s->c.mesh->world->size : b->all.c->size); i++) {
		int rank = b->tied ? i : b->all.ranks[i];
		if (word[what * s->impl->checks.ranks + rank] % GRID_PRIME)
			str_printf(out, "%s%d", n++ ? ", " : before, first + rank);
	}
	return n;
}

/* Appends what a rank of the world, this one, did wrong in a bucket with these words. */
static void describe_finding(const struct store *s, const struct bucket *b,
	const uint64_t *word, int what, struct str *out)
{
	scoped_str sent = {0}, received = {0};
	const struct comm_place *place = comm_place();
	const struct entry *last = &b->entry[b->n_entries - 1];
	bool is_route = route_names[what];
	if (is_route && list_wrong(s, b, word, CHECK_SENT, "", &sent))
		return; /* the sender's finding names the receivers */
	if (is_route)
		str_printf(out, "%s added wrongly for rank %d (host %s)",
			route_names[what], place->rank, place->host);
	else
		str_printf(out, "rank %d (host %s) %s", place->rank, place->host,
			what == CHECK_SENT
				? "sent other numbers than it computed"
				: "added wrongly, or changed a sum that it kept");
	str_printf(out, ", in the bucket of %s", b->entry->t->name);
	if (last != b->entry)
		str_printf(out, " to %s", last->t->name);
	for (int k = 0; k < N_CHECK && what == CHECK_SENT; k++)
		if (route_names[k] &&
			list_wrong(s, b, word, k, ", received by rank ", &received))
			str_printf(&received, " through %s", route_names[k]);
	str_add(out, received.s, received.len);
}

/* Appends what a rank of the world did wrong in a bucket with these words. Returns false if another
 * rank's finding explains it. Collective. */
static bool name_finding(struct store *s, int64_t bucket, const uint64_t *word, int what,
	int rank, struct str *out)
{
	struct comm *world = s->c.mesh->world;
	scoped_str text = {0};
	if (world->rank == rank)
		describe_finding(s, numbered_bucket(s, bucket), word, what, &text);
	comm_bcast_str(world, &text, rank);
	if (text.len)
		str_printf(out, "%s%s", out->len ? "; " : "", text.s);
	return text.len;
}

bool store_located_sums(struct store *s, struct str *out)
{
	enum { MAX_FINDINGS = 4 };
	struct store_checks *x = &s->impl->checks;
	size_t n_bytes = (size_t)x->n_words * sizeof(*x->word);
	scoped_ptr uint64_t *word = xmalloc(n_bytes);
	int64_t n = 0, n_wrong = 0, n_more = 0;
	device_get(s->c.device, word, x->word, n_bytes);
	free_words(s);
	for (int64_t i = 0; i < x->n_words; i++)
		word[i] %= GRID_PRIME;
	comm_sum_i64(s->c.mesh->world, (int64_t *)word, x->n_words);
	for (int64_t i = 0; i < x->n_words; i++) {
		int64_t row = i / x->ranks, bucket = row / N_CHECK;
		if (!(word[i] % GRID_PRIME))
			continue;
		n_wrong++;
		if (n == MAX_FINDINGS)
			n_more += !route_names[row % N_CHECK];
		else
			n += name_finding(s, bucket, &word[bucket * N_CHECK * x->ranks],
				(int)(row % N_CHECK), (int)(i % x->ranks), out);
	}
	if (n_more)
		str_printf(out, "; %lld more", (long long)n_more);
	return n_wrong > 0;
}
