/* pt-train: train a language model, alone or under mpiexec. */
#include "base/launch.h"
#include "base/file.h"
#include "engine/backend.h"
#include "foreign/foreign.h"
#include "h5/h5.h"
#include "kernels/kernels.h"
#include "options/options.h"
#include "run/run.h"
#include "train/train.h"

static void print_versions(struct str *out)
{
	str_printf(out, "HDF5 %s\n%s\nCPU kernels %s\n", h5_version(),
		comm_find_version(), device_isa());
}

/* Opens a model; a name on Hugging Face's hub gets an error that explains how to download it. */
static int open_model_or_explain(struct ckpt **c, const char *path, struct err *e)
{
	const char *slash = strchr(path, '/');
	if (slash && slash > path && slash[1] && !strchr(slash + 1, '/') &&
		*path != '.' && *path != '~' && !file_exists(path))
		return err_set(e, EX_IOERR,
			"%s: No such file or directory; download a model first: hf download %s "
			"--local-dir %s",
			path, path, slash + 1);
	return convert_open_model(c, path, e);
}

static struct comm *world;
static struct job_base base = {.open_model = open_model_or_explain};
static bool has_agreed_error; /* all ranks have agreed on an error */

/* Appends the options of the checkpoint of --resume or --init-from to *text. Collective. */
static int read_base_options(void *opts, struct str *text, struct err *e)
{
	const struct train_opts *o = opts;
	if (o->columns) {
		if (launch_rank() == 0)
			columns_print(stdout);
		stdout_close();
		exit(0);
	}
	world = comm_open();
	/* Ranks with wrong options do not come here: they agree in main(). */
	has_agreed_error = true;
	if (comm_agree(world, e))
		return -1;
	int64_t has = o->resume || o->init_from;
	if (comm_min_i64(world, has) != comm_max_i64(world, has))
		return err_set(e, EX_USAGE,
			"--resume or --init-from: given to some ranks only; give it to all");
	if (has && job_find_base(o, world, &base, e))
		return -1;
	has_agreed_error = false;
	str_add(text, base.options.s, base.options.len);
	return 0;
}

/* Returns true for an option that the weights do not determine. A model may be trained with another
 * context (and other rotary positions), dropout or epsilon. */
static bool may_differ_from_weights(const char *key)
{
	static const char *const free_options[] = {
		"context ", "rope-", "vocab ", "dropout ", "norm-eps "};
	for (size_t i = 0; i < ARRAY_LEN(free_options); i++)
		if (!strncmp(key, free_options[i], strlen(free_options[i])))
			return true;
	return false;
}

/* Rejects options of the model that contradict --init-from, with both values. */
static int check_model(const struct train_opts *o, struct err *e)
{
	scoped_str given = {0}, model = {0}, options = {0}, differences = {0};
	const struct conf_text from_weights = {&model, o->init_from},
			       from_options = {&options, "options"};
	opts_print(&train_program, o, OPT_MODEL, 0, &given);
	int rc = convert_options(base.options.s, 1, &model, e) ||
		 convert_options(given.s, 1, &options, e) ||
		 conf_diff(&from_weights, &from_options, "--", " is",
			 ", but the run's is ", &differences, e);
	for (char *line = differences.s, *end; !rc && line && *line; line = end + 1) {
		end = strchr(line, '\n');
		*end = '\0';
		if (!may_differ_from_weights(line + 2))
			rc = err_set(e, EX_USAGE, "--init-from %s: its %s", o->init_from,
				line);
	}
	return rc ? -1 : 0;
}

/* Parses and checks the options, with the options of a checkpoint. Operands become --data. */
static int parse_options(struct train_opts *o, int argc, char **argv, struct err *e)
{
	struct program program = train_program;
	program.versions = print_versions;
	program.base = read_base_options;
	int n = opts_parse(&program, o, argc, argv, e);
	if (n < 0)
		return -1;
	for (int i = 0; i < n; i++)
		strs_add(&o->data, argv[i]);
	if (o->resume || base.start_over) {
		if (base.resume && o->init_from && !strcmp(o->resume, "auto"))
			o->init_from = NULL; /* the run exists and is resumed */
		o->resume = base.resume;
		o->resolved.from_workers = base.workers;
	}
	if (o->vault && !opts_given(&program, o, "watchdog"))
		o->watchdog = 60; /* a hang costs little more than its detection */
	return options_check(o, e) || (o->init_from && check_model(o, e)) ? -1 : 0;
}

int main(int argc, char **argv)
{
	const double begin = clock_seconds();
	struct train_opts o = {0};
	struct err e = {0};
	scoped_str command = {0};
	log_name(train_program.name);
	options_give_advice();
	for (int i = 0; i < argc; i++)
		str_printf(&command, "%s%s", i ? " " : "", argv[i]);
	parse_options(&o, argc, argv, &e);
	file_spool_limit(o.spool_limit);
	/* An error on one rank ends all ranks, such as a wrong option in the environment of one
	 * host. */
	if (!world)
		world = comm_open();
	log_set_rank(world->rank, world->size, o.log_all_ranks);
	int rc;
	if (has_agreed_error || comm_agree(world, &e)) {
		opts_add_origins(&train_program, &o, &e);
		rc = world->rank ? e.code : err_print(&e);
	} else {
		comm_watchdog(world, o.watchdog);
		o.threads = backend_threads(o.threads);
		rc = job_run(&o, &base, world, command.s, begin);
	}
	comm_close(world);
	return rc;
}
