/* pt-ckpt: lists, verifies, compares, converts, combines and prunes checkpoints. */
#include "base/file.h"
#include "base/utf8.h"
#include "ckpt/print.h"
#include "ckpt/view.h"
#include "foreign/foreign.h"
#include "engine/state.h"
#include "options/options.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

struct opts {
	bool optimizer, strict, options, force, padding, dry_run;
	const char *out, *weights, *vocabulary;
	struct open_options how;
	struct strs tensors, renames;
	double decay;
	int to;	   /* 0: by the name of the output; else a format + 1 */
	int dtype; /* enum dtype */
	int64_t shard_bytes, spool_limit;
	int64_t keep_last, keep_every, keep_best;
	struct opt_given given;
};

#define O(field) offsetof(struct opts, field)
/* clang-format off */
static const struct opt options[] = {
	{OPT_GROUP, .name = "Output"},
	{OPT_STR, 'o', "out", "FILE", NULL, O(out), .files = "", .help =
		"File to write, or for Hugging Face's format a new directory. The name - writes a "
		"checkpoint to standard output."},
	{OPT_FLAG, 'f', "force", NULL, "no", O(force), .help =
		"Replace existing files, but not a directory of Hugging Face's format. With rm: "
		"also remove the targets of latest.h5 and best.h5, and damaged files."},
	{OPT_GROUP, .name = "Comparing and showing"},
	{OPT_FLAG, 'a', "optimizer", NULL, "yes", O(optimizer), .help =
		"With diff: compare the optimizer state too."},
	{OPT_FLAG, 's', "strict", NULL, "no", O(strict), .help =
		"With diff: exit with 1 also when only attributes, options or the vocabulary "
		"differ."},
	{OPT_FLAG, 0, "options", NULL, "no", O(options), .help =
		"With show: print the options of the run instead of the tensors."},
	{OPT_GROUP, .name = "Converting"},
	{OPT_ENUM, 't', "to", NULL, "auto", O(to), .values = convert_names, .help =
		"Format of the output. auto: pt if the name is - or ends with .h5, llmc if the "
		"name ends with .bin, else huggingface. torch is an error, because pt-ckpt only "
		"reads such files."},
	{OPT_ENUM, 0, "dtype", NULL, "fp32", O(dtype), .values = OPT_WORDS("fp32", "bf16", "fp16"),
		.help =
		"With convert: type of the stored elements, rounded to nearest, ties to even. With "
		"cast: type to which the values are rounded."},
	{OPT_SIZE, 0, "shard-size", "BYTES", "0", O(shard_bytes), .help =
		"Maximum bytes of tensors per file of Hugging Face's format. 0: one file."},
	{OPT_FLAG, 0, "padding", NULL, "no", O(padding), .help =
		"In Hugging Face's format, also write the rows that pad the vocabulary, and count "
		"these rows in vocab_size."},
	{OPT_STR, 0, "vocabulary", "FILE", NULL, O(vocabulary), .files = ".h5", .help =
		"With convert: store the vocabulary of this checkpoint or shard, or of a "
		"tokenizer's directory or file, such as tokenizer.json. Model files of other "
		"programs have no vocabulary."},
	{OPT_STR, 0, "model-config", "FILE", NULL, O(how.config), .files = "", .help =
		"For PyTorch and Hugging Face: a file with the options that tensors do not "
		"determine, such as the number of heads. The file is Hugging Face's config.json, "
		"or for PyTorch also a file of pt-train options. Default: config.json next to the "
		"checkpoint."},
	{OPT_GROUP, .name = "Combining and selecting"},
	{OPT_STR, 0, "weights", "W,W,...", NULL, O(weights), .help =
		"With merge: the weight of each checkpoint. The weights need not sum to 1."},
	{OPT_DOUBLE, 0, "decay", "X", "0.9", O(decay), 0, 0, 1, .help =
		"With ema: each further checkpoint y replaces the average a by X a + (1 - X) y."},
	{OPT_LIST, 0, "tensor", "PATTERN", NULL, O(tensors), .help =
		"With extract: keep the tensors with names that match the shell pattern. May be "
		"repeated."},
	{OPT_LIST, 0, "rename", "OLD=NEW", NULL, O(renames), .help =
		"With rename: replace the first OLD in each name by NEW. ^OLD is replaced only at "
		"the beginning of a name, and OLD$ only at the end. May be repeated."},
	{OPT_GROUP, .name = "Pruning"},
	{OPT_INT, 0, "keep-last", "N", "0", O(keep_last), 0, 0, 1e15, .help =
		"With prune: keep the last N checkpoints."},
	{OPT_INT, 0, "keep-every", "STEPS", "0", O(keep_every), 0, 0, 1e15, .help =
		"With prune: keep the checkpoint of every step that this number divides."},
	{OPT_INT, 0, "keep-best", "N", "0", O(keep_best), 0, 0, 1e15, .help =
		"With prune: keep the N checkpoints with the lowest validation losses."},
	{OPT_FLAG, 'n', "dry-run", NULL, "no", O(dry_run), .help =
		"With prune: print the checkpoints that would be removed."},
	{OPT_GROUP, .name = "Input"},
	OPT_SPOOL_LIMIT(O(spool_limit), 0),
	{OPT_END},
};
/* clang-format on */

static void generate_man(int kind, FILE *f)
{
	(void)kind;
	h5_fields_print_man(ckpt_fields, f);
}

/* Prints a line per checkpoint of each file or directory; without operands, of ".".
 * Continues after a file that cannot be read, and returns the first error. */
static int list_files(int n, char **names, const struct opts *o, struct err *e)
{
	(void)o;
	ckpt_print_list_head();
	for (int i = 0; i < (n ? n : 1); i++) {
		struct err error = {0};
		if (ckpt_print_list(n ? names[i] : ".", &error)) {
			*e = error;
			return -1;
		}
		if (error.code)
			err_print_keep_first(e, &error);
	}
	return e->code ? -1 : 0;
}

/* Prints the fields and tensors of a checkpoint, or only its options with --options. */
static int show(int n, char **names, const struct opts *o, struct err *e)
{
	struct ckpt *c;
	(void)n;
	if (convert_open_ckpt(&c, names[0], &o->how, e))
		return -1;
	int rc = c->view ? ckpt_view_hash(c->view, &c->info.param_hash, e) : 0;
	if (rc) {
		ckpt_close(c);
		return rc;
	}
	if (o->options) { /* (may be saved and used as --config) */
		rc = state_check(c, e);
		if (isatty(STDOUT_FILENO)) /* (a file gets the raw bytes) */
			text_printable(c->config.s);
		fputs(rc ? "" : c->config.s, stdout);
	} else {
		scoped_ptr int *order =
			convert_forward_order(c->config.s, c->tensors, c->n_tensors);
		ckpt_print_info(c);
		rc = ckpt_print_tensors(c, order, e);
	}
	ckpt_close(c);
	return rc;
}

/* Verifies files, and prints a verdict per file. The first failure determines the exit code. */
static int verify_files(int n, char **names, const struct opts *o, struct err *e)
{
	for (int i = 0; i < n; i++) {
		struct err error = {0};
		if (!convert_verify(names[i], &o->how, &error)) {
			printf("%s: ok\n", names[i]);
			continue;
		}
		printf("%s: %s\n", names[i],
			error.code == EX_IOERR || error.code == EX_USAGE
				? "cannot be read"
			: error.code == EX_UNAVAILABLE			 ? "not supported"
			: error.code == EX_FAILED			 ? "COPIES DIFFER"
			: convert_detect(names[i]).format != &convert_pt ? "DAMAGED"
			: ckpt_is_empty_directory(names[i])		 ? "no checkpoint"
			: ckpt_is_other_format(names[i]) ? "not a checkpoint"
							 : "DAMAGED");
		err_print_keep_first(e, &error);
	}
	return e->code ? -1 : 0;
}

/* Prints the hash of the parameters of each file, as sha256sum does. */
static int print_hashes(int n, char **names, const struct opts *o, struct err *e)
{
	for (int i = 0; i < n; i++) {
		uint64_t hash;
		if (convert_hash_file(names[i], &o->how, &hash, e))
			return -1;
		printf("0x%016llx  %s\n", (unsigned long long)hash, names[i]);
	}
	return 0;
}

/* Prints a checkpoint's fields and the hashes of its tensors as JSON. */
static int export_json(int n, char **names, const struct opts *o, struct err *e)
{
	struct ckpt *c;
	(void)n, (void)o;
	if (ckpt_open_stream(&c, names[0], e))
		return -1;
	scoped_ptr int *order =
		convert_forward_order(c->config.s, c->tensors, c->n_tensors);
	int rc = ckpt_export_json(c, order, stdout, e);
	ckpt_close(c);
	return rc;
}

/* Prints each tensor that differs. Returns the number of differences; -1 with *e set. */
static int64_t print_tensor_differences(
	const struct ckpt *a, const struct ckpt *b, bool with_optimizer, struct err *e)
{
	struct ckpt_delta *deltas;
	scoped_ptr int *order =
		convert_forward_order(a->config.s, a->tensors, a->n_tensors);
	int64_t n = ckpt_diff(a, b, order, with_optimizer, &deltas, e);
	if (n > 0 && deltas[0].group)
		printf("# first difference: %s\n", text_printable(deltas[0].name));
	for (int64_t i = 0; i < n; i++)
		ckpt_print_delta(&deltas[i]);
	if (n >= 0)
		free(deltas);
	return n;
}

/* Prints the differences of two checkpoints. Returns -1 if they differ (e->code is
 * EX_FAILED, without a message), or on failure. */
static int compare_checkpoints(int n, char **names, const struct opts *o, struct err *e)
{
	struct ckpt *a, *b;
	(void)n;
	if (convert_open_ckpt(&a, names[0], &o->how, e))
		return -1;
	if (convert_open_ckpt(&b, names[1], &o->how, e)) {
		ckpt_close(a);
		return -1;
	}
	int64_t n_deltas = print_tensor_differences(a, b, o->optimizer, e);
	int64_t n_other =
		n_deltas ? 0 : ckpt_print_other_differences(a, b, o->optimizer, e);
	ckpt_close(a);
	ckpt_close(b);
	if (n_deltas < 0 || n_other < 0)
		return -1;
	bool has_differences = n_deltas || (o->strict && n_other);
	if (has_differences)
		e->code = EX_FAILED; /* (no message: the differences are printed) */
	return has_differences ? -1 : 0;
}

static int remove_files(int n, char **names, const struct opts *o, struct err *e)
{
	for (int i = 0; i < n; i++)
		if (ckpt_remove_file(names[i], o->force, e))
			return -1;
	return 0;
}

static int prune_run(int n, char **names, const struct opts *o, struct err *e)
{
	const struct ckpt_retention rule = {o->keep_last, o->keep_every, o->keep_best};
	(void)n;
	if (!o->keep_last && !o->keep_every && !o->keep_best)
		return err_set(e, EX_USAGE,
			"prune needs a rule; give --keep-last, --keep-every or --keep-best");
	return ckpt_print_pruned(names[0], &rule, o->dry_run, e);
}

/* Copies a checkpoint to standard output (cat), after checking its metadata. */
static int copy_to_stdout(int n, char **names, const struct opts *o, struct err *e)
{
	struct ckpt *c;
	(void)n, (void)o;
	if (ckpt_open_stream(&c, names[0], e))
		return -1;
	int rc = ckpt_copy_to_stdout(c, e);
	ckpt_close(c);
	return rc;
}

/* Writes the view of `from` to --out, in the format of --to. */
static int write_output(
	const struct ckpt_view *v, const char *from, const struct opts *o, struct err *e)
{
	const struct convert_format *f = convert_output_format(o->to, o->out);
	const char *files =
		o->vocabulary ? convert_is_tokenizer(o->vocabulary) ? o->vocabulary : NULL
		: !strcmp(v->format, "huggingface") || !strcmp(v->format, "torch") ? from
										   : NULL;
	const struct convert_opts how = {
		(enum dtype)o->dtype, o->shard_bytes, o->padding, files};
	if (f != &convert_huggingface && (o->shard_bytes || o->padding))
		return err_set(e, EX_USAGE,
			"--shard-size and --padding require --to huggingface");
	return convert_save(v, f, o->out, &how, e);
}

/* Writes the operand in another format, with another vocabulary if --vocabulary is given. */
static int convert_file(int n, char **names, const struct opts *o, struct err *e)
{
	struct ckpt_view v;
	struct tokenizer t = {0};
	(void)n;
	if (convert_open(&v, names[0], &o->how, e))
		return -1;
	int rc = o->vocabulary ? convert_set_vocabulary(&v, &t, o->vocabulary, e) : 0;
	rc = rc ? err_prefix(e, "--vocabulary: ") : write_output(&v, names[0], o, e);
	ckpt_view_close(&v);
	tokenizer_release(&t);
	return rc ? -1 : 0;
}

/* Parses --weights, which must be n finite numbers. */
static int parse_weights(const char *text, int n, double *weights, struct err *e)
{
	char *copy = xstrdup(text ? text : ""), *rest = copy, *item;
	int i = 0, rc = 0;
	while (!rc && (item = strsep(&rest, ",")))
		rc = i == n || parse_double(item, &weights[i]) || !isfinite(weights[i++]);
	free(copy);
	return !rc && i == n ? 0
			     : err_set(e, EX_USAGE,
				       "merge needs --weights with %d finite numbers", n);
}

/* Writes the mean of several checkpoints. */
static int write_average(int n, char **names, const struct opts *o, struct err *e)
{
	double ones[CKPT_MAX_SOURCES];
	for (int i = 0; i < n; i++)
		ones[i] = 1;
	return convert_sum(n, names, &o->how, ones, n, o->out, e);
}

/* Writes the exponential moving average of several checkpoints, by --decay. */
static int write_ema(int n, char **names, const struct opts *o, struct err *e)
{
	double weights[CKPT_MAX_SOURCES];
	ckpt_ema_weights(o->decay, n, weights);
	return convert_sum(n, names, &o->how, weights, 1, o->out, e);
}

/* Writes the sum of several checkpoints with --weights. */
static int write_merged(int n, char **names, const struct opts *o, struct err *e)
{
	double weights[CKPT_MAX_SOURCES];
	if (parse_weights(o->weights, n, weights, e))
		return -1;
	return convert_sum(n, names, &o->how, weights, 1, o->out, e);
}

/* Writes only the parameters of a checkpoint. */
static int strip(int n, char **names, const struct opts *o, struct err *e)
{
	(void)n;
	return convert_selection(names[0], &o->how,
		&(struct ckpt_selection){.parameters_only = true}, o->out, e);
}

/* Writes only the parameters that --tensor names. */
static int extract(int n, char **names, const struct opts *o, struct err *e)
{
	(void)n;
	if (!o->tensors.n)
		return err_set(e, EX_USAGE, "extract needs --tensor");
	return convert_selection(names[0], &o->how,
		&(struct ckpt_selection){.tensors = &o->tensors, .parameters_only = true},
		o->out, e);
}

static int write_renamed(int n, char **names, const struct opts *o, struct err *e)
{
	(void)n;
	if (!o->renames.n)
		return err_set(e, EX_USAGE, "rename needs --rename");
	return convert_selection(names[0], &o->how,
		&(struct ckpt_selection){.renames = &o->renames}, o->out, e);
}

/* Writes the parameters, rounded to --dtype, as a new checkpoint. */
static int write_rounded(int n, char **names, const struct opts *o, struct err *e)
{
	(void)n;
	if (o->dtype == DT_F32)
		return err_set(e, EX_USAGE, "cast needs --dtype bf16 or fp16");
	return convert_selection(names[0], &o->how,
		&(struct ckpt_selection){
			.parameters_only = true, .round_to = (enum dtype)o->dtype},
		o->out, e);
}

static const struct command {
	const char *name, *synopsis;
	int min, max; /* operands */
	int (*run)(int n, char **names, const struct opts *o, struct err *e);
	const char *options; /* accepted options, each between blanks */
} commands[] = {
	{"ls", "ls [RUN | DIRECTORY | CHECKPOINT] ...", 0, INT32_MAX, list_files, ""},
	{"show", "show [--options] [--model-config FILE] RUN|FILE", 1, 1, show,
		" options model-config "},
	{"verify", "verify [--model-config FILE] RUN|FILE ...", 1, INT32_MAX,
		verify_files, " model-config "},
	{"diff",
		"diff [--no-optimizer] [--strict] [--model-config FILE] RUN|FILE RUN|FILE",
		2, 2, compare_checkpoints, " optimizer strict model-config "},
	{"hash", "hash RUN|FILE ...", 1, INT32_MAX, print_hashes, " model-config "},
	{"export-json", "export-json RUN|CHECKPOINT", 1, 1, export_json, ""},
	{"cat", "cat RUN|CHECKPOINT", 1, 1, copy_to_stdout, ""},
	{"convert",
		"convert [--to FORMAT] [--dtype TYPE] [--shard-size BYTES] [--padding] "
		"[--vocabulary FILE] "
		"[--model-config FILE] -o OUT RUN|FILE",
		1, 1, convert_file,
		" out force to dtype shard-size padding vocabulary model-config "},
	{"average", "average -o OUT RUN|FILE ...", 1, CKPT_MAX_SOURCES, write_average,
		" out force model-config "},
	{"ema", "ema [--decay X] -o OUT RUN|FILE ...", 1, CKPT_MAX_SOURCES, write_ema,
		" out force decay model-config "},
	{"merge", "merge --weights W,W,... -o OUT RUN|FILE ...", 1, CKPT_MAX_SOURCES,
		write_merged, " out force weights model-config "},
	{"strip", "strip -o OUT RUN|CHECKPOINT", 1, 1, strip, " out force model-config "},
	{"extract", "extract --tensor PATTERN ... -o OUT RUN|FILE", 1, 1, extract,
		" out force tensor model-config "},
	{"rename", "rename --rename OLD=NEW ... -o OUT RUN|FILE", 1, 1, write_renamed,
		" out force rename model-config "},
	{"cast", "cast --dtype TYPE -o OUT RUN|FILE", 1, 1, write_rounded,
		" out force dtype model-config "},
	{"prune",
		"prune [--keep-last N] [--keep-every STEPS] [--keep-best N] [--dry-run] RUN",
		1, 1, prune_run, " keep-last keep-every keep-best dry-run "},
	{"rm", "rm [--force] CHECKPOINT ...", 1, INT32_MAX, remove_files, " force "},
};

static const char *const *command_names(void)
{
	static const char *names[ARRAY_LEN(commands) + 1];
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		names[i] = commands[i].name;
	return names;
}

/* Sets *e to a usage error that lists all commands. Returns -1. */
static int missing_command_error(struct err *e)
{
	scoped_str list = {0};
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		str_printf(&list, "%s%s",
			!i			      ? ""
			: i + 1 < ARRAY_LEN(commands) ? ", "
						      : " or ",
			commands[i].name);
	err_set(e, EX_USAGE, "specify a command: %s", list.s);
	return -1;
}

/* Returns true if the command accepts the option. */
static bool accepts_option(const struct command *c, const char *option)
{
	char word[32];
	snprintf(word, sizeof(word), " %s ", option);
	return strstr(" spool-limit ", word) || strstr(c->options, word);
}

/* Rejects options that have no effect on the command. */
static int check_options(const struct command *c, const struct opts *o, struct err *e)
{
	for (size_t i = 0; options[i].type != OPT_END; i++)
		if (o->given.row[i] && !accepts_option(c, options[i].name) &&
			!opts_in_environment(options[i].name))
			return err_set(e, EX_USAGE, "%s does not accept --%s", c->name,
				options[i].name);
	return 0;
}

static const char torch_not_written[] =
	"PyTorch checkpoints cannot be written; PyTorch loads the files of the directory that "
	"-o DIRECTORY writes";

/* Rejects a name whose suffix implies another format than the directory that would be written. */
static int check_suffix(const char *out, struct err *e)
{
	static const struct {
		const char *end, *why;
	} other[] = {
		{".gguf",
			"GGUF cannot be written; llama.cpp's convert_hf_to_gguf.py reads the "
			"directory that -o DIRECTORY writes"},
		{".onnx", "ONNX cannot be written; 'optimum-cli export onnx' reads the "
			  "directory that -o DIRECTORY writes"},
		{".pt", torch_not_written}, {".pth", torch_not_written},
		{".ckpt", torch_not_written},
		{".safetensors", "the output is a directory, with config.json and "
				 "model.safetensors; specify -o DIRECTORY"}};
	for (size_t i = 0; i < ARRAY_LEN(other); i++)
		if (text_ends(out, other[i].end))
			return err_set(e, EX_USAGE, "%s: %s", out, other[i].why);
	return 0;
}

/* Checks that --out is given, has the right suffix, and may be written. */
static int check_output(const struct command *c, const struct opts *o, struct err *e)
{
	struct stat st;
	if (!accepts_option(c, "out"))
		return 0;
	if (!o->out)
		return err_set(e, EX_USAGE, "%s needs --out", c->name);
	if (c->run != convert_file && !convert_pt.is_name(o->out))
		return err_set(e, EX_USAGE,
			"%s writes a checkpoint: --out must be - or end with .h5",
			c->name);
	if (c->run == convert_file && !o->to && check_suffix(o->out, e))
		return -1;
	if (o->force || lstat(o->out, &st) || S_ISDIR(st.st_mode))
		return 0;
	return err_set(e, EX_USAGE, "%s exists; --force replaces it", o->out);
}

static int check_operands(const struct command *c, int n, struct err *e)
{
	if (n >= c->min && n <= c->max)
		return 0;
	return err_set(e, EX_USAGE, "%s takes %s", c->name,
		c->max == 1   ? "one checkpoint"
		: c->max == 2 ? "two checkpoints"
			      : "one checkpoint or more");
}

/* Checks operands and options of the command, runs it, and reports the file that it wrote. */
static int run_command(const struct command *c, int n, char **operands,
	const struct opts *o, struct err *e)
{
	if (check_operands(c, n, e) || check_options(c, o, e) || check_output(c, o, e) ||
		c->run(n, operands, o, e))
		return -1;
	if (accepts_option(c, "out") && strcmp(o->out, "-") != 0)
		info("wrote %s (%s)", o->out, convert_output_format(o->to, o->out)->name);
	return 0;
}

/* Runs the command that the first operand names. */
static int run_named_command(int n, char **operands, const struct opts *o, struct err *e)
{
	const char *const *names = command_names();
	if (n < 1)
		return missing_command_error(e);
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		if (!strcmp(operands[0], names[i]))
			return run_command(&commands[i], n - 1, operands + 1, o, e);
	return opts_unknown_error("command", operands[0], names, ARRAY_LEN(commands), e);
}

static const char *const *synopsis_lines(void)
{
	static const char *lines[ARRAY_LEN(commands) + 1];
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		lines[i] = commands[i].synopsis;
	return lines;
}

static const char *const advice[N_ADVICE] = {SPOOL_ADVICE};

int main(int argc, char **argv)
{
	const struct program program = {
		.name = "pt-ckpt",
		.summary = "verify, compare, convert, combine and prune checkpoints",
		.synopsis = synopsis_lines(),
		.opts = options,
		.opts_bytes = sizeof(struct opts),
		.given = offsetof(struct opts, given),
		.one_rank = true,
		.operands = ".h5",
		.words = command_names,
		.versions = h5_versions,
		.generate = generate_man,
		.kinds = (const char *const[]){"checkpoint", NULL},
	};
	struct opts o;
	struct err e = {0};
	advice_set(advice);
	int n = opts_parse_or_die(&program, &o, argc, argv);
	file_spool_limit(o.spool_limit);
	int rc = run_named_command(n, argv, &o, &e);
	if (rc)
		err_print(&e);
	stdout_close();
	return rc ? e.code : 0;
}
