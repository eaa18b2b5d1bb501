/* Lines of an unknown program with a step, a loss and other numbers with names. Tried after all
 * formats. */
#include "logs/named.h"

#include <ctype.h>
#include <strings.h>

static const char *const val_words[] = {
	"val", "valid", "validation", "eval", "evaluation", "test", "dev", NULL};
static const char *const loss_words[] = {"loss", NULL};
static const char *const train_words[] = {"train", "training", NULL};
static const char *const mean_words[] = {
	"avg", "average", "mean", "running", "total", "batch", "step", "epoch", NULL};
static const char *const epoch_words[] = {"epoch", "epochs", "ep", NULL};
/* Names of steps: of the whole run first, of an epoch last. */
static const char *const run_words[] = {"global", NULL};
static const char *const step_words[] = {"step", "steps", "iter", "iters", "iteration",
	"iterations", "itr", "update", "updates", NULL};
static const char *const batch_words[] = {"batch", "minibatch", "it", NULL};

/* ---- the meaning of a number -------------------------------------------------------------- */

/* Returns how likely a name means the steps; 0: it does not. */
static int rank_of_step(struct span name)
{
	struct span word = last_word(name);
	if (!name.n)
		return 1; /* progress */
	if (name_has_word(word, batch_words))
		return 2;
	if (!name_has_word(word, step_words))
		return 0;
	return name_has_word(name, run_words) ? 4 : 3;
}

/* Returns how likely a name means the loss; 0: it does not. */
static int rank_of_loss(const struct log_how *how, struct span name)
{
	double scale;
	struct span given = given_column(how, name);
	if (given.n)
		return given.n == 4 && !memcmp(given.p, "loss", 4) ? 6 : 0;
	struct span ours = name_of_column(how, name, &scale);
	if (ours.n == 4 && !strncasecmp(ours.p, "loss", 4))
		return 5;
	if (!name_has_word(name, loss_words))
		return 0;
	if (name_has_word(name, train_words))
		return 4;
	if (name_has_word(name, val_words))
		return 1;
	return name_has_word(name, mean_words) ? 3 : 2;
}

/* Returns true for "Val. Loss", and false for "val box loss". */
static bool is_val_loss(struct span name)
{
	static const char *const words[] = {"val", "valid", "validation", "eval",
		"evaluation", "dev", "loss", "avg", "average", "mean", NULL};
	int n = 0, known = 0;
	for (size_t i = 0; i < name.n; n++) {
		struct span word = {name.p + i, 0};
		while (i + word.n < name.n && isalnum((unsigned char)word.p[word.n]))
			word.n++;
		i += word.n + 1;
		n -= !word.n;
		known += word.n && name_has_word(word, words);
	}
	return n == known && name_has_word(name, loss_words) &&
	       name_has_word(name, val_words);
}

/* Returns true for a number as in "0m 21s". */
static bool is_piece_of_time(const struct named *f)
{
	return f->unit.n == 1 && strchr("dhm", *f->unit.p);
}

/* Finds step and epoch; two numbers without a name are epoch and step: [1/5][100/200]. */
static void find_step(struct roles *r, const struct named *f, int n)
{
	int best = 0;
	for (int i = 0; i < n; i++) {
		int rank = rank_of_step(f[i].name);
		bool epoch =
			f[i].name.n && name_has_word(last_word(f[i].name), epoch_words);
		if (named_step(&f[i]) < 0)
			continue;
		if (epoch && r->epoch < 0)
			r->epoch = i;
		else if (best == 1 && rank == 1 && r->epoch < 0)
			r->epoch = r->step, r->step = i;
		else if (rank > best)
			r->step = i, best = rank;
	}
}

struct roles find_roles(
	const struct log_how *how, struct span line, const struct named *f, int n)
{
	struct roles r = {-1, -1, -1, false};
	int loss = 0;
	find_step(&r, f, n);
	for (int i = 0; i < n; i++) {
		int rank = f[i].name.n ? rank_of_loss(how, f[i].name) : 0;
		if (rank > loss)
			r.loss = i, loss = rank;
	}
	if (r.loss < 0)
		return r;
	const char *name = f[r.loss].name.p;
	struct span before = {line.p, (size_t)(name - line.p)};
	bool names_training = loss == 4 || loss == 6;
	r.evaluation = loss == 1 || (!names_training && name_has_word(before, val_words));
	return r;
}

/* ---- rows ---------------------------------------------------------------------------------- */

static void keep_name(char to[static 32], struct span name)
{
	snprintf(to, 32, "%.*s", (int)min64((int64_t)name.n, 31), name.p);
}

/* Updates the statistics of training rows, for plain_detect() and plain_warn(). */
static void note_row(struct build *b, const struct roles *r, const struct named *f, int n)
{
	struct plain *s = &b->plain;
	bool by_epoch = r->step < 0;
	struct span step = f[by_epoch ? r->epoch : r->step].name;
	if (!s->rows) {
		keep_name(s->step, step.n ? step : SPAN("n/total"));
		keep_name(s->loss, f[r->loss].name);
		s->by_epoch = by_epoch;
	}
	s->falls += s->rows && b->line.step < s->last;
	s->last = b->line.step;
	s->rows++;
	count_form(s->forms, f, n);
}

/* Sets columns from the first of step, epoch and loss on: earlier numbers are a logger's. */
static void set_columns(
	struct build *b, const struct roles *r, const struct named *f, int n)
{
	int64_t step = b->line.step;
	bool known = !r->evaluation; /* false: the row has a val_loss */
	int first = r->loss;
	if (r->step >= 0 && r->step < first)
		first = r->step;
	if (r->epoch >= 0 && r->epoch < first)
		first = r->epoch;
	set_named_as(
		b, step, r->evaluation ? SPAN("val_loss") : SPAN("loss"), &f[r->loss]);
	if (r->epoch >= 0 && r->step >= 0)
		build_set(b, step, SPAN("epoch"), f[r->epoch].v);
	for (int i = first; i < n; i++) {
		bool used = i == r->epoch || i == r->step || i == r->loss;
		bool val_loss = is_val_loss(f[i].name);
		if (used || rank_of_step(f[i].name) || is_piece_of_time(&f[i]) ||
			(val_loss && !known))
			continue;
		set_named_as(b, step, val_loss ? SPAN("val_loss") : f[i].name, &f[i]);
		known &= !val_loss;
	}
}

bool line_plain(struct build *b, struct span line)
{
	struct named f[MAX_NAMED];
	int n = find_named(line, f);
	struct roles r = find_roles(b->how, line, f, n);
	int64_t epoch = r.epoch < 0 ? b->plain.epoch : named_step(&f[r.epoch]);
	if (r.loss < 0 && r.epoch >= 0)
		b->plain.epoch = epoch; /* a line before the rows of the epoch */
	if (r.loss < 0 || is_other_rank(f, n))
		return false;
	/* If other rows have steps, a row with only an epoch is about the whole epoch. */
	bool of_epoch = r.step < 0 && b->plain.rows && !b->plain.by_epoch;
	bool has_step = (r.step >= 0 || r.epoch >= 0) && !of_epoch;
	if (!has_step && !(r.evaluation && b->line.trained >= 0))
		return false;
	int64_t step = !has_step    ? b->line.trained
		       : r.step < 0 ? epoch
				    : step_in_epochs(b, epoch, named_step(&f[r.step]),
					      f[r.step].total);
	if (r.evaluation)
		build_row(b, step, false);
	else
		begin_named_row(b, step);
	if (r.step >= 0 && epoch < 0 && f[r.step].total > 0)
		build_total(b, f[r.step].total);
	set_columns(b, &r, f, n);
	if (!r.evaluation)
		note_row(b, &r, f, n);
	build_clock(b, step, time_of_line(line));
	return true;
}

/* ---- detection ---------------------------------------------------------------------------- */

/* Rejects prose: it may have the word loss and numbers, but neither one form nor rising steps. */
bool plain_detect(const struct log_how *how, struct span sample)
{
	enum { MIN_STEPS = 4, RESUMED_ONCE_IN = 20 };
	const struct log_format plain = {.name = "plain", .line = line_plain};
	struct build b;
	int64_t max = 0, steps = 0;
	build_init(&b, how);
	format_sample(&b, &plain, sample);
	for (int i = 0; i < MAX_FORMS; i++)
		max = max64(max, b.plain.forms[i].n);
	for (int i = 0; i < b.n_series; i++)
		steps = b.series[i].column == COL_LOSS ? b.series[i].n : steps;
	bool is = steps >= MIN_STEPS && 2 * max >= b.plain.rows &&
		  b.plain.falls * RESUMED_ONCE_IN <= b.plain.rows;
	build_free(&b);
	return is;
}

void plain_warn(const struct build *b, const char *name)
{
	scoped_str epochs = {0};
	const struct plain *s = &b->plain;
	if (s->by_epoch)
		str_puts(&epochs, ", an epoch");
	else if (b->epochs.length)
		str_printf(&epochs, ", which restarts in each epoch of %lld",
			(long long)b->epochs.length);
	warn("%s: unknown format: the step is '%s'%s, and the loss is '%s'; "
	     "--pattern or --format can read it otherwise",
		name, s->step, epochs.len ? epochs.s : "", s->loss);
}
