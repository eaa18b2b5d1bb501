/* pt-check: is a step of another trainer right? */
#include "base/options.h"
#include "base/utf8.h"
#include "check/check.h"
#include "comm/comm.h"
#include "convert/convert.h"
#include "engine/backend.h"
#include "h5/h5.h"

#include <stdlib.h>
#include <string.h>

struct opts {
	struct strs batch;
	struct batch_opts how;
	struct check_opts check;
	struct adam adam;
	int64_t threads;
	bool json;
};

#define O(field) offsetof(struct opts, field)
/* clang-format off */
static const struct opt options[] = {
	{OPT_GROUP, .name = "The step"},
	{OPT_LIST, 'b', "batch", "FILE ...", NULL, O(batch), OPT_SEVERAL, .files = "", .help =
		"The tokens of the step, of all ranks and micro-batches; see BATCHES. Without it, only "
		"what needs no model is checked."},
	{OPT_STR, 0, "shape", "SEQUENCES,LENGTH", NULL, O(how.shape), .help =
		"The shape of a batch of plain integers."},
	{OPT_INT, 0, "document-end", "TOKEN", "-1", O(how.end), 0, -1, 1e9, .help =
		"The token that ends documents, within which attention stays. -1: documents begin "
		"where the positions of the batch begin again, if it has positions."},
	{OPT_DOUBLE, 0, "grad-norm", "X", "-1", O(check.grad_norm), 0, -1, 1e30, .help =
		"The norm of the gradient that the run logged for this step. Without it, clipping "
		"hides a wrong scale. -1: not known."},
	{OPT_DOUBLE, 0, "loss", "X", "-1", O(check.loss), 0, -1, 1e30, .help =
		"The loss that the run logged. -1: not known."},
	{OPT_GROUP, .name = "The other run"},
	{OPT_ENUM, 'p', "precision", NULL, "fp32", O(check.precision), .values = OPT_WORDS(RUN_PRECISION_WORDS), .help =
		"How it computed, which sets what rounding may explain. autocast: matmuls in bf16. bf16: "
		"parameters and activations, too, as with mixed precision of FSDP."},
	{OPT_DOUBLE, 0, "clip", "X", "-1", O(adam.clip), 0, -1, 1e30, .help =
		"The norm that gradients were clipped to. 0: no clipping. -1: as the files say, or not "
		"known."},
	{OPT_DOUBLE, 0, "lr", "X", "-1", O(adam.lr), 0, -1, 1e30, .help =
		"The learning rate of this step. -1: solved from the update, and only printed."},
	{OPT_DOUBLE, 0, "beta1", "X", "-1", O(adam.beta1), 0, -1, 1, .help =
		"AdamW's beta1. -1: as the files say, or 0.9."},
	{OPT_DOUBLE, 0, "beta2", "X", "-1", O(adam.beta2), 0, -1, 1, .help =
		"AdamW's beta2. -1: as the files say, or 0.95."},
	{OPT_DOUBLE, 0, "eps", "X", "-1", O(adam.eps), 0, -1, 1, .help =
		"AdamW's eps. -1: as the files say, or 1e-8."},
	{OPT_DOUBLE, 0, "weight-decay", "X", "-1", O(adam.decay), 0, -1, 1e3, .help =
		"AdamW's weight decay. -1: solved from the update, and only printed."},
	{OPT_INT, 0, "tp", "N", "1", O(check.tp), 0, 1, 4096, .help =
		"Its tensor-parallel ranks. The layout says which parts of sums are tried as causes, and "
		"names factors; it does not change what is right."},
	{OPT_INT, 0, "cp", "N", "1", O(check.cp), 0, 1, 4096, .help =
		"Its context-parallel ranks."},
	{OPT_INT, 0, "dp", "N", "1", O(check.dp), 0, 1, 1e6, .help =
		"Its data-parallel ranks that replicate parameters."},
	{OPT_INT, 0, "fsdp", "N", "1", O(check.fsdp), 0, 1, 1e6, .help =
		"Its data-parallel ranks that shard parameters."},
	{OPT_INT, 0, "accumulation", "N", "1", O(check.accumulation), 0, 1, 1e6, .help =
		"The micro-batches that a rank accumulated."},
	{OPT_GROUP, .name = "The reference"},
	{OPT_ENUM, 0, "reference", NULL, "auto", O(check.reference), .values = OPT_WORDS(REFERENCE_WORDS), .help =
		"How loss and gradients are computed here. auto: in float64 if that is a matter of about "
		"a minute, else in fp32 by the kernels of pt-train."},
	{OPT_INT, 0, "threads", "N", "0", O(threads), 0, 0, 4096, .help =
		"Number of threads. 0: the processors of the host."},
	{OPT_GROUP, .name = "Output"},
	{OPT_FLAG, 'j', "json", NULL, "no", O(json), .help =
		"Print what was found as JSON, with all tensors."},
	{OPT_END},
};
/* clang-format on */

static const char *const synopsis[] = {
	"[options] --batch FILE ... BEFORE AFTER", "[options] BEFORE AFTER", NULL};

static const struct program program = {
	.name = "pt-check",
	.summary = "say whether a step of another trainer is right",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct opts),
	.one_rank = true,
	.operands = "",
	.versions = h5_versions,
};

/* The multiplications that two cores do in about a minute in float64. */
static const double affordable = 1.5e11;

static int compute_reference(struct check *c, struct err *e)
{
	const struct variant whole = {.sequence = -1};
	const char *why = NULL;
	double work = float64_work(&c->weights.m, c->batch.length) * (double)c->batch.n;
	bool trains = reference_can_train(&c->weights, &c->batch, &why);
	if (c->o.reference == REFERENCE_AUTO)
		c->o.reference = work <= affordable || !trains ? REFERENCE_FLOAT64
							       : REFERENCE_FP32;
	if (c->o.reference == REFERENCE_FLOAT64) {
		c->computed = "float64";
		reference_float64(&c->weights, &c->batch, &whole, &c->reference);
		return 0;
	}
	c->computed = "fp32";
	if (!trains)
		return err_set(e, EX_USAGE,
			"--reference fp32 cannot compute this batch: %s", why);
	return reference_trainer(
		&c->weights, &c->batch, PRECISION_FP32, &c->reference, e);
}

/* The tokens must be the model's. */
static int check_batch(const struct check *c, struct err *e)
{
	const struct batch *b = &c->batch;
	const struct model *m = &c->weights.m;
	for (int64_t i = 0; i < b->n * b->length; i++)
		if (b->tokens[i] >= m->c.vocab || b->targets[i] >= m->c.vocab)
			return err_set(e, EX_DATAERR,
				"the batch has token %d, and the model a vocabulary of %lld",
				b->tokens[i] >= m->c.vocab ? b->tokens[i] : b->targets[i],
				(long long)m->c.vocab);
		else if (m->positions && b->pos[i] >= m->positions->dims[0])
			return err_set(e, EX_DATAERR,
				"the batch has position %d, and the model %lld of them",
				b->pos[i], (long long)m->positions->dims[0]);
	return 0;
}

static int judge(struct check *c, const struct opts *o, struct err *e)
{
	c->n = (int)c->files.n_tensors;
	c->of = xcalloc((size_t)c->n, sizeof(*c->of));
	for (int i = 0; i < c->n; i++) {
		snprintf(c->of[i].name, sizeof(c->of[i].name), "%s",
			c->files.after.tensors[i].name);
		c->of[i].n = step_files_size(&c->files, i);
		c->of[i].cause = -1;
	}
	c->order = convert_forward_order(
		c->files.after.config.s, c->files.after.tensors, c->n);
	c->has_reference = o->batch.n && step_files_have_moments(&c->files);
	if (o->batch.n && !c->has_reference)
		return err_set(e, EX_TROUBLE,
			"%s has no moments of AdamW, from which the gradient follows: save the "
			"optimizer's state too", c->files.after.name);
	if (c->has_reference &&
		(weights_read(&c->weights, &c->files.before, e) ||
			batch_read(&c->batch, o->batch.n, o->batch.v, &o->how, e) ||
			check_batch(c, e) || compute_reference(c, e) ||
			judge_gradients(c, e)))
		return -1;
	if (judge_update(c, e))
		return -1;
	if (c->has_reference)
		find_causes(c);
	return 0;
}

static void close_check(struct check *c)
{
	gradients_free(&c->reference);
	weights_free(&c->weights);
	batch_free(&c->batch);
	for (int i = 0; c->seen && i < c->n; i++)
		free(c->seen[i]);
	free(c->seen);
	free(c->of);
	free(c->order);
	step_files_close(&c->files);
}

int main(int argc, char **argv)
{
	struct opts o;
	struct err e = {0};
	struct str text = {0};
	int n = opts_parse_or_die(&program, &o, argc, argv);
	if (n != 2)
		return err_say(&(struct err){EX_USAGE,
			"give two checkpoints: before the step, and after it"});
	struct check c = {.o = o.check};
	struct comm *world = comm_open();
	struct device d; /* its threads are those of the plain loops, too */
	device_cpu(&d, (int)backend_threads(o.threads));
	int rc = step_files_open(&c.files, argv[0], argv[1], &o.adam, &e) ||
		 judge(&c, &o, &e);
	if (!rc && o.json)
		check_json(&c, &text);
	else if (!rc)
		check_print(&c, &text);
	fputs(text.s ? o.json ? text.s : text_printable(text.s) : "", stdout);
	str_free(&text);
	bool wrong = c.wrong, any = false;
	for (int i = 0; i < c.n; i++)
		any |= c.of && (c.of[i].gradient.tested || c.of[i].moments.tested);
	close_check(&c);
	device_close(&d);
	comm_close(world);
	if (rc)
		return err_say(&e);
	stdout_close();
	return wrong ? EX_FAILED : any ? 0 : EX_TROUBLE;
}
