/* Shared by the files for llm.c's format. */
#pragma once

#include "foreign/foreign.h"
#include "foreign/foreign_internal.h"

/* Headers are 256 little-endian i32. The last named words are used only by pt. */
enum { LLMC_WORDS = 256, LLMC_HEADER_BYTES = LLMC_WORDS * 4 };
enum { LLMC_MAGIC, LLMC_VERSION }; /* the first words of each header */
enum { LLMC_OWN = 252, LLMC_MARK, LLMC_HASH, LLMC_IS_MARKED = 0x78787468 };

/* ---- llmc_layout.c: the models of llm.c */

/* The file layout of an architecture. */
struct llmc_layout {
	int32_t magic;
	int arch;
	int end; /* number of words that llm.c uses */
	const struct llmc_kind {
		bool layers;	      /* one per layer, all layers in turn */
		const char *names[3]; /* tensors in one, in turn */
	} * kinds;		      /* in the order of the file; ends without a name */
	/* Channels that rotate together are adjacent; in pt they are half a head apart. */
	bool rotates_adjacent;
	/* Sets *c, and *rows of the embedding, from a header and the number of parameters. */
	int (*read)(const int32_t *header, int64_t n_parameters, struct model_config *c,
		int64_t *rows, const char *path, struct err *e);
	/* Sets the words from 2 on, and LLMC_OWN. Fails if llm.c has no such model. */
	int (*write)(int32_t *header, const struct model *m, struct err *e);
	int vocab_multiple; /* the embedding has a multiple of this many rows */
};
/* Return a layout; NULL if llm.c has none. */
const struct llmc_layout *llmc_find_by_magic(int32_t magic);
const struct llmc_layout *llmc_find_by_arch(int arch);
/* Returns true if the file has the rows of this tensor in another order within each head. */
bool llmc_is_rotated(const struct llmc_layout *l, const char *name);
/* Convert a row of a tensor with rotated rows: from ours to the file's, and back. */
int64_t llmc_row_in_file(int64_t row, int64_t head_dim);
int64_t llmc_row_from_file(int64_t row, int64_t head_dim);
/* Returns the indices of all tensors in the order of the file, for free(). */
int *llmc_order(const struct llmc_layout *l, const struct model *m);

/* ---- llmc.c: model files */

struct llmc {
	const struct llmc_layout *layout;
	int fd;
	struct model m;
	enum dtype dtype;
	int64_t vocab_rows; /* rows of the embedding in the file */
	int64_t *offset; /* [tensor] offset in the file, in elements after the header */
};
