/* utf8: characters of a text, and text that is safe on a terminal. */
#pragma once

#include "base/base.h"

enum { CODE_POINTS = 0x110000 };

/*
 * Returns the length of the character at text[0..n), n > 0, and sets its code point; 0 if it is
 * incomplete, -1 if it is not UTF-8 (RFC 3629: shortest form, no surrogates, at most 10FFFF).
 */
int utf8_decode(const char *text, int64_t n, uint32_t *code);
/* Encodes a character, and returns its length. */
int utf8_encode(uint32_t code, uint8_t out[AT_LEAST(4)]);

/* Replaces control characters (except line breaks and tabs) and bytes that are not UTF-8 by
 * question marks, in place: text from untrusted files could control the terminal. Returns the
 * text, or NULL. */
char *text_printable(char *text);
/* Returns true if a text has a control character (even a line break or a tab). */
bool text_has_control(const char *text);
