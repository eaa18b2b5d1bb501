/* Replicas and state at rest (check_replicas.h). */
#include "referee/check_replicas.h"

#include "referee/replicas_heal.h"

#include <math.h>
#include <stddef.h>

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
		own[i] = (struct piece_copy){.id = w->piece.id,
			.hash = w->piece.hash,
			.at = t->world->rank * most + i,
			.rank = t->world->rank,
			.index = (int)i,
			.exists = true,
			.gathered = w->piece.gathered,
			.changed = w->taken && w->piece.hash != w->hash_taken};
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

/* Lists this rank's pieces. */
static void list_pieces(struct trainer *t)
{
	struct state_piece *list;
	struct replicas *x = t->replicas = xcalloc(1, sizeof(*t->replicas));
	x->n = state_pieces_list(t->store, &list);
	x->list = xcalloc((size_t)x->n + 1, sizeof(*x->list));
	for (int64_t i = 0; i < x->n; i++)
		x->list[i] = (struct watched){.piece = list[i]};
	free(list);
}

void replicas_open(struct trainer *t)
{
	if (!replicas_are_checked(t))
		return;
	list_pieces(t);
	count_copies(t);
}

void replicas_close(struct trainer *t)
{
	if (!t->replicas)
		return;
	free(t->replicas->list);
	str_free(&t->replicas->found);
	free(t->replicas);
	t->replicas = NULL;
}

/* ---- what a rank remembers of its last update ------------------------------------ */

/* Sets the scalars that the step's end computes. */
static void set_step_scalars(struct replica_scalars *x, const struct step_end *e)
{
	const struct update *u = &e->update;
	const double list[N_STEP_SCALARS] = {(double)u->lr, (double)u->beta1,
		(double)u->beta2, (double)u->eps, (double)u->grad_scale,
		(double)u->correct1, (double)u->correct2, (double)u->momentum, u->off,
		u->nesterov, (double)e->loss, (double)e->grad_norm};
	for (int i = 0; i < N_STEP_SCALARS; i++)
		x->of_step[i] = isnan(list[i]) ? (double)NAN : list[i];
}

/* Sets the scalars that the trainer keeps from step to step. */
static void set_kept_scalars(struct replica_scalars *x, const struct trainer *t)
{
	const double list[N_KEPT_SCALARS] = {t->loss, (double)t->loss_scale,
		(double)t->scale_good, (double)t->step, (double)t->samples,
		(double)t->skipped};
	for (int i = 0; i < N_KEPT_SCALARS; i++)
		x->kept[i] = isnan(list[i]) ? (double)NAN : list[i];
}

/* Remembers the scalars of the last update. */
static void remember_scalars(struct trainer *t)
{
	struct replicas *x = t->replicas;
	struct step_end end;
	struct replica_scalars computed;
	device_get(&t->d, &end, &t->end->results, sizeof(end));
	set_step_scalars(&x->scalars, &end);
	set_step_scalars(&computed, &t->ended.results);
	x->scalars.changed = memcmp(x->scalars.of_step, computed.of_step,
				     sizeof(computed.of_step)) != 0;
	x->loss_then = t->loss;
	x->remembers = true;
}

static void hash_watched(struct trainer *t, struct watched *w)
{
	state_pieces_hash(t->store, &w->piece, 1);
}

static void take(struct trainer *t, struct watched *w)
{
	hash_watched(t, w);
	w->hash_taken = w->piece.hash;
	w->taken = true;
}

/* Returns true if a piece is compared with itself right after the last update: of two copies that
 * differ, this shows which one is wrong. */
static bool takes_each_step(const struct trainer *t, const struct watched *w)
{
	return !t->o.edit.workers && (t->o.check_memory || w->copies == 2);
}

void replicas_after_step(struct trainer *t)
{
	struct replicas *x = t->replicas;
	for (int64_t i = 0; x && i < x->n; i++) {
		x->list[i].taken = false;
		if (replicas_are_checked(t) && takes_each_step(t, &x->list[i]))
			take(t, &x->list[i]);
	}
	if (x)
		remember_scalars(t);
}

bool replicas_agree(struct trainer *t, struct str *differing)
{
	struct piece_copy *all;
	scoped_ptr uint8_t *differs = xcalloc((size_t)t->world->size, 1);
	bool agree = true;
	if (!t->replicas)
		list_pieces(t);
	for (int64_t i = 0; i < t->replicas->n; i++)
		hash_watched(t, &t->replicas->list[i]);
	int64_t n = replicas_gather(t, &all), end;
	for (int64_t i = 0; i < n; i = end)
		for (end = i; end < n && all[end].id == all[i].id; end++)
			differs[all[end].rank] |= all[end].hash != all[i].hash;
	free(all);
	for (int r = 0; r < t->world->size; r++) {
		if (!differs[r])
			continue;
		str_printf(differing, " %d", r);
		agree = false;
	}
	return agree;
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

/* Returns this rank's word, from the hashes of its pieces. */
static uint64_t add_words(const struct trainer *t)
{
	const struct replicas *x = t->replicas;
	const uint64_t scalars = 0; /* instead of the id of a piece */
	/* keys 0 and 1 belong to --check-sums */
	struct philox_key key =
		philox_key((uint64_t)t->o.seed, PHILOX_CHECK, (uint64_t)t->step + 2);
	uint64_t sum = 0;
	if (t->o.check_replicas)
		sum = copy_factor(key, scalars, t->world->size, t->world->rank) *
		      (hash_bytes(&x->scalars, offsetof(struct replica_scalars, changed),
			       0) %
			      GRID_PRIME) %
		      GRID_PRIME;
	for (int64_t i = 0; i < x->n; i++) {
		const struct watched *w = &x->list[i];
		if (t->o.check_replicas && w->copies > 1)
			sum += copy_factor(key, w->piece.id, w->copies, w->copy) *
			       (w->piece.hash % GRID_PRIME) % GRID_PRIME;
		if (w->taken && w->piece.hash != w->hash_taken)
			sum += 1 +
			       draw(key, w->piece.id, -1 - w->copy) % (GRID_PRIME - 1);
	}
	return sum % GRID_PRIME;
}

uint64_t replicas_word(struct trainer *t)
{
	struct replicas *x = t->replicas;
	if (!x) /* a plan */
		return 0;
	set_kept_scalars(&x->scalars, t);
	if (x->remembers)
		x->scalars.changed |=
			memcmp(&t->loss, &x->loss_then, sizeof(t->loss)) != 0;
	for (int64_t i = 0; i < x->n; i++)
		if (x->list[i].taken || (t->o.check_replicas && x->list[i].copies > 1))
			hash_watched(t, &x->list[i]);
	return add_words(t);
}

/* Returns true if the hashes of all ranks show a wrong copy. Collective. */
static bool are_wrong(struct trainer *t)
{
	uint64_t word = add_words(t);
	comm_sum_i64(t->world, (int64_t *)&word, 1);
	return word % GRID_PRIME;
}

enum checked replicas_verdict(struct trainer *t, struct str *out)
{
	struct str *found = &t->replicas->found;
	bool again = !t->state_is_wrong && are_wrong(t);
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

enum checked replicas_check_now(struct trainer *t, struct str *out)
{
	if (!t->replicas || !replicas_are_checked(t))
		return CHECKED_RIGHT;
	replicas_word(t);
	if (!are_wrong(t))
		return CHECKED_RIGHT;
	replicas_heal(t);
	replicas_word(t);
	return replicas_verdict(t, out);
}
