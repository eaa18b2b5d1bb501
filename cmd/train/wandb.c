/* Offline runs of W&B: a directory offline-run-DATE-ID with a file run-ID.wandb. It is a log in the
 * format of LevelDB (blocks of 32 KiB, records with CRC-32), whose records are protocol buffers
 * (wandb/proto/wandb_internal.proto). */
#include "train/log_files.h"

#include "base/file.h"
#include "base/json.h"
#include "run/protobuf.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <zlib.h>

enum { BLOCK = 1 << 15, HEAD = 7, ID_LENGTH = 8 };
/* Fields of messages. */
enum {
	RECORD_NUMBER = 1,
	RECORD_HISTORY,
	RECORD_SUMMARY,
	RECORD_RUN = 17,
	RECORD_EXIT,
	RECORD_HEADER = 21
};
enum { ITEM_KEY = 1, ITEM_NESTED_KEY, ITEM_VALUE = 16 };
static const char directory_prefix[] = "offline-run-";

/* Appends a part of a record, which does not cross a block. */
static void append_part(struct str *out, char type, const char *p, size_t n)
{
	uint32_t crc = (uint32_t)crc32(
		crc32(0, (const Bytef *)&type, 1), (const Bytef *)p, (uInt)n);
	append_u32(out, crc);
	str_putc(out, (char)(n & 0xff));
	str_putc(out, (char)(n >> 8));
	str_putc(out, type);
	str_add(out, p, n);
}

/* Appends a record, in parts where blocks end. Frees the message. */
static void append_record(struct log_file *f, unsigned field, struct str *message)
{
	enum { FULL = 1, FIRST, MIDDLE, LAST };
	struct str record = {0};
	append_integer(&record, RECORD_NUMBER, (uint64_t)++f->n_records);
	append_message(&record, field, message);
	bool is_first = true;
	for (size_t at = 0, n; is_first || at < record.len; at += n, is_first = false) {
		size_t end = (size_t)f->n_bytes + f->waiting.len,
		       left = BLOCK - end % BLOCK;
		if (left < HEAD) {
			str_add(&f->waiting, "\0\0\0\0\0\0", left);
			left = BLOCK;
		}
		n = record.len - at < left - HEAD ? record.len - at : left - HEAD;
		bool is_last = at + n == record.len;
		append_part(&f->waiting,
			is_first ? (is_last ? FULL : FIRST) : (is_last ? LAST : MIDDLE),
			record.s + at, n);
	}
	str_free(&record);
}

/* Appends an item of a configuration (key_field ITEM_KEY), a summary or a row. */
static void append_item(
	struct str *out, unsigned key_field, const char *key, const char *value)
{
	struct str item = {0};
	append_text_field(&item, key_field, key);
	append_text_field(&item, ITEM_VALUE, value);
	append_message(out, 1, &item);
}

static void append_value(struct str *out, const char *key, double v)
{
	char text[NUM_TEXT];
	append_item(out, ITEM_NESTED_KEY, key,
		isnan(v)   ? "NaN"
		: isinf(v) ? (v < 0 ? "-Infinity" : "Infinity")
			   : text_double(text, v));
}

/* Appends lines of name = value as a ConfigRecord. */
static void append_config(struct str *out, const char *lines)
{
	for (const char *end; *lines; lines = *end ? end + 1 : end) {
		end = lines + strcspn(lines, "\n");
		const char *equals = memmem(lines, (size_t)(end - lines), " = ", 3);
		if (!equals || *lines == '#')
			continue;
		scoped_ptr char *name = text_printf("%.*s", (int)(equals - lines), lines);
		scoped_ptr char *value =
			text_printf("%.*s", (int)(end - equals - 3), equals + 3);
		double x;
		json_t *text = text_json(value);
		char *quoted = json_dumps(text, JSON_ENCODE_ANY);
		append_item(out, ITEM_KEY, name,
			!parse_double(value, &x) && isfinite(x) ? value : quoted);
		free(quoted);
		json_decref(text);
	}
}

/* Appends the records before the first row. */
static void append_begin(struct log_file *f, const struct log_start *s, const char *id)
{
	struct str header = {0}, version = {0}, run = {0}, config = {0}, time = {0};
	const char *slash = s->name ? strrchr(s->name, '/') : NULL;
	append_text_field(&version, 1, "pt-train " PT_VERSION);
	append_text_field(&version, 2, "0.0.1"); /* the oldest reader */
	append_message(&header, 1, &version);
	append_record(f, RECORD_HEADER, &header);
	append_text_field(&run, 1, id);
	append_text_field(&run, 3, "pt");
	append_config(&config, s->config);
	append_message(&run, 4, &config);
	if (s->name)
		append_text_field(&run, 8, slash && slash[1] ? slash + 1 : s->name);
	append_text_field(&run, 13, s->host);
	append_integer(&time, 1, (uint64_t)f->started);
	append_integer(&time, 2, (uint64_t)(fmod(f->started, 1) * 1e9));
	append_message(&run, 17, &time);
	if (s->resume >= 0) {
		append_integer(&run, 14, (uint64_t)s->resume + 1);
		append_integer(&run, 18, true);
	}
	append_record(f, RECORD_RUN, &run);
}

/* Sets the ID of the latest run in the directory, which this one continues. */
static bool find_last_id(const char *dir, char id[AT_LEAST(ID_LENGTH + 1)])
{
	scoped_strs names = {0};
	scoped_dir *d = opendir(dir);
	for (struct dirent *x; d && (x = readdir(d));)
		if (!strncmp(x->d_name, directory_prefix, strlen(directory_prefix)))
			strs_add(&names, x->d_name);
	strs_sort(&names);
	const char *dash = names.n ? strrchr(names.v[names.n - 1], '-') : NULL;
	if (!dash || strlen(dash + 1) != ID_LENGTH ||
		strspn(dash + 1, "abcdefghijklmnopqrstuvwxyz0123456789") != ID_LENGTH)
		return false;
	memcpy(id, dash + 1, ID_LENGTH + 1);
	return true;
}

static void make_id(
	const struct log_start *s, double now, char id[AT_LEAST(ID_LENGTH + 1)])
{
	scoped_str all = {0};
	str_printf(&all, "%s %.9f %lld %s", s->host, now, (long long)getpid(), s->dir);
	uint64_t x = hash_str(all.s);
	for (int i = 0; i < ID_LENGTH; i++, x /= 36)
		id[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[x % 36];
	id[ID_LENGTH] = '\0';
}

static int open_run(struct log_file *f, const struct log_start *s, struct err *e)
{
	static const char begin[] = ":W&B\xe1\xbe"; /* and a zero */
	char id[ID_LENGTH + 1], date[32];
	scoped_str dir = {0};
	time_t now = (time_t)f->started;
	struct tm t;
	if (s->resume < 0 || !find_last_id(s->dir, id))
		make_id(s, f->started, id);
	do { /* a run that is resumed within a second has another name */
		strftime(date, sizeof(date), "%Y%m%d_%H%M%S", localtime_r(&now, &t));
		str_clear(&dir);
		str_printf(&dir, "%s/%s%s-%s", s->dir, directory_prefix, date, id);
		now++;
	} while (mkdir(dir.s, 0777) && errno == EEXIST);
	if (!file_is_directory(dir.s))
		return err_errno(e, dir.s);
	f->path = text_printf("%s/run-%s.wandb", dir.s, id);
	f->fd = file_open_plain(f->path, O_RDWR | O_CREAT | O_EXCL | O_APPEND);
	str_add(&f->waiting, begin, HEAD);
	append_begin(f, s, id);
	return f->fd < 0 ? err_errno(e, f->path) : 0;
}

/* Appends the row, and the summary that it makes. */
static void append_row(struct log_file *f, const struct row *row)
{
	struct str history = {0}, summary = {0}, step = {0};
	double now = clock_wall();
	for (int c = 0; c < N_COLUMNS; c++)
		if (columns[c].tag && row_has(row, c))
			append_value(&history, columns[c].tag, row->v[c]);
	append_value(&history, "_timestamp", now);
	append_value(&history, "_runtime", now - f->started);
	append_value(&history, "_step", row->v[COL_STEP]);
	str_add(&summary, history.s, history.len);
	append_integer(&step, 1, (uint64_t)row->v[COL_STEP]);
	append_message(&history, 2, &step);
	append_record(f, RECORD_HISTORY, &history);
	append_record(f, RECORD_SUMMARY, &summary);
}

/* Appends the end, unless the run will be resumed. */
static void append_end(struct log_file *f, int code)
{
	struct str end = {0};
	if (code == EX_TEMPFAIL)
		return;
	append_integer(&end, 1, (uint64_t)code);
	append_integer(&end, 2, (uint64_t)(clock_wall() - f->started));
	append_record(f, RECORD_EXIT, &end);
}

const struct log_kind log_wandb = {
	.name = "wandb",
	.open = open_run,
	.append_row = append_row,
	.append_end = append_end,
};
