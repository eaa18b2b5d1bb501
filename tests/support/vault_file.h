/* Files of a vault that do not come from a run. */
#pragma once

#include "vault/vault.h"

enum { VAULT_TEST_RUN = 77 };

/* Writes a small complete file of the run VAULT_TEST_RUN: two tensors, two groups. */
void vault_test_write(const char *path);
/* Recomputes the hashes and the seal of a file's bytes, if its sizes permit. */
void vault_test_seal(char *p, int64_t n_bytes);
/* Reads a file like a run that resumes: all that it accepts, and the rows. Returns the number of
 * records; -1: rejected; 0: ignored. Aborts if a promise does not hold. */
int64_t vault_test_read(const char *path);
