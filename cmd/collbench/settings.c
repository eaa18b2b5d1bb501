/* Names of the settings of a run, and the test settings from the environment. */
#include "collbench/table.h"
#include "options/options.h"

const char *const bench_launch_names[] = {"blocking", "queued", "graph", NULL};
const char *const bench_calls_names[] = {"nonblocking", "blocking", NULL};
const char *const bench_average_names[] = {"max", "avg", "min", "rank0", NULL};

void bench_format_settings(const struct bench_options *o, char text[BENCH_SETTINGS])
{
	snprintf(text, BENCH_SETTINGS,
		"calls=%s average=%s barrier=%d aggregate=%lld window=%lld launch=%s "
		"registered=%d",
		bench_calls_names[o->calls], bench_average_names[o->average], o->barrier,
		(long long)o->aggregate, (long long)o->window,
		bench_launch_names[o->launch], o->registered);
}

/* Returns true if `name` without underscores, as in nccl-tests' all_reduce, is `ours`. */
static bool same_name(const char *ours, const char *name)
{
	for (; *name; name++)
		if (*name != '_' && *ours++ != *name)
			return false;
	return !*ours;
}

int bench_find_collective(const char *name, struct err *e)
{
	const char *const *names = bench_coll_names();
	int64_t number;
	for (int i = 0; i <= N_BENCH; i++)
		if (same_name(names[i], name))
			return i;
	if (!parse_int(name, &number))
		return err_set(e, EX_USAGE,
			"'%s' is not a collective; instead of -g and -t of nccl-tests, start a "
			"rank per GPU: mpiexec -n RANKS pt-collbench --device cuda",
			name);
	return opts_unknown_error("collective", name, names, N_BENCH + 1, e);
}

/* Parses COLLECTIVE:RANK:ELEMENT or step:RANK:ELEMENT. */
static int parse_fault(const char *text, struct bench_fault *f, struct err *e)
{
	char *copy = xstrdup(text), *rest = copy;
	const char *name = strsep(&rest, ":"), *rank = strsep(&rest, ":");
	int64_t r = -1;
	bool is_step = !strcmp(name, "step");
	int what = is_step ? N_BENCH : bench_find_collective(name, &(struct err){0});
	bool is_valid = what >= 0 && (what < N_BENCH || is_step) && rank && rest &&
			!parse_int(rank, &r) && r >= 0 && r <= INT32_MAX &&
			!parse_int(rest, &f->element);
	f->wanted = is_valid;
	f->what = is_valid ? what : COLL_ALLREDUCE;
	f->rank = (int)r;
	free(copy);
	return is_valid
		       ? 0
		       : err_set(e, EX_USAGE,
				 "PT_COLLBENCH_FAULT: '%s' is neither COLLECTIVE:RANK:ELEMENT nor "
				 "step:RANK:ELEMENT",
				 text);
}

static int parse_delay(const char *text, double *seconds, struct err *e)
{
	if (!parse_double(text, seconds) && *seconds >= 0 && *seconds <= 1)
		return 0;
	return err_set(e, EX_USAGE,
		"PT_COLLBENCH_DELAY: '%s' is not a number of seconds from 0 to 1", text);
}

int bench_read_environment(struct bench *b, struct err *e)
{
	const char *fault = getenv("PT_COLLBENCH_FAULT");
	const char *delay = getenv("PT_COLLBENCH_DELAY");
	if (delay && parse_delay(delay, &b->o.delay, e))
		return -1;
	return fault ? parse_fault(fault, &b->fault, e) : 0;
}
