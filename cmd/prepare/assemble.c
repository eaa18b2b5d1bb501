/* Pieces to shards. Tokens are counted first, so that the files are created with their final sizes.
 * Documents are written in lanes: one lane for a split by tail, else one per split. A lane takes
 * documents from one stream, or from one stream per source by weight. */
#include "prepare/assembly.h"
#include "prepare/shard_writer.h"

#include <math.h>

/* ---- counting ------------------------------------------------------------------------------- */

static int print_messages(const struct assembly *a, struct prepared *out, struct err *e)
{
	int64_t n = 0;
	for (int64_t i = 0; i < a->of->n_batches; i++) {
		struct piece_view v;
		if (piece_view(a, i, &v, e))
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
		warn("%lld broken line%s skipped", (long long)out->n_broken,
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

/* Counts documents by fate, and the tokens of each lane and source. */
static int count_documents(struct writing *x, struct prepared *out, struct err *e)
{
	struct walk w;
	struct document d;
	int rc;
	walk_begin(&w, x->a);
	while ((rc = walk_next(&w, &d, e)) > 0) {
		count_fate(out, d.fate);
		if (d.fate != FATE_KEPT)
			continue;
		int lane = document_split(x->a, &d) == SPLIT_VAL;
		x->shares[lane][x->n > 1 ? d.source : 0].has += d.n_tokens;
		x->documents++;
	}
	walk_end(&w);
	return rc;
}

/* ---- how much of each source
 * ------------------------------------------------------------------ */

/* Returns the largest number of tokens of a lane with which no source repeats. */
static double max_unrepeated(
	const struct writing *x, const struct share *v, double weights)
{
	double total = INFINITY;
	for (int i = 0; i < x->n; i++)
		total = fmin(
			total, floor((double)v[i].has *
				       (weights / x->a->of->inputs->sources[i].weight)));
	return total;
}

/* Divides `total` tokens by weight, exactly: sources that lost most by rounding get the rest. */
static void divide_by_weight(const struct writing *x, struct share *v, int64_t total,
	double weights, bool repeat)
{
	const struct source *s = x->a->of->inputs->sources;
	int64_t left = total;
	for (int i = 0; i < x->n; i++) {
		v[i].want = (int64_t)((double)total * s[i].weight / weights);
		if (!repeat)
			v[i].want = min64(v[i].want, v[i].has);
		left -= v[i].want;
	}
	while (left > 0) {
		double most = -INFINITY;
		int to = -1;
		for (int i = 0; i < x->n; i++) {
			double lost =
				(double)total * s[i].weight / weights - (double)v[i].want;
			if (lost > most && (repeat || v[i].want < v[i].has)) {
				most = lost;
				to = i;
			}
		}
		if (to < 0)
			return;
		v[to].want++;
		left--;
	}
}

static int decide_shares(struct writing *x, int lane, struct err *e)
{
	const struct inputs *in = x->a->of->inputs;
	struct share *v = x->shares[lane];
	double weights = 0;
	if (!x->a->of->p->sources.n) {
		v->want = v->has;
		return 0;
	}
	if (lane && x->a->of->p->val_fraction <= 0) /* nothing is for validation */
		return 0;
	for (int i = 0; i < x->n; i++) {
		weights += in->sources[i].weight;
		if (!v[i].has)
			return err_set(e, EX_DATAERR, "source %s has no documents%s",
				in->sources[i].name,
				x->n_lanes == 1 ? ""
				: lane		? " for validation"
						: " for training");
	}
	int64_t asked = lane ? 0 : x->a->of->p->mix_tokens;
	int64_t total = asked ? asked : (int64_t)max_unrepeated(x, v, weights);
	divide_by_weight(x, v, total, weights, asked > 0);
	return 0;
}

static int64_t lane_tokens(const struct writing *x, int lane)
{
	int64_t n = 0;
	for (int i = 0; i < x->n; i++)
		n += x->shares[lane][i].want;
	return n;
}

/* Sets the sizes of the splits; by default, as in nanoGPT, the last tokens are for validation. */
static int decide_split(struct writing *x, const struct prepared *out, struct err *e)
{
	struct assembly *a = x->a;
	int64_t *total = a->info.total;
	if (!x->documents && out->n_read + out->n_broken)
		return err_set(e, EX_DATAERR, "documents read: %lld; none is left",
			(long long)(out->n_read + out->n_broken));
	if (!x->documents)
		return err_set(e, EX_DATAERR, "%s: the text is empty",
			a->of->inputs->n == 1 ? a->of->inputs->files[0].name
					      : "all files");
	for (int lane = 0; lane < x->n_lanes; lane++) {
		if (decide_shares(x, lane, e))
			return -1;
		total[lane] = lane_tokens(x, lane);
	}
	if (!total[SPLIT_TRAIN] && !total[SPLIT_VAL])
		return err_set(e, EX_DATAERR, "%lld document%s, but no tokens",
			(long long)x->documents, plural(x->documents));
	if (x->n_lanes == 1) {
		shard_split(&a->info, total[SPLIT_TRAIN], a->of->p->val_fraction);
	} else if (!total[SPLIT_TRAIN] ||
		   (a->of->p->val_fraction > 0 && !total[SPLIT_VAL])) {
		return err_set(e, EX_DATAERR, "documents: %lld; none is for %s%s",
			(long long)x->documents,
			total[SPLIT_TRAIN] ? "validation" : "training",
			advice_on(ADVICE_EMPTY_SPLIT));
	}
	a->info.documents = x->documents;
	return 0;
}

/* Sets the sizes of the splits in windows, counted by a first pass over the documents. */
static int decide_windows(struct writing *x, struct err *e)
{
	struct shard_info *info = &x->a->info;
	int64_t n[N_SPLITS] = {0};
	info->window_tokens = x->a->of->p->window;
	for (int lane = 0; lane < x->n_lanes; lane++)
		if (lane_open(x, lane, e) || windows_count(x, lane, &n[lane], e))
			return -1;
	if (!n[SPLIT_TRAIN])
		return err_set(e, EX_DATAERR,
			"no document fits into a window of %lld tokens",
			(long long)info->window_tokens);
	if (x->n_lanes == 1) {
		int64_t all = n[SPLIT_TRAIN];
		n[SPLIT_TRAIN] = (int64_t)((double)all * (1 - x->a->of->p->val_fraction));
		n[SPLIT_VAL] = all - n[SPLIT_TRAIN];
	}
	for (int s = 0; s < N_SPLITS; s++)
		info->total[s] = n[s] ? n[s] * info->window_tokens + 1 : 0;
	x->train_windows = n[SPLIT_TRAIN];
	return 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

int put_counted(struct writing *x, enum split s, struct token_spans spans, int64_t at,
	struct extent from, int64_t n, struct err *e)
{
	static const struct token_span all_but_first = {1, UINT32_MAX};
	if (!x->a->of->records) /* in a text, all tokens that can be predicted */
		spans = (struct token_spans){&all_but_first, 1};
	for (int64_t i = 0, end = at + n; at < end;) {
		while (i < spans.n && spans.v[i].end <= at)
			i++;
		bool counts = i < spans.n && spans.v[i].begin <= at;
		int64_t next = i == spans.n ? end
			       : counts	    ? min64(end, spans.v[i].end)
					    : min64(end, spans.v[i].begin);
		shard_writer_set_counted(x->w, s, counts);
		if (shard_writer_put_raw(x->w, s, from, next - at, e))
			return -1;
		x->out->n_counted += counts ? next - at : 0;
		from.at += (next - at) * x->a->of->row_bytes;
		at = next;
	}
	return 0;
}

/* Writes n tokens of a stream's document, from its token `at` on. */
static int put_tokens(struct writing *x, int lane, const struct share *v, int64_t at,
	struct extent from, int64_t n, struct err *e)
{
	int64_t part[N_SPLITS] = {0};
	if (x->n_lanes > 1) {
		part[lane] = n;
	} else {
		part[SPLIT_TRAIN] = min64(n, x->train_left);
		part[SPLIT_VAL] = n - part[SPLIT_TRAIN];
		x->train_left -= part[SPLIT_TRAIN];
	}
	const struct token_spans spans = {v->stream.spans, v->stream.n_spans};
	for (int s = 0; s < N_SPLITS; s++) {
		if (x->a->of->records ? put_counted(x, (enum split)s, spans, at, from,
						part[s], e)
				      : shard_writer_put_raw(
						x->w, (enum split)s, from, part[s], e))
			return -1;
		at += part[s];
		from.at += part[s] * x->a->of->row_bytes;
	}
	return 0;
}

/* Writes a document, cut where the source has given all that is wanted. */
static int write_document(struct writing *x, int lane, struct share *v, struct err *e)
{
	bool val = x->n_lanes > 1 ? lane == SPLIT_VAL : !x->train_left;
	shard_writer_document(x->w, val ? SPLIT_VAL : SPLIT_TRAIN);
	x->documents++;
	for (int64_t at = 0, n; v->stream.left && v->done < v->want; at += n) {
		struct extent from;
		n = stream_tokens(&v->stream, v->want - v->done, &from, e);
		if (n < 0 || put_tokens(x, lane, v, at, from, n, e))
			return -1;
		v->done += n;
		x->done += (double)n;
		progress_update(&x->bar, x->done, NULL);
	}
	return 0;
}

/* Returns the source with the smallest part of its tokens written; NULL: all are complete. */
static struct share *next_share(const struct writing *x, int lane)
{
	struct share *next = NULL;
	double least = 1;
	for (int i = 0; i < x->n; i++) {
		struct share *v = &x->shares[lane][i];
		double part = (double)v->done / (double)max64(1, v->want);
		if (v->done < v->want && (!next || part < least)) {
			next = v;
			least = part;
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
		return err_set(e, EX_IOERR, "a stream of documents is empty");
	return rc;
}

int lane_open(struct writing *x, int lane, struct err *e)
{
	for (int i = 0; i < x->n; i++) {
		struct share *v = &x->shares[lane][i];
		v->stream = (struct document_stream){.a = x->a,
			.source = x->n > 1 ? i : -1,
			.split = x->n_lanes > 1 ? lane : -1};
		if (stream_open(&v->stream, v->has, x->n, e))
			return -1;
	}
	return 0;
}

void lane_rewind(struct writing *x, int lane)
{
	for (int i = 0; i < x->n; i++) {
		struct share *v = &x->shares[lane][i];
		stream_rewind(&v->stream);
		v->done = v->n_repeated = 0;
	}
}

static void lane_close(struct writing *x, int lane)
{
	for (int i = 0; i < x->n; i++)
		stream_close(&x->shares[lane][i].stream);
	for (int i = 0; i < x->n && x->a->of->p->sources.n; i++) {
		const struct share *v = &x->shares[lane][i];
		info("source %s: %lld of %lld tokens%s, read %lld times",
			x->a->of->inputs->sources[i].name, (long long)v->want,
			(long long)v->has, lane ? " for validation" : "",
			(long long)v->n_repeated + 1);
	}
}

static int write_lane(struct writing *x, int lane, struct err *e)
{
	struct share *v;
	int rc;
	if (x->a->of->p->window) {
		lane_rewind(x, lane);
		rc = windows_write(x, lane, x->train_windows, e);
	} else {
		rc = lane_open(x, lane, e);
	}
	while (!rc && (rc = lane_next(x, lane, &v, e)) > 0)
		rc = write_document(x, lane, v, e);
	if (rc)
		return -1;
	lane_close(x, lane);
	return 0;
}

static int write_lanes(struct writing *x, struct prepared *out, struct err *e)
{
	const int64_t *total = x->a->info.total;
	x->train_left = total[SPLIT_TRAIN];
	x->w = shard_writer_open(x->a->of->p, x->a->of->t, &x->a->info, e);
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
	const struct prepare *p = a->of->p;
	struct writing x = {.a = a,
		.out = out,
		.n_lanes = p->split_by == SPLIT_BY_TAIL ? 1 : 2,
		.n = p->sources.n ? a->of->inputs->n_sources : 1};
	a->drops = !p->work && x.n_lanes == 1 && !p->sources.n && !p->window;
	for (int lane = 0; lane < N_SPLITS; lane++)
		x.shares[lane] = xcalloc((size_t)x.n, sizeof(struct share));
	int rc = print_messages(a, out, e) || (p->dedup && find_duplicates(a, e)) ||
		 count_documents(&x, out, e) || decide_split(&x, out, e) ||
		 (p->window && decide_windows(&x, e)) || write_lanes(&x, out, e);
	shard_writer_close(x.w);
	for (int lane = 0; lane < N_SPLITS; lane++) {
		for (int i = 0; i < x.n; i++)
			stream_close(&x.shares[lane][i].stream);
		free(x.shares[lane]);
	}
	free(a->duplicates);
	return rc ? -1 : 0;
}
