/* pt-ckpt: list, show, verify, compare, hash and remove checkpoints. */
#include "base/options.h"
#include "base/file.h"
#include "ckpt/ckpt.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct opts {
	bool optimizer, strict, options, force;
};

#define O(field) offsetof(struct opts, field)
/* clang-format off */
static const struct opt options[] = {
	{OPT_GROUP, .name = "Options"},
	{OPT_FLAG, 'a', "optimizer", NULL, "yes", O(optimizer), .help =
		"diff: compare the optimizer state too."},
	{OPT_FLAG, 's', "strict", NULL, "no", O(strict), .help =
		"diff: exit with 1 also when only attributes, options or the vocabulary differ."},
	{OPT_FLAG, 'o', "options", NULL, "no", O(options), .help =
		"show: print the options of the run instead of the tensors."},
	{OPT_FLAG, 'f', "force", NULL, "no", O(force), .help =
		"rm: also remove what latest.h5 or best.h5 points at, and damaged files."},
	{OPT_END},
};
/* clang-format on */

static const char *const synopsis[] = {
	"ls [RUN | DIRECTORY | CHECKPOINT] ...",
	"show [--options] RUN|CHECKPOINT",
	"verify RUN|CHECKPOINT ...",
	"diff [--no-optimizer] [--strict] RUN|CHECKPOINT RUN|CHECKPOINT",
	"hash RUN|CHECKPOINT ...",
	"rm [--force] CHECKPOINT ...",
	NULL,
};

static void generate(int kind, FILE *f)
{
	(void)kind;
	h5_fields_man(ckpt_fields, f);
}

static const char *const *command_names(void);

static const struct program program = {
	.name = "pt-ckpt",
	.summary = "list, show, verify, compare, hash and remove checkpoints",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct opts),
	.one_rank = true,
	.operands = ".h5",
	.words = command_names,
	.versions = h5_versions,
	.generate = generate,
	.kinds = (const char *const[]){"checkpoint", NULL},
};

/* "-" for NaN, which means none. */
static const char *number(char buf[static NUM_TEXT], double v)
{
	return isnan(v) ? "-" : text_float(buf, (float)v);
}

/* True if the attribute `format` names another format; without it, the file may be a damaged
 * checkpoint. */
static bool is_other_file(const char *path)
{
	static const struct h5_field field[] = {{"format", H5_TEXT, 0, false, NULL}, {0}};
	struct err e = {0};
	struct h5 *h;
	char *format = NULL;
	if (h5_open(&h, path, &e))
		return false;
	bool other = !h5_fields_read(h, "/", field, &format, &e) &&
		     strcmp(format, "pt-checkpoint");
	h5_close(h, &e);
	free(format);
	return other;
}

/* ---- ls -------------------------------------------------------------------------- */

/* Prints the line of a file; the first damaged file determines the exit code. */
static void list_file(const char *path, const char *mark, struct err *e)
{
	struct ckpt *c;
	struct err mine = {0};
	char loss[NUM_TEXT], val[NUM_TEXT], size[NUM_TEXT];
	if (ckpt_open(&c, path, &mine)) {
		printf("%-9s %-14s %-11s %-11s %10s  %s%s\n", "-", "-", "-", "-",
			is_other_file(path) ? "other" : "damaged", path, mark);
		err_keep_first(e, &mine);
		return;
	}
	printf("%-9lld %-14lld %-11s %-11s %10s  %s%s\n", (long long)c->info.step,
		(long long)c->info.tokens, number(loss, c->info.loss),
		number(val, c->info.val_loss), text_bytes(size, (double)c->size_bytes),
		path, mark);
	ckpt_close(c);
}

/* Lists the checkpoints of a run, or in a directory. */
static int list_directory(const char *dir, struct err *e)
{
	struct str in_run = {0}, path = {0};
	int64_t *steps;
	str_printf(&in_run, "%s/checkpoints", dir);
	const char *at = file_exists(in_run.s) ? in_run.s : dir;
	int64_t n = ckpt_list(at, &steps, e);
	int64_t latest = ckpt_marked(at, "latest.h5"), best = ckpt_marked(at, "best.h5");
	for (int64_t i = 0; i < n; i++) {
		struct str mark = {0};
		str_printf(&mark, "%s%s", steps[i] == latest ? " (latest)" : "",
			steps[i] == best ? " (best)" : "");
		list_file(ckpt_name(&path, at, steps[i]), mark.s, e);
		str_free(&mark);
	}
	int rc = n < 0 ? -1
		 : n   ? 0
		       : err_set(e, EX_DATAERR, "%s: no checkpoints found", dir);
	free(steps);
	str_free(&in_run);
	str_free(&path);
	return rc;
}

static int list(int n, char **names, const struct opts *o, struct err *e)
{
	struct stat st;
	(void)o;
	printf("%-9s %-14s %-11s %-11s %10s  %s\n", "# step", "tokens", "loss",
		"val_loss", "size", "file");
	for (int i = 0; i < (n ? n : 1); i++) {
		const char *name = n ? names[i] : ".";
		if (stat(name, &st))
			return err_set(e, EX_IOERR, "%s: %s", name, strerror(errno));
		if (!S_ISDIR(st.st_mode))
			list_file(name, "", e);
		else if (list_directory(name, e))
			return -1;
	}
	return e->code ? -1 : 0;
}

/* ---- show ------------------------------------------------------------------------ */

struct stats {
	double sum, sumsq, max;
	int64_t n, n_bad;
};

static int add_stats(void *with, int64_t first, const float *x, int64_t n)
{
	struct stats *s = with;
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

static int show_tensors(const struct ckpt *c, struct err *e)
{
	int64_t total = 0;
	printf("# %-36s %-16s %12s %11s %11s %11s\n", "tensor", "shape", "elements",
		"mean", "rms", "max|x|");
	for (int i = 0; i < c->n_tensors; i++) {
		const struct ckpt_tensor *t = &c->tensors[i];
		struct stats s = {0};
		char shape[NUM_TEXT];
		if (ckpt_each(c, CKPT_MODEL, i, add_stats, &s, e))
			return -1;
		if (t->ndim == 1)
			snprintf(shape, sizeof(shape), "[%lld]", (long long)t->dims[0]);
		else
			snprintf(shape, sizeof(shape), "[%lld, %lld]",
				(long long)t->dims[0], (long long)t->dims[1]);
		printf("%-38s %-16s %12lld %11.4g %11.4g %11.4g", t->name, shape,
			(long long)s.n, s.sum / (double)s.n, sqrt(s.sumsq / (double)s.n),
			s.max);
		if (s.n_bad)
			printf("  %lld not finite", (long long)s.n_bad);
		putchar('\n');
		total += s.n;
	}
	printf("# %lld parameters\n", (long long)total);
	return 0;
}

static int show(int n, char **names, const struct opts *o, struct err *e)
{
	struct ckpt *c;
	char loss[NUM_TEXT], val[NUM_TEXT], best[NUM_TEXT];
	(void)n;
	if (ckpt_open(&c, names[0], e))
		return -1;
	int rc = 0;
	if (o->options) {
		fputs(c->config.s, stdout);
	} else {
		printf("step = %lld\nsamples = %lld\ntokens = %lld\nloss = %s\nval_loss "
		       "= %s\n"
		       "best_val_loss = %s\nparam_hash = 0x%016llx\ntokenizer = "
		       "%s\nvocab = %lld\n"
		       "created_by = %s\n",
			(long long)c->info.step, (long long)c->info.samples,
			(long long)c->info.tokens, number(loss, c->info.loss),
			number(val, c->info.val_loss),
			number(best, c->info.best_val_loss),
			(unsigned long long)c->info.param_hash,
			c->tokenizer.kind ? c->tokenizer.kind->name : "none",
			(long long)c->tokenizer.vocab.n, c->info.created_by);
		rc = show_tensors(c, e);
	}
	ckpt_close(c);
	return rc;
}

/* ---- verify, hash ---------------------------------------------------------------- */

static int verify_one(const char *path, struct err *e)
{
	struct ckpt *c;
	uint64_t hash;
	if (ckpt_open(&c, path, e))
		return -1;
	int rc = ckpt_verify(c, e) || ckpt_param_hash(c, &hash, e);
	if (!rc && hash != c->info.param_hash)
		rc = err_set(e, EX_DATAERR,
			"%s: the parameters do not have the hash in the file", c->path);
	ckpt_close(c);
	return rc ? -1 : 0;
}

/* Checks all files; the first failure determines the exit code. */
static int verify(int n, char **names, const struct opts *o, struct err *e)
{
	(void)o;
	for (int i = 0; i < n; i++) {
		struct err mine = {0};
		if (!verify_one(names[i], &mine)) {
			printf("%s: ok\n", names[i]);
			continue;
		}
		printf("%s: %s\n", names[i],
			mine.code == EX_IOERR	  ? "cannot be read"
			: is_other_file(names[i]) ? "not a checkpoint"
						  : "DAMAGED");
		err_keep_first(e, &mine);
	}
	return e->code ? -1 : 0;
}

static int print_hash(int n, char **names, const struct opts *o, struct err *e)
{
	(void)o;
	for (int i = 0; i < n; i++) {
		struct ckpt *c;
		uint64_t hash;
		if (ckpt_open(&c, names[i], e))
			return -1;
		int rc = ckpt_param_hash(c, &hash, e);
		ckpt_close(c);
		if (rc)
			return -1;
		printf("0x%016llx  %s\n", (unsigned long long)hash, names[i]);
	}
	return 0;
}

/* ---- diff ------------------------------------------------------------------------ */

static void print_delta(const struct ckpt_delta *d)
{
	if (d->only_a || d->only_b || d->other_shape) {
		printf("%-38s %s\n", d->name,
			d->only_a   ? "only in the first"
			: d->only_b ? "only in the second"
				    : "has a different shape");
		return;
	}
	printf("%-38s %-10s %lld of %lld differ, from element %lld; max |Δ| %.4g, ",
		d->name, d->group, (long long)d->n_differ, (long long)d->n,
		(long long)d->first, d->max_abs);
	if (d->max_ulp == INT64_MAX)
		printf("NaN\n");
	else
		printf("%lld ULP\n", (long long)d->max_ulp);
}

/* The attributes as lines, without the hash of the parameters, which follows from the tensors. */
static void list_fields(const struct ckpt *c, struct str *out)
{
	for (const struct h5_field *f = ckpt_fields; f->name; f++)
		if (strcmp(f->name, "param_hash"))
			h5_field_print(out, f, &c->info);
}

static void diff_vocabulary(
	const struct tokenizer *x, const struct tokenizer *y, struct str *out)
{
	bool both = x->kind && y->kind;
	if (both ? !tokenizer_same(x, y) : x->kind != y->kind)
		str_printf(out, "  vocabulary %lld %s, %lld %s\n", (long long)x->vocab.n,
			x->kind ? x->kind->name : "none", (long long)y->vocab.n,
			y->kind ? y->kind->name : "none");
}

/* For checkpoints with equal tensors: prints all other differences, and returns their number. */
static int64_t diff_rest(
	const struct ckpt *a, const struct ckpt *b, const struct opts *o, struct err *e)
{
	const struct conf_text first = {&a->config, a->path};
	const struct conf_text second = {&b->config, b->path};
	struct str x = {0}, y = {0}, notes = {0};
	const struct conf_text fields_a = {&x, a->path}, fields_b = {&y, b->path};
	int64_t n = 0;
	list_fields(a, &x);
	list_fields(b, &y);
	int rc = conf_diff(&fields_a, &fields_b, "  ", "", ", ", &notes, e);
	diff_vocabulary(&a->tokenizer, &b->tokenizer, &notes);
	rc = rc || conf_diff(&first, &second, "  option ", "", ", ", &notes, e);
	str_free(&x);
	str_free(&y);
	if (rc) {
		str_free(&notes);
		return -1;
	}
	printf("%d tensors are equal%s%s\n%s", a->n_tensors,
		o->optimizer ? ", with their optimizer state" : "",
		notes.len ? "; these differ:" : "", notes.len ? notes.s : "");
	for (size_t i = 0; i < notes.len; i++)
		n += notes.s[i] == '\n';
	str_free(&notes);
	return n;
}

static int diff(int n, char **names, const struct opts *o, struct err *e)
{
	struct ckpt *a, *b;
	struct ckpt_delta *list_of;
	(void)n;
	if (ckpt_open(&a, names[0], e))
		return -1;
	if (ckpt_open(&b, names[1], e)) {
		ckpt_close(a);
		return -1;
	}
	int64_t n_deltas = ckpt_diff(a, b, o->optimizer, &list_of, e);
	for (int64_t i = 0; i < n_deltas; i++)
		print_delta(&list_of[i]);
	if (n_deltas >= 0)
		free(list_of);
	int64_t n_rest = n_deltas ? 0 : diff_rest(a, b, o, e);
	ckpt_close(a);
	ckpt_close(b);
	if (n_deltas < 0 || n_rest < 0)
		return -1;
	bool differ = n_deltas || (o->strict && n_rest);
	if (differ)
		e->code = EX_FAILED; /* without a message: the differences are printed */
	return differ ? -1 : 0;
}

/* ---- rm -------------------------------------------------------------------------- */

/* Removes a checkpoint, or with `force` a damaged file with the name of one; no other file. */
static int remove_one(const char *path, bool force, struct err *e)
{
	struct str dir = {0};
	const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
	struct ckpt *c = NULL;
	struct stat st;
	if (lstat(path, &st))
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	if (S_ISDIR(st.st_mode))
		return err_set(e, EX_DATAERR, "%s is a directory; name its files", path);
	if (ckpt_open(&c, path, e)) {
		if (!S_ISREG(st.st_mode) || ckpt_step(file) < 0 || is_other_file(path))
			return -1;
		if (!force) {
			str_puts(&dir, e->msg);
			err_set(e, e->code, "%s; --force removes it", dir.s);
			str_free(&dir);
			return -1;
		}
		*e = (struct err){0};
	}
	int64_t step = c ? c->info.step : -1;
	ckpt_close(c);
	if (S_ISLNK(st.st_mode))
		return err_set(
			e, EX_USAGE, "%s is a link; name the checkpoint itself", path);
	str_printf(&dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
	bool marked = step >= 0 && (ckpt_marked(dir.s, "latest.h5") == step ||
					   ckpt_marked(dir.s, "best.h5") == step);
	str_free(&dir);
	if (marked && !force)
		return err_set(e, EX_USAGE,
			"%s is the latest or the best; --force removes it", path);
	if (unlink(path))
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	return 0;
}

static int remove_all(int n, char **names, const struct opts *o, struct err *e)
{
	for (int i = 0; i < n; i++)
		if (remove_one(names[i], o->force, e))
			return -1;
	return 0;
}

/* ---- the commands ---------------------------------------------------------------- */

static const struct {
	const char *name;
	int min, max; /* operands */
	int (*run)(int n, char **names, const struct opts *o, struct err *e);
} commands[] = {
	{"ls", 0, INT32_MAX, list},
	{"show", 1, 1, show},
	{"verify", 1, INT32_MAX, verify},
	{"diff", 2, 2, diff},
	{"hash", 1, INT32_MAX, print_hash},
	{"rm", 1, INT32_MAX, remove_all},
};

static const char *const *command_names(void)
{
	static const char *names[ARRAY_LEN(commands) + 1];
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		names[i] = commands[i].name;
	return names;
}

static int run(int n, char **operands, const struct opts *o, struct err *e)
{
	const char *const *names = command_names();
	if (n < 1)
		return err_set(e, EX_USAGE,
			"give a command: ls, show, verify, diff, hash or rm");
	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		if (strcmp(operands[0], names[i]))
			continue;
		if (n - 1 < commands[i].min || n - 1 > commands[i].max)
			return err_set(e, EX_USAGE, "%s takes %s", names[i],
				commands[i].max == 1   ? "one checkpoint"
				: commands[i].max == 2 ? "two checkpoints"
						       : "one checkpoint or more");
		return commands[i].run(n - 1, operands + 1, o, e);
	}
	return opts_unknown("command", operands[0], names, ARRAY_LEN(commands), e);
}

int main(int argc, char **argv)
{
	struct opts o;
	struct err e = {0};
	int n = opts_parse_or_die(&program, &o, argc, argv);
	int rc = run(n, argv, &o, &e);
	if (rc && *e.msg)
		err_say(&e);
	stdout_close();
	return rc ? e.code : 0;
}
