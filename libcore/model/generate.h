/* Decoding with a cache of keys and values, and drawing tokens. */
#ifndef MODEL_GENERATE_H
#define MODEL_GENERATE_H

#include "model/model.h"

struct sampler {
	double temperature; /* 0: the likeliest token */
	int64_t top_k;	    /* 0: all */
	double top_p;	    /* 1: all */
	uint64_t seed;
};

struct decoder;
/* `cache`: keep keys and values; without, every token is computed from the whole window
 * again, with equal bits. */
struct decoder *decoder_open(
	struct model *m, struct device *d, struct store *store, bool cache);
void decoder_close(struct decoder *g);
int64_t decoder_bytes(struct model *m, struct device *d); /* of the device's memory */
/* Appends tokens to the text. When the context is full, the older half is forgotten. */
void decoder_feed(struct decoder *g, const uint32_t *ids, int64_t n);
/* Draws the next token, number `index` of stream `stream`. Does not feed it. */
int64_t decoder_draw(
	struct decoder *g, const struct sampler *s, uint64_t stream, int64_t index);
const float *decoder_logits(const struct decoder *g); /* of the next token; [vocab] */

#endif
