/* The trial, after an audit has found different signatures: several ranks compute the audited
 * micro-batches again, and all ranks draw the same conclusion from all signatures.
 *
 * A team is the ranks that compute a micro-batch together: a data rank's ranks along tp, cp and pp,
 * and all data ranks that exchange rows of experts. */
#include "referee/audit.h"

#include "referee/check_replicas.h"
#include "engine/step.h"

enum trial_pass {
	PASS_OWN,
	PASS_COPY,
	PASS_OWN_AGAIN,
	PASS_COPY_AGAIN,
	PASS_OTHERS,
	MAX_PASSES =
		PASS_OTHERS + AUDIT_OTHERS + 2 /* two with new copies of parameters */
};

struct trial {
	struct trainer *t;
	struct audit *a;
	int n_teams, unit;		 /* data ranks per team */
	int n_passes, shift[MAX_PASSES]; /* data rank d computes a turn of d + shift */
	int fresh;	     /* first pass with new copies of parameters; 0: none */
	uint64_t *word;	     /* [pass][rank][n_words] */
	struct first *first; /* [rank] */
	int n_differing;     /* pairs of teams */
};

/* The first record of a rank's own micro-batch that differs from its referee's. */
struct first {
	int64_t index, layer; /* index -1: none differs */
	bool gradient;
	char name[48];
};

/* ---- signatures of all ranks ------------------------------------------------------- */

static const uint64_t *words_of(const struct trial *x, int pass, int rank)
{
	return x->word + ((int64_t)pass * x->t->world->size + rank) * x->a->n_words;
}

/* Gathers the words of a pass. Collective. */
static void gather_words(struct trial *x, int shift, const struct audit_signature *from)
{
	struct comm *world = x->t->world;
	int64_t n = world->size * x->a->n_words;
	int pass = x->n_passes++;
	BUG_ON(pass == MAX_PASSES);
	x->shift[pass] = shift;
	x->word = xrealloc(x->word, (size_t)x->n_passes * (size_t)n * sizeof(*x->word));
	comm_allgather(world, from->word, x->word + pass * n,
		x->a->n_words * (int64_t)sizeof(*x->word));
}

/* Computes the audited turn of data rank d + shift, and gathers the words. Collective. */
static void run_pass(struct trial *x, int shift)
{
	struct audit_signature again = {.word = NULL};
	audit_compute(x->t, shift, x->a->plan.turn, &again);
	audit_signature_fetch(x->t, &again);
	gather_words(x, shift, &again);
	audit_signature_release(&again);
}

static bool is_of_experts(const struct trial *x, int64_t word)
{
	const struct model *m = &x->t->model;
	return word < m->n_tensors && m->tensors[word].experts;
}

/* Returns the number of a team's result in a pass: equal results have equal numbers. `experts`: of
 * the leaves of experts that a rank compares with its own, else of everything else. */
static uint64_t opinion(const struct trial *x, int pass, int team, bool experts)
{
	const struct trainer *t = x->t;
	bool own_experts = audit_compares_own_experts(t);
	uint64_t hash = 0;
	for (int r = 0; r < t->world->size; r++) {
		const uint64_t *word = words_of(x, pass, r);
		if (layout_data_rank(t->mesh.degree, r) / x->unit != team)
			continue;
		for (int64_t i = 0; i < x->a->n_words; i++)
			if (experts == (own_experts && is_of_experts(x, i)))
				hash = hash_bytes(&word[i], sizeof(*word), hash);
	}
	return hash;
}

/* Returns the team that computes another team's micro-batches in a pass. */
static int referee_of(const struct trial *x, int team, int pass)
{
	int n = x->n_teams;
	return ((team - x->shift[pass] / x->unit) % n + n) % n;
}

/* Returns the opinions on a team's micro-batches. `again`: the pass in which it computed them
 * again; its referee did so in the pass after it. */
static struct audit_opinions opinions_on(const struct trial *x, int team, int again)
{
	int referee = referee_of(x, team, PASS_COPY);
	struct audit_opinions o = {.a = opinion(x, PASS_OWN, team, false),
		.b = opinion(x, PASS_COPY, referee, false),
		.a_again = opinion(x, again, team, false),
		.b_again = opinion(x, again + 1, referee, false),
		.alone = x->n_teams == 1};
	int end = x->fresh ? x->fresh : x->n_passes;
	for (int pass = PASS_OTHERS; pass < end; pass++)
		o.other[o.n_others++] =
			opinion(x, pass, referee_of(x, team, pass), false);
	return o;
}

/* Returns the opinions on the leaves of experts that a data rank compares with its own. */
static struct audit_opinions opinions_on_experts(const struct trial *x, int data_rank)
{
	return (struct audit_opinions){.a = opinion(x, PASS_OWN, data_rank, true),
		.b = opinion(x, PASS_COPY, data_rank, true),
		.a_again = opinion(x, PASS_OWN_AGAIN, data_rank, true),
		.b_again = opinion(x, PASS_COPY_AGAIN, data_rank, true),
		.alone = true};
}

/* Computes the turns again: by their own ranks, by the referees, and by some other teams. */
static void run_passes(struct trial *x)
{
	const struct audit *a = x->a;
	int shift = a->plan.shift, n = a->c.data_ranks;
	gather_words(x, 0, &a->own);
	gather_words(x, shift, &a->copy);
	run_pass(x, 0);
	run_pass(x, shift);
	for (int s = x->unit; s < n && x->n_passes < PASS_OTHERS + AUDIT_OTHERS;
		s += x->unit)
		if (s != shift)
			run_pass(x, s);
}

/* ---- the first result that differs -------------------------------------------------- */

/* Exchanges arrays of integers: sends n to a rank, and receives n_received from another. */
static void exchange(struct comm *c, const uint64_t *send, int64_t n, int to,
	uint64_t *receive, int64_t n_received, int from)
{
	struct comm_requests q = {.c = c};
	if (to == c->rank) {
		memcpy(receive, send, (size_t)n * sizeof(*send));
		return;
	}
	comm_send(&q, send, n * (int64_t)sizeof(*send), to, TAG_AUDIT);
	comm_recv(&q, receive, n_received * (int64_t)sizeof(*receive), from, TAG_AUDIT);
	comm_start(&q);
	comm_wait(&q);
	comm_requests_release(&q);
}

/* Sends the hashes of the copy to the rank that computed the original. Returns the hashes of the
 * copy of this rank's micro-batch, for free(). Collective. */
static uint64_t *exchange_records(struct trial *x, int64_t *n_received)
{
	struct comm *world = x->t->world;
	const struct audit_signature *copy = &x->a->copy;
	int shift = x->a->plan.shift;
	int to = audit_partner(x->t, world->rank, shift),
	    from = audit_partner(x->t, world->rank, -shift);
	uint64_t n = (uint64_t)copy->n_records, n_other = 0;
	exchange(world, &n, 1, to, &n_other, 1, from);
	scoped_ptr uint64_t *own = xcalloc((size_t)n + 1, sizeof(*own));
	uint64_t *other = xcalloc((size_t)n_other + 1, sizeof(*other));
	for (uint64_t i = 0; i < n; i++)
		own[i] = copy->record[i].hash;
	exchange(world, own, (int64_t)n, to, other, (int64_t)n_other, from);
	*n_received = (int64_t)n_other;
	return other;
}

/* Sets x->first of all ranks. Collective. */
static void find_first_records(struct trial *x)
{
	struct comm *world = x->t->world;
	const struct audit_signature *own = &x->a->own;
	struct first first;
	int64_t n, i = 0;
	scoped_ptr uint64_t *copy = exchange_records(x, &n);
	memset(&first, 0, sizeof(first));
	first.index = -1;
	n = min64(n, own->n_records);
	while (i < n && own->record[i].hash == copy[i])
		i++;
	if (i < n) {
		const struct audit_record *r = &own->record[i];
		first.index = i;
		first.layer = r->layer;
		first.gradient = r->gradient;
		memcpy(first.name, r->name, sizeof(first.name));
	}
	x->first = xcalloc((size_t)world->size, sizeof(*x->first));
	comm_allgather(world, &first, x->first, sizeof(first));
}

/* Returns true if a was computed before b: forwards go up, backwards go down. */
static bool is_before(const struct first *a, const struct first *b, int64_t layers)
{
	if (a->gradient != b->gradient)
		return b->gradient;
	int64_t below_a = a->layer < 0 && a->gradient ? layers : a->layer;
	int64_t below_b = b->layer < 0 && b->gradient ? layers : b->layer;
	if (below_a != below_b)
		return a->gradient ? below_a > below_b : below_a < below_b;
	return a->index < b->index;
}

/* Returns the last word that differs between a rank and its referee, in the order of tensors, the
 * loss and the records; or -1. A backward writes the last tensor first. */
static int64_t last_word(const struct trial *x, int rank, int64_t n_words)
{
	int referee = audit_partner(x->t, rank, -x->a->plan.shift);
	const uint64_t *a = words_of(x, PASS_OWN, rank);
	const uint64_t *b = words_of(x, PASS_COPY, referee);
	bool own_experts = audit_compares_own_experts(x->t);
	int64_t i = n_words - 1;
	while (i >= 0 && (a[i] == b[i] || (own_experts && is_of_experts(x, i))))
		i--;
	return i;
}

/* A rank of a team, and the result that its referee has not. */
struct place {
	int rank;		   /* that the micro-batch belongs to */
	const struct first *first; /* NULL: a leaf, or the loss */
	int64_t tensor;		   /* -1: the loss */
};

/* Finds where the micro-batch of a team first differs from its copy. */
static struct place find_place(const struct trial *x, int team)
{
	const struct trainer *t = x->t;
	struct place p = {.rank = -1, .tensor = -1};
	for (int r = 0; r < t->world->size; r++) {
		const struct first *f = &x->first[r];
		int64_t tensor = last_word(x, r, t->model.n_tensors);
		if (layout_data_rank(t->mesh.degree, r) / x->unit != team ||
			last_word(x, r, x->a->n_words) < 0)
			continue;
		if (f->index >= 0 ? !p.first || is_before(f, p.first, t->model.c.layers)
				  : !p.first && (p.rank < 0 || tensor > p.tensor))
			p = (struct place){r, f->index < 0 ? NULL : f, tensor};
	}
	return p;
}

/* Appends the name of the first result that differs. */
static void name_place(const struct trial *x, const struct place *p, struct str *out)
{
	const struct model *m = &x->t->model;
	if (p->first && p->first->layer >= 0 && p->first->layer < m->c.layers)
		str_printf(out, "layers.%lld.", (long long)p->first->layer);
	str_puts(out, p->first	       ? p->first->name
		      : p->tensor >= 0 ? m->tensors[p->tensor].name
				       : "loss");
}

static const char *direction_of(const struct place *p)
{
	return p->first && !p->first->gradient ? "forward"
	       : p->first		       ? "backward"
	       : p->tensor >= 0		       ? "weight gradient"
					       : "forward";
}

/* ---- suspects ------------------------------------------------------------------------ */

/* Sets the host and the device of a suspect. Collective. */
static void describe_suspect(const struct trial *x, struct audit_suspect *s)
{
	struct strike at;
	audit_place(x->t, &at);
	comm_bcast(x->t->world, &at, sizeof(at), s->rank);
	memcpy(s->host, at.host, sizeof(s->host));
	memcpy(s->device, at.device, sizeof(s->device));
}

/* Adds a suspect, once, with its worst verdict. Returns NULL if there is no space. Collective. */
static struct audit_suspect *add_suspect(
	struct trial *x, int rank, enum audit_verdict verdict, const char *tensor)
{
	struct audit *a = x->a;
	for (int i = 0; i < a->n_suspects; i++)
		if (a->suspect[i].rank == rank) {
			if (verdict > a->suspect[i].verdict)
				a->suspect[i].verdict = verdict;
			return NULL;
		}
	if (a->n_suspects == AUDIT_MAX_SUSPECTS)
		return NULL;
	struct audit_suspect *s = &a->suspect[a->n_suspects++];
	*s = (struct audit_suspect){.rank = rank, .verdict = verdict};
	snprintf(s->tensor, sizeof(s->tensor), "%s", tensor);
	describe_suspect(x, s);
	return s;
}

/* Appends "rank 3 (host n05, processor)". */
static void name_suspect(const struct audit_suspect *s, struct str *out)
{
	str_printf(out, "rank %d (host %s, %s)", s->rank, s->host, s->device);
}

/* Appends the samples of the micro-batch of a rank's audited turn. */
static void name_samples(const struct trial *x, int rank, struct str *out)
{
	const struct trainer *t = x->t;
	int64_t b = t->o.micro_batch;
	int64_t first = t->samples + b * microbatches_index(&t->layout.microbatches,
						 layout_data_rank(t->mesh.degree, rank),
						 x->a->plan.turn);
	str_printf(
		out, "samples %lld-%lld", (long long)first, (long long)(first + b - 1));
}

/* Returns the number of faults of a suspect's device within a day. */
static int count_strikes(const struct audit *a, const struct audit_suspect *s)
{
	return strikes_count(&a->strikes, a->trial_time, s->host, s->device);
}

static bool has_too_many_strikes(const struct trial *x, const struct audit_suspect *s)
{
	return count_strikes(x->a, s) >= x->t->o.referee_strikes;
}

/* Appends the verdict on a rank. `fresh`: it was right with new copies of the parameters. */
static void append_verdict(struct trial *x, struct audit_suspect *s, bool fresh)
{
	struct str *found = &x->a->found;
	struct strike new = {.time = x->a->trial_time};
	if (s->verdict == AUDIT_PERSISTENT)
		str_puts(found, "; computed again it was wrong: persistent");
	if (s->verdict != AUDIT_SPORADIC)
		return;
	memcpy(new.host, s->host, sizeof(new.host));
	memcpy(new.device, s->device, sizeof(new.device));
	strikes_add(&x->a->strikes, &new);
	str_printf(found,
		"; computed again%s it was right: sporadic, fault %d of this device "
		"within a day",
		fresh ? " with new copies of the parameters" : "",
		count_strikes(x->a, s));
	if (has_too_many_strikes(x, s))
		str_printf(found, " (--referee-strikes %lld)",
			(long long)x->t->o.referee_strikes);
}

/* Adds the ranks that a finding names to the suspects, and appends what they computed wrongly.
 * Collective. */
static void accuse(
	struct trial *x, const struct place *p, const struct audit_finding *f, bool fresh)
{
	struct str *found = &x->a->found;
	scoped_str tensor = {0};
	const int rank[] = {p->rank, audit_partner(x->t, p->rank, -x->a->plan.shift)};
	const bool suspected[] = {f->a, f->b};
	struct audit_suspect *s = NULL;
	name_place(x, p, &tensor);
	for (int i = 0, n = 0; i < 2; i++) {
		struct audit_suspect *new =
			suspected[i] ? add_suspect(x, rank[i], f->verdict, tensor.s)
				     : NULL;
		if (!new)
			continue;
		str_puts(found, n++ ? " or " : found->len ? "; " : "");
		name_suspect(new, found);
		s = new;
	}
	if (!s)
		return;
	str_printf(found, " computed %s wrongly (%s, ", tensor.s, direction_of(p));
	name_samples(x, p->rank, found);
	str_puts(found, ")");
	if (f->verdict == AUDIT_UNDECIDED)
		str_puts(found, "; undecided: no other rank agrees with either");
	append_verdict(x, s, fresh);
}

/* Judges the pair of a team and its referee. Collective. */
static void judge_team(struct trial *x, int team)
{
	struct audit_opinions o = opinions_on(x, team, PASS_OWN_AGAIN);
	struct audit_finding f = audit_judge(&o);
	bool fresh = false;
	if (f.verdict == AUDIT_EQUAL)
		return;
	if (f.verdict != AUDIT_SPORADIC && x->fresh) {
		o = opinions_on(x, team, x->fresh);
		struct audit_finding g = audit_judge(&o);
		fresh = g.verdict == AUDIT_SPORADIC;
		f = fresh ? g : f;
	}
	struct place p = find_place(x, team);
	if (p.rank < 0)
		return;
	accuse(x, &p, &f, fresh);
}

/* Judges the leaves of experts that a data rank compares with its own. Collective. */
static void judge_own_experts(struct trial *x, int data_rank)
{
	const struct trainer *t = x->t;
	struct audit_opinions o = opinions_on_experts(x, data_rank);
	struct audit_finding f = audit_judge(&o);
	struct place p = {.rank = -1, .tensor = -1};
	if (f.verdict == AUDIT_EQUAL)
		return;
	for (int r = 0; r < t->world->size; r++)
		for (int64_t i = 0; i < t->model.n_tensors; i++)
			if (layout_data_rank(t->mesh.degree, r) == data_rank &&
				is_of_experts(x, i) &&
				words_of(x, PASS_OWN, r)[i] !=
					words_of(x, PASS_COPY, r)[i])
				p = (struct place){.rank = r, .tensor = i};
	accuse(x, &p, &f, false);
	x->n_differing++;
}

/* Returns true if a verdict on any team is worse than sporadic. */
static bool any_is_persistent(const struct trial *x)
{
	for (int i = 0; i < x->n_teams; i++) {
		struct audit_opinions o = opinions_on(x, i, PASS_OWN_AGAIN);
		if (audit_judge(&o).verdict > AUDIT_SPORADIC)
			return true;
	}
	return false;
}

/* If nobody knows which of two ranks is right, tests the kernels of both devices. If one test fails,
 * only its rank remains a suspect. Collective. */
static void test_suspects(struct trial *x)
{
	struct audit *a = x->a;
	struct audit_suspect *s = a->suspect;
	struct err own = {0}, e[2];
	if (!a->test_device || a->n_suspects != 2 || s[0].verdict != AUDIT_UNDECIDED ||
		s[1].verdict != AUDIT_UNDECIDED)
		return;
	if (x->t->world->rank == s[0].rank || x->t->world->rank == s[1].rank)
		a->test_device(x->t, &own);
	for (int i = 0; i < 2; i++) {
		e[i] = own;
		comm_bcast(x->t->world, &e[i], sizeof(e[i]), s[i].rank);
	}
	if (!e[0].code == !e[1].code) {
		str_printf(&a->found, "; the self-test %s on both",
			e[0].code ? "fails" : "passes");
		return;
	}
	int failed = e[0].code ? 0 : 1;
	s[0] = s[failed];
	s[0].verdict = AUDIT_PERSISTENT;
	a->n_suspects = 1;
	str_printf(&a->found, "; only the self-test of rank %d fails: %s: persistent",
		s[0].rank, e[failed].msg);
}

/* ---- the outcome ----------------------------------------------------------------------- */

/* Returns true if more devices than defects explain have computed wrongly within a day. */
static bool many_have_strikes(const struct audit *a)
{
	enum { MAX_DEVICES = 3 };
	return strikes_count_devices(&a->strikes, a->trial_time) > MAX_DEVICES;
}

/* Sets the outcome from the suspects, and appends it to the text. */
static void conclude(struct trial *x)
{
	struct audit *a = x->a;
	bool is_software = many_have_strikes(a);
	a->outcome = CHECKED_SPORADIC;
	a->always_until = x->t->step + 1 + AUDIT_WATCHED_STEPS;
	if (!a->n_suspects)
		str_puts(&a->found,
			"an audit failed, but computed again all results agree");
	for (int i = 0; i < a->n_suspects; i++) {
		struct audit_suspect *s = &a->suspect[i];
		if (s->verdict == AUDIT_SPORADIC && !is_software &&
			has_too_many_strikes(x, s))
			s->verdict = AUDIT_PERSISTENT;
		if (s->verdict > AUDIT_SPORADIC)
			a->outcome = CHECKED_PERSISTENT;
	}
	if (is_software) {
		str_puts(&a->found,
			"; more than 3 devices have had faults within a day, so a bug in "
			"software is more likely than defective hardware");
		a->outcome = CHECKED_SOFTWARE;
	}
}

/* Sets the outcome if ranks have different software. */
static void blame_software(struct trial *x)
{
	struct place p = {.rank = -1};
	for (int team = 0; team < x->n_teams && p.rank < 0; team++)
		p = find_place(x, team);
	x->a->outcome = CHECKED_SOFTWARE;
	str_printf(&x->a->found,
		"the results of %d of %d data ranks differ from the results of their "
		"referees: the ranks have different processors or libraries, or there is a "
		"bug; the first result that differs is ",
		x->n_differing, x->n_teams);
	name_place(x, &p, &x->a->found);
}

/* Appends the ranks with other parameters or optimizer state than the first replica. Collective. */
static void compare_weights(struct trial *x)
{
	scoped_str who = {0};
	if (x->t->d.discrete) /* replicas are compared on CPUs only */
		return;
	if (!replicas_agree(x->t, &who))
		str_printf(&x->a->found,
			"; parameters or optimizer state differ from the first replica on rank%s",
			who.s ? who.s : "s");
}

void audit_trial(struct trainer *t)
{
	struct audit *a = t->audit;
	struct trial x = {.t = t, .a = a, .unit = a->c.unit};
	if (x.unit >= a->c.data_ranks)
		x.unit = 1;
	x.n_teams = a->c.data_ranks / x.unit;
	str_free(&a->found);
	a->n_suspects = 0;
	a->trial_step = t->step + 1;
	a->trial_time = clock_wall();
	comm_bcast(t->world, &a->trial_time, sizeof(a->trial_time), 0);
	run_passes(&x);
	find_first_records(&x);
	if (any_is_persistent(&x)) {
		x.fresh = x.n_passes;
		store_updated(t->store, false);
		run_pass(&x, 0);
		run_pass(&x, a->plan.shift);
	}
	for (int i = 0; i < x.n_teams; i++) {
		struct audit_opinions o = opinions_on(&x, i, PASS_OWN_AGAIN);
		x.n_differing += o.a != o.b;
	}
	if (a->was_first && audit_is_software(x.n_differing, x.n_teams)) {
		blame_software(&x);
	} else {
		for (int i = 0; i < x.n_teams; i++)
			judge_team(&x, i);
		for (int i = 0; i < x.n_teams && !a->n_suspects; i++)
			judge_own_experts(&x, i);
		test_suspects(&x);
		conclude(&x);
		if (a->outcome == CHECKED_PERSISTENT)
			compare_weights(&x);
	}
	a->n_mismatches += max64(1, x.n_differing);
	free(x.word);
	free(x.first);
}

/* ---- the second attempt of a step ------------------------------------------------------ */

/* Adds a suspect of the first attempt. If the second attempt has named it, too, it is persistent,
 * unless software is the cause. */
static void keep_suspect(struct audit *a, const struct audit_suspect *first)
{
	for (int i = 0; i < a->n_suspects; i++) {
		struct audit_suspect *s = &a->suspect[i];
		if (s->rank != first->rank)
			continue;
		if (a->outcome == CHECKED_SOFTWARE)
			return;
		str_printf(&a->found, "; rank %d was wrong in both attempts: persistent",
			s->rank);
		s->verdict = AUDIT_PERSISTENT;
		a->outcome = CHECKED_PERSISTENT;
		return;
	}
	if (a->n_suspects < AUDIT_MAX_SUSPECTS)
		a->suspect[a->n_suspects++] = *first;
}

void audit_trial_again(struct trainer *t)
{
	struct audit *a = t->audit;
	struct audit_suspect first[AUDIT_MAX_SUSPECTS];
	bool is_second = a->trial_step == t->step + 1;
	int n = is_second ? a->n_suspects : 0;
	if (is_second &&
		a->outcome > CHECKED_SPORADIC) /* the first attempt says enough */
		return;
	memcpy(first, a->suspect, sizeof(first));
	struct str text = a->found;
	a->found = (struct str){0};
	audit_trial(t);
	for (int i = 0; i < n; i++)
		keep_suspect(a, &first[i]);
	if (is_second) {
		str_printf(&text, "; in the second attempt, %s", a->found.s);
		str_free(&a->found);
		a->found = text;
	} else {
		str_free(&text);
	}
}
