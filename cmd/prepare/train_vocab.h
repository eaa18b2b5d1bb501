/* Training of a vocabulary on texts, by several threads. */
#pragma once

#include "prepare/prepare.h"
#include "vocab/vocab.h"

struct train_vocab {
	const struct prepare *p;    /* reading options, filters, number of threads */
	struct train_config config; /* without the progress bar */
	const char *out;	    /* directory of the vocabulary files */
};

struct trained_vocab {
	int64_t n_text_bytes, n_documents, n_dropped, n_broken;
	int64_t n_words, n_tokens; /* n_words: distinct words */
	struct strs files;
};

/* Trains a vocabulary. The result does not depend on the number of threads. */
int train_vocab_run(const struct train_vocab *c, const struct strs *inputs,
	struct trained_vocab *out, struct err *e);
