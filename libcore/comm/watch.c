/*
 * The watchdog: a rank that waits long asks all others where they are. Those that wait
 * answer with what they wait for, and those that work answer as soon as they poll; so who
 * is silent is stopped, stuck or gone, and gets named. As long as somebody gets on, nobody
 * is.
 *
 * Time in which this process itself was stopped (with its job, or with its machine) does
 * not count: everybody then wakes up late, and nobody is missing.
 */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

enum { WATCH_TAG = 1 << 18 };
enum kind { ASK, ANSWER };

struct letter {
	int64_t kind;
	uint64_t question; /* which of the asking rank's */
	int64_t waits;	   /* or else it works */
	uint64_t seq;
	int64_t n_bytes;
	char what[24], group[16];
	int64_t color;
};

/* A letter that is on its way keeps its room. */
struct outgoing {
	struct letter letter;
	struct comm_req sent;
};

static struct {
	struct comm *world;
	double seconds;
	bool held;
	double read; /* when letters were last read */
	/* this rank's own wait, if it has one */
	const struct comm *group;
	const struct comm_req *what;
	double waited, counted;		   /* up to when */
	uint64_t question, first_question; /* that counts, of this wait */
	uint64_t before_wait;		   /* the last question of earlier waits */
	struct letter *heard;		   /* [size]; question 0: nothing */
	struct outgoing *out;		   /* [size] */
} watch;

void comm_watch(struct comm *world, double seconds)
{
	if (!world->ops)
		return;
	if (!watch.world) {
		watch.heard = xcalloc((size_t)world->size, sizeof(*watch.heard));
		watch.out = xcalloc((size_t)world->size, sizeof(*watch.out));
	}
	watch.world = world;
	watch.seconds = seconds;
}

void comm_watch_end(void)
{
	bool all_sent = true;
	for (int r = 0; watch.out && r < watch.world->size; r++)
		all_sent &= !watch.out[r].sent.n;
	free(watch.heard);
	if (all_sent) /* else MPI still has the letters */
		free(watch.out);
	watch.world = NULL;
}

void comm_watch_hold(bool hold)
{
	watch.held = hold;
}

void comm_watch_wait(const struct comm *group, const struct comm_req *what)
{
	watch.group = group;
	watch.what = what;
	watch.waited = 0;
	watch.before_wait = watch.question;
	watch.first_question = watch.question + 1;
	watch.counted = clock_seconds();
}

/* ---- letters --------------------------------------------------------------------- */

/* What this rank waits for. */
static void tell_wait(struct letter *l)
{
	l->waits = 1;
	l->seq = watch.what->seq;
	l->n_bytes = watch.what->n_bytes;
	l->color = watch.group->color;
	snprintf(l->what, sizeof(l->what), "%s", watch.what->what);
	snprintf(l->group, sizeof(l->group), "%s", watch.group->name);
}

static void post(int rank, enum kind kind, uint64_t question)
{
	struct outgoing *o = &watch.out[rank];
	if (!comm_test(watch.world, &o->sent))
		return; /* it has not taken the last one: another says no more */
	o->letter = (struct letter){.kind = kind, .question = question};
	if (watch.what)
		tell_wait(&o->letter);
	comm_send_begin(
		watch.world, &o->letter, sizeof(o->letter), rank, WATCH_TAG, &o->sent);
}

static bool same_wait(const struct letter *a, const struct letter *b)
{
	return a->seq == b->seq && a->color == b->color && !strcmp(a->what, b->what) &&
	       !strcmp(a->group, b->group);
}

/* Is a rank at work, or has it gone from one wait to another since it was last asked? */
static bool gets_on(const struct letter *before, const struct letter *now)
{
	return !now->waits || (before->waits && before->question > watch.before_wait &&
				      !same_wait(before, now));
}

/* A rank gets on, which may take its time: all questions are asked anew. */
static void begin_again(void)
{
	if (watch.waited > watch.seconds / 2)
		watch.waited = watch.seconds / 2;
	watch.first_question = watch.question + 1;
}

static void read_letters(void)
{
	struct letter l;
	int from;
	while (watch.world->ops->take(watch.world, &l, sizeof(l), WATCH_TAG, &from)) {
		l.what[sizeof(l.what) - 1] = l.group[sizeof(l.group) - 1] = '\0';
		if (l.kind == ASK) {
			post(from, ANSWER, l.question);
		} else if (watch.what && l.question >= watch.first_question) {
			bool on = gets_on(&watch.heard[from], &l);
			watch.heard[from] = l;
			if (on)
				begin_again();
		}
	}
}

static void ask_all(void)
{
	watch.question++;
	for (int r = 0; r < watch.world->size; r++)
		if (r != watch.world->rank)
			post(r, ASK, watch.question);
}

/* ---- the verdict ----------------------------------------------------------------- */

enum standing { SILENT, HERE, ELSEWHERE };

/* Of the last two questions, so that a rank that was stopped in between is silent. */
static enum standing standing_of(int rank)
{
	const struct letter *l = &watch.heard[rank];
	if (rank == watch.world->rank)
		return HERE;
	if (l->question < watch.first_question || l->question + 1 < watch.question)
		return SILENT;
	struct letter mine = {0};
	tell_wait(&mine);
	return same_wait(l, &mine) ? HERE : ELSEWHERE;
}

/* "rank 3", "ranks 0-2, 5" of those that stand so; false: there are none. */
static bool list_ranks(struct str *out, enum standing standing)
{
	struct str list = {0};
	int n = 0, size = watch.world->size;
	for (int first = 0, r; first < size; first = r + 1) {
		for (r = first; r < size && standing_of(r) == standing; r++)
			n++;
		if (r == first)
			continue;
		str_printf(&list, "%s%d", list.len ? ", " : "", first);
		if (r - first > 1)
			str_printf(&list, "-%d", r - 1);
	}
	if (n)
		str_printf(out, "rank%s %s", n == 1 ? "" : "s", list.s);
	str_free(&list);
	return n > 0;
}

static void describe(struct str *out)
{
	char bytes[NUM_TEXT];
	str_printf(out, "waited %g s for %s number %llu of %s on %s: ", watch.seconds,
		watch.what->what, (unsigned long long)watch.what->seq,
		text_bytes(bytes, (double)watch.what->n_bytes), watch.group->name);
	if (list_ranks(out, SILENT))
		str_puts(out,
			" did not come, and did not answer (stopped, stuck or gone?); ");
	list_ranks(out, HERE);
	str_puts(out, " waited there");
	for (int r = 0; r < watch.world->size; r++) {
		const struct letter *l = &watch.heard[r];
		bool namesake = !strcmp(l->group, watch.group->name) &&
				l->color != watch.group->color;
		if (standing_of(r) == ELSEWHERE)
			str_printf(out, "; rank %d waited for %s number %llu on %s%s", r,
				l->what, (unsigned long long)l->seq,
				namesake ? "another " : "", l->group);
	}
}

/* Of those that waited, the lowest speaks; others only if it did not, after a moment. */
static void give_up(void)
{
	enum { MOMENT = 2 };
	struct str text = {0};
	for (int r = 0; r < watch.world->rank; r++)
		if (standing_of(r) != SILENT && watch.waited < watch.seconds + MOMENT)
			return;
	describe(&text);
	die(EX_FAILED, "%s", text.s);
}

void comm_watch_look(void)
{
	const double often = 0.05, stopped = 1;
	if (!watch.world)
		return;
	double now = clock_seconds();
	if (now - watch.read < often)
		return;
	watch.read = now;
	read_letters();
	if (!watch.what || watch.held || watch.seconds <= 0)
		return;
	double since = now - watch.counted;
	watch.counted = now;
	watch.waited += since < stopped ? since : stopped;
	uint64_t asked = watch.question + 1 - watch.first_question;
	if (watch.waited > watch.seconds * (0.5 + 0.125 * (double)asked))
		ask_all();
	if (watch.waited > watch.seconds && asked >= 3)
		give_up();
}
