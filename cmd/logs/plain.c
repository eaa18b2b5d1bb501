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

/* Returns the rank of a name for the step, 1 to 4; 0: not a name of steps. */
static int rank_step_name(struct span name)
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

/* Ranks of names for the loss: the number with the highest rank is the loss. */
enum { NO_LOSS, VAL_LOSS, ANY_LOSS, MEAN_LOSS, TRAIN_LOSS, KNOWN_LOSS, USER_LOSS };
/* Returns how well a name fits the training loss: a higher rank fits better. */
static int rank_loss_name(const struct log_options *opts, struct span name)
{
	double scale;
	struct span given = mapped_column(opts, name);
	if (given.n)
		return given.n == 4 && !memcmp(given.p, "loss", 4) ? USER_LOSS : NO_LOSS;
	struct span ours = our_column(opts, name, &scale);
	if (ours.n == 4 && !strncasecmp(ours.p, "loss", 4))
		return KNOWN_LOSS;
	if (!name_has_word(name, loss_words))
		return NO_LOSS;
	if (name_has_word(name, train_words))
		return TRAIN_LOSS;
	if (name_has_word(name, val_words))
		return VAL_LOSS;
	return name_has_word(name, mean_words) ? MEAN_LOSS : ANY_LOSS;
}

/* Returns true for "Val. Loss", and false for "val box loss". */
static bool is_val_loss(struct span name)
{
	static const char *const words[] = {"val", "valid", "validation", "eval",
		"evaluation", "dev", "loss", "avg", "average", "mean", NULL};
	int n_words = 0, n_known = 0;
	for (size_t i = 0; i < name.n; n_words++) {
		struct span word = {name.p + i, 0};
		while (i + word.n < name.n && isalnum((unsigned char)word.p[word.n]))
			word.n++;
		i += word.n + 1;
		n_words -= !word.n;
		n_known += word.n && name_has_word(word, words);
	}
	return n_words == n_known && name_has_word(name, loss_words) &&
	       name_has_word(name, val_words);
}

/* Returns true for the days, hours or minutes of a time such as "0m 21s". */
static bool is_time_part(const struct named *f)
{
	return f->unit.n == 1 && strchr("dhm", *f->unit.p);
}

/* Chooses step and epoch; two numbers without a name are epoch and step: [1/5][100/200]. */
static void choose_step(struct roles *r, const struct named *f, int n)
{
	int best = 0;
	for (int i = 0; i < n; i++) {
		int rank = rank_step_name(f[i].name);
		bool is_epoch =
			f[i].name.n && name_has_word(last_word(f[i].name), epoch_words);
		if (step_of_number(&f[i]) < 0)
			continue;
		if (is_epoch && r->epoch < 0)
			r->epoch = i;
		else if (best == 1 && rank == 1 && r->epoch < 0)
			r->epoch = r->step, r->step = i;
		else if (rank > best)
			r->step = i, best = rank;
	}
}

struct roles find_roles(
	const struct log_options *opts, struct span line, const struct named *f, int n)
{
	struct roles r = {-1, -1, -1, false};
	int loss = NO_LOSS;
	choose_step(&r, f, n);
	for (int i = 0; i < n; i++) {
		int rank = f[i].name.n ? rank_loss_name(opts, f[i].name) : NO_LOSS;
		if (rank > loss)
			r.loss = i, loss = rank;
	}
	if (r.loss < 0)
		return r;
	const char *name = f[r.loss].name.p;
	struct span prefix = {line.p, (size_t)(name - line.p)};
	bool names_training = loss == TRAIN_LOSS || loss == USER_LOSS;
	r.is_evaluation =
		loss == VAL_LOSS || (!names_training && name_has_word(prefix, val_words));
	return r;
}

static void copy_name(char out[static 32], struct span name)
{
	snprintf(out, 32, "%.*s", (int)min64((int64_t)name.n, 31), name.p);
}

/* Counts a training row and its form, for plain_detect() and plain_warn(). */
static void count_row(
	struct build *b, const struct roles *r, const struct named *f, int n)
{
	struct plain *s = &b->plain;
	bool by_epoch = r->step < 0;
	struct span step = f[by_epoch ? r->epoch : r->step].name;
	if (!s->rows) {
		copy_name(s->step, step.n ? step : SPAN("n/total"));
		copy_name(s->loss, f[r->loss].name);
		s->by_epoch = by_epoch;
	}
	s->falls += s->rows && b->line.step < s->last;
	s->last = b->line.step;
	s->rows++;
	count_form(s->forms, f, n);
}

/* Sets the columns of a row. Numbers before step, epoch and loss are a logger's: ignored. */
static void set_row_columns(
	struct build *b, const struct roles *r, const struct named *f, int n)
{
	int64_t step = b->line.step;
	bool has_val_loss = r->is_evaluation;
	int first = r->loss;
	if (r->step >= 0 && r->step < first)
		first = r->step;
	if (r->epoch >= 0 && r->epoch < first)
		first = r->epoch;
	set_column_from(
		b, step, r->is_evaluation ? SPAN("val_loss") : SPAN("loss"), &f[r->loss]);
	if (r->epoch >= 0 && r->step >= 0)
		build_set(b, step, SPAN("epoch"), f[r->epoch].v);
	for (int i = first; i < n; i++) {
		bool is_used = i == r->epoch || i == r->step || i == r->loss;
		bool is_val = is_val_loss(f[i].name);
		if (is_used || rank_step_name(f[i].name) || is_time_part(&f[i]) ||
			(is_val && has_val_loss))
			continue;
		set_column_from(b, step, is_val ? SPAN("val_loss") : f[i].name, &f[i]);
		has_val_loss |= is_val;
	}
}

/* Adds the named numbers of a line of text to b if one is a loss and there is a step or
 * epoch. Returns true for a row. */
bool parse_plain_line(struct build *b, struct span line)
{
	struct named f[MAX_NAMED];
	int n = find_named_numbers(line, f);
	struct roles r = find_roles(b->opts, line, f, n);
	int64_t epoch = r.epoch < 0 ? b->plain.epoch : step_of_number(&f[r.epoch]);
	if (r.loss < 0 && r.epoch >= 0)
		b->plain.epoch = epoch; /* a line before the rows of the epoch */
	if (r.loss < 0 || is_other_rank(f, n))
		return false;
	/* If other rows have steps, a row with only an epoch is about the whole epoch. */
	bool is_epoch_summary = r.step < 0 && b->plain.rows && !b->plain.by_epoch;
	bool has_step = (r.step >= 0 || r.epoch >= 0) && !is_epoch_summary;
	if (!has_step && !(r.is_evaluation && b->line.trained >= 0))
		return false;
	int64_t step = !has_step    ? b->line.trained
		       : r.step < 0 ? epoch
				    : step_in_epochs(b, epoch, step_of_number(&f[r.step]),
					      f[r.step].total);
	if (r.is_evaluation)
		build_begin_row(b, step, false);
	else
		begin_named_row(b, step);
	if (r.step >= 0 && epoch < 0 && f[r.step].total > 0)
		build_set_total(b, f[r.step].total);
	set_row_columns(b, &r, f, n);
	if (!r.is_evaluation)
		count_row(b, &r, f, n);
	build_set_time(b, step, time_of_line(line));
	return true;
}

/* Rejects prose: it may have the word loss and numbers, but neither one form nor rising steps. */
bool plain_detect(const struct log_options *opts, struct span sample)
{
	enum { MIN_STEPS = 4, RESUMED_ONCE_IN = 20 };
	const struct log_format plain = {.name = "plain", .line = parse_plain_line};
	struct build b;
	int64_t max = 0, steps = 0;
	build_init(&b, opts);
	format_parse_sample(&b, &plain, sample);
	for (int i = 0; i < MAX_FORMS; i++)
		max = max64(max, b.plain.forms[i].n);
	for (int i = 0; i < b.n_series; i++)
		steps = b.series[i].column == COL_LOSS ? b.series[i].n : steps;
	bool is_plain = steps >= MIN_STEPS && 2 * max >= b.plain.rows &&
			b.plain.falls * RESUMED_ONCE_IN <= b.plain.rows;
	build_release(&b);
	return is_plain;
}

void plain_warn(const struct build *b, const char *name)
{
	scoped_str epochs = {0};
	const struct plain *s = &b->plain;
	if (s->by_epoch)
		str_puts(&epochs, " (an epoch)");
	else if (b->epochs.length)
		str_printf(&epochs, " (restarts in each epoch of %lld)",
			(long long)b->epochs.length);
	warn("%s: unknown log format: '%s'%s is read as the step, and '%s' as the loss; "
	     "specify --pattern or --format to read other numbers",
		name, s->step, epochs.len ? epochs.s : "", s->loss);
}
