/* Removes checkpoints: single files, or all that a retention rule does not keep. */
#include "base/file.h"
#include "ckpt/ckpt.h"
#include "ckpt/print.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

struct candidate {
	int64_t step;
	double val_loss; /* NaN: none */
	bool is_retained;
};

/* Orders by validation loss; NaN comes last. */
static int compare_losses(const void *a, const void *b)
{
	const struct candidate *x = *(const struct candidate *const *)a;
	const struct candidate *y = *(const struct candidate *const *)b;
	if (isnan(x->val_loss) || isnan(y->val_loss))
		return isnan(x->val_loss) - isnan(y->val_loss);
	return (x->val_loss > y->val_loss) - (x->val_loss < y->val_loss);
}

/* Marks as retained the `best` checkpoints with the lowest validation losses. */
static void mark_best(struct candidate *list, int64_t n, int64_t best)
{
	scoped_ptr struct candidate **sorted =
		xcalloc((size_t)n, sizeof(struct candidate *));
	for (int64_t i = 0; i < n; i++)
		sorted[i] = &list[i];
	qsort(sorted, (size_t)n, sizeof(*sorted), compare_losses);
	for (int64_t i = 0; i < min64(best, n); i++)
		sorted[i]->is_retained =
			sorted[i]->is_retained || !isnan(sorted[i]->val_loss);
}

/* Sets a candidate's loss. Marks a damaged file as retained: only pt-ckpt rm --force removes it. */
static void read_loss(struct candidate *x, const char *directory)
{
	scoped_str path = {0};
	struct err e = {0};
	struct ckpt *c;
	x->val_loss = (double)NAN;
	if (ckpt_open(&c, ckpt_set_path(&path, directory, x->step), &e)) {
		warn("%s; the file is kept", e.msg);
		x->is_retained = true;
	} else {
		x->val_loss = c->info.val_loss;
		ckpt_close(c);
	}
}

int64_t ckpt_list_outdated(const char *directory, const struct ckpt_retention *r,
	int64_t **steps, struct err *e)
{
	int64_t n = ckpt_list(directory, steps, e), n_outdated = 0;
	if (n <= 0)
		return n;
	int64_t latest = ckpt_get_link(directory, "latest.h5");
	int64_t best = ckpt_get_link(directory, "best.h5");
	scoped_ptr struct candidate *list = xcalloc((size_t)n, sizeof(*list));
	for (int64_t i = 0; i < n; i++) {
		int64_t step = (*steps)[i];
		list[i].step = step;
		list[i].is_retained = i >= n - r->last || step == latest ||
				      step == best || (r->every && step % r->every == 0);
		read_loss(&list[i], directory);
	}
	mark_best(list, n, r->best);
	for (int64_t i = 0; i < n; i++)
		if (!list[i].is_retained)
			(*steps)[n_outdated++] = list[i].step;
	return n_outdated;
}

/* Returns the directory's path, allocated, so that it ends with /checkpoints: the absolute path for
 * '.', for example. The paths of other workers are derived from it. */
static char *checkpoints_path(const char *directory)
{
	char *real =
		text_ends(directory, "/checkpoints") ? NULL : realpath(directory, NULL);
	return real ? real : xstrdup(directory);
}

int ckpt_remove(const char *directory, int64_t step, struct err *e)
{
	scoped_str first = {0}, path = {0};
	scoped_ptr char *full = checkpoints_path(directory);
	int rc = 0;
	ckpt_set_path(&first, full, step);
	for (int64_t worker = 0; !rc; worker++) {
		str_clear(&path);
		ckpt_worker_path(&path, first.s, worker);
		if (worker && (!strcmp(path.s, first.s) || access(path.s, F_OK)))
			break;
		if (unlink(path.s))
			rc = err_errno(e, path.s);
	}
	return rc;
}

int ckpt_remove_file(const char *path, bool force, struct err *e)
{
	scoped_str dir = {0};
	const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
	struct ckpt *c = NULL;
	struct stat st;
	if (lstat(path, &st))
		return err_errno(e, path);
	if (S_ISDIR(st.st_mode))
		return err_set(e, EX_DATAERR, "%s is a directory; specify files", path);
	if (ckpt_open(&c, path, e)) {
		if (e->code != EX_DATAERR || !S_ISREG(st.st_mode) ||
			ckpt_parse_step(file) < 0 || ckpt_is_other_format(path))
			return -1;
		if (!force) {
			str_puts(&dir, e->msg);
			err_set(e, e->code, "%s; --force removes it", dir.s);
			return -1;
		}
		*e = (struct err){0};
	}
	int64_t step = c ? c->info.step : -1;
	ckpt_close(c);
	if (S_ISLNK(st.st_mode))
		return err_set(
			e, EX_USAGE, "%s is a link; specify the checkpoint itself", path);
	str_printf(&dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
	bool is_linked = step >= 0 && (ckpt_get_link(dir.s, "latest.h5") == step ||
					      ckpt_get_link(dir.s, "best.h5") == step);
	if (is_linked && !force)
		return err_set(e, EX_USAGE,
			"%s is latest.h5 or best.h5; --force removes it", path);
	if (unlink(path))
		return err_errno(e, path);
	return 0;
}
