/* Checks the options and the progress in a checkpoint, without the trainer and without MPI. */
#include "engine/state.h"

/* Returns the samples that slow workers have skipped; -1: not recorded; INT64_MAX: impossible. */
static int64_t unseen_samples(const struct ckpt *c)
{
	if (c->n_numbers < OWN_NUMBERS)
		return -1;
	double n = c->numbers[UNSEEN];
	return n >= 0 && n <= (double)c->info.samples ? (int64_t)n : INT64_MAX;
}

/* Returns true if the number of tokens matches the number of samples. Slow workers skip samples; a
 * checkpoint with only parameters, which pt-ckpt makes from any run, does not record how many. */
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

/* Returns true if all layers of the model have the same tensors. */
static bool layers_are_equal(const struct model_config *c)
{
	return !c->experts;
}

/* Makes the model of these options with a single layer, since the number of layers in a file is
 * not trusted, or if layers differ, with at most as many layers as the file has tensors.
 * *per_layer: the number of tensors of each further layer. */
static int make_small_model(const struct ckpt *c, const struct model_config *options,
	struct model *m, int64_t *per_layer, struct err *e)
{
	struct model_config one = *options;
	int64_t vocab = c->tokenizer.kind ? c->tokenizer.vocab.n : one.vocab;
	one.layers = layers_are_equal(options)
			     ? 1
			     : min64(options->layers, max64(1, c->n_tensors));
	if (model_init(m, &one, max64(1, vocab), e)) {
		e->code = EX_DATAERR; /* the options are not from the command line */
		return err_prefix(e, "%s: ", c->path);
	}
	for (int i = 0; i < m->n_tensors && layers_are_equal(options); i++)
		*per_layer += m->tensors[i].unit == 1;
	if (vocab)
		return 0;
	m->tokens->dims[0] = 0; /* any */
	m->output->dims[0] = 0;
	return 0;
}

/* Finds the tensor of the small model that corresponds to a name in the file; NULL: none. */
static const struct tensor *find_tensor(
	const struct model *m, int64_t layers, const char *name)
{
	static const char first[] = "layers.0.";
	const size_t n = sizeof("layers.") - 1;
	const char *rest = NULL; /* after layers.N. */
	if (!strncmp(name, first, n) && layers_are_equal(&m->c)) {
		char *end;
		long long layer = strtoll(name + n, &end, 10);
		if (end == name + n || layer < 0 || layer >= layers || *end != '.')
			return NULL;
		rest = end + 1;
	}
	for (int i = 0; i < m->n_tensors; i++) {
		const struct tensor *t = &m->tensors[i];
		bool per_layer = t->unit == 1 && layers_are_equal(&m->c);
		if (rest ? per_layer && !strcmp(t->name + sizeof(first) - 1, rest)
			 : !per_layer && !strcmp(t->name, name))
			return t;
	}
	return NULL;
}

/* Fails if a tensor in a file has another shape. A vocabulary of 0 rows allows any number. */
static int check_shape(const struct ckpt *c, const struct ckpt_tensor *f,
	const struct tensor *t, struct err *e)
{
	if (f->ndim == t->ndim && (!t->dims[0] || f->dims[0] == t->dims[0]) &&
		(t->ndim == 1 || f->dims[1] == t->dims[1]))
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: %s is [%lld, %lld], but the options in the file give [%lld, %lld]",
		c->path, f->name, (long long)f->dims[0], (long long)ckpt_row_size(f),
		(long long)t->dims[0], (long long)(t->ndim == 1 ? 1 : t->dims[1]));
}

int state_check_shapes(const struct ckpt *c, const struct model_config *options,
	bool whole, struct err *e)
{
	struct model m;
	int64_t per_layer = 0, n_known = 0;
	int rc = 0;
	if (make_small_model(c, options, &m, &per_layer, e))
		return -1;
	int64_t n = m.n_tensors + (options->layers - 1) * per_layer;
	for (int i = 0; i < c->n_tensors && !rc; i++) {
		const struct tensor *t =
			find_tensor(&m, options->layers, c->tensors[i].name);
		n_known += t != NULL;
		rc = t ? check_shape(c, &c->tensors[i], t, e) : 0;
	}
	for (int i = 0; i < m.n_tensors && whole && !rc; i++)
		if (ckpt_find(c, m.tensors[i].name) < 0)
			rc = err_set(e, EX_DATAERR,
				"%s: tensor %s is missing; the file holds another model",
				c->path, m.tensors[i].name);
	model_release(&m);
	/* (pt-ckpt extracts some parameters and renames tensors) */
	bool is_partial = c->groups.n == 1 && !whole;
	if (!rc && (c->n_tensors > n || (c->n_tensors < n && !is_partial)))
		rc = err_set(e, EX_DATAERR,
			"%s: the file has %d tensors, but its options, of %lld layers, specify %lld",
			c->path, c->n_tensors, (long long)options->layers, (long long)n);
	else if (!rc && whole && n_known < n)
		rc = err_set(e, EX_DATAERR,
			"%s: the model of the options lacks %lld of the %d tensors; the file "
			"holds another model",
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
	/* (a run may have been resumed with another batch, so only the smallest number of
	 * samples is known; checkpoints of other programs have steps, but no samples) */
	bool possible = !i->samples || (i->step > 0 && i->samples >= i->step);
	if (possible && tokens_agree(c, saved)) {
		if (!state_check_shapes(c, &saved->model, false, e))
			return 0;
		opts_free(&train_program, saved);
		return -1;
	}
	opts_free(&train_program, saved);
	return err_set(e, EX_DATAERR,
		"%s: %lld steps, %lld samples and %lld tokens do not match for sequences of %lld",
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
