/* Messages in the encoding of protocol buffers, appended field by field. */
#pragma once

#include "base/base.h"

#include <endian.h>

enum wire { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_32 = 5 };

static inline void append_u32(struct str *out, uint32_t v)
{
	v = htole32(v);
	str_add(out, &v, sizeof(v));
}

static inline void append_u64(struct str *out, uint64_t v)
{
	v = htole64(v);
	str_add(out, &v, sizeof(v));
}

static inline void append_varint(struct str *out, uint64_t v)
{
	for (; v >= 0x80; v >>= 7)
		str_putc(out, (char)(v | 0x80));
	str_putc(out, (char)v);
}

static inline void append_key(struct str *out, unsigned field, enum wire wire)
{
	append_varint(out, field << 3 | (unsigned)wire);
}

static inline void append_bytes(struct str *out, unsigned field, const void *p, size_t n)
{
	append_key(out, field, WIRE_BYTES);
	append_varint(out, n);
	str_add(out, p, n);
}

/* Appends a message as a field of a message, and frees it. */
static inline void append_message(struct str *out, unsigned field, struct str *message)
{
	append_bytes(out, field, message->s, message->len);
	str_free(message);
}

static inline void append_double(struct str *out, unsigned field, double v)
{
	uint64_t bits;
	memcpy(&bits, &v, sizeof(bits));
	append_key(out, field, WIRE_64);
	append_u64(out, bits);
}

static inline void append_integer(struct str *out, unsigned field, uint64_t v)
{
	append_key(out, field, WIRE_VARINT);
	append_varint(out, v);
}

static inline void append_text_field(struct str *out, unsigned field, const char *text)
{
	append_bytes(out, field, text, strlen(text));
}
