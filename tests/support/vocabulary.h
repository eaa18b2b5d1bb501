/* The vocabulary of tests/golden/tokens in other formats. */
#pragma once

/* Writes tokenizer.json's vocabulary as merges.txt with vocab.json (GPT-2's form), or as ranks.tiktoken;
 * returns the path. */
const char *vocabulary_merges(void);
const char *vocabulary_ranks(void);
