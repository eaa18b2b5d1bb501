/* report: the content of a report, in any format. Names of tensors and files are foreign text. */
#pragma once

#include "draw/draw.h"
#include "check/check.h"

/* A row of the maps: the tensors with one name in all layers, or a tensor outside of layers. */
struct map_row {
	const char *name; /* without the layer */
	bool outside;
	int n;	      /* number of layers, or 1 */
	int *tensors; /* [n] tensors; -1: none */
};

struct check_report {
	const struct step_check *c;
	const struct strs *batch; /* names of the batch's files */
	struct map_row *rows;
	int n_rows, n_layers;
	int64_t *layers; /* layer numbers */
};

/* ---- report_map.c: tensors in rows and columns ------------------------------------------ */

extern const char *const check_test_names[N_CHECK_TESTS];

/* Initializes *r: one row per name in all layers, or per tensor if layers differ much.
 * Borrows c and batch. */
void report_maps_init(
	struct check_report *r, const struct step_check *c, const struct strs *batch);
void report_maps_release(struct check_report *r);
/* Appends the name of a row without ".weight": "attention.wq". */
void map_row_name(const struct map_row *row, struct str *out);

enum { MARKS_WITHIN = 3, MARKS_BEYOND = 4 };
/* A cell of a map: its sign and color level. Each level is for distances ten times larger. */
struct map_mark {
	const char *sign;
	bool beyond;
	int step; /* below MARKS_WITHIN or MARKS_BEYOND; -1: no color */
};
/* Returns the sign and color of a tensor's distance in test t, relative to its bound. */
struct map_mark mark_of_cell(
	const struct step_check *c, const struct tensor_check *x, enum check_test t);
/* Returns true if a cell of the map of test t has a color. */
bool has_colored_cell(const struct check_report *r, enum check_test t);

/* ---- findings.c -------------------------------------------------------------------------- */

const char *finding_meaning(const struct step_check *c, int finding);
int count_findings(const struct step_check *c, bool notes);

struct check_verdict {
	const char *word;
	enum report_tone tone;
	const char *line;
	const char *reason;
};
/* Returns the words of the verdict. For a wrong step, line and reason are NULL: the number of
 * findings takes their place. */
const struct check_verdict *step_verdict(const struct step_check *c);
/* Appends "its scale and its update were not checked"; nothing if all parts were checked. */
void append_verdict_exceptions(const struct step_check *c, struct str *out);

/* ---- print.c ------------------------------------------------------------------------------ */

struct tally {
	int tested, wrong;
	double min_bound, max_bound;
	const struct tensor_check *worst; /* largest distance relative to its bound */
};
struct tally tally_test(const struct step_check *c, enum check_test test);

/* ---- report.c: words and numbers ---------------------------------------------------------- */

/* Appends the text after the verdict: the number of findings, or why the step is right. */
void append_verdict_reason(const struct step_check *c, struct str *out);

/* Returns the name of fact i of "What was checked", and its text; NULL: it does not apply. */
enum { N_REPORT_FACTS = 13 };
const char *report_fact(const struct check_report *r, int i, struct str *text);

struct report_scale {
	const char *name;
	double expected, seen; /* NAN: unknown */
};
enum { MAX_REPORT_SCALES = 6 };
int list_report_scales(
	const struct step_check *c, struct report_scale s[AT_LEAST(MAX_REPORT_SCALES)]);
/* Returns a sentence if the scale was not checked; else NULL. */
const char *report_scale_note(const struct step_check *c);

/* Returns the first tensor in backward order with a wrong gradient; NULL: none. */
const struct tensor_check *first_wrong_gradient(const struct step_check *c);
bool has_finding(const struct tensor_check *x, int finding);
/* Appends ", " and the row's tensors with a finding: "layers.0-5,7.attention.wq.weight", or with
 * "*" for all layers. Returns false if there are none. report_tensors() appends all rows. */
bool report_row_tensors(const struct check_report *r, const struct map_row *row,
	int finding, struct str *out);
void report_tensors(const struct check_report *r, int finding, struct str *out);

/* Formats v with so many digits; "" for NAN. Returns buf. */
const char *format_number(char buf[AT_LEAST(NUM_TEXT)], int digits, double v);
/* Returns v, or NAN if it is unknown. */
double known_or_nan(bool is_known, double v);
