/* pt-check: checks whether a training step of another program is right. */
#include "options/options.h"
#include "draw/draw.h"
#include "base/utf8.h"
#include "check/check.h"
#include "check/run_facts.h"
#include "comm/comm.h"
#include "foreign/foreign.h"
#include "engine/backend.h"
#include "h5/h5.h"

#include <math.h>
#include <strings.h>

struct opts {
	struct strs batch, grads, reports, freeze, lr_scale_of;
	struct batch_opts how;
	struct check_opts check;
	struct adam adam;
	int64_t threads;
	struct open_options open;
	const char *grad_norm, *loss, *base, *balance;
	bool two_runs, json;
	struct opt_given given;
	struct run_facts facts;
};

#define O(field) offsetof(struct opts, field)
/* clang-format off */
static const struct opt options[] = {
	{OPT_GROUP, .name = "The step"},
	{OPT_LIST, 0, "batch", "FILE ...", NULL, O(batch), OPT_SEVERAL, .files = "", .help =
		"The tokens of the step, from all ranks and micro-batches; see BATCHES. Without "
		"this option, only the checks that need no model are made."},
	{OPT_LIST, 0, "grads", "FILE ...", NULL, O(grads), OPT_SEVERAL, .files = "", .help =
		"The gradients of the step, a dictionary of p.grad by name, saved before the "
		"optimizer's step; see GRADIENTS. These gradients are checked for any optimizer. "
		"AFTER is then optional."},
	{OPT_STR, 0, "shape", "SEQUENCES,LENGTH", NULL, O(how.shape), .help =
		"The shape of each batch file of raw integers (.u16, .u32, .i32, .i64)."},
	{OPT_INT, 0, "document-end", "TOKEN", "-1", O(how.end), 0, -1, 1e9, .help =
		"The token that ends a document; attention does not cross documents. -1: documents "
		"begin where positions restart at 0, if the batch has positions."},
	{OPT_STR, 0, "grad-norm", "X", NULL, O(grad_norm), .help =
		"The gradient norm that the run logged for this step; X,Y for two runs. Without "
		"this norm or Trainer's trainer_state.json, clipping hides a wrong scale. The norm "
		"may be off by half a unit of its last digit."},
	{OPT_STR, 0, "loss", "X", NULL, O(loss), .help =
		"The loss that the run logged, the mean over all targets of the batch. Default: "
		"the loss in Trainer's trainer_state.json, if this file exists."},
	{OPT_STR, 0, "divide-by", "counted | weights | NUMBER", "counted", O(how.divide_by), .help =
		"The divisor of the loss, which is a sum over all targets of weight times loss. "
		"counted: the number of targets that count. weights: the sum of their weights."},
	{OPT_GROUP, .name = "The other run"},
	{OPT_STR, 'c', "model-config", "FILE", NULL, O(open.config), .files = "", .help =
		"The model's configuration: the options that the tensors of a PyTorch checkpoint "
		"do not determine, such as the number of heads. The file is Hugging Face's "
		"config.json, or has options of pt-train. Default: config.json next to the "
		"checkpoint, if this file exists."},
	{OPT_STR, 0, "balance", "FORM=X", "auto", O(balance), .help =
		"The loss that balances the experts, and its coefficient; see pt-experts(7). "
		"hf=X, megatron=X, deepseek=X or none. auto: the loss in a checkpoint of pt, or else "
		"the form and coefficient that make all gradients right, which a note reports."},
	{OPT_STR, 0, "base", "MODEL", NULL, O(base), .files = "", .help =
		"The base model, if BEFORE and AFTER are adapters (LoRA) of PEFT. Default: the "
		"directory that adapter_config.json names."},
	{OPT_ENUM, 'p', "precision", NULL, "auto", O(check.precision), .values = OPT_WORDS(RUN_PRECISION_WORDS),
		.unsupported = "fp16: use autocast, which has the wider bounds of bf16", .help =
		"The precision of the run, which determines how much of a difference rounding may "
		"explain. autocast: matmuls in bf16. bf16: parameters and activations, too, as "
		"with FSDP's mixed precision. auto: the precision in the files of Trainer, or else "
		"fp32; but a step that only the bounds of bf16 allow is then not decided."},
	{OPT_DOUBLE, 0, "clip", "X", "-1", O(adam.clip), 0, -1, 1e30, .help =
		"The norm to which gradients were clipped. 0: no clipping. -1: the norm in the "
		"files, or unknown."},
	{OPT_DOUBLE, 0, "lr", "X", "-1", O(adam.lr), 0, -1, 1e30, .help =
		"The learning rate of this step. -1: the rate is estimated from the update and "
		"printed, but not checked."},
	{OPT_DOUBLE, 0, "beta1", "X", "-1", O(adam.beta1), 0, -1, 1, .help =
		"AdamW's beta1. -1: the value in the files, or else 0.9."},
	{OPT_DOUBLE, 0, "beta2", "X", "-1", O(adam.beta2), 0, -1, 1, .help =
		"AdamW's beta2. -1: the value in the files, or else 0.95."},
	{OPT_DOUBLE, 0, "eps", "X", "-1", O(adam.eps), 0, -1, 1, .help =
		"AdamW's eps. -1: the value in the files, or else 1e-8."},
	{OPT_DOUBLE, 0, "weight-decay", "X", "-1", O(adam.decay), 0, -1, 1e3, .help =
		"AdamW's weight decay. -1: estimated from the update and printed, but not checked."},
	{OPT_LIST, 0, "freeze", "REGEX", NULL, O(freeze), .help =
		"Frozen tensors, as in pt-train: a tensor is frozen if its name, as pt-check "
		"prints it, contains a match of this regular expression. A frozen tensor has no "
		"gradient, does not count in the norm, and must not change. May be repeated. "
		"Default for checkpoints of pt-train: the expressions in the files."},
	{OPT_LIST, 0, "lr-scale-of", "REGEX=X", NULL, O(lr_scale_of), .help =
		"Tensors with X times the learning rate, as in pt-train. Without this option, a "
		"tensor with another rate only causes a note that shows the rate."},
	{OPT_INT, 0, "tp", "N", "1", O(check.tp), 0, 1, 4096, .help =
		"Number of tensor-parallel ranks of the run. The layout determines which partial "
		"sums are tried as causes, and names factors. The layout does not change what is "
		"right."},
	{OPT_INT, 0, "cp", "N", "1", O(check.cp), 0, 1, 4096, .help =
		"Number of context-parallel ranks of the run."},
	{OPT_INT, 0, "dp", "N", "1", O(check.dp), 0, 1, 1e6, .help =
		"Number of data-parallel ranks that replicate parameters in the run."},
	{OPT_INT, 0, "fsdp", "N", "1", O(check.fsdp), 0, 1, 1e6, .help =
		"Number of data-parallel ranks that shard parameters in the run."},
	{OPT_INT, 0, "accumulation", "N", "1", O(check.accumulation), 0, 1, 1e6, .help =
		"Number of micro-batches that each rank accumulated."},
	{OPT_FLAG, 0, "two-runs", NULL, "no", O(two_runs), .help =
		"The files are from the same step of two runs, even if their optimizers' step "
		"counts differ. Their exp_avg are compared. Default: two runs if both counts are "
		"equal."},
	{OPT_GROUP, .name = "The reference"},
	{OPT_ENUM, 0, "reference", NULL, "auto", O(check.reference), .values = OPT_WORDS(REFERENCE_WORDS), .help =
		"Precision in which pt-check computes the loss and the gradients. auto: float64 if "
		"that takes about a minute or less, else fp32 with the kernels of pt-train."},
	{OPT_INT, 0, "threads", "N", "0", O(threads), 0, 0, 4096, .help =
		"Number of threads (0: one thread per processor of the host)."},
	{OPT_GROUP, .name = "Output"},
	{OPT_LIST, 'o', "report", "FILE", NULL, O(reports), .files = "", .help =
		"Write a report: a self-contained .html page, or a .md file to paste into a pull "
		"request. The report has the verdict, findings, scale, and maps of tensors and "
		"layers, colored by distance relative to the bound."},
	{OPT_FLAG, 'j', "json", NULL, "no", O(json), .help =
		"Print the result as JSON, with all tensors."},
	{OPT_END},
};
/* clang-format on */

static const char *const synopsis[] = {"[options] BEFORE AFTER --batch FILE ...",
	"[options] BEFORE [AFTER] --batch FILE ... --grads FILE ...",
	"[options] BEFORE AFTER", "[--two-runs] [options] RUN1 RUN2", NULL};

static const struct program program = {
	.name = "pt-check",
	.summary = "check whether a step of another trainer is right",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct opts),
	.given = offsetof(struct opts, given),
	.one_rank = true,
	.operands = "",
	.versions = h5_versions,
};

static int write_reports(const struct step_check *c, const struct opts *o, struct err *e)
{
	int rc = 0;
	for (int64_t i = 0; i < o->reports.n && !rc; i++)
		rc = step_check_report(c, &o->batch, o->reports.v[i], e);
	return rc;
}

/* Parses a logged number. Sets *half to half a unit of its last digit. NULL, NaN: *x is
 * unchanged. */
static int parse_logged(const char *option, const char *text, bool negative, double *x,
	double *half, struct err *e)
{
	const double none = *x;
	*half = 0;
	if (!text)
		return 0;
	const char *point = strchr(text, '.'), *exponent = strpbrk(text, "eE");
	size_t digits = point ? strspn(point + 1, "0123456789") : 0;
	if (!strcasecmp(text, "nan") || !strcasecmp(text, "inf"))
		return 0; /* (the checkpoints show it, too) */
	if (parse_double(text, x) || !isfinite(*x) || (*x < 0 && !negative)) {
		*x = none;
		return err_set(e, EX_USAGE, "%s '%s': not a finite number%s", option,
			text, negative ? "" : " of at least 0");
	}
	*half = 0.5 * pow(10, (exponent ? atoi(exponent + 1) : 0) - (double)digits);
	return 0;
}

/* Parses --grad-norm: X, or X,Y for two runs. */
static int parse_norms(const char *text, struct check_opts *o, struct err *e)
{
	const char *comma = text ? strchr(text, ',') : NULL;
	struct str first = {0};
	int rc = 0;
	o->two_norms = comma;
	o->grad_norm = o->first_norm = -1;
	if (comma) {
		str_printf(&first, "%.*s", (int)(comma - text), text);
		rc = parse_logged("--grad-norm", first.s, false, &o->first_norm,
			&o->first_norm_half, e);
		str_free(&first);
	}
	return rc ? -1
		  : parse_logged("--grad-norm", comma ? comma + 1 : text, false,
			    &o->grad_norm, &o->grad_norm_half, e);
}

/* Sets *e to the error about a wrong number of operands. Returns e. */
static const struct err *operands_error(const struct opts *o, int n, struct err *e)
{
	err_set(e, EX_USAGE, "give two checkpoints: BEFORE and AFTER the step");
	if (!n && o->batch.n > 2)
		err_set(e, EX_USAGE,
			"--batch took all %lld files; give the checkpoints first: pt-check "
			"BEFORE AFTER "
			"--batch FILE ...",
			(long long)o->batch.n);
	return e;
}

static void append_fact(struct str *out, const char *format, const char *value)
{
	str_puts(out, out->len ? ", " : "");
	str_printf(out, format, value);
}

/* Sets unset options from the files of the run. Appends what was set to `used`. */
static void use_run_facts(
	struct opts *o, const char *before, const char *after, struct str *used)
{
	static const char *const precisions[] = {RUN_PRECISION_WORDS};
	struct run_facts *facts = &o->facts;
	char text[NUM_TEXT];
	run_facts_read(facts, before, after);
	if (*facts->loss && !o->loss) {
		o->loss = facts->loss;
		append_fact(used, "loss %s", facts->loss);
	}
	if (*facts->grad_norm && !o->grad_norm) {
		o->grad_norm = facts->grad_norm;
		append_fact(used, "grad_norm %s", facts->grad_norm);
	}
	if (facts->lr >= 0 && o->adam.lr < 0) {
		o->adam.lr = facts->lr;
		append_fact(used, "learning rate %s", text_double(text, facts->lr));
	}
	if (facts->clip >= 0 && o->adam.clip < 0) {
		o->adam.clip = facts->clip;
		append_fact(used, facts->clip > 0 ? "clipping to %s" : "no clipping",
			text_double(text, facts->clip));
	}
	if (facts->precision >= 0 && !opts_given(&program, o, "precision")) {
		o->check.precision = facts->precision;
		append_fact(used, "precision %s", precisions[facts->precision]);
		str_puts(used, facts->fp16 ? " (fp16, which rounds less)" : "");
	}
	if (facts->accumulation > 1 && !opts_given(&program, o, "accumulation")) {
		o->check.accumulation = facts->accumulation;
		snprintf(text, sizeof(text), "%lld", (long long)facts->accumulation);
		append_fact(used, "%s micro-batches", text);
	}
}

int main(int argc, char **argv)
{
	struct opts o;
	struct err e = {0};
	scoped_str text = {0}, used = {0};
	struct step_check c;
	int n = opts_parse_or_die(&program, &o, argc, argv);
	if (n != 2 && !(n == 1 && o.grads.n))
		return err_print(operands_error(&o, n, &e));
	if (o.grads.n && o.two_runs)
		return err_print(&(struct err){EX_USAGE,
			"--two-runs compares two runs, but --grads is from one run; give "
			"only one of these options"});
	if (n == 1 && !o.batch.n)
		return err_print(&(struct err){EX_USAGE,
			"--grads without AFTER needs the tokens of the step; give --batch"});
	for (int64_t i = 0; i < o.reports.n; i++)
		if (page_kind(o.reports.v[i], &e) < 0)
			return err_print(&e);
	o.open.copies_may_differ = true;
	o.open.optimizer = true;
	o.open.reads_softmax_bias = true;
	o.open.freeze = &o.freeze;
	if (o.two_runs && o.batch.n)
		return err_print(&(struct err){EX_USAGE,
			"--two-runs compares files after the same step, but --batch is "
			"for a step between two files; give only one of these options"});
	o.check.loss = (double)NAN;
	if (!o.two_runs && n > 1)
		use_run_facts(&o, argv[0], argv[1], &used);
	if (balance_parse(o.balance, &o.check, &e) ||
		parse_norms(o.grad_norm, &o.check, &e) ||
		parse_logged(
			"--loss", o.loss, true, &o.check.loss, &o.check.loss_half, &e))
		return err_print(&e);
	struct comm *world = comm_open();
	struct device d; /* its threads also run the plain loops */
	device_open_cpu(&d, (int)backend_threads(o.threads));
	const struct check_job job = {argv[0], n > 1 ? argv[1] : NULL, &o.batch, o.how,
		o.adam, o.two_runs, &o.freeze, &o.lr_scale_of, o.open, used.s, &o.grads,
		o.base};
	int rc = step_check_run(&c, &o.check, &job, &e);
	if (!rc && o.json)
		step_check_json(&c, &text);
	else if (!rc && log_is_enabled())
		step_check_print(&c, &text);
	else if (!rc)
		step_check_print_verdict(&c, &text);
	fputs(text.s ? o.json ? text.s : text_printable(text.s) : "", stdout);
	rc = rc || write_reports(&c, &o, &e);
	int code = c.wrong					      ? EX_FAILED
		   : c.tested && !c.undecided && !c.choices.undecided ? 0
								      : EX_TROUBLE;
	step_check_close(&c);
	device_close(&d);
	comm_close(world);
	if (rc)
		return err_print(&e);
	stdout_close();
	return code;
}
