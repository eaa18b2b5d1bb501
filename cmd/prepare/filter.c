/* Selects documents by length and by regular expressions. */
#include "prepare/pipeline.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct filter {
	int64_t min_bytes, max_bytes;
	int64_t n, n_keep;
	pcre2_code **code; /* [n], compiled; the first n_keep are from --keep */
	const char **text;
};

/* Compiles a regular expression, and adds it to f, which has space for it and borrows text. */
static int compile_expression(struct filter *f, const char *text, struct err *e)
{
	int number;
	PCRE2_SIZE at;
	pcre2_code *code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
		PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &number, &at, NULL);
	if (!code) {
		PCRE2_UCHAR why[128];
		pcre2_get_error_message(number, why, sizeof(why));
		return err_set(e, EX_USAGE,
			"%s '%.200s': byte %zu of the regular expression: %s",
			f->n < f->n_keep ? "--keep" : "--drop", text, (size_t)at,
			(const char *)why);
	}
	pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* optional: only makes it faster */
	f->text[f->n] = text;
	f->code[f->n++] = code;
	return 0;
}

struct filter *filter_new(const struct prepare *p, struct err *e)
{
	struct filter *f = xcalloc(1, sizeof(*f));
	size_t n = (size_t)(p->keep.n + p->drop.n);
	f->min_bytes = p->min_bytes;
	f->max_bytes = p->max_bytes;
	f->n_keep = p->keep.n;
	f->code = xcalloc(n + 1, sizeof(pcre2_code *));
	f->text = xcalloc(n + 1, sizeof(char *));
	int rc = 0;
	for (int64_t i = 0; i < p->keep.n && !rc; i++)
		rc = compile_expression(f, p->keep.v[i], e);
	for (int64_t i = 0; i < p->drop.n && !rc; i++)
		rc = compile_expression(f, p->drop.v[i], e);
	if (!rc)
		return f;
	filter_free(f);
	return NULL;
}

void filter_free(struct filter *f)
{
	if (!f)
		return;
	for (int64_t i = 0; i < f->n; i++)
		pcre2_code_free(f->code[i]);
	free(f->code);
	free(f->text);
	free(f);
}

bool filter_has_expressions(const struct filter *f)
{
	return f->n > 0;
}

enum fate filter_length(const struct filter *f, int64_t n_bytes)
{
	return n_bytes < f->min_bytes			? FATE_SHORT
	       : f->max_bytes && n_bytes > f->max_bytes ? FATE_LONG
							: FATE_KEPT;
}

/* Matches by compiled code; if its 32 KiB for backtracking overflow, by the interpreter. */
static int match_expression(
	const pcre2_code *code, const char *text, int64_t n, pcre2_match_data *data)
{
	PCRE2_SPTR s = (PCRE2_SPTR)text;
	int rc = pcre2_match(code, s, (size_t)n, 0, 0, data, NULL);
	return rc == PCRE2_ERROR_JIT_STACKLIMIT
		       ? pcre2_match(code, s, (size_t)n, 0, PCRE2_NO_JIT, data, NULL)
		       : rc;
}

int filter_fate(const struct filter *f, const char *text, int64_t n, struct err *e)
{
	enum fate fate = filter_length(f, n);
	if (fate != FATE_KEPT || !f->n)
		return (int)fate;
	pcre2_match_data *data = pcre2_match_data_create(1, NULL);
	for (int64_t i = 0; i < f->n && fate == FATE_KEPT; i++) {
		int rc = match_expression(f->code[i], text, n, data);
		bool keep = i < f->n_keep;
		if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
			PCRE2_UCHAR why[128];
			pcre2_get_error_message(rc, why, sizeof(why));
			pcre2_match_data_free(data);
			return err_set(e, EX_DATAERR, "%s '%.200s': %s",
				keep ? "--keep" : "--drop", f->text[i],
				(const char *)why);
		}
		if (keep && rc < 0)
			fate = FATE_NOT_KEEP;
		else if (!keep && rc >= 0)
			fate = FATE_DROP;
	}
	pcre2_match_data_free(data);
	return (int)fate;
}
