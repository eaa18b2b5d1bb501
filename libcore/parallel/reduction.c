/* The plan of a bucket's reduction: rows that reduce.c executes. */
#include "parallel/reduction.h"

/* ---- the planner ----------------------------------------------------------------- */

/* Appends a row to the reduction plan. Returns it. */
static struct reduction_row *add_row(struct reduction *r, enum reduction_when when,
	enum reduction_what what, enum reduction_over over, enum reduction_place from,
	enum reduction_place to, enum reduction_add add)
{
	BUG_ON(r->n_rows == ARRAY_LEN(r->row));
	r->n_turn_rows += when != STEP_END;
	r->row[r->n_rows] = (struct reduction_row){when, what, over, from, to, add};
	return &r->row[r->n_rows++];
}

/* Appends rows that sum a turn's leaves, to the gradient if `complete`. Returns the sum's place. */
static enum reduction_place plan_turn(
	struct reduction *r, const struct reduction_facts *f, bool complete)
{
	enum reduction_place leaves = f->several_leaves ? AT_LEAVES : AT_LEAF;
	enum reduction_place to = complete ? AT_GRADIENT : AT_KEPT;
	enum reduction_add add = complete || f->file ? REDUCE_SET : REDUCE_LATER;
	enum reduction_over over = f->scheme == SCHEME_REPLICAS ? OVER_WITHIN : OVER_ALL;
	if (f->scheme == SCHEME_HOSTS) {
		add_row(r, EVERY_TURN, REDUCE_SUM, OVER_WITHIN, leaves, AT_HOST,
			REDUCE_SET);
		struct reduction_row *across =
			add_row(r, EVERY_TURN, REDUCE_SUM, OVER_ACROSS, AT_HOST, to, add);
		across->chained = true;
		across->pos = complete ? f->part_at : 0;
	} else if (f->file && f->one_rank) {
		return leaves;
	} else if (complete && f->one_rank && f->several_leaves && !f->rounds) {
		add_row(r, EVERY_TURN, REDUCE_ROUND, OVER_SELF, leaves, to, add);
	} else {
		add_row(r, EVERY_TURN, REDUCE_SUM, over, leaves, to, add);
	}
	return to;
}

/* Appends the rows that complete the kept sum after the last turn. */
static void plan_end(struct reduction *r, const struct reduction_facts *f)
{
	bool late = f->tied || f->warm_up || f->file, by_host = f->scheme == SCHEME_HOSTS;
	if (f->tied)
		add_row(r, STEP_END, REDUCE_SWAP, OVER_STAGES, AT_KEPT, AT_KEPT,
			REDUCE_ADD);
	if (f->warm_up)
		add_row(r, STEP_END, REDUCE_ADD_WORKERS, OVER_WORKERS, AT_KEPT, AT_KEPT,
			REDUCE_ADD);
	if (f->scheme == SCHEME_REPLICAS)
		add_row(r, late ? STEP_END : LAST_TURN, REDUCE_SUM, OVER_ACROSS, AT_KEPT,
			AT_GRADIENT, REDUCE_SET)
			->chained = !late;
	else if (f->sole_owner && f->rounds && !f->file)
		add_row(r, STEP_END, REDUCE_ROUND, OVER_SELF, AT_KEPT, AT_GRADIENT,
			REDUCE_SET);
	else
		add_row(r, STEP_END, REDUCE_ROUND, by_host ? OVER_ACROSS : OVER_ALL,
			AT_KEPT, AT_GRADIENT, REDUCE_SET)
			->pos = f->part_at;
}

void reduction_plan(struct reduction *r, const struct reduction_facts *f)
{
	*r = (struct reduction){.n_rows = 0};
	if (f->one_leaf) {
		add_row(r, EVERY_TURN, f->file ? REDUCE_FILE_WRITE : REDUCE_SUM,
			f->file ? OVER_SELF : OVER_ALL, AT_LEAF,
			f->file ? AT_FILE_GRADIENT : AT_GRADIENT, REDUCE_SET);
		return;
	}
	bool adds_more = f->tied || f->workers, ends = f->sole_owner && !adds_more;
	bool complete = f->turns == 1 && !adds_more && !f->file && !f->many_owners &&
			f->scheme != SCHEME_REPLICAS;
	enum reduction_place sum = plan_turn(r, f, complete);
	if (f->file) {
		struct reduction_row *add = add_row(r, EVERY_TURN, REDUCE_FILE_ADD,
			OVER_SELF, sum, AT_FILE_SUM, REDUCE_LATER);
		add->finishes = ends;
		add->pos = ends ? f->piece_at : 0;
		if (ends)
			return;
		add_row(r, STEP_END, REDUCE_FILE_READ, OVER_SELF, AT_FILE_SUM, AT_KEPT,
			REDUCE_SET);
	}
	if (!complete)
		plan_end(r, f);
	if (f->scheme == SCHEME_HOSTS && f->one_shard)
		add_row(r, STEP_END, REDUCE_GATHER, OVER_WITHIN, AT_GRADIENT, AT_GRADIENT,
			REDUCE_SET);
	if (f->file)
		add_row(r, STEP_END, REDUCE_FILE_WRITE, OVER_SELF, AT_GRADIENT,
			AT_FILE_GRADIENT, REDUCE_SET);
}

const struct reduction_row *reduction_find(
	const struct reduction *r, enum reduction_what what)
{
	for (int i = 0; i < r->n_rows; i++)
		if (r->row[i].what == what)
			return &r->row[i];
	return NULL;
}

bool reduction_uses(const struct reduction *r, enum reduction_place place)
{
	for (int i = 0; i < r->n_rows; i++)
		if (r->row[i].from == place || r->row[i].to == place)
			return true;
	return false;
}

/* ---- text ------------------------------------------------------------------------ */

static const char *const when_names[] = {"turn", "last", "end "};
static const char *const what_names[N_REDUCE] = {"sum", "round", "gather", "swap",
	"add workers", "add to file", "read file", "write file"};
static const char *const over_names[N_OVER] = {
	"", " all", " within", " across", " stages", ""};
static const char *const place_names[N_AT] = {
	"leaf", "leaves", "host", "kept", "gradient", "file sum", "file gradient"};
static const char *const add_names[] = {"", ", later", ", add"};

void reduction_print(const struct reduction *r, struct str *out)
{
	for (int i = 0; i < r->n_rows; i++) {
		const struct reduction_row *x = &r->row[i];
		str_printf(out, "%s  %s%s %s -> %s%s%s%s\n", when_names[x->when],
			what_names[x->what], over_names[x->over], place_names[x->from],
			place_names[x->to], add_names[x->add],
			x->chained ? ", chained" : "", x->finishes ? ", finishes" : "");
	}
}
