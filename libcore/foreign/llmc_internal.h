/* Shared by the files about llm.c's formats. */
#pragma once

#include "foreign/foreign.h"
#include "foreign/foreign_internal.h"

/* All headers are 256 little-endian i32. Those of the last words that are named here are this project's. */
enum { LLMC_WORDS = 256, LLMC_HEADER_BYTES = LLMC_WORDS * 4 };
enum { LLMC_MAGIC, LLMC_VERSION }; /* the first words of each header */
enum { LLMC_OWN = 252, LLMC_MARK, LLMC_HASH, LLMC_IS_MARKED = 0x78787468 };

/* ---- llmc_layout.c: the models of llm.c */

/* A kind of model; `names` are of one tensor of all layers or of the model, up to three in one. */
struct llmc_layout {
	int32_t magic;
	int arch;
	int end; /* of the words that llm.c gives a meaning */
	const struct llmc_kind {
		bool layers;
		const char *names[3];
	} * kinds; /* in the order of the file, closed by no name */
	/* Two channels of a query or key that are rotated together are neighbours in its head; in pt's models they are
	 * half a head apart. */
	bool rotates_neighbours;
	/* Sets *c, and *rows of the embedding table in the file, of a header and of the number of parameters. */
	int (*read)(const int32_t *header, int64_t n_parameters, struct model_config *c,
		int64_t *rows, const char *path, struct err *e);
	/* Sets the words from 2 on, and LLMC_OWN. -1: llm.c has no such model. */
	int (*write)(int32_t *header, const struct model *m, struct err *e);
	int vocab_multiple; /* of the rows of an embedding table, padded as the model's or more */
};
/* NULL: it is none. */
const struct llmc_layout *llmc_layout_of_magic(int32_t magic);
const struct llmc_layout *llmc_layout_of_arch(int arch);
/* Are the rows of this tensor in another order in the file, within each head? */
bool llmc_is_rotated(const struct llmc_layout *l, const char *name);
/* The row of the file that has row `row` of such a tensor, and the other way round. */
int64_t llmc_row_in_file(int64_t row, int64_t head_dim);
int64_t llmc_row_of_file(int64_t row, int64_t head_dim);
/* The numbers of all tensors in the order of the file, to be freed. */
int *llmc_order(const struct llmc_layout *l, const struct model *m);

/* ---- llmc.c: model files */

struct llmc {
	const struct llmc_layout *layout;
	int fd;
	struct model m;
	enum dtype dtype;
	int64_t vocab_rows; /* of the embedding table in the file */
	int64_t *offset;    /* of each tensor, in elements */
};
