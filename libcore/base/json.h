/* json: values of JSON, with jansson. */
#pragma once

#include "base/base.h"

#include <jansson.h>

/* Parses text that is not trusted, as json_loadb() does, which takes up to 80 times the memory of the text ("{},{},").
 * Rejects a text that would take more than 16 times its size and 96 MiB. `why` may be NULL. */
json_t *load_json(const char *text, size_t n, size_t flags, json_error_t *why);
/* Returns the kind of a value in words, as in "a list"; "missing" for NULL. */
const char *json_kind(const json_t *j);
/* Puts a value, which the object then owns, under a key. */
void put_json(json_t *to, const char *key, json_t *value);
/* null for NaN and infinity, which JSON does not have. */
json_t *number_json(double v);
/* Of a text that is no UTF-8, such as a name of a file, bytes above 127 are replaced. */
json_t *text_json(const char *s);
