/* json: values of JSON, with jansson, for programs that print them. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/base.h"

#include <jansson.h>

/* Puts a value, which the object then owns, under a key. */
void put_json(json_t *to, const char *key, json_t *value);
/* null for NaN and infinity, which JSON does not have. */
json_t *number_json(double v);
/* Of a text that is no UTF-8, such as a name of a file, bytes above 127 are replaced. */
json_t *text_json(const char *s);

#endif
