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
/* `cache`: keep keys and values; else each token recomputes the whole window, with equal bits.
 * Model, device and store stay the caller's. */
struct decoder *decoder_open(
	struct model *m, struct device *d, struct store *store, bool cache);
void decoder_close(struct decoder *g);
int64_t decoder_bytes(struct model *m, struct device *d); /* device memory on one rank */
/* Appends tokens to the window. When the context is full, the older half is dropped. */
void decoder_feed(struct decoder *g, const uint32_t *ids, int64_t n);
/* Draws the next token, as random number `index` of stream `stream`. Does not feed it. */
int64_t decoder_draw(
	struct decoder *g, const struct sampler *s, uint64_t stream, int64_t index);
const float *decoder_logits(
	const struct decoder *g); /* of the next token: [vocab], on the host */
