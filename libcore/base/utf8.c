/* UTF-8 (RFC 3629), and untrusted text on a terminal. */
#include "base/utf8.h"

int utf8_decode(const char *text, int64_t n, uint32_t *code)
{
	const uint8_t *p = (const uint8_t *)text;
	if (p[0] < 0x80) {
		*code = p[0];
		return 1;
	}
	int len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
	if (p[0] < 0xc2 || p[0] > 0xf4)
		return -1;
	uint32_t c = p[0] & (0xffu >> (len + 1));
	for (int i = 1; i < len; i++) {
		if (i >= n)
			return 0;
		if ((p[i] & 0xc0) != 0x80)
			return -1;
		c = c << 6 | (p[i] & 0x3f);
	}
	static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
	if (c < smallest[len] || c >= CODE_POINTS || (c >= 0xd800 && c < 0xe000))
		return -1;
	*code = c;
	return len;
}

int utf8_encode(uint32_t c, uint8_t out[AT_LEAST(4)])
{
	if (c < 0x80) {
		out[0] = (uint8_t)c;
		return 1;
	}
	int len = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	for (int i = len - 1; i > 0; i--, c >>= 6)
		out[i] = (uint8_t)(0x80 | (c & 0x3f));
	out[0] = (uint8_t)(0xf00u >> len | c);
	return len;
}

/* Returns true for C0, DEL and C1 (ECMA-48). */
static bool is_control(uint32_t code)
{
	return code < 0x20 || (code >= 0x7f && code < 0xa0);
}

char *text_printable(char *text)
{
	int64_t n = text ? (int64_t)strlen(text) : 0, len;
	for (int64_t i = 0; i < n; i += len) {
		uint32_t code = 0;
		len = utf8_decode(text + i, n - i, &code);
		bool shown = len > 0 &&
			     (!is_control(code) || text[i] == '\n' || text[i] == '\t');
		len = max64(1, len);
		if (!shown)
			memset(text + i, '?', (size_t)len);
	}
	return text;
}

bool text_has_control(const char *text)
{
	int64_t n = (int64_t)strlen(text), len;
	for (int64_t i = 0; i < n; i += max64(1, len)) {
		uint32_t code = 0;
		len = utf8_decode(text + i, n - i, &code);
		if (len > 0 && is_control(code))
			return true;
	}
	return false;
}
