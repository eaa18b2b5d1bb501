/* Finds the first tensor that differs between two runs. */
#include "base/file.h"
#include "ckpt/ckpt.h"
#include "compare/compare.h"
#include "compare/locate.h"
#include "foreign/foreign.h"

#include <math.h>
#include <sys/stat.h>

/* ---- two lists of hashes ---------------------------------------------------------- */

/* Orders hashes by step, phase, micro-batch and name. */
static int compare_keys(const void *x, const void *y)
{
	const struct tensor_hash *a = *(const struct tensor_hash *const *)x;
	const struct tensor_hash *b = *(const struct tensor_hash *const *)y;
	if (a->step != b->step)
		return a->step < b->step ? -1 : 1;
	if (a->phase != b->phase)
		return a->phase < b->phase ? -1 : 1;
	if (a->micro != b->micro)
		return a->micro < b->micro ? -1 : 1;
	return strcmp(a->name, b->name);
}

/* Allocates pointers to the hashes of a list, sorted by key. */
static const struct tensor_hash **sort_hashes(const struct tensor_hashes *l)
{
	const struct tensor_hash **index =
		xcalloc((size_t)l->n + 1, sizeof(const struct tensor_hash *));
	for (int64_t i = 0; i < l->n; i++)
		index[i] = &l->of[i];
	qsort(index, (size_t)l->n, sizeof(*index), compare_keys);
	return index;
}

static const struct tensor_hash *find_hash(
	const struct tensor_hash **index, int64_t n, const struct tensor_hash *key)
{
	const struct tensor_hash *const *x =
		bsearch(&key, index, (size_t)n, sizeof(*index), compare_keys);
	return x ? *x : NULL;
}

static bool hashes_differ(const struct tensor_hash *a, const struct tensor_hash *b)
{
	return !b || a->hash != b->hash || a->elements != b->elements ||
	       a->replicas_differ || b->replicas_differ;
}

/* Returns what a hash is of, for messages: "backward, gradient of". */
static const char *phase_words(const struct tensor_hash *h)
{
	static const char *const words[N_PHASES] = {
		[PHASE_PARAMETER] = "parameter before the step",
		[PHASE_FORWARD] = "forward, activation",
		[PHASE_BACKWARD] = "backward, gradient of",
		[PHASE_GRADIENT] = "sum of the gradients of",
		[PHASE_NORM] = "result of the step",
		[PHASE_STATE] = "update, optimizer state",
		[PHASE_UPDATED] = "update, parameter",
	};
	return words[h->phase];
}

/* Prints what a hash is of, such as "step 3, forward, activation layers.0". */
static void print_key(const struct tensor_hash *h, struct str *out)
{
	str_printf(out, "step %lld, ", (long long)h->step);
	if (h->micro >= 0)
		str_printf(out, "micro-batch %lld, ", (long long)h->micro);
	str_printf(out, "%s %s", phase_words(h), h->name);
}

/* Prints the statistics of a tensor; h NULL: the run did not compute it. */
static void print_values(const struct tensor_hash *h, struct str *out)
{
	char num[NUM_TEXT];
	if (!h) {
		str_puts(out, "not computed");
		return;
	}
	str_printf(out, "%lld element%s, largest %s", (long long)h->elements,
		plural(h->elements), text_float(num, h->max));
	if (h->nonfinite)
		str_printf(out, ", %lld not finite", (long long)h->nonfinite);
	if (h->replicas_differ)
		str_puts(out, ", copies on other ranks differ");
}

/* Prints tensor n, counted from 0, of those that differ. */
static void print_difference(const struct tensor_hash *a, const struct tensor_hash *b,
	int64_t n, struct str *out)
{
	str_puts(out, n == 0   ? "  first tensor that differs: "
		      : n == 1 ? "  then:\n    "
			       : "    ");
	print_key(a, out);
	str_puts(out, n ? ": " : "\n    control: ");
	print_values(a, out);
	str_puts(out, n ? "; " : "\n    test:    ");
	print_values(b, out);
	str_putc(out, '\n');
}

/* Prints the first tensor that only the test has. Returns the number of such tensors. */
static int64_t print_extra(const struct tensor_hashes *control,
	const struct tensor_hashes *test, struct str *out)
{
	scoped_ptr const struct tensor_hash **index = sort_hashes(control);
	int64_t extra = 0;
	for (int64_t i = 0; i < test->n; i++) {
		if (find_hash(index, control->n, &test->of[i]))
			continue;
		if (!extra++) {
			str_puts(out, "  only in the test: ");
			print_key(&test->of[i], out);
			str_putc(out, '\n');
		}
	}
	return extra;
}

int64_t locate_in_lists(const struct tensor_hashes *control,
	const struct tensor_hashes *test, int64_t show, struct str *out)
{
	scoped_ptr const struct tensor_hash **index = sort_hashes(test);
	int64_t n = 0;
	for (int64_t i = 0; i < control->n; i++) {
		const struct tensor_hash *a = &control->of[i];
		const struct tensor_hash *b = find_hash(index, test->n, a);
		if (!hashes_differ(a, b))
			continue;
		if (n <= show)
			print_difference(a, b, n, out);
		n++;
	}
	n += print_extra(control, test, out);
	if (n)
		str_printf(out, "  %lld of %lld tensors differ\n", (long long)n,
			(long long)control->n);
	return n;
}

/* Returns true for a regular file. (A pipe can be read only once.) */
static bool is_regular(const char *path)
{
	struct stat s;
	return strcmp(path, "-") && !stat(path, &s) && S_ISREG(s.st_mode);
}

static bool is_hash_file(const char *path)
{
	struct tensor_hashes l = {0};
	bool is_list = is_regular(path) &&
		       !tensor_hashes_read(&l, path, &(struct err){0}) && l.n > 0;
	tensor_hashes_free(&l);
	return is_list;
}

/* Compares two files of hashes, and appends the tensors that differ. Returns 1 if any
 * differ, else 0; -1 with *e set. */
static int locate_in_files(const char *control, const char *test,
	const struct locate_opts *o, struct str *out, struct err *e)
{
	struct tensor_hashes a = {0}, b = {0};
	int rc = -1;
	if (!tensor_hashes_read(&a, control, e) && !tensor_hashes_read(&b, test, e))
		rc = locate_in_lists(&a, &b, o->show, out) > 0;
	tensor_hashes_free(&a);
	tensor_hashes_free(&b);
	return rc;
}

/* ---- two checkpoints ---------------------------------------------------------------- */

/* Appends the line of a tensor that differs between two checkpoints. */
static void print_delta(const struct ckpt_delta *d, struct str *out)
{
	str_printf(out, "%s/%s: ", d->group, d->name);
	if (d->only_a || d->only_b)
		str_printf(out, "only in the %s\n", d->only_a ? "control" : "test");
	else if (d->other_shape)
		str_puts(out, "the shapes differ\n");
	else
		str_printf(out,
			"%lld of %lld elements differ, from element %lld; largest |Δ| "
			"%.3g, %lld ULP\n",
			(long long)d->n_differ, (long long)d->n, (long long)d->first,
			d->max_abs, (long long)d->max_ulp);
}

/* Appends the first 1 + show tensors that differ, unless out is NULL. Returns 1 if the checkpoints
 * differ, 0 if not, -1 with *e set. */
static int compare_checkpoints(const char *control, const char *test, int64_t show,
	struct str *out, struct err *e)
{
	struct ckpt *a = NULL, *b = NULL;
	struct ckpt_delta *list = NULL;
	int64_t n = -1;
	if (!ckpt_open(&a, control, e) && !ckpt_open(&b, test, e)) {
		scoped_ptr int *order =
			convert_forward_order(a->config.s, a->tensors, a->n_tensors);
		n = ckpt_diff(a, b, order, true, &list, e);
	}
	for (int64_t i = 0; i < n && i <= show && out; i++) {
		str_puts(out, i == 0   ? "  first tensor that differs: "
			      : i == 1 ? "  then:\n    "
				       : "    ");
		print_delta(&list[i], out);
	}
	if (n > 0 && out)
		str_printf(out, "  %lld tensor%s differ\n", (long long)n, plural(n));
	if (n >= 0)
		free(list);
	if (a)
		ckpt_close(a);
	if (b)
		ckpt_close(b);
	return n < 0 ? -1 : n > 0;
}

/* Returns true for a checkpoint; sets *e if the file cannot be read. */
static bool is_checkpoint(const char *path, struct err *e)
{
	struct ckpt *c;
	struct err why;
	if (!is_regular(path))
		return false;
	if (!ckpt_open(&c, path, &why)) {
		ckpt_close(c);
		return true;
	}
	if (why.code == EX_IOERR)
		*e = why;
	return false;
}

bool locate_are_checkpoints(const char *control, const char *test, struct err *e)
{
	return is_checkpoint(control, e) && is_checkpoint(test, e);
}

/* ---- two runs ------------------------------------------------------------------------- */

/* Bounds of the first step that differs. */
struct range {
	int64_t same;	 /* the runs are equal up to the end of this step */
	int64_t start;	 /* step of the checkpoints from[]; 0: from the start */
	int64_t differs; /* the runs differ by the end of this step; -1: unknown */
	int64_t begins;	 /* the first step that both logs have */
	char *from[2];	 /* a checkpoint of each run, of step `start` */
};

struct locating {
	const char *path[2];
	const struct locate_opts *o;
	struct run_log log[2];
	struct range range;
	char directory[4096]; /* for temporary files */
	struct held_signals signals;
	struct str *out;
};

static int64_t step_of(const struct run_log *l, int64_t row)
{
	return (int64_t)run_log_value(l, row, COL_STEP);
}

/* Returns the last step before `step` in the log; 0: none. */
static int64_t last_step_before(const struct run_log *l, int64_t step)
{
	int64_t last = 0;
	for (int64_t i = 0; i < l->n_rows; i++)
		if (step_of(l, i) < step)
			last = max64(last, step_of(l, i));
	return last;
}

static int64_t first_step(const struct run_log *l)
{
	return l->n_rows ? step_of(l, 0) : 1;
}

/* Returns the step after the last one of the shorter log; infinity: both are equally long. */
static double first_missing_step(const struct run_log *a, const struct run_log *b)
{
	int64_t x = last_step_before(a, INT64_MAX), y = last_step_before(b, INT64_MAX);
	return x == y ? INFINITY : (double)min64(x, y) + 1;
}

/* Sets the range by the first difference of losses and gradient norms in steps that both logs have;
 * without one, by the first step after one log has ended. */
static void compare_logs(struct locating *x)
{
	static const int step_columns[] = {COL_LOSS, COL_GRAD_NORM};
	const struct compare_opts by_step = {.by = COL_STEP, .common = true};
	struct run_diff d;
	double first = INFINITY;
	compare_runs(&x->log[0], &x->log[1], &by_step, &d);
	for (size_t i = 0; i < ARRAY_LEN(step_columns); i++) {
		const struct curve_diff *c = &d.curve[step_columns[i]];
		if (c->n_differ && c->first.at < first)
			first = c->first.at;
	}
	if (isinf(first))
		first = first_missing_step(&x->log[0], &x->log[1]);
	if (d.arithmetic_differs)
		arithmetic_print(&d, x->out);
	if (isinf(first) && d.verdict == VERDICT_DIFFERENT)
		str_puts(x->out,
			"  the losses and gradient norms of all steps are equal; only "
			"evaluations differ\n");
	run_diff_release(&d);
	x->range.differs = first < 0x1p53 ? (int64_t)first : -1;
	if (x->range.differs < 0)
		return;
	x->range.begins = max64(first_step(&x->log[0]), first_step(&x->log[1]));
	x->range.same = min64(last_step_before(&x->log[0], x->range.differs),
		last_step_before(&x->log[1], x->range.differs));
	str_printf(x->out, "  the logs differ from step %lld on\n",
		(long long)x->range.differs);
}

/* Appends the directory of the checkpoints of a run, which is a directory or a log in it. */
static void append_checkpoint_directory(const char *run, struct str *out)
{
	const char *slash = strrchr(run, '/');
	if (file_is_directory(run))
		str_puts(out, run);
	else if (slash)
		str_add(out, run, (size_t)(slash - run));
	else
		str_puts(out, ".");
	str_puts(out, "/checkpoints");
}

static char *checkpoint_path(const char *run, int64_t step)
{
	struct str path = {0};
	scoped_str directory = {0};
	append_checkpoint_directory(run, &directory);
	ckpt_set_path(&path, directory.s, step);
	return path.s;
}

static int64_t list_checkpoints(const char *run, int64_t **steps)
{
	scoped_str directory = {0};
	*steps = NULL;
	append_checkpoint_directory(run, &directory);
	int64_t n = ckpt_list(directory.s, steps, &(struct err){0});
	return max64(n, 0);
}

/* Narrows the range by comparing the checkpoints of a step of both runs. */
static int compare_checkpoints_of_step(struct locating *x, int64_t step, struct err *e)
{
	struct range *r = &x->range;
	char *path[2] = {
		checkpoint_path(x->path[0], step), checkpoint_path(x->path[1], step)};
	int differs = 0;
	if (r->differs < 0 || step < r->differs)
		differs = compare_checkpoints(path[0], path[1], 0, NULL, e);
	if (differs > 0) {
		r->differs = step;
		r->same = min64(r->same, r->start);
		str_printf(x->out, "  the checkpoints of step %lld differ\n",
			(long long)step);
	} else if (!differs && (r->differs < 0 || step < r->differs)) {
		r->start = step;
		r->same = max64(r->same, step);
		for (int i = 0; i < 2; i++) {
			free(r->from[i]);
			r->from[i] = path[i];
			path[i] = NULL;
		}
	}
	free(path[0]);
	free(path[1]);
	return differs < 0 ? -1 : 0;
}

/* Compares the checkpoints that both runs have, in ascending order. */
static int compare_common_checkpoints(struct locating *x, struct err *e)
{
	int64_t *a, *b, rc = 0;
	int64_t n = list_checkpoints(x->path[0], &a),
		m = list_checkpoints(x->path[1], &b);
	for (int64_t i = 0, j = 0; i < n && j < m && !rc;) {
		if (a[i] == b[j] && a[i] > 0)
			rc = compare_checkpoints_of_step(x, a[i], e);
		int64_t step = min64(a[i], b[j]);
		i += a[i] == step;
		j += b[j] == step;
	}
	free(a);
	free(b);
	return (int)rc;
}

/* Returns how to replay run i (0: control, 1: test) up to the step that differs. Borrows
 * from *x. */
static struct replay make_replay(struct locating *x, int i, int64_t first, bool narrows)
{
	static const char *const names[2][2] = {
		{"control", "test"}, {"control-steps", "test-steps"}};
	return (struct replay){.log = &x->log[i],
		.program = x->o->program[i],
		.launcher = x->o->launcher,
		.from = x->range.from[i],
		.directory = x->directory,
		.name = names[narrows][i],
		.first = first,
		.last = x->range.differs,
		.signals = &x->signals};
}

/* Replays the control, then the test, and reads their hashes into l. Returns -1 with *e set. */
static int replay_both(struct locating *x, int64_t first, bool narrows,
	struct tensor_hashes l[2], struct err *e)
{
	for (int i = 0; i < 2; i++) {
		struct replay r = make_replay(x, i, first, narrows);
		if (replay_run(&r, &l[i], e))
			return -1;
	}
	return 0;
}

/* Narrows a range of too many steps by hashes of the parameters after each step. */
static int narrow_range(struct locating *x, struct err *e)
{
	struct range *r = &x->range;
	struct tensor_hashes l[2] = {{0}};
	struct replay a = make_replay(x, 0, 0, true), b = make_replay(x, 1, 0, true);
	int64_t step;
	if (r->differs - r->same <= MAX_REPLAY_STEPS)
		return 0;
	int rc = replay_both(x, r->differs, true, l, e) ||
		 replay_find_difference(&a, &b, &step, e);
	tensor_hashes_free(&l[0]);
	tensor_hashes_free(&l[1]);
	if (rc)
		return -1;
	if (step >= 0)
		r->differs = step;
	r->same = max64(r->same, r->differs - 2);
	return 0;
}

/* Returns the first step to hash: step r->same too, as its update may be the first difference. */
static int64_t first_step_to_hash(const struct range *r)
{
	return max64(r->begins, max64(r->start + 1, r->same));
}

/* Computes both runs again and appends the first tensors that differ. Returns 1 if any differ. */
static int compare_replays(struct locating *x, struct err *e)
{
	struct tensor_hashes l[2] = {{0}};
	double begin = clock_seconds();
	int64_t first = first_step_to_hash(&x->range);
	int rc = replay_both(x, first, false, l, e);
	if (!rc) {
		if (x->range.start)
			str_printf(x->out, "  computed again from step %lld",
				(long long)x->range.start);
		else
			str_puts(x->out, "  computed again from the start");
		str_printf(x->out, " to step %lld in %.1f s\n",
			(long long)x->range.differs, clock_seconds() - begin);
		rc = locate_in_lists(&l[0], &l[1], x->o->show, x->out) > 0;
		if (!rc)
			str_puts(x->out,
				"  no tensor differs when both are computed again; the "
				"difference is not reproducible\n");
	}
	tensor_hashes_free(&l[0]);
	tensor_hashes_free(&l[1]);
	return rc;
}

/* Makes a temporary directory for files of replays, and sets x->directory. */
static int make_directory(struct locating *x, struct err *e)
{
	snprintf(x->directory, sizeof(x->directory), "%s/pt-locate-XXXXXX",
		file_temporary_directory());
	return mkdtemp(x->directory) ? 0 : err_errno(e, x->directory);
}

/* Finds the step by the logs and the checkpoints, then the tensor by replays. */
static int locate_in_runs(struct locating *x, struct err *e)
{
	int rc = 0;
	for (int i = 0; i < 2; i++)
		if (run_log_read(&x->log[i], x->path[i], e))
			return -1;
	compare_logs(x);
	if (compare_common_checkpoints(x, e))
		return -1;
	if (x->range.differs < 0) {
		str_puts(x->out, "  neither the logs nor the checkpoints differ\n");
		return 0;
	}
	replay_hold_signals(&x->signals);
	rc = make_directory(x, e);
	if (!rc) {
		rc = narrow_range(x, e);
		if (!rc)
			rc = compare_replays(x, e);
		replay_remove_files(x->directory);
	}
	replay_release_signals(&x->signals);
	return rc;
}

int locate(const char *control, const char *test, const struct locate_opts *o,
	struct str *out, struct err *e)
{
	struct locating x = {
		.path = {control, test}, .o = o, .range = {.begins = 1}, .out = out};
	if (locate_are_checkpoints(control, test, e))
		return compare_checkpoints(control, test, o->show, out, e);
	if (e->code)
		return -1;
	if (is_hash_file(control))
		return locate_in_files(control, test, o, out, e);
	int rc = locate_in_runs(&x, e);
	for (int i = 0; i < 2; i++) {
		run_log_free(&x.log[i]);
		free(x.range.from[i]);
	}
	return rc;
}
