/* Prints checkpoints as text: the output of ls, show, diff and prune. */
#include "ckpt/print.h"

#include "base/file.h"
#include "base/utf8.h"
#include "options/options.h"

#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_TEXT = 256 };

/* Returns the text of a number; "-" for NaN, which means none. */
static const char *number_or_dash(char buf[static NUM_TEXT], double v)
{
	return isnan(v) ? "-" : text_float(buf, (float)v);
}

/* Returns the name of a tensor or group without control characters. */
static const char *printable_name(char buf[static NAME_TEXT], const char *name)
{
	snprintf(buf, NAME_TEXT, "%s", name);
	return text_printable(buf);
}

bool ckpt_is_other_format(const char *path)
{
	static const struct h5_field field[] = {{"format", H5_TEXT, 0, false, NULL}, {0}};
	struct err e = {0};
	struct h5 *h;
	scoped_ptr char *format = NULL;
	if (h5_open(&h, path, &e))
		return e.code != EX_DATAERR;
	int rc = h5_end(h, h5_fields_read(h, "/", field, &format, &e), &e);
	return rc ? e.code != EX_DATAERR : strcmp(format, "pt-checkpoint") != 0;
}

/* Prints the line of a file in a list. Sets *e if the file is the first damaged one. */
static int print_file_line(const char *path, const char *mark, struct err *e)
{
	struct ckpt *c;
	struct err error = {0};
	char loss[NUM_TEXT], val[NUM_TEXT], size[NUM_TEXT];
	if (ckpt_open_stream(&c, path, &error)) {
		printf("%-9s %-14s %-11s %-11s %10s  %s%s\n", "-", "-", "-", "-",
			error.code == EX_IOERR	     ? "unreadable"
			: ckpt_is_other_format(path) ? "other"
						     : "damaged",
			path, mark);
		err_print_keep_first(e, &error);
		return 0;
	}
	printf("%-9lld %-14lld %-11s %-11s %10s  %s%s\n", (long long)c->info.step,
		(long long)c->info.tokens, number_or_dash(loss, c->info.loss),
		number_or_dash(val, c->info.val_loss),
		text_bytes(size, (double)c->size_bytes), path, mark);
	ckpt_close(c);
	return 0;
}

void ckpt_print_list_head(void)
{
	printf("%-9s %-14s %-11s %-11s %10s  %s\n", "# step", "tokens", "loss",
		"val_loss", "size", "file");
}

/* Returns NAME/checkpoints if that exists, as in a run, else NAME. path: its memory. */
static const char *checkpoint_directory(const char *name, struct str *path)
{
	str_printf(path, "%s/checkpoints", name);
	return file_exists(path->s) ? path->s : name;
}

/* Prints one line per checkpoint of a run's directory. Fails if there are none. A file
 * that cannot be read sets *e, and the others are still printed. */
static int print_directory(const char *dir, struct err *e)
{
	scoped_str in_run = {0}, path = {0};
	int64_t *steps;
	const char *checkpoints = checkpoint_directory(dir, &in_run);
	int64_t n = ckpt_list(checkpoints, &steps, e);
	int64_t latest = ckpt_get_link(checkpoints, "latest.h5"),
		best = ckpt_get_link(checkpoints, "best.h5");
	for (int64_t i = 0; i < n; i++) {
		scoped_ptr char *mark =
			text_printf("%s%s", steps[i] == latest ? " (latest)" : "",
				steps[i] == best ? " (best)" : "");
		print_file_line(ckpt_set_path(&path, checkpoints, steps[i]), mark, e);
	}
	int rc = n < 0 ? -1
		 : n   ? 0
		       : err_set(e, EX_DATAERR, "%s: no checkpoints found", dir);
	free(steps);
	return rc;
}

int ckpt_print_list(const char *name, struct err *e)
{
	struct stat st;
	if (!strcmp(name, "-"))
		return print_file_line(name, "", e);
	if (stat(name, &st))
		return err_errno(e, name);
	return S_ISDIR(st.st_mode) ? print_directory(name, e)
				   : print_file_line(name, "", e);
}

struct stats {
	double sum, sumsq, max;
	int64_t n, n_bad;
};

/* Adds n elements to *stats, a struct stats; counts those that are not finite. Returns 0. */
static int accumulate_stats(void *stats, int64_t first, const float *x, int64_t n)
{
	struct stats *s = stats;
	(void)first;
	for (int64_t i = 0; i < n; i++) {
		double v = (double)x[i];
		if (!isfinite(v)) {
			s->n_bad++;
			continue;
		}
		s->sum += v;
		s->sumsq += v * v;
		s->max = fabs(v) > s->max ? fabs(v) : s->max;
	}
	s->n += n;
	return 0;
}

int ckpt_print_tensors(const struct ckpt *c, const int *order, struct err *e)
{
	int64_t total = 0;
	printf("# %-36s %-16s %12s %11s %11s %11s\n", "tensor", "shape", "elements",
		"mean", "rms", "max|x|");
	for (int k = 0; k < c->n_tensors; k++) {
		int i = order ? order[k] : k;
		const struct ckpt_tensor *t = &c->tensors[i];
		struct stats s = {0};
		char shape[NUM_TEXT], name[NAME_TEXT];
		if (ckpt_for_each_block(c, CKPT_MODEL, i, accumulate_stats, &s, e))
			return -1;
		if (t->ndim == 1)
			snprintf(shape, sizeof(shape), "[%lld]", (long long)t->dims[0]);
		else
			snprintf(shape, sizeof(shape), "[%lld, %lld]",
				(long long)t->dims[0], (long long)t->dims[1]);
		printf("%-38s %-16s %12lld %11.4g %11.4g %11.4g",
			printable_name(name, t->name), shape, (long long)s.n,
			s.sum / (double)s.n, sqrt(s.sumsq / (double)s.n), s.max);
		if (s.n_bad)
			printf("  %lld not finite", (long long)s.n_bad);
		if (t->stateless)
			fputs("  frozen, without state", stdout);
		putchar('\n');
		total += s.n;
	}
	printf("# %lld parameters\n", (long long)total);
	return 0;
}

void ckpt_print_info(const struct ckpt *c)
{
	char loss[NUM_TEXT], val[NUM_TEXT], best[NUM_TEXT];
	scoped_str by = {0};
	str_puts(&by, c->info.created_by);
	printf("step = %lld\nsamples = %lld\ntokens = %lld\nloss = %s\nval_loss = %s\n"
	       "best_val_loss = %s\nparam_hash = 0x%016llx\ntokenizer = %s\nvocab = %lld\n"
	       "created_by = %s\n",
		(long long)c->info.step, (long long)c->info.samples,
		(long long)c->info.tokens, number_or_dash(loss, c->info.loss),
		number_or_dash(val, c->info.val_loss),
		number_or_dash(best, c->info.best_val_loss),
		(unsigned long long)c->info.param_hash,
		c->tokenizer.kind ? c->tokenizer.kind->name : "none",
		(long long)c->tokenizer.vocab.n, text_printable(by.s));
}

void ckpt_print_delta(const struct ckpt_delta *d)
{
	char name[NAME_TEXT], group[NAME_TEXT];
	if (d->only_a || d->only_b || d->other_shape) {
		printf("%-38s %s\n", printable_name(name, d->name),
			d->only_a   ? "only in the first"
			: d->only_b ? "only in the second"
				    : "has a different shape");
		return;
	}
	printf("%-38s %-10s %lld of %lld differ, from element %lld; max |Δ| %.4g, ",
		printable_name(name, d->name), printable_name(group, d->group),
		(long long)d->n_differ, (long long)d->n, (long long)d->first, d->max_abs);
	if (d->max_ulp == INT64_MAX)
		printf("NaN\n");
	else
		printf("%lld ULP\n", (long long)d->max_ulp);
}

/* Appends the attributes as lines, except param_hash, which follows from the tensors. */
static void append_fields(const struct ckpt *c, struct str *out)
{
	for (const struct h5_field *f = ckpt_fields; f->name; f++)
		if (strcmp(f->name, "param_hash"))
			h5_field_append(out, f, &c->info);
}

/* Appends a line if the tokenizers differ. */
static void append_vocabulary_difference(
	const struct tokenizer *x, const struct tokenizer *y, struct str *out)
{
	bool both_known = x->kind && y->kind;
	if (both_known ? !tokenizer_equal(x, y) : x->kind != y->kind)
		str_printf(out, "  vocabulary %lld %s, %lld %s\n", (long long)x->vocab.n,
			x->kind ? x->kind->name : "none", (long long)y->vocab.n,
			y->kind ? y->kind->name : "none");
}

int64_t ckpt_print_other_differences(
	const struct ckpt *a, const struct ckpt *b, bool with_optimizer, struct err *e)
{
	const struct conf_text first = {&a->config, a->path};
	const struct conf_text second = {&b->config, b->path};
	scoped_str x = {0}, y = {0}, notes = {0};
	const struct conf_text fields_a = {&x, a->path}, fields_b = {&y, b->path};
	int64_t n = 0;
	append_fields(a, &x);
	append_fields(b, &y);
	int rc = conf_diff(&fields_a, &fields_b, "  ", "", ", ", &notes, e);
	append_vocabulary_difference(&a->tokenizer, &b->tokenizer, &notes);
	rc = rc || conf_diff(&first, &second, "  option ", "", ", ", &notes, e);
	if (rc)
		return -1;
	printf("%d tensors are equal%s%s\n%s", a->n_tensors,
		with_optimizer ? ", with their optimizer state" : "",
		notes.len ? "; these differ:" : "",
		notes.len ? text_printable(notes.s) : "");
	for (size_t i = 0; i < notes.len; i++)
		n += notes.s[i] == '\n';
	return n;
}

int ckpt_copy_to_stdout(const struct ckpt *c, struct err *e)
{
	if (lseek(c->fd, 0, SEEK_SET) || copy_up_to(c->fd, STDOUT_FILENO, INT64_MAX))
		return err_set(e, EX_IOERR, "%s: cannot copy to standard output: %s",
			c->path, strerror(errno));
	return 0;
}

/* Removes the checkpoints that the rule does not retain, and prints their names; only
 * prints them with dry_run. */
static int prune_directory(
	const char *dir, const struct ckpt_retention *rule, bool dry_run, struct err *e)
{
	scoped_str path = {0};
	int64_t *steps, n = ckpt_list_outdated(dir, rule, &steps, e);
	int rc = n < 0 ? -1 : file_check_link(dir, e);
	for (int64_t i = 0; i < n && !rc; i++) {
		rc = dry_run ? 0 : ckpt_remove(dir, steps[i], e);
		if (!rc)
			printf("%s\n", ckpt_set_path(&path, dir, steps[i]));
	}
	if (n >= 0)
		free(steps);
	return rc;
}

int ckpt_print_pruned(
	const char *name, const struct ckpt_retention *rule, bool dry_run, struct err *e)
{
	scoped_str in_run = {0};
	const char *dir = checkpoint_directory(name, &in_run);
	return file_exists(dir) ? prune_directory(dir, rule, dry_run, e)
				: err_set(e, EX_IOERR, "%s: %s", dir, strerror(ENOENT));
}
