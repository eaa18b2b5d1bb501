/* The checkpoints of a run: names, marks, keeping and finding. */
#include "ckpt/ckpt.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *ckpt_name(struct str *out, const char *folder, int64_t step)
{
	str_clear(out);
	str_printf(out, "%s/step-%08lld.h5", folder, (long long)step);
	return out->s;
}

/* The step of a name, or -1. */
static int64_t step_of(const char *name)
{
	int64_t step;
	size_t n = strlen(name);
	char digits[24];
	if (strncmp(name, "step-", 5) || n < 9 || n > 5 + sizeof(digits) ||
		strcmp(name + n - 3, ".h5"))
		return -1;
	snprintf(digits, sizeof(digits), "%.*s", (int)(n - 8), name + 5);
	return parse_int(digits, &step) || step < 0 ? -1 : step;
}

static int ascending(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

int64_t ckpt_list(const char *folder, int64_t **steps)
{
	int64_t n = 0;
	*steps = NULL;
	DIR *d = opendir(folder);
	if (!d)
		return 0;
	for (struct dirent *f; (f = readdir(d));) {
		int64_t step = step_of(f->d_name);
		if (step < 0)
			continue;
		*steps = xrealloc(*steps, (size_t)(n + 1) * sizeof(**steps));
		(*steps)[n++] = step;
	}
	closedir(d);
	if (n)
		qsort(*steps, (size_t)n, sizeof(**steps), ascending);
	return n;
}

int ckpt_mark(const char *folder, const char *name, int64_t step, struct err *e)
{
	struct str link = {0}, tmp = {0}, target = {0};
	str_printf(&link, "%s/%s", folder, name);
	str_printf(&tmp, "%s/%s.tmp", folder, name);
	str_printf(&target, "step-%08lld.h5", (long long)step);
	unlink(tmp.s);
	int rc = symlink(target.s, tmp.s) || rename(tmp.s, link.s);
	if (rc)
		rc = err_set(e, EX_IOERR, "%s: %s", link.s, strerror(errno));
	str_free(&link);
	str_free(&tmp);
	str_free(&target);
	return rc;
}

int64_t ckpt_marked(const char *folder, const char *name)
{
	char target[256];
	struct str link = {0};
	str_printf(&link, "%s/%s", folder, name);
	ssize_t n = readlink(link.s, target, sizeof(target) - 1);
	str_free(&link);
	if (n < 0)
		return -1;
	target[n] = '\0';
	return step_of(target);
}

void ckpt_prune(const char *folder, int64_t keep)
{
	int64_t *steps, n = ckpt_list(folder, &steps),
			best = ckpt_marked(folder, "best.h5");
	struct str path = {0};
	for (int64_t i = 0; keep > 0 && i < n - keep; i++)
		if (steps[i] != best && unlink(ckpt_name(&path, folder, steps[i])))
			warn("%s: %s", path.s, strerror(errno));
	str_free(&path);
	free(steps);
}

char *ckpt_newest(const char *folder)
{
	int64_t *steps, n = ckpt_list(folder, &steps);
	struct str path = {0};
	char *found = NULL;
	for (int64_t i = n - 1; i >= 0 && !found; i--) {
		struct ckpt *c;
		struct err e = {0};
		int rc = ckpt_open(&c, ckpt_name(&path, folder, steps[i]), &e);
		if (!rc) {
			rc = ckpt_verify(c, &e);
			ckpt_close(c);
		}
		if (rc)
			warn("%s; looking for an older checkpoint", e.msg);
		else
			found = xstrdup(path.s);
	}
	str_free(&path);
	free(steps);
	return found;
}
