/* The change of the routers' biases, which balance the experts without a loss (Wang et al. 2024):
 * b += u sign(mean n - n_e), where n_e counts the choices of expert e in the batch. torchtitan
 * subtracts the mean of these changes. */
#include "check/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How a run, or a bug, may count the choices. All zeros: all positions of the batch count once. */
struct counting {
	bool centers;	   /* subtracts the mean change of a layer */
	bool only_targets; /* positions without a target do not count */
	bool only_first;   /* only the expert with a token's highest score counts */
	bool doubles;	   /* choices count twice, but not in the mean */
	int64_t parts, part,
		stride;	 /* parts > 0: only sequences of one part count: adjacent ones,
				      * or every stride-th */
	int64_t updates; /* > 1: an update after each of so many parts of the batch */
	bool rounds;	 /* the result is rounded to bf16 */
};

/* The biases of all layers. */
struct biases {
	struct step_check *c;
	int n;			 /* number of tensors */
	int *tensor;		 /* [n] */
	float **before, **after; /* [n][experts] */
	double *pattern; /* [n][experts]: expected changes at rate 1; NAN: rounding may turn it */
};

/* Counts the choices of experts in the sequences that belong to part i of n_updates. */
static void count_layer(const struct biases *b, const struct counting *how, int64_t layer,
	int64_t update, double *counts)
{
	const struct step_check *c = b->c;
	const struct choices *x = &c->choices.all;
	const int64_t k = c->weights.m.c.experts_per_token, n = c->batch.n,
		      length = c->batch.length;
	for (int64_t at = 0; at < n * length; at++) {
		const int64_t sequence = at / length;
		const int64_t part =
			how->stride ? sequence % how->parts : sequence * how->parts / n;
		if ((how->only_targets && c->batch.targets[at] < 0) ||
			(how->parts && part != how->part) ||
			(how->updates > 1 && sequence * how->updates / n != update))
			continue;
		for (int64_t j = 0; j < k; j++) {
			const int id = x->ids[(layer * x->positions + at) * k + j];
			const bool is_first = x->first[layer * x->positions + at] == id;
			counts[id] += !how->only_first || is_first;
		}
	}
}

/* Adds one update's changes at rate 1 to pattern[experts]. */
static void add_signs(const struct biases *b, const struct counting *how, double *counts,
	double *pattern)
{
	const int64_t n = b->c->weights.m.c.experts;
	const double near = (double)(n * b->c->choices.n_near);
	double sum = 0;
	for (int64_t e = 0; e < n; e++)
		sum += counts[e];
	for (int64_t e = 0; e < n; e++) {
		const double gap = sum - (double)n * counts[e] * (how->doubles ? 2 : 1);
		pattern[e] += fabs(gap) < near + 0.5 && near > 0 ? (double)NAN
								 : (gap > 0) - (gap < 0);
	}
}

/* Sets b->pattern. */
static void set_pattern(struct biases *b, const struct counting *how)
{
	const struct model *m = &b->c->weights.m;
	const int64_t n = m->c.experts;
	double *counts = xcalloc((size_t)n, sizeof(*counts));
	for (int i = 0; i < b->n; i++) {
		double *pattern = b->pattern + i * n, mean = 0;
		const int k = b->c->tensors[b->tensor[i]].in_model;
		memset(pattern, 0, (size_t)n * sizeof(*pattern));
		for (int64_t update = 0; update < max64(1, how->updates); update++) {
			memset(counts, 0, (size_t)n * sizeof(*counts));
			count_layer(b, how, m->tensors[k].unit - 1, update, counts);
			add_signs(b, how, counts, pattern);
		}
		for (int64_t e = 0; e < n; e++)
			mean += pattern[e] / (double)n;
		for (int64_t e = 0; e < n && how->centers; e++)
			pattern[e] -= mean;
	}
	free(counts);
}

/* Returns the rate u that brings u times the pattern nearest to the changes; 0: none. Sets *n_known
 * to the number of changes that the pattern determines. */
static double fit_rate(const struct biases *b, int64_t *n_known)
{
	double pp = 0, pd = 0;
	*n_known = 0;
	for (int i = 0; i < b->n; i++)
		for (int64_t e = 0; e < b->c->weights.m.c.experts; e++) {
			const double p = b->pattern[i * b->c->weights.m.c.experts + e];
			if (isnan(p))
				continue;
			pp += p * p;
			pd += p * ((double)b->after[i][e] - (double)b->before[i][e]);
			++*n_known;
		}
	return pp > 0 ? pd / pp : 0;
}

static double round_to_bf16(double x)
{
	int exponent;
	const double fraction = frexp(x, &exponent);
	return ldexp(rint(ldexp(fraction, 8)), exponent - 8);
}

/* Returns true if the changes are the pattern times a rate, except for rounding. */
static bool is_pattern(const struct biases *b, double rate, bool rounds)
{
	const double of_float = 0x1p-22, of_rate = rounds ? 0.05 : 1e-4;
	for (int i = 0; i < b->n; i++)
		for (int64_t e = 0; e < b->c->weights.m.c.experts; e++) {
			const double p = b->pattern[i * b->c->weights.m.c.experts + e];
			const double b0 = (double)b->before[i][e],
				     b1 = (double)b->after[i][e];
			const double want = b0 + rate * p;
			const double error = b1 - want;
			const double bound =
				of_rate * fabs(rate) + of_float * (fabs(b0) + fabs(b1));
			if (isnan(p))
				continue;
			if (rounds ? fabs(b1 - round_to_bf16(b1)) > 0 ||
						fabs(error) > 0x1p-8 * fabs(want) + bound
				   : fabs(error) > bound)
				return false;
		}
	return true;
}

static bool is_of_pt(const struct step_check *c)
{
	return !strcmp(c->files.after.format, "pt");
}

/* Returns the rate with which a way of counting explains all changes; 0: it does not. */
static double explains_biases(struct biases *b, const struct counting *how)
{
	int64_t n_known;
	set_pattern(b, how);
	double rate = fit_rate(b, &n_known);
	const double given = b->c->weights.m.c.router_bias_rate;
	if (how->rounds && given > 0 && is_of_pt(b->c))
		rate = given;
	return n_known && is_pattern(b, rate, how->rounds) ? rate : 0;
}

/* ---- right changes ------------------------------------------------------------------------- */

/* Returns true if the changes are right, by the options of pt's checkpoint or by any known rule. */
static bool are_biases_right(struct biases *b)
{
	struct choice_check *x = &b->c->choices;
	const struct model_config *m = &b->c->weights.m.c;
	for (int i = 0; i < 4; i++) {
		const struct counting how = {.centers = i % 2, .only_targets = i / 2};
		if (is_of_pt(b->c) &&
			(how.only_targets || how.centers != m->router_bias_center))
			continue;
		const double rate = explains_biases(b, &how);
		if (!(rate > 0) ||
			(is_of_pt(b->c) && fabs(rate / m->router_bias_rate - 1) > 1e-5))
			continue;
		x->n_biases = b->n;
		x->bias_rate = rate;
		x->bias_centered = how.centers;
		return true;
	}
	return false;
}

/* ---- causes -------------------------------------------------------------------------------- */

/* The causes that explain the changes. */
struct bias_causes {
	int n;
	char text[FINDING_TEXT];
};

/* Adds a cause if it explains the changes; with the rate of the other sign if `negative`. */
static bool try_bias_cause(struct biases *b, struct bias_causes *found,
	struct counting how, bool negative, const char *text)
{
	const struct model_config *m = &b->c->weights.m.c;
	for (int centers = 0; centers < 2; centers++) {
		how.centers = centers;
		if (is_of_pt(b->c) && how.centers != m->router_bias_center)
			continue;
		const double rate = explains_biases(b, &how);
		if (negative ? !(rate < 0) : !(rate > 0))
			continue;
		found->n++;
		snprintf(found->text, sizeof(found->text), "%s", text);
		return true;
	}
	return false;
}

/* Tries the counts of one part of the sequences, such as one rank or micro-batch has. */
static void try_bias_parts(struct biases *b, struct bias_causes *found)
{
	const int64_t n = b->c->batch.n;
	for (int64_t parts = 2; parts <= n; parts++)
		for (int64_t part = 0; n % parts == 0 && part < parts; part++)
			for (int stride = 0; stride < (parts < n ? 2 : 1); stride++) {
				char text[FINDING_TEXT];
				snprintf(text, sizeof(text),
					"as if only part %lld of %lld of the sequences%s counted: "
					"not summed over ranks or micro-batches?",
					(long long)part + 1, (long long)parts,
					stride ? " (in turn)" : "");
				if (try_bias_cause(b, found,
					    (struct counting){.parts = parts,
						    .part = part,
						    .stride = stride},
					    false, text))
					return;
			}
}

/* Tries an update after each part of the batch. */
static void try_bias_updates(struct biases *b, struct bias_causes *found)
{
	for (int64_t n = 2; n <= b->c->batch.n; n++) {
		char text[FINDING_TEXT];
		snprintf(text, sizeof(text),
			"as if it were updated after each of %lld micro-batches",
			(long long)n);
		if (b->c->batch.n % n == 0 &&
			try_bias_cause(
				b, found, (struct counting){.updates = n}, false, text))
			return;
	}
}

/* Tries the other rule than the one in a checkpoint of pt. */
static void try_bias_centering(struct biases *b, struct bias_causes *found)
{
	const bool centers = b->c->weights.m.c.router_bias_center;
	const struct counting other = {.centers = !centers};
	if (!is_of_pt(b->c) || !(explains_biases(b, &other) > 0))
		return;
	found->n++;
	snprintf(found->text, sizeof(found->text),
		centers ? "as if the mean of its changes were not subtracted "
			  "(--router-bias-center)"
			: "as if the mean of its changes were subtracted "
			  "(--router-bias-center)");
}

/* Tries changes that are multiples of the rate in pt's checkpoint, some of them larger than it. */
static void try_bias_multiples(struct biases *b, struct bias_causes *found)
{
	const double rate = b->c->weights.m.c.router_bias_rate;
	const int64_t n = b->c->weights.m.c.experts;
	double most = 0;
	for (int64_t at = 0; at < b->n * n; at++) {
		const double x = ((double)b->after[at / n][at % n] -
					 (double)b->before[at / n][at % n]) /
				 rate;
		if (!is_of_pt(b->c) || fabs(x - round(x)) > 1e-3)
			return;
		most = fmax(most, fabs(x));
	}
	if (most < 1.5)
		return;
	found->n++;
	snprintf(found->text, sizeof(found->text),
		"changes of up to %.0f times the rate: updated several times in a step, as after "
		"each micro-batch?",
		most);
}

static void find_bias_causes(struct biases *b, struct bias_causes *found)
{
	try_bias_centering(b, found);
	try_bias_cause(b, found, (struct counting){.rounds = false}, true,
		"it changed in the opposite direction: experts with more tokens than the mean get "
		"still more");
	if (is_of_pt(b->c))
		try_bias_cause(b, found, (struct counting){.only_targets = true}, false,
			"as if positions without a target did not count");
	try_bias_cause(b, found, (struct counting){.only_first = true}, false,
		"as if only the first choice of a token counted");
	try_bias_cause(b, found, (struct counting){.doubles = true}, false,
		"as if choices counted twice, but only once in the mean: does recomputation count "
		"them again?");
	try_bias_updates(b, found);
	if (!found->n)
		try_bias_parts(b, found);
	if (!found->n)
		try_bias_cause(b, found, (struct counting){.rounds = true}, false,
			"as if it were rounded to bf16");
	if (!found->n)
		try_bias_multiples(b, found);
}

/* Adds a finding about all biases. */
static void add_bias_findings(struct biases *b, enum finding_kind kind, const char *text)
{
	for (int i = 0; i < b->n; i++)
		add_finding(b->c, kind, &b->c->tensors[b->tensor[i]],
			"update of the bias: %s", text);
}

/* Judges biases, some of which changed. */
static void judge_changes(struct biases *b)
{
	struct bias_causes found = {0};
	int64_t n_known;
	set_pattern(b, &(struct counting){.centers = false});
	fit_rate(b, &n_known);
	if (!n_known || are_biases_right(b))
		return;
	find_bias_causes(b, &found);
	if (found.n == 1)
		add_bias_findings(b, FINDING_FROZEN, found.text);
	else
		add_bias_findings(b, is_of_pt(b->c) ? FINDING_FROZEN : FINDING_NOTE,
			"not a rate times the signs of mean count minus count of the experts' "
			"choices; no known cause");
}

/* ---- files --------------------------------------------------------------------------------- */

static int read_biases(struct biases *b, struct err *e)
{
	const struct step_check *c = b->c;
	for (int i = 0; i < c->n; i++) {
		struct tensor_step t;
		if (!c->tensors[i].buffer || c->tensors[i].nonfinite)
			continue;
		if (tensor_step_read(&t, &c->files, i, STEP_PARAMETERS, e)) {
			tensor_step_free(&t);
			return -1;
		}
		b->tensor[b->n] = i;
		b->before[b->n] = t.p0;
		b->after[b->n++] = t.p1;
		t.p0 = t.p1 = NULL;
		tensor_step_free(&t);
	}
	return 0;
}

static bool any_changed(const struct biases *b)
{
	const size_t n_bytes = (size_t)b->c->weights.m.c.experts * sizeof(float);
	bool changed = false;
	for (int i = 0; i < b->n; i++)
		changed |= memcmp(b->before[i], b->after[i], n_bytes) != 0;
	return changed;
}

int judge_biases(struct step_check *c, struct err *e)
{
	const size_t n = (size_t)c->n + 1;
	struct biases b = {.c = c};
	if (!c->choices.all.ids || c->files.no_after)
		return 0;
	b.tensor = xcalloc(n, sizeof(*b.tensor));
	b.before = xcalloc(n, sizeof(*b.before));
	b.after = xcalloc(n, sizeof(*b.after));
	int rc = read_biases(&b, e);
	b.pattern =
		xcalloc((size_t)(b.n * c->weights.m.c.experts) + 1, sizeof(*b.pattern));
	if (!rc && b.n && any_changed(&b))
		judge_changes(&b);
	else if (!rc && b.n && is_of_pt(c) && c->weights.m.c.router_bias_rate > 0)
		add_bias_findings(&b, FINDING_FROZEN, "missing: it did not change");
	for (int i = 0; i < b.n; i++) {
		free(b.before[i]);
		free(b.after[i]);
	}
	free(b.tensor);
	free(b.before);
	free(b.after);
	free(b.pattern);
	return rc;
}

void append_biases_line(const struct step_check *c, struct str *out)
{
	if (c->choices.n_biases)
		str_printf(out,
			"bias    %d router%s: changed by %.4g times the signs of mean count - "
			"count%s\n",
			c->choices.n_biases, plural(c->choices.n_biases),
			c->choices.bias_rate,
			c->choices.bias_centered ? ", minus the mean change" : "");
}
