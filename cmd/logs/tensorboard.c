/* TensorBoard's event files: records with checksums, each an Event in the encoding of protocol
 * buffers, of which a few fields are read (tensorflow/core/util/event.proto, framework/summary.proto,
 * framework/tensor.proto; lib/io/record_writer for the records). */
#include "logs/logs_internal.h"

#include <endian.h>
#include <pthread.h>

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

/* The masked checksum of TFRecord. */
static uint32_t masked_crc(const char *p, size_t n)
{
	/* (several logs are read at a time) */
	static pthread_once_t made = PTHREAD_ONCE_INIT;
	uint32_t c = UINT32_MAX;
	pthread_once(&made, make_crc_table);
	for (size_t i = 0; i < n; i++)
		c = crc_table[(c ^ (uint8_t)p[i]) & 0xff] ^ c >> 8;
	c = ~c;
	return (c >> 15 | c << 17) + UINT32_C(0xa282ead8);
}

static uint32_t get32(const char *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

static uint64_t get64(const char *p)
{
	uint64_t v;
	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

static float get_float(const char *p)
{
	uint32_t bits = get32(p);
	float v;
	memcpy(&v, &bits, sizeof(v));
	return v;
}

static double get_double(const char *p)
{
	uint64_t bits = get64(p);
	double v;
	memcpy(&v, &bits, sizeof(v));
	return v;
}

/* ---- protocol buffers -------------------------------------------------------------- */

enum wire { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_32 = 5 };

struct field {
	uint64_t number;
	enum wire wire;
	uint64_t varint;
	struct span bytes; /* of the other kinds */
};

static int get_varint(struct span *s, uint64_t *v)
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

/* 1: a field; 0: the end; -1: damaged. */
static int next_pb(struct span *s, struct field *f)
{
	uint64_t key, n;
	if (!s->n)
		return 0;
	if (get_varint(s, &key))
		return -1;
	*f = (struct field){.number = key >> 3, .wire = (enum wire)(key & 7)};
	switch (f->wire) {
	case WIRE_VARINT:
		return get_varint(s, &f->varint) ? -1 : 1;
	case WIRE_64:
		n = 8;
		break;
	case WIRE_32:
		n = 4;
		break;
	case WIRE_BYTES:
		if (get_varint(s, &n))
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

/* The bytes of one value of a type. */
static bool scalar_of(uint64_t type, struct span s, double *v)
{
	if (type == TF_FLOAT && s.n == 4)
		*v = (double)get_float(s.p);
	else if (type == TF_DOUBLE && s.n == 8)
		*v = get_double(s.p);
	else if (type == TF_INT32 && s.n == 4)
		*v = (double)(int32_t)get32(s.p);
	else if (type == TF_INT64 && s.n == 8)
		*v = (double)(int64_t)get64(s.p);
	else
		return false;
	return true;
}

/* A tensor with one value: dtype 1, tensor_content 4, float_val 5, double_val 6, int_val 7,
 * int64_val 10. */
static bool take_tensor(struct span tensor, double *v)
{
	struct field f;
	uint64_t type = 0;
	bool found = false;
	int rc;
	while ((rc = next_pb(&tensor, &f)) > 0) {
		if (f.number == 1 && f.wire == WIRE_VARINT)
			type = f.varint;
		else if (f.number == 4 && f.wire == WIRE_BYTES)
			found |= scalar_of(type, f.bytes, v);
		else if (f.number == 5 && f.bytes.p)
			found |= scalar_of(TF_FLOAT, f.bytes, v);
		else if (f.number == 6 && f.bytes.p)
			found |= scalar_of(TF_DOUBLE, f.bytes, v);
		else if ((f.number == 7 || f.number == 10) && f.wire == WIRE_VARINT) {
			*v = (double)(int64_t)f.varint;
			found = true;
		}
	}
	return !rc && found;
}

/* Summary.Value: tag 1, simple_value 2, tensor 8. */
static int take_value(struct build *b, int64_t step, struct span value)
{
	struct field f;
	struct span tag = {NULL, 0};
	double v = 0;
	bool found = false;
	int rc;
	while ((rc = next_pb(&value, &f)) > 0) {
		if (f.number == 1 && f.wire == WIRE_BYTES)
			tag = f.bytes;
		else if (f.number == 2 && f.wire == WIRE_32) {
			v = (double)get_float(f.bytes.p);
			found = true;
		} else if (f.number == 8 && f.wire == WIRE_BYTES)
			found |= take_tensor(f.bytes, &v);
	}
	if (!rc && found && tag.n && tag.n < 1024) {
		b->n_taken++;
		build_set(b, step, tag, v);
	}
	return rc;
}

static int take_summary(struct build *b, int64_t step, struct span summary)
{
	struct field f;
	int rc;
	while ((rc = next_pb(&summary, &f)) > 0)
		if (f.number == 1 && f.wire == WIRE_BYTES && take_value(b, step, f.bytes))
			return -1;
	return rc;
}

/* Event: wall_time 1, step 2, summary 5. */
static int take_event(struct build *b, struct span event)
{
	struct field f;
	struct span summary = {NULL, 0};
	int64_t step = 0;
	int rc;
	while ((rc = next_pb(&event, &f)) > 0) {
		if (f.number == 2 && f.wire == WIRE_VARINT)
			step = (int64_t)f.varint;
		else if (f.number == 5 && f.wire == WIRE_BYTES)
			summary = f.bytes;
	}
	if (rc || step < 0 || (uint64_t)step > UINT64_C(1) << 53)
		return rc;
	return take_summary(b, step, summary);
}

/* ---- records --------------------------------------------------------------------- */

enum { HEAD = 12, TAIL = 4 };

/* The data of the first record: a length and its checksum, data and their checksum. 1: a record; 0:
 * the file ends within it; -1: damaged. */
static int next_record(struct span *rest, struct span *data)
{
	if (rest->n < HEAD)
		return 0;
	uint64_t n = get64(rest->p);
	if (masked_crc(rest->p, 8) != get32(rest->p + 8))
		return -1;
	if (n > rest->n - HEAD || rest->n - HEAD - n < TAIL)
		return 0;
	*data = (struct span){rest->p + HEAD, n};
	if (masked_crc(data->p, n) != get32(data->p + n))
		return -1;
	*rest = (struct span){data->p + n + TAIL, rest->n - HEAD - n - TAIL};
	return 1;
}

bool is_tensorboard(struct span first)
{
	return first.n >= HEAD && masked_crc(first.p, 8) == get32(first.p + 8);
}

int text_tensorboard(struct build *b, struct span text, struct err *e)
{
	struct span rest = text;
	struct span data = {NULL, 0};
	int rc;
	b->exact = true;
	while ((rc = next_record(&rest, &data)) > 0)
		if (take_event(b, data)) {
			rc = -1;
			break;
		}
	if (rc < 0)
		return err_set(e, EX_DATAERR, "the record at byte %zu is damaged",
			(size_t)(rest.p - text.p));
	return 0;
}
