/* pt-train: train a language model, alone or under mpiexec. */
#include "train/train.h"

#include <stdlib.h>
#include <string.h>

static void versions(struct str *out)
{
	str_printf(out, "HDF5 %s\n%s\n%s\n", h5_version(), comm_version(), device_blas());
}

/* Operands are data; what the option table cannot check is checked. */
static int parse(
	struct train_opts *o, int argc, char **argv, const char *base, struct err *e)
{
	char **copy = xcalloc((size_t)argc + 1, sizeof(*copy));
	memcpy(copy, argv, (size_t)argc * sizeof(*copy));
	struct program program = train_program;
	program.versions = versions;
	int n = opts_parse(&program, o, argc, copy, base, e);
	for (int i = 0; i < n; i++)
		strs_add(&o->data, copy[i]);
	free(copy);
	return n < 0 ? -1 : train_opts_check(o, e);
}

/* A run that goes on has the options it had, unless others are given. */
static int resume(
	struct train_opts *o, struct comm *world, int argc, char **argv, struct err *e)
{
	struct str config = {0};
	if (train_find_resume(o, world, &config, e))
		return -1;
	struct train_opts found = *o;
	int rc = config.len ? parse(o, argc, argv, config.s, e) : 0;
	o->resume = found.resume;
	o->start_over = found.start_over;
	str_free(&config);
	return rc;
}

static int run(struct train_opts *o, struct comm *world, int argc, char **argv)
{
	struct err e = {0};
	struct str command = {0};
	struct comm_place place;
	if (o->resume && resume(o, world, argc, argv, &e))
		return world->rank ? e.code : err_say(&e);
	comm_place(&place);
	if (!o->threads)
		o->threads =
			max64(1, min64(cpu_count(), place.processors / place.local_size));
	for (int i = 0; i < argc; i++)
		str_printf(&command, "%s%s", i ? " " : "", argv[i]);
	int rc = train_run(o, world, command.s);
	str_free(&command);
	return rc;
}

int main(int argc, char **argv)
{
	struct train_opts o;
	struct err e = {0};
	log_name(train_program.name);
	if (parse(&o, argc, argv, NULL, &e))
		return comm_rank_hint() ? e.code : err_say(&e);
	struct comm *world = comm_open();
	log_rank(world->rank, world->size, o.log_all_ranks);
	int rc = run(&o, world, argc, argv);
	comm_close(world);
	return rc;
}
