/* Gradients of models in training: each element is the sum of its leaves, but for a rounding of
 * each leaf to the grid and one of the sum; and no leaf is near the grid's limit.
 *
 * Small models and few steps; with LONG=yes 10.7 million parameters for 500 steps, and 2,000 steps
 * of a smaller model, on tinyshakespeare (PT_SHAKESPEARE=FILE), with figures for pt(7). */
#include "tests/support/support.h"
#include "plan/fit.h"
#include "engine/step.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CHECKS = 3, DECADES = 8 };

/* Of all elements whose sum of leaves is not 0: relative errors, by the decade of that sum below the
 * largest one of its tensor. The last decade is everything below. */
struct errors {
	double *relative;
	signed char *decade;
	int64_t n, n_lost; /* of those, gradients that are 0 */
};

struct seen {
	int64_t n_leaves;	  /* of an element, in this step */
	float largest;		  /* |leaf| */
	long double *sum;	  /* NULL: this step is not checked */
	double worst[MAX_CHECKS]; /* error as a share of the bound */
};

struct watch {
	struct train_opts o;
	struct comm *alone;
	struct dataset data;
	struct trainer t;
	struct observer observer;
	struct seen *seen; /* of each tensor */
	int check;	   /* -1: not in this step */
	struct errors errors;
};

static struct err e;
static const char *shard;

/* ---- leaves ---------------------------------------------------------------------- */

static struct seen *seen_of(const struct watch *w, const struct tensor *t)
{
	return &w->seen[t - w->t.store->c.tensors];
}

static void see_leaf(void *with, const struct result *r)
{
	struct watch *w = with;
	const struct tensor *t = r->tensor;
	const struct mat leaf = r->x;
	if (r->extent != EXTENT_LEAF)
		return;
	struct seen *s = seen_of(w, t);
	const float *x = leaf.p;
	s->n_leaves += r->slice == t->first;
	w->t.d.k->amax(&w->t.d, &s->largest, leaf);
	for (int64_t i = 0; i < leaf.rows && s->sum; i++) {
		long double *sum = s->sum + tensor_index(t, r->slice, i);
		for (int64_t c = 0; c < leaf.cols; c++)
			sum[c] += (long double)x[i * leaf.cols + c];
	}
}

/* As the grid counts them. */
static int64_t leaves_of(const struct watch *w, const struct tensor *t)
{
	const struct store_config *c = &w->t.store->c;
	return c->microbatches.n_micro * t->uses * c->chunks * t->users_per_slice;
}

/* Of a leaf, times their number: 2^12 is the grid's limit. */
static double largest_sum(const struct seen *s)
{
	return (double)s->largest * (double)s->n_leaves;
}

/*
 * n leaves have errors of up to 2^-51 on the grid; their integer sum is exact. Rounding it to a double
 * and to a float is together less than 2^-24 of it: at most 2^-53, and 2^-24 / (1 + 2^-24). It differs
 * from the sum of the leaves by those n 2^-51, so there is 2^-24 of that more. The sum here has
 * an error of its own, of long doubles.
 */
static double bound(double sum, const struct seen *s)
{
	double n = (double)s->n_leaves;
	double own = n * (double)LDBL_EPSILON / 2 * largest_sum(s);
	return ldexp(fabs(sum), -24) + ldexp(n, -51) * (1 + ldexp(1, -24)) + own;
}

/* ---- gradients ------------------------------------------------------------------- */

static double largest_of(const long double *x, int64_t n)
{
	double most = 0;
	for (int64_t i = 0; i < n; i++)
		most = fmax(most, fabs((double)x[i]));
	return most;
}

static void note_error(struct errors *a, double sum, double error, double most)
{
	if (sum == 0)
		return;
	double below = floor(log10(most / fabs(sum)));
	a->decade[a->n] = (signed char)fmin(below, DECADES - 1);
	a->relative[a->n++] = error / fabs(sum);
	a->n_lost += error == fabs(sum);
}

static void check_part(void *with, const struct part *x)
{
	struct watch *w = with;
	struct seen *s = seen_of(w, x->t);
	double most = largest_of(s->sum, tensor_size(x->t));
	for (int64_t r = 0; r < x->rows; r++) {
		const float *g = x->g + r * x->cols;
		const long double *sum =
			s->sum + tensor_index(x->t, x->slice, x->row + r);
		for (int64_t c = 0; c < x->cols; c++) {
			double error = (double)fabsl((long double)g[c] - sum[c]);
			double share = error / bound((double)sum[c], s);
			note_error(&w->errors, (double)sum[c], error, most);
			s->worst[w->check] = fmax(s->worst[w->check],
				isnan(share) ? (double)INFINITY : share);
		}
	}
}

static void check_gradient(void *with)
{
	struct watch *w = with;
	if (w->check >= 0)
		store_for_each_part(
			w->t.store, true, STORE_BIT(STORE_GRAD), 0, check_part, w);
}

static void say_decades(const struct watch *w, int64_t step)
{
	const struct errors *a = &w->errors;
	double *x = xcalloc((size_t)a->n + 1, sizeof(*x));
	print_message(
		"# figure: step %lld, %lld elements, %lld of them lost: relative errors\n"
		"# figure:   decade   elements   median  largest\n",
		(long long)step, (long long)a->n, (long long)a->n_lost);
	for (int k = 0; k < DECADES; k++) {
		int n = 0;
		for (int64_t i = 0; i < a->n; i++)
			if (a->decade[i] == k)
				x[n++] = a->relative[i];
		if (!n)
			continue;
		double median = test_median(x, n); /* which sorts */
		print_message("# figure:   %3d%s %12d  %7.1e  %7.1e\n", -k,
			k == DECADES - 1 ? " and less" : "         ", n, median,
			x[n - 1]);
	}
	free(x);
}

static void say_tensors(const struct watch *w, const int *steps, int n)
{
	print_message("# figure: the largest error as a share of its bound, in steps");
	for (int i = 0; i < n; i++)
		print_message(" %d", steps[i]);
	print_message("\n");
	for (int i = 0; i < w->t.store->c.n_tensors; i++) {
		const struct tensor *t = &w->t.store->c.tensors[i];
		print_message("# figure:   %-32s %8lld x %2lld leaves", t->name,
			(long long)tensor_size(t), (long long)leaves_of(w, t));
		for (int k = 0; k < n; k++)
			print_message("  %.3f", w->seen[i].worst[k]);
		print_message("\n");
	}
}

/* ---- runs ------------------------------------------------------------------------ */

static void open_run(struct watch *w, const char *text)
{
	*w = (struct watch){.check = -1};
	if (opts_from_text(&train_program, &w->o, text, false, &e) ||
		options_check(&w->o, &e))
		die_err(&e);
	strs_add(&w->o.data, shard);
	w->alone = comm_self("alone");
	if (dataset_open(&w->data, &w->o, w->alone, &e) ||
		trainer_open(&w->t, &w->o, w->alone, &w->data, NULL, &e))
		die_err(&e);
	struct store *s = w->t.store;
	w->seen = xcalloc((size_t)s->c.n_tensors, sizeof(*w->seen));
	w->observer = (struct observer){.see = see_leaf, .with = w};
	w->t.pass.observer = &w->observer;
	w->t.before_update = check_gradient;
	w->t.before_update_with = w;
}

static void close_run(struct watch *w)
{
	trainer_close(&w->t);
	dataset_close(&w->data);
	comm_free(w->alone);
	strs_free(&w->o.data);
	free(w->seen);
}

/* `check`: its number, or -1. */
static struct step_result run_step(struct watch *w, int check)
{
	const struct store_config *c = &w->t.store->c;
	struct step_result r;
	int64_t n = 0;
	w->check = check;
	for (int i = 0; i < c->n_tensors; i++) {
		int64_t size = tensor_size(&c->tensors[i]);
		w->seen[i].n_leaves = 0;
		w->seen[i].largest = 0;
		w->seen[i].sum =
			check < 0 ? NULL : xcalloc((size_t)size, sizeof(long double));
		n += check < 0 ? 0 : size;
	}
	w->errors = (struct errors){.relative = xcalloc((size_t)n + 1, sizeof(double)),
		.decade = xcalloc((size_t)n + 1, 1)};
	step_run(&w->t, NULL, &r);
	assert_false(r.bad || r.skipped || r.coarser);
	for (int i = 0; i < c->n_tensors; i++)
		assert_int_equal(w->seen[i].n_leaves, leaves_of(w, &c->tensors[i]));
	return r;
}

static void end_step(struct watch *w)
{
	for (int i = 0; i < w->t.store->c.n_tensors; i++)
		free(w->seen[i].sum);
	free(w->errors.relative);
	free(w->errors.decade);
}

static void check_steps(const char *text, const int *steps, int n, bool say)
{
	struct watch w;
	int k = 0;
	open_run(&w, text);
	for (int step = 1; step <= steps[n - 1]; step++) {
		bool due = step == steps[k];
		run_step(&w, due ? k : -1);
		if (due && say)
			say_decades(&w, step);
		k += due;
		end_step(&w);
	}
	if (say)
		say_tensors(&w, steps, n);
	for (int i = 0; i < w.t.store->c.n_tensors; i++)
		for (k = 0; k < n; k++) {
			double worst = w.seen[i].worst[k];
			if (!(worst <= 1))
				fail_msg("%s, step %d: an error of %g of the bound",
					w.t.store->c.tensors[i].name, steps[k], worst);
		}
	close_run(&w);
}

struct peak {
	double value;
	const char *name;
	int64_t step;
	float norm;
};

static void note_peak(struct peak *p, const struct watch *w, const struct step_result *r)
{
	const struct store_config *c = &w->t.store->c;
	for (int i = 0; i < c->n_tensors; i++)
		if (largest_sum(&w->seen[i]) > p->value)
			*p = (struct peak){largest_sum(&w->seen[i]), c->tensors[i].name,
				w->t.step, r->grad_norm};
}

static void say_peak(const char *of, const struct peak *p)
{
	print_message(
		"# figure: %s: largest leaf x leaves 2^%.1f, of %s in step %lld, with "
		"a norm of %.3g\n",
		of, log2(p->value), p->name, (long long)p->step, (double)p->norm);
}

/* The largest leaf of each step times the leaves of an element, in tenths of the run and in all. */
static void look_for_peaks(const char *text, bool say)
{
	struct watch w;
	struct peak all = {0}, tenth = {0};
	char of[60];
	open_run(&w, text);
	for (int64_t step = 1; step <= w.o.steps; step++) {
		struct step_result r = run_step(&w, -1);
		note_peak(&all, &w, &r);
		note_peak(&tenth, &w, &r);
		end_step(&w);
		if (step % (w.o.steps / 10))
			continue;
		snprintf(of, sizeof(of), "up to step %lld, loss %.3f", (long long)step,
			(double)r.loss);
		if (say)
			say_peak(of, &tenth);
		tenth = (struct peak){0};
	}
	if (say)
		say_peak("in all", &all);
	assert_true(all.value > 0 && all.value < ldexp(1, 12));
	close_run(&w);
}

/* ---- small ----------------------------------------------------------------------- */

static const char gpt2[] = "arch = gpt2\nlayers = 2\nheads = 4\ndim = 32\ncontext = 16\n"
			   "batch = 8\nmicro-batch = 1\nsteps = 100\nwarmup = 2\n"
			   "lr = 0.01\ndropout = 0.1\nvirtual = tp=2\n"
			   "threads = 1\neval-every = 0\n";

/* Keys and values of which slices are used by two. */
static const char llama[] =
	"arch = llama\nlayers = 2\nheads = 4\nkv-heads = 1\ndim = 32\nffn-dim = 48\n"
	"context = 16\nbatch = 10\nmicro-batch = 2\nsteps = 20\nwarmup = 2\nlr = 0.01\n"
	"virtual = tp=2,cp=2\nthreads = 1\neval-every = 0\n";

TEST(small_models)
{
	static const int steps[] = {1, 5, 20};
	check_steps(gpt2, steps, ARRAY_LEN(steps), false);
	check_steps(llama, steps, ARRAY_LEN(steps), false);
}

TEST(small_peaks)
{
	look_for_peaks(llama, false);
}

/* ---- long ------------------------------------------------------------------------ */

/* share/presets/shakespeare-char.conf, with fewer and shorter sequences. */
static const char ten_million[] =
	"arch = gpt2\nlayers = 6\nheads = 6\ndim = 384\ncontext = 64\nact = gelu\n"
	"bias = no\ndropout = 0.2\nbatch = 8\nmicro-batch = 1\nsteps = 5000\n"
	"sampling = random\nlr = 1e-3\nmin-lr = 1e-4\nwarmup = 100\nbeta2 = 0.99\n"
	"eval-every = 0\n";

static void a_model_of_ten_million(void **state)
{
	static const int steps[] = {1, 50, 500};
	(void)state;
	check_steps(ten_million, steps, ARRAY_LEN(steps), true);
}

/* nanoGPT's run for a CPU, with a batch that is a power of two. */
static const char nanogpt[] =
	"arch = gpt2\nlayers = 4\nheads = 4\ndim = 128\ncontext = 64\nact = gelu\n"
	"bias = no\nbatch = 16\nmicro-batch = 2\nsteps = 2000\nsampling = random\n"
	"lr = 1e-3\nmin-lr = 1e-4\nwarmup = 100\nbeta2 = 0.99\neval-every = 0\n";

static void late_training(void **state)
{
	(void)state;
	look_for_peaks(nanogpt, true);
}

static int run_long(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_models),
		cmocka_unit_test(late_training),
		cmocka_unit_test(a_model_of_ten_million),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
	const char *say = getenv("LONG"), *text = getenv("PT_SHAKESPEARE");
	text = text ? text : "shared/data/tinyshakespeare.txt";
	bool all = say && !strcmp(say, "yes");
	if (all && access(text, R_OK) == 0) {
		shard = test_shard_of(text);
		return run_long();
	}
	if (all)
		print_message("# no tinyshakespeare (PT_SHAKESPEARE=FILE)\n");
	shard = test_shard(3000);
	return tests_run();
}
