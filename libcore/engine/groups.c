/* --freeze and --lr-scale-of: tensors that are not trained, or have another learning rate. */
#include "engine/options.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Calls mark() for each tensor with a matching name; returns their number, or -1. The work of a
 * match is limited, since the options in a checkpoint are not trusted. */
static int64_t mark_matches(struct model *m, const char *option, const char *regex,
	size_t len, void (*mark)(struct tensor *t, double x), double x, struct err *e)
{
	enum { MATCH_LIMIT = 100000 };
	int error;
	PCRE2_SIZE pos;
	int64_t n = 0;
	pcre2_code *code = pcre2_compile((PCRE2_SPTR)regex, len, 0, &error, &pos, NULL);
	if (!code) {
		PCRE2_UCHAR why[128];
		pcre2_get_error_message(error, why, sizeof(why));
		return err_set(e, EX_USAGE, "%s: '%.*s', at character %zu: %s", option,
			(int)len, regex, pos + 1, (const char *)why);
	}
	pcre2_match_context *limits = pcre2_match_context_create(NULL);
	pcre2_set_match_limit(limits, MATCH_LIMIT);
	pcre2_match_data *match = pcre2_match_data_create_from_pattern(code, NULL);
	for (int i = 0; i < m->n_tensors && n >= 0; i++) {
		struct tensor *t = &m->tensors[i];
		int rc = pcre2_match(
			code, (PCRE2_SPTR)t->name, strlen(t->name), 0, 0, match, limits);
		if (rc >= 0) {
			mark(t, x);
			n++;
		} else if (rc != PCRE2_ERROR_NOMATCH) {
			n = err_set(e, EX_USAGE, "%s: '%.*s' takes too long to match %s",
				option, (int)len, regex, t->name);
		}
	}
	pcre2_match_data_free(match);
	pcre2_match_context_free(limits);
	pcre2_code_free(code);
	if (!n)
		return err_set(e, EX_USAGE,
			"%s: '%.*s' matches no tensor; the first are %s and %s; pt-ckpt show "
			"prints all names",
			option, (int)len, regex, m->tensors[0].name, m->tensors[1].name);
	return n;
}

static void freeze_tensor(struct tensor *t, double x)
{
	(void)x;
	t->frozen = true;
}

static void set_lr_scale(struct tensor *t, double x)
{
	t->lr_scale = (float)x;
}

int options_mark_frozen(struct model *m, const struct strs *list, struct err *e)
{
	int n_trained = 0;
	for (int64_t i = 0; i < list->n; i++)
		if (*list->v[i] && mark_matches(m, "--freeze", list->v[i],
					   strlen(list->v[i]), freeze_tensor, 0, e) < 0)
			return -1;
	for (int i = 0; i < m->n_tensors; i++)
		n_trained += !m->tensors[i].frozen;
	return n_trained
		       ? 0
		       : err_set(e, EX_USAGE,
				 "--freeze: all tensors match, so nothing would be trained");
}

/* Sets the lr_scale of the tensors that entries REGEX=X of --lr-scale-of match. */
static int set_lr_scales(struct model *m, const struct strs *list, struct err *e)
{
	for (int64_t i = 0; i < list->n; i++) {
		const char *text = list->v[i], *equals = strrchr(text, '=');
		double x;
		if (!*text)
			continue;
		if (!equals || parse_double(equals + 1, &x) || !(x >= 0 && x <= 1e6))
			return err_set(e, EX_USAGE,
				"--lr-scale-of: '%s' is not REGEX=X, with X from 0 to 1e6",
				text);
		if (x == 0)
			return err_set(e, EX_USAGE,
				"--lr-scale-of: '%s': use --freeze '%.*s'", text,
				(int)(equals - text), text);
		if (mark_matches(m, "--lr-scale-of", text, (size_t)(equals - text),
			    set_lr_scale, x, e) < 0)
			return -1;
	}
	return 0;
}

int options_set_groups(const struct train_opts *o, struct model *m, struct err *e)
{
	return options_mark_frozen(m, &o->freeze, e) ||
			       set_lr_scales(m, &o->lr_scale_of, e)
		       ? -1
		       : 0;
}

int options_model_init(
	const struct train_opts *o, struct model *m, int64_t vocab, struct err *e)
{
	if (model_init(m, &o->model, vocab, e))
		return -1;
	if (!model_check_kernels(m, e) && !options_set_groups(o, m, e))
		return 0;
	model_release(m);
	return -1;
}
