/* Patterns of weights of targets that known bugs make. See target_causes.c. */
#include "causes/causes.h"

#include <math.h>

/* Groups of targets with the same position, token, chunk or sequence. */
struct groups {
	int64_t n, *group; /* number of groups; [target]: its group */
	int64_t *count;	   /* [n]: targets of the group */
	double *mean;	   /* [n]: mean of the solved weights; 1 without a target */
};

static int64_t position_of(const struct target_fit *t, int64_t i)
{
	return t->position[i] % t->c->batch.length;
}

static int64_t sequence_of(const struct target_fit *t, int64_t i)
{
	return t->position[i] / t->c->batch.length;
}

static int64_t label_of(const struct target_fit *t, int64_t i)
{
	return t->c->batch.targets[t->position[i]];
}

/* Allocates n groups of the targets, all empty. */
static void groups_init(struct groups *g, const struct target_fit *t, int64_t n)
{
	*g = (struct groups){.n = n};
	g->group = xcalloc((size_t)t->n, sizeof(*g->group));
	g->count = xcalloc((size_t)n, sizeof(*g->count));
	g->mean = xcalloc((size_t)n, sizeof(*g->mean));
}

/* Sets the counts and means of the groups from g->group. */
static void groups_set_means(struct groups *g, const struct target_fit *t)
{
	for (int64_t i = 0; i < t->n; i++) {
		g->count[g->group[i]]++;
		g->mean[g->group[i]] += t->w[i];
	}
	for (int64_t k = 0; k < g->n; k++)
		g->mean[k] = g->count[k] ? g->mean[k] / (double)g->count[k] : 1;
}

/* Solves for one weight per group. Sets w[target] and g->mean to the weights. */
static void solve_group_weights(struct groups *g, const struct target_fit *t, double *w)
{
	int64_t *index = xcalloc((size_t)g->n, sizeof(*index)), n = 0;
	for (int64_t k = 0; k < g->n; k++)
		index[k] = g->count[k] ? n++ : 0;
	double *a = xcalloc((size_t)(n * n), sizeof(*a)),
	       *b = xcalloc((size_t)n, sizeof(*b));
	for (int64_t i = 0; i < t->n; i++) {
		int64_t row = index[g->group[i]];
		b[row] += t->b[i];
		for (int64_t j = 0; j < t->n; j++)
			a[row * n + index[g->group[j]]] += t->k[i * t->n + j];
	}
	bool is_solved = solve_definite(a, b, n);
	for (int64_t i = 0; i < t->n; i++)
		w[i] = is_solved ? b[index[g->group[i]]] : g->mean[g->group[i]];
	normalize_weights(w, t->n);
	for (int64_t i = 0; i < t->n; i++)
		g->mean[g->group[i]] = w[i];
	free(index);
	free(a);
	free(b);
}

static void groups_release(struct groups *g)
{
	free(g->group);
	free(g->count);
	free(g->mean);
}

/* Groups targets by position in their sequence, and sets the groups' mean weights. */
static void group_positions(struct groups *g, const struct target_fit *t)
{
	groups_init(g, t, t->length);
	for (int64_t i = 0; i < t->n; i++)
		g->group[i] = position_of(t, i);
	groups_set_means(g, t);
}

/* Groups targets by label, and sets the groups' mean weights. */
static void group_labels(struct groups *g, const struct target_fit *t)
{
	groups_init(g, t, t->c->weights.m.c.vocab);
	for (int64_t i = 0; i < t->n; i++)
		g->group[i] = label_of(t, i);
	groups_set_means(g, t);
}

/* Groups targets by chunks of the positions, over all sequences or in each of them. */
static void group_chunks(
	struct groups *g, const struct target_fit *t, int64_t chunks, bool by_sequence)
{
	const struct token_batch *b = &t->c->batch;
	groups_init(g, t, by_sequence ? b->n * chunks : chunks);
	for (int64_t i = 0; i < t->n; i++) {
		int64_t chunk = position_of(t, i) * chunks / t->length;
		g->group[i] = by_sequence ? sequence_of(t, i) * chunks + chunk : chunk;
	}
	groups_set_means(g, t);
}

/* ---- masks of positions --------------------------------------------------------------- */

/* Returns true if the targets of group k do not count. */
static bool is_group_masked(const struct groups *g, int64_t k)
{
	return g->count[k] && g->mean[k] < 0.5;
}

/* Sets w to 0 for targets of masked groups, else to 1. Returns the number of masked groups. */
static int64_t mask_weights(const struct groups *g, const struct target_fit *t, double *w)
{
	int64_t n = 0;
	for (int64_t k = 0; k < g->n; k++)
		n += is_group_masked(g, k);
	for (int64_t i = 0; i < t->n; i++)
		w[i] = !is_group_masked(g, g->group[i]);
	return n;
}

/* Returns the number of masked groups at the end of each period, or with at_begin at its beginning;
 * 0: groups elsewhere are masked, too. */
static int64_t mask_length(const struct groups *g, int64_t period, bool at_begin)
{
	int64_t n = 0;
	for (int64_t k = 0; k < g->n; k++) {
		int64_t r = at_begin ? k % period : period - 1 - k % period;
		if (is_group_masked(g, k))
			n = max64(n, r + 1);
	}
	for (int64_t k = 0; k < g->n; k++) {
		int64_t r = at_begin ? k % period : period - 1 - k % period;
		if (r < n && g->count[k] && !is_group_masked(g, k))
			return 0;
	}
	return n;
}

/* Describes a mask of the n first or last targets of each period of positions. */
static void describe_mask(char *text, size_t capacity, int64_t n, int64_t period,
	int64_t length, bool at_begin)
{
	const char *end = at_begin ? "first" : "last";
	char unit[60] = "sequence";
	if (period < length)
		snprintf(
			unit, sizeof(unit), "chunk of %lld positions", (long long)period);
	if (at_begin && period == length && n == length / 2)
		snprintf(text, capacity,
			"the targets of the first half of each sequence did not count: does "
			"the batch lack a loss mask?");
	else if (n == 1)
		snprintf(text, capacity, "the %s target of each %s did not count", end,
			unit);
	else
		snprintf(text, capacity, "the %s %lld targets of each %s did not count",
			end, (long long)n, unit);
}

/* Appends the masked groups, such as " 3 5", as far as they fit. */
static void list_masked_groups(const struct groups *g, char *text, size_t capacity)
{
	size_t len = strlen(text);
	for (int64_t k = 0; k < g->n && len + 30 < capacity; k++)
		if (is_group_masked(g, k))
			len += (size_t)snprintf(
				text + len, capacity - len, " %lld", (long long)k);
}

/* Detects positions that do not count in each sequence: the ends of periods, or a list. */
bool by_places(const struct target_fit *t, double *w, char *text, size_t capacity)
{
	struct groups g;
	const int64_t length = t->length;
	group_positions(&g, t);
	int64_t off = mask_weights(&g, t, w), n = 0;
	for (int64_t period = length; period > 1 && off && !n; period--)
		for (int first = 1; first >= 0 && !n; first--)
			if (length % period == 0 &&
				(n = mask_length(&g, period, first)) > 0 && n < period)
				describe_mask(text, capacity, n, period, length, first);
			else
				n = 0;
	if (!n) {
		snprintf(text, capacity,
			"in each sequence, the targets at these positions "
			"did not count (counted from 0):");
		list_masked_groups(&g, text, capacity);
	}
	groups_release(&g);
	return off && off < length;
}

/* Sets w to the weights that targets have in a mean of the means of the groups. */
static void mean_weights(const struct groups *g, const struct target_fit *t, double *w)
{
	for (int64_t i = 0; i < t->n; i++)
		w[i] = 1 / (double)g->count[g->group[i]];
}

/* Detects a loss that is the mean of the means of chunks or sequences. */
bool by_means(const struct target_fit *t, double *w, char *text, size_t capacity)
{
	const int64_t tries[] = {
		t->c->o.cp, 2 * t->c->o.cp, 1, 2, 3, 4, 6, 8, 12, 16, 32};
	for (size_t k = 0; k < ARRAY_LEN(tries); k++)
		for (int by_sequence = 0; by_sequence < 2; by_sequence++) {
			struct groups g;
			if (tries[k] < 2 - by_sequence || tries[k] > t->length)
				continue;
			group_chunks(&g, t, tries[k], by_sequence);
			mean_weights(&g, t, w);
			groups_release(&g);
			if (are_equal(w, (int)t->n, 1e-6) ||
				target_residual(t, w) > t->bound)
				continue;
			if (tries[k] == 1)
				snprintf(text, capacity,
					"the loss were the mean of the means of the sequences");
			else
				snprintf(text, capacity,
					"the loss were the mean of the means of %lld chunks of the "
					"positions%s",
					(long long)tries[k],
					by_sequence ? " of each sequence" : "");
			return true;
		}
	return false;
}

/* ---- tokens --------------------------------------------------------------------------- */

/* Returns the number of groups with a target. */
static int64_t count_used_groups(const struct groups *g)
{
	int64_t n = 0;
	for (int64_t k = 0; k < g->n; k++)
		n += g->count[k] > 0;
	return n;
}

/* Detects tokens that do not count. (A token that occurs once may be a position instead.) */
bool by_labels(const struct target_fit *t, double *w, char *text, size_t capacity)
{
	struct groups g;
	group_labels(&g, t);
	int64_t off = mask_weights(&g, t, w), used = count_used_groups(&g), lost = 0;
	for (int64_t i = 0; i < t->n; i++)
		lost += !(w[i] > 0);
	snprintf(text, capacity, "targets with token%s", plural(off));
	list_masked_groups(&g, text, capacity);
	snprintf(text + strlen(text), capacity - strlen(text), " did not count");
	groups_release(&g);
	return off && 2 * off < used && off <= 8 && lost >= 2 * off;
}

/* Appends the tokens with a weight other than 1, such as " token 7 2 times". */
static void list_token_weights(
	const struct target_fit *t, const struct groups *g, char *text, size_t capacity)
{
	int64_t others = 0;
	size_t len = strlen(text);
	for (int64_t k = 0; k < g->n; k++)
		if (g->count[k] && fabs(g->mean[k] - 1) > 0.02 && others++ < 6)
			len += (size_t)snprintf(text + len, capacity - len,
				"%s token %lld %.4g times", others > 1 ? "," : "",
				(long long)k, to_shown_digits(t->c, g->mean[k]));
	if (others > 6)
		snprintf(text + len, capacity - len, ", and %lld more",
			(long long)others - 6);
}

/* Detects weights that depend on the token: 1 / its count or root of the count, or any. */
bool by_label_weights(const struct target_fit *t, double *w, char *text, size_t capacity)
{
	struct groups g;
	bool found = false;
	group_labels(&g, t);
	const int64_t used = count_used_groups(&g);
	for (int root = 0; root < 2 && !found; root++) {
		for (int64_t i = 0; i < t->n; i++)
			w[i] = pow((double)g.count[g.group[i]], root ? -0.5 : -1);
		found = !are_equal(w, (int)t->n, 1e-6) &&
			target_residual(t, w) <= t->bound;
		snprintf(text, capacity,
			"the weight of a target were 1 / %sn, where n is the number of targets "
			"with its token",
			root ? "root of " : "");
	}
	if (!found && used > 1 && 2 * used <= t->n) {
		solve_group_weights(&g, t, w);
		snprintf(text, capacity, "the weight of a target depended on its token:");
		list_token_weights(t, &g, text, capacity);
		found = !are_equal(w, (int)t->n, 0.01);
	}
	groups_release(&g);
	return found;
}

enum confidence { FOCAL, DETACHED_FOCAL, DETACHED_POWER, CONFIDENCES };

/* Returns the factor that a loss with exponent x applies to the gradient of -log p. */
static double weight_by_confidence(enum confidence kind, double p, double x)
{
	double q = fmax(1 - p, 1e-300);
	switch (kind) {
	case FOCAL: /* the loss is -(1 - p)^x log p */
		return pow(q, x) - x * p * log(fmax(p, 1e-300)) * pow(q, x - 1);
	case DETACHED_FOCAL:
		return pow(q, x);
	default:
		return pow(p, x);
	}
}

/* Sets w[i] to (confidence of t->p[i])^x. Returns the residual of the fit with these weights. */
static double exponent_residual(
	const struct target_fit *t, enum confidence kind, double x, double *w)
{
	for (int64_t i = 0; i < t->n; i++)
		w[i] = weight_by_confidence(kind, t->p[i], x);
	return target_residual(t, w);
}

/* Returns the exponent with the smallest residual. */
static double find_exponent(const struct target_fit *t, enum confidence kind, double *w)
{
	double best = 0, min = INFINITY;
	for (double x = 0.25; x <= 8; x += 0.25) {
		double left = exponent_residual(t, kind, x, w);
		best = left < min ? x : best;
		min = fmin(min, left);
	}
	for (double step = 0.125; step > 1e-6; step /= 2)
		for (int side = -1; side <= 1; side += 2) {
			double left = exponent_residual(t, kind, best + side * step, w);
			if (left < min) {
				min = left;
				best += side * step;
				break;
			}
		}
	return best;
}

/* Detects weights that are a function of the target's probability, as in a focal loss. */
bool by_probability(const struct target_fit *t, double *w, char *text, size_t capacity)
{
	static const char *const texts[][2] = {
		{"the loss were focal: -(1 - p)^",
			" log p, with p the probability of the target"},
		{"each target had the weight (1 - p)^",
			", which is detached, with p the probability of the target"},
		{"each target had the weight p^",
			", which is detached, with p the probability of the target"}};
	for (int kind = 0; kind < CONFIDENCES; kind++) {
		double x = find_exponent(t, (enum confidence)kind, w);
		double round_x = round(x * 100) / 100;
		if (exponent_residual(t, (enum confidence)kind, round_x, w) <= t->bound)
			x = round_x;
		if (exponent_residual(t, (enum confidence)kind, x, w) > t->bound)
			continue;
		snprintf(text, capacity, "%s%.3g%s", texts[kind][0], x, texts[kind][1]);
		return true;
	}
	return false;
}

/* ---- positions, and no pattern -------------------------------------------------------- */

/* Detects 2 to 16 chunks of the positions with one weight each. */
bool by_chunks(const struct target_fit *t, double *w, char *text, size_t capacity)
{
	/* (in bf16 many chunks come near weights that grow with the position) */
	const double max =
		fmin(t->bound, fmax(0.3 * t->bound, 1.5 * target_residual(t, t->w)));
	char list[120];
	for (int64_t n = 2; n <= 16 && 2 * n <= t->length; n++) {
		struct groups g;
		group_chunks(&g, t, n, false);
		solve_group_weights(&g, t, w);
		append_factors(t->c, list, sizeof(list), g.mean, (int)n);
		groups_release(&g);
		snprintf(text, capacity,
			"targets of %lld chunks of the positions had the weights %s",
			(long long)n, list);
		if (target_residual(t, w) <= max)
			return true;
	}
	return false;
}

/* Detects weights that depend on the position in the sequence. */
bool by_positions(const struct target_fit *t, double *w, char *text, size_t capacity)
{
	struct groups g;
	char list[120];
	group_positions(&g, t);
	bool is_determined = 2 * count_used_groups(&g) <= t->n;
	solve_group_weights(&g, t, w);
	append_factors(t->c, list, sizeof(list), g.mean, (int)min64(g.n, 10));
	snprintf(text, capacity, "the weight of a target depended on its position: %s%s",
		list, g.n > 10 ? " ..." : "");
	groups_release(&g);
	return is_determined && !are_equal(w, (int)t->n, 0.01);
}

/* Detects weights that are all near 0 or 1: some targets do not count. */
bool by_mask(const struct target_fit *t, double *w, char *text, size_t capacity)
{
	int64_t off = 0;
	for (int64_t i = 0; i < t->n; i++) {
		w[i] = t->w[i] >= 0.5;
		off += t->w[i] < 0.5;
		if (fabs(t->w[i] - w[i]) > 0.25)
			return false;
	}
	snprintf(text, capacity,
		"%lld of %lld targets did not count (sequence:position, from 0):",
		(long long)off, (long long)t->n);
	size_t len = strlen(text);
	for (int64_t i = 0; i < t->n && len + 40 < capacity; i++)
		if (w[i] < 0.5)
			len += (size_t)snprintf(text + len, capacity - len, " %lld:%lld",
				(long long)sequence_of(t, i),
				(long long)position_of(t, i));
	return off && off < t->n;
}

/* Describes weights without a pattern. Returns false if they are nearly equal. */
bool by_any_weights(const struct target_fit *t, double *w, char *text, size_t capacity)
{
	double min = INFINITY, max = -INFINITY;
	char list[120];
	for (int64_t i = 0; i < t->n; i++) {
		w[i] = t->w[i];
		min = fmin(min, w[i]);
		max = fmax(max, w[i]);
	}
	append_factors(t->c, list, sizeof(list), w, (int)min64(t->n, 8));
	snprintf(text, capacity,
		"each target had a weight of its own, from %.3g to %.3g: %s%s",
		to_shown_digits(t->c, min), to_shown_digits(t->c, max), list,
		t->n > 8 ? " ..." : "");
	return max - min > 0.02 * fmax(fabs(max), fabs(min));
}
