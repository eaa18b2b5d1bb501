/* pt-sample: text from a checkpoint. */
#include "base/file.h"
#include "base/utf8.h"
#include "chat/chat.h"
#include "engine/backend.h"
#include "engine/inference.h"
#include "engine/layout.h"
#include "engine/options.h"
#include "engine/state.h"
#include "foreign/foreign.h"
#include "model/generate.h"
#include "options/options.h"
#include "sample/sample.h"

#include <errno.h>
#include <signal.h>

struct opts {
	const char *prompt, *chat, *chat_template, *stop;
	int64_t tokens, samples, top_k, seed, threads, tp, fsdp;
	double temperature, top_p;
	int device; /* enum device_kind */
	int comm;   /* enum comm_library */
	bool cache, echo, logits, allow_special;
	struct opt_given given;
};

#define O(field) offsetof(struct opts, field)
/* clang-format off */
static const struct opt options[] = {
	{OPT_GROUP, .name = "Sampling"},
	{OPT_STR, 'p', "prompt", "TEXT", NULL, O(prompt), .help =
		"The prompt, or - to read prompts from standard input, one prompt per line. "
		"Without a prompt, or with an empty prompt, the text begins with a line break, or "
		"with token 0 if the vocabulary has no line break."},
	{OPT_FLAG, 0, "allow-special", NULL, "no", O(allow_special), .help =
		"Encode the text of a special token in the prompt, such as <|endoftext|>, as this "
		"token, not as the tokens of its characters."},
	{OPT_STR, 'c', "chat", "TEXT", NULL, O(chat), .help =
		"The message of a user to a chat model, instead of a prompt. With -, each line of "
		"standard input is a message that begins a conversation. The chat template lays "
		"the message out. Special tokens in the message are plain text. The message is "
		"printed only with --echo."},
	{OPT_STR, 0, "chat-template", "NAME", NULL, O(chat_template), .files = "", .needs = "--chat", .help =
		"The chat template, as for pt-prepare. Default: the template of the training "
		"data, or of the Hugging Face model that training started from."},
	{OPT_INT, 'n', "tokens", "N", "500", O(tokens), 0, 0, 1e15, .help =
		"Maximum number of tokens to generate."},
	{OPT_INT, 'N', "samples", "N", "1", O(samples), 0, 1, 1e9, .help =
		"Number of texts to generate for each prompt, with a line break after each text."},
	{OPT_DOUBLE, 't', "temperature", "X", "0.8", O(temperature), 0, 0, 1e6, .help =
		"Sampling temperature, which divides the logits. 0: greedy decoding."},
	{OPT_INT, 'k', "top-k", "N", "200", O(top_k), 0, 0, 1e9, .help =
		"Sample from the N most probable tokens (0: from all tokens)."},
	{OPT_DOUBLE, 0, "top-p", "P", "1", O(top_p), 0, 0, 1, .help =
		"Sample from the most probable tokens with a total probability of P (nucleus "
		"sampling)."},
	{OPT_INT, 's', "seed", "N", "1", O(seed), .help =
		"Random seed. Equal seeds give equal text."},
	{OPT_STR, 0, "stop", "TEXT", NULL, O(stop), .help =
		"Also end a text after TEXT. id:N: end before the token N. none: end only after "
		"--tokens. Unless TEXT is none, a text also ends before the model's end-of-text "
		"token, if there is one, and with --chat before the token that ends a turn."},
	{OPT_FLAG, 'e', "echo", NULL, "yes", O(echo), .help =
		"Print the prompt before the text."},
	{OPT_GROUP, .name = "Execution"},
	{OPT_FLAG, 0, "cache", NULL, "yes", O(cache), .help =
		"Keep a cache of keys and values. Without the cache, every token is computed from "
		"the whole context again; the text is the same."},
	{OPT_INT, 0, "tp", "N", "1", O(tp), 0, -1, 1024, .help =
		"Number of ranks that split every weight (tensor parallelism). The number must "
		"divide the virtual degree with which the model was trained. -1: the remaining "
		"ranks."},
	{OPT_INT, 0, "fsdp", "N", "1", O(fsdp), 0, -1, 1e6, .help =
		"Number of ranks that shard the parameters and gather each layer before computing "
		"it. -1: the remaining ranks."},
	{OPT_INT, 0, "threads", "N", "0", O(threads), 0, 0, 4096, .help =
		"Threads per rank (0: the processors of the host, divided among its ranks)."},
	{OPT_ENUM, 0, "device", NULL, "cpu", O(device), .values = OPT_WORDS(DEVICE_WORDS), .help =
		"Device to compute on. GPUs and CPUs round differently, so the text may differ. "
		"auto: a GPU, if each rank finds a GPU of its own."},
	{OPT_ENUM, 0, "comm", NULL, "auto", O(comm), .values = OPT_WORDS(COMM_LIBRARY_WORDS), .help =
		"Library that transfers data between GPUs, as for pt-train."},
	{OPT_FLAG, 0, "logits", NULL, "no", O(logits), .help =
		"Print the logits after the prompt, one token per line, as hexadecimal floats, "
		"and generate nothing."},
	{OPT_END},
};
/* clang-format on */

static const char *const synopsis[] = {
	"[options] RUN|MODEL [PROMPT]",
	"[options] RUN|MODEL - < PROMPTS",
	"[options] RUN|MODEL --chat TEXT",
	NULL,
};

static const struct program program = {
	.name = "pt-sample",
	.summary = "generate text from a checkpoint or a Hugging Face model",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct opts),
	.given = offsetof(struct opts, given),
	.operands = ".h5",
	.versions = h5_versions,
};

struct session {
	const struct opts *o;
	struct comm *world;
	int degree[N_AXES];
	struct ckpt *ckpt;
	struct device d;
	struct inference x;
	struct chat_template *chat; /* NULL: prompts are not conversations */
	struct stops stops;
	bool echo, warned;
};

/* Sets the degrees of the mesh from --tp and --fsdp. */
static int resolve_mesh(struct session *s, struct err *e)
{
	const int64_t wanted[N_AXES] = {1, 1, s->o->fsdp, 1, s->o->tp};
	int ranks = s->world->size;
	if (ranks > 1 && s->o->tp == 1 && s->o->fsdp == 1)
		return err_set(e, EX_USAGE,
			"%d ranks need --tp or --fsdp, whose product must be %d", ranks,
			ranks);
	return mesh_resolve(wanted, ranks, s->degree, e);
}

/* Opens a checkpoint or a model of Hugging Face. Collective: all ranks open the file that rank 0
 * finds, since a run may write a newer one meanwhile. */
static int open_ckpt(struct session *s, const char *name, struct err *e)
{
	scoped_str path = {0};
	if (s->world->size == 1)
		return convert_open_for_sampling(&s->ckpt, name, e);
	if (s->world->rank == 0) {
		scoped_ptr char *file = ckpt_find_file(name);
		str_puts(&path, file);
	}
	comm_bcast_str(s->world, &path, 0);
	return convert_open_for_sampling(&s->ckpt, path.s, e);
}

/* Opens the chat template, and sets what ends a text. */
static int open_template_and_stops(struct session *s, struct err *e)
{
	const struct opts *o = s->o;
	if (o->chat && !(s->chat = open_prompt_template(s->ckpt, o->chat_template, e)))
		return -1;
	return stops_init(&s->stops, s->ckpt, o->stop, s->chat, e);
}

/* Opens the checkpoint and its model. Collective, but ranks may return different errors. */
static int open_model(
	struct session *s, const char *name, struct model_config *config, struct err *e)
{
	if (open_ckpt(s, name, e))
		return -1;
	const char *path = s->ckpt->path;
	if (!s->ckpt->tokenizer.kind)
		return err_set(e, EX_DATAERR, "%s has no vocabulary", path);
	if (s->o->allow_special && tokenizer_allow_special(&s->ckpt->tokenizer, e))
		return err_prefix(e, "%s: ", path);
	if (open_template_and_stops(s, e))
		return -1;
	if (options_parse_model(config, s->ckpt->config.s, e)) {
		e->code = EX_DATAERR;
		return err_prefix(e, "%s: ", path);
	}
	if (state_check_shapes(s->ckpt, config, true, e))
		return -1;
	if (model_init(&s->x.model, config, s->ckpt->tokenizer.vocab.n, e)) {
		e->code = EX_DATAERR; /* the options are from the checkpoint */
		return err_prefix(e, "%s: ", path);
	}
	if (model_check_kernels(&s->x.model, e) || weights_check(s->ckpt, &s->x.model, e))
		return -1;
	return layout_check_tp(s->degree[AXIS_TP], &s->x.model, e);
}

/* Opens the device and its communication. Collective. */
static int open_device(
	struct session *s, const struct model_config *config, struct err *e)
{
	struct train_opts t = {.model = *config,
		.device = s->o->device,
		.threads = backend_threads(s->o->threads)};
	backend_count_sharers(&t, s->world);
	backend_open(&t, &s->d, e);
	if (!comm_agree(s->world, e))
		backend_agree(&t, s->world, &s->d, e);
	if (comm_agree(s->world, e))
		return -1;
	return comm_device_open(s->world, &s->d, (enum comm_library)s->o->comm, e);
}

/* Opens the model of a checkpoint and loads its parameters. Collective. */
static int load_model(struct session *s, const char *name, struct err *e)
{
	struct model_config config;
	if (resolve_mesh(s, e)) /* all ranks have the same options */
		return -1;
	open_model(s, name, &config, e);
	if (comm_agree(s->world, e) || open_device(s, &config, e))
		return -1;
	inference_open_ranks(&s->x, &s->d, s->world, s->degree);
	weights_load(s->x.store, s->ckpt, NULL, CKPT_MODEL, STORE_PARAM, e);
	return comm_agree(s->world, e);
}

/* Prints a line "token, tab, logit" per token of the vocabulary. */
static void print_logits(const struct session *s, const struct decoder *g)
{
	const float *x = decoder_logits(g);
	for (int64_t i = 0; i < s->x.model.c.vocab; i++)
		printf("%lld\t%a\n", (long long)i, (double)x[i]);
}

/* Prints text and flushes standard output. */
static int print_text(const char *p, size_t n, struct err *e)
{
	if (fwrite(p, 1, n, stdout) == n && !fflush(stdout))
		return 0;
	return err_set(e, EX_IOERR, "standard output: %s", strerror(errno));
}

/* Prints text on rank 0. Collective. */
static int print_once(const struct session *s, const char *p, size_t n, struct err *e)
{
	if (s->world->rank == 0)
		print_text(p, n, e);
	return comm_agree(s->world, e);
}

/* Draws and prints token i of a text on rank 0. Returns its ID on all ranks; -1: the text has
 * ended, possibly by an error on rank 0. Collective. */
static int64_t draw_token(const struct session *s, struct decoder *decoder,
	uint64_t stream, int64_t i, struct str *text, struct err *e)
{
	const struct opts *o = s->o;
	const struct sampler sampler = {
		o->temperature, o->top_k, o->top_p, (uint64_t)o->seed};
	int64_t id = -1;
	if (s->world->rank == 0) {
		const char *stop = s->stops.text;
		size_t old_length = text->len;
		id = decoder_draw(decoder, &sampler, stream, i);
		if (is_stop_token(&s->stops, id))
			id = -1;
		tokenizer_decode(&s->ckpt->tokenizer, id, text);
		if (print_text(text->s + old_length, text->len - old_length, e) ||
			(stop && str_ends(text, stop)))
			id = -1;
	}
	comm_bcast(s->world, &id, sizeof(id), 0);
	return id;
}

/* Draws and prints a text after the prompt `ids`, or prints its logits. Collective. */
static int draw_text(
	struct session *s, const uint32_t *ids, int64_t n, uint64_t stream, struct err *e)
{
	const struct opts *o = s->o;
	struct decoder *decoder = decoder_open(&s->x.model, &s->d, s->x.store, o->cache);
	scoped_str text = {0};
	str_puts(&text, "");
	decoder_feed(decoder, ids, n);
	if (o->logits && s->world->rank == 0)
		print_logits(s, decoder);
	for (int64_t i = 0; i < o->tokens && !o->logits; i++) {
		int64_t next = draw_token(s, decoder, stream, i, &text, e);
		if (next < 0)
			break;
		uint32_t id = (uint32_t)next;
		if (i + 1 < o->tokens)
			decoder_feed(decoder, &id, 1);
	}
	decoder_close(decoder);
	return comm_agree(s->world, e);
}

/* Sets the tokens that replace an empty prompt: a line break, or token 0. Returns their number. */
static int64_t encode_empty(const struct tokenizer *t, struct str *text, uint32_t **ids)
{
	str_clear(text);
	str_putc(text, '\n');
	int64_t n = tokenizer_encode_all(
		t, text->s, (int64_t)text->len, ids, &(struct err){0});
	if (n > 0)
		return n;
	*ids = xcalloc(1, sizeof(**ids));
	str_clear(text);
	tokenizer_decode(t, 0, text);
	return 1;
}

struct prompt {
	const char *text;
	size_t len;
	uint64_t number;
	const char *from; /* name in messages, such as "line 2 of standard input" */
};

/* Warns once if a prompt has the text of a special token, which is not encoded as the token. */
static void warn_special_token(struct session *s, const struct prompt *p)
{
	scoped_str name = {0};
	if (s->o->allow_special || s->warned || s->world->rank)
		return;
	find_special_token(&s->ckpt->tokenizer, p->text, p->len, &name);
	s->warned = name.len;
	if (name.len)
		warn("%s: the text '%s' of a special token becomes tokens of its characters%s",
			p->from, text_printable(name.s),
			s->chat ? ""
				: "; --allow-special encodes it as the token, and --chat "
				  "lays out a conversation");
}

/* Encodes a prompt: sets its text and its tokens, and returns the number of tokens or -1. */
static int64_t encode_prompt(struct session *s, const struct prompt *p, struct str *text,
	uint32_t **ids, struct err *e)
{
	const struct tokenizer *t = &s->ckpt->tokenizer;
	warn_special_token(s, p);
	if (s->chat)
		return encode_question(s->chat, t, p->text, p->len, text, ids, e);
	if (!p->len)
		return encode_empty(t, text, ids);
	str_add(text, p->text, p->len);
	return tokenizer_encode_all(t, text->s, (int64_t)text->len, ids, e);
}

/* Draws all samples of a prompt, each with its own stream of random numbers. Collective. */
static int sample_prompt(struct session *s, const struct prompt *p, struct err *e)
{
	scoped_str text = {0};
	uint32_t *ids;
	int64_t n = encode_prompt(s, p, &text, &ids, e);
	int rc = n < 0 ? err_prefix(e, "%s: ", p->from) : 0;
	for (int64_t i = 0; i < s->o->samples && !rc; i++) {
		if (s->echo && !s->o->logits)
			rc = print_once(s, text.s, text.len, e);
		rc = rc || draw_text(s, ids, n, p->number << 32 | (uint64_t)i, e);
		if (!s->o->logits)
			rc = rc || print_once(s, "\n", 1, e);
	}
	if (n >= 0)
		free(ids);
	return rc;
}

/* Reads a line of standard input on rank 0. Returns 1, 0 at the end, or -1. Collective. */
static int read_line(const struct session *s, struct str *out, struct err *e)
{
	scoped_ptr char *line = NULL;
	size_t capacity = 0;
	int64_t n = -1;
	str_clear(out);
	comm_watchdog_pause(true); /* a person may be typing */
	if (s->world->rank == 0)
		n = getline(&line, &capacity, stdin);
	if (n < 0 && ferror(stdin))
		err_errno(e, "standard input");
	if (n > 0)
		str_add(out, line, (size_t)(n - (line[n - 1] == '\n')));
	comm_bcast(s->world, &n, sizeof(n), 0);
	comm_watchdog_pause(false);
	if (n < 0)
		return comm_agree(s->world, e) ? -1 : 0;
	comm_bcast_str(s->world, out, 0);
	return 1;
}

/* Samples each line of standard input as a prompt. Collective. */
static int sample_lines(struct session *s, struct err *e)
{
	scoped_str line = {0};
	char from[64];
	int rc;
	for (uint64_t j = 0; (rc = read_line(s, &line, e)) > 0; j++) {
		snprintf(from, sizeof(from), "line %llu of standard input",
			(unsigned long long)j + 1);
		if (sample_prompt(s, &(struct prompt){line.s, line.len, j, from}, e))
			return -1;
	}
	return rc;
}

/* Loads the model, draws texts for the prompt, and closes everything. Collective. */
static int run(struct session *s, const char *name, const char *prompt, struct err *e)
{
	const struct prompt only = {prompt, strlen(prompt), 0, "the prompt"};
	if (s->world->size > 1)
		signal(SIGPIPE, SIG_IGN); /* becomes an error, which ends all ranks */
	int rc = load_model(s, name, e);
	if (!rc)
		rc = !strcmp(prompt, "-") ? sample_lines(s, e)
					  : sample_prompt(s, &only, e);
	inference_close(&s->x);
	comm_device_close();
	device_close(&s->d);
	chat_template_close(s->chat);
	stops_release(&s->stops);
	ckpt_close(s->ckpt);
	return rc;
}

/* Prints a note on each option that has no effect together with the others. */
static void note_idle_options(const struct opts *o)
{
	const struct opt_idle rows[] = {
		{o->logits, "tokens temperature top-k top-p seed stop echo",
			"--logits generates nothing"},
		{!o->logits && o->temperature == 0, "top-k top-p seed",
			"--temperature 0 takes the most probable token"},
	};
	opts_note_idle(&program, o, rows, ARRAY_LEN(rows));
}

static const char *const advice[N_ADVICE] = {[ADVICE_GPU] = "use --device cpu"};

/* Rejects missing operands, and options that contradict each other. */
static int check_options(const struct opts *o, int operands, struct err *e)
{
	if (operands < 1 || operands > 2)
		return err_set(e, EX_USAGE, "give a checkpoint and at most one prompt");
	if (!o->chat && opts_given(&program, o, "chat"))
		return err_set(e, EX_USAGE, "--chat: the text is empty");
	if (o->chat && (operands == 2 || o->prompt))
		return err_set(e, EX_USAGE, "--chat and a prompt are mutually exclusive");
	if (o->chat && o->allow_special)
		return err_set(e, EX_USAGE,
			"--allow-special and --chat are mutually exclusive: a user's message has "
			"no special tokens");
	return opts_check_needs(&program, o, e);
}

int main(int argc, char **argv)
{
	struct opts o;
	struct err e = {0};
	log_name(program.name);
	advice_set(advice);
	int n = opts_parse(&program, &o, argc, argv, &e);
	if (n >= 0)
		check_options(&o, n, &e);
	struct session s = {.o = &o,
		.world = comm_open(),
		.echo = n >= 0 && o.echo &&
			(!o.chat || opts_given(&program, &o, "echo"))};
	log_set_rank(s.world->rank, s.world->size, false);
	int rc = comm_agree(s.world, &e);
	if (!rc)
		note_idle_options(&o);
	if (!rc)
		rc = run(&s, argv[0],
			n == 2	   ? argv[1]
			: o.chat   ? o.chat
			: o.prompt ? o.prompt
				   : "",
			&e);
	if (rc)
		rc = s.world->rank ? e.code : err_print(&e);
	else
		stdout_close();
	comm_close(s.world);
	return rc;
}
