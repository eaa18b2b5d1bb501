/* Finds which copies of state are wrong, and replaces them.
 *
 * All ranks get the hashes of all copies, and come to the same verdict. A copy that has changed
 * since the last update is wrong. A shard is wrong, too, that a rank has updated with other numbers
 * than the other ranks (learning rate, factor of the norm), unless another rank has updated it to
 * the same bits. Numbers that no update uses, such as the loss, are replaced, and condemn no shard.
 * Of the copies that are left, the majority is right. */
#include "referee/check_replicas.h"
#include "referee/replicas_heal.h"

struct healing {
	struct trainer *t;
	struct piece_copy *all; /* [n] */
	int64_t n;
	bool *used_wrong; /* [ranks]: updated with wrong numbers */
	bool replaced;	  /* a shard or the gathered parameters of a rank were wrong */
	bool updated_wrongly; /* a replica that differs may have differed since the last update */
	int n_findings;
};

/* ---- findings -------------------------------------------------------------------- */

/* Appends a finding about a copy (index -1: the numbers of an update) of a rank. Collective. */
static void report_finding(
	struct healing *h, int rank, int index, const char *why, int from)
{
	enum { MAX_FINDINGS = 4 };
	struct trainer *t = h->t;
	struct str *found = &t->replicas->found;
	scoped_str text = {0};
	if (h->n_findings++ >= MAX_FINDINGS) {
		if (h->n_findings == MAX_FINDINGS + 1)
			str_puts(found, "; and more");
		return;
	}
	if (t->world->rank == rank) {
		str_printf(&text, "rank %d (host %s): ", comm_place()->rank,
			comm_place()->host);
		if (index >= 0)
			state_piece_name(t->store, &t->replicas->piece[index], &text);
		else
			str_puts(&text, "loss, norm or learning rate of the last update");
	}
	comm_bcast_str(t->world, &text, rank);
	str_printf(found, "%s%s%s", found->len ? "; " : "", text.s, why);
	if (from >= 0)
		str_printf(found, " %d", t->o.resolved.worker * t->world->size + from);
}

/* Reports that nobody has a right copy. */
static void give_up(struct healing *h, int rank, int index, const char *why, int other)
{
	report_finding(h, rank, index, why, other);
	h->t->state_is_wrong = true;
}

static const char unclear[] =
	" differ, and no majority shows which are right: here, or on rank";

/* ---- the numbers of the last update ---------------------------------------------- */

static bool have_same_numbers(
	const struct replica_scalars *a, const struct replica_scalars *b)
{
	return !memcmp(a, b, offsetof(struct replica_scalars, changed));
}

/* Returns true if the updates used the same numbers; loss and norm are only logged. */
static bool have_same_update(
	const struct replica_scalars *a, const struct replica_scalars *b)
{
	_Static_assert(offsetof(struct step_end, update) == 0, "of_step begins with it");
	return !memcmp(a->of_step, b->of_step, sizeof(struct update));
}

/* Returns the rank whose numbers more than half of the ranks have, without ranks that noticed a
 * change; -1: there is none. */
static int right_numbers(const struct replica_scalars *all, int n)
{
	int voters = 0;
	for (int i = 0; i < n; i++)
		voters += !all[i].changed;
	for (int i = 0; i < n; i++) {
		int votes = 0;
		for (int k = 0; k < n; k++)
			votes += !all[k].changed && have_same_numbers(&all[k], &all[i]);
		if (2 * votes > voters)
			return i;
	}
	return -1;
}

/* Finds the ranks that have wrong numbers or have used them, and gives them the right ones. */
static void judge_numbers(struct healing *h)
{
	struct trainer *t = h->t;
	struct replicas *x = t->replicas;
	int n = t->world->size;
	scoped_ptr struct replica_scalars *all = xcalloc((size_t)n, sizeof(*all));
	comm_allgather(t->world, &x->scalars, all, sizeof(*all));
	int right = right_numbers(all, n);
	if (right < 0) {
		int other = 1;
		while (other < n - 1 && have_same_numbers(&all[other], &all[0]))
			other++;
		give_up(h, 0, -1, unclear, other);
		return;
	}
	for (int i = 0; i < n; i++) {
		h->used_wrong[i] = !have_same_update(&all[i], &all[right]);
		if (!have_same_numbers(&all[i], &all[right]))
			report_finding(h, i, -1, " differ from rank", right);
	}
	x->scalars = all[right];
	x->scalars.changed = false;
	t->loss = x->loss_then = all[right].kept[0];
	t->loss_scale = (float)all[right].kept[1];
	t->scale_good = (int64_t)all[right].kept[2];
	t->skipped = (int64_t)all[right].kept[5];
}

/* ---- a piece --------------------------------------------------------------------- */

/* Returns true if a rank has updated its shard to this hash with wrong numbers, and no other rank
 * has the same shard. */
static bool is_wrongly_updated(
	const struct healing *h, const struct piece_copy *c, int64_t n, uint64_t hash)
{
	bool wrong = false;
	for (int64_t i = 0; i < n; i++) {
		if (c[i].gathered || c[i].hash != hash)
			continue;
		if (!h->used_wrong[c[i].rank])
			return false;
		wrong = true;
	}
	return wrong;
}

/* Returns a copy of the majority of the copies that may be right: a shard, if there is one.
 * NULL: there is no majority. */
static const struct piece_copy *right_copy(
	const struct healing *h, const struct piece_copy *c, int64_t n)
{
	scoped_ptr bool *votes = xcalloc((size_t)n, sizeof(*votes));
	int64_t voters = 0;
	for (int64_t i = 0; i < n; i++) {
		votes[i] = !c[i].changed && !is_wrongly_updated(h, c, n, c[i].hash);
		voters += votes[i];
	}
	const struct piece_copy *right = NULL;
	for (int64_t i = 0; i < n; i++) {
		int64_t same = 0;
		for (int64_t k = 0; k < n; k++)
			same += votes[k] && c[k].hash == c[i].hash;
		if (votes[i] && 2 * same > voters && (!right || right->gathered))
			right = &c[i];
	}
	return right;
}

/* Copies a piece from one rank to another, in host memory of a fixed size. */
static void replace_copy(
	struct healing *h, const struct piece_copy *to, const struct piece_copy *from)
{
	enum { FLOATS = 1 << 18 };
	struct trainer *t = h->t;
	int rank = t->world->rank;
	const struct state_piece *list = t->replicas->piece;
	const struct state_piece *x = &list[rank == to->rank ? to->index : from->index];
	if (rank != to->rank && rank != from->rank)
		return;
	scoped_ptr float *floats = xmalloc(FLOATS * sizeof(*floats));
	int64_t n_all = state_piece_floats(x);
	for (int64_t at = 0; at < n_all; at += FLOATS) {
		struct comm_requests r = {.c = t->world};
		int64_t n = min64(FLOATS, n_all - at);
		int64_t n_bytes = n * (int64_t)sizeof(*floats);
		if (rank == from->rank)
			state_piece_read(t->store, &list[from->index], at, n, floats);
		if (rank == from->rank && rank != to->rank)
			comm_send(&r, floats, n_bytes, to->rank, COMM_TAG(HEAL, 0));
		if (rank == to->rank && rank != from->rank)
			comm_recv(&r, floats, n_bytes, from->rank, COMM_TAG(HEAL, 0));
		comm_start(&r);
		comm_wait(&r);
		comm_requests_release(&r);
		if (rank == to->rank)
			state_piece_write(t->store, x, at, n, floats);
	}
}

/* Reports that none of the n copies of a piece is known to be right. */
static void give_up_copies(struct healing *h, const struct piece_copy *c, int64_t n)
{
	int64_t other = 0;
	while (other < n && c[other].hash == c->hash)
		other++;
	if (other < n)
		give_up(h, c->rank, c->index, unclear, c[other].rank);
	else
		give_up(h, c->rank, c->index,
			c->changed
				? " have changed since the last update, and have no replica"
				: " were updated with wrong numbers, and have no replica",
			-1);
}

/* Replaces the wrong ones of the n copies of a piece. */
static void judge_copies(struct healing *h, const struct piece_copy *c, int64_t n)
{
	bool suspect = false;
	for (int64_t i = 0; i < n; i++)
		suspect |= c[i].changed || c[i].hash != c->hash ||
			   (h->used_wrong[c[i].rank] && !c[i].gathered);
	if (!suspect)
		return;
	const struct piece_copy *right = right_copy(h, c, n);
	if (!right)
		give_up_copies(h, c, n);
	for (int64_t i = 0; i < n && right; i++) {
		if (c[i].hash == right->hash)
			continue;
		report_finding(h, c[i].rank, c[i].index,
			c[i].changed ? " changed after the last update: copied from rank"
				     : " differ from replicas: copied from rank",
			right->rank);
		h->replaced = true;
		h->updated_wrongly |= !c[i].changed && !h->used_wrong[c[i].rank];
		h->t->replicas->replaced[c[i].rank] = true;
		if (!c[i].gathered)
			replace_copy(h, &c[i], right);
	}
}

void replicas_heal(struct trainer *t)
{
	struct replicas *x = t->replicas;
	struct healing h = {.t = t};
	replicas_read(t);
	h.used_wrong = xcalloc((size_t)t->world->size, sizeof(*h.used_wrong));
	h.n = replicas_gather(t, &h.all);
	str_free(&x->found);
	memset(x->replaced, 0, (size_t)t->world->size * sizeof(*x->replaced));
	x->replaced_step = t->step;
	judge_numbers(&h);
	t->wrong_step = t->step;
	for (int64_t i = 0, end; i < h.n; i = end) {
		for (end = i; end < h.n && h.all[end].id == h.all[i].id; end++)
			;
		judge_copies(&h, &h.all[i], end - i);
	}
	/* (a rank adds its share of the norm before the update) */
	if (h.updated_wrongly && t->step)
		str_printf(&x->found,
			"; if its gradient was wrong, the norm of step %lld was, too",
			(long long)t->step);
	if (h.replaced)
		store_updated(t->store, false);
	replicas_write(t);
	free(h.used_wrong);
	free(h.all);
}
