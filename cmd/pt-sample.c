/* pt-sample: text from a checkpoint. */
#include "base/options.h"
#include "model/generate.h"
#include "train/inference.h"
#include "train/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct opts {
	const char *prompt, *stop;
	int64_t tokens, samples, top_k, seed, threads;
	double temperature, top_p;
	bool cache, echo, logits;
};

#define O(field) offsetof(struct opts, field)
/* clang-format off */
static const struct opt options[] = {
	{OPT_GROUP, .name = "Sampling"},
	{OPT_STR, 'p', "prompt", "TEXT", NULL, O(prompt), .help =
		"Prompt. - reads prompts from standard input, one a line. Without a prompt, or "
		"with an empty one, the text begins with a line break, or with token 0 where the "
		"vocabulary has no line break."},
	{OPT_INT, 'n', "tokens", "N", "500", O(tokens), 0, 0, 1e15, .help =
		"Number of tokens to generate."},
	{OPT_INT, 'N', "samples", "N", "1", O(samples), 0, 1, 1e9, .help =
		"Number of texts to generate for each prompt, with a line break after each."},
	{OPT_DOUBLE, 't', "temperature", "X", "0.8", O(temperature), 0, 0, 1e6, .help =
		"Sampling temperature, by which the logits are divided. 0: greedy decoding."},
	{OPT_INT, 'k', "top-k", "N", "200", O(top_k), 0, 0, 1e9, .help =
		"Sample from the N most probable tokens. 0: from all."},
	{OPT_DOUBLE, 0, "top-p", "P", "1", O(top_p), 0, 0, 1, .help =
		"Sample from the most probable tokens that together have probability P (nucleus "
		"sampling)."},
	{OPT_INT, 's', "seed", "N", "1", O(seed), .help =
		"Random seed. Equal seeds give equal text."},
	{OPT_STR, 0, "stop", "TEXT", NULL, O(stop), .help = "Stop string: end a text after it."},
	{OPT_FLAG, 'e', "echo", NULL, "yes", O(echo), .help =
		"Print the prompt before the text."},
	{OPT_GROUP, .name = "Execution"},
	{OPT_FLAG, 0, "cache", NULL, "yes", O(cache), .help =
		"Keep a cache of keys and values. Without it every token is computed from the "
		"whole context again; the text is the same."},
	{OPT_INT, 0, "threads", "N", "0", O(threads), 0, 0, 4096, .help =
		"Number of threads. 0: all processors."},
	{OPT_FLAG, 0, "logits", NULL, "no", O(logits), .help =
		"Print the logits after the prompt, one token a line, as hexadecimal floats, and "
		"generate nothing."},
	{OPT_END},
};
/* clang-format on */

static const char *const synopsis[] = {
	"[options] RUN|CHECKPOINT [PROMPT]",
	"[options] RUN|CHECKPOINT - < PROMPTS",
	NULL,
};

static const struct program program = {
	.name = "pt-sample",
	.summary = "draw text from a checkpoint of pt-train",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct opts),
	.operands = ".h5",
	.versions = h5_versions,
};

struct source {
	const struct opts *o;
	struct ckpt *ckpt;
	struct device d;
	struct inference x;
};

/* The model of the checkpoint, with its parameters, on this process. */
static int load(struct source *s, const char *name, struct err *e)
{
	struct model_config config;
	if (ckpt_open(&s->ckpt, name, e))
		return -1;
	const char *path = s->ckpt->path;
	if (!s->ckpt->tokenizer.kind)
		return err_set(e, EX_DATAERR, "%s has no vocabulary", path);
	if (options_model(&config, s->ckpt->config.s, e) ||
		model_init(&s->x.model, &config, s->ckpt->tokenizer.vocab.n, e)) {
		e->code = EX_DATAERR; /* they are not this user's options */
		return err_prefix(e, "%s: ", path);
	}
	if (weights_check(s->ckpt, &s->x.model, e))
		return -1;
	device_cpu(&s->d, (int)s->o->threads);
	inference_open(&s->x, &s->d);
	return inference_load(&s->x, s->ckpt, e);
}

static void print_logits(const struct source *s, const struct decoder *g)
{
	const float *x = decoder_logits(g);
	for (int64_t i = 0; i < s->x.model.c.vocab; i++)
		printf("%lld\t%a\n", (long long)i, (double)x[i]);
}

static bool ends_with(const struct str *text, const char *end)
{
	size_t n = strlen(end);
	return text->len >= n && !memcmp(text->s + text->len - n, end, n);
}

/* Text appears as it is drawn. */
static int put(const char *p, size_t n, struct err *e)
{
	if (fwrite(p, 1, n, stdout) == n && !fflush(stdout))
		return 0;
	return err_set(e, EX_IOERR, "standard output: %s", strerror(errno));
}

static int draw(
	struct source *s, const uint32_t *ids, int64_t n, uint64_t stream, struct err *e)
{
	const struct opts *o = s->o;
	const struct tokenizer *tok = &s->ckpt->tokenizer;
	struct sampler how = {o->temperature, o->top_k, o->top_p, (uint64_t)o->seed};
	struct decoder *g = decoder_open(&s->x.model, &s->d, s->x.store, o->cache);
	struct str text = {0};
	int rc = 0;
	decoder_feed(g, ids, n);
	if (o->logits)
		print_logits(s, g);
	for (int64_t i = 0; i < o->tokens && !o->logits && !rc; i++) {
		size_t before = text.len;
		uint32_t id = (uint32_t)decoder_draw(g, &how, stream, i);
		tokenizer_decode(tok, id, &text);
		rc = put(text.s + before, text.len - before, e);
		if (o->stop && ends_with(&text, o->stop))
			break;
		if (i + 1 < o->tokens)
			decoder_feed(g, &id, 1);
	}
	decoder_close(g);
	str_free(&text);
	return rc;
}

/* The beginning of a text without a prompt: a line break, or else token 0. */
static int64_t begin_empty(const struct tokenizer *t, struct str *text, uint32_t **ids)
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
	const char *from; /* what messages call it */
};

/* Each sample of each prompt has its own stream of random numbers. */
static int sample(struct source *s, const struct prompt *p, struct err *e)
{
	const struct tokenizer *tok = &s->ckpt->tokenizer;
	struct str text = {0};
	uint32_t *ids;
	int64_t n;
	if (p->len) {
		str_add(&text, p->text, p->len);
		n = tokenizer_encode_all(tok, text.s, (int64_t)text.len, &ids, e);
	} else {
		n = begin_empty(tok, &text, &ids);
	}
	int rc = n < 0 ? err_prefix(e, "%s: ", p->from) : 0;
	for (int64_t i = 0; i < s->o->samples && !rc; i++) {
		if (s->o->echo && !s->o->logits)
			rc = put(text.s, text.len, e);
		rc = rc || draw(s, ids, n, p->number << 32 | (uint64_t)i, e);
		if (!s->o->logits)
			rc = rc || put("\n", 1, e);
	}
	if (n >= 0)
		free(ids);
	str_free(&text);
	return rc;
}

/* Each line is a prompt. */
static int sample_lines(struct source *s, struct err *e)
{
	char *line = NULL, from[64];
	size_t room = 0;
	ssize_t n;
	int rc = 0;
	for (uint64_t j = 0; !rc && (n = getline(&line, &room, stdin)) >= 0; j++) {
		n -= n && line[n - 1] == '\n';
		snprintf(from, sizeof(from), "line %llu of standard input",
			(unsigned long long)j + 1);
		rc = sample(s, &(struct prompt){line, (size_t)n, j, from}, e);
	}
	free(line);
	return rc;
}

int main(int argc, char **argv)
{
	struct opts o;
	struct err e = {0};
	int n = opts_parse_or_die(&program, &o, argc, argv);
	if (n < 1 || n > 2)
		return err_say(&(struct err){
			EX_USAGE, "give a checkpoint, and perhaps a prompt"});
	const char *prompt = n == 2 ? argv[1] : o.prompt ? o.prompt : "";
	struct prompt only = {prompt, strlen(prompt), 0, "the prompt"};
	struct source s = {.o = &o};
	int rc = load(&s, argv[0], &e);
	if (!rc)
		rc = !strcmp(prompt, "-") ? sample_lines(&s, &e) : sample(&s, &only, &e);
	inference_close(&s.x);
	ckpt_close(s.ckpt);
	if (rc)
		return err_say(&e);
	stdout_close();
	return 0;
}
