/* Optimizers that number their parameters, as AdamW.state_dict() does: group after group, each in
 * the order in which its parameters were passed. param_names, if saved, assigns numbers to
 * parameters. Otherwise each group must be a subsequence of the model's parameters, and exactly one
 * assignment must fit the shapes of the moments. */
#include "dialect/dialect.h"
#include "dialect/order.h"

#include <ctype.h>

/* The numbers of an optimizer. */
struct numbering {
	struct torch_names *names;
	struct torch_file *f;
	const struct torch_parameter *list; /* [n] in the order of the model */
	int64_t n;
	int64_t *begin; /* [n_groups + 1] first number of each group */
	int64_t n_groups;
	int64_t n_numbers;
	const struct torch_item **states; /* [n_numbers] exp_avg; NULL: no state */
	const struct torch_item **order;  /* [n_numbers] parameter: the result */
	const struct torch_parameter **parameters; /* [n_numbers]; NULL: by name */
	bool is_ambiguous;			   /* several assignments fit */
};

/* Appends a group. The total is capped at one more than the model's parameters. */
static int add_group(
	struct numbering *w, const struct torch_item *params, double *ids, struct err *e)
{
	int64_t n = 0;
	if (torch_read_numbers(w->f, params, w->n + 1, ids, &n, e))
		return -1;
	for (int64_t i = 0; i < n; i++)
		if (!(ids[i] >= 0) || (int64_t)ids[i] != w->n_numbers + i)
			return err_set(e, EX_UNAVAILABLE,
				"%s: %s does not continue the numbers of the previous groups",
				w->f->path, params->name);
	w->begin = xrealloc(w->begin, (size_t)(w->n_groups + 2) * sizeof(*w->begin));
	w->begin[w->n_groups++] = w->n_numbers;
	w->n_numbers = min64(w->n_numbers + n, w->n + 1);
	w->begin[w->n_groups] = w->n_numbers;
	return 0;
}

static int read_groups(struct numbering *w, struct err *e)
{
	const struct torch_item *params;
	scoped_ptr double *ids = xcalloc((size_t)w->n + 2, sizeof(*ids));
	int rc = 0;
	while (!rc && w->n_numbers <= w->n &&
		(params = torch_names_find_numbered(
			 w->names, "param_groups", w->n_groups, "params")))
		rc = add_group(w, params, ids, e);
	return rc;
}

/* Makes one group of all states, for an optimizer without groups. */
static void set_one_group(struct numbering *w, int64_t n_states)
{
	w->begin = xrealloc(w->begin, 2 * sizeof(*w->begin));
	w->n_groups = 1;
	w->begin[0] = 0;
	w->begin[1] = w->n_numbers = n_states;
}

/* Sets w->order by param_names. Returns 1, 0 if there are none, or -1. */
static int order_by_names(struct numbering *w, struct err *e)
{
	scoped_strs names = {0};
	const struct torch_item *names_item;
	int rc = 0;
	for (int64_t g = 0; !rc && (names_item = torch_names_find_numbered(
					    w->names, "param_groups", g, "param_names"));
		g++)
		rc = torch_read_strings(w->f, names_item, &names, e);
	if (rc || !names.n || names.n != w->n_numbers)
		return rc;
	for (int64_t i = 0; i < names.n; i++) {
		scoped_ptr char *name = torch_names_unwrap(names.v[i]);
		w->order[i] = torch_names_find(w->names, name);
		if (!w->order[i])
			return err_set(e, EX_DATAERR,
				"%s: the optimizer's parameter \"%s\" is not in the model",
				w->f->path, names.v[i]);
	}
	return 1;
}

/* ---- order and shapes ---------------------------------------------------------------------- */

/* Returns true if a state has the shape of a parameter. */
static bool is_same_shape(const struct torch_item *a, const struct torch_parameter *p)
{
	const int64_t *dims = p->ndim ? p->dims : p->item->dims;
	return a->ndim == (p->ndim ? p->ndim : p->item->ndim) &&
	       !memcmp(a->dims, dims, sizeof(a->dims));
}

/* A search puts each parameter, in the model's order, into one of the groups or into no group. */
enum { MAX_STEPS = 1 << 20, MAX_SEARCHED = 1 << 15, MAX_KINDS = 256 };
enum fits { FITS_NONE, FITS_ONE, FITS_SEVERAL };

struct search {
	const struct numbering *w;
	bool frozen_out;	 /* exactly the frozen parameters are in no group */
	bool by_kind;		 /* equal names in several layers are in one group */
	int64_t *next;		 /* [n_groups + 1] parameters in each group so far */
	int64_t n_out;		 /* parameters in no group */
	int64_t *choice, *found; /* [n + 1] groups */
	int *kind;		 /* [n] */
	int64_t kind_group[MAX_KINDS], kind_first[MAX_KINDS]; /* -1: none yet */
	/* States of the search, as hashes of next[], in a table with open addressing; 0: free.
	 * Lowest bit: part of a solution. */
	uint64_t *seen;
	uint64_t *key; /* [n + 1] hash of the state before each parameter */
};

/* Returns true if parameter i may be in group g. */
static bool group_allows(const struct search *s, int64_t i, int64_t g)
{
	const struct numbering *w = s->w;
	const struct torch_parameter *p = &w->list[i];
	if (s->by_kind && s->kind_first[s->kind[i]] < i && s->kind_group[s->kind[i]] != g)
		return false;
	if (g == w->n_groups)
		return s->next[g] < s->n_out && (!s->frozen_out || p->frozen);
	int64_t number = w->begin[g] + s->next[g];
	return !(s->frozen_out && p->frozen) && number < w->begin[g + 1] &&
	       (!w->states[number] || is_same_shape(w->states[number], p));
}

static uint64_t hash_group_count(int64_t group, int64_t count)
{
	const int64_t both[2] = {group, count};
	return hash_bytes(both, sizeof(both), 1);
}

/* Returns the slot of a search state in the hash table; 0 in it: the state was not seen. */
static uint64_t *find_state_slot(const struct search *s, uint64_t key)
{
	enum { SLOTS = 2 * MAX_STEPS };
	uint64_t at = key >> 1;
	while (s->seen[at % SLOTS] && (s->seen[at % SLOTS] | 1) != (key | 1))
		at++;
	return &s->seen[at % SLOTS];
}

/* Sets s->kind, equal for names that differ only in numbers. Returns false for too many kinds. */
static bool set_kinds(struct search *s)
{
	uint64_t hashes[MAX_KINDS];
	int n_kinds = 0;
	for (int64_t i = 0; i < s->w->n; i++) {
		scoped_str text = {0};
		for (const char *c = s->w->list[i].item->name; *c; c++)
			if (!isdigit((unsigned char)*c))
				str_putc(&text, *c);
		uint64_t hash = hash_bytes(text.s ? text.s : "", text.len, 0);
		int k = 0;
		while (k < n_kinds && hashes[k] != hash)
			k++;
		if (k == MAX_KINDS)
			return false;
		if (k == n_kinds) {
			s->kind_first[k] = i;
			hashes[n_kinds++] = hash;
		}
		s->kind[i] = k;
	}
	return true;
}

/* Assigns parameter i to group g. Updates the search state: hash, count, group of its kind. */
static void assign_group(struct search *s, int64_t i, int64_t g)
{
	s->choice[i] = g;
	s->key[i + 1] = s->key[i] - hash_group_count(g, s->next[g]) +
			hash_group_count(g, s->next[g] + 1);
	s->next[g]++;
	s->kind_group[s->kind[i]] =
		s->kind_first[s->kind[i]] == i ? g : s->kind_group[s->kind[i]];
}

static void store_solution(struct search *s)
{
	memcpy(s->found, s->choice, (size_t)s->w->n * sizeof(*s->found));
	for (int64_t i = 0; i <= s->w->n; i++)
		*find_state_slot(s, s->key[i]) = s->key[i] | 1;
}

/* Counts the assignments that fit (none, one, several), and stores one. A state without a solution
 * is not searched again. A second path to a state of the solution is a second solution. (With
 * by_kind, next[] is not the whole state.) */
static enum fits run_search(struct search *s)
{
	const struct numbering *w = s->w;
	enum fits fits = FITS_NONE;
	int64_t i = 0;
	s->choice[0] = -1;
	s->key[0] = 2;
	for (int64_t step = 0; i >= 0 && step < MAX_STEPS; step++) {
		int64_t g = i < w->n ? s->choice[i] + 1 : w->n_groups + 1;
		for (; g <= w->n_groups && !group_allows(s, i, g); g++)
			step++;
		if (i == w->n) {
			if (fits == FITS_ONE)
				return FITS_SEVERAL;
			store_solution(s);
			fits = FITS_ONE;
		}
		if (g > w->n_groups) {
			uint64_t *seen =
				s->by_kind ? NULL : find_state_slot(s, s->key[i]);
			if (seen && !*seen)
				*seen = s->key[i] & ~1ull;
			if (--i >= 0)
				s->next[s->choice[i]]--;
			continue;
		}
		assign_group(s, i, g);
		s->choice[++i] = -1;
		uint64_t seen = s->by_kind ? 0 : *find_state_slot(s, s->key[i]);
		if (seen & 1 && fits == FITS_ONE)
			return FITS_SEVERAL;
		if (seen && !(seen & 1))
			s->next[s->choice[--i]]--;
	}
	return i < 0 ? fits : FITS_SEVERAL;
}

static void set_parameter(struct numbering *w, int64_t number, int64_t i)
{
	w->parameters[number] = &w->list[i];
	w->order[number] = w->list[i].item;
}

/* Sets w->order if exactly one assignment of parameters to groups fits. */
static enum fits assign_all(struct numbering *w, bool frozen_out, bool by_kind)
{
	struct search s = {.w = w,
		.frozen_out = frozen_out,
		.by_kind = by_kind,
		.n_out = w->n - w->n_numbers};
	size_t n = (size_t)w->n + 1, n_groups = (size_t)w->n_groups + 1;
	enum fits fits = FITS_SEVERAL;
	s.next = xcalloc(n_groups, sizeof(*s.next));
	s.choice = xcalloc(2 * n, sizeof(*s.choice));
	s.found = s.choice + n;
	s.kind = xcalloc(n, sizeof(*s.kind));
	s.key = xcalloc(n, sizeof(*s.key));
	s.seen = xcalloc(2 * (size_t)MAX_STEPS, sizeof(*s.seen));
	if (w->n <= MAX_SEARCHED && (set_kinds(&s) || !by_kind))
		fits = run_search(&s);
	memset(s.next, 0, n_groups * sizeof(*s.next));
	for (int64_t i = 0; fits == FITS_ONE && i < w->n; i++)
		if (s.found[i] < w->n_groups)
			set_parameter(w, w->begin[s.found[i]] + s.next[s.found[i]]++, i);
	free(s.next);
	free(s.choice);
	free(s.kind);
	free(s.key);
	free(s.seen);
	return fits;
}

/* Sets the error: why the optimizer's numbers do not determine its parameters, and what to do. */
static int report_ambiguous(const struct numbering *w, enum fits fits, struct err *e)
{
	bool is_partial = w->n_numbers < w->n;
	scoped_str groups = {0};
	if (w->n_groups > 1)
		str_printf(&groups, " in %lld groups", (long long)w->n_groups);
	return err_set(e, EX_UNAVAILABLE,
		"%s: the optimizer numbers its parameters (%lld%s) and does not name them, "
		"and the model has %lld tensors: %s; %ssave the names, too, by "
		"AdamW(model.named_parameters()) or by "
		"get_state_dict() of torch.distributed.checkpoint",
		w->f->path, (long long)w->n_numbers, groups.s ? groups.s : "",
		(long long)w->n,
		fits == FITS_SEVERAL ? "the shapes allow several assignments"
				     : "the shapes do not match in the model's order",
		is_partial ? "name the untrained parameters with pt-check --freeze, or "
			   : "");
}

/* Sets w->order by the model's order and the shapes. */
static int order_by_shapes(struct numbering *w, struct err *e)
{
	int64_t n_frozen = 0;
	for (int64_t i = 0; i < w->n; i++)
		n_frozen += w->list[i].frozen;
	if (w->n_groups == 1 && w->n_numbers == w->n) {
		for (int64_t i = 0; i < w->n; i++)
			set_parameter(w, i, i);
		return 0;
	}
	bool frozen_out = w->n_numbers < w->n && n_frozen == w->n - w->n_numbers;
	if (w->n_numbers < w->n && n_frozen && !frozen_out)
		return err_set(e, EX_UNAVAILABLE,
			"%s: the optimizer has %lld numbered parameters, the model %lld; "
			"--freeze names %lld",
			w->f->path, (long long)w->n_numbers, (long long)w->n,
			(long long)n_frozen);
	enum fits fits = assign_all(w, frozen_out, false);
	if (fits == FITS_SEVERAL)
		fits = assign_all(w, frozen_out, true) == FITS_ONE ? FITS_ONE
								   : FITS_SEVERAL;
	w->is_ambiguous = fits == FITS_SEVERAL;
	return fits == FITS_ONE ? 0 : report_ambiguous(w, fits, e);
}

/* Fails if the state of a numbered parameter differs in shape from the parameter. */
static int check_shapes(const struct numbering *w, struct err *e)
{
	for (int64_t i = 0; i < w->n_numbers; i++) {
		const struct torch_item *s = w->states[i];
		const struct torch_parameter named = {.item = w->order[i]},
					     *p = w->parameters[i] ? w->parameters[i]
								   : &named;
		if (s && (s->kind != TORCH_TENSOR || !is_same_shape(s, p)))
			return err_set(e, EX_DATAERR,
				"%s: parameter %lld of the optimizer differs in shape from %s",
				w->f->path, (long long)i, w->order[i]->name);
	}
	return 0;
}

/* Sets w->order by names or by shapes, and checks the shapes. */
static int set_order(struct numbering *w, int64_t n_states, struct err *e)
{
	if (read_groups(w, e))
		return -1;
	if (!w->n_numbers)
		set_one_group(w, n_states);
	if (w->n_numbers > w->n)
		return err_set(e, EX_UNAVAILABLE,
			"%s: the optimizer has more numbered parameters than the model (%lld)",
			w->f->path, (long long)w->n);
	w->states = xcalloc((size_t)w->n + 1, sizeof(*w->states));
	w->order = xcalloc((size_t)w->n + 1, sizeof(*w->order));
	w->parameters = xcalloc((size_t)w->n + 1, sizeof(*w->parameters));
	for (int64_t i = 0; i < w->n_numbers; i++)
		w->states[i] = torch_names_find_numbered(w->names, "state", i, "exp_avg");
	int rc = order_by_names(w, e);
	if (!rc)
		rc = order_by_shapes(w, e);
	return rc < 0 ? -1 : check_shapes(w, e);
}

int torch_names_set_order(struct torch_names *x, struct torch_file *f,
	const struct torch_parameter *list, int64_t n, bool *is_ambiguous, struct err *e)
{
	struct numbering w = {.names = x, .f = f, .list = list, .n = n};
	int64_t n_states = 0;
	*is_ambiguous = false;
	for (int64_t i = 0; i < n; i++)
		n_states += torch_names_find_numbered(x, "state", i, "exp_avg") != NULL;
	if (!n_states)
		return 0;
	int rc = set_order(&w, n_states, e);
	free(w.begin);
	free(w.states);
	free(w.parameters);
	*is_ambiguous = w.is_ambiguous;
	if (rc)
		free(w.order);
	else {
		x->order = w.order;
		x->n_order = w.n_numbers;
	}
	return rc;
}
