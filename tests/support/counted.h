/* Shards in which some tokens do not count. */
#pragma once

#include "data/data.h"

/* How many count: of N_COUNTED kinds, COUNTED_ALL, COUNTED_FEW one token in a hundred, so that
 * batches may have none, COUNTED_MIXED all, none, some or few in stretches of 100 tokens. */
enum counted_kind { COUNTED_ALL, COUNTED_FEW, COUNTED_MIXED, N_COUNTED };
bool test_counts(enum counted_kind kind, enum split s, int64_t token);
/* The tokens of test_shard() again, in a file of their own. Returns its path, allocated. */
char *test_counted_shard(const char *shard, enum counted_kind kind);
