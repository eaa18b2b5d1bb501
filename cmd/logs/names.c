/* The names that columns and settings have in the logs of other trainers. */
#include "logs/logs_internal.h"
#include "options/options.h"

#include <ctype.h>
#include <strings.h>

/* Names of columns, without regard to case if none is the same; a path that ends with a name is no such name. A value is multiplied by
 * the scale of its unit. */
static const struct log_name {
	const char *name, *column;
	double scale; /* 0: 1; INVERSE: 1 / value */
} log_names[] = {
	{"loss", "loss", 0},
	{"train/loss", "loss", 0},
	{"train_inner/loss", "loss", 0},
	{"loss/train/total", "loss", 0},
	{"training/loss", "loss", 0},
	{"loss/train", "loss", 0},
	{"train/CE loss", "loss", 0},
	{"learning/loss", "loss", 0},
	{"lm loss", "loss", 0},
	{"lm-loss", "loss", 0},
	{"loss_metrics/global_avg_loss", "loss", 0},
	{"reduced_train_loss", "loss", 0},
	{"train_loss_step", "loss", 0},
	{"train/CrossEntropyLoss", "loss", 0},
	{"Training Loss", "loss", 0},
	{"actor/loss", "loss", 0},
	{"val_loss", "val_loss", 0},
	{"val/loss", "val_loss", 0},
	{"loss/val", "val_loss", 0},
	{"valid_loss", "val_loss", 0},
	{"valid/loss", "val_loss", 0},
	{"metrics/eval/LanguageCrossEntropy", "val_loss", 0},
	{"validation_loss", "val_loss", 0},
	{"validation/loss", "val_loss", 0},
	{"validation_metrics/loss", "val_loss", 0},
	{"eval_loss", "val_loss", 0},
	{"eval/loss", "val_loss", 0},
	{"eval/avg_loss", "val_loss", 0},
	{"lm loss validation", "val_loss", 0},
	{"lm loss value", "val_loss", 0},
	{"validation loss", "val_loss", 0},
	{"val_bpb", "val_bpb", 0},
	{"val/bpb", "val_bpb", 0},
	{"validation_bpb", "val_bpb", 0},
	{"valid_bpb", "val_bpb", 0},
	{"eval_bpb", "val_bpb", 0},
	{"eval/bpb", "val_bpb", 0},
	{"critic/rewards/mean", "reward", 0},
	{"rollout/raw_reward", "reward", 0},
	{"grad_norm", "grad_norm", 0},
	{"grad-norm", "grad_norm", 0},
	{"grad norm", "grad_norm", 0},
	{"train/grad_norm", "grad_norm", 0},
	{"gradient_norm", "grad_norm", 0},
	{"gnorm", "grad_norm", 0},
	{"train_inner/gnorm", "grad_norm", 0},
	{"l2_norm/grad/global", "grad_norm", 0},
	{"learning/grad_norm", "grad_norm", 0},
	{"optim/total grad norm", "grad_norm", 0},
	{"optim/total_grad_norm", "grad_norm", 0},
	{"grad/norm/total", "grad_norm", 0},
	{"actor/grad_norm", "grad_norm", 0},
	{"lr", "lr", 0},
	{"learning_rate", "lr", 0},
	{"learning-rate", "lr", 0},
	{"learning rate", "lr", 0},
	{"train/lr", "lr", 0},
	{"train/learning_rate", "lr", 0},
	{"learning/current_learning_rate", "lr", 0},
	{"optim/LR", "lr", 0},
	{"optim/LR (group 0)", "lr", 0},
	{"optim/learning_rate", "lr", 0},
	{"actor/lr", "lr", 0},
	{"loss scale", "loss_scale", 0},
	{"loss-scale", "loss_scale", 0},
	{"num_input_tokens_seen", "tokens", 0},
	{"consumed_tokens", "tokens", 0},
	{"num_tokens", "tokens", 0}, /* TRL: since the start of the run */
	{"n_tokens_seen", "tokens", 0},
	{"tokens seen", "tokens", 0},
	{"throughput/total tokens", "tokens", 0},
	{"throughput/total_tokens", "tokens", 0},
	{"time/token", "tokens", 0},
	{"consumed samples", LOG_SAMPLES, 0},
	{"consumed_samples", LOG_SAMPLES, 0},
	{"time/sample", LOG_SAMPLES, 0},
	{"_runtime", LOG_ELAPSED, 0},
	{"step_time", "dt", 0},
	{"iter_time", "dt", 0},
	{"iteration-time", "dt", 0},
	{"perf/step_time_seconds", "dt", 0},
	{"time_metrics/end_to_end(s)", "dt", 0},
	{"train_step_timing in s", "dt", 0},
	{"perf/time_per_step", "dt", 0},
	{"train_steps_per_second", "dt", INVERSE},
	{"train/train_steps_per_second", "dt", INVERSE},
	{"elapsed time per iteration (ms)", "dt", 1e-3},
	{"elapsed_time_per_iteration_ms", "dt", 1e-3},
	{"time_metrics/data_loading(s)", "dt_data", 0},
	{"throughput/device/data loading (s)", "dt_data", 0},
	{"tokens_per_second", "tps", 0},
	{"tok_per_sec", "tps", 0},
	{"tokens_per_sec", "tps", 0},
	{"throughput/tokens_per_sec", "tps", 0},
	{"throughput/tokens_per_second", "tps", 0},
	{"wps", "tps", 0},
	{"throughput(tps)", "tps_per_gpu", 0},
	{"throughput/device/TPS", "tps_per_gpu", 0},
	{"perf/per_device_tokens_per_sec", "tps_per_gpu", 0},
	{"tokens_per_sec_per_gpu", "tps_per_gpu", 0},
	{"tokens_per_second_per_gpu", "tps_per_gpu", 0},
	{"throughput/device/tokens_per_sec", "tps_per_gpu", 0},
	{"throughput/device/tokens_per_second", "tps_per_gpu", 0},
	{"tokens/train_per_sec_per_gpu", "tps_per_gpu", 0},
	{"perf/throughput", "tps_per_gpu", 0},
	{"train_samples_per_second", "sps", 0},
	{"train/train_samples_per_second", "sps", 0},
	{"samples_per_sec", "sps", 0},
	{"mfu(%)", "mfu", 1e-2},
	{"throughput/device/MFU", "mfu", 1e-2}, /* of OLMo-core */
	{"throughput/device/mfu", "mfu", 0},	/* Composer */
	{"throughput/mfu", "mfu", 1e-2},	/* Levanter */
	{"perf/mfu/actor", "mfu", 0},		/* verl */
	{"memory/max_active(GiB)", "mem_active", 0x1p30},
	{"peak_memory_active", "mem_active", 0x1p30},
	{"memory/max_active (GiB)", "mem_active", 0x1p30},
	{"memory/max_mem_active(gib)", "mem_active", 0x1p30},
	{"memory/max_reserved(GiB)", "mem", 0x1p30},
	{"peak_memory_reserved", "mem", 0x1p30},
	{"memory/device_reserved (GiB)", "mem", 0x1p30},
	{"memory/device_mem_reserved(gib)", "mem", 0x1p30},
	{"memory(GiB)", "mem", 0x1p30},
	{"perf/max_memory_reserved_gb", "mem", 0x1p30},
	{"mem-max-allocated-bytes", "mem", 0},
	{NULL, NULL, 0},
};

static const char *const step_names[] = {"step", "iteration", "iter", "_step",
	"global_step", "train/global_step", "trainer/global_step", "train/step",
	"train/iter", "steps", "iter_num", "num_updates", "train_num_updates",
	"valid_num_updates", "global_step/max_steps", "training/global_step",
	"rollout/step", NULL};

/* Names of settings, in lower case with '_' for blanks and '-'. */
static const struct log_setting settings[] = {
	{"global_batch_size", "batch"},
	{"global_batch_size_to_train_on", "batch"},
	{"train_batch_size", "batch-per-rank"},
	{"per_device_batch_size", "batch-per-rank"},
	{"device_batch_size", "batch-per-rank"},
	{"total_batch_size", "tokens-per-step"},
	{"total_batch", "tokens-per-step"},
	{"micro_batch_size", "micro-batch"},
	{"micro_batch_size_b", "micro-batch"},
	{"micro_batch", "micro-batch"},
	{"seq_length", "context"},
	{"seq_len", "context"},
	{"sequence_length", "context"},
	{"sequence_length_t", "context"},
	{"sequence_len", "context"},
	{"block_size", "context"},
	{"max_target_length", "context"},
	{"num_layers", "layers"},
	{"num_layers_l", "layers"},
	{"num_decoder_layers", "layers"},
	{"n_layer", "layers"},
	{"num_attention_heads", "heads"},
	{"num_heads_nh", "heads"},
	{"num_query_heads", "heads"},
	{"n_head", "heads"},
	{"hidden_size", "dim"},
	{"channels_c", "dim"},
	{"emb_dim", "dim"},
	{"n_embd", "dim"},
	{"vocab_size", "vocab"},
	{"vocab_size_v", "vocab"},
	{"lr", "lr"},
	{"learning_rate", "lr"},
	{"learning_rate_(lr)", "lr"},
	{"lr_warmup_iters", "warmup"},
	{"warmup_iterations", "warmup"},
	{"warmup_iters", "warmup"},
	{"warmup_steps", "warmup"},
	{"warmup", "warmup"},
	{"weight_decay", "weight-decay"},
	{"train_iters", "steps"},
	{"max_iters", "steps"},
	{"max_steps", "steps"},
	{"steps", "steps"},
	{"seed", "seed"},
	{"init_weights_seed", "seed"},
	{"data_path", "data"},
	{"dataset_path", "data"},
	{"dataset", "data"},
	{"train_data_pattern", "data"},
	{"optimizer", "optimizer"},
	{"world_size", "ranks"},
	{"num_processes", "ranks"},
};

/* Texts before a value in a sentence. */
static const struct log_setting sentences[] = {
	{"tokens per iteration will be: ", "tokens-per-step"},
	{"Tokens per iteration: ", "tokens-per-step"},
	{"Total batch size ", "tokens-per-step"},
	{"total desired batch size: ", "tokens-per-step"},
	{"tokens per DP rank, ", "tokens-per-step"},
	{"global batch size ", "batch"},
	{"maximum context length ", "context"},
	{"sequence length ", "context"},
	{"total steps ", "steps"},
	{"(warmup ", "warmup"},
	{"Vocab size: ", "vocab"},
};

/* Some writers of TensorBoard's files replace parentheses and '%' by '_'. */
static bool same_letter(char known, char c)
{
	return tolower((unsigned char)known) == tolower((unsigned char)c) ||
	       (c == '_' && (known == '(' || known == ')' || known == '%'));
}

static bool same_name(const char *s, struct span name)
{
	for (size_t i = 0; i < name.n; i++)
		if (!s[i] || !same_letter(s[i], name.p[i]))
			return false;
	return !s[name.n];
}

/* --column OURS=THEIRS */
static struct strs given;

int log_map(const char *pair, struct err *e)
{
	const char *equals = strchr(pair, '=');
	if (!equals || equals == pair || !equals[1])
		return err_set(e, EX_USAGE,
			"column: '%s' is not OURS=THEIRS, as loss=train/loss is", pair);
	strs_add(&given, pair);
	return 0;
}

struct span given_column(struct span name)
{
	for (int64_t i = 0; i < given.n; i++) {
		const char *equals = strchr(given.v[i], '=');
		if (same_name(equals + 1, name))
			return (struct span){given.v[i], (size_t)(equals - given.v[i])};
	}
	return (struct span){NULL, 0};
}

struct span name_of_column(struct span name, double *scale)
{
	struct span ours = given_column(name);
	*scale = 1;
	if (ours.n)
		return ours;
	const struct log_name *found = NULL;
	for (const struct log_name *m = log_names; m->name; m++) {
		bool exact = same_name(m->name, name) && span_begins(name, m->name);
		if (exact || (!found && same_name(m->name, name)))
			found = m;
		if (exact)
			break;
	}
	if (found) {
		*scale = found->scale != 0 ? found->scale : 1;
		return span_of(found->column);
	}
	int c = column_of_tag(name.p, name.n);
	return c < 0 ? name : span_of(columns[c].name);
}

struct span value_of_export(struct span name)
{
	return same_name("Value", name) && !given_column(name).n ? SPAN("loss") : name;
}

char *log_column_name(const char *theirs)
{
	double scale;
	struct span ours = name_of_column(span_of(theirs), &scale);
	char *name = xstrdup(ours.p);
	name[ours.n] = '\0';
	return name;
}

bool name_is_step(struct span name)
{
	for (int i = 0; step_names[i]; i++)
		if (same_name(step_names[i], name))
			return true;
	return false;
}

bool log_is_step(const char *name)
{
	return name_is_step(span_of(name));
}

/* ---- settings -------------------------------------------------------------------- */

static bool same_setting(const char *s, struct span name)
{
	for (size_t i = 0; i < name.n; i++) {
		char c = name.p[i];
		c = c == ' ' || c == '-' ? '_' : (char)tolower((unsigned char)c);
		if (!s[i] || s[i] != c)
			return false;
	}
	return !s[name.n];
}

const char *name_of_setting(struct span name)
{
	for (size_t i = 0; i < ARRAY_LEN(settings); i++)
		if (same_setting(settings[i].name, name))
			return settings[i].key;
	return NULL;
}

/* A value without the commas between thousands and without quotes. */
static void add_setting(struct build *b, const char *key, struct span value)
{
	char digits[NUM_TEXT];
	size_t n = 0;
	value = span_trim(value);
	if (value.n >= 2 && (*value.p == '"' || *value.p == '\'') &&
		value.p[value.n - 1] == *value.p)
		value = (struct span){value.p + 1, value.n - 2};
	for (size_t i = 0; i < value.n && n < sizeof(digits); i++) {
		if (value.p[i] != ',' && !isdigit((unsigned char)value.p[i])) {
			n = sizeof(digits);
			break;
		}
		if (value.p[i] != ',')
			digits[n++] = value.p[i];
	}
	bool number = n && n < sizeof(digits);
	build_setting(b, key, number ? (struct span){digits, n} : value);
}

/* "name: value", "name = value", "| name | value |", "name .... value", "\"name\": value," */
static void find_named(struct build *b, struct span line)
{
	static const char prefix[] = "Config param ";
	line = span_trim(line);
	if (span_begins(line, prefix))
		line = (struct span){
			line.p + sizeof(prefix) - 1, line.n - sizeof(prefix) + 1};
	while (line.n && (*line.p == '|' || *line.p == '"' || *line.p == ' '))
		line.p++, line.n--;
	size_t n = 0;
	while (n < line.n && !strchr("|:=.\"", line.p[n]))
		n++;
	struct span name = span_trim((struct span){line.p, n});
	const char *key = name_of_setting(name);
	struct span value = {line.p + n, line.n - n};
	if (!key || !value.n)
		return;
	while (value.n && strchr("|:=.\" ", *value.p))
		value.p++, value.n--;
	while (value.n && strchr("|,\" ", value.p[value.n - 1]))
		value.n--;
	add_setting(b, key, value);
}

void find_settings(struct build *b, struct span line)
{
	enum { LONGEST = 2000 };
	if (line.n > LONGEST)
		return;
	find_named(b, line);
	for (size_t i = 0; i < ARRAY_LEN(sentences); i++) {
		const char *at = span_find(line, sentences[i].name);
		if (!at)
			continue;
		at += strlen(sentences[i].name);
		struct span value = {at, 0};
		while (at + value.n < line.p + line.n &&
			(isdigit((unsigned char)at[value.n]) || at[value.n] == ','))
			value.n++;
		while (value.n && at[value.n - 1] == ',')
			value.n--;
		if (value.n)
			add_setting(b, sentences[i].key, value);
	}
}

/* ---- the page -------------------------------------------------------------------- */

static void print_name(
	FILE *f, bool first, const char *to, const char *name, double scale)
{
	if (first)
		fprintf(f, ".It Va %s\n", to);
	if (strcmp(to, name) != 0)
		fprintf(f, ".Qq %s\n", name);
	if (scale == 0x1p30)
		fputs(".Pq from GiB\n", f);
	else if (scale == INVERSE)
		fputs(".Pq the inverse\n", f);
	else if (scale != 0)
		fprintf(f, ".Pq times %g\n", scale);
}

/* Every name is listed under the column or option that it stands for. */
static void print_settings(FILE *f)
{
	for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
		bool first = !i || strcmp(settings[i - 1].key, settings[i].key) != 0;
		print_name(f, first, settings[i].key, settings[i].name, 0);
	}
}

void log_names_man(FILE *f)
{
	fputs(".Bl -tag -width Ds -compact\n", f);
	for (const struct log_name *m = log_names; m->name; m++) {
		bool first = m == log_names || strcmp(m[-1].column, m->column) != 0;
		print_name(f, first, m->column, m->name, m->scale);
	}
	fputs(".El\n.Pp\nSettings:\n.Pp\n.Bl -tag -width Ds -compact\n", f);
	print_settings(f);
	fputs(".El\n", f);
}
