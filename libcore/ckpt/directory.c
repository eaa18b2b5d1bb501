/* The checkpoints of a run: names and links; removes and finds checkpoints. */
#include "base/file.h"
#include "ckpt/ckpt.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

const char *ckpt_name(struct str *out, const char *directory, int64_t step)
{
	str_clear(out);
	str_printf(out, "%s/step-%08lld.h5", directory, (long long)step);
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

int64_t ckpt_list(const char *directory, int64_t **steps, struct err *e)
{
	int64_t n = 0;
	*steps = NULL;
	scoped_dir *d = opendir(directory);
	if (!d && errno == ENOENT)
		return 0;
	if (!d)
		return err_errno(e, directory);
	errno = 0;
	for (struct dirent *f; (f = readdir(d)); errno = 0) {
		int64_t step = ckpt_step(f->d_name);
		if (step < 0)
			continue;
		*steps = xrealloc(*steps, (size_t)(n + 1) * sizeof(**steps));
		(*steps)[n++] = step;
	}
	if (errno)
		n = err_errno(e, directory);
	if (n > 0)
		qsort(*steps, (size_t)n, sizeof(**steps), compare_int64);
	return n;
}

int ckpt_set_link(const char *directory, const char *name, int64_t step, struct err *e)
{
	scoped_ptr char *link = text_printf("%s/%s", directory, name);
	scoped_ptr char *target = text_printf("step-%08lld.h5", (long long)step);
	return file_link(target, link, e);
}

int64_t ckpt_get_link(const char *directory, const char *name)
{
	char target[256];
	scoped_ptr char *link = text_printf("%s/%s", directory, name);
	ssize_t n = readlink(link, target, sizeof(target) - 1);
	if (n < 0)
		return -1;
	target[n] = '\0';
	return ckpt_step(target);
}

static void remove_step(const char *directory, int64_t step)
{
	scoped_str path = {0};
	if (unlink(ckpt_name(&path, directory, step)))
		warn("%s: %s", path.s, strerror(errno));
}

void ckpt_prune(const char *directory, int64_t keep, int64_t from)
{
	struct err e = {0};
	int64_t *steps, n = ckpt_list(directory, &steps, &e);
	int64_t best = ckpt_get_link(directory, "best.h5");
	if (n < 0)
		warn("%s", e.msg);
	for (int64_t i = 0; keep > 0 && i < n - keep; i++)
		if (steps[i] != best && steps[i] < from)
			remove_step(directory, steps[i]);
	free(steps);
}

/* Returns true for an unfinished file or link of a killed program, such as latest.h5.xxx.tmp. */
static bool is_unfinished(const char *file)
{
	size_t n = durable_name(file);
	scoped_str name = {0};
	str_add(&name, file, n);
	return n && (!strcmp(name.s, "latest.h5") || !strcmp(name.s, "best.h5") ||
			    ckpt_step(name.s) >= 0);
}

void ckpt_remove_unfinished(const char *directory)
{
	scoped_str path = {0};
	scoped_dir *d = opendir(directory);
	for (struct dirent *f; d && (f = readdir(d));) {
		if (!is_unfinished(f->d_name))
			continue;
		str_clear(&path);
		str_printf(&path, "%s/%s", directory, f->d_name);
		unlink(path.s);
	}
}

void ckpt_remove_after(const char *directory, int64_t after, int64_t except)
{
	struct err e = {0};
	int64_t *steps, n = ckpt_list(directory, &steps, &e);
	int64_t best = ckpt_get_link(directory, "best.h5");
	for (int64_t i = 0; i < n; i++)
		if (steps[i] > after && steps[i] != except)
			remove_step(directory, steps[i]);
	scoped_ptr char *best_link = text_printf("%s/best.h5", directory);
	if (best > after && best != except)
		unlink(best_link);
	free(steps);
	ckpt_remove_unfinished(directory);
}

void ckpt_worker_path(struct str *out, const char *path, int64_t worker)
{
	const char *last = "/checkpoints", *name = strrchr(path, '/');
	size_t directory = name ? (size_t)(name - path) : 0, n = strlen(last);
	bool is_in_run = directory >= n && !memcmp(path + directory - n, last, n);
	if (!worker || !is_in_run) { /* all workers share a file outside of a run */
		str_puts(out, path);
		return;
	}
	str_add(out, path, directory - n);
	str_printf(out, "/worker-%lld%s%s", (long long)worker, last, name);
}

/* Fails unless the file is of worker w and the same step: it may be of an earlier run. */
static int check_worker(
	const char *path, const struct ckpt *first, int64_t w, struct err *e)
{
	struct ckpt *c;
	if (ckpt_open(&c, path, e))
		return -1;
	bool is_same = c->info.worker == w && c->info.workers == first->info.workers &&
		       c->info.step == first->info.step;
	ckpt_close(c);
	return is_same ? 0
		       : err_set(e, EX_DATAERR,
				 "%s: %s is not the checkpoint of worker %lld of %lld",
				 first->path, path, (long long)w,
				 (long long)first->info.workers);
}

/* Fails if another worker lacks this step's checkpoint. (Only complete files have final names.) */
static int check_workers(const struct ckpt *c, struct err *e)
{
	scoped_str path = {0};
	struct stat st;
	int rc = 0;
	for (int64_t w = 1; w < c->info.workers && !c->info.worker && !rc; w++) {
		str_clear(&path);
		ckpt_worker_path(&path, c->path, w);
		if (stat(path.s, &st) && errno == ENOENT)
			rc = err_set(e, EX_DATAERR,
				"%s: worker %lld has no checkpoint of this step", c->path,
				(long long)w);
		else
			rc = check_worker(path.s, c, w, e);
	}
	return rc;
}

char *ckpt_newest(const char *directory, ckpt_usable *usable, ckpt_begun *begun,
	void *arg, struct err *e)
{
	int64_t *steps, n = ckpt_list(directory, &steps, e);
	scoped_str path = {0};
	char *found = NULL;
	bool only_begun = false;
	for (int64_t i = n - 1; i >= 0 && !found && !e->code; i--) {
		struct ckpt *c;
		struct err why = {0};
		int rc = ckpt_open(&c, ckpt_name(&path, directory, steps[i]), &why);
		if (!rc) {
			bool is_intact = !ckpt_verify(c, &why);
			rc = !is_intact || check_workers(c, &why) || usable(arg, c, &why);
			only_begun = rc && is_intact && n == 1 && begun(c);
			ckpt_close(c);
		}
		if (rc && why.code != EX_DATAERR) /* may be intact, must not be lost */
			*e = why;
		else if (rc)
			warn("%s; looking for an older checkpoint", why.msg);
		else
			found = xstrdup(path.s);
	}
	if (n > 0 && !found && !e->code && !only_begun)
		err_set(e, EX_DATAERR, "%s: no checkpoint is intact%s", directory,
			advice_on(ADVICE_NO_CHECKPOINT));
	free(steps);
	return found;
}
