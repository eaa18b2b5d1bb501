/* The options and the progress that a checkpoint has saved: for programs that read checkpoints and do not
 * train, too, so this calls neither the trainer nor MPI. */
#include "engine/state.h"

/* The samples that slower workers have skipped; -1 if the checkpoint does not say, and INT64_MAX if they
 * cannot be. */
static int64_t unseen_samples(const struct ckpt *c)
{
	if (c->n_numbers < OWN_NUMBERS)
		return -1;
	double n = c->numbers[UNSEEN];
	return n >= 0 && n <= (double)c->info.samples ? (int64_t)n : INT64_MAX;
}

/* Are the tokens those of the samples? Workers that are slower than others skip some; what has parameters
 * only, as pt-ckpt makes it of any run, does not say how many. */
static bool tokens_agree(const struct ckpt *c, const struct train_opts *saved)
{
	const struct ckpt_info *i = &c->info;
	int64_t context = saved->model.context, unseen = unseen_samples(c);
	int64_t used = i->tokens / context;
	if (i->tokens % context || i->samples > INT64_MAX / context)
		return false;
	if (unseen < 0 && c->groups.n == 1)
		return used <= i->samples;
	return used == i->samples - max64(0, unseen);
}

/* The tensors that all models of these options have but for the number of their layers, which may be any: a model
 * of one layer. *of_layer: how many of them are the layer's. */
static int one_layer(const struct ckpt *c, const struct model_config *options,
	struct model *m, int64_t *of_layer, struct err *e)
{
	struct model_config one = *options;
	int64_t vocab = c->tokenizer.kind ? c->tokenizer.vocab.n : one.vocab;
	one.layers = 1;
	if (model_init(m, &one, max64(1, vocab), e)) {
		e->code = EX_DATAERR; /* not options of this command line */
		return err_prefix(e, "%s: ", c->path);
	}
	for (int i = 0; i < m->n_tensors; i++)
		*of_layer += m->tensors[i].unit == 1;
	if (vocab)
		return 0;
	m->tokens->dims[0] = 0; /* any */
	m->output->dims[0] = 0;
	return 0;
}

/* The tensor of a model that has this name in a file; NULL: none. */
static const struct tensor *find_tensor(
	const struct model *m, int64_t layers, const char *name)
{
	static const char first[] = "layers.0.";
	const size_t n = sizeof("layers.") - 1;
	const char *rest = NULL; /* behind layers.N */
	if (!strncmp(name, first, n)) {
		char *end;
		long long layer = strtoll(name + n, &end, 10);
		if (end == name + n || layer < 0 || layer >= layers || *end != '.')
			return NULL;
		rest = end + 1;
	}
	for (int i = 0; i < m->n_tensors; i++) {
		const struct tensor *t = &m->tensors[i];
		bool of_layer = t->unit == 1;
		if (rest ? of_layer && !strcmp(t->name + sizeof(first) - 1, rest)
			 : !of_layer && !strcmp(t->name, name))
			return t;
	}
	return NULL;
}

static int check_shape(const struct ckpt *c, const struct ckpt_tensor *f,
	const struct tensor *t, struct err *e)
{
	if (f->ndim == t->ndim && (!t->dims[0] || f->dims[0] == t->dims[0]) &&
		(t->ndim == 1 || f->dims[1] == t->dims[1]))
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: %s is [%lld, %lld], and by its options [%lld, %lld]", c->path,
		f->name, (long long)f->dims[0], (long long)ckpt_row_size(f),
		(long long)t->dims[0], (long long)(t->ndim == 1 ? 1 : t->dims[1]));
}

int state_shapes(const struct ckpt *c, const struct model_config *options, bool whole,
	struct err *e)
{
	struct model m;
	int64_t of_layer = 0, n_known = 0;
	int rc = 0;
	if (one_layer(c, options, &m, &of_layer, e))
		return -1;
	int64_t n = m.n_tensors + (options->layers - 1) * of_layer;
	for (int i = 0; i < c->n_tensors && !rc; i++) {
		const struct tensor *t =
			find_tensor(&m, options->layers, c->tensors[i].name);
		n_known += t != NULL;
		rc = t ? check_shape(c, &c->tensors[i], t, e) : 0;
	}
	for (int i = 0; i < m.n_tensors && whole && !rc; i++)
		if (ckpt_find(c, m.tensors[i].name) < 0)
			rc = err_set(e, EX_DATAERR, "%s: has no tensor %s: another model",
				c->path, m.tensors[i].name);
	model_free(&m);
	/* (pt-ckpt extracts some parameters and renames tensors) */
	bool part = c->groups.n == 1 && !whole;
	if (!rc && (c->n_tensors > n || (c->n_tensors < n && !part)))
		rc = err_set(e, EX_DATAERR,
			"%s: %lld layers, and %d tensors: a model of its options has %lld",
			c->path, (long long)options->layers, c->n_tensors, (long long)n);
	else if (!rc && whole && n_known < n)
		rc = err_set(e, EX_DATAERR,
			"%s: %lld of its %d tensors have names that its model does not have: "
			"another model",
			c->path, (long long)(n - n_known), c->n_tensors);
	return rc;
}

int state_options(const struct ckpt *c, struct train_opts *saved, struct err *e)
{
	const struct ckpt_info *i = &c->info;
	if (opts_from_text(&train_program, saved, c->config.s, true, e)) {
		opts_free(&train_program, saved);
		return err_prefix(e, "%s: ", c->path);
	}
	/* (a run may have been resumed with another batch, so only its least is known; what other
	 * programs have trained has steps, and no samples) */
	bool possible = !i->samples || (i->step > 0 && i->samples >= i->step);
	if (possible && tokens_agree(c, saved)) {
		if (!state_shapes(c, &saved->model, false, e))
			return 0;
		opts_free(&train_program, saved);
		return -1;
	}
	opts_free(&train_program, saved);
	return err_set(e, EX_DATAERR,
		"%s: %lld steps, %lld samples and %lld tokens do not agree, with sequences of %lld",
		c->path, (long long)i->step, (long long)i->samples, (long long)i->tokens,
		(long long)saved->model.context);
}

int state_check(const struct ckpt *c, struct err *e)
{
	struct train_opts saved;
	if (state_options(c, &saved, e))
		return -1;
	opts_free(&train_program, &saved);
	return 0;
}
