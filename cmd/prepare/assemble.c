/* Pieces to shards. Tokens are counted first, so that the files are created with their final
 * sizes. Documents are written in lanes: one lane for a split by tail, else one per split. A lane
 * takes documents from one stream, or from one stream per source by weight. */
#include "prepare/assembly.h"
#include "prepare/shard_writer.h"

#include <math.h>

/* Prints the first MAX_MESSAGES warnings about broken lines, and adds up the broken lines. */
static int report_broken_lines(
	const struct assembly *a, struct prepared *out, struct err *e)
{
	int64_t n = 0;
	for (int64_t i = 0; i < a->encoding->n_batches; i++) {
		struct piece_view v;
		if (piece_view_read(a, i, &v, e))
			return -1;
		out->n_broken += v.head.n_lines_broken;
		if (!v.head.n_message_bytes || n >= MAX_MESSAGES)
			continue;
		scoped_ptr char *text = xcalloc((size_t)v.head.n_message_bytes + 1, 1);
		int rc = file_read_at(v.fd, "a work file", text,
			(size_t)v.head.n_message_bytes, v.messages, e);
		char *line = text;
		for (char *end; !rc && n < MAX_MESSAGES && (end = strchr(line, '\n'));
			n++) {
			*end = '\0';
			warn("%s", line);
			line = end + 1;
		}
		if (rc)
			return -1;
	}
	if (out->n_broken)
		warn("%lld broken %s%s skipped", (long long)out->n_broken,
			inputs_have_tables(a->encoding->inputs) ? "row" : "line",
			plural(out->n_broken));
	return 0;
}

static void count_fate(struct prepared *out, enum fate fate)
{
	out->n_read++;
	out->n_short += fate == FATE_SHORT;
	out->n_long += fate == FATE_LONG;
	out->n_not_kept += fate == FATE_NOT_KEEP;
	out->n_dropped += fate == FATE_DROP;
	out->n_duplicate += fate == FATE_DUPLICATE;
}

/* Counts documents by fate, and the tokens of each lane and source. JSONL and tables are
 * identified by their documents, so that their shards do not depend on the form of the file. */
static int count_documents(struct writing *x, struct prepared *out, struct err *e)
{
	struct walk w;
	struct document d;
	struct hash_state *hash = hash_open();
	int64_t n_bytes = 0;
	int rc;
	walk_begin(&w, x->a);
	while ((rc = walk_next(&w, &d, e)) > 0) {
		hash_add(hash, &d.hash, sizeof(d.hash));
		n_bytes += d.n_bytes;
		count_fate(out, d.fate);
		if (d.fate != FATE_KEPT)
			continue;
		int lane = document_split(x->a, &d) == SPLIT_VAL;
		x->shares[lane][x->n > 1 ? d.source : 0].n_available += d.n_tokens;
		x->documents++;
	}
	walk_end(&w);
	uint64_t all = hash_close(hash);
	if (inputs_have_records(x->a->encoding->inputs)) {
		x->a->info.source_bytes = n_bytes;
		x->a->info.source_xxh3 = all;
	}
	return rc;
}

static int reject_all_dropped(const struct prepared *d, struct err *e)
{
	const struct {
		int64_t n;
		const char *why;
	} all[] = {{d->n_broken, "broken"}, PREPARED_DROPPED(d)};
	scoped_str why = {0};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (all[i].n)
			str_printf(&why, "%s%lld %s", why.len ? ", " : "",
				(long long)all[i].n, all[i].why);
	return err_set(e, EX_DATAERR, "documents read: %lld; none is left: %s",
		(long long)(d->n_read + d->n_broken), why.s);
}

/* Returns how many tokens a split can take from the sources in proportion to their weights (sum:
 * `weights`) before a source must be repeated. */
static double max_unrepeated_tokens(
	const struct writing *x, const struct share *v, double weights)
{
	double total = INFINITY;
	for (int i = 0; i < x->n; i++)
		total = fmin(total,
			floor((double)v[i].n_available *
				(weights / x->a->encoding->inputs->sources[i].weight)));
	return total;
}

/* Divides `total` tokens by weight. Sources that lose most by rounding get the remaining tokens. */
static void divide_by_weight(const struct writing *x, struct share *v, int64_t total,
	double weights, bool repeat)
{
	const struct source *s = x->a->encoding->inputs->sources;
	int64_t left = total;
	for (int i = 0; i < x->n; i++) {
		v[i].n_wanted = (int64_t)((double)total * s[i].weight / weights);
		if (!repeat)
			v[i].n_wanted = min64(v[i].n_wanted, v[i].n_available);
		left -= v[i].n_wanted;
	}
	while (left > 0) {
		double max_lost = -INFINITY;
		int to = -1;
		for (int i = 0; i < x->n; i++) {
			double lost = (double)total * s[i].weight / weights -
				      (double)v[i].n_wanted;
			if (lost > max_lost &&
				(repeat || v[i].n_wanted < v[i].n_available)) {
				max_lost = lost;
				to = i;
			}
		}
		if (to < 0)
			return;
		v[to].n_wanted++;
		left--;
	}
}

/* Sets how many tokens each source of a lane contributes. */
static int set_wanted_tokens(struct writing *x, int lane, struct err *e)
{
	const struct inputs *in = x->a->encoding->inputs;
	struct share *v = x->shares[lane];
	double weights = 0;
	if (!x->a->encoding->p->sources.n) {
		v->n_wanted = v->n_available;
		return 0;
	}
	if (lane && x->a->encoding->p->val_fraction <= 0) /* nothing is for validation */
		return 0;
	for (int i = 0; i < x->n; i++) {
		weights += in->sources[i].weight;
		if (!v[i].n_available)
			return err_set(e, EX_DATAERR, "source '%s': no documents%s",
				in->sources[i].name,
				x->n_lanes == 1 ? ""
				: lane		? " for validation"
						: " for training");
	}
	int64_t requested = lane ? 0 : x->a->encoding->p->mix_tokens;
	int64_t total =
		requested ? requested : (int64_t)max_unrepeated_tokens(x, v, weights);
	divide_by_weight(x, v, total, weights, requested > 0);
	return 0;
}

static int64_t count_wanted_tokens(const struct writing *x, int lane)
{
	int64_t n = 0;
	for (int i = 0; i < x->n; i++)
		n += x->shares[lane][i].n_wanted;
	return n;
}

/* Sets the sizes of the splits; by default, as in nanoGPT, the last tokens are for validation. */
static int set_split_sizes(struct writing *x, const struct prepared *out, struct err *e)
{
	struct assembly *a = x->a;
	int64_t *total = a->info.total;
	if (!x->documents && out->n_read + out->n_broken)
		return reject_all_dropped(out, e);
	if (!x->documents)
		return err_set(e, EX_DATAERR, "%s: the text is empty",
			a->encoding->inputs->n == 1 ? a->encoding->inputs->files[0].name
						    : "all files");
	for (int lane = 0; lane < x->n_lanes; lane++) {
		if (set_wanted_tokens(x, lane, e))
			return -1;
		total[lane] = count_wanted_tokens(x, lane);
	}
	if (!total[SPLIT_TRAIN] && !total[SPLIT_VAL])
		return err_set(e, EX_DATAERR,
			"documents: %lld; all are empty: they have no tokens",
			(long long)x->documents);
	if (x->n_lanes == 1) {
		shard_split(&a->info, total[SPLIT_TRAIN], a->encoding->p->val_fraction);
	} else if (!total[SPLIT_TRAIN] ||
		   (a->encoding->p->val_fraction > 0 && !total[SPLIT_VAL])) {
		return err_set(e, EX_DATAERR, "documents: %lld; none is chosen for %s%s",
			(long long)x->documents,
			total[SPLIT_TRAIN] ? "validation" : "training",
			advice_on(ADVICE_EMPTY_SPLIT));
	}
	a->info.documents = x->documents;
	return 0;
}

/* Sets the sizes of the splits in windows, counted by a first pass over the documents. */
static int set_window_splits(struct writing *x, struct err *e)
{
	struct shard_info *info = &x->a->info;
	int64_t n[N_SPLITS] = {0};
	info->window_tokens = x->a->encoding->p->window;
	for (int lane = 0; lane < x->n_lanes; lane++)
		if (lane_open(x, lane, e) || windows_count(x, lane, &n[lane], e))
			return -1;
	if (!n[SPLIT_TRAIN])
		return err_set(e, EX_DATAERR,
			"no document fits into a window of %lld tokens",
			(long long)info->window_tokens);
	if (x->n_lanes == 1) {
		int64_t all = n[SPLIT_TRAIN];
		n[SPLIT_TRAIN] =
			(int64_t)((double)all * (1 - x->a->encoding->p->val_fraction));
		n[SPLIT_VAL] = all - n[SPLIT_TRAIN];
	}
	for (int s = 0; s < N_SPLITS; s++)
		info->total[s] = n[s] ? n[s] * info->window_tokens + 1 : 0;
	x->train_windows = n[SPLIT_TRAIN];
	return 0;
}

int write_marked(struct writing *x, enum split s, struct token_spans spans, int64_t at,
	struct extent from, int64_t n, struct err *e)
{
	static const struct token_span all_but_first = {1, UINT32_MAX};
	if (!x->a->encoding->records) /* in a text, all tokens that can be predicted */
		spans = (struct token_spans){&all_but_first, 1};
	for (int64_t i = 0, end = at + n; at < end;) {
		while (i < spans.n && spans.v[i].end <= at)
			i++;
		bool counts = i < spans.n && spans.v[i].begin <= at;
		int64_t next = i == spans.n ? end
			       : counts	    ? min64(end, spans.v[i].end)
					    : min64(end, spans.v[i].begin);
		shard_writer_set_counted(x->w, s, counts);
		if (shard_writer_append_raw(x->w, s, from, next - at, e))
			return -1;
		x->out->n_counted += counts ? next - at : 0;
		from.at += (next - at) * x->a->encoding->row_bytes;
		at = next;
	}
	return 0;
}

/* Writes tokens [at, at + n) of a document, training tokens first if the lane has both splits. */
static int write_tokens(struct writing *x, int lane, const struct share *v, int64_t at,
	struct extent from, int64_t n, struct err *e)
{
	int64_t n_tokens[N_SPLITS] = {0}; /* tokens for each split */
	if (x->n_lanes > 1) {
		n_tokens[lane] = n;
	} else {
		n_tokens[SPLIT_TRAIN] = min64(n, x->train_left);
		n_tokens[SPLIT_VAL] = n - n_tokens[SPLIT_TRAIN];
		x->train_left -= n_tokens[SPLIT_TRAIN];
	}
	const struct token_spans spans = {v->stream.spans, v->stream.n_spans};
	for (int s = 0; s < N_SPLITS; s++) {
		if (x->a->encoding->records ? write_marked(x, (enum split)s, spans, at,
						      from, n_tokens[s], e)
					    : shard_writer_append_raw(x->w, (enum split)s,
						      from, n_tokens[s], e))
			return -1;
		at += n_tokens[s];
		from.at += n_tokens[s] * x->a->encoding->row_bytes;
	}
	return 0;
}

/* Writes a document, up to the tokens that the source still has to contribute. */
static int write_document(struct writing *x, int lane, struct share *v, struct err *e)
{
	bool is_val = x->n_lanes > 1 ? lane == SPLIT_VAL : !x->train_left;
	shard_writer_begin_document(x->w, is_val ? SPLIT_VAL : SPLIT_TRAIN);
	x->documents++;
	for (int64_t at = 0, n; v->stream.left && v->n_taken < v->n_wanted; at += n) {
		struct extent from;
		n = stream_tokens(&v->stream, v->n_wanted - v->n_taken, &from, e);
		if (n < 0 || write_tokens(x, lane, v, at, from, n, e))
			return -1;
		v->n_taken += n;
		x->done += (double)n;
		progress_update(&x->bar, x->done, NULL);
	}
	return 0;
}

/* Returns the source with the smallest fraction of its tokens taken; NULL: all are complete. */
static struct share *next_share(const struct writing *x, int lane)
{
	struct share *next = NULL;
	double min_fraction = 1;
	for (int i = 0; i < x->n; i++) {
		struct share *v = &x->shares[lane][i];
		double fraction = (double)v->n_taken / (double)max64(1, v->n_wanted);
		if (v->n_taken < v->n_wanted && (!next || fraction < min_fraction)) {
			next = v;
			min_fraction = fraction;
		}
	}
	return next;
}

int lane_next(struct writing *x, int lane, struct share **from, struct err *e)
{
	struct share *v = *from = next_share(x, lane);
	if (!v)
		return 0;
	int rc = stream_next(&v->stream, e);
	if (!rc) {
		stream_rewind(&v->stream);
		v->n_repeated++;
		rc = stream_next(&v->stream, e);
	}
	if (!rc)
		return err_set(
			e, EX_IOERR, "the work files have no documents of a source");
	return rc;
}

int lane_open(struct writing *x, int lane, struct err *e)
{
	for (int i = 0; i < x->n; i++) {
		struct share *v = &x->shares[lane][i];
		v->stream = (struct document_stream){.a = x->a,
			.source = x->n > 1 ? i : -1,
			.split = x->n_lanes > 1 ? lane : -1};
		if (stream_open(&v->stream, v->n_available, x->n, e))
			return -1;
	}
	return 0;
}

void lane_rewind(struct writing *x, int lane)
{
	for (int i = 0; i < x->n; i++) {
		struct share *v = &x->shares[lane][i];
		stream_rewind(&v->stream);
		v->n_taken = v->n_repeated = 0;
	}
}

/* Closes the streams of a lane, and prints what each source contributed. */
static void lane_close(struct writing *x, int lane)
{
	for (int i = 0; i < x->n; i++)
		stream_close(&x->shares[lane][i].stream);
	for (int i = 0; i < x->n && x->a->encoding->p->sources.n; i++) {
		const struct share *v = &x->shares[lane][i];
		info("source %s: %lld tokens written%s, %lld available, read %lld times",
			x->a->encoding->inputs->sources[i].name, (long long)v->n_wanted,
			lane ? " for validation" : "", (long long)v->n_available,
			(long long)v->n_repeated + 1);
	}
}

/* Writes the documents of a lane in their order, in windows with --window, and closes the
 * lane. */
static int write_lane(struct writing *x, int lane, struct err *e)
{
	struct share *v;
	int rc;
	if (x->a->encoding->p->window) {
		lane_rewind(x, lane); /* windows_count() has opened and read the lane */
		rc = windows_write(x, lane, x->train_windows, e);
	} else {
		rc = lane_open(x, lane, e);
		while (!rc && (rc = lane_next(x, lane, &v, e)) > 0)
			rc = write_document(x, lane, v, e);
	}
	if (rc)
		return -1;
	lane_close(x, lane);
	return 0;
}

/* Opens the writer of shards, writes all lanes and finishes the files. Sets *out. On
 * failure the caller closes x->w. */
static int write_lanes(struct writing *x, struct prepared *out, struct err *e)
{
	const int64_t *total = x->a->info.total;
	x->train_left = total[SPLIT_TRAIN];
	x->w = shard_writer_open(x->a->encoding->p, x->a->encoding->t, &x->a->info, e);
	if (!x->w)
		return -1;
	x->documents = 0;
	progress_begin(&x->bar, "pt-prepare: shards",
		(double)(total[SPLIT_TRAIN] + total[SPLIT_VAL]));
	int rc = 0;
	for (int lane = 0; lane < x->n_lanes && !rc; lane++)
		rc = write_lane(x, lane, e);
	progress_end(&x->bar);
	shard_writer_set_documents(x->w, x->documents);
	return rc || shard_writer_finish(x->w, out, e) ? -1 : 0;
}

int assemble(struct assembly *a, struct prepared *out, struct err *e)
{
	const struct prepare *p = a->encoding->p;
	struct writing x = {.a = a,
		.out = out,
		.n_lanes = p->split_by == SPLIT_BY_TAIL ? 1 : 2,
		.n = p->sources.n ? a->encoding->inputs->n_sources : 1};
	a->frees_pieces = !p->work && x.n_lanes == 1 && !p->sources.n && !p->window;
	for (int lane = 0; lane < N_SPLITS; lane++)
		x.shares[lane] = xcalloc((size_t)x.n, sizeof(struct share));
	int rc = report_broken_lines(a, out, e) || (p->dedup && mark_duplicates(a, e)) ||
		 count_documents(&x, out, e) || set_split_sizes(&x, out, e) ||
		 (p->window && set_window_splits(&x, e)) || write_lanes(&x, out, e);
	shard_writer_close(x.w);
	for (int lane = 0; lane < N_SPLITS; lane++) {
		for (int i = 0; i < x.n; i++)
			stream_close(&x.shares[lane][i].stream);
		free(x.shares[lane]);
	}
	free(a->duplicates);
	return rc ? -1 : 0;
}
