/* Replicas and state at rest (check_replicas.h). */
#include "referee/check_replicas.h"

#include "referee/replicas_heal.h"

#include <math.h>

bool replicas_are_checked(const struct trainer *t)
{
	return t->o.check_replicas || t->o.check_memory;
}

/* ---- copies on all ranks --------------------------------------------------------- */

static int compare_copies(const void *x, const void *y)
{
	const struct piece_copy *a = x, *b = y;
	return a->id != b->id ? (a->id < b->id ? -1 : 1)
			      : (a->at > b->at) - (a->at < b->at);
}

int64_t replicas_gather(struct trainer *t, struct piece_copy **all)
{
	const struct replicas *x = t->replicas;
	int64_t most = comm_max_i64(t->world, x->n), n = 0;
	struct piece_copy *own = xcalloc((size_t)most + 1, sizeof(*own));
	*all = xcalloc((size_t)(most * t->world->size) + 1, sizeof(**all));
	for (int64_t i = 0; i < x->n; i++) {
		const struct watched *w = &x->list[i];
		own[i] = (struct piece_copy){.id = x->piece[i].id,
			.hash = x->piece[i].hash,
			.at = t->world->rank * most + i,
			.rank = t->world->rank,
			.index = (int)i,
			.exists = true,
			.gathered = x->piece[i].gathered,
			.changed = w->taken && x->piece[i].hash != w->hash_taken};
	}
	comm_allgather(t->world, own, *all, most * (int64_t)sizeof(*own));
	free(own);
	for (int64_t i = 0; i < most * t->world->size; i++)
		if ((*all)[i].exists)
			(*all)[n++] = (*all)[i];
	qsort(*all, (size_t)n, sizeof(**all), compare_copies);
	return n;
}

/* Counts the copies of each piece. Collective. */
static void count_copies(struct trainer *t)
{
	struct replicas *x = t->replicas;
	struct piece_copy *all;
	int64_t n = replicas_gather(t, &all), end;
	for (int64_t i = 0; i < n; i = end) {
		for (end = i; end < n && all[end].id == all[i].id; end++)
			;
		for (int64_t k = i; k < end; k++)
			if (all[k].rank == t->world->rank) {
				x->list[all[k].index].copies = end - i;
				x->list[all[k].index].copy = k - i;
			}
	}
	free(all);
}

/* Allocates the device memory of the checks. */
static void open_memory(struct trainer *t)
{
	struct replicas *x = t->replicas;
	int64_t n = x->n + 1;
	uint32_t u[GRID_BLOCK];
	x->n_bytes =
		sizeof(*x->memory) +
		(size_t)n * (sizeof(*x->sum) + sizeof(*x->taken) + sizeof(*x->terms));
	x->memory = device_alloc(&t->d, x->n_bytes);
	if (!x->memory)
		die(EX_FAILED, "out of memory: comparing replicas needs %zu bytes",
			x->n_bytes);
	x->sum = (uint64_t *)(void *)(x->memory + 1);
	x->taken = x->sum + n;
	x->terms = (struct checksum_term *)(void *)(x->taken + n);
	grid_weights(t->store->c.seed, u);
	device_put(&t->d, x->memory->u, u, sizeof(u));
}

/* Lists this rank's pieces. */
static void open_pieces(struct trainer *t)
{
	struct replicas *x = t->replicas = xcalloc(1, sizeof(*t->replicas));
	x->n = state_pieces_list(t->store, &x->piece);
	x->list = xcalloc((size_t)x->n + 1, sizeof(*x->list));
	x->compared = xcalloc((size_t)x->n + 1, sizeof(*x->compared));
	x->takes = xcalloc((size_t)x->n + 1, sizeof(*x->takes));
	x->replaced = xcalloc((size_t)t->world->size, sizeof(*x->replaced));
	x->replaced_step = -1;
	open_memory(t);
}

/* Returns true if a piece is compared with itself right after the last update: of two copies that
 * differ, this shows which one is wrong. */
static bool takes_each_step(const struct trainer *t, const struct watched *w)
{
	return !t->o.edit.workers && (t->o.check_memory || w->copies == 2);
}

/* Warns if no piece has a copy on another rank. Collective. */
static void warn_without_copies(struct trainer *t)
{
	const struct replicas *x = t->replicas;
	int64_t most = 0;
	for (int64_t i = 0; i < x->n; i++)
		most = max64(most, x->list[i].copies);
	if (comm_max_i64(t->world, most) < 2 && t->world->rank == 0)
		warn("--check-replicas: no parameters have a replica in this layout, so "
		     "only loss, norm and learning rate are compared; --check-memory "
		     "detects changes of the state");
}

void replicas_open(struct trainer *t)
{
	if (!replicas_are_checked(t))
		return;
	open_pieces(t);
	count_copies(t);
	if (t->o.check_replicas)
		warn_without_copies(t);
	struct replicas *x = t->replicas;
	for (int64_t i = 0; i < x->n; i++) {
		x->takes[i] = takes_each_step(t, &x->list[i]);
		x->compared[i] =
			x->takes[i] || (t->o.check_replicas && x->list[i].copies > 1);
	}
}

void replicas_close(struct trainer *t)
{
	struct replicas *x = t->replicas;
	if (!x)
		return;
	device_free(&t->d, x->memory, x->n_bytes);
	free(x->piece);
	free(x->list);
	free(x->compared);
	free(x->takes);
	free(x->replaced);
	str_free(&x->found);
	free(x);
	t->replicas = NULL;
}

/* ---- what a rank remembers of its last update ------------------------------------ */

/* Sets the scalars that the trainer keeps from step to step. */
static void set_kept_scalars(struct replicas *x, const struct trainer *t)
{
	const double list[N_KEPT_SCALARS] = {t->loss, (double)t->loss_scale,
		(double)t->scale_good, (double)t->step, (double)t->samples,
		(double)t->skipped};
	for (int i = 0; i < N_KEPT_SCALARS; i++)
		x->scalars.kept[i] = isnan(list[i]) ? (double)NAN : list[i];
	if (x->remembers)
		x->scalars.changed |=
			memcmp(&t->loss, &x->loss_then, sizeof(t->loss)) != 0;
}

/* Remembers the scalars of the last update. */
static void remember_scalars(struct trainer *t)
{
	enum { FLOATS = sizeof(struct step_end) / sizeof(float) };
	struct replicas *x = t->replicas;
	t->d.k->copy(&t->d, mat((float *)(void *)&x->memory->last, 1, FLOATS),
		mat((float *)(void *)&t->end->results, 1, FLOATS));
	memcpy(x->computed, &t->ended.results, sizeof(x->computed));
	x->scalars.changed = false;
	x->loss_then = t->loss;
	x->remembers = true;
}

/* Enqueues the checksums of the wanted pieces, to [n + 1] sums. The last one is 0. */
static void enqueue_sums(struct trainer *t, const bool *wanted, uint64_t *sum)
{
	enum { FLOATS = sizeof(*sum) / sizeof(float) };
	const struct replicas *x = t->replicas;
	t->d.k->zero(&t->d, mat((float *)(void *)sum, 1, FLOATS * (x->n + 1)));
	state_pieces_enqueue(t->store, x->memory->u, x->piece, x->n, wanted, sum);
}

void replicas_after_step(struct trainer *t)
{
	struct replicas *x = t->replicas;
	bool any = false;
	if (!replicas_are_checked(t))
		return;
	for (int64_t i = 0; i < x->n; i++)
		any |= x->list[i].taken = x->takes[i];
	if (any)
		enqueue_sums(t, x->takes, x->taken);
	remember_scalars(t);
}

void replicas_read(struct trainer *t)
{
	struct replicas *x = t->replicas;
	size_t n_bytes = (size_t)x->n * sizeof(uint64_t);
	scoped_ptr uint64_t *taken = xmalloc(n_bytes + 1);
	state_pieces_hash(t->store, x->piece, x->n);
	device_get(&t->d, taken, x->taken, n_bytes);
	for (int64_t i = 0; i < x->n; i++)
		x->list[i].hash_taken = taken[i] % GRID_PRIME;
	device_get(
		&t->d, x->scalars.of_step, &x->memory->last, sizeof(x->scalars.of_step));
	if (x->remembers)
		x->scalars.changed |=
			memcmp(x->scalars.of_step, x->computed, sizeof(x->computed)) != 0;
}

void replicas_write(struct trainer *t)
{
	struct replicas *x = t->replicas;
	size_t n_bytes = (size_t)x->n * sizeof(uint64_t);
	scoped_ptr uint64_t *taken = xmalloc(n_bytes + 1);
	state_pieces_hash(t->store, x->piece, x->n);
	for (int64_t i = 0; i < x->n; i++)
		taken[i] = x->list[i].hash_taken = x->piece[i].hash;
	device_put(&t->d, x->taken, taken, n_bytes);
	device_put(
		&t->d, &x->memory->last, x->scalars.of_step, sizeof(x->scalars.of_step));
	memcpy(x->computed, x->scalars.of_step, sizeof(x->computed));
}

bool replicas_were_replaced(const struct trainer *t)
{
	const struct replicas *x = t->replicas;
	return x && x->replaced_step == t->step;
}

/* Ranks of a replica gather their parameters from one another, and get its activations. Rows of
 * experts come from other replicas, too. */
bool replicas_used_replaced(const struct trainer *t, int rank)
{
	int coord[N_AXES], other[N_AXES];
	bool used = false;
	mesh_coordinates(t->mesh.degree, rank, coord);
	for (int r = 0; r < t->world->size && replicas_were_replaced(t); r++) {
		mesh_coordinates(t->mesh.degree, r, other);
		used |= t->replicas->replaced[r] &&
			(t->o.ep > 1 || other[AXIS_DP] == coord[AXIS_DP]);
	}
	return used;
}

/* Returns true if all copies of the state have the same bits. Collective. */
static bool copies_agree(struct trainer *t)
{
	struct piece_copy *all;
	bool agree = true;
	state_pieces_hash(t->store, t->replicas->piece, t->replicas->n);
	int64_t n = replicas_gather(t, &all);
	for (int64_t i = 1; i < n; i++)
		agree &= all[i].id != all[i - 1].id || all[i].hash == all[i - 1].hash;
	free(all);
	return agree;
}

void replicas_heal_in_trial(struct trainer *t, struct str *out)
{
	if (replicas_were_replaced(t))
		return;
	if (!t->replicas)
		open_pieces(t);
	set_kept_scalars(t->replicas, t);
	if (copies_agree(t))
		return;
	replicas_heal(t);
	str_puts(out, t->replicas->found.s);
	str_free(&t->replicas->found);
}

/* ---- words ----------------------------------------------------------------------- */

/* Returns a random number below GRID_PRIME. */
static uint64_t draw(struct philox_key key, uint64_t id, int64_t number)
{
	struct philox_block b =
		philox(key, (uint32_t)id, (uint32_t)(id >> 32), (uint32_t)number, 0);
	return ((uint64_t)b.x[0] << 32 | b.x[1]) % GRID_PRIME;
}

/* Returns the factor of copy number `copy`. The factors of all copies of a piece are random and
 * add up to 0. */
static uint64_t copy_factor(
	struct philox_key key, uint64_t id, int64_t copies, int64_t copy)
{
	uint64_t next = draw(key, id, (copy + 1) % copies);
	return (draw(key, id, copy) + GRID_PRIME - next) % GRID_PRIME;
}

enum { SCALARS_ID }; /* instead of the id of a piece */

void replicas_write_step(struct trainer *t)
{
	struct replicas *x = t->replicas;
	/* keys 0 and 1 belong to --check-sums */
	struct philox_key key =
		philox_key((uint64_t)t->o.seed, PHILOX_CHECK, (uint64_t)t->step + 2);
	if (!replicas_are_checked(t))
		return;
	size_t n_bytes = (size_t)(x->n + 1) * sizeof(*x->terms);
	scoped_ptr struct checksum_term *terms = xcalloc(1, n_bytes);
	for (int64_t i = 0; i < x->n; i++) {
		const struct watched *w = &x->list[i];
		uint64_t id = x->piece[i].id;
		if (t->o.check_replicas && w->copies > 1)
			terms[i].factor = copy_factor(key, id, w->copies, w->copy);
		if (w->taken)
			terms[i].differs =
				1 + draw(key, id, -1 - w->copy) % (GRID_PRIME - 1);
	}
	if (t->o.check_replicas)
		terms[x->n].factor =
			copy_factor(key, SCALARS_ID, t->world->size, t->world->rank);
	set_kept_scalars(x, t);
	device_put(&t->d, x->terms, terms, n_bytes);
	device_put(&t->d, x->memory->kept, x->scalars.kept, sizeof(x->scalars.kept));
}

void replicas_enqueue_word(struct trainer *t, uint64_t *word)
{
	enum { WORDS = sizeof(double) / sizeof(uint32_t) };
	const struct replicas *x = t->replicas;
	const struct word_part scalars[] = {
		{.p = &x->memory->last, .n = N_STEP_WORDS, .sum = (int)x->n},
		{.p = x->memory->kept,
			.n = WORDS * N_KEPT_SCALARS,
			.first = N_STEP_WORDS,
			.sum = (int)x->n}};
	enqueue_sums(t, x->compared, x->sum);
	t->d.k->word_sums(&t->d, x->sum, scalars, ARRAY_LEN(scalars), x->memory->u,
		grid_check_key(t->store->c.seed));
	t->d.k->checksum_word(&t->d, word, x->sum, x->taken, x->terms, x->n + 1);
}

/* Returns true if a copy on any rank is wrong between two steps. Collective. */
static bool are_wrong(struct trainer *t)
{
	uint64_t word;
	replicas_write_step(t);
	replicas_enqueue_word(t, &t->replicas->memory->word);
	device_get(&t->d, &word, &t->replicas->memory->word, sizeof(word));
	comm_sum_i64(t->world, (int64_t *)&word, 1);
	return word % GRID_PRIME;
}

/* Appends what replicas_heal() found. `again`: copies differed again after it. */
static enum checked conclude(struct trainer *t, bool again, struct str *out)
{
	struct str *found = &t->replicas->found;
	again &= !t->state_is_wrong;
	str_puts(out, found->s ? found->s : "");
	if (again)
		str_puts(out, "; then copies differed again");
	t->state_is_wrong |= again;
	if (t->state_is_wrong)
		str_puts(out,
			"; the state is wrong, and is not saved: continue from the last "
			"checkpoint");
	str_free(found);
	return t->state_is_wrong ? CHECKED_PERSISTENT : CHECKED_SPORADIC;
}

/* The state is not read again: a GPU may have updated it. */
enum checked replicas_verdict(struct trainer *t, struct str *out)
{
	return conclude(t, t->ended.check[STEP_CHECK_REPLICAS] % GRID_PRIME, out);
}

enum checked replicas_check_now(struct trainer *t, struct str *out)
{
	if (!replicas_are_checked(t) || !are_wrong(t))
		return CHECKED_RIGHT;
	replicas_heal(t);
	t->replicas->replaced_step = -1; /* the next step computes with right state */
	return conclude(t, are_wrong(t), out);
}
