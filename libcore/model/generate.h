/* Decoding with a key/value cache, and sampling. Calls of the decoder are collective over the
 * tensor-parallel axis; all ranks feed the same tokens and get the same logits. */
#pragma once

#include "model/model.h"

struct sampler {
	double temperature; /* 0: greedy */
	int64_t top_k;	    /* 0: no limit */
	double top_p;	    /* nucleus sampling (Holtzman et al. 2020); 1: no limit */
	uint64_t seed;
};

struct decoder;
/* Opens a decoder. `cache`: keeps keys and values; else each token recomputes the whole window,
 * with equal bits. The caller keeps ownership of model, device and store. */
struct decoder *decoder_open(
	struct model *m, struct device *d, struct store *store, bool cache);
void decoder_close(struct decoder *g);
/* Returns the bytes of device memory of a decoder without tensor parallelism. */
int64_t decoder_bytes(struct model *m, struct device *d);
/* Appends tokens to the window. When the context is full, the older half is dropped. */
void decoder_feed(struct decoder *g, const uint32_t *ids, int64_t n);
/* Draws the next token with random number `index` of a random stream. Does not append it. */
int64_t decoder_draw(
	struct decoder *g, const struct sampler *s, uint64_t stream, int64_t index);
/* Returns the logits [vocab] of the next token, in host memory. */
const float *decoder_logits(const struct decoder *g);
