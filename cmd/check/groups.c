/* Tensors that are not trained or have their own learning rate: --freeze, --lr-scale-of. */
#include "check/check.h"

#include "dialect/dialect.h"
#include "foreign/foreign.h"
#include "engine/options.h"

#include <math.h>
#include <string.h>

/* Replaces the list by a copy of the user's, if the user gave one. */
static void override_list(struct strs *list, const struct strs *asked)
{
	if (!asked || !asked->n)
		return;
	strs_free(list);
	for (int64_t i = 0; i < asked->n; i++)
		strs_add(list, asked->v[i]);
}

/* Sets frozen and lr_scale of all tensors from the model with these options. */
static int set_tensor_groups(
	struct step_check *c, const struct train_opts *o, struct err *e)
{
	const struct ckpt_view *v = &c->files.after;
	struct model m;
	if (convert_model(v, &m, e))
		return -1;
	if (options_set_groups(o, &m, e)) {
		model_release(&m);
		return -1;
	}
	for (int i = 0, k = 0; i < c->n; i++) {
		for (k = 0; strcmp(m.tensors[k].name, c->tensors[i].name) != 0;)
			k++;
		c->tensors[i].frozen = m.tensors[k].frozen;
		c->tensors[i].buffer = is_buffer_of_router(&m.tensors[k]);
		c->tensors[i].lr_scale = (double)m.tensors[k].lr_scale;
	}
	model_release(&m);
	return 0;
}

int read_groups(struct step_check *c, const struct check_job *job, struct err *e)
{
	struct train_opts o;
	if (opts_from_text(&train_program, &o, c->files.after.config.s, true, e))
		return err_prefix(e, "%s: ", c->files.after.name);
	override_list(&o.freeze, job->freeze);
	override_list(&o.lr_scale_of, job->lr_scale_of);
	c->lr_scaled = o.lr_scale_of.n > 0;
	int rc = o.freeze.n || c->lr_scaled || o.model.experts
			 ? set_tensor_groups(c, &o, e)
			 : 0;
	opts_free(&train_program, &o);
	return rc;
}

void remove_frozen_gradients(struct step_check *c)
{
	double squares = 0;
	bool any = false;
	for (int i = 0; i < c->n; i++) {
		const struct tensor_check *x = &c->tensors[i];
		float *g = c->reference.g[x->in_model];
		any |= x->frozen;
		if (x->frozen)
			memset(g, 0, (size_t)x->n * sizeof(*g));
		squares += products_of(g, g, x->n).aa;
	}
	if (any)
		c->reference.norm = sqrt(squares);
}
