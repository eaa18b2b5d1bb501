/* Training of a vocabulary from texts, on several threads. */
#pragma once

#include "prepare/prepare.h"
#include "vocab/vocab.h"

struct train_vocab {
	const struct prepare
		*p; /* how the texts are read, which documents are kept, threads */
	struct train_config config; /* without the bar */
	const char *out;	    /* a folder */
};

struct trained_vocab {
	int64_t n_text_bytes, n_documents, n_dropped, n_broken;
	int64_t n_words, n_tokens; /* n_words: different ones */
	struct strs files;
};

/* The result does not depend on the number of threads. */
int train_vocab_run(const struct train_vocab *c, const struct strs *inputs,
	struct trained_vocab *out, struct err *e);
