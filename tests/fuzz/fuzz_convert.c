/* Files of other programs: config.json with a safetensors file or an index of them, llm.c's model files.
 * What can be opened is read, written in each format that has such models, and read again. */
#include "base/file.h"
#include "tests/fuzz/fuzz.h"
#include "foreign/foreign.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum kind { HF, HF_INDEX, LLMC, LLMC_SEALED, KINDS /* a power of 2 */ };

/* Text up to a NUL becomes a file of the folder. */
static void make_text(struct bytes *b, const char *name)
{
	char *text = take_text(b, 4096);
	fuzz_file(name, text, strlen(text));
	free(text);
}

/* The header up to a NUL, with its length in front, and the rest as data. */
static void make_safetensors(struct bytes *b, const char *name)
{
	struct str file = {0};
	char *header = take_text(b, 4096);
	uint64_t n = strlen(header);
	str_add(&file, &n, sizeof(n));
	str_puts(&file, header);
	if (b->n)
		str_add(&file, b->p, b->n);
	fuzz_file(name, file.s, file.len);
	str_free(&file);
	free(header);
}

/* A model, without the words that this project adds to the header, unless `sealed`. */
static const char *make_model(struct bytes *b, bool sealed)
{
	struct str file = {0};
	str_add(&file, b->n ? (const void *)b->p : "", b->n);
	for (size_t i = 1000; i < 1024 && i < file.len && !sealed; i++)
		file.s[i] = 0;
	fuzz_file("model_1.bin", file.s, file.len);
	str_free(&file);
	return fuzz_path("model_1.bin");
}

static const char *make(enum kind kind, struct bytes *b)
{
	static char path[4200];
	snprintf(path, sizeof(path), "%s/hf", fuzz_folder());
	mkdir(path, 0700);
	unlink(fuzz_path("hf/model.safetensors"));
	if (kind >= LLMC)
		return make_model(b, kind == LLMC_SEALED);
	make_text(b, "hf/config.json");
	if (kind == HF_INDEX) {
		make_text(b, "hf/model.safetensors.index.json");
		make_safetensors(b, "hf/a.safetensors");
	} else {
		make_safetensors(b, "hf/model.safetensors");
	}
	return path;
}

/* Written and opened again it has the same parameters; but NaN may change in 16 bits. */
static void write_and_read(const struct ckpt_view *v, const struct convert_format *f,
	const char *path, uint64_t hash)
{
	const struct convert_opts o = {DT_F32, 0, true};
	struct err e = {0};
	struct ckpt_view again;
	uint64_t other;
	int rc = convert_save(v, f, path, &o, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (rc)
		return;
	FUZZ_ON(convert_open_as(
		&again, &(struct convert_kind){f, f->probe(path)}, path, NULL, &e));
	FUZZ_ON(ckpt_view_hash(&again, &other, &e));
	/* (GPT-2's missing biases are written as zeros) */
	FUZZ_ON(other != hash && again.n_tensors == v->n_tensors);
	ckpt_view_close(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes b = {data, n};
	struct err e = {0};
	struct ckpt_view v;
	uint64_t hash;
	uint8_t first = take_byte(&b);
	enum kind kind = (enum kind)(first % KINDS);
	const char *path = make(kind, &b);
	const struct convert_format *f =
		kind >= LLMC ? &convert_llmc : &convert_huggingface;
	int rc = convert_open_as(
		&v, &(struct convert_kind){f, f->probe(path)}, path, NULL, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (rc)
		return 0;
	bool writes =
		first & KINDS; /* half of the inputs: writing takes most of the time */
	if (!ckpt_view_hash(&v, &hash, &e) && writes) {
		const char *out = fuzz_path("out");
		write_and_read(&v, &convert_pt, fuzz_path("out.h5"), hash);
		write_and_read(&v, &convert_llmc, fuzz_path("out.bin"), hash);
		write_and_read(&v, &convert_huggingface, out, hash);
		unlink(fuzz_path("out/config.json"));
		unlink(fuzz_path("out/model.safetensors"));
	}
	ckpt_view_close(&v);
	return 0;
}
