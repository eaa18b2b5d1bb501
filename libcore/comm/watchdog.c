/* The watchdog: a rank that waits long asks all other ranks for their state. Waiting ranks answer
 * with their operation, computing ranks at their next poll. A rank that does not answer is
 * stopped, stuck or dead, and is reported. While any rank makes progress, none is missing.
 *
 * Time in which this process itself was stopped (with its job, or with its machine) does not count:
 * then all ranks continue late, and none is missing. */
#include "comm/comm_internal.h"

enum kind { ASK, ANSWER };

struct watch_msg {
	int64_t kind;
	uint64_t question; /* number of the question, counted by the asking rank */
	int64_t waits;	   /* 0: the rank computes */
	uint64_t seq;
	int64_t n_bytes;
	char what[24], group[24];
	int64_t color;
};

/* A message must stay in memory until it is sent. */
struct outgoing {
	struct watch_msg msg;
	struct comm_requests sent;
};

static struct {
	struct comm *world;
	double seconds;
	bool paused;
	double read; /* clock when messages were last read */
	/* This rank's wait; NULL: none. */
	const struct comm *group;
	const struct comm_what *what;
	double waited, counted;	  /* seconds waited; clock when they were counted */
	uint64_t question;	  /* the last question */
	uint64_t first_question;  /* the first question that counts in this wait */
	uint64_t before_wait;	  /* the last question of earlier waits */
	struct watch_msg *answer; /* [size]; question 0: none */
	struct outgoing *out;	  /* [size] */
} watch;

void comm_watchdog(struct comm *world, double seconds)
{
	if (!world->ops)
		return;
	if (!watch.world) {
		watch.answer = xcalloc((size_t)world->size, sizeof(*watch.answer));
		watch.out = xcalloc((size_t)world->size, sizeof(*watch.out));
		for (int r = 0; r < world->size; r++)
			watch.out[r].sent.c = world;
	}
	watch.world = world;
	watch.seconds = seconds;
}

void watchdog_end(void)
{
	bool all_sent = true;
	for (int r = 0; watch.out && r < watch.world->size; r++)
		all_sent &= !watch.out[r].sent.n;
	for (int r = 0; watch.out && all_sent && r < watch.world->size; r++)
		comm_requests_release(&watch.out[r].sent);
	free(watch.answer);
	if (all_sent) /* else MPI still uses the messages */
		free(watch.out);
	watch.world = NULL;
}

void comm_watchdog_pause(bool pause)
{
	watch.paused = pause;
}

void watchdog_wait(const struct comm *group, const struct comm_what *what)
{
	watch.group = group;
	watch.what = what;
	watch.waited = 0;
	watch.before_wait = watch.question;
	watch.first_question = watch.question + 1;
	watch.counted = clock_seconds();
}

/* ---- messages --------------------------------------------------------------------- */

/* Sets the members of *msg that describe the operation that this rank waits for. */
static void describe_wait(struct watch_msg *msg)
{
	msg->waits = 1;
	msg->seq = watch.what->seq;
	msg->n_bytes = watch.what->n_bytes;
	msg->color = watch.group->color;
	snprintf(msg->what, sizeof(msg->what), "%s", watch.what->name);
	snprintf(msg->group, sizeof(msg->group), "%s", watch.group->name);
}

/* Sends a question or an answer, unless the previous message to that rank is still in flight. */
static void send_message(int rank, enum kind kind, uint64_t question)
{
	struct outgoing *o = &watch.out[rank];
	if (!comm_test(&o->sent))
		return;
	o->msg = (struct watch_msg){.kind = kind, .question = question};
	if (watch.what)
		describe_wait(&o->msg);
	comm_send(&o->sent, &o->msg, sizeof(o->msg), rank, TAG_WATCHDOG);
	comm_start(&o->sent);
}

static bool same_wait(const struct watch_msg *a, const struct watch_msg *b)
{
	return a->seq == b->seq && a->color == b->color && !strcmp(a->what, b->what) &&
	       !strcmp(a->group, b->group);
}

/* Returns true if a rank computes, or waits for another operation than in its previous answer. */
static bool makes_progress(const struct watch_msg *prev, const struct watch_msg *now)
{
	return !now->waits || (prev->waits && prev->question > watch.before_wait &&
				      !same_wait(prev, now));
}

/* Ignores all answers so far, since a rank makes progress. */
static void restart_questions(void)
{
	if (watch.waited > watch.seconds / 2)
		watch.waited = watch.seconds / 2;
	watch.first_question = watch.question + 1;
}

/* Reads all messages that arrived; answers questions. Progress restarts the questions. */
static void read_messages(void)
{
	struct watch_msg m;
	int rank;
	while (watch.world->ops->try_recv(
		watch.world, &m, sizeof(m), TAG_WATCHDOG, &rank)) {
		m.what[sizeof(m.what) - 1] = m.group[sizeof(m.group) - 1] = '\0';
		if (m.kind == ASK) {
			send_message(rank, ANSWER, m.question);
		} else if (watch.what && m.question >= watch.first_question) {
			bool progress = makes_progress(&watch.answer[rank], &m);
			watch.answer[rank] = m;
			if (progress)
				restart_questions();
		}
	}
}

static void ask_all_ranks(void)
{
	watch.question++;
	for (int r = 0; r < watch.world->size; r++)
		if (r != watch.world->rank)
			send_message(r, ASK, watch.question);
}

/* ---- the report ------------------------------------------------------------------ */

/* A rank has not answered; waits for the same operation as this rank; waits for another one. */
enum standing { SILENT, SAME_WAIT, OTHER_WAIT };

/* Returns the standing of a rank, by its answers to the last two questions only. */
static enum standing rank_standing(int rank)
{
	const struct watch_msg *msg = &watch.answer[rank];
	if (rank == watch.world->rank)
		return SAME_WAIT;
	if (msg->question < watch.first_question || msg->question + 1 < watch.question)
		return SILENT;
	struct watch_msg own_wait = {0};
	describe_wait(&own_wait);
	return same_wait(msg, &own_wait) ? SAME_WAIT : OTHER_WAIT;
}

/* Appends the ranks with that standing, e.g. "ranks 0-2, 5"; false: there are none. */
static bool append_ranks(struct str *out, enum standing standing)
{
	scoped_str list = {0};
	int n = 0, size = watch.world->size;
	for (int first = 0, r; first < size; first = r + 1) {
		for (r = first; r < size && rank_standing(r) == standing; r++)
			n++;
		if (r == first)
			continue;
		str_printf(&list, "%s%d", list.len ? ", " : "", first);
		if (r - first > 1)
			str_printf(&list, "-%d", r - 1);
	}
	if (n)
		str_printf(out, "rank%s %s", plural(n), list.s);
	return n > 0;
}

/* Describes the operation that was waited for, and what each rank does. */
static void describe_timeout(struct str *out)
{
	char bytes[NUM_TEXT];
	str_printf(out, "waited %g s for %s number %llu of %s on %s: ", watch.seconds,
		watch.what->name, (unsigned long long)watch.what->seq,
		text_bytes(bytes, (double)watch.what->n_bytes), watch.group->name);
	if (append_ranks(out, SILENT))
		str_puts(out,
			" did not start it, and did not answer (stopped, hung or ended?); ");
	append_ranks(out, SAME_WAIT);
	str_puts(out, " waited for this operation");
	for (int r = 0; r < watch.world->size; r++) {
		const struct watch_msg *msg = &watch.answer[r];
		bool namesake = !strcmp(msg->group, watch.group->name) &&
				msg->color != watch.group->color;
		if (rank_standing(r) == OTHER_WAIT)
			str_printf(out, "; rank %d waited for %s number %llu on %s%s", r,
				msg->what, (unsigned long long)msg->seq,
				namesake ? "another " : "", msg->group);
	}
	if (flight_record_path())
		str_printf(out, "; the last operations of this rank: %s",
			flight_record_path());
}

/* Ends the job with a report, on the lowest rank that answers. The other ranks return at first. */
static void end_job(void)
{
	enum { MOMENT = 2 };
	struct str text = {0};
	bool silent = false;
	for (int r = 0; r < watch.world->size; r++)
		silent |= rank_standing(r) == SILENT;
	if (watch.what->patient && !silent)
		return;
	for (int r = 0; r < watch.world->rank; r++)
		if (rank_standing(r) != SILENT && watch.waited < watch.seconds + MOMENT)
			return;
	describe_timeout(&text);
	die(EX_FAILED, "%s", text.s);
}

void watchdog_poll(void)
{
	const double interval = 0.05, max_elapsed = 1;
	if (!watch.world)
		return;
	double now = clock_seconds();
	if (now - watch.read < interval)
		return;
	watch.read = now;
	read_messages();
	if (!watch.what || watch.paused || watch.seconds <= 0)
		return;
	double elapsed = now - watch.counted;
	watch.counted = now;
	watch.waited += elapsed < max_elapsed ? elapsed : max_elapsed;
	uint64_t n_asked = watch.question + 1 - watch.first_question;
	if (watch.waited > watch.seconds * (0.5 + 0.125 * (double)n_asked))
		ask_all_ranks();
	if (watch.waited > watch.seconds && n_asked >= 3)
		end_job();
}
