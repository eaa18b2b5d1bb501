/* The table of formats, lines of text in one of them, and which one a log has. */
#include "logs/logs_internal.h"
#include "options/options.h"

/* Name, description, and a struct log_format's other fields. */
#define FORMATS(F)                                                                                                                                                                                                                                                         \
	F("pt",                                                                                                                                                                                                                                                            \
		"the directory of a run, its run.h5 or its journal, or the standard output of "                                                                                                                                                                            \
		"pt-train",                                                                                                                                                                                                                                                \
		.detect = NULL)                                                                                                                                                                                                                                            \
	F("wordplay",                                                                                                                                                                                                                                                      \
		"lines step=100 loss=2.45 ... or iter=100 ... of wordplay and ezpz, behind "                                                                                                                                                                               \
		"any prefix; mfu is in percent",                                                                                                                                                                                                                           \
		.line = line_wordplay, .settings = true)                                                                                                                                                                                                                   \
	F("maxtext", "the standard output of MaxText", .kinds = maxtext_kinds,                                                                                                                                                                                             \
		.settings = true)                                                                                                                                                                                                                                          \
	F("torchtitan",                                                                                                                                                                                                                                                    \
		"the console of torchtitan; tps is per GPU, memory is what is reserved",                                                                                                                                                                                   \
		.kinds = torchtitan_kinds, .settings = true)                                                                                                                                                                                                               \
	F("torchtitan-losses", "its tests/assets/losses: lines with step and loss",                                                                                                                                                                                        \
		.line = line_losses)                                                                                                                                                                                                                                       \
	F("nanogpt", "the standard output of nanoGPT", .kinds = nanogpt_kinds,                                                                                                                                                                                             \
		.settings = true)                                                                                                                                                                                                                                          \
	F("nanochat", "the standard output of nanochat, whose loss is smoothed",                                                                                                                                                                                           \
		.kinds = nanochat_kinds, .settings = true)                                                                                                                                                                                                                 \
	F("modded-nanogpt", "the records of modded-nanogpt; dt is step_avg",                                                                                                                                                                                               \
		.kinds = modded_kinds)                                                                                                                                                                                                                                     \
	F("llmq", "the standard output of LLMQ, and its log in JSON", .line = line_llmq,                                                                                                                                                                                   \
		.settings = true)                                                                                                                                                                                                                                          \
	F("llmc", "main.log of llm.c, and the standard output of its programs",                                                                                                                                                                                            \
		.line = line_llmc, .settings = true)                                                                                                                                                                                                                       \
	F("nemo", "the console of NeMo: lines Training epoch 0, iteration 5/99 | ...",                                                                                                                                                                                     \
		.kinds = nemo_kinds)                                                                                                                                                                                                                                       \
	F("nanotron", "the console of nanotron, whose numbers have three digits",                                                                                                                                                                                          \
		.kinds = nanotron_kinds)                                                                                                                                                                                                                                   \
	F("picotron", "the standard output of picotron", .kinds = picotron_kinds)                                                                                                                                                                                          \
	F("deepspeed",                                                                                                                                                                                                                                                     \
		"what the pipeline engine of DeepSpeed prints: lines steps: 10 loss: 2.5 iter time (s): ...",                                                                                                                                                              \
		.kinds = deepspeed_kinds)                                                                                                                                                                                                                                  \
	F("torchtune",                                                                                                                                                                                                                                                     \
		"the standard output of torchtune, its progress bar, and the file of its DiskLogger",                                                                                                                                                                      \
		.kinds = torchtune_kinds)                                                                                                                                                                                                                                  \
	F("litgpt",                                                                                                                                                                                                                                                        \
		"the standard output of LitGPT; a step is an iter, which is a micro-batch",                                                                                                                                                                                \
		.kinds = litgpt_kinds)                                                                                                                                                                                                                                     \
	F("composer",                                                                                                                                                                                                                                                      \
		"the console of Composer and LLM Foundry, and the file of its FileLogger; a step is a batch, or a number of tokens or samples if the run is to last so many",                                                                                              \
		.line = line_composer)                                                                                                                                                                                                                                     \
	F("fairseq",                                                                                                                                                                                                                                                       \
		"the standard output of fairseq, of which --log-format json is of the format jsonl",                                                                                                                                                                       \
		.kinds = fairseq_kinds)                                                                                                                                                                                                                                    \
	F("lightning",                                                                                                                                                                                                                                                     \
		"the progress bar of Lightning and of NeMo 1, whose numbers have three digits; for its metrics.csv see csv",                                                                                                                                               \
		.line = line_lightning)                                                                                                                                                                                                                                    \
	F("mlflow", "a folder of a run in mlruns, or a file in its folder metrics",                                                                                                                                                                                        \
		.line = line_mlflow)                                                                                                                                                                                                                                       \
	F("trainer",                                                                                                                                                                                                                                                       \
		"the standard output of Hugging Face's Trainer and what uses it (TRL, axolotl, Unsloth, ms-swift), {'loss': 2.5, ...}: rows are counted where none states its step; and of slime, whose rollouts have steps of their own",                                 \
		.line = line_trainer)                                                                                                                                                                                                                                      \
	F("megatron", "the standard output of Megatron-LM", .kinds = megatron_kinds,                                                                                                                                                                                       \
		.settings = true)                                                                                                                                                                                                                                          \
	F("automodel", "the console of NeMo Automodel", .kinds = automodel_kinds)                                                                                                                                                                                          \
	F("verl", "the console of verl, whose lines begin with step:",                                                                                                                                                                                                     \
		.kinds = verl_kinds)                                                                                                                                                                                                                                       \
	F("megatron-golden", "its golden_values_*.json", .text = text_golden,                                                                                                                                                                                              \
		.detect = is_golden)                                                                                                                                                                                                                                       \
	F("megatron-bridge",                                                                                                                                                                                                                                               \
		"golden values of Megatron-Bridge; its standard output is of the "                                                                                                                                                                                         \
		"format megatron",                                                                                                                                                                                                                                         \
		.text = text_bridge, .detect = is_bridge)                                                                                                                                                                                                                  \
	F("olmo-core", "the console of OLMo-core", .line = line_olmo)                                                                                                                                                                                                      \
	F("trainer-state",                                                                                                                                                                                                                                                 \
		"trainer_state.json of Hugging Face's Trainer, or its directory; takes about ten times its size in memory",                                                                                                                                                \
		.text = text_trainer_state, .detect = is_trainer_state)                                                                                                                                                                                                    \
	F("tensorboard",                                                                                                                                                                                                                                                   \
		"event files of TensorBoard, a directory of them, or a directory of such directories, which stands for all of their runs: scalars",                                                                                                                        \
		.text = text_tensorboard, .detect = is_tensorboard)                                                                                                                                                                                                        \
	F("json",                                                                                                                                                                                                                                                          \
		"an array of JSON objects (W&B), or of [wall time, step, value], which TensorBoard exports; what the REST interface of MLflow says of the history of a metric",                                                                                            \
		.text = text_array, .detect = is_array)                                                                                                                                                                                                                    \
	F("csv",                                                                                                                                                                                                                                                           \
		"a table with fields separated by commas, semicolons or tabs, with rows in any order; its header names columns; without a header: step, loss; exports of W&B, whose file of several runs stands for all of them and FILE#RUN for one, and of TensorBoard", \
		.line = line_csv)                                                                                                                                                                                                                                          \
	F("jsonl", "a JSON object per line (wandb, ezpz, MaxText, and others)",                                                                                                                                                                                            \
		.line = line_jsonl)

#define ROW(n, w, ...) {.name = n, .what = w, __VA_ARGS__},
static const struct log_format formats[] = {FORMATS(ROW)};
#define NAME(n, w, ...) n,
const char *const log_format_names[] = {"auto", FORMATS(NAME) NULL};

enum { N_FORMATS = ARRAY_LEN(formats), PT = 0 };

void log_formats_man(FILE *f)
{
	fputs(".Bl -tag -width Ds -compact\n", f);
	for (int i = 0; i < N_FORMATS; i++) {
		fprintf(f, ".It Cm %s\n", formats[i].name);
		man_text(f, formats[i].what);
	}
	fputs(".El\n", f);
}

/* ---- lines ----------------------------------------------------------------------- */

/* The length of a sequence that colours text: ESC [ parameters letter. */
static size_t colour_length(struct span s)
{
	size_t n = 1;
	n += n < s.n && s.p[n] == '[';
	while (n < s.n && (unsigned char)s.p[n] < '@')
		n++;
	return n < s.n ? n + 1 : n;
}

static void strip_colour(struct span line, struct str *out)
{
	str_clear(out);
	while (line.n) {
		const char *escape = memchr(line.p, '\033', line.n);
		size_t n = escape ? (size_t)(escape - line.p) : line.n;
		str_add(out, line.p, n);
		line = (struct span){line.p + n, line.n - n};
		n = line.n ? colour_length(line) : 0;
		line = (struct span){line.p + n, line.n - n};
	}
}

static bool take_plain(struct build *b, const struct log_format *f, struct span line)
{
	if (f->kinds ? take_kinds(b, line, f->kinds) : f->line(b, line))
		return true;
	if (f->settings)
		find_settings(b, line);
	return false;
}

/* A carriage return begins a line, too: of a progress bar. */
int format_line(void *to, const char *p, size_t len, struct err *e)
{
	struct line_reader *r = to;
	struct span rest = {p, len};
	while (rest.n) {
		const char *cr = memchr(rest.p, '\r', rest.n);
		struct span line = {rest.p, cr ? (size_t)(cr - rest.p) : rest.n};
		size_t n = line.n + (cr != NULL);
		rest = (struct span){rest.p + n, rest.n - n};
		if (line.n && memchr(line.p, '\033', line.n)) {
			strip_colour(line, &r->plain);
			line = (struct span){r->plain.s, r->plain.len};
		}
		if (line.n)
			take_plain(r->b, r->f, line);
	}
	if (r->b->too_hard)
		return err_set(e, EX_USAGE,
			"pattern: it takes too long on a line that begins '%.*s'; make it "
			"simpler",
			(int)min64((int64_t)len, 40), p);
	return 0;
}

/* ---- detection ------------------------------------------------------------------- */

/* The rows that a format takes of a sample. */
static int64_t count_rows(const struct log_format *f, struct span sample)
{
	struct build b;
	struct line_reader r = {&b, f, {0}};
	struct err e;
	build_begin(&b);
	while (sample.n) {
		const char *stop = memchr(sample.p, '\n', sample.n);
		size_t n = stop ? (size_t)(stop - sample.p) : sample.n;
		format_line(&r, sample.p, n, &e);
		n += stop != NULL;
		sample = (struct span){sample.p + n, sample.n - n};
	}
	int64_t rows = b.n_points ? b.n_taken : 0;
	str_free(&r.plain);
	build_free(&b);
	return rows;
}

/* Lines of pt-train begin with step=, and those of wordplay may, too. */
static bool is_pt(struct span sample)
{
	const char *end = sample.p + sample.n;
	if (h5_begins(sample.p, sample.n) || span_begins(sample, "# meta ") ||
		span_find(sample, "\n# meta "))
		return true;
	if (format_pattern)
		return false;
	const char *p =
		span_begins(sample, "step=") ? sample.p : span_find(sample, "\nstep=");
	if (!p)
		return false;
	p += *p == '\n';
	const char *stop = memchr(p, '\n', (size_t)(end - p));
	struct span line = {p, (size_t)((stop ? stop : end) - p)};
	if (span_find(line, " tokens="))
		return true;
	return !span_find(line, " dtf=") && !span_find(line, " mfu=") &&
	       !span_find(line, " sps=");
}

/* The format of lines that takes the most rows; *most of them. Tables and JSON lines last: a format's own
 * lines may be among them. */
static const struct log_format *detect_lines(struct span sample, int64_t *most)
{
	const struct log_format *best = NULL;
	*most = 0;
	for (int i = 0; i < N_FORMATS; i++) {
		const struct log_format *f = &formats[i];
		bool general = f->line == line_csv || f->line == line_jsonl;
		if (!(f->line || f->kinds) || (general && *most))
			continue;
		int64_t n = count_rows(f, sample);
		if (n > *most)
			*most = n, best = f;
	}
	return best;
}

/* A few rows near the beginning suffice. */
const struct log_format *format_detect(struct span sample)
{
	enum { BEGINNING = 1 << 15, FEW = 16 };
	struct span beginning = {sample.p, (size_t)min64((int64_t)sample.n, BEGINNING)};
	int64_t most;
	if (is_pt(sample))
		return &formats[PT];
	if (format_pattern)
		return format_pattern;
	for (int i = 0; i < N_FORMATS; i++)
		if (formats[i].detect && formats[i].detect(sample))
			return &formats[i];
	const struct log_format *f = detect_lines(beginning, &most);
	return most < FEW && sample.n > beginning.n ? detect_lines(sample, &most) : f;
}

bool format_is_pt(const struct log_format *f)
{
	return f == &formats[PT];
}

const struct log_format *format_find(const char *name)
{
	for (int i = 0; i < N_FORMATS; i++)
		if (!strcmp(formats[i].name, name))
			return &formats[i];
	return NULL;
}
