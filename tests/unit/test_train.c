/* train: learning rates, options, the plan and that the training keeps to it. */
#include "tests/support/support.h"
#include "plan/fit.h"
#include "engine/state.h"
#include "engine/step.h"
#include "train/faults.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err e;
static const char *shard;

/* Options from text, checked as pt-train does. */
static struct train_opts options(const char *text)
{
	struct train_opts o;
	e = (struct err){0};
	if (opts_from_text(&train_program, &o, text, false, &e) || options_check(&o, &e))
		print_error("%s\n", e.msg);
	assert_int_equal(e.code, 0);
	return o;
}

/* ---- learning rates -------------------------------------------------------------- */

#define RATES "lr = 0.8\nmin-lr = 0.2\nsteps = 100\nwarmup = 4\n"

static void check_rates(const char *text, const double *want, int64_t step, int64_t n)
{
	struct train_opts o = options(text);
	for (int64_t i = 0; i < n; i++)
		assert_near(lr_at(&o, step + i), want[i], 1e-15);
}

/* Step 1 has a part of the rate already, and the step after the warm-up has all of it. */
TEST(warm_up)
{
	static const char *const schedules[] = {"constant", "cosine", "linear", "wsd"};
	static const double rise[] = {
		0.8 * 1 / 5, 0.8 * 2 / 5, 0.8 * 3 / 5, 0.8 * 4 / 5, 0.8};
	for (size_t i = 0; i < ARRAY_LEN(schedules); i++) {
		char text[200];
		snprintf(text, sizeof(text), RATES "lr-schedule = %s\n", schedules[i]);
		check_rates(text, rise, 1, ARRAY_LEN(rise));
	}
	struct train_opts o = options("warmup = 0\nlr = 0.5\n");
	assert_true(lr_at(&o, 1) == 0.5);
	/* nothing comes after it */
	for (size_t i = 0; i < ARRAY_LEN(schedules); i++) {
		char text[200];
		snprintf(text, sizeof(text), RATES "steps = 4\nlr-schedule = %s\n",
			schedules[i]);
		check_rates(text, rise, 1, 4);
		o = options(text);
		assert_true(lr_at(&o, 5) == (i == 0 ? 0.8 : 0.2));
	}
}

/* nanoGPT's get_lr: min + (1 + cos(pi x)) / 2 (max - min), x = (it - warmup) / (end - warmup),
 * where its `it` is our step less 1. */
TEST(cosine)
{
	const double pi = acos(-1);
	struct train_opts o = options(RATES);
	for (int64_t it = 4; it <= 100; it++) {
		double x = (double)(it - 4) / (100 - 4);
		assert_near(
			lr_at(&o, it + 1), 0.2 + 0.5 * (1 + cos(pi * x)) * 0.6, 1e-15);
	}
	assert_near(lr_at(&o, 4 + 48 + 1), 0.5, 1e-15); /* half of the way */
	assert_true(lr_at(&o, 101) == 0.2 && lr_at(&o, 100000) == 0.2);
}

TEST(linear)
{
	struct train_opts o = options(RATES "lr-schedule = linear\n");
	for (int64_t i = 0; i <= 96; i++)
		assert_near(lr_at(&o, 5 + i), 0.8 - 0.6 * (double)i / 96, 1e-15);
	assert_true(lr_at(&o, 102) == 0.2);
}

TEST(constant)
{
	struct train_opts o = options(RATES "lr-schedule = constant\n");
	for (int64_t step = 5; step < 200; step++)
		assert_true(lr_at(&o, step) == 0.8);
}

TEST(warm_up_stable_decay)
{
	struct train_opts o = options(RATES "lr-schedule = wsd\nwsd-decay = 10\n");
	struct train_opts root = o;
	root.wsd_shape = WSD_SQRT;
	for (int64_t step = 5; step <= 91; step++)
		assert_true(lr_at(&o, step) == 0.8 && lr_at(&root, step) == 0.8);
	for (int64_t i = 0; i <= 10; i++) { /* the last ten steps, to what comes after */
		double x = (double)i / 10;
		assert_near(lr_at(&o, 91 + i), 0.2 + (1 - x) * 0.6, 1e-15);
		assert_near(lr_at(&root, 91 + i), 0.2 + (1 - sqrt(x)) * 0.6, 1e-15);
	}
	assert_true(lr_at(&o, 102) == 0.2 && lr_at(&root, 102) == 0.2);
	/* a decay of a fifth, when none is given */
	o = options(RATES "lr-schedule = wsd\n");
	assert_int_equal(o.wsd_decay, 20);
	assert_true(lr_at(&o, 81) == 0.8 && lr_at(&o, 82) < 0.8);
	/* one that is longer than what the warm-up leaves begins behind it */
	o = options(RATES "lr-schedule = wsd\nwsd-decay = 1000\n");
	assert_near(lr_at(&o, 4 + 48 + 1), 0.5, 1e-15);
}

TEST(decay_ends_before_the_run)
{
	static const char *const schedules[] = {"cosine", "linear", "wsd"};
	for (size_t i = 0; i < ARRAY_LEN(schedules); i++) {
		char text[200];
		snprintf(text, sizeof(text),
			RATES "decay-steps = 50\nwsd-decay = 46\nlr-schedule = %s\n",
			schedules[i]);
		struct train_opts o = options(text);
		assert_near(lr_at(&o, 4 + 23 + 1), 0.5, 1e-15);
		for (int64_t step = 51; step <= 101; step++)
			assert_true(lr_at(&o, step) == 0.2);
	}
}

TEST(scaled_by_the_batch)
{
	struct train_opts none = options(RATES "batch = 48\n");
	struct train_opts root =
		options(RATES "batch = 48\nlr-scale = sqrt\nlr-scale-batch = 12\n");
	struct train_opts line =
		options(RATES "batch = 48\nlr-scale = linear\nlr-scale-batch = 12\n");
	for (int64_t step = 1; step < 110; step++) {
		assert_near(lr_at(&root, step), 2 * lr_at(&none, step), 1e-15);
		assert_near(lr_at(&line, step), 4 * lr_at(&none, step), 1e-15);
	}
}

/* Never above the largest, never below the smallest, and no step up after the warm-up. */
TEST(rates_fall)
{
	static const char *const more[] = {"", "lr-schedule = linear\n",
		"lr-schedule = wsd\n", "lr-schedule = wsd\nwsd-shape = sqrt\n",
		"min-lr = 0\n", "decay-steps = 300\n"};
	for (size_t i = 0; i < ARRAY_LEN(more); i++) {
		char text[200];
		snprintf(text, sizeof(text), RATES "%s", more[i]);
		struct train_opts o = options(text);
		for (int64_t step = 5; step < 400; step++) {
			double x = lr_at(&o, step), next = lr_at(&o, step + 1);
			assert_true(x <= 0.8 && x >= o.min_lr && next <= x);
		}
	}
}

/* ---- options --------------------------------------------------------------------- */

static const char many[] =
	"sampling = random\nseed = -3\nbatch = 24\nmicro-batch = 3\nsteps = 12345678901\n"
	"arch = llama\nlayers = 3\nheads = 6\nkv-heads = 2\ndim = 48\nffn-dim = 100\n"
	"context = 40\nvocab = 65\nvocab-multiple = 64\nact = gelu\nbias = yes\ntie = "
	"no\n"
	"dropout = 0.1\nnorm-eps = 1e-06\ninit = depth\nrope-theta = 500000\n"
	"rope-scaling = llama3\nrope-factor = 32\nlr = 0.1\nlr-schedule = wsd\n"
	"wsd-decay = 7\nwsd-shape = sqrt\nlr-scale = sqrt\nlr-scale-batch = 10\n"
	"beta2 = 0.95\nclip = 0.3333333333333333\nvirtual = \"tp=2,cp=2\"\n"
	"eval-every = 0\nsample-prompt = \"a # \\n\\\" \"\nkeep = 0\nckpt-best = no\n";

TEST(options_come_back)
{
	struct train_opts o = options(many), p;
	struct str text = {0}, again = {0};
	options_print_saved(&o, &text);
	assert_int_equal(opts_from_text(&train_program, &p, text.s, false, &e), 0);
	options_print_saved(&p, &again);
	assert_string_equal(text.s, again.s);
	assert_true(p.clip == o.clip && p.steps == 12345678901 && p.seed == -3);
	assert_true(p.lr_schedule == LR_WSD && p.wsd_shape == WSD_SQRT && !p.ckpt_best);
	assert_true(
		p.model.arch == ARCH_LLAMA && p.model.tie == NO && p.model.bias == YES);
	assert_true(p.model.rope_scaling == ROPE_LLAMA3 && p.model.dropout == 0.1);
	assert_string_equal(p.sample_prompt, "a # \n\" ");
	/* each line of `many` is in it as it was */
	for (const char *line = many; *line; line = strchr(line, '\n') + 1) {
		char key[100];
		snprintf(key, sizeof(key), "%.*s\n", (int)strcspn(line, "\n"), line);
		if (!strncmp(key, "virtual", 7))
			snprintf(key, sizeof(key), "virtual = tp=2,cp=2\n");
		if (!strstr(text.s, key))
			print_error("not printed: %s", key);
		assert_non_null(strstr(text.s, key));
	}
	str_free(&text);
	str_free(&again);
}

/* What belongs to an invocation is not saved; what fixes the bits is told apart. */
TEST(options_that_are_saved)
{
	static const char local[] = "threads = 3\nout = x\ndp = 2\nreaders = 1\n";
	struct str saved = {0}, more = {0};
	struct train_opts o = options(many);
	options_print_saved(&o, &saved);
	char *text = xmalloc(sizeof(many) + sizeof(local));
	memcpy(text, many, sizeof(many) - 1);
	memcpy(text + sizeof(many) - 1, local, sizeof(local));
	o = options(text);
	assert_int_equal(o.threads, 3);
	options_print_saved(&o, &more);
	assert_string_equal(saved.s, more.s);
	free(text);
	str_free(&saved);
	str_free(&more);
}

static void arithmetic_of(const char *text, uint64_t data, struct str *out)
{
	struct train_opts o = options(text);
	struct model m;
	assert_int_equal(model_init(&m, &o.model, 65, &e), 0);
	str_clear(out);
	options_print_arithmetic(&o, &m, "CPU", data, out);
	model_release(&m);
}

TEST(what_fixes_the_bits)
{
	static const char *const alike[] = {"threads = 2\n", "bucket = 1000\n",
		"keep = 7\n", "eval-every = 3\n", "log-every = 1\n", "readers = 1\n"};
	static const char *const other[] = {"seed = 2\n", "batch = 4\n",
		"micro-batch = 3\n", "layers = 2\n", "dropout = 0.1\n", "lr = 1\n",
		"clip = 0\n", "virtual = tp=2\n", "sampling = random\n",
		"vocab-multiple = 8\n"};
	struct str a = {0}, b = {0};
	arithmetic_of("", 1, &a);
	for (size_t i = 0; i < ARRAY_LEN(alike); i++) {
		arithmetic_of(alike[i], 1, &b);
		assert_string_equal(a.s, b.s);
	}
	for (size_t i = 0; i < ARRAY_LEN(other); i++) {
		arithmetic_of(other[i], 1, &b);
		assert_string_not_equal(a.s, b.s);
	}
	arithmetic_of("", 2, &b);
	assert_string_not_equal(a.s, b.s);
	str_free(&a);
	str_free(&b);
}

TEST(options_that_do_not_go_together)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{"batch = 12\nmicro-batch = 5\n",
			"--batch 12 is not divisible by --micro-batch 5"},
		{"lr-scale = sqrt\n", "lr-scale needs --lr-scale-batch"},
		{"resume = a\ninit-from = b\n", "--resume and --init-from are mutually"},
		{"lr = 1e-4\nmin-lr = 2e-4\n", "--min-lr 0.0002 is above --lr 0.0001"},
		{"resume = a\noverwrite = yes\n", "--resume and --overwrite are"},
		{"data-per-rank = yes\nreaders = 1\n",
			"--data-per-rank and --readers are"},
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct train_opts o;
		assert_int_equal(
			opts_from_text(&train_program, &o, bad[i].text, false, &e), 0);
		assert_int_equal(options_check(&o, &e), -1);
		assert_int_equal(e.code, EX_USAGE);
		assert_non_null(strstr(e.msg, bad[i].says));
	}
	assert_int_equal(options("batch = 12\n").micro_batch, 1);
	assert_int_equal(options("batch = 60\n").micro_batch, 6);
	struct train_opts tenth = options("lr = 5e-3\nsteps = 9\nwarmup = 0\n");
	assert_true(lr_at(&tenth, 10) == 5e-3 / 10);
	struct train_opts o = options("batch = 12\nmicro-batch = 3\n");
	assert_int_equal(layout_micro_batches(&o), 4);
}

/* ---- the plan -------------------------------------------------------------------- */

static const char small[] =
	"arch = gpt2\nlayers = 2\nheads = 4\ndim = 32\ncontext = 16\n"
	"batch = 8\nmicro-batch = 2\nsteps = 3\nwarmup = 0\nbucket = 5000\n"
	"dropout = 0.1\nthreads = 1\neval-windows = 4\n";
static const char llama[] =
	"arch = llama\nlayers = 2\nheads = 4\nkv-heads = 2\ndim = 32\nffn-dim = 48\n"
	"context = 16\nbatch = 6\nmicro-batch = 2\nsteps = 3\nvirtual = tp=2,cp=2\n"
	"threads = 1\neval-windows = 4\n";

static struct plan plan_of(const char *text, int64_t vocab, int rank, int ranks)
{
	struct train_opts o = options(text);
	struct model m;
	struct plan p;
	assert_int_equal(layout_resolve(&o, ranks, &e), 0);
	assert_int_equal(model_init(&m, &o.model, vocab, &e), 0);
	plan_make(&o, &m, rank, &p);
	model_release(&m);
	return p;
}

/* A rank that is named, and one that is drawn: each as often as it should be. */
TEST(stragglers)
{
	enum { RANKS = 4, STEPS = 4000 };
	static const char *const texts[] = {
		"2:5", "random:7", "0:11:0.25", "1:3/micro", "1:9/micro:0"};
	static const char *const bad[] = {"", "2", "2:", "-1:5", "4:-1", "1:5:2", "1:5:x",
		"x:5", "1:5/", "1:5/step", "1:/micro", "1:5:1/micro"};
	struct strs list = {.v = (char **)texts, .n = ARRAY_LEN(texts)};
	struct fault_delay *s;
	double ms[RANKS] = {0}, first = 0;
	int n, drawn = 0;
	assert_int_equal(faults_parse_delays(&list, &s, &n, &(struct err){0}), 0);
	for (int64_t step = 1; step <= STEPS; step++) {
		int more = 0;
		for (int r = 0; r < RANKS; r++) {
			double x = faults_delay_ms(s, n, 1, step, r, RANKS, false);
			double micro = faults_delay_ms(s, n, 1, step, r, RANKS, true);
			assert_true(micro == (r == 1 ? 3 : 0));
			double own = r == 2 ? 5 : 0;
			ms[r] += x;
			first += r == 0 && x >= 11 ? 1 : 0;
			more += fmod(x - own, 11) > 6.5;
			assert_true(x >= own);
		}
		drawn += more == 1;
	}
	assert_int_equal(drawn, STEPS); /* one each step, no less and no more */
	assert_true(fabs(first / STEPS - 0.25) < 0.03);
	assert_true(fabs(ms[2] / STEPS - (5 + 7.0 / RANKS)) < 0.2);
	assert_true(fabs(ms[3] / STEPS - 7.0 / RANKS) < 0.2);
	free(s);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct strs one = {.v = (char **)&bad[i], .n = 1};
		assert_int_not_equal(
			faults_parse_delays(&one, &s, &n, &(struct err){0}), 0);
		free(s);
	}
}

TEST(totals)
{
	static const char *const texts[] = {small, llama};
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct plan p = plan_of(texts[i], 61, 0, 1);
		struct train_opts o = options(texts[i]);
		struct model m;
		model_init(&m, &o.model, 61, &e);
		assert_int_equal(plan_total(&p),
			p.run_bytes + p.store.grads + p.store.buffers + p.micro_bytes +
				p.scratch_bytes + p.data_bytes + p.copy_bytes);
		assert_true(p.store.params >= 4 * model_counts(&m).all);
		assert_int_equal(p.store.optimizer, 2 * p.store.params);
		assert_true(p.store.grads >= p.store.params);
		assert_true(p.run_bytes >= p.store.params + p.store.optimizer);
		/* alone, a rank keeps nothing for exchange and sends nothing */
		assert_true(p.store.buffers == 0 && p.sent == 0);
		/* two steps of windows of 17 tokens of 4 bytes */
		assert_int_equal(p.data_bytes, 2 * o.batch * 17 * 4);
		model_release(&m);
	}
}

/* Products of GPT-2, without dropout or vocabulary padding: 2 N a token forward, 4 N
 * backward; causal attention sees (T + 1) / 2 positions a query, in two products of the
 * forward and five of the backward, which makes the scores again. */
TEST(work)
{
	struct plan p = plan_of(small, 61, 0, 1);
	double dim = 32, layers = 2, context = 16, tokens = 8 * 16;
	double n = layers * (4 + 8) * dim * dim + 61 * dim;
	double scores = (context + 1) / 2 * dim;
	assert_near(p.step_flops, tokens * (6 * n + layers * (4 + 10) * scores), 0.5);
}

/* The work of all ranks is that of one rank; every rank keeps all parameters. */
TEST(work_is_assigned)
{
	static const char *const texts[] = {small, llama};
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct plan alone = plan_of(texts[i], 61, 0, 1);
		for (int ranks = 2; ranks <= 3; ranks++) {
			double flops = 0;
			int64_t data = 0;
			for (int r = 0; r < ranks; r++) {
				struct plan p = plan_of(texts[i], 61, r, ranks);
				flops += p.step_flops;
				data += p.data_bytes;
				assert_int_equal(p.store.params, alone.store.params);
				assert_int_equal(p.micro_bytes, alone.micro_bytes);
				assert_true(p.sent > 0 && p.store.buffers > 0);
			}
			assert_near(flops, alone.step_flops, 0.5);
			assert_int_equal(data, alone.data_bytes);
		}
	}
}

static double sent_in(const struct plan *p, const char *group)
{
	double sent = 0;
	for (int i = 0; i < p->n_groups; i++)
		sent += !strcmp(p->group[i].name, group) ? p->group[i].sent : 0;
	return sent;
}

/* Two ranks of equal shares send what a ring all-reduce would: all but a half, once as int64 sums of several
 * leaves, and once rounded to floats. */
TEST(sent_by_two)
{
	struct plan p = plan_of(small, 61, 0, 2), q = plan_of(small, 61, 1, 2);
	double gradients = sent_in(&p, "dp") + sent_in(&q, "dp");
	assert_near(gradients, 3 * (double)p.store.params, 0.5);
	assert_near(p.sent, sent_in(&p, "dp") + sent_in(&p, "world"), 0.5);
}

/* The arenas are as large as the plan says: more would be a BUG, less would not be seen. */
TEST(training_needs_what_was_planned)
{
	static const char *const texts[] = {small, llama};
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct train_opts o = options(texts[i]);
		struct comm *alone = comm_self("dp");
		struct dataset data;
		struct plan plan;
		struct trainer t;
		struct step_result r;
		strs_add(&o.data, shard);
		assert_int_equal(dataset_open(&data, &o, alone, &e), 0);
		assert_int_equal(trainer_open(&t, &o, alone, &data, &plan, &e), 0);
		for (int step = 0; step < 3; step++)
			step_run(&t, NULL, &r);
		assert_false(r.bad);
		assert_true(isfinite(eval_loss(&t, SPLIT_VAL)));
		assert_int_equal(t.memory.run.peak_bytes, plan.run_bytes);
		assert_int_equal(t.memory.micro.peak_bytes, plan.micro_bytes);
		assert_int_equal(t.memory.scratch.peak_bytes, plan.scratch_bytes);
		assert_int_equal(t.memory.scratch.used_bytes, 0);
		assert_int_equal(t.store->bytes.params, plan.store.params);
		assert_int_equal(t.step, 3);
		assert_int_equal(t.samples, 3 * o.batch);
		trainer_close(&t);
		dataset_close(&data);
		comm_free(alone);
		strs_free(&o.data);
	}
}

/* A checkpoint's options may ask for any model: whether it is in there is known before room
 * is made for it. */
TEST(a_checkpoint_fits_its_model)
{
	static const char *const others[] = {
		"", "layers = 1000\n", "layers = 1\n", "dim = 4096\n"};
	struct train_opts o = options(small);
	struct comm *alone = comm_self("dp");
	struct dataset data;
	struct trainer t;
	struct ckpt *c;
	const char *path = test_path("fits.h5");
	strs_add(&o.data, shard);
	assert_int_equal(dataset_open(&data, &o, alone, &e), 0);
	assert_int_equal(trainer_open(&t, &o, alone, &data, NULL, &e), 0);
	assert_int_equal(state_save(&t, path, &e), 0);
	assert_int_equal(ckpt_open(&c, path, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		struct model_config config;
		struct model m;
		struct str text = {0};
		str_printf(&text, "%s%s", c->config.s, others[i]);
		assert_int_equal(options_parse_model(&config, text.s, &e), 0);
		assert_int_equal(model_init(&m, &config, c->tokenizer.vocab.n, &e), 0);
		assert_int_equal(weights_check(c, &m, &e), i ? -1 : 0);
		assert_int_equal(e.code, i ? EX_DATAERR : 0);
		assert_true(!i || strstr(e.msg, "another model"));
		e = (struct err){0};
		model_release(&m);
		str_free(&text);
	}
	ckpt_close(c);
	trainer_close(&t);
	dataset_close(&data);
	comm_free(alone);
	strs_free(&o.data);
}

TEST(printed)
{
	struct train_opts o = options(small);
	struct model m;
	struct plan p;
	struct str out = {0};
	char line[100];
	assert_int_equal(layout_resolve(&o, 1, &e), 0);
	assert_int_equal(model_init(&m, &o.model, 61, &e), 0);
	plan_make(&o, &m, 0, &p);
	assert_int_equal(plan_print(&o, &m, &out, &e), 0);
	snprintf(line, sizeof(line), "\ntotal          %16lld ",
		(long long)plan_total(&p));
	assert_non_null(strstr(out.s, line));
	assert_non_null(strstr(out.s, "\ntokens/step                 128\n"));
	model_release(&m);
	str_free(&out);
}

int main(void)
{
	shard = test_shard(3000);
	return tests_run();
}
