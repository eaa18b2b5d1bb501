/* Checks of adapters (LoRA): B matrices that start at zero, and wrong scales. */
#include "check/search.h"

#include <math.h>

bool by_adapter_scale(struct cause_search *s)
{
	const struct lora *l = &s->c->lora;
	const double rank = (double)l->rank, root = sqrt(rank), alpha = fabs(l->alpha);
	const double tries[] = {
		rank, root, 1 / root, 1 / rank, rank / alpha, root / alpha};
	for (size_t i = 0; i < ARRAY_LEN(tries) && l->used && l->rank; i++) {
		const struct variant v = {.adapter_scale = tries[i]};
		const char *text = lora_wrong_scale(l, tries[i]);
		if (!text || fabs(tries[i] - 1) < 1e-6 ||
			variant_distance(s, v, false) > s->near ||
			variant_distance(s, v, true) > s->near)
			continue;
		snprintf(s->detail, sizeof(s->detail), "%s", text);
		return true;
	}
	return false;
}

bool lora_expects_zero(const struct step_check *c, int tensor, struct err *e)
{
	struct tensor_step t;
	bool zero = false;
	if (!c->lora.used || !text_ends(c->of[tensor].name, ".lora_A") ||
		tensor + 1 >= c->n)
		return false;
	if (!tensor_step_read(&t, &c->files, tensor + 1, STEP_PARAMETERS, e))
		zero = products_of(t.p0, t.p0, t.n).aa <= 0;
	tensor_step_free(&t);
	return zero;
}

void lora_check_initial(struct step_check *c)
{
	const int all = c->weights.n_adapters;
	int n = 0;
	for (int k = 0; k < all; k++) {
		const struct adapter *x = &c->weights.adapters[k];
		const float *b = c->weights.w[x->b];
		n += products_of(b, b, tensor_size(&c->weights.m.tensors[x->b])).aa > 0;
	}
	c->lora.is_zero = !n;
	if (n && c->files.m1 >= 0 && c->files.from < 0)
		add_finding(c, FINDING_NOTE, NULL,
			"B of %d of %d adapters is not zero before the optimizer's first step",
			n, all);
}
