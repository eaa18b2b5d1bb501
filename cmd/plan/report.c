/* The results of a search, as text, JSON and arguments. */
#include "plan/planner.h"

#include <jansson.h>

#include "comm/mesh.h"
#include "parallel/parallel.h"

static const char *const offload_names[] = {OFFLOAD_WORDS};
static const char *const trainers[] = {TRAINER_WORDS};

/* Returns the model FLOPs utilization of a layout. */
static double choice_mfu(const struct request *r, const struct choice *c)
{
	const struct cluster *k = &r->cluster;
	int here = r->ranks / r->hosts;
	double peak = cluster_peak(k, options_gemm_dtype(r->o),
			      r->o->numerics == NUMERICS_EXACT, here) *
		      cluster_compute_fraction(k, here);
	double tokens = (double)(r->o->batch * r->m->c.context) / c->times.step;
	return tokens * model_flops_per_token(r->m, false) / (peak * r->ranks);
}

void report_layout(const struct layout *l, struct str *out)
{
	mesh_name(l->degree, out);
	if (l->ep > 1)
		str_printf(out, " ep=%d", l->ep);
	if (l->zero)
		str_printf(out, " zero=%d", l->zero);
	if (l->zero == 3 && l->reshard == RESHARD_NO)
		str_puts(out, " keep");
	if (l->degree[AXIS_PP] > 1)
		str_printf(out, " %s", schedule_kind_names[l->schedule]);
	if (l->stages > 1)
		str_printf(out, ",%d", l->stages);
	str_printf(out, " mb=%d", l->micro_batch);
	if (l->recompute)
		str_printf(out, " %s", recompute_names[l->recompute]);
	if (l->tile)
		str_printf(out, " tile=%d", l->tile);
	if (l->offload)
		str_printf(out, " offload=%s", offload_names[l->offload]);
}

/* Prints how many layouts were planned, and the error of extrapolations from fewer layers. */
static void append_planned(const struct search *s, struct str *out)
{
	str_printf(out, "# planned exactly: %lld", (long long)s->planned);
	if (s->extrapolated)
		str_printf(
			out, ", %lld with fewer layers (=)", (long long)s->extrapolated);
	if (s->proved)
		str_puts(
			out, "; no other layout can be faster in the middle of its band");
	if (s->replanned)
		str_printf(out,
			"; planned with all layers, the first %s by %s%.2f %% in time and %.2f %% "
			"in memory",
			s->replanned > 1 ? "ones differ" : "one differs",
			s->replanned > 1 ? "at most " : "", 100 * s->time_error,
			100 * s->memory_error);
	str_putc(out, '\n');
}

static struct band choice_band(const struct request *r, const struct choice *c)
{
	return time_band(r->trainer, &c->l, r->cluster.links.host_ranks,
		r->o->dtype == PRECISION_FLOAT8);
}

/* Writes a band of factors of the predicted value, such as "-10%+20%" for 0.9 to 1.2. */
static const char *band_text(char text[static NUM_TEXT], struct band b)
{
	snprintf(text, NUM_TEXT, "%+.0f%%%+.0f%%", 100 * (b.low - 1), 100 * (b.high - 1));
	return text;
}

/* Prints the bands of times and memory, and the measurements that they are from. */
static void append_bands(const struct request *r, struct str *out)
{
	const struct cluster *c = &r->cluster;
	bool is_known = cluster_is_unmodified(c);
	bool has_source = is_known && !r->m->c.experts;
	const char *sources = has_source ? time_sources(r->trainer, c->name) : NULL;
	char memory[NUM_TEXT];
	if (!trainer_has_times(r->trainer))
		str_puts(out,
			"# no times: the formulas differ too much from measured times");
	else if (sources)
		str_printf(out, "# band: %s", sources);
	else if (r->m->c.experts)
		str_puts(out,
			"# band: assumed, as for dense models; no time with experts was "
			"compared");
	else
		str_printf(out,
			"# band: assumed, as on H100; no published time was compared on %s%s",
			*c->model ? c->name : "CPUs",
			is_known || !*c->model ? "" : " with these values");
	str_printf(out, "; %s %s\n", memory_band_text(r->trainer),
		band_text(memory, memory_band(r->trainer)));
}

void report_header(const struct request *r, struct str *out)
{
	const struct cluster *c = &r->cluster;
	const struct model_counts n = model_counts(r->m);
	char memory[NUM_TEXT], all[NUM_TEXT], active[NUM_TEXT];
	str_printf(out,
		"# %s dtype=%s batch=%lld context=%lld, trained by %s on %d x %d ",
		r->model, precision_names[r->o->dtype], (long long)r->o->batch,
		(long long)r->m->c.context, trainers[r->trainer], r->hosts,
		r->ranks / r->hosts);
	if (cluster_is_unmodified(c) && c->attention <= 0 && c->experts <= 0)
		str_puts(out, c->name);
	else
		cluster_print(c, out);
	if (r->limit)
		str_printf(out, " with %s each", text_bytes(memory, (double)r->limit));
	str_putc(out, '\n');
	if (r->m->c.experts)
		str_printf(out,
			"# %s parameters; %s of them, with %lld of %lld experts, compute a token\n",
			text_count(all, (double)n.all),
			text_count(active, (double)n.active),
			(long long)r->m->c.experts_per_token, (long long)r->m->c.experts);
}

/* Prints the memory of each layout, for a trainer without times. */
static void append_memories(
	const struct request *r, const struct search *s, struct str *out)
{
	str_printf(out, "# %9s  %s\n", "memory", "layout");
	for (int64_t i = 0; i < min64(s->n, r->show); i++) {
		char memory[NUM_TEXT];
		str_printf(out, "~ %9s  ", text_bytes(memory, s->best[i].memory.total));
		report_layout(&s->best[i].l, out);
		str_putc(out, '\n');
	}
}

void report_table(const struct request *r, const struct search *s, struct str *out)
{
	enum { FIRST_EXACT = 60 };
	bool tight = false;
	static const char marks[] = {
		[BY_FORMULAS] = '~', [BY_FEWER_LAYERS] = '=', [BY_WHOLE_PLAN] = ' '};
	if (r->trainer == BY_PT)
		append_planned(s, out);
	append_bands(r, out);
	if (!trainer_has_times(r->trainer)) {
		append_memories(r, s, out);
		return;
	}
	str_printf(out, "# %10s %11s %6s %12s %9s %7s %7s  %s\n", "step_s", "band", "mfu",
		"tokens/s", "memory", "exposed", "bubble", "layout");
	for (int64_t i = 0; i < min64(s->n, r->show); i++) {
		const struct choice *c = &s->best[i];
		const struct times *t = &c->times;
		char memory[NUM_TEXT], band[NUM_TEXT];
		str_printf(out, "%c %10.4f %11s %6.4f %12.0f %9s%c%6.1f%% %6.1f%%  ",
			marks[c->planned], t->step, band_text(band, choice_band(r, c)),
			choice_mfu(r, c),
			(double)(r->o->batch * r->m->c.context) / t->step,
			text_bytes(memory, c->memory.total), c->tight ? '!' : ' ',
			100 * t->exposed / t->step, 100 * t->bubble / t->step);
		report_layout(&c->l, out);
		str_putc(out, '\n');
		tight |= c->tight;
	}
	if (tight)
		str_puts(out,
			"# !: above the limit at the upper end of the memory's band\n");
	if (s->n < r->show && r->trainer == BY_PT && r->exact && !s->proved)
		str_printf(out,
			"# %lld of %lld layouts listed; --exact %lld plans more\n",
			(long long)s->n, (long long)s->fitting,
			(long long)(r->exact < 0 ? FIRST_EXACT : 2 * r->exact));
}

void report_counts(const struct search *s, struct str *out)
{
	str_printf(out,
		"# %lld layouts, %lld within memory by the formulas, %lld planned exactly, "
		"%lld rejected by pt-train; %.3f s\n",
		(long long)s->enumerated, (long long)s->fitting, (long long)s->planned,
		(long long)s->rejected, s->seconds);
}

static const char *const memory_kinds[] = {"parameters", "gradients", "gathered",
	"optimizer", "activations", "scratch", "other", "total", "host"};

static void list_memory(const struct memory *m, double v[static ARRAY_LEN(memory_kinds)])
{
	const double all[] = {m->params, m->grads, m->gathered, m->optimizer,
		m->activations, m->scratch, m->other, m->total, m->host};
	memcpy(v, all, sizeof(all));
}

void report_details(const struct request *r, const struct search *s, struct str *out)
{
	for (int64_t i = 0; i < min64(s->n, r->show); i++) {
		const struct choice *c = &s->best[i];
		double v[ARRAY_LEN(memory_kinds)];
		char text[NUM_TEXT];
		list_memory(&c->memory, v);
		str_puts(out, "# ");
		report_layout(&c->l, out);
		str_puts(out, "\n  memory of the rank that needs most:");
		for (size_t k = 0; k < ARRAY_LEN(memory_kinds); k++)
			str_printf(
				out, " %s %s", memory_kinds[k], text_bytes(text, v[k]));
		str_putc(out, '\n');
		if (!trainer_has_times(r->trainer))
			continue;
		str_puts(out, "  seconds of communication, alone:");
		for (int a = 0; a < N_AXES; a++)
			if (c->l.degree[a] > 1)
				str_printf(
					out, " %s %.4f", axis_names[a], c->times.axis[a]);
		str_printf(out, "; exposed %.4f\n", c->times.exposed);
	}
}

void report_arguments(const struct request *r, const struct layout *l, const char *given,
	struct str *out)
{
	str_printf(out, "%s batch=%lld", given, (long long)r->o->batch);
	layout_print(l, r->o, out);
	str_printf(out, " device=%s", r->o->device == DEVICE_CUDA ? "cuda" : "cpu");
}

static void set_real(json_t *o, const char *name, double x)
{
	json_object_set_new(o, name, json_real(x));
}

static void set_int(json_t *o, const char *name, int64_t n)
{
	json_object_set_new(o, name, json_integer((json_int_t)n));
}

/* Returns a new object with the settings of a layout. */
static json_t *layout_json(const struct layout *l)
{
	json_t *o = json_object();
	for (int a = 0; a < N_AXES; a++)
		set_int(o, axis_names[a], l->degree[a]);
	if (l->ep)
		set_int(o, "ep", l->ep);
	set_int(o, "zero", l->zero);
	json_object_set_new(o, "reshard", json_boolean(l->reshard != RESHARD_NO));
	json_object_set_new(o, "schedule", json_string(schedule_kind_names[l->schedule]));
	set_int(o, "stages", l->stages);
	set_int(o, "micro_batch", l->micro_batch);
	json_object_set_new(o, "recompute", json_string(recompute_names[l->recompute]));
	set_int(o, "tile", l->tile);
	json_object_set_new(o, "offload", json_string(offload_names[l->offload]));
	return o;
}

/* Adds the times of a choice to object o, in seconds. */
static void set_times(json_t *o, const struct request *r, const struct choice *c)
{
	const struct times *t = &c->times;
	json_t *alone = json_object();
	for (int a = 0; a < N_AXES; a++)
		set_real(alone, axis_names[a], t->axis[a]);
	set_real(o, "step", t->step);
	set_real(o, "computation", t->computation);
	set_real(o, "exposed", t->exposed);
	set_real(o, "bubble", t->bubble);
	set_real(o, "mfu", choice_mfu(r, c));
	set_real(o, "step_low", t->step * choice_band(r, c).low);
	set_real(o, "step_high", t->step * choice_band(r, c).high);
	set_real(o, "least_step", c->bound_step);
	json_object_set_new(o, "communication", alone);
}

/* Returns a new object: a layout with its times, its memory and the trainer's arguments. */
static json_t *choice_json(
	const struct request *r, const struct choice *c, const char *given)
{
	double v[ARRAY_LEN(memory_kinds)];
	scoped_str args = {0};
	json_t *o = json_object(), *memory = json_object();
	list_memory(&c->memory, v);
	for (size_t k = 0; k < ARRAY_LEN(memory_kinds); k++)
		set_int(memory, memory_kinds[k], (int64_t)v[k]);
	if (trainer_has_times(r->trainer))
		set_times(o, r, c);
	json_object_set_new(o, "exact", json_boolean(c->planned != BY_FORMULAS));
	json_object_set_new(o, "whole", json_boolean(c->planned == BY_WHOLE_PLAN));
	json_object_set_new(o, "memory_tight", json_boolean(c->tight));
	set_real(o, "least_memory", c->bound_bytes);
	json_object_set_new(o, "memory", memory);
	json_object_set_new(o, "layout", layout_json(&c->l));
	if (r->trainer == BY_PT)
		report_arguments(r, &c->l, given, &args);
	else
		trainer_arguments(r->trainer, r->o, r->m, &c->l, &args);
	json_object_set_new(o, "arguments", json_string(args.s));
	return o;
}

int report_json(const struct request *r, const struct search *s, const char *given,
	struct str *out, struct err *e)
{
	json_t *all = json_object(), *rows = json_array();
	scoped_str cluster = {0};
	for (int64_t i = 0; i < min64(s->n, r->show); i++)
		json_array_append_new(rows, choice_json(r, &s->best[i], given));
	cluster_print(&r->cluster, &cluster);
	json_object_set_new(all, "model", json_string(r->model));
	json_object_set_new(all, "trainer", json_string(trainers[r->trainer]));
	json_object_set_new(all, "dtype", json_string(precision_names[r->o->dtype]));
	json_object_set_new(all, "cluster", json_string(cluster.s));
	set_int(all, "batch", r->o->batch);
	set_int(all, "context", r->m->c.context);
	set_int(all, "hosts", r->hosts);
	set_int(all, "ranks", r->ranks);
	set_int(all, "memory_limit", r->limit);
	set_int(all, "layouts", s->enumerated);
	set_int(all, "fitting", s->fitting);
	set_int(all, "planned", s->planned);
	set_int(all, "refused", s->rejected);
	set_real(all, "seconds", s->seconds);
	json_object_set_new(all, "results", rows);
	scoped_ptr char *text = json_dumps(all, JSON_INDENT(2));
	json_decref(all);
	if (!text)
		return err_set(e, EX_FAILED, "out of memory");
	str_printf(out, "%s\n", text);
	return 0;
}
