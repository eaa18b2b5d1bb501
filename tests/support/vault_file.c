#include "tests/support/vault_file.h"

#include <unistd.h>

static const struct ckpt_tensor tensors[] = {
	{.name = "tok_embeddings.weight", .ndim = 2, .dims = {6, 4}},
	{.name = "norm.weight", .ndim = 1, .dims = {4, 1}, .stateless = true},
};

/* The rows of both tensors, and the state of the first one in two halves of its columns. */
static const struct vault_record records[] = {
	{.group = 0, .tensor = 0, .block = {0, 6, 0, 4}},
	{.group = 0, .tensor = 1, .block = {0, 4, 0, 1}},
	{.group = 1, .tensor = 0, .block = {0, 6, 0, 2}},
	{.group = 1, .tensor = 0, .block = {0, 6, 2, 2}},
};

void vault_test_write(const char *path)
{
	struct str state = {0};
	const double load[] = {0.25, 0.75};
	const struct ckpt_write w = {.tensors = tensors,
		.n_tensors = ARRAY_LEN(tensors),
		.groups = {"model", "exp_avg"},
		.n_groups = 2,
		.info = {.step = 5, .samples = 40, .tokens = 640, .param_hash = 9},
		.config = "layers = 1\n",
		.origin = "{}",
		.load = load,
		.n_load = 2};
	struct vault_file f;
	struct err e = {0};
	vault_pack_state(&w, &state);
	const struct vault_layout l = {.n_records = ARRAY_LEN(records),
		.state_bytes = (int64_t)state.len,
		.row_bytes = ARRAY_LEN(records) * 128};
	const struct vault_header h = {
		.run = VAULT_TEST_RUN, .start = 3, .rank = 1, .ranks = 2};
	unlink(path);
	BUG_ON(vault_file_create(&f, path, &l, &h, &e));
	for (int64_t i = 0; i < l.n_records; i++) {
		struct vault_record *r = &f.records[i];
		*r = records[i];
		r->at = f.header->data_at + i * 128;
		size_t n_bytes = (size_t)vault_record_bytes(r);
		memset(f.map + r->at, (int)i + 1, n_bytes);
		r->xxh3 = hash_bytes(f.map + r->at, n_bytes, 0);
	}
	memcpy(f.state, state.s, state.len);
	vault_file_seal(&f, 5, l.state_bytes);
	vault_file_close(&f);
	str_free(&state);
}

void vault_test_seal(char *p, int64_t n_bytes)
{
	const int64_t begin = 4096, record = sizeof(struct vault_record);
	struct vault_header *h = (void *)p;
	if (n_bytes < begin || h->n_records < 0 ||
		h->n_records > (n_bytes - begin) / record)
		return;
	int64_t state = begin + h->n_records * record;
	if (h->state_bytes < 0 || h->state_bytes > n_bytes - state)
		return;
	h->records_xxh3 = hash_bytes(p + begin, (size_t)(state - begin), 0);
	h->state_xxh3 = hash_bytes(p + state, (size_t)h->state_bytes, 0);
	h->seal = hash_bytes(h, offsetof(struct vault_header, seal), 0);
}

int64_t vault_test_read(const char *path)
{
	struct vault_file f;
	struct err e = {0};
	int rc = vault_file_open(&f, path, VAULT_TEST_RUN, &e);
	BUG_ON((rc < 0) != (e.code != 0));
	if (rc)
		return rc < 0 ? -1 : 0;
	int64_t n = -1;
	struct ckpt *c = vault_unpack_state(path, f.state, f.header->state_bytes, &e);
	if (c && !vault_check_records(&f, c, &e)) {
		n = f.header->n_records;
		for (int64_t i = 0; i < n; i++)
			vault_has_good_rows(&f, i);
	}
	BUG_ON((n < 0) != (e.code != 0));
	ckpt_close(c);
	vault_file_close(&f);
	return n;
}
