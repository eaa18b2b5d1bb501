/* The timeline of some steps (--trace): every rank records it, and rank 0 writes it to one file. */
#include "train/train_internal.h"

#include <errno.h>
#include <unistd.h>

#include "base/file.h"
#include "base/trace.h"

/* Sets the steps to trace. Creates the file now, to detect a wrong path, unless it is a FIFO, where
 * the reader would reach its end. */
int trace_open(struct run *r, const struct train_opts *o, struct err *e)
{
	enum { DEFAULT_STEP = 3 };
	if (!o->trace)
		return 0;
	if (o->resolved.worker == 0) {
		r->trace.first = r->trace.last = min64(DEFAULT_STEP, o->steps);
		if (o->trace_steps)
			options_parse_steps(o, "trace-steps", o->trace_steps,
				&r->trace.first, &r->trace.last, e);
		bool creates = run_is_first(r) && !file_is_fifo(o->trace);
		int fd = creates ? file_begin(o->trace, e) : -1;
		if (fd >= 0)
			file_end(fd, o->trace, 0, e);
	}
	return comm_agree(r->all, e);
}

static uint64_t take_stamp(void *d)
{
	return device_stamp(d);
}

static double read_stamp(void *d, uint64_t stamp)
{
	return device_stamp_time(d, stamp);
}

static void use_stamps(struct device *d)
{
	device_stamps_clear(d);
	device_stamp(d);
	trace_use_stamps(&(struct trace_stamps){take_stamp, read_stamp, d});
}

void trace_begin_step(struct run *r)
{
	int64_t step = r->t.step + 1;
	if (step >= r->trace.first && step <= r->trace.last && !trace_on) {
		if (r->t.d.discrete)
			use_stamps(&r->t.d);
		comm_barrier(r->world); /* so that times are relative to one event */
		trace_start();
	}
	trace_begin("step", step);
}

/* Appends the events that this rank has recorded. */
static void append_rank_events(const struct run *r, struct str *out)
{
	scoped_str position = {0};
	int coordinates[N_AXES];
	mesh_coordinates(r->t.mesh.degree, r->world->rank, coordinates);
	for (int a = 0; a < N_AXES; a++)
		if (r->t.mesh.degree[a] > 1)
			str_printf(&position, " %s=%d", axis_names[a], coordinates[a]);
	scoped_ptr char *name =
		text_printf("rank %d%s", r->world->rank, position.s ? position.s : "");
	trace_print(out, r->world->rank, name);
}

/* Writes text, unless an error has occurred. */
static void write_part(
	int fd, const char *path, const char *text, size_t len, struct err *e)
{
	if (fd >= 0 && !e->code && write_all(fd, text, len))
		err_errno(e, path);
}

/* Writes the events of all ranks to the file, on rank 0, and prints its name. The last line has
 * no comma, as JSON requires. A failure is a warning and does not end training. Collective over
 * the worker. */
static void write_file(struct run *r)
{
	static const char first[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n",
			  last[] = "\n]}\n";
	const char *path = r->t.o.trace;
	struct err e = {0}, later;
	int fd = run_is_first(r) ? file_begin(path, &e) : -1;
	write_part(fd, path, first, strlen(first), &e);
	for (int rank = 0; rank < r->world->size; rank++) {
		scoped_str text = {0};
		if (rank == r->world->rank)
			append_rank_events(r, &text);
		comm_bcast_str(r->world, &text, rank);
		if (rank == r->world->size - 1)
			text.len -= strlen(",\n");
		write_part(fd, path, text.s, text.len, &e);
	}
	write_part(fd, path, last, strlen(last), &e);
	errno = 0;
	if (fd >= 0)
		file_end(fd, path, e.code ? -1 : 0, e.code ? &later : &e);
	r->trace.failed = e.code != 0;
	if (r->trace.failed)
		warn("--trace: %s", e.msg);
	else if (run_is_first(r))
		info("wrote %s; Perfetto (ui.perfetto.dev) shows it", path);
}

/* Ends the recording and writes the file. */
static void end_trace(struct run *r)
{
	device_wait(&r->t.d);
	trace_stop();
	write_file(r);
	trace_clear();
	trace_use_stamps(NULL);
	r->trace.first = r->trace.last = 0;
}

void trace_end_step(struct run *r)
{
	trace_end();
	if (trace_on && r->t.step >= r->trace.last)
		end_trace(r);
}

void trace_end_run(struct run *r)
{
	if (trace_on) {
		end_trace(r);
	} else if (r->trace.first && run_is_first(r)) {
		unlink(r->t.o.trace);
		warn("--trace: the run had no step from %lld to %lld",
			(long long)r->trace.first, (long long)r->trace.last);
	}
}
