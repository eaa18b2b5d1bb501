/* Checks of adapters (LoRA): B matrices that start at zero, and wrong scales. */
#include "check/search.h"

#include <math.h>

/* Tests whether another scale of the adapters explains the wrong gradients. Sets s->detail. */
bool explained_by_adapter_scale(struct cause_search *s)
{
	const struct lora *l = &s->c->lora;
	const double rank = (double)l->rank, root = sqrt(rank), alpha = fabs(l->alpha);
	const double scales[] = {
		rank, root, 1 / root, 1 / rank, rank / alpha, root / alpha};
	for (size_t i = 0; i < ARRAY_LEN(scales) && l->used && l->rank; i++) {
		const struct variant v = {.adapter_scale = scales[i]};
		const char *text = lora_wrong_scale(l, scales[i]);
		if (!text || fabs(scales[i] - 1) < 1e-6 ||
			variant_distance(s, v, false) > s->near ||
			variant_distance(s, v, true) > s->near)
			continue;
		snprintf(s->detail, sizeof(s->detail), "%s", text);
		return true;
	}
	return false;
}

bool is_zero_lora_a(const struct step_check *c, int tensor, struct err *e)
{
	struct tensor_step t;
	bool zero = false;
	if (!c->lora.used || !text_ends(c->tensors[tensor].name, ".lora_A") ||
		tensor + 1 >= c->n)
		return false;
	if (!tensor_step_read(&t, &c->files, tensor + 1, STEP_PARAMETERS, e))
		zero = products_of(t.p0, t.p0, t.n).aa <= 0;
	tensor_step_free(&t);
	return zero;
}

void record_initial_adapters(struct step_check *c)
{
	const int n_adapters = c->weights.n_adapters;
	int n_nonzero = 0;
	for (int k = 0; k < n_adapters; k++) {
		const struct adapter *x = &c->weights.adapters[k];
		const float *b = c->weights.w[x->b];
		n_nonzero +=
			products_of(b, b, tensor_size(&c->weights.m.tensors[x->b])).aa >
			0;
	}
	c->lora.is_zero = !n_nonzero;
	if (n_nonzero && c->files.m1 >= 0 && c->files.from < 0)
		add_finding(c, FINDING_NOTE, NULL,
			"%d of %d adapters have a nonzero matrix B before the optimizer's first "
			"step",
			n_nonzero, n_adapters);
}
