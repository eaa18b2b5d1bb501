/* The loss that balances the experts, by the names of those who define it. */
#include "check/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const balance_forms[N_BALANCE_FORMS] = {
	"auto", "none", "hf", "megatron", "deepseek", "megatron-seq"};

int balance_parse(const char *text, struct check_opts *o, struct err *e)
{
	const char *equals = strchr(text, '=');
	const size_t n = equals ? (size_t)(equals - text) : strlen(text);
	o->balance = 0;
	while (o->balance < N_BALANCE_FORMS &&
		(strlen(balance_forms[o->balance]) != n ||
			strncmp(balance_forms[o->balance], text, n) != 0))
		o->balance++;
	o->balance_loss = 0;
	const bool needs_number = o->balance > BALANCE_NONE;
	if (o->balance < N_BALANCE_FORMS && needs_number == (equals != NULL) &&
		(!equals || (!parse_double(equals + 1, &o->balance_loss) &&
				    o->balance_loss >= 0 && o->balance_loss <= 1e6)))
		return 0;
	return err_set(e, EX_USAGE,
		"--balance '%s': not auto, none, hf=X, megatron=X, deepseek=X or "
		"megatron-seq=X",
		text);
}

void balance_set(struct step_check *c, enum balance_form form, double coefficient)
{
	struct model_config *m = &c->weights.m.c;
	m->balance_over = form == BALANCE_HF	     ? BALANCE_MODEL
			  : form >= BALANCE_DEEPSEEK ? BALANCE_SEQUENCE
						     : BALANCE_MICRO_BATCH;
	c->weights.counts_plain =
		form == BALANCE_MEGATRON || form == BALANCE_MEGATRON_SEQUENCE;
	m->balance_loss =
		coefficient * (form == BALANCE_HF ? (double)m->experts_per_token : 1);
	c->weights.counted = coefficient > 0 ? &c->choices.all : NULL;
}

bool has_stored_balance(const struct step_check *c)
{
	const struct ckpt_view *v = &c->files.after;
	return !strcmp(v->format, "pt") && strstr(v->config.s, "balance-loss");
}

void balance_begin(struct step_check *c)
{
	const struct check_opts *o = &c->o;
	const int64_t micro = o->dp * o->fsdp * o->accumulation;
	struct model_config *m = &c->weights.m.c;
	c->weights.micro_batches = c->batch.n % micro ? 1 : micro;
	if (o->balance == BALANCE_AUTO && has_stored_balance(c)) {
		c->weights.counted = m->balance_loss > 0 ? &c->choices.all : NULL;
		return;
	}
	m->router_z_loss = 0;
	balance_set(c, (enum balance_form)o->balance, o->balance_loss);
}

void balance_gradients(struct step_check *c, enum balance_form form, double coefficient,
	struct gradients *g)
{
	struct model_config *m = &c->weights.m.c;
	const struct model_config saved = *m;
	const struct choices *counted = c->weights.counted;
	const bool counts_plain = c->weights.counts_plain;
	struct choices same = c->choices.all;
	const struct variant v = {.sequence = -1, .choices = &same};
	same.replay = true;
	balance_set(c, form, coefficient);
	reference_float64(&c->weights, &c->batch, &v, g);
	c->weights.counted = counted;
	c->weights.counts_plain = counts_plain;
	*m = saved;
}

/* The run's gradients as a sum of both: factors, and the squared residual. */
struct fit {
	double of_zero, of_one, residual;
};

/* Fits the run's gradients by those without a balance loss and with one of coefficient 1. */
static struct fit fit_gradients(const struct step_check *c, const struct gradients *zero,
	const struct gradients *one)
{
	double zz = 0, zo = 0, oo = 0, sz = 0, so = 0, ss = 0;
	for (int i = 0; i < c->n; i++) {
		const int k = c->tensors[i].in_model;
		for (int64_t j = 0; j < c->tensors[i].n && !c->tensors[i].frozen; j++) {
			const double z = (double)zero->g[k][j],
				     o = (double)one->g[k][j] - z,
				     s = (double)c->seen[i][j];
			zz += z * z;
			zo += z * o;
			oo += o * o;
			sz += s * z;
			so += s * o;
			ss += s * s;
		}
	}
	const double det = zz * oo - zo * zo;
	struct fit f = {.residual = INFINITY};
	if (!(det > 1e-12 * zz * oo) || !isfinite(ss))
		return f;
	f.of_zero = (sz * oo - so * zo) / det;
	f.of_one = (so * zz - sz * zo) / det;
	f.residual = ss - f.of_zero * sz - f.of_one * so;
	return f;
}

double nearest_factor(const struct step_check *c, const struct gradients *g)
{
	double ab = 0, bb = 0;
	for (int i = 0; i < c->n; i++) {
		const struct products p = products_of(
			c->seen[i], g->g[c->tensors[i].in_model], c->tensors[i].n);
		ab += c->tensors[i].frozen ? 0 : p.ab;
		bb += c->tensors[i].frozen ? 0 : p.bb;
	}
	return bb > 0 ? ab / bb : 1;
}

bool are_gradients_right(const struct step_check *c, const struct gradients *g)
{
	const double factor = nearest_factor(c, g);

	for (int i = 0; i < c->n; i++) {
		const struct tensor_check *x = &c->tensors[i];
		const struct products p =
			products_of(c->seen[i], g->g[x->in_model], x->n);
		const double norm = c->reference.norm, size = fabs(factor) * sqrt(p.bb);
		const double rounding = size > 0 ? 2 * x->lost * sqrt(p.aa) / size : 0;
		if (!x->frozen && p.bb > 1e-14 * norm * norm && x->gradient.bound < 0.5 &&
			!(residual_of(&p, factor) <= x->gradient.bound + rounding))
			return false;
	}
	return true;
}

/* A balance loss that may be the run's, and how well it fits. */
struct candidate {
	enum balance_form form;
	int64_t micro_batches;
	double coefficient, factor, residual;
};

/* Fits all forms with the current number of micro-batches, and keeps the best one. */
static void try_forms(struct step_check *c, struct candidate *best)
{
	struct gradients zero;
	balance_gradients(c, BALANCE_NONE, 0, &zero);
	for (int form = BALANCE_HF; form < N_BALANCE_FORMS; form++) {
		struct gradients one;
		balance_gradients(c, (enum balance_form)form, 1, &one);
		const struct fit f = fit_gradients(c, &zero, &one);
		if (f.residual < 0.9 * best->residual && f.of_zero > 0 && f.of_one > 0)
			*best = (struct candidate){(enum balance_form)form,
				c->weights.micro_batches, f.of_one / f.of_zero, f.of_zero,
				f.residual};
		gradients_free(&one);
	}
	gradients_free(&zero);
}

/* Adds a note about the balance loss that the gradients have. */
static void report_balance(
	struct step_check *c, enum balance_form form, double coefficient)
{
	const int64_t micro_batches = c->weights.micro_batches;
	scoped_str parts = {0};
	if (micro_batches > 1 && form < BALANCE_DEEPSEEK)
		str_printf(&parts, ", of each of %lld micro-batches",
			(long long)micro_batches);
	add_finding(c, FINDING_NOTE, NULL,
		"the gradients have a loss that balances the experts: --balance %s=%.3g%s",
		balance_forms[form], coefficient, parts.s ? parts.s : "");
}

/* Uses a balance loss if all gradients are then right. Returns true if they are. */
static bool use_if_right(struct step_check *c, const struct candidate *x)
{
	struct gradients g;
	c->weights.micro_batches = x->micro_batches;
	balance_gradients(c, x->form, x->coefficient, &g);
	if (!are_gradients_right(c, &g)) {
		gradients_free(&g);
		return false;
	}
	gradients_free(&c->reference);
	c->reference = g;
	balance_set(c, x->form, x->coefficient);
	remove_frozen_gradients(c);
	report_balance(c, x->form, x->coefficient);
	return true;
}

/* Returns true if nothing says whether the run has a balance loss. */
static bool is_balance_open(const struct step_check *c)
{
	return c->o.balance == BALANCE_AUTO && !has_stored_balance(c);
}

bool balance_suppose(struct step_check *c)
{
	const int64_t begin = c->weights.micro_batches;
	const bool is_known = c->o.dp * c->o.fsdp * c->o.accumulation > 1;
	struct candidate best = {.residual = INFINITY};
	if (!is_balance_open(c))
		return false;
	for (int64_t n = begin; n <= (is_known ? begin : c->batch.n); n++) {
		c->weights.micro_batches = n;
		if (c->batch.n % n == 0)
			try_forms(c, &best);
	}
	c->weights.micro_batches = isfinite(best.residual) ? best.micro_batches : begin;
	if (!isfinite(best.residual))
		return false;
	gradients_free(&c->reference);
	balance_gradients(c, best.form, best.coefficient, &c->reference);
	balance_set(c, best.form, best.coefficient);
	remove_frozen_gradients(c);
	c->choices.supposed = best.form;
	return true;
}

/* Tries balance losses: all forms with --balance auto, otherwise the given one; of all numbers of
 * micro-batches if the layout does not determine it. */
static void try_balance_losses(struct step_check *c)
{
	const int64_t begin = c->weights.micro_batches;
	const bool is_known = c->o.dp * c->o.fsdp * c->o.accumulation > 1;
	const bool is_given = c->o.balance != BALANCE_AUTO;
	struct candidate best = {.residual = INFINITY};
	for (int64_t n = begin; n <= (is_known ? begin : c->batch.n); n++) {
		struct candidate given = {
			(enum balance_form)c->o.balance, n, c->o.balance_loss, 1, 0};
		if (c->batch.n % n)
			continue;
		c->weights.micro_batches = n;
		if (is_given && n > begin && use_if_right(c, &given))
			return;
		if (!is_given)
			try_forms(c, &best);
	}
	if (is_given || !isfinite(best.residual) || !use_if_right(c, &best))
		c->weights.micro_batches = begin;
}

void balance_adopt(struct step_check *c)
{
	const struct model_config *m = &c->weights.m.c;
	const double each =
		c->choices.supposed == BALANCE_HF ? (double)m->experts_per_token : 1;
	const bool is_given = c->o.balance > BALANCE_NONE;
	if (!is_given && !is_balance_open(c))
		return;
	if (!are_gradients_right(c, &c->reference))
		try_balance_losses(c);
	else if (c->choices.supposed)
		report_balance(c, c->choices.supposed, m->balance_loss / each);
}
