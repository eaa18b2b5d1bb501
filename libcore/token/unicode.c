/* Classes and properties of Unicode characters. */
#include "token/unicode_internal.h"

#include <pthread.h>

enum { ALPHABETIC = 1, LOWERCASE = 2, UPPERCASE = 4 }; /* the flags of unicode.py */

static uint16_t kinds[CODE_POINTS];
static uint8_t classes[CODE_POINTS];

/* Returns the CHAR_ class of a general category such as "Lu". */
static int category_class(const char *category)
{
	switch (*category) {
	case 'Z':
		return CHAR_SPACE;
	case 'N':
		return CHAR_NUMBER;
	case 'M':
		return CHAR_MARK;
	case 'L':
		return category[1] == 'l'			  ? CHAR_LOWER
		       : category[1] == 'u' || category[1] == 't' ? CHAR_UPPER
								  : CHAR_LETTER;
	}
	return CHAR_OTHER;
}

/* Fills kinds[] and classes[], indexed by code point, from the compressed runs. */
static void fill_tables(void)
{
	for (int i = 0; i < unicode_n_runs; i++) {
		uint32_t end =
			i + 1 < unicode_n_runs ? unicode_runs[i + 1] >> 11 : CODE_POINTS;
		uint16_t kind = unicode_kinds[unicode_runs[i] & 0x7ff];
		int class = category_class(unicode_categories[kind & 31]);
		for (uint32_t c = unicode_runs[i] >> 11; c < end; c++) {
			kinds[c] = kind;
			classes[c] = (uint8_t) class;
		}
	}
	/* the property White_Space has more characters than the categories Z */
	memset(&classes['\t'], CHAR_SPACE, '\r' - '\t' + 1);
	classes[0x85] = CHAR_SPACE;
}

static void fill_tables_once(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, fill_tables);
}

const uint8_t *char_classes(void)
{
	fill_tables_once();
	return classes;
}

/* Returns true if a category is the named one, or in it: L contains Lu, and L& the cased ones. */
static bool category_matches(const char *category, const char *name)
{
	if (!strcmp(name, "L&"))
		return category[0] == 'L' && strchr("lut", category[1]);
	return !strncmp(category, name, strlen(name));
}

bool unicode_property(const char *name, bool has[CODE_POINTS])
{
	const struct {
		const char *name, *categories[2];
		int flag;
	} rows[] = {{"Alphabetic", {"L", "Nl"}, ALPHABETIC},
		{"Lowercase", {"Ll"}, LOWERCASE}, {"Uppercase", {"Lu"}, UPPERCASE},
		{"Any", {""}, 0}, {name, {name}, 0}},
	  *row = rows;
	bool wanted[32] = {0}, known = false;
	int script = 0;
	fill_tables_once();
	while (strcmp(row->name, name) != 0)
		row++;
	while (script < unicode_n_scripts && strcmp(unicode_scripts[script], name) != 0)
		script++;
	for (int i = 0; i < unicode_n_categories; i++)
		for (int k = 0; k < 2 && row->categories[k]; k++)
			wanted[i] |= category_matches(
				unicode_categories[i], row->categories[k]);
	for (uint32_t c = 0; c < CODE_POINTS; c++) {
		has[c] = wanted[kinds[c] & 31] || kinds[c] >> 13 & row->flag ||
			 (kinds[c] >> 5 & 255) == script;
		known |= has[c];
	}
	return known;
}
