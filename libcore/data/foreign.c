/* Tokenizers of an unknown kind, from files of other programs: with the vocabulary one can train and
 * decode, but not encode. */
#include "data/data.h"

#include <ctype.h>
#include <string.h>

enum { MAX_NAME = 64 };

struct foreign {
	struct tokenizer_kind kind;
	char name[MAX_NAME + 1];
};

static int ready(struct tokenizer *t, struct err *e)
{
	(void)t, (void)e;
	return 0;
}

static int64_t encode(const struct tokenizer *t, const char *text, int64_t n, bool final,
	uint32_t *out, int64_t room, int64_t *n_out, struct err *e)
{
	(void)text, (void)n, (void) final, (void)out, (void)room;
	*n_out = 0;
	err_set(e, EX_DATAERR, "this program cannot encode with tokenizer '%s'",
		t->kind->name);
	return TEXT_BAD(0);
}

int tokenizer_init_foreign(struct tokenizer *t, const char *kind, struct err *e)
{
	size_t n = strlen(kind);
	*t = (struct tokenizer){0};
	bool good = n && n <= MAX_NAME;
	for (size_t i = 0; i < n && good; i++) /* because messages print it */
		good = isalnum((unsigned char)kind[i]) || strchr("-_.+", kind[i]);
	if (!good)
		return err_set(
			e, EX_DATAERR, "the kind of tokenizer is not a valid name");
	struct foreign *f = xcalloc(1, sizeof(*f));
	memcpy(f->name, kind, n);
	f->kind = (struct tokenizer_kind){
		.name = f->name, .ready = ready, .encode = encode};
	t->own = f;
	t->kind = &f->kind;
	return 0;
}
