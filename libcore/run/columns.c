/* The columns of a log: the table for printing, parsing and HDF5. */
#include "run/run.h"

#include <string.h>

const struct column columns[N_COLUMNS] = {
	[COL_STEP] = {"step", COLUMN_INT, false, "", "optimizer steps done"},
	[COL_TOKENS] = {"tokens", COLUMN_INT, false, "", "tokens consumed"},
	[COL_LOSS] = {"loss", COLUMN_EXACT, true, "nats",
		"training loss of this step's batch, mean over tokens"},
	[COL_GRAD_NORM] = {"grad_norm", COLUMN_EXACT, true, "",
		"norm of the whole gradient, before clipping"},
	[COL_LR] = {"lr", COLUMN_EXACT, false, "", "learning rate of this step"},
	[COL_LOSS_SCALE] = {"loss_scale", COLUMN_EXACT, false, "",
		"fp16: the loss scale of this step"},
	[COL_TRAIN_LOSS] = {"train_loss", COLUMN_EXACT, true, "nats",
		"mean loss of a fixed set of training windows"},
	[COL_VAL_LOSS] = {"val_loss", COLUMN_EXACT, true, "nats",
		"mean loss of a fixed set of validation windows"},
	[COL_DT] = {"dt", COLUMN_ROUND, false, "s", "time of a step"},
	[COL_DTF] = {"dtf", COLUMN_ROUND, false, "s", "time of the forward in a step"},
	[COL_DTB] = {"dtb", COLUMN_ROUND, false, "s", "time of the backward in a step"},
	[COL_DTC] = {"dtc", COLUMN_ROUND, false, "s",
		"time in a step waiting for communication"},
	[COL_DTD] = {"dtd", COLUMN_ROUND, false, "s", "time in a step waiting for data"},
	[COL_BUBBLE] = {"bubble", COLUMN_ROUND, false, "",
		"fraction of the time in which pipeline ranks do not compute"},
	[COL_SPS] = {"sps", COLUMN_ROUND, false, "1/s", "samples per second"},
	[COL_SPS_PER_GPU] = {"sps_per_gpu", COLUMN_ROUND, false, "1/s",
		"samples per second and rank"},
	[COL_TPS] = {"tps", COLUMN_ROUND, false, "1/s", "tokens per second"},
	[COL_TPS_PER_GPU] = {"tps_per_gpu", COLUMN_ROUND, false, "1/s",
		"tokens per second and rank"},
	[COL_MFU] = {"mfu", COLUMN_ROUND, false, "",
		"model FLOPs (6 N + 12 L C T per token) over the peak"},
	[COL_MFU_CAUSAL] = {"mfu_causal", COLUMN_ROUND, false, "",
		"the same, with half of the attention for causality"},
	[COL_MEM] = {"mem", COLUMN_INT, false, "bytes",
		"largest memory of a rank so far: resident, or on its GPU"},
	[COL_SENT] = {"sent", COLUMN_ROUND, false, "bytes",
		"bytes per step that the busiest rank sends to other ranks"},
	[COL_SYNC] = {"sync", COLUMN_INT, false, "",
		"synchronisations of workers that train apart so far"},
	[COL_SYNC_STEPS] = {"sync_steps", COLUMN_INT, false, "",
		"steps of this worker since the one before"},
	[COL_SYNC_LOSS] = {"sync_loss", COLUMN_ROUND, false, "nats",
		"mean training loss of all workers and steps since the one before"},
	[COL_SYNC_NORM] = {"sync_norm", COLUMN_EXACT, true, "",
		"norm of this worker's pseudo-gradient"},
	[COL_SYNC_REDUCED] = {"sync_reduced", COLUMN_EXACT, true, "",
		"norm of the one that was made of all, before clipping"},
	[COL_SYNC_WEIGHT] = {"sync_weight", COLUMN_EXACT, true, "",
		"weight of this worker, the mean over units"},
	[COL_SYNC_ANOMALIES] = {"sync_anomalies", COLUMN_INT, false, "",
		"units of this worker that were left out"},
	[COL_SYNC_CLIP] = {"sync_clip", COLUMN_EXACT, true, "",
		"the smallest factor by which a unit was clipped"},
	[COL_SYNC_SENT] = {"sync_sent", COLUMN_ROUND, false, "bytes",
		"sent to other workers for it by this rank"},
	[COL_SYNC_WAIT] = {"sync_wait", COLUMN_ROUND, false, "s",
		"that this rank waited in it"},
	[COL_READ] = {"read", COLUMN_ROUND, false, "bytes",
		"offloaded bytes read per step, by the rank that reads most"},
	[COL_WRITTEN] = {"written", COLUMN_ROUND, false, "bytes",
		"offloaded bytes written per step, by the rank that writes most"},
};

int column_find(const char *name, size_t len)
{
	for (int c = 0; c < N_COLUMNS; c++)
		if (strlen(columns[c].name) == len && !memcmp(columns[c].name, name, len))
			return c;
	return -1;
}

void columns_man(FILE *f)
{
	static const char *const types[] = {"i64", "f32", "f64"};
	fputs(".Bl -tag -width Ds -compact\n", f);
	for (int c = 0; c < N_COLUMNS; c++) {
		fprintf(f, ".It Va %s Pq %s%s%s\n", columns[c].name,
			types[columns[c].kind], *columns[c].unit ? ", " : "",
			columns[c].unit);
		man_text(f, columns[c].help);
	}
	fputs(".El\n", f);
}

void row_print(const struct row *r, struct str *out)
{
	char num[NUM_TEXT];
	bool first = true;
	for (int c = 0; c < N_COLUMNS; c++) {
		if (!row_has(r, c))
			continue;
		if (columns[c].kind == COLUMN_INT)
			snprintf(num, sizeof(num), "%lld", (long long)r->v[c]);
		else if (columns[c].kind == COLUMN_EXACT)
			text_float(num, (float)r->v[c]);
		else
			snprintf(num, sizeof(num), "%.6g", r->v[c]);
		str_printf(out, "%s%s=%s", first ? "" : " ", columns[c].name, num);
		first = false;
	}
}

bool column_fits(int c, double v)
{
	return columns[c].kind != COLUMN_INT ||
	       (v >= 0 && v <= 0x1p53 && v == (double)(int64_t)v);
}

int row_parse(const char *line, size_t len, struct row *r)
{
	*r = (struct row){.has = 0};
	const char *end = line + len;
	while (line < end) {
		while (line < end && (*line == ' ' || *line == '\t' || *line == '\r'))
			line++;
		const char *word_end = line;
		while (word_end < end && *word_end != ' ' && *word_end != '\t' &&
			*word_end != '\r')
			word_end++;
		const char *equals = memchr(line, '=', (size_t)(word_end - line));
		if (equals) {
			char num[NUM_TEXT];
			double v;
			int c = column_find(line, (size_t)(equals - line));
			size_t n = (size_t)(word_end - equals - 1);
			if (c >= 0 && n < sizeof(num)) {
				memcpy(num, equals + 1, n);
				num[n] = '\0';
				if (!parse_double(num, &v) && column_fits(c, v))
					row_set(r, c, v);
			}
		}
		line = word_end;
	}
	return row_has(r, COL_STEP) ? 0 : -1;
}
