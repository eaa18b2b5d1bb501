/* Tables of options that have no effect, with the reasons, to note those that were given. */
#include "train/train_internal.h"

/* Notes layout options without effect. */
static void note_layout(const struct train_opts *o, const struct model *m, int ranks)
{
	const int *degree = o->resolved.degree;
	bool shards = degree[AXIS_FSDP] * degree[AXIS_CP] > 1;
	const struct opt_idle rows[] = {
		{degree[AXIS_PP] == 1, "pp-schedule pp-stages pp-split",
			"without --pp, the model is not a pipeline"},
		{!shards && o->zero > 0, "zero",
			"--fsdp and --cp have only one rank, which shards nothing"},
		{!shards || !o->zero, "fsdp-kind",
			"nothing is sharded without --zero and ranks of --fsdp or --cp"},
		{!shards || o->zero < 3, "reshard-after-forward gather-dtype",
			"parameters are gathered only with --zero 3 and ranks of --fsdp or --cp"},
		{degree[AXIS_TP] == 1, "sp async-tp", "--tp has only one rank"},
		{degree[AXIS_CP] == 1, "cp-comm", "--cp has only one rank"},
		{m->cp == 1, "cp-accumulate",
			"--virtual cp is 1, so every sequence is one chunk"},
		{ranks == 1, "readers ckpt-load log-all-ranks",
			"the run has only one rank"},
	};
	opts_note_idle(&train_program, o, rows, ARRAY_LEN(rows));
}

/* Notes options of the model and the optimizer without effect. */
static void note_training(const struct train_opts *o, const struct model *m)
{
	const char *unused = optimizers[o->optimizer]->unused;
	const struct opt_idle rows[] = {
		{o->dtype != PRECISION_FP16, "loss-scale loss-scale-window",
			"only --dtype fp16 scales the loss"},
		{o->dtype != PRECISION_FLOAT8, "float8-skip-ends",
			"--dtype is not float8"},
		{o->lr_schedule == LR_CONSTANT, "min-lr decay-steps",
			"--lr-schedule constant has no decay"},
		{o->lr_schedule != LR_WSD, "wsd-decay wsd-shape",
			"--lr-schedule is not wsd"},
		/* (--batch-per-rank sets it too, and a run saves it) */
		{o->lr_scale == LR_SCALE_NONE && !o->batch_per_rank && !o->resume,
			"lr-scale-batch", "nothing is scaled without --lr-scale"},
		{unused != NULL, unused, "this --optimizer does not use it"},
		{!m->arch->rope, "rope-theta rope-scaling",
			"this --arch has no rotary embedding"},
		{!m->arch->rope || o->model.rope_scaling == ROPE_PLAIN, "rope-factor",
			"--rope-scaling is none"},
		{!m->arch->rope || o->model.rope_scaling != ROPE_LLAMA3,
			"rope-low rope-high", "--rope-scaling is not llama3"},
		{!m->arch->rope || o->model.rope_scaling != ROPE_YARN,
			"rope-slow rope-fast rope-attention",
			"--rope-scaling is not yarn"},
		{!m->arch->rope || o->model.rope_scaling < ROPE_LLAMA3, "rope-original",
			"--rope-scaling is neither llama3 nor yarn"},
		{o->init_from != NULL, "init", "--init-from sets the parameters"},
		{!o->edit.workers, "edit-normalize edit-by-unit",
			"without --edit-workers, local SGD is off"},
		{o->edit.workers && o->edit.config.reducer == EDIT_MEAN, "edit-normalize",
			"--edit-reducer is none"},
	};
	opts_note_idle(&train_program, o, rows, ARRAY_LEN(rows));
}

/* Notes options of evaluations, samples and checkpoints without effect. */
static void note_eval_and_files(const struct train_opts *o)
{
	const struct opt_idle rows[] = {
		{!o->eval_every, "eval-windows",
			"nothing is evaluated with --eval-every 0"},
		{o->ckpt && !o->eval_every, "ckpt-best",
			"nothing is evaluated with --eval-every 0"},
		{!o->sample_every, "sample-tokens sample-prompt",
			"without --sample-every, nothing is sampled"},
		{!o->ckpt, "ckpt-every ckpt-secs ckpt-syncs ckpt-best ckpt-wait keep",
			"--no-ckpt writes no checkpoints"},
	};
	opts_note_idle(&train_program, o, rows, ARRAY_LEN(rows));
}

void options_note_idle(const struct train_opts *o, const struct model *m, int ranks)
{
	if (o->eval_only) /* most rows are about training */
		return;
	note_layout(o, m, ranks);
	note_training(o, m);
	note_eval_and_files(o);
}
