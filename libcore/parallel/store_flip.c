/* Flips bits in the store (--inject-flip): leaves, sums, messages, gradients, state. */
#include "parallel/store_flip.h"

/* Draws that look for an element of the tensor that a flip names. */
enum { MAX_DRAWS = 1 << 16 };

/* ---- leaves and sums ------------------------------------------------------------- */

void flip_leaf(struct store *s, const struct entry *e, struct mat x)
{
	struct flip *f = flips_due(s->flips, FLIP_LEAF, e->t->name);
	if (f && mat_size(x))
		flips_do(s->flips, f, s->c.device,
			(char *)x.p +
				flips_draw(s->flips, mat_size(x)) * dtype_bytes(x.type),
			(int)dtype_bytes(x.type), e->t->name);
}

/* Returns the entry that has an element of a bucket's vector; NULL: in a gap, or not of the tensor
 * that the flip names. */
static const struct entry *named_entry_at(
	const struct flip *x, const struct bucket *b, int64_t index)
{
	for (int i = 0; i < b->n_entries; i++) {
		const struct entry *e = &b->entry[i];
		if (index >= e->pos && index < e->pos + e->rows * e->cols)
			return x->name && strcmp(x->name, e->t->name) ? NULL : e;
	}
	return NULL;
}

/* Flips a bit of n elements at `sum`, which are in this rank's packed shard from element `first`
 * on, or (p NULL) in the bucket's vector. */
static void flip_sum(struct store *s, struct bucket *b, int64_t *sum,
	const struct sum_plan *p, int64_t first, int64_t n)
{
	struct flip *x = flips_due(s->flips, FLIP_SUM, NULL);
	for (int i = 0; x && n && !x->done && i < MAX_DRAWS; i++) {
		int64_t k = flips_draw(s->flips, n), index = first + k;
		if (p)
			sum_locate(p, p->wants[p->c->rank], first + k, &index);
		const struct entry *e = named_entry_at(x, b, index);
		if (e)
			flips_do(s->flips, x, s->c.device, sum + k, sizeof(*sum),
				e->t->name);
	}
}

void flip_kept_sum(
	struct store *s, struct bucket *b, int64_t *sum, int64_t pos, int64_t n)
{
	const struct sum_plan *p = &bucket_owners(b)->plan;
	int64_t first;
	sum_piece(p, p->c->rank, &first);
	flip_sum(s, b, sum, p, first + pos, n);
}

void flip_leaves_sum(struct store *s, struct bucket *b)
{
	flip_sum(s, b, b->leaves.sum, NULL, 0, b->n);
}

void flip_message(struct store *s, struct bucket *b, const struct sum_call *call)
{
	const struct sum_plan *p = call->plan;
	struct flip *x = flips_due(s->flips, FLIP_MESSAGE, NULL);
	int me = p->c->rank, width = (int)(call->form ? call->form[me] : SUM_INT64);
	for (int i = 0; x && width && p->c->size > 1 && !x->done && i < MAX_DRAWS; i++) {
		int to =
			(me + 1 + (int)flips_draw(s->flips, p->c->size - 1)) % p->c->size;
		int64_t first, pos, index, n = sum_piece(p, to, &first);
		if (!n)
			continue;
		first += flips_draw(s->flips, n);
		sum_locate(p, p->wants[to], first, &index);
		sum_locate_in_vector(p, p->wants[to], first, &pos);
		const struct entry *e = named_entry_at(x, b, index);
		if (e)
			flips_do(s->flips, x, s->c.device,
				(float *)call->own + width * pos,
				width * (int)sizeof(float), e->t->name);
	}
}

/* ---- state and gradients --------------------------------------------------------- */

/* A flip in the parts of a group: the element, counted over the parts of the named tensor. */
struct part_flip {
	struct store *s;
	struct flip *x;
	int group;
	int64_t left;
};

/* Returns true if x is in the tensor that the flip names, or if that names none. */
static bool is_named(const struct part_flip *p, const struct part *x)
{
	return (!p->x->name || !strcmp(p->x->name, x->t->name)) &&
	       (p->x->place != FLIP_COPY || x->copy.p);
}

static void flip_in_part(void *arg, const struct part *x)
{
	struct part_flip *p = arg;
	bool copy = p->x->place == FLIP_COPY;
	int64_t n = x->rows * x->cols;
	if (p->x->done || !is_named(p, x))
		return;
	int bytes = copy ? (int)dtype_bytes(x->copy.type) : (int)sizeof(float);
	char *memory = copy			? x->copy.p
		       : p->group == STORE_GRAD ? (void *)x->g
						: (void *)x->state[p->group];
	if (p->left < n)
		flips_do(p->s->flips, p->x, p->s->c.device, memory + p->left * bytes,
			bytes, x->t->name);
	p->left -= n;
}

void store_flip(struct store *s, enum flip_place place)
{
	struct part_flip p = {.s = s, .x = flips_due(s->flips, place, NULL)};
	int64_t n = 0;
	p.group = place == FLIP_ROUNDED	 ? STORE_GRAD
		  : place == FLIP_MOMENT ? 1
					 : STORE_PARAM;
	if (!p.x || (place == FLIP_MOMENT && s->c.groups.n < 2))
		return;
	for (int64_t i = 0; i < s->n_updated; i++)
		n += is_named(&p, &s->updated[i])
			     ? s->updated[i].rows * s->updated[i].cols
			     : 0;
	if (!n)
		return;
	p.left = flips_draw(s->flips, n);
	store_for_each_part(
		s, false, STORE_BIT(p.group), STORE_BIT(p.group), flip_in_part, &p);
}
