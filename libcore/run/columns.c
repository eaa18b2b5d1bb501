/* The table of columns of a log, and printing and parsing of rows. */
#include "options/options.h"
#include "run/run.h"

#include <ctype.h>

const struct column columns[N_COLUMNS] = {
	[COL_STEP] = {"step", COLUMN_INT, .help = "optimizer steps done"},
	[COL_TOKENS] = {"tokens", COLUMN_INT, .tag = "train/tokens",
		.help = "training tokens consumed"},
	[COL_COUNTED] = {"counted", COLUMN_INT, .tag = "train/counted",
		.help = "tokens of the batch that count in the loss; missing if all do"},
	[COL_LOSS] = {"loss", COLUMN_EXACT, .tag = "train/loss", .curve = true,
		.every = true, .unit = "nats",
		.help = "training loss of the batch per counted token; with local SGD, after the warm-up: "
			"of this worker's part of the batch"},
	[COL_GRAD_NORM] = {"grad_norm", COLUMN_EXACT, .tag = "train/grad_norm",
		.curve = true, .help = "global gradient norm before clipping"},
	[COL_LR] = {"lr", COLUMN_EXACT, .tag = "train/lr", .help = "learning rate"},
	[COL_LOSS_SCALE] = {"loss_scale", COLUMN_EXACT, .tag = "train/loss_scale",
		.help = "loss scale of fp16"},
	[COL_AUX_LOSS] = {"aux_loss", COLUMN_EXACT, .tag = "experts/aux_loss",
		.help = "balance loss without its coefficient, mean over layers: 1 if experts have equal shares"},
	[COL_ROUTER_Z] = {"router_z", COLUMN_EXACT, .tag = "experts/router_z",
		.help = "z-loss of the routers without its coefficient, mean over layers"},
	[COL_EXPERT_VIOLATION] = {"expert_violation", COLUMN_EXACT,
		.tag = "experts/violation",
		.help = "slots of the batch's fullest expert over the mean of its layer, less 1; largest of all layers"},
	[COL_EXPERTS_IDLE] = {"experts_idle", COLUMN_INT, .tag = "experts/idle",
		.help = "experts of all layers that no token of the batch chose"},
	[COL_EXPERT_ROWS] = {"expert_rows", COLUMN_ROUND, .tag = "experts/rows",
		.help = "rows of the fullest rank over the balanced number, largest of all layers "
			"and micro-batches"},
	[COL_DROPPED] = {"dropped", COLUMN_EXACT, .tag = "experts/dropped",
		.help = "fraction of the batch's slots beyond the capacity of an expert"},
	[COL_TRAIN_LOSS] = {"train_loss", COLUMN_EXACT, .tag = "val/train_loss",
		.curve = true, .unit = "nats",
		.help = "loss on a fixed set of training windows"},
	[COL_VAL_LOSS] = {"val_loss", COLUMN_EXACT, .tag = "val/loss", .curve = true,
		.unit = "nats", .help = "loss on a fixed set of validation windows"},
	[COL_VAL_BPB] = {"val_bpb", COLUMN_EXACT, .tag = "val/bpb", .curve = true,
		.unit = "bits",
		.help = "loss on validation text in bits per byte; only in logs of other programs"},
	[COL_REWARD] = {"reward", COLUMN_EXACT, .tag = "train/reward", .curve = true,
		.help = "mean reward of the rollouts; only in logs of other programs"},
	[COL_DT] = {"dt", COLUMN_ROUND, .tag = "time/dt", .unit = "s",
		.help = "time of a step"},
	[COL_DT_FORWARD] = {"dt_forward", COLUMN_ROUND, .tag = "time/dt_forward",
		.was = "dtf", .unit = "s", .help = "part of dt in the forward pass"},
	[COL_DT_BACKWARD] = {"dt_backward", COLUMN_ROUND, .tag = "time/dt_backward",
		.was = "dtb", .unit = "s", .help = "part of dt in the backward pass"},
	[COL_DT_COMM] = {"dt_comm", COLUMN_ROUND, .tag = "time/dt_comm", .was = "dtc",
		.unit = "s", .help = "part of dt spent waiting for communication"},
	[COL_DT_DATA] = {"dt_data", COLUMN_ROUND, .tag = "time/dt_data", .was = "dtd",
		.unit = "s", .help = "part of dt spent waiting for data"},
	[COL_BUBBLE] = {"bubble", COLUMN_ROUND, .tag = "time/bubble",
		.help = "fraction of time in which pipeline ranks wait for other stages"},
	[COL_SLOWEST] = {"slowest", COLUMN_ROUND, .tag = "time/slowest",
		.help = "time per micro-batch: the slowest rank over the median (--deal speed)"},
	[COL_SPS] = {"sps", COLUMN_ROUND, .tag = "speed/sps", .unit = "1/s",
		.help = "sequences per second"},
	[COL_SPS_PER_GPU] = {"sps_per_gpu", COLUMN_ROUND, .tag = "speed/sps_per_gpu",
		.unit = "1/s", .help = "sequences per second per rank"},
	[COL_TPS] = {"tps", COLUMN_ROUND, .tag = "speed/tps", .unit = "1/s",
		.help = "tokens per second"},
	[COL_TPS_PER_GPU] = {"tps_per_gpu", COLUMN_ROUND, .tag = "speed/tps_per_gpu",
		.unit = "1/s", .help = "tokens per second per rank"},
	[COL_MFU] = {"mfu", COLUMN_ROUND, .tag = "speed/mfu",
		.help = "model FLOPs utilization: (6 N + 12 L C T) per token, less what --freeze saves, over the peak; "
			"absent if above 1 (float8: 2), which means that the peak is too low"},
	[COL_MFU_CAUSAL] = {"mfu_causal", COLUMN_ROUND, .tag = "speed/mfu_causal",
		.help = "mfu with attention halved for causality"},
	[COL_MEM_ACTIVE] = {"mem_active", COLUMN_INT, .tag = "memory/mem_active",
		.unit = "bytes",
		.help = "peak memory per rank of parameters, their state, gradients, "
			"activations and buffers"},
	[COL_MEM] = {"mem", COLUMN_INT, .tag = "memory/mem", .unit = "bytes",
		.help = "peak memory per rank: resident memory, or memory of its GPU"},
	[COL_SENT] = {"sent", COLUMN_ROUND, .tag = "traffic/sent", .unit = "bytes",
		.help = "sent to other ranks per step, by the rank that sends most"},
	[COL_SENT_ROWS] = {"sent_rows", COLUMN_ROUND, .tag = "traffic/sent_rows",
		.unit = "bytes",
		.help = "part of sent: rows of tokens, to and from experts"},
	[COL_SYNCS] = {"syncs", COLUMN_INT, .tag = "local_sgd/syncs", .was = "sync",
		.help = "local SGD: synchronizations so far"},
	[COL_LOCAL_STEPS] = {"local_steps", COLUMN_INT, .tag = "local_sgd/local_steps",
		.was = "sync_steps",
		.help = "steps of this worker since the last synchronization"},
	[COL_LOCAL_LOSS] = {"local_loss", COLUMN_ROUND, .tag = "local_sgd/local_loss",
		.was = "sync_loss", .unit = "nats",
		.help = "mean training loss of all workers since the last synchronization"},
	[COL_PSEUDO_GRAD_NORM] = {"pseudo_grad_norm", COLUMN_EXACT,
		.tag = "local_sgd/pseudo_grad_norm", .curve = true, .was = "sync_norm",
		.help = "norm of this worker's pseudo-gradient"},
	[COL_OUTER_GRAD_NORM] = {"outer_grad_norm", COLUMN_EXACT,
		.tag = "local_sgd/outer_grad_norm", .curve = true, .was = "sync_reduced",
		.help = "norm of the reduced pseudo-gradient before clipping"},
	[COL_WORKER_WEIGHT] = {"worker_weight", COLUMN_EXACT,
		.tag = "local_sgd/worker_weight", .curve = true, .was = "sync_weight",
		.help = "weight of this worker, mean over units"},
	[COL_ANOMALIES] = {"anomalies", COLUMN_INT, .tag = "local_sgd/anomalies",
		.was = "sync_anomalies",
		.help = "units of this worker that were excluded"},
	[COL_OUTER_CLIP] = {"outer_clip", COLUMN_EXACT, .tag = "local_sgd/outer_clip",
		.curve = true, .was = "sync_clip",
		.help = "smallest factor by which a unit of the pseudo-gradient was clipped"},
	[COL_SYNC_SENT] = {"sync_sent", COLUMN_ROUND, .tag = "local_sgd/sync_sent",
		.unit = "bytes", .help = "sent to other workers by this rank"},
	[COL_SYNC_WAIT] = {"sync_wait", COLUMN_ROUND, .tag = "local_sgd/sync_wait",
		.unit = "s",
		.help = "time that this rank waited for the synchronization"},
	[COL_OFFLOAD_READ] = {"offload_read", COLUMN_ROUND, .tag = "traffic/offload_read",
		.was = "read", .unit = "bytes",
		.help = "offloaded state read per step, by the rank that reads most"},
	[COL_OFFLOAD_WRITTEN] = {"offload_written", COLUMN_ROUND,
		.tag = "traffic/offload_written", .was = "written", .unit = "bytes",
		.help = "offloaded state written per step, by the rank that writes most"},
	[COL_AUDITED] = {"audited", COLUMN_INT, .tag = "referee/audited",
		.help = "steps with an audit since the start"},
	[COL_MISMATCHES] = {"mismatches", COLUMN_INT, .tag = "referee/mismatches",
		.help = "micro-batches with different results on two ranks, since the start"},
};

int column_find(const char *name)
{
	for (int c = 0; c < N_COLUMNS; c++)
		if (!strcmp(columns[c].name, name) ||
			(columns[c].was && !strcmp(columns[c].was, name)))
			return c;
	return -1;
}

int column_find_tag(const char *tag, size_t n)
{
	for (int c = 0; c < N_COLUMNS; c++)
		if (columns[c].tag && strlen(columns[c].tag) == n &&
			!memcmp(columns[c].tag, tag, n))
			return c;
	return -1;
}

void columns_print_man(FILE *f)
{
	static const char *const types[] = {"i64", "f32", "f64"};
	fputs(".Bl -tag -width Ds -compact\n", f);
	for (int c = 0; c < N_COLUMNS; c++) {
		const char *unit = columns[c].unit;
		fprintf(f, ".It Va %s Pq %s%s%s\n", columns[c].name,
			types[columns[c].kind], unit ? ", " : "", unit ? unit : "");
		man_text(f, columns[c].help);
		if (columns[c].tag)
			fprintf(f, ".Pq in TensorBoard Va %s%s%s\n", columns[c].tag,
				columns[c].was ? " ; No earlier name Va " : "",
				columns[c].was ? columns[c].was : "");
	}
	fputs(".El\n", f);
}

void columns_print(FILE *f)
{
	for (int c = 0; c < N_COLUMNS; c++) {
		const char *unit = columns[c].unit;
		bool has_unit = unit && strcmp(unit, "1/s") != 0;
		fprintf(f, "%-16s %s%s%s%s\n", columns[c].name, columns[c].help,
			has_unit ? " (" : "", has_unit ? unit : "", has_unit ? ")" : "");
	}
}

void row_print(const struct row *r, struct str *out)
{
	char num[NUM_TEXT];
	bool first = true;
	for (int c = 0; c < N_COLUMNS; c++) {
		if (!row_has(r, c))
			continue;
		if (columns[c].kind == COLUMN_INT)
			snprintf(num, sizeof(num), "%lld", (long long)r->v[c]);
		else if (columns[c].kind == COLUMN_EXACT)
			text_float(num, (float)r->v[c]);
		else
			snprintf(num, sizeof(num), "%.6g", r->v[c]);
		str_printf(out, "%s%s=%s", first ? "" : " ", columns[c].name, num);
		first = false;
	}
}

bool column_accepts(int c, double v)
{
	return columns[c].kind != COLUMN_INT ||
	       (v >= 0 && v <= 0x1p53 && v == (double)(int64_t)v);
}

static bool equals_name(const char *name, const char *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (name[i] != p[i] || !name[i])
			return false;
	return !name[len];
}

/* Returns the column of a name, or -1. Tries the one after `last` first: rows follow the table. */
static int find_column_after(int last, const char *name, size_t len)
{
	for (int i = 1; i <= N_COLUMNS; i++) {
		int c = (last + i) % N_COLUMNS;
		if (equals_name(columns[c].name, name, len) ||
			(columns[c].was && equals_name(columns[c].was, name, len)))
			return c;
	}
	return -1;
}

/* Parses "name=value" into the row. Returns the column, or `last` if no column has this name. */
static int parse_value(
	const char *p, const char *end, int last, struct row *r, struct unread *u)
{
	const char *equals = memchr(p, '=', (size_t)(end - p));
	double v;
	if (!equals || equals + 1 == end)
		return last;
	int c = find_column_after(last, p, (size_t)(equals - p));
	if (c < 0)
		return last;
	if (end - equals - 1 < NUM_TEXT && scan_double(equals + 1, end, &v) == end &&
		column_accepts(c, v)) {
		row_set(r, c, v);
	} else if (begins_as_number(equals + 1, end)) {
		r->unread |= (uint64_t)1 << c;
		if (row_has(r, COL_STEP))
			unread_add(u, columns[c].name, (int64_t)r->v[COL_STEP],
				equals + 1, (size_t)(end - equals - 1));
		else if (c == COL_STEP)
			unread_add(u, NULL, 0, p, (size_t)(end - p));
	}
	return c;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

int row_parse(const char *line, size_t len, struct row *r, struct unread *u)
{
	const char *end = line + len;
	int last = N_COLUMNS - 1;
	r->has = r->unread = 0;
	for (const char *p = line, *word; p < end; p++) {
		word = p;
		while (p < end && !is_blank(*p))
			p++;
		last = parse_value(word, p, last, r, u);
	}
	return row_has(r, COL_STEP) ? 0 : -1;
}

/* ---- whether higher or lower is better ------------------------------------------------------- */

/* Words in column names: lower is better; higher is better; not a result, such as loss_scale. */
static const char lower_words[] =
	" loss nll ce ppl perplexity bpb bpc bpt mse rmse mae wer cer error errors dt ";
static const char higher_words[] =
	" acc accuracy accuracies reward rewards mfu hfu tps sps throughput bleu chrf rouge "
	"rouge1 rouge2 rougel f1 auc auroc iou miou psnr ssim recall precision top1 top5 ";
static const char other_words[] =
	" scale weight coef coefficient lr norm grad kl std var count tokens rejected ";
enum { NO_RESULT = 2 };

/* Returns -1 if lower is better, 1 if higher is, NO_RESULT, or 0 for an unknown word. */
static int sense_of_word(const char *word, size_t n)
{
	char text[32];
	if (!n || n + 3 > sizeof(text))
		return 0;
	snprintf(text, sizeof(text), " %.*s ", (int)n, word);
	return strcasestr(lower_words, text)	? -1
	       : strcasestr(higher_words, text) ? 1
	       : strcasestr(other_words, text)	? NO_RESULT
						: 0;
}

static bool is_rate(const char *name)
{
	return strcasestr(name, "tokens/s") || strcasestr(name, "tok/s") ||
	       strcasestr(name, "samples/s") || strcasestr(name, "per_sec") ||
	       strcasestr(name, "per second");
}

int column_sense(const char *name)
{
	int sense = is_rate(name); /* the last known word determines it */
	for (const char *p = name; *p && !is_rate(name);) {
		size_t n = 0;
		while (isalnum((unsigned char)p[n]))
			n++;
		int word_sense = sense_of_word(p, n);
		sense = word_sense ? word_sense : sense;
		p += n ? n : 1;
	}
	return sense == NO_RESULT ? 0 : sense;
}
