/* The checkpoints of a run: names, links, removing and finding. */
#include "base/file.h"
#include "ckpt/ckpt.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

const char *ckpt_name(struct str *out, const char *folder, int64_t step)
{
	str_clear(out);
	str_printf(out, "%s/step-%08lld.h5", folder, (long long)step);
	return out->s;
}

int64_t ckpt_step(const char *name)
{
	int64_t step;
	size_t n = strlen(name);
	char digits[24];
	if (strncmp(name, "step-", 5) || n < 9 || n > 5 + sizeof(digits) ||
		!text_ends(name, ".h5"))
		return -1;
	snprintf(digits, sizeof(digits), "%.*s", (int)(n - 8), name + 5);
	return parse_int(digits, &step) || step < 0 ? -1 : step;
}

int64_t ckpt_list(const char *folder, int64_t **steps, struct err *e)
{
	int64_t n = 0;
	*steps = NULL;
	scoped_dir *d = opendir(folder);
	if (!d && errno == ENOENT)
		return 0;
	if (!d)
		return err_errno(e, folder);
	errno = 0;
	for (struct dirent *f; (f = readdir(d)); errno = 0) {
		int64_t step = ckpt_step(f->d_name);
		if (step < 0)
			continue;
		*steps = xrealloc(*steps, (size_t)(n + 1) * sizeof(**steps));
		(*steps)[n++] = step;
	}
	if (errno)
		n = err_errno(e, folder);
	if (n > 0)
		qsort(*steps, (size_t)n, sizeof(**steps), compare_int64);
	return n;
}

int ckpt_mark(const char *folder, const char *name, int64_t step, struct err *e)
{
	scoped_ptr char *link = text_printf("%s/%s", folder, name);
	scoped_ptr char *target = text_printf("step-%08lld.h5", (long long)step);
	return file_link(target, link, e);
}

int64_t ckpt_marked(const char *folder, const char *name)
{
	char target[256];
	scoped_ptr char *link = text_printf("%s/%s", folder, name);
	ssize_t n = readlink(link, target, sizeof(target) - 1);
	if (n < 0)
		return -1;
	target[n] = '\0';
	return ckpt_step(target);
}

static void remove_step(const char *folder, int64_t step)
{
	scoped_str path = {0};
	if (unlink(ckpt_name(&path, folder, step)))
		warn("%s: %s", path.s, strerror(errno));
}

void ckpt_prune(const char *folder, int64_t keep, int64_t from)
{
	struct err e = {0};
	int64_t *steps, n = ckpt_list(folder, &steps, &e);
	int64_t best = ckpt_marked(folder, "best.h5");
	if (n < 0)
		warn("%s", e.msg);
	for (int64_t i = 0; keep > 0 && i < n - keep; i++)
		if (steps[i] != best && steps[i] < from)
			remove_step(folder, steps[i]);
	free(steps);
}

/* A file or a link that a killed program has not finished: step-000000012.h5.xxx.tmp, latest.h5.xxx.tmp. */
static bool is_torn(const char *file)
{
	size_t n = durable_name(file);
	scoped_str name = {0};
	str_add(&name, file, n);
	return n && (!strcmp(name.s, "latest.h5") || !strcmp(name.s, "best.h5") ||
			    ckpt_step(name.s) >= 0);
}

void ckpt_drop_torn(const char *folder)
{
	scoped_str path = {0};
	scoped_dir *d = opendir(folder);
	for (struct dirent *f; d && (f = readdir(d));) {
		if (!is_torn(f->d_name))
			continue;
		str_clear(&path);
		str_printf(&path, "%s/%s", folder, f->d_name);
		unlink(path.s);
	}
}

void ckpt_drop(const char *folder, int64_t after, int64_t but)
{
	struct err e = {0};
	int64_t *steps, n = ckpt_list(folder, &steps, &e);
	int64_t best = ckpt_marked(folder, "best.h5");
	for (int64_t i = 0; i < n; i++)
		if (steps[i] > after && steps[i] != but)
			remove_step(folder, steps[i]);
	scoped_ptr char *mark = text_printf("%s/best.h5", folder);
	if (best > after && best != but)
		unlink(mark);
	free(steps);
	ckpt_drop_torn(folder);
}

void ckpt_of_worker(struct str *out, const char *path, int64_t worker)
{
	const char *last = "/checkpoints", *name = strrchr(path, '/');
	size_t folder = name ? (size_t)(name - path) : 0, n = strlen(last);
	bool below = folder >= n && !memcmp(path + folder - n, last, n);
	if (!worker || !below) { /* a file outside of a run is the same for all workers */
		str_puts(out, path);
		return;
	}
	str_add(out, path, folder - n);
	str_printf(out, "/worker-%lld%s%s", (long long)worker, last, name);
}

/* Checks that it is the checkpoint of worker w of that step: a directory may still have files of a
 * run with more workers. */
static int is_of_worker(
	const char *path, const struct ckpt *first, int64_t w, struct err *e)
{
	struct ckpt *c;
	if (ckpt_open(&c, path, e))
		return -1;
	bool same = c->info.worker == w && c->info.workers == first->info.workers &&
		    c->info.step == first->info.step;
	ckpt_close(c);
	return same ? 0
		    : err_set(e, EX_DATAERR,
			      "%s: %s is not the checkpoint of worker %lld of %lld",
			      first->path, path, (long long)w,
			      (long long)first->info.workers);
}

/* Checks that the other workers of that run have a checkpoint of that step. Only complete files have
 * their final names. */
static int others_have(const struct ckpt *c, struct err *e)
{
	scoped_str path = {0};
	struct stat st;
	int rc = 0;
	for (int64_t w = 1; w < c->info.workers && !c->info.worker && !rc; w++) {
		str_clear(&path);
		ckpt_of_worker(&path, c->path, w);
		if (stat(path.s, &st) && errno == ENOENT)
			rc = err_set(e, EX_DATAERR,
				"%s: worker %lld has no checkpoint of this step", c->path,
				(long long)w);
		else
			rc = is_of_worker(path.s, c, w, e);
	}
	return rc;
}

char *ckpt_newest(const char *folder, ckpt_usable *usable, ckpt_begun *begun, void *with,
	struct err *e)
{
	int64_t *steps, n = ckpt_list(folder, &steps, e);
	scoped_str path = {0};
	char *found = NULL;
	bool only_begun = false;
	for (int64_t i = n - 1; i >= 0 && !found && !e->code; i--) {
		struct ckpt *c;
		struct err why = {0};
		int rc = ckpt_open(&c, ckpt_name(&path, folder, steps[i]), &why);
		if (!rc) {
			bool whole = !ckpt_verify(c, &why);
			rc = !whole || others_have(c, &why) || usable(with, c, &why);
			only_begun = rc && whole && n == 1 && begun(c);
			ckpt_close(c);
		}
		if (rc && why.code !=
				  EX_DATAERR) /* it may be intact, and must not be lost */
			*e = why;
		else if (rc)
			warn("%s; looking for an older checkpoint", why.msg);
		else
			found = xstrdup(path.s);
	}
	if (n > 0 && !found && !e->code && !only_begun)
		err_set(e, EX_DATAERR, "%s: no checkpoint is intact%s", folder,
			advice_on(ADVICE_NO_CHECKPOINT));
	free(steps);
	return found;
}
