/* vault: the state of a run in memory that outlives its processes (--vault).
 *
 * Each host has a directory in a memory file system. After an update, each rank copies the rows
 * that it counts (store.h) into one of two files in turn, and a rank of the next host receives the
 * same bytes. A run that starts anew resumes from the newest step of which every row has a good
 * copy, on any number of ranks and any layout.
 *
 * A file has a header, records (the rows and where they are, with an XXH3 each), the state without
 * rows, and rows. It counts when its seal is written, which is last. Readers trust nothing in it.
 *
 * Functions that return int return 0, or -1 with *e set. */
#pragma once

#include "ckpt/ckpt.h"
#include "engine/engine.h"
#include "parallel/store.h"

/* ---- file.c: the files of a vault -------------------------------------------------------- */

/* Rows of a tensor of a group, [rows][cols] floats at byte `at` of the file. */
struct vault_record {
	int32_t group, tensor; /* indices in the state of the file */
	struct tensor_block block;
	int64_t at;
	uint64_t xxh3;
};

/* The first bytes of a file. Sets of files with equal `start` and `step` belong together. */
struct vault_header {
	char magic[8];
	uint64_t run,
		start; /* random numbers of the run, and of the start of its processes */
	int64_t step;
	int64_t rank, ranks; /* the rank that has written it, and their number */
	int64_t n_records, state_bytes, data_at, file_bytes;
	uint64_t records_xxh3, state_xxh3;
	uint64_t seal; /* XXH3 of the members before it; 0: not complete */
};

struct vault_file {
	char *path;
	char *map; /* file_bytes bytes */
	int64_t file_bytes;
	struct vault_header *header; /* in `map`, like the rest */
	struct vault_record *records;
	char *state;
};

/* The sizes of a file that is created. */
struct vault_layout {
	int64_t n_records, state_bytes, row_bytes;
};

/* The parts of a file's name: RUN-START-own-RANK.SLOT, or -copy- for the copy on the next host. */
struct vault_name {
	uint64_t run, start;
	bool is_copy;
	int rank, slot;
};

/* The files that a rank writes in turn; the alignment of rows in a file, in bytes. */
enum { VAULT_SLOTS = 2, VAULT_ALIGN = 64 };

/* Appends DIRECTORY/NAME. */
void vault_print_path(struct str *out, const char *directory, const struct vault_name *n);
/* Parses the name of a file. Returns false for any other name. */
bool vault_parse_name(const char *text, struct vault_name *n);
/* Returns the bytes of a file, and sets *data_at to the offset of its rows. */
int64_t vault_file_bytes(const struct vault_layout *l, int64_t *data_at);
/* Creates a file, allocates all its memory, and writes its header without a seal. */
int vault_file_create(struct vault_file *f, const char *path,
	const struct vault_layout *l, const struct vault_header *h, struct err *e);
/* Removes the seal: the contents of the file change. */
void vault_file_break(struct vault_file *f);
/* Writes the hashes and the seal of a file whose records, state and rows are complete. */
void vault_file_seal(struct vault_file *f, int64_t step, int64_t state_bytes);
/* Writes a header that another rank has sealed, after the rest of the file. */
void vault_file_adopt(struct vault_file *f, const struct vault_header *h);
/* Maps a complete file of this run and user for reading. Returns 1 if it is empty, has no seal or
 * belongs to another run; -1 with *e set if it is damaged. Checks everything except the rows. */
int vault_file_open(struct vault_file *f, const char *path, uint64_t run, struct err *e);
void vault_file_close(struct vault_file *f);
/* Checks that the records of a file describe tensors and groups of `c`, and bytes of the file. */
int vault_check_records(const struct vault_file *f, const struct ckpt *c, struct err *e);
/* Returns true if the rows of record i have the hash of the record. */
bool vault_has_good_rows(const struct vault_file *f, int64_t i);
int64_t vault_record_bytes(const struct vault_record *r); /* bytes of its rows */

/* Lists the names of a vault's files in a directory, sorted. *n_others: files of other runs. */
int vault_list(const char *directory, uint64_t run, struct strs *names, int64_t *n_others,
	struct err *e);
/* Removes the files that the run has made, except the files of start `start`, and the files of
 * start `keep_start` with a complete step `keep_step`. Returns the bytes that it has freed. */
struct vault_kept {
	uint64_t start, keep_start;
	int64_t keep_step;
};
int64_t vault_remove(const char *directory, uint64_t run, const struct vault_kept *keep);
/* Returns the bytes of the run's files that vault_remove() would remove. */
int64_t vault_removable_bytes(
	const char *directory, uint64_t run, const struct vault_kept *keep);

/* ---- state.c: the state without rows ----------------------------------------------------- */

/* Appends the attributes, tensors, groups and texts of a checkpoint. */
void vault_pack_state(const struct ckpt_write *w, struct str *out);
/* Returns a checkpoint without rows and tokenizer, for ckpt_close(). `name` is for messages.
 * NULL with *e set: the bytes are not a state. */
struct ckpt *vault_unpack_state(
	const char *name, const char *p, int64_t n_bytes, struct err *e);

/* ---- find.c, load.c: a run that starts anew ----------------------------------------------- */

struct vault_found; /* the newest step of which every row has a good copy */

/* Finds the newest usable step in the directories of all hosts. Returns NULL if there is none.
 * usable: checks on rank 0 that the run can resume from it. Collective. */
struct vault_found *vault_find(struct comm *world, const char *directory, uint64_t run,
	ckpt_usable *usable, void *arg);
struct ckpt *vault_found_ckpt(const struct vault_found *v); /* the state without rows */
uint64_t vault_found_start(const struct vault_found *v);
/* Appends "2 damaged records replaced by copies" to a list of reasons, if there are any. */
void vault_describe_damage(const struct vault_found *v, struct str *out);
/* Loads the rows into a store: a state_loader(). Collective. */
int vault_load(void *found, struct store *s, const int *from, struct err *e);
void vault_found_free(struct vault_found *v); /* NULL: nothing */

/* ---- copy.c: the copy after an update ------------------------------------------------------ */

struct vault;

struct vault_config {
	const char *directory;
	uint64_t run, start;
	/* The step that the run has resumed at: its files are kept until a newer step is
	 * complete. keep_start 0: none. */
	uint64_t keep_start;
	int64_t keep_step;
};

/* Opens a vault for writing. Fails if the memory file system is too small. Collective. */
struct vault *vault_open(struct trainer *t, const struct vault_config *c, struct err *e);
/* Copies the state after an update, and starts sending it to the next host. Collective. Fails if a
 * file cannot be created; then no more copies are made. A GPU copies in the
 * background. */
int vault_copy(struct vault *v, struct err *e);
/* Completes a copy that a GPU makes in the background; call it before the next update. */
void vault_complete(struct vault *v);
/* Also waits, once per copy, if `sent` until the next host has this rank's copy, and if `all` until
 * all ranks have called this. Collective. */
void vault_settle(struct vault *v, bool sent, bool all);
/* Returns for how long these calls delayed the step after the last copy; an upper bound. */
double vault_delay(const struct vault *v);
/* Returns the step of the last copy; -1: there is none, or it is withdrawn. */
int64_t vault_step(const struct vault *v);
/* Returns the memory of all files on this host. */
int64_t vault_host_bytes(const struct vault *v);
int vault_n_hosts(const struct vault *v);
/* Removes the seals of the last copy, which is wrong, here and on the next host, when that has it.
 * The next copy takes its place, so the copy before it stays. Collective. */
void vault_withdraw(struct vault *v);
/* What happens to the files of the run: they stay for --resume auto; they are removed, because the
 * run has ended; the files of this start are removed, because it has failed. */
enum vault_end { VAULT_STAYS, VAULT_ENDS, VAULT_WITHDRAWN };
/* Waits until the next host has the last copy, and closes the vault. Collective. */
void vault_close(struct vault *v, enum vault_end end);
/* A function that is called at places of a copy or a load, to test what a kill does there. */
extern void (*vault_at_place)(const char *place, int64_t step);
