/* json: JSON values, with jansson. */
#pragma once

#include "base/base.h"

#include <jansson.h>

/* Parses untrusted text with json_loadb(), which may take 80 times the memory of the text. Rejects
 * a text that would take more than 16 times its size plus 96 MiB. `why` may be NULL. */
json_t *load_json(const char *text, size_t n, size_t flags, json_error_t *why);
/* Returns the kind of a value in words, as in "a list"; "missing" for NULL. */
const char *json_kind(const json_t *j);
/* Sets a member of an object, which then owns the value. */
void put_json(json_t *object, const char *key, json_t *value);
/* Returns a number, or null for NaN and infinity, which JSON does not have. */
json_t *number_json(double v);
/* Returns a string. If it is not UTF-8, as file names may be, bytes above 127 are replaced. */
json_t *text_json(const char *s);
