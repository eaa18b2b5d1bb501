/* Files that come with the programs, and presets, which are config files among them. */
#include "base/file.h"
#include "options/options_internal.h"

#include <math.h>
#include <unistd.h>

/* Searches $PT_SHARE, next to the installed program, and the top of a source tree. */
void share_path(struct str *out, const char *relative)
{
	char exe[4096];
	const char *env = getenv("PT_SHARE");
	str_clear(out);
	if (env) {
		str_printf(out, "%s/%s", env, relative);
		return;
	}
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	exe[n > 0 ? n : 0] = '\0';
	for (int up = 0; up < 2; up++) {
		char *slash = strrchr(exe, '/');
		if (slash)
			*slash = '\0';
	}
	str_printf(out, "%s/share/pt/%s", exe, relative);
	if (file_exists(out->s))
		return;
	str_clear(out);
	str_printf(out, "%s/share/%s", exe, relative);
}

void preset_names(struct str *dir, struct strs *names)
{
	share_path(dir, "presets");
	scoped_dir *d = opendir(dir->s);
	for (struct dirent *f; d && (f = readdir(d));) {
		char *dot = strrchr(f->d_name, '.');
		if (dot && !strcmp(dot, ".conf")) {
			*dot = '\0';
			strs_add(names, f->d_name);
		}
	}
	strs_sort(names);
}

/* Returns the millions of parameters at the end of a name such as "gpt2-1.5b", or 0. Sets
 * *family to the length of the name before them, "gpt2". */
static double parse_size_in_name(const char *name, size_t *family)
{
	const char *dash = strrchr(name, '-');
	char *end = NULL;
	double n = dash ? strtod(dash + 1, &end) : 0;
	if (!(n > 0) || !*end || end[1] || !strchr("bBmM", *end))
		return 0;
	*family = (size_t)(dash - name);
	return strchr("bB", *end) ? 1000 * n : n;
}

/* Returns the preset of the same family that is nearest in size, within a fifth, or NULL. */
static const char *find_similar_size(const char *name, const struct strs *names)
{
	const char *best = NULL;
	double nearest_ratio = 1.2;
	size_t family = 0, other = 0;
	double size = parse_size_in_name(name, &family);
	for (int i = 0; size > 0 && i < (int)names->n; i++) {
		double candidate = parse_size_in_name(names->v[i], &other);
		double ratio = fmax(candidate / size, size / candidate);
		if (candidate > 0 && family == other &&
			!strncmp(name, names->v[i], family) && ratio < nearest_ratio) {
			best = names->v[i];
			nearest_ratio = ratio;
		}
	}
	return best;
}

/* Sets the error that a preset does not exist, with a similar name as a hint. Returns -1. */
static int set_missing_preset_error(const char *name, struct err *e)
{
	char hint[DID_YOU_MEAN];
	scoped_str directory = {0};
	scoped_strs names = {0};
	preset_names(&directory, &names);
	const char *similar = find_similar_size(name, &names);
	err_set(e, EX_USAGE, "preset '%s' is not in %s%s", name, directory.s,
		similar ? did_you_mean(hint, similar, &similar, 1)
			: did_you_mean(
				  hint, name, (const char *const *)names.v, names.n));
	return -1;
}

int preset_read(const char *name, size_t max_bytes, struct str *path, struct str *text,
	struct err *e)
{
	if (strchr(name, '/'))
		return err_set(e, EX_USAGE, "preset '%s' is a path; use --config", name);
	scoped_ptr char *relative = text_printf("presets/%s.conf", name);
	share_path(path, relative);
	return file_exists(path->s) ? file_read(path->s, max_bytes, text, e)
				    : set_missing_preset_error(name, e);
}
