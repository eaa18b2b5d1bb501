/* What find.c finds and load.c loads; for the files of this directory only. */
#pragma once

#include "vault/vault.h"

/* A complete file of any rank. */
struct vault_file_copy {
	struct vault_header header;
	int holder;		       /* the rank that has mapped it */
	const struct vault_file *file; /* on the holder; else NULL */
	bool tried, is_used;	       /* its set was tried, is being tried */
	uint8_t *good; /* on the holder: [records] of the set; NULL: not usable */
};

/* What one rank of the run has written. */
struct vault_part {
	int64_t n_copies;
	struct vault_record *records; /* [n], equal on all ranks */
	int64_t n;
	uint64_t records_xxh3;
	int32_t *holder;  /* [n]: a rank with good rows; -1: none */
	uint8_t *damaged; /* [n]: a copy is not good */
	const char **own; /* [n]: good rows in a file of this rank; NULL: none */
};

struct vault_found {
	struct comm *comm;
	char *directory;
	struct vault_file *files; /* [n_files], mapped by this rank */
	int64_t n_files;
	struct vault_file_copy *copies; /* [n_copies], of all ranks */
	int64_t n_copies;
	/* The set. */
	struct vault_header header; /* the header of any file of the set */
	struct vault_part *parts;   /* [header.ranks] */
	struct ckpt *ckpt;	    /* without rows */
	int64_t n_damaged;	    /* records without their hash in a copy */
};
