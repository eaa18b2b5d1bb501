/* Other functions of single layers, and functions with a number that is solved for. */
#include "causes/causes.h"

#include <math.h>

/* ---- single layers -------------------------------------------------------------------- */

enum { MAX_LAYERS = 12 };

/* Returns true if two layers changed places, or have each other's weights. Sets s->detail. */
bool explained_by_swapped_layers(struct cause_search *s)
{
	const int layers = (int)s->c->weights.m.c.layers;
	double nearest = s->near;
	bool found = false;
	for (int i = 0; i < layers && layers <= MAX_LAYERS; i++)
		for (int k = i + 1; k < layers; k++) {
			const struct guess tries[] = {
				{{.function = {.path = {PATH_SWAPPED, i, 0, k}}}, NULL,
					true},
				{{.exchanged = {i, k}}, NULL, true}};
			if (!try_guess(s, &tries[0], &nearest) &&
				!try_guess(s, &tries[1], &nearest))
				continue;
			snprintf(s->detail, sizeof(s->detail), "%d and %d", i, k);
			found = true;
		}
	return found;
}

static struct variant window_variant(int64_t layer, int64_t window)
{
	return (struct variant){
		.function = {.window_layer = layer, .layer_window = window}};
}

/* Sets *window to the window of one layer whose gradients are nearest. Returns their distance. */
static double nearest_window(const struct cause_search *s, int64_t layer, int64_t *window)
{
	const int64_t length = s->c->batch.length;
	double nearest = INFINITY;
	for (int64_t w = 1; w < length; w *= 2) {
		double dist = variant_distance(s, window_variant(layer, w), false);
		*window = dist < nearest ? w : *window;
		nearest = fmin(nearest, dist);
	}
	if (!(nearest < 0.9 * largest_residual(s, &s->c->reference)))
		return INFINITY;
	for (int64_t step = *window / 2; step > 0; step /= 2)
		for (int side = -1; side <= 1; side += 2) {
			int64_t w = *window + side * step;
			double dist = w < length
					      ? variant_distance(s,
							window_variant(layer, w), false)
					      : INFINITY;
			if (dist < nearest) {
				nearest = dist;
				*window = w;
				break;
			}
		}
	return nearest;
}

/* Returns true if one layer alone has a window, or alone has none. Sets s->detail. */
bool explained_by_window_of_layer(struct cause_search *s)
{
	const struct model_config *m = &s->c->weights.m.c;
	const int64_t length = s->c->batch.length;
	for (int64_t layer = 0; layer < m->layers && m->layers <= MAX_LAYERS; layer++) {
		int64_t window = length;
		double dist = layer_has_window(m, layer)
				      ? variant_distance(
						s, window_variant(layer, length), false)
				      : nearest_window(s, layer, &window);
		if (dist > s->near || variant_distance(s, window_variant(layer, window),
					      true) > s->near)
			continue;
		if (window == length)
			snprintf(s->detail, sizeof(s->detail),
				"layer %lld had no sliding window", (long long)layer);
		else
			snprintf(s->detail, sizeof(s->detail),
				"layer %lld had a sliding window of %lld tokens, "
				"including the query's own",
				(long long)layer, (long long)window);
		return true;
	}
	return false;
}

/* Returns true if one layer without rope, or with a parallel residual, explains the gradients.
 * Sets s->detail. */
bool explained_by_layer(struct cause_search *s)
{
	const struct model *m = &s->c->weights.m;
	double nearest = s->near;
	bool found = false;
	for (int i = 0; i < (int)m->c.layers && m->c.layers <= MAX_LAYERS; i++) {
		const struct guess tries[] = {
			{{.function = {.unrotated_layer = 1 + i}},
				"queries and keys of layer %d were not rotated",
				m->arch->rope && model_rotates(m, i)},
			{{.function = {.path = {PATH_PARALLEL, i, 0, 0}}},
				"attention and FFN of layer %d had the same input (parallel "
				"residual)",
				true}};
		for (size_t k = 0; k < ARRAY_LEN(tries); k++)
			if (try_guess(s, &tries[k], &nearest)) {
				found = true;
				scoped_str text = {0};
				const char *number = strstr(tries[k].text, "%d");
				str_printf(&text, "%.*s%d%s",
					(int)(number - tries[k].text), tries[k].text, i,
					number + 2);
				snprintf(s->detail, sizeof(s->detail), "%s", text.s);
			}
	}
	return found;
}

/* ---- numbers -------------------------------------------------------------------------- */

/* A part of the model that is multiplied or divided by 1 + x. */
struct stretch {
	enum stretched {
		NORM_EPS,
		EMBEDDING_ROWS,
		ATTENTION_OUTPUT,
		FFN_OUTPUT,
		STRETCHED
	} what;
	bool divides; /* by 1 + x, instead of multiplying */
	int layer;    /* only for ATTENTION_OUTPUT and FFN_OUTPUT; -1: all layers */
};

static double stretch_factor(const struct stretch *st, double x)
{
	return st->divides ? 1 / (1 + x) : 1 + x;
}

/* Returns the factor of the rows of the embedding in the model. */
static double embedding_factor(const struct model *m)
{
	return m->c.embedding_scale > 0	 ? m->c.embedding_scale
	       : m->arch->root_embedding ? sqrt((double)m->c.dim)
					 : 1;
}

/* Computes the gradients with a part of the model times 1 + x or 1 / (1 + x). */
static void compute_with_stretch(const struct cause_search *s, const void *context,
	double x, bool is_full, struct gradients *g)
{
	const struct stretch *st = context;
	const struct model *m = &s->c->weights.m;
	struct variant v = {0};
	char name[60];
	v.scale = stretch_factor(st, x);
	if (st->what == NORM_EPS)
		v.norm_eps = v.scale * m->c.norm_eps;
	else if (st->what == EMBEDDING_ROWS)
		v.function.embedding_scale = v.scale * embedding_factor(m);
	else {
		const char *tensor =
			st->what == FFN_OUTPUT ? "feed_forward.w2." : "attention.wo.";
		if (st->layer < 0)
			snprintf(name, sizeof(name), "%s", tensor);
		else
			snprintf(name, sizeof(name), "layers.%d.%s", st->layer, tensor);
		v.scaled[0] = name;
	}
	variant_gradients(s, v, is_full, g);
}

/* Returns true if a factor of one part of the model explains the gradients. Sets s->detail. */
static bool explain_stretch(struct cause_search *s, const struct stretch *st)
{
	static const char *const texts[] = {"the norms had eps ",
		"the embedding were multiplied by ",
		"the output of attention were multiplied by ",
		"the output of the FFN were multiplied by "};
	double x = solve_number(s, compute_with_stretch, st, 0.1);
	double factor = stretch_factor(st, x);
	size_t len = 0;
	if (st->what == NORM_EPS)
		factor *= s->c->weights.m.c.norm_eps;
	else if (st->what == EMBEDDING_ROWS)
		factor *= embedding_factor(&s->c->weights.m);
	if (st->layer >= 0)
		len = (size_t)snprintf(
			s->detail, sizeof(s->detail), "in layer %d ", st->layer);
	snprintf(s->detail + len, sizeof(s->detail) - len, "%s%.3g", texts[st->what],
		factor);
	return x > 0;
}

/* Tries each stretched product in all layers. Returns true, with s->detail set, at the
 * first that explains the gradients. */
bool explained_by_stretch(struct cause_search *s)
{
	for (int k = 0; k < 2 * STRETCHED; k++) {
		const struct stretch stretch = {(enum stretched)(k / 2), k % 2, -1};
		if (explain_stretch(s, &stretch))
			return true;
	}
	return false;
}

/* Tries each stretched product in each layer. Returns true, with s->detail set, at the
 * first that explains the gradients. */
bool explained_by_stretch_of_layer(struct cause_search *s)
{
	const int layers = (int)s->c->weights.m.c.layers;
	for (int layer = 0; layer < layers && layers <= MAX_LAYERS; layer++)
		for (int k = 2 * ATTENTION_OUTPUT; k < 2 * STRETCHED; k++) {
			const struct stretch stretch = {
				(enum stretched)(k / 2), k % 2, layer};
			if (explain_stretch(s, &stretch))
				return true;
		}
	return false;
}

static double theta_distance(const struct cause_search *s, double log_theta, bool is_full)
{
	return variant_distance(
		s, (struct variant){.rope_theta = pow(10, log_theta)}, is_full);
}

/* Returns true if another rope theta explains the gradients. Searches a grid of powers of ten,
 * then by golden section around the nearest one. Sets s->detail. */
bool explained_by_theta(struct cause_search *s)
{
	const double ratio = (sqrt(5) - 1) / 2, step = 0.5;
	const double without = largest_residual(s, &s->c->reference);
	double best = 0, nearest = INFINITY;
	if (!s->c->weights.m.arch->rope)
		return false;
	for (double x = 2; x <= 8; x += step) {
		double dist = theta_distance(s, x, false);
		best = dist < nearest ? x : best;
		nearest = fmin(nearest, dist);
	}
	double from = best - step, to = best + step;
	double x[2] = {to - ratio * (to - from), from + ratio * (to - from)};
	double dist[2] = {theta_distance(s, x[0], false), theta_distance(s, x[1], false)};
	for (int k = 0; k < 30 && fmin(dist[0], dist[1]) > 0.1 * s->near; k++) {
		const bool low = dist[0] < dist[1];
		if (k == 8 && fmin(dist[0], dist[1]) > 0.5 * without)
			return false;
		*(low ? &to : &from) = x[low];
		x[low] = x[!low];
		dist[low] = dist[!low];
		x[!low] = low ? to - ratio * (to - from) : from + ratio * (to - from);
		dist[!low] = theta_distance(s, x[!low], false);
	}
	best = dist[0] < dist[1] ? x[0] : x[1];
	snprintf(s->detail, sizeof(s->detail), "%.4g", pow(10, best));
	return fmin(dist[0], dist[1]) <= s->near &&
	       theta_distance(s, best, true) <= s->near;
}
