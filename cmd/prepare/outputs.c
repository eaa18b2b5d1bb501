/* Finds outputs that are also inputs: writing them would destroy the input. */
#include "prepare/pipeline.h"
#include "prepare/token_file.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

/* Files that exist and would be written. */
struct outputs {
	struct output {
		dev_t device;
		ino_t inode;
		char *name;
	} * v;
	int64_t n;
};

/* Adds a regular file that exists: `name`, or standard output. */
static void add_output(struct outputs *o, const char *name, bool is_stdout)
{
	struct stat st;
	if ((is_stdout ? fstat(STDOUT_FILENO, &st) : stat(name, &st)) ||
		!S_ISREG(st.st_mode))
		return;
	o->v = xgrow(o->v, o->n, sizeof(*o->v));
	o->v[o->n++] = (struct output){st.st_dev, st.st_ino, xstrdup(name)};
}

#define FIVE_DIGITS "[0-9][0-9][0-9][0-9][0-9]"

/* Adds the files whose names are the first n bytes of `out` followed by the pattern. */
static void add_outputs(struct outputs *o, const char *out, size_t n, const char *pattern)
{
	scoped_str text = {0};
	glob_t found = {0};
	for (size_t i = 0; i < n; i++) {
		if (strchr("*?[\\", out[i]))
			str_putc(&text, '\\');
		str_putc(&text, out[i]);
	}
	str_puts(&text, pattern);
	if (!glob(text.s, 0, NULL, &found))
		for (size_t i = 0; i < found.gl_pathc; i++)
			add_output(o, found.gl_pathv[i], false);
	globfree(&found);
}

/* Lists in *o every file that the options may write, with shell patterns for numbered files. */
static void find_outputs(struct outputs *o, const struct token_convert *c)
{
	static const char *const suffixes[] = {".bin", ".idx", ".mask"};
	const char *out = c->p->out;
	bool has_several_files = c->p->shard_bytes;
	if (!strcmp(out, "-")) {
		add_output(o, "standard output", true);
		return;
	}
	if (!token_format_named(c->to)) {
		add_output(o, out, false);
		if (has_several_files)
			add_outputs(o, out, strlen(out) - (text_ends(out, ".h5") ? 3 : 0),
				"-" FIVE_DIGITS ".h5");
		return;
	}
	for (size_t i = 0; i < N_SPLITS * ARRAY_LEN(suffixes); i++) {
		scoped_ptr char *pattern = text_printf("%s%s%s%s",
			text_ends(out, "/") ? "" : "_", split_names[i % N_SPLITS],
			has_several_files ? "_" FIVE_DIGITS : "", suffixes[i / N_SPLITS]);
		add_outputs(
			o, out, strlen(out) - (text_ends(out, ".bin") ? 4 : 0), pattern);
	}
}

/* Fails if an input is one of the outputs. With fd -1, the input is the file at `path`. */
static int reject_if_output(
	const struct outputs *o, const char *path, int fd, struct err *e)
{
	struct stat st;
	if (!path || (fd >= 0 ? fstat(fd, &st) : stat(path, &st)))
		return 0;
	for (int64_t i = 0; i < o->n; i++)
		if (o->v[i].device == st.st_dev && o->v[i].inode == st.st_ino)
			return err_set(e, EX_USAGE,
				"%s is an input and would be overwritten; give another --out",
				o->v[i].name);
	return 0;
}

/* Fails if a text input is also an output. Succeeds if the inputs cannot be opened. */
static int reject_text_inputs(const struct outputs *o, const struct prepare *p,
	const struct strs *operands, struct err *e)
{
	struct inputs in;
	struct err why;
	int rc = 0;
	if (inputs_open(&in, p, operands, &why)) /* prepare_run() reports the error */
		return 0;
	for (int64_t i = 0; i < in.n && !rc; i++)
		rc = reject_if_output(o, in.files[i].path, in.files[i].fd, e);
	inputs_close(&in);
	return rc;
}

/* Fails if a token file that is read is also an output. */
static int reject_token_inputs(const struct outputs *o, const struct token_convert *c,
	const struct strs *files, struct err *e)
{
	int rc = files->n ? 0 : reject_if_output(o, "", STDIN_FILENO, e);
	for (int64_t i = 0; i < files->n && !rc; i++) {
		const char *path = files->v[i];
		const struct token_format *f = strcmp(c->from, "auto")
						       ? token_format_named(c->from)
						       : token_format_detect(path);
		scoped_str name = {0};
		str_puts(&name, path);
		if (f && f->to_tokens_path)
			f->to_tokens_path(&name);
		rc = reject_if_output(
			o, name.s, strcmp(path, "-") ? -1 : STDIN_FILENO, e);
	}
	return rc;
}

int outputs_check(const struct token_convert *c, bool has_tokens,
	const struct strs *operands, struct err *e)
{
	struct outputs o = {0};
	const struct prepare *p = c->p;
	const char *const other_inputs[] = {
		c->vocab_from, p->tokenizer.vocab_files, p->chat_template};
	int rc = 0;
	find_outputs(&o, c);
	if (o.n)
		rc = has_tokens ? reject_token_inputs(&o, c, operands, e)
				: reject_text_inputs(&o, p, operands, e);
	if (o.n && c->val->n)
		rc = rc || reject_token_inputs(&o, c, c->val, e);
	for (int64_t i = 0; i < c->masks->n && !rc; i++)
		rc = reject_if_output(&o, c->masks->v[i], -1, e);
	for (size_t i = 0; i < ARRAY_LEN(other_inputs) && !rc; i++)
		rc = reject_if_output(&o, other_inputs[i], -1, e);
	for (int64_t i = 0; i < o.n; i++)
		free(o.v[i].name);
	free(o.v);
	return rc ? -1 : 0;
}
