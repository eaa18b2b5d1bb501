/* Reads, chooses and writes the cuBLASLt algorithms of a run's GEMMs. */
#include "engine/backend.h"
#include "engine/step.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt.h"

enum { MAX_BYTES = 1 << 20 };

/* Returns true if --gemm-algorithms is this keyword, not a file. */
static bool is_word(const struct train_opts *o, const char *word)
{
	return o->algorithms && !strcmp(o->algorithms, word);
}

bool gemm_algorithms_measured(const struct train_opts *o)
{
	return is_word(o, "measure") || (!o->algorithms && o->numerics == NUMERICS_FAST);
}

/* Appends DIRECTORY/algorithms for DIRECTORY/checkpoints/X.h5; name may be a link or directory. */
static void append_checkpoint_algorithms(const char *name, struct str *out)
{
	char *file = ckpt_find_file(name), *slash;
	for (int i = 0; i < 2 && (slash = strrchr(file, '/')); i++)
		*slash = '\0';
	str_printf(out, "%s/algorithms", file);
	free(file);
}

/* ---- reading ------------------------------------------------------------------------- */

/* Reads the file of algorithms; the text is empty if the run has none. */
static int read_algorithms(const struct train_opts *o, const char *from, struct str *path,
	struct str *text, struct err *e)
{
	bool is_file = o->algorithms && !is_word(o, "measure") && !is_word(o, "first");
	if (is_file)
		str_puts(path, o->algorithms);
	else if (from)
		append_checkpoint_algorithms(from, path);
	if (!is_file && !(from && file_exists(path->s)))
		return 0;
	if (!file_read(path->s, MAX_BYTES, text, e) && !text->len)
		err_set(e, EX_DATAERR, "%s: the file is empty", path->s);
	return e->code ? -1 : 0;
}

int gemm_algorithms_load(struct device *d, const struct train_opts *o, const char *from,
	struct comm *all, struct err *e)
{
	scoped_str path = {0}, text = {0};
	if (!d->discrete)
		return 0;
	if (all->rank == 0)
		read_algorithms(o, from, &path, &text, e);
	if (comm_agree(all, e))
		return -1;
	comm_bcast_str(all, &text, 0);
	/* (only rank 0 has the path) */
	if (text.len && device_set_algorithms(d, text.s, e) && path.len)
		err_prefix(e, "%s: ", path.s);
	return comm_agree(all, e);
}

/* Lets the first rank with a shape choose its algorithm, since no rank has all shapes. */
int gemm_algorithms_agree(struct trainer *t, struct comm *all, struct err *e)
{
	scoped_str own_text = {0}, text = {0};
	int rc = 0;
	if (!t->d.discrete || !gemm_algorithms_measured(&t->o) || all->size == 1)
		return 0;
	step_autotune(t);
	device_algorithms(&t->d, &own_text);
	device_forget_algorithms(&t->d);
	for (int r = 0; r < all->size; r++) {
		str_clear(&text);
		if (r == all->rank)
			str_add(&text, own_text.s, own_text.len);
		comm_bcast_str(all, &text, r);
		rc = rc ? rc : device_set_algorithms(&t->d, text.s, e);
	}
	return comm_agree(all, e);
}

int gemm_algorithms_save(struct device *d, const char *dir, struct err *e)
{
	scoped_str path = {0}, text = {0};
	device_algorithms(d, &text);
	str_printf(&path, "%s/algorithms", dir);
	return file_replace(path.s, &text, e);
}
