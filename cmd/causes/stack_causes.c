/* Causes in the stacks of weights of experts: which gradient each expert has. See causes.c. */
#include "causes/causes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* In stacks with more elements times experts, an expert is not compared with all others. */
static const int64_t MAX_ELEMENTS = 2000000000;

/* What an expert's block of a stack may have instead of its own gradient. */
enum stack_error {
	STACK_RIGHT,
	STACK_ZERO,
	STACK_OTHER,  /* another expert's gradient */
	STACK_HALVES, /* W1 and W3 have each other's gradients */
	STACK_TURNED, /* each matrix is transposed */
	STACK_SUM,    /* the sum of the experts with the same place on n ranks */
	STACK_FACTOR,
	STACK_SKIPPED /* the optimizer did not decay its moments, as without a gradient */
};

/* A gradient for one expert's block. */
struct stack_guess {
	enum stack_error error;
	int64_t from;  /* STACK_OTHER: the other expert; STACK_SUM: number of ranks */
	double factor; /* STACK_FACTOR */
};

/* A stack of a layer: W1 and W3 of each expert, or W2. */
struct stack {
	const struct tensor *t;
	const float *seen, *right; /* the checked gradient, and the reference */
	double scale;		   /* common factor of all gradients */
	int64_t n, block, matrices, rows,
		cols;	/* experts; elements of one; its matrices */
	float *guessed; /* [block], scratch */
	bool *skipped;	/* [n]: no gradient in the reference, and unchanged moments */
};

static struct stack stack_of(const struct cause_search *s)
{
	const struct tensor *t = model_tensor(s->c, s->tensor);
	struct stack x = {.t = t,
		.seen = s->c->seen[s->tensor],
		.right = s->c->has_reference ? reference_of(s->c, s->tensor) : NULL,
		.scale = s->c->scale.common,
		.n = t->experts};
	if (!x.n)
		return x;
	x.block = s->c->tensors[s->tensor].n / x.n;
	x.matrices = max64(1, t->blocks / x.n);
	x.cols = t->dims[1];
	x.rows = x.block / x.cols / x.matrices;
	return x;
}

/* Sets x->skipped. */
static void find_skipped(struct cause_search *s, struct stack *x)
{
	struct tensor_step t = {0};
	const bool has_means =
		s->c->files.m0 >= 0 &&
		!tensor_step_read(&t, &s->c->files, s->tensor, STEP_MEANS, &s->e) &&
		t.m0 && t.m1;
	for (int64_t e = 0; e < x->n && has_means; e++) {
		const size_t at = (size_t)(e * x->block);
		const float *own = x->right + at;
		x->skipped[e] =
			!(products_of(own, own, x->block).aa > 0) &&
			!memcmp(t.m0 + at, t.m1 + at, (size_t)x->block * sizeof(float));
	}
	tensor_step_free(&t);
}

/* Returns the element of a block that is at element j of a block with this error. */
static int64_t element_of(const struct stack *x, enum stack_error error, int64_t j)
{
	const int64_t size = x->rows * x->cols, matrix = j / size, at = j % size;
	if (error == STACK_HALVES)
		return (x->matrices - 1 - matrix) * size + at;
	if (error == STACK_TURNED)
		return matrix * size + at % x->cols * x->cols + at / x->cols;
	return j;
}

/* Sets guessed[block] to the gradient of expert e by a guess, without the common factor. */
static void set_guessed(
	const struct stack *x, int64_t e, const struct stack_guess *g, float *guessed)
{
	const int64_t from = g->error == STACK_OTHER ? g->from : e;
	const float *own = x->right + from * x->block;
	for (int64_t j = 0; j < x->block; j++)
		guessed[j] = g->error == STACK_ZERO ? 0 : own[element_of(x, g->error, j)];
	for (int64_t j = 0; j < x->block && g->error == STACK_SKIPPED; j++)
		guessed[j] = (float)((double)x->seen[e * x->block + j] / x->scale);
	for (int64_t j = 0; j < x->block && g->error == STACK_FACTOR; j++)
		guessed[j] *= (float)g->factor;
	const int64_t here = g->error == STACK_SUM ? x->n / g->from : 0;
	for (int64_t other = here ? e % here : x->n; other < x->n; other += here)
		for (int64_t j = 0; j < x->block && other != e; j++)
			guessed[j] += x->right[other * x->block + j];
}

/* Returns the squared distance of expert e's block from a guess, without the common factor. */
static double guess_distance(
	const struct stack *x, int64_t e, const struct stack_guess *g)
{
	double sum = 0;
	set_guessed(x, e, g, x->guessed);
	for (int64_t j = 0; j < x->block; j++) {
		double d = (double)x->seen[e * x->block + j] / x->scale -
			   (double)x->guessed[j];
		sum += d * d;
	}
	return sum;
}

/* Replaces *best by another guess if this one is nearer by far. */
static void try_stack_guess(const struct stack *x, int64_t e, struct stack_guess guess,
	struct stack_guess *best, double *nearest)
{
	const double distance = guess_distance(x, e, &guess);
	if (distance < 0.01 * *nearest) {
		*nearest = distance;
		*best = guess;
	}
}

/* Returns the guess that is nearest to expert e's block, if its own gradient is not: one that is
 * within `enough`, a squared distance, or nearer by far than the guesses before it. */
static struct stack_guess find_guess(const struct stack *x, int64_t e, double enough)
{
	struct stack_guess best = {.error = STACK_RIGHT};
	double nearest = guess_distance(x, e, &best);
	const struct products p =
		products_of(x->seen + e * x->block, x->right + e * x->block, x->block);
	if (nearest <= enough)
		return best;
	if (x->skipped[e])
		return (struct stack_guess){.error = STACK_SKIPPED};
	try_stack_guess(x, e, (struct stack_guess){STACK_ZERO, 0, 0}, &best, &nearest);
	const bool tries_others = x->n * x->n * x->block < MAX_ELEMENTS;
	for (int64_t other = 0; other < x->n && tries_others; other++)
		if (other != e)
			try_stack_guess(x, e, (struct stack_guess){STACK_OTHER, other, 0},
				&best, &nearest);
	if (x->matrices == 2)
		try_stack_guess(
			x, e, (struct stack_guess){STACK_HALVES, 0, 0}, &best, &nearest);
	if (x->rows == x->cols)
		try_stack_guess(
			x, e, (struct stack_guess){STACK_TURNED, 0, 0}, &best, &nearest);
	for (int64_t ranks = 2; ranks < x->n; ranks++)
		if (x->n % ranks == 0)
			try_stack_guess(x, e, (struct stack_guess){STACK_SUM, ranks, 0},
				&best, &nearest);
	if (p.bb > 0)
		try_stack_guess(x, e,
			(struct stack_guess){STACK_FACTOR, 0, p.ab / p.bb / x->scale},
			&best, &nearest);
	return best;
}

/* Appends what is wrong with expert e. */
static void describe_guess(struct cause_search *s, int64_t e, const struct stack_guess *g)
{
	static const char *const texts[] = {[STACK_ZERO] = "no gradient",
		[STACK_HALVES] = "W1 and W3 have each other's gradients",
		[STACK_TURNED] = "transposed",
		[STACK_SKIPPED] =
			"no token chose it, and the optimizer skipped it: its moments "
			"did not change"};
	const size_t len = strlen(s->detail);
	char *out = s->detail + len;
	const size_t size = sizeof(s->detail) - len;
	if (g->error == STACK_OTHER)
		snprintf(out, size, "%sexpert %lld: the gradient of expert %lld",
			len ? "; " : "", (long long)e, (long long)g->from);
	else if (g->error == STACK_FACTOR)
		snprintf(out, size, "%sexpert %lld: %.4g times", len ? "; " : "",
			(long long)e, to_shown_digits(s->c, g->factor));
	else
		snprintf(out, size, "%sexpert %lld: %s", len ? "; " : "", (long long)e,
			texts[g->error]);
}

/* Writes to s->detail what is wrong with the experts of a stack. */
static void describe_stack(
	struct cause_search *s, const struct stack *x, const struct stack_guess *guesses)
{
	static const char *const all[] = {
		[STACK_HALVES] = "W1 and W3 of all experts have each other's gradients",
		[STACK_TURNED] = "the gradients of all experts are transposed"};
	int64_t same = 0, n_wrong = 0;
	for (int64_t e = 0; e < x->n; e++) {
		same += guesses[e].error == guesses[0].error &&
			guesses[e].from == guesses[0].from;
		n_wrong += guesses[e].error != STACK_RIGHT;
	}
	*s->detail = '\0';
	if (same == x->n && guesses[0].error == STACK_SUM)
		snprintf(s->detail, sizeof(s->detail),
			"each expert has the sum of the gradients of %lld experts, one of each "
			"rank: summed over ranks that have other experts?",
			(long long)guesses[0].from);
	else if (same == x->n &&
		 (guesses[0].error == STACK_HALVES || guesses[0].error == STACK_TURNED))
		snprintf(s->detail, sizeof(s->detail), "%s", all[guesses[0].error]);
	else
		for (int64_t e = 0, listed = 0; e < x->n && listed < 4; e++) {
			if (guesses[e].error == STACK_RIGHT)
				continue;
			describe_guess(s, e, &guesses[e]);
			if (++listed == 4 && n_wrong > 4)
				snprintf(s->detail + strlen(s->detail),
					sizeof(s->detail) - strlen(s->detail),
					"; and %lld more experts",
					(long long)(n_wrong - 4));
		}
}

/* Returns true if the guesses are few kinds of errors, which make the stack right within its bound.
 * Factors explain single experts only, and sums all experts or none. */
static bool are_guesses_right(
	struct cause_search *s, const struct stack *x, const struct stack_guess *guesses)
{
	const int64_t n = x->n * x->block;
	int64_t n_wrong = 0, n_factors = 0, n_sums = 0;
	float *g = xcalloc((size_t)max64(1, n), sizeof(*g));
	for (int64_t e = 0; e < x->n; e++) {
		set_guessed(x, e, &guesses[e], g + e * x->block);
		n_wrong += guesses[e].error != STACK_RIGHT;
		n_factors += guesses[e].error == STACK_FACTOR;
		n_sums += guesses[e].error == STACK_SUM;
	}
	const struct products p = products_of(x->seen, g, n);
	free(g);
	return n_wrong && 2 * n_factors <= x->n && (!n_sums || n_sums == x->n) &&
	       p.bb > 0 && is_within(s->c, s->tensor, residual_of(&p, x->scale));
}

bool explained_by_experts_of_stack(struct cause_search *s)
{
	struct stack x = stack_of(s);
	if (x.n < 2 || !(x.scale > 0))
		return false;
	const double bound = s->c->tensors[s->tensor].gradient.bound;
	const struct products p = products_of(x.right, x.right, x.n * x.block);
	const double enough = bound * bound * p.aa / (double)x.n;
	x.guessed = xcalloc((size_t)x.block, sizeof(*x.guessed));
	x.skipped = xcalloc((size_t)x.n, sizeof(*x.skipped));
	find_skipped(s, &x);
	struct stack_guess *guesses = xcalloc((size_t)x.n, sizeof(*guesses));
	for (int64_t e = 0; e < x.n; e++)
		guesses[e] = find_guess(&x, e, enough);
	const bool found = are_guesses_right(s, &x, guesses);
	if (found)
		describe_stack(s, &x, guesses);
	free(guesses);
	free(x.guessed);
	free(x.skipped);
	return found;
}
