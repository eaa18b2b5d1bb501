/* pt-check's reports of made-up results: many layers, foreign text as names, values that are
 * NaN. */
#include "base/file.h"
#include "check/report.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err e;

static void add_tensor(struct step_check *c, const char *name, double ratio)
{
	c->tensors = xgrow(c->tensors, c->n, sizeof(*c->tensors));
	c->order = xgrow(c->order, c->n, sizeof(*c->order));
	c->order[c->n] = c->n;
	struct tensor_check *x = &c->tensors[c->n++];
	*x = (struct tensor_check){.n = 64, .norm = 1, .factor = 1, .cause = -1};
	snprintf(x->name, sizeof(x->name), "%s", name);
	x->gradient = (struct distance){ratio * 1e-5, 1e-5, true, !(ratio <= 1)};
	x->moments = x->update = (struct distance){2e-6, 1e-5, true, false};
}

/* Makes a result with tensors of so many layers, all right. */
static void begin(struct step_check *c, int layers)
{
	static const char *const names[] = {"attention_norm.weight",
		"attention.wq.weight", "attention.wk.weight", "attention.wv.weight",
		"attention.wo.weight", "ffn_norm.weight", "feed_forward.w1.weight",
		"feed_forward.w3.weight", "feed_forward.w2.weight"};
	char name[64];
	*c = (struct step_check){
		.o = {.tp = 1, .cp = 1, .dp = 1, .fsdp = 1, .accumulation = 1},
		.has_reference = true,
		.computed = "float64",
		.scale = {.n_right = 1, .common = 1, .checked = true},
		.tested = true};
	c->files.before.name = c->files.after.name = "no-such-file.h5";
	c->files.before.format = c->files.after.format = "pt";
	add_tensor(c, "tok_embeddings.weight", 0.05);
	for (int i = 0; i < layers; i++)
		for (size_t k = 0; k < ARRAY_LEN(names); k++) {
			snprintf(name, sizeof(name), "layers.%d.%s", i, names[k]);
			add_tensor(c, name, 0.05);
		}
	add_tensor(c, "norm.weight", 0.05);
}

static void end(struct step_check *c)
{
	free(c->tensors);
	free(c->order);
}

static struct tensor_check *find(struct step_check *c, const char *name)
{
	for (int i = 0; i < c->n; i++)
		if (!strcmp(c->tensors[i].name, name))
			return &c->tensors[i];
	fail_msg("no tensor %s", name);
	return NULL;
}

/* Adds a wrong gradient with a finding. */
static void wrong(struct step_check *c, const char *name, double ratio, const char *text)
{
	struct tensor_check *x = find(c, name);
	x->gradient.value = ratio * x->gradient.bound;
	x->gradient.wrong = true;
	x->cause = add_finding(c, FINDING_GRADIENT, x, "%s", text);
}

/* Writes the report as the program does. */
static void write_report(const struct step_check *c, const char *name, struct str *out)
{
	const struct strs batch = {0};
	str_clear(out);
	if (step_check_report(c, &batch, test_path(name), &e) ||
		file_read(test_path(name), 1 << 24, out, &e))
		fail_msg("%s", e.msg);
}

static int count(const struct str *text, const char *what)
{
	int n = 0;
	for (const char *p = text->s; (p = strstr(p, what)); p += strlen(what))
		n++;
	return n;
}

TEST(many_layers)
{
	struct step_check c;
	struct str page = {0};
	begin(&c, 126);
	for (int i = 30; i < 61; i++) {
		char name[64];
		snprintf(name, sizeof(name), "layers.%d.attention.wq.weight", i);
		wrong(&c, name, 50, "transposed");
	}
	wrong(&c, "layers.7.attention.wq.weight", 50, "transposed");
	wrong(&c, "layers.125.ffn_norm.weight", 5e6, "transposed");
	write_report(&c, "r.html", &page);
	assert_int_equal(count(&page, "<td class=\"b1\" title="), 32);
	assert_int_equal(count(&page, "<td class=\"b3\" title="), 1);
	assert_int_equal(count(&page, "<td class=\"w1\" title="), 126 * 9 + 2 - 33);
	/* moments and update at a fifth of their bounds */
	assert_int_equal(count(&page, "<td class=\"w2\" title="), 2 * (126 * 9 + 2));
	assert_int_equal(count(&page, "<th>120</th>"), 3);
	assert_int_equal(count(&page, "<tr id="), c.n);
	assert_int_equal(count(&page, "<tr id=\"t0\">"), 1);
	assert_non_null(
		strstr(page.s, "<p>33 tensors: <code>layers.7,30-60.attention.wq.weight, "
			       "layers.125.ffn_norm.weight</code></p>"));
	assert_non_null(strstr(page.s,
		"backward order belongs to layers.125.ffn_norm.weight: residual 50, bound 1e-05"));
	assert_true(page.len < 1 << 20);
	write_report(&c, "r.md", &page);
	assert_int_equal(count(&page, "×"), 33 + 1); /* (and in the legend) */
	assert_true(page.len < 20000);
	str_free(&page);
	end(&c);
}

/* GitHub and browsers show names literally. */
TEST(foreign_names)
{
	static const char *const names[] = {"<script>alert(1)</script>",
		"layers.0.<img src=x>\"'&", "layers.01.a", "layers.-1.b",
		"layers.99999999999.c", "layers.0", "layers.5.", "|`*_x_*`|",
		"@TITLE@ %s", "\x1b[31m"};
	struct step_check c;
	struct str page = {0};
	begin(&c, 1);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		add_tensor(&c, names[i], 1);
		wrong(&c, names[i], 2, "the gradient of <script>alert(2)</script>|");
	}
	write_report(&c, "r.html", &page);
	assert_null(strstr(page.s, "<script"));
	assert_null(strstr(page.s, "<img"));
	assert_null(strchr(page.s, '\x1b'));
	assert_non_null(strstr(page.s, "<th>&lt;script&gt;alert(1)&lt;/script&gt;</th>"));
	assert_non_null(strstr(
		page.s, "title=\"layers.0.&lt;img src=x&gt;&quot;'&amp;: residual"));
	assert_non_null(strstr(page.s, "<th>@TITLE@ %s</th>"));
	/* each in the map and in the table */
	assert_int_equal(count(&page, "<td class=\"b0\""), ARRAY_LEN(names));
	assert_int_equal(count(&page, "<tr id="), c.n);
	write_report(&c, "r.md", &page);
	assert_null(strchr(page.s, '\x1b'));
	assert_non_null(
		strstr(page.s, "| \\<script\\>alert(1)\\</script\\> | Gradients |"));
	assert_non_null(strstr(page.s, "| \\|\\`\\*\\_x\\_\\*\\`\\| | Gradients |"));
	str_free(&page);
	end(&c);
}

/* Signs of cells, also without a distance. */
TEST(signs)
{
	static const struct {
		double value;
		bool tested, wrong;
		const char *sign;
		int step;
	} rows[] = {{1e-9, true, false, "·", 0}, {0, true, false, "·", 0},
		{5e-7, true, false, "·", 1}, {2e-6, true, false, "·", 2},
		{1e-5, true, false, "·", 2}, {1.1e-5, true, true, "×", 0},
		{2e-4, true, true, "×", 1}, {5e-3, true, true, "×", 2},
		{5, true, true, "×", 3}, {1e30, true, true, "×", 3},
		{INFINITY, true, true, "!", 3}, {NAN, true, true, "!", 3},
		{NAN, false, false, "–", -1},
		{5e-6, true, true, "×", 0}}; /* a wrong factor */
	struct step_check c;
	begin(&c, 1);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct tensor_check x = {.cause = -1};
		x.gradient = (struct distance){
			rows[i].value, 1e-5, rows[i].tested, rows[i].wrong};
		const struct map_mark m = mark_of_cell(&c, &x, TEST_GRADIENT);
		assert_string_equal(m.sign, rows[i].sign);
		assert_int_equal(m.step, rows[i].step);
		assert_int_equal(m.beyond, rows[i].wrong);
	}
	/* findings without a distance: an unchanged tensor, and one with NaN; and a note, which
	 * has no sign */
	struct tensor_check *x = find(&c, "layers.0.attention.wq.weight");
	add_finding(&c, FINDING_NOTE, x, "weight decay 0 instead of 0.1");
	assert_false(mark_of_cell(&c, x, TEST_UPDATE).beyond);
	add_finding(&c, FINDING_UPDATE, x, "has a gradient, but did not change");
	assert_string_equal(mark_of_cell(&c, x, TEST_UPDATE).sign, "×");
	assert_false(mark_of_cell(&c, x, TEST_GRADIENT).beyond);
	assert_false(mark_of_cell(&c, x, TEST_MOMENTS).beyond);
	x->nonfinite = true;
	assert_string_equal(mark_of_cell(&c, x, TEST_UPDATE).sign, "!");
	/* a finding about the gradient is not about the update */
	wrong(&c, "norm.weight", 3, "transposed");
	assert_false(mark_of_cell(&c, find(&c, "norm.weight"), TEST_UPDATE).beyond);
	end(&c);
}

/* The meaning of a finding depends on its kind, not on its text. */
TEST(meanings)
{
	struct step_check c;
	begin(&c, 1);
	struct tensor_check *x = find(&c, "norm.weight");
	for (enum finding_kind k = 0; k < N_FINDING_KINDS; k++)
		assert_int_equal(add_finding(&c, k, x, "loss: kind %d", k), k);
	for (int k = 0; k < N_FINDING_KINDS; k++) {
		assert_non_null(finding_meaning(&c, k));
		assert_int_equal(strstr(finding_meaning(&c, k), "forward pass") != NULL,
			k == FINDING_LOSS);
	}
	c.files.two_runs = true;
	assert_non_null(
		strstr(finding_meaning(&c, FINDING_GRADIENT), "gradients of the runs"));
	/* wrong moments make the update wrong */
	x->moments.wrong = true;
	int k = add_finding(&c, FINDING_UPDATE, x, "an update");
	assert_int_equal(c.findings[k].kind, FINDING_MOMENTS);
	end(&c);
}

/* The same calls write HTML and Markdown. */
TEST(writers)
{
	static const char *const head
		[] = {"a<b", ">n"},
	    *const texts[] = {
		    "<table>\n<thead><tr><th>a&lt;b</th><th class=\"number\">n</th></tr></thead>\n"
		    "<tbody>\n<tr><th>x|y</th><td class=\"number\">–</td></tr>\n</tbody>\n</table>\n"
		    "</div>\n<p class=\"note\">1 &lt; 2</p>",
		    "| a\\<b | n |\n| --- | ---: |\n| x\\|y | - |\n\n1 \\< 2\n"};
	for (int kind = PAGE_HTML; kind <= PAGE_MD; kind++) {
		struct str out = {0};
		struct doc d = {.kind = (enum page_kind)kind, .out = &out};
		doc_head(&d, "id", head, ARRAY_LEN(head));
		doc_row(&d);
		doc_cell(&d, CELL_HEADING, "x|y");
		doc_cell(&d, CELL_NUMBER, "");
		doc_row_end(&d);
		doc_table_end(&d);
		doc_note(&d, "1 < 2");
		const char *table = kind == PAGE_HTML ? strstr(out.s, "<table") : out.s;
		assert_string_equal(table, texts[kind]);
		str_free(&out);
	}
}

/* Layers with nothing in common do not make a grid with millions of cells. */
TEST(no_grid)
{
	struct step_check c;
	struct check_report r;
	char name[64];
	begin(&c, 0);
	for (int i = 0; i < 2000; i++) {
		snprintf(name, sizeof(name), "layers.%d.tensor%d", i, i);
		add_tensor(&c, name, 0.5);
	}
	report_maps_init(&r, &c, &(struct strs){0});
	assert_int_equal(r.n_layers, 0);
	assert_int_equal(r.n_rows, c.n);
	report_maps_release(&r);
	end(&c);
}
