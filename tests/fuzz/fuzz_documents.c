/* Documents, as pt-prepare reads them: JSONL and compressed files. What is taken can be decoded, and pieces that
 * are left of another run, or damaged, change nothing. */
#include "tests/fuzz/fuzz.h"
#include "prepare/pipeline.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The text of a line is the same alone as in a file. */
static void one_line(const char *line, size_t n, struct str *all)
{
	struct err e = {0};
	size_t before = all->len;
	int rc = jsonl_read_text(line, (int64_t)n, "text", all, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	FUZZ_ON(rc && all->len != before);
	struct str any = {0};
	struct err f = {0};
	FUZZ_ON(jsonl_parse_text(line, (int64_t)n, "text", &any, &f) != rc);
	FUZZ_ON(any.len != all->len - before ||
		(any.len && memcmp(any.s, all->s + before, any.len)));
	str_free(&any);
}

static void expect(const char *text, size_t n, struct str *all)
{
	for (const char *end = text + n; text < end;) {
		const char *next = memchr(text, '\n', (size_t)(end - text));
		size_t here = next ? (size_t)(next - text) : (size_t)(end - text);
		one_line(text, here, all);
		text += here + 1;
	}
}

static int prepare(const struct prepare *p, const char *path, struct str *decoded)
{
	struct strs inputs = {0};
	struct prepared made;
	struct err e = {0};
	strs_add(&inputs, path);
	int rc = prepare_run(p, &inputs, &made, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (!rc) {
		char *back = NULL;
		size_t n_back = 0;
		FILE *f = open_memstream(&back, &n_back);
		for (int s = 0; s < N_SPLITS; s++)
			FUZZ_ON(prepare_decode(&made.files, (enum split)s, f, &e));
		fclose(f);
		str_add(decoded, back, n_back);
		free(back);
	}
	for (int64_t i = 0; i < made.files.n; i++)
		unlink(made.files.v[i]);
	strs_free(&made.files);
	strs_free(&inputs);
	return rc;
}

/* Puts bytes over a work file, and prepares again. */
static void with_work(struct prepare *p, const char *path, const struct str *want, int rc,
	struct bytes *b)
{
	struct str again = {0};
	char work[4200], pieces[4300];
	snprintf(work, sizeof(work), "%s", fuzz_path("work"));
	snprintf(pieces, sizeof(pieces), "%s/pieces-0", work);
	struct err e = {0};
	p->work = work;
	FUZZ_ON(file_make_directory(work, &e));
	FILE *f = fopen(pieces, "w");
	FUZZ_ON(!f);
	fwrite(b->p, 1, b->n, f);
	fclose(f);
	FUZZ_ON(prepare(p, path, &again) != rc);
	FUZZ_ON(again.len != want->len ||
		(want->len && memcmp(again.s, want->s, want->len)));
	unlink(pieces);
	str_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes b = {data, n};
	char out[4200], path[4200];
	struct str want = {0}, got = {0};
	uint8_t how = take_byte(&b);
	snprintf(out, sizeof(out), "%s", fuzz_path("documents.h5"));
	snprintf(path, sizeof(path), "%s", fuzz_file("lines", b.p, b.n));
	struct prepare p = {.tokenizer = {.name = "byte"},
		.format = how & 1 ? FORMAT_TEXT : FORMAT_JSONL,
		.strict = how & 2,
		.dedup = how & 4,
		.shuffle = how & 8,
		.as_is = how & 16,
		.val_fraction = 0.3,
		.out = out,
		.overwrite = true};
	int rc = prepare(&p, path, &got);
	struct err known = {
		0}; /* a file that begins like a database or an archive is rejected */
	bool is_text = !file_reject_foreign(
		"lines", (const char *)b.p, b.n, FOREIGN_TEXT, &known);
	if (is_text && !p.strict && !p.dedup && !p.shuffle && p.as_is &&
		p.format == FORMAT_JSONL) {
		expect((const char *)b.p, b.n, &want);
		FUZZ_ON((rc == 0) != (want.len > 0));
		FUZZ_ON(want.len != got.len ||
			(got.len && memcmp(want.s, got.s, got.len)));
	}
	if (how & 32)
		with_work(&p, path, &got, rc, &b);
	str_free(&want);
	str_free(&got);
	return 0;
}
