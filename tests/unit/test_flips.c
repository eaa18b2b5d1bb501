/* A flipped bit in a file is found, wherever it is, by who verifies it and by who uses it.
 *
 * Some hundred bits of each kind of file; with LONG=yes 10,000, and at least one of each byte. */
#include "base/file.h"
#include "tests/support/support.h"
#include "ckpt/ckpt.h"
#include "prepare/prepare.h"
#include "run/run.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { QUICK = 250, LONG = 10000 };

static struct err e;

/* What is decoded of a file, and what its verifier says. */
struct seen {
	int read, verified; /* 0 or -1 */
	struct str all;
	struct err e;
};

struct kind {
	const char *name;
	void (*write)(const char *path);
	void (*see)(const char *path, struct seen *s);
};

static void add_fields(struct str *out, const struct h5_field *table, const void *from)
{
	for (const struct h5_field *f = table; f->name; f++)
		h5_field_append(out, f, from);
}

static void add_tokenizer(struct str *out, const struct tokenizer *t)
{
	if (t->kind)
		tokenizer_pack(t, out);
}

/* ---- shards ---------------------------------------------------------------------- */

static void write_shard(const char *path)
{
	struct str text = {0};
	struct strs inputs = {0};
	struct prepared made;
	for (int i = 0; i < 400; i++)
		str_putc(&text, "etaoin shrdlu\n"[hash_mix((uint64_t)i) % 14]);
	str_puts(&text, "größer, 日本");
	strs_add(&inputs, test_file("text", text.s));
	struct prepare p = {.tokenizer = {.name = "char"},
		.val_fraction = 0.2,
		.out = path,
		.overwrite = true};
	assert_int_equal(prepare_run(&p, &inputs, &made, &e), 0);
	strs_free(&made.files);
	strs_free(&inputs);
	str_free(&text);
}

/* pt-prepare --verify and pt-train open it alike; then one verifies, the other reads. */
static void see_shard(const char *path, struct seen *s)
{
	struct corpus *c;
	if (corpus_open_file(&c, path, &s->e)) {
		s->read = s->verified = -1;
		return;
	}
	add_fields(&s->all, shard_fields, corpus_info(c, 0));
	add_tokenizer(&s->all, corpus_tokenizer(c));
	for (int k = 0; k < N_SPLITS && !s->read; k++) {
		int64_t n = corpus_tokens(c, (enum split)k);
		int32_t *ids = xcalloc((size_t)n + 1, sizeof(*ids));
		s->read = corpus_read(c, (enum split)k, 0, n, ids, &s->e);
		str_add(&s->all, ids, (size_t)n * sizeof(*ids));
		free(ids);
	}
	s->verified = corpus_verify(c, &s->e);
	corpus_close(c);
}

/* ---- checkpoints ----------------------------------------------------------------- */

static const struct ckpt_tensor tensors[] = {
	{"a.weight", 2, {7, 5}}, {"b.bias", 1, {11}}, {"c.weight", 2, {3, 4}}};

static void give_rows(
	void *with, int g, int tensor, int64_t row, int64_t n, int to, float *out)
{
	(void)to;
	int64_t width = ckpt_row_size(&tensors[tensor]);
	(void)with;
	test_fill(out, n * width, (uint64_t)(g * 9 + tensor) + (uint64_t)row, 1);
}

static void write_ckpt(const char *path)
{
	struct tokenizer t;
	assert_int_equal(tokenizer_init(&t, "char", &e), 0);
	assert_true(t.kind->learn(&t, "abc é", 6, true, &e) == 6);
	assert_int_equal(t.kind->learn_end(&t, &e), 0);
	static const double numbers[] = {2, 0.5, 1e300};
	struct ckpt_write w = {.comm = comm_self("alone"),
		.path = path,
		.info = {.format = "pt-checkpoint",
			.created_by = "a test",
			.version = CKPT_VERSION,
			.step = 5,
			.samples = 60,
			.tokens = 600,
			.loss = 2.5,
			.val_loss = (double)NAN,
			.best_val_loss = 2.25,
			.param_hash = 0x123456789abcdef,
			.data_hash = 77},
		.config = "dim = 8\nlayers = 1\n",
		.tokenizer = &t,
		.tensors = tensors,
		.n_tensors = ARRAY_LEN(tensors),
		.groups = {"model", "exp_avg", "exp_avg_sq", "anchor", "residual"},
		.n_groups = 5,
		.numbers = numbers,
		.n_numbers = ARRAY_LEN(numbers),
		.source = give_rows};
	assert_int_equal(ckpt_write(&w, &e), 0);
	comm_free(w.comm);
	tokenizer_release(&t);
}

static void see_ckpt(const char *path, struct seen *s)
{
	struct ckpt *c;
	if (ckpt_open(&c, path, &s->e)) {
		s->read = s->verified = -1;
		return;
	}
	add_fields(&s->all, ckpt_fields, &c->info);
	add_tokenizer(&s->all, &c->tokenizer);
	str_puts(&s->all, c->config.s);
	str_add(&s->all, c->numbers, (size_t)c->n_numbers * sizeof(*c->numbers));
	for (int i = 0; i < c->n_tensors * (int)c->groups.n && !s->read; i++) {
		const struct ckpt_tensor *t = &c->tensors[i % c->n_tensors];
		size_t n_bytes = (size_t)ckpt_size(t) * sizeof(float);
		float *x = xcalloc(n_bytes + 1, 1);
		s->read = ckpt_read_rows(
			c, i / c->n_tensors, i % c->n_tensors, 0, t->dims[0], x, &s->e);
		str_puts(&s->all, t->name);
		str_add(&s->all, t->dims, sizeof(t->dims));
		str_add(&s->all, x, n_bytes);
		free(x);
	}
	s->verified = ckpt_verify(c, &s->e);
	ckpt_close(c);
}

/* ---- run.h5 ---------------------------------------------------------------------- */

static const char journal[] =
	"# meta ranks = 2\n# meta arithmetic = 0x5\n# config a = 1\n# arith b = 2\n"
	"# event 2026-11-20T10:51:00Z step=0 begin\n"
	"step=1 tokens=10 loss=2.5 grad_norm=1.25 dt=0.5\n"
	"step=2 tokens=20 loss=2.25 grad_norm=0.75 val_loss=2.75\n"
	"step=3 tokens=30 loss=2.125 mem=4096 mfu=0.1\n"
	"step=10 tokens=100 loss=nan\n"
	"step=11 tokens=110 loss=2\n";

static void write_log(const char *path)
{
	struct run_log l;
	assert_int_equal(run_log_read(&l, test_file("journal", journal), &e), 0);
	assert_int_equal(l.n_rows, 5);
	assert_int_equal(run_log_write(&l, path, &e), 0);
	run_log_free(&l);
}

/* Who reads it verifies it. */
static void see_log(const char *path, struct seen *s)
{
	struct run_log l;
	s->read = s->verified = run_log_read(&l, path, &s->e);
	if (s->read)
		return;
	add_fields(&s->all, run_fields, &l.info);
	str_puts(&s->all, l.config.s);
	str_puts(&s->all, l.arithmetic.s);
	str_puts(&s->all, l.events.s);
	for (int64_t i = 0; i < l.n_rows; i++) {
		struct row r = run_log_row(&l, i);
		str_add(&s->all, &r, sizeof(r));
	}
	run_log_free(&l);
}

/* ---- flipping -------------------------------------------------------------------- */

static void flip(const char *path, int64_t at, int bit)
{
	char c;
	int fd = open(path, O_RDWR);
	assert_int_equal(pread_all(fd, &c, 1, at), 0);
	c = (char)(c ^ 1 << bit);
	assert_int_equal(pwrite_all(fd, &c, 1, at), 0);
	close(fd);
}

static struct seen look(const struct kind *k, const char *path)
{
	struct seen s = {0};
	k->see(path, &s);
	return s;
}

/* 1: it was found. */
static int check_flip(const struct kind *k, const char *path, const struct seen *good,
	int64_t at, int bit)
{
	flip(path, at, bit);
	struct seen s = look(k, path);
	flip(path, at, bit);
	bool same =
		s.all.len == good->all.len && !memcmp(s.all.s, good->all.s, s.all.len);
	if ((s.read != 0) != (s.verified != 0) || (!s.read && !same))
		fail_msg("%s: byte %lld, bit %d: read %d, verified %d, %s", k->name,
			(long long)at, bit, s.read, s.verified,
			same ? "the same" : "something else");
	if (s.read)
		assert_true(s.e.code == EX_DATAERR || s.e.code == EX_IOERR);
	str_free(&s.all);
	return s.read != 0;
}

static bool is_long(void)
{
	const char *say = getenv("LONG");
	return say && !strcmp(say, "yes");
}

/* Bytes in an order that reaches all of them before it comes back to one. */
static void flip_bits(const struct kind *k)
{
	const char *path = test_path(k->name);
	struct stat st;
	int64_t found = 0;
	k->write(path);
	struct seen good = look(k, path);
	assert_int_equal(good.read || good.verified, 0);
	assert_int_equal(stat(path, &st), 0);
	int64_t n = is_long() ? max64(LONG, st.st_size) : QUICK;
	struct philox_key key = philox_key(1, PHILOX_TEST, 0);
	for (int64_t i = 0; i < n; i++)
		found += check_flip(k, path, &good,
			order_permute(key, st.st_size, i % st.st_size),
			(int)(hash_mix((uint64_t)i) & 7));
	print_message("# figure: %s: %lld bits of %lld bytes flipped, %lld found\n",
		k->name, (long long)n, (long long)st.st_size, (long long)found);
	assert_int_equal(found, n);
	struct seen again = look(k, path);
	assert_int_equal(again.read || again.verified, 0);
	str_free(&again.all);
	str_free(&good.all);
}

TEST(shards)
{
	flip_bits(&(struct kind){"shard", write_shard, see_shard});
}

TEST(checkpoints)
{
	flip_bits(&(struct kind){"checkpoint", write_ckpt, see_ckpt});
}

TEST(run_logs)
{
	flip_bits(&(struct kind){"run.h5", write_log, see_log});
}

/* ---- the journal, which is text and has no checksums ----------------------------- */

static bool is_among(const struct row *r, const struct run_log *l)
{
	for (int64_t i = 0; i < l->n_rows; i++) {
		struct row other = run_log_row(l, i);
		if (!memcmp(r, &other, sizeof(other)))
			return true;
	}
	return false;
}

/* Every bit of it: one row at most becomes another one, and rows stay in their order. */
TEST(journals)
{
	struct run_log good, l;
	const char *path = test_file("journal", journal);
	assert_int_equal(run_log_read(&good, path, &e), 0);
	for (int64_t i = 0; i < 8 * (int64_t)strlen(journal); i++) {
		int64_t others = 0;
		flip(path, i / 8, (int)(i % 8));
		if (run_log_read(&l, path, &e)) {
			assert_int_equal(e.code, EX_DATAERR);
		} else {
			for (int64_t k = 0; k < l.n_rows; k++) {
				struct row r = run_log_row(&l, k);
				others += !is_among(&r, &good);
				assert_true(
					!k || run_log_value(&l, k, COL_STEP) >
						      run_log_value(&l, k - 1, COL_STEP));
			}
			assert_true(others <= 1);
			run_log_free(&l);
		}
		flip(path, i / 8, (int)(i % 8));
	}
	run_log_free(&good);
}

/* ---- while a file is read -------------------------------------------------------- */

/* What is read between two equal answers of corpus_changes() is right, or is not read: also when
 * the block was checked before the change, and the file's time is put back. */
TEST(changes_are_noticed)
{
	static int32_t ids[300];
	struct h5_blocks b;
	struct corpus *c;
	struct h5 *h;
	struct stat was;
	char byte, other = '~';
	const char *path = test_path("changes.h5");
	write_shard(path);
	assert_int_equal(h5_open(&h, path, &e), 0);
	assert_int_equal(h5_blocks_open(h, "/train", &b, &e), 0);
	assert_int_equal(h5_close(h, &e), 0);
	assert_int_equal(corpus_open_file(&c, path, &e), 0);
	int64_t changes = corpus_changes(c);
	assert_int_equal(corpus_read(c, SPLIT_TRAIN, 0, 300, ids, &e), 0);
	assert_int_equal(corpus_changes(c), changes);
	int fd = open(path, O_RDWR);
	fstat(fd, &was);
	const struct timespec times[2] = {was.st_atim, was.st_mtim};
	assert_int_equal(pread_all(fd, &byte, 1, b.offset + 200), 0);
	assert_int_equal(pwrite_all(fd, &other, 1, b.offset + 200), 0);
	futimens(fd, times);
	assert_int_equal(corpus_changes(c), changes + 1);
	assert_int_equal(corpus_read(c, SPLIT_VAL, 0, 50, ids, &e), 0);
	assert_int_equal(corpus_read(c, SPLIT_TRAIN, 0, 300, ids, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, " changed while it was read: /train: rows 0 to "));
	assert_int_equal(pwrite_all(fd, &byte, 1, b.offset + 200), 0);
	assert_int_equal(corpus_changes(c), changes + 2);
	assert_int_equal(corpus_read(c, SPLIT_TRAIN, 0, 300, ids, &e), 0);
	close(fd);
	corpus_close(c);
	h5_blocks_release(&b);
}
