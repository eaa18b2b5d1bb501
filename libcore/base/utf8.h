/* utf8: characters of a text, and what of it may be shown on a terminal. */
#pragma once

#include "base/base.h"

enum { CODE_POINTS = 0x110000 };

/*
 * Returns the length of the character at text[0..n), n > 0, and sets its code point; 0 if it is
 * incomplete, -1 if it is not UTF-8 (RFC 3629: shortest form, no surrogates, at most 10FFFF).
 */
int utf8_decode(const char *text, int64_t n, uint32_t *code);
/* Writes a character, and returns its length. */
int utf8_encode(uint32_t code, uint8_t out[AT_LEAST(4)]);

/* A text of a file that somebody else has made may have characters that command a terminal: to clear it,
 * to name its window, to overwrite lines. In place, each byte of a control character but the line break
 * and the tab, and each that is not UTF-8, becomes a question mark. NULL stays NULL. Returns the text. */
char *text_printable(char *text);
/* Has it a control character? (also a line break or a tab) */
bool text_has_control(const char *text);
