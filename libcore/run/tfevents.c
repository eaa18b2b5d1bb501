/* Reading and writing TensorBoard's event files. */
#include "run/tfevents.h"
#include "run/protobuf.h"

#include <pthread.h>

struct span {
	const char *p;
	size_t n;
};

/* ---- CRC-32C --------------------------------------------------------------------- */

static uint32_t crc_table[256];

static void make_crc_table(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t c = i;
		for (int k = 0; k < 8; k++)
			c = c & 1 ? UINT32_C(0x82f63b78) ^ c >> 1 : c >> 1;
		crc_table[i] = c;
	}
}

/* Returns the checksum in TFRecord files: CRC-32C, rotated and with a constant added. */
static uint32_t masked_crc(const char *p, size_t n)
{
	/* several threads may read logs */
	static pthread_once_t table_made = PTHREAD_ONCE_INIT;
	uint32_t c = UINT32_MAX;
	pthread_once(&table_made, make_crc_table);
	for (size_t i = 0; i < n; i++)
		c = crc_table[(c ^ (uint8_t)p[i]) & 0xff] ^ c >> 8;
	c = ~c;
	return (c >> 15 | c << 17) + UINT32_C(0xa282ead8);
}

static uint32_t read_u32(const char *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

static uint64_t read_u64(const char *p)
{
	uint64_t v;
	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

static float read_float(const char *p)
{
	uint32_t bits = read_u32(p);
	float v;
	memcpy(&v, &bits, sizeof(v));
	return v;
}

static double read_double(const char *p)
{
	uint64_t bits = read_u64(p);
	double v;
	memcpy(&v, &bits, sizeof(v));
	return v;
}

/* ---- protocol buffers -------------------------------------------------------------- */

struct field {
	uint64_t number;
	enum wire wire;
	uint64_t varint;
	struct span bytes; /* the value, if it is not a varint */
};

/* Reads a varint from the span, and advances it. Returns -1 if it is incomplete. */
static int read_varint(struct span *s, uint64_t *v)
{
	*v = 0;
	for (int shift = 0; shift < 64; shift += 7) {
		if (!s->n)
			return -1;
		uint8_t byte = (uint8_t)*s->p;
		s->p++, s->n--;
		*v |= (uint64_t)(byte & 0x7f) << shift;
		if (byte < 0x80)
			return 0;
	}
	return -1;
}

/* Reads the next field. Returns 1, 0 at the end, or -1 if it is damaged. */
static int read_field(struct span *s, struct field *f)
{
	uint64_t key, n;
	if (!s->n)
		return 0;
	if (read_varint(s, &key))
		return -1;
	*f = (struct field){.number = key >> 3, .wire = (enum wire)(key & 7)};
	switch (f->wire) {
	case WIRE_VARINT:
		return read_varint(s, &f->varint) ? -1 : 1;
	case WIRE_64:
		n = 8;
		break;
	case WIRE_32:
		n = 4;
		break;
	case WIRE_BYTES:
		if (read_varint(s, &n))
			return -1;
		break;
	default:
		return -1;
	}
	if (n > s->n)
		return -1;
	f->bytes = (struct span){s->p, n};
	s->p += n, s->n -= n;
	return 1;
}

/* ---- values ---------------------------------------------------------------------- */

enum { TF_FLOAT = 1, TF_DOUBLE = 2, TF_INT32 = 3, TF_INT64 = 9 };
enum { MAX_TAG = 1024, SESSION_START = 1 };

/* Sets *v from the bytes of one value of a tensor type. Returns false for other types and sizes. */
static bool read_scalar(uint64_t type, struct span s, double *v)
{
	if (type == TF_FLOAT && s.n == 4)
		*v = (double)read_float(s.p);
	else if (type == TF_DOUBLE && s.n == 8)
		*v = read_double(s.p);
	else if (type == TF_INT32 && s.n == 4)
		*v = (double)(int32_t)read_u32(s.p);
	else if (type == TF_INT64 && s.n == 8)
		*v = (double)(int64_t)read_u64(s.p);
	else
		return false;
	return true;
}

/* Sets *v from a tensor with one value; false otherwise. Fields: dtype 1, tensor_content 4,
 * float_val 5, double_val 6, int_val 7, int64_val 10. */
static bool read_tensor(struct span tensor, double *v)
{
	struct field f;
	uint64_t type = 0;
	bool found = false;
	int rc;
	while ((rc = read_field(&tensor, &f)) > 0) {
		if (f.number == 1 && f.wire == WIRE_VARINT)
			type = f.varint;
		else if (f.number == 4 && f.wire == WIRE_BYTES)
			found |= read_scalar(type, f.bytes, v);
		else if (f.number == 5 && f.bytes.p)
			found |= read_scalar(TF_FLOAT, f.bytes, v);
		else if (f.number == 6 && f.bytes.p)
			found |= read_scalar(TF_DOUBLE, f.bytes, v);
		else if ((f.number == 7 || f.number == 10) && f.wire == WIRE_VARINT) {
			*v = (double)(int64_t)f.varint;
			found = true;
		}
	}
	return !rc && found;
}

/* Reads a Summary.Value. Fields: tag 1, simple_value 2, tensor 8. */
static int read_summary_value(
	const struct tfevents_sink *t, int64_t step, double wall, struct span value)
{
	struct field f;
	struct span tag = {NULL, 0};
	double v = 0;
	bool found = false;
	int rc;
	while ((rc = read_field(&value, &f)) > 0) {
		if (f.number == 1 && f.wire == WIRE_BYTES)
			tag = f.bytes;
		else if (f.number == 2 && f.wire == WIRE_32) {
			v = (double)read_float(f.bytes.p);
			found = true;
		} else if (f.number == 8 && f.wire == WIRE_BYTES)
			found |= read_tensor(f.bytes, &v);
	}
	if (!rc && found && tag.n && tag.n < MAX_TAG)
		t->scalar(t->to, step, wall, tag.p, tag.n, v);
	return rc;
}

/* Passes each value of a Summary message to the sink. Returns -1 if the message is damaged. */
static int read_summary(
	const struct tfevents_sink *t, int64_t step, double wall, struct span summary)
{
	struct field f;
	int rc;
	while ((rc = read_field(&summary, &f)) > 0)
		if (f.number == 1 && f.wire == WIRE_BYTES &&
			read_summary_value(t, step, wall, f.bytes))
			return -1;
	return rc;
}

/* Reads a SessionLog. Field: status 1. */
static int read_session(const struct tfevents_sink *t, int64_t step, struct span session)
{
	struct field f;
	int rc;
	while ((rc = read_field(&session, &f)) > 0)
		if (f.number == 1 && f.wire == WIRE_VARINT && f.varint == SESSION_START)
			t->restart(t->to, step);
	return rc;
}

/* Reads an Event. Fields: wall_time 1, step 2, summary 5, session_log 7. */
static int read_event(const struct tfevents_sink *t, struct span event)
{
	struct field f;
	struct span summary = {NULL, 0}, session = {NULL, 0};
	int64_t step = 0;
	double wall = 0;
	int rc;
	while ((rc = read_field(&event, &f)) > 0) {
		if (f.number == 1 && f.wire == WIRE_64)
			wall = read_double(f.bytes.p);
		else if (f.number == 2 && f.wire == WIRE_VARINT)
			step = (int64_t)f.varint;
		else if (f.number == 5 && f.wire == WIRE_BYTES)
			summary = f.bytes;
		else if (f.number == 7 && f.wire == WIRE_BYTES)
			session = f.bytes;
	}
	if (rc || step < 0 || (uint64_t)step > UINT64_C(1) << 53)
		return rc;
	return read_session(t, step, session) || read_summary(t, step, wall, summary) ? -1
										      : 0;
}

/* ---- records --------------------------------------------------------------------- */

enum { HEAD = 12, TAIL = 4 };

/* Sets *data to the next record's data, and moves *rest past it. Returns 1; 0: the file ends
 * within the record; -1: it is damaged. */
static int read_record(struct span *rest, struct span *data)
{
	if (rest->n < HEAD)
		return 0;
	uint64_t n = read_u64(rest->p);
	if (masked_crc(rest->p, 8) != read_u32(rest->p + 8))
		return -1;
	if (n > rest->n - HEAD || rest->n - HEAD - n < TAIL)
		return 0;
	*data = (struct span){rest->p + HEAD, n};
	if (masked_crc(data->p, n) != read_u32(data->p + n))
		return -1;
	*rest = (struct span){data->p + n + TAIL, rest->n - HEAD - n - TAIL};
	return 1;
}

bool tfevents_begins(const char *p, size_t n)
{
	return n >= HEAD && masked_crc(p, 8) == read_u32(p + 8);
}

int tfevents_read(
	const char *p, size_t n, const struct tfevents_sink *sink, struct err *e)
{
	struct span rest = {p, n}, data = {NULL, 0};
	int rc;
	while ((rc = read_record(&rest, &data)) > 0)
		if (read_event(sink, data)) {
			rc = -1;
			break;
		}
	if (rc < 0)
		return err_set(e, EX_DATAERR, "the record at byte %zu is damaged",
			(size_t)(rest.p - p));
	return 0;
}

/* ---- writing ----------------------------------------------------------------------- */

void tfevents_put_record(struct str *out, const struct str *data)
{
	size_t at = out->len;
	append_u64(out, data->len);
	append_u32(out, masked_crc(out->s + at, 8));
	str_add(out, data->s, data->len);
	append_u32(out, masked_crc(out->s + at + HEAD, data->len));
}

/* Returns an Event message with its time and step, which the caller frees. */
static struct str begin_event(double wall, int64_t step)
{
	struct str event = {0};
	append_double(&event, 1, wall);
	if (step) { /* 0 is the default of the field */
		append_key(&event, 2, WIRE_VARINT);
		append_varint(&event, (uint64_t)step);
	}
	return event;
}

static void end_event(struct str *out, struct str *event)
{
	tfevents_put_record(out, event);
	str_free(event);
}

void tfevents_put_begin(struct str *out, double wall, int64_t step)
{
	static const char version[] = "brain.Event:2";
	struct str first = begin_event(wall, 0), start = begin_event(wall, step);
	struct str session = {0};
	append_bytes(&first, 3, version, strlen(version));
	end_event(out, &first);
	append_key(&session, 1, WIRE_VARINT);
	append_varint(&session, SESSION_START);
	append_message(&start, 7, &session);
	end_event(out, &start);
}

/* Appends a tensor: DT_DOUBLE, no dimension, double_val. */
static void append_tensor(struct str *value, double v)
{
	struct str tensor = {0};
	append_key(&tensor, 1, WIRE_VARINT);
	append_varint(&tensor, TF_DOUBLE);
	append_bytes(&tensor, 2, "", 0);
	uint64_t bits;
	memcpy(&bits, &v, sizeof(bits));
	bits = htole64(bits);
	append_bytes(&tensor, 6, &bits, sizeof(bits));
	append_message(value, 8, &tensor);
}

/* Appends SummaryMetadata (plugin_data 1: plugin_name 1), which makes a tensor a scalar. */
static void append_metadata(struct str *value)
{
	struct str plugin = {0}, metadata = {0};
	append_bytes(&plugin, 1, "scalars", strlen("scalars"));
	append_message(&metadata, 1, &plugin);
	append_message(value, 9, &metadata);
}

/* Appends a Value message to a Summary: fp32, or a tensor of double if x->wide. */
static void append_scalar(struct str *summary, const struct tfevents_scalar *x)
{
	struct str value = {0};
	float v = (float)x->v;
	uint32_t bits;
	append_bytes(&value, 1, x->tag, strlen(x->tag));
	if (x->wide) {
		append_tensor(&value, x->v);
		append_metadata(&value);
	} else {
		memcpy(&bits, &v, sizeof(bits));
		append_key(&value, 2, WIRE_32);
		append_u32(&value, bits);
	}
	append_message(summary, 1, &value);
}

void tfevents_put_row(struct str *out, double wall, int64_t step,
	const struct tfevents_scalar *list, int n)
{
	struct str event = begin_event(wall, step), summary = {0};
	for (int i = 0; i < n; i++)
		append_scalar(&summary, &list[i]);
	append_message(&event, 5, &summary);
	end_event(out, &event);
}
