/* The plan of a bucket's reduction: rows that reduce.c executes. */
#include "parallel/reduction.h"

/* ---- the planner ----------------------------------------------------------------- */

static struct reduction_row *add_row(struct reduction *r, struct reduction_row row)
{
	BUG_ON(r->n_rows == ARRAY_LEN(r->row));
	r->row[r->n_rows++] = row;
	r->n_turn_rows += row.when != STEP_END;
	return &r->row[r->n_rows - 1];
}

static enum reduction_place own_leaves(const struct reduction_facts *f)
{
	return f->several ? AT_LEAVES : AT_LEAF;
}

/* Adds the leaves of a turn. Returns where their sum is. */
static enum reduction_place plan_turn(
	struct reduction *r, const struct reduction_facts *f, bool complete)
{
	enum reduction_place leaves = own_leaves(f);
	struct reduction_row sum = {.what = REDUCE_SUM,
		.over = f->scheme == SCHEME_REPLICAS ? OVER_WITHIN : OVER_ALL,
		.from = leaves,
		.to = complete ? AT_GRADIENT : AT_KEPT,
		.add = complete || f->file ? REDUCE_SET : REDUCE_LATER};
	if (f->scheme == SCHEME_HOSTS) {
		add_row(r, (struct reduction_row){.what = REDUCE_SUM,
				   .over = OVER_WITHIN,
				   .from = leaves,
				   .to = AT_HOST});
		sum.over = OVER_ACROSS;
		sum.from = AT_HOST;
		sum.chained = true;
		sum.at = complete ? f->part_at : 0;
	} else if (f->file && f->one_rank) {
		return leaves;
	} else if (complete && f->one_rank && f->several && !f->rounds) {
		sum.what = REDUCE_ROUND; /* in place */
		sum.over = OVER_SELF;
	}
	return add_row(r, sum)->to;
}

/* After the last turn, a sum is kept. */
static void plan_end(struct reduction *r, const struct reduction_facts *f)
{
	bool late = f->tied || f->warm_up || f->file;
	struct reduction_row last = {.when = STEP_END,
		.what = REDUCE_ROUND,
		.over = f->scheme == SCHEME_HOSTS ? OVER_ACROSS : OVER_ALL,
		.from = AT_KEPT,
		.to = AT_GRADIENT,
		.at = f->part_at};
	if (f->tied)
		add_row(r, (struct reduction_row){STEP_END, REDUCE_SWAP, OVER_STAGES,
				   AT_KEPT, AT_KEPT, REDUCE_ADD});
	if (f->warm_up)
		add_row(r, (struct reduction_row){STEP_END, REDUCE_ADD_WORKERS,
				   OVER_WORKERS, AT_KEPT, AT_KEPT, REDUCE_ADD});
	if (f->scheme == SCHEME_REPLICAS) {
		last.what = REDUCE_SUM;
		last.over = OVER_ACROSS;
		last.when = late ? STEP_END : LAST_TURN;
		last.chained = !late;
	} else if (f->sole && f->rounds && !f->file) {
		last.over = OVER_SELF;
	}
	add_row(r, last);
}

void reduction_plan(struct reduction *r, const struct reduction_facts *f)
{
	*r = (struct reduction){.n_rows = 0};
	if (f->one_leaf) {
		add_row(r, (struct reduction_row){
				   .what = f->file ? REDUCE_FILE_WRITE : REDUCE_SUM,
				   .over = f->file ? OVER_SELF : OVER_ALL,
				   .from = own_leaves(f),
				   .to = f->file ? AT_FILE_GRADIENT : AT_GRADIENT});
		return;
	}
	bool others = f->tied || f->workers;
	bool complete = f->turns == 1 && !others && !f->file && !f->many_owners &&
			f->scheme != SCHEME_REPLICAS;
	enum reduction_place sum = plan_turn(r, f, complete);
	if (f->file) {
		bool ends = f->sole && !others;
		add_row(r, (struct reduction_row){.what = REDUCE_FILE_ADD,
				   .from = sum,
				   .to = AT_FILE_SUM,
				   .add = REDUCE_LATER,
				   .finishes = ends,
				   .at = ends ? f->piece_at : 0});
		if (ends)
			return;
		add_row(r, (struct reduction_row){STEP_END, REDUCE_FILE_READ, OVER_SELF,
				   AT_FILE_SUM, AT_KEPT, REDUCE_SET});
	}
	if (!complete)
		plan_end(r, f);
	if (f->scheme == SCHEME_HOSTS && f->one_shard)
		add_row(r, (struct reduction_row){STEP_END, REDUCE_GATHER, OVER_WITHIN,
				   AT_GRADIENT, AT_GRADIENT, REDUCE_SET});
	if (f->file)
		add_row(r, (struct reduction_row){STEP_END, REDUCE_FILE_WRITE, OVER_SELF,
				   AT_GRADIENT, AT_FILE_GRADIENT, REDUCE_SET});
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
