/* pt-plan: which parallel layout trains a model fastest on a cluster? */
#include "base/file.h"
#include "options/options.h"
#include "base/utf8.h"
#include "plan/network.h"
#include "comm/comm.h"
#include "engine/backend.h"
#include "foreign/foreign.h"
#include "h5/h5.h"
#include "kernels/kernels.h"
#include "parallel/dispatch.h"
#include "plan/planner.h"

#include <glob.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

struct opts {
	const char *cluster, *network, *only;
	int64_t hosts, gpus, memory, tokens, show, exact, seed;
	int trainer, target;
	bool best, explain, details, json, verbose;
	struct reliability job;
	double hours, imbalance;
	int64_t timeline;
};

static const char *const trainer_names[] = {TRAINER_WORDS, NULL};

/* clang-format off */
#define O(field) offsetof(struct opts, field)
static const struct opt options[] = {
	{OPT_GROUP, .name = "Cluster"},
	{OPT_STR, 'c', "cluster", "NAME,KEY=VALUE,...", "h100", O(cluster), .help =
		"Devices and links: h100, h200, b200, a100 or cpu. KEY=VALUE changes a value of "
		"the device or link, to describe another device; Clusters in pt-plan(1) lists the "
		"keys."},
	{OPT_INT, 'H', "hosts", "N", "1", O(hosts), 0, 1, 1 << 20, .help =
		"Number of hosts."},
	{OPT_INT, 'g', "gpus", "N", "0", O(gpus), 0, 0, 1 << 16, .help =
		"GPUs per host, or ranks per host on a cluster of CPUs (0: the number of "
		"--cluster)."},
	{OPT_SIZE, 'm', "memory", "BYTES", "0", O(memory), .help =
		"Memory that a rank can use. 0: the memory of the GPU of --cluster; CPUs have no "
		"limit."},
	{OPT_STR, 0, "network", "FILE", NULL, O(network), .files = ".h5", .help =
		"Read latencies and bandwidths from the fits in a result of pt-collbench. For "
		"GPUs, the fits of NCCL are used if the result has any, else the fits of MPI."},
	{OPT_GROUP, .name = "Trainer"},
	{OPT_ENUM, 0, "trainer", NULL, "pt", O(trainer), .values = trainer_names, .help =
		"The trainer to plan for. Layouts of pt are planned by the code that trains. "
		"Layouts of other trainers are planned by formulas that are fitted to published "
		"measurements; for nanotron, the formulas predict only memory."},
	{OPT_ENUM, 0, "for", NULL, "pt", O(target), .values = trainer_names, .help =
		"With --best, print the arguments of this trainer. This option also sets the "
		"default of --trainer."},
	{OPT_GROUP, .name = "Search"},
	{OPT_SIZE, 't', "tokens", "N", "0", O(tokens), .help =
		"Tokens per step, a multiple of the context (0: the batch of the model's preset)."},
	{OPT_STR, 'o', "only", "KEY=VALUE,...", NULL, O(only), .help =
		"List only layouts with these settings of pt-train, such as "
		"tp=8,pp-schedule=gpipe. If a key is given several times, any of its values is "
		"allowed. Values that are not searched by default are allowed, too."},
	{OPT_INT, 'x', "exact", "N", "-1", O(exact), 0, -1, 1e6, .help =
		"Plan by the code that trains until N layouts fit, in the order of their time "
		"bounds. 0: plan all layouts. -1: plan up to 100 layouts, but fewer if all other "
		"layouts are bound to be slower or if planning takes longer than a few seconds; "
		"large models are planned with fewer layers."},
	{OPT_DOUBLE, 0, "imbalance", "X", "1", O(imbalance), 0, 1, 1e6, .help =
		"Load of the fullest rank of a mixture of experts with ep, as a multiple of the "
		"balanced number of rows. expert_rows in the log of a run has this number."},
	{OPT_GROUP, .name = "Output"},
	{OPT_INT, 'n', "show", "N", "10", O(show), 0, 1, 1e6, .help =
		"Number of layouts to list, sorted by the middle of the band of the predicted time."},
	{OPT_FLAG, 'b', "best", NULL, "no", O(best), .help =
		"Print only the arguments of the trainer for the fastest layout."},
	{OPT_FLAG, 'e', "explain", NULL, "no", O(explain), .help =
		"Print which kinds of parallelism the model needs on this cluster, and why."},
	{OPT_FLAG, 'd', "details", NULL, "no", O(details), .help =
		"Also list memory by kind and communication by axis for each layout."},
	{OPT_FLAG, 'j', "json", NULL, "no", O(json), .help = "Print JSON."},
	{OPT_FLAG, 'v', "verbose", NULL, "no", O(verbose), .help =
		"Also print the number of layouts searched and the time of the search."},
	{OPT_GROUP, .name = "Timeline and goodput"},
	{OPT_INT, 0, "timeline", "WIDTH", "0", O(timeline), 0, 0, 1000, .help =
		"Draw a step of the fastest layout in this width, for the pipeline that stragglers "
		"delay most (0: no drawing)."},
	{OPT_DOUBLE, 0, "failures", "N", "0", O(job.failures), 0, 0, 1e6, .help =
		"Number of failures of the job per hour."},
	{OPT_DOUBLE, 0, "ckpt-cost", "SECONDS", "0", O(job.checkpoint), 0, 0, 1e6, .help =
		"Time for which a checkpoint stops training."},
	{OPT_DOUBLE, 0, "ckpt-secs", "SECONDS", "0", O(job.interval), 0, 0, 1e9, .help =
		"Time between checkpoints (0: the optimum by Daly 2006)."},
	{OPT_DOUBLE, 0, "restart-cost", "SECONDS", "0", O(job.restart), 0, 0, 1e6, .help =
		"Time from a failure to the first step after this failure."},
	{OPT_DOUBLE, 0, "slow", "FACTOR", "1", O(job.slow), 0, 1, 1e6, .help =
		"Slowdown factor of a straggler."},
	{OPT_DOUBLE, 0, "slow-prob", "P", "0", O(job.probability), 0, 0, 1, .help =
		"Probability that a rank is a straggler in a step."},
	{OPT_DOUBLE, 0, "hours", "N", "1000", O(hours), 0, 0.001, 1e6, .help =
		"Length of the job to simulate, in addition to the formula; the job has at most "
		"1e8 steps."},
	{OPT_INT, 0, "seed", "N", "1", O(seed), 0, 0, 1e18, .help =
		"Random seed of the simulation and of --timeline."},
	{OPT_END},
};
/* clang-format on */

static const char *const synopsis[] = {
	"[options] MODEL [key=value ...]",
	"--best [options] MODEL [key=value ...]",
	NULL,
};

static const struct program program = {
	.name = "pt-plan",
	.summary = "find the parallel layout that trains a model fastest on a cluster",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct opts),
	.one_rank = true,
	.operands = "",
	.versions = h5_versions,
};

/* Rejects settings that would change the ranks or the batch of a layout. */
static int check_settings(const struct train_opts *o, struct err *e)
{
	const struct mistake mistakes[] = {
		{o->edit.workers > 1,
			"edit-workers: pt-plan plans a single worker; omit it, and give the hosts "
			"and the batch of one worker"},
		{o->batch_per_rank,
			"batch-per-rank: all layouts must have the same batch, but differ in "
			"data-parallel ranks; give batch=N"},
	};
	return options_reject(mistakes, ARRAY_LEN(mistakes), e);
}

/* Returns false if the shell would split or expand `word` in the output of $(pt-plan --best ...).
 * A pattern that matches no file stays as it is, as most regular expressions do. */
static bool is_safe_in_shell(const char *word)
{
	glob_t files;
	if (!*word || word[strcspn(word, " \t\n")])
		return false;
	if (!word[strcspn(word, "*?[")] || glob(word, 0, NULL, &files))
		return true;
	globfree(&files);
	return false;
}

/* Returns true if MODEL is a path. A name with a dot is a path only if the file exists: otherwise
 * it is taken for a preset, and the error lists the presets. */
static bool is_file(const char *model)
{
	return strchr(model, '/') || (strchr(model, '.') && !access(model, F_OK));
}

/* Appends to *path the config.json of Hugging Face that MODEL names by file or directory; nothing
 * if MODEL is a preset or a config file. */
static void hf_config_path(const char *model, struct str *path)
{
	scoped_str preset = {0};
	struct stat st;
	scoped_ptr char *preset_name = text_printf("presets/%s.conf", model);
	share_path(&preset, preset_name);
	if (stat(model, &st) || (!strchr(model, '/') && file_exists(preset.s)))
		return;
	if (S_ISDIR(st.st_mode))
		str_printf(path, "%s/config.json", model);
	else if (text_ends(model, ".json"))
		str_puts(path, model);
}

/* Converts a config.json to settings of pt-train, each ended by NUL. Returns their number or -1. */
static int read_hf_config(const char *path, struct str *settings, struct err *e)
{
	int n = 0;
	scoped_str text = {0};
	if (convert_config_options(path, &text, e))
		return -1;
	for (char *line = text.s, *end; *line; line = end + 1, n++) {
		char *equals = strstr(line, " = ");
		end = strchr(line, '\n');
		str_printf(settings, "%.*s=%.*s", (int)(equals - line), line,
			(int)(end - equals - 3), equals + 3);
		str_add(settings, "", 1);
	}
	return n;
}

/* Returns true for a setting that report_arguments() prints itself. */
static bool is_layout_setting(const char *word)
{
	return is_setting(word) || !strncmp(word, "batch=", strlen("batch=")) ||
	       !strncmp(word, "device=", strlen("device="));
}

/* Parses MODEL (a preset, a config file, or a model of Hugging Face) and key=value options of
 * pt-train. Sets *given to the equivalent arguments of pt-train, without the layout. */
static int parse_model(
	char **words, int n, struct train_opts *o, struct str *given, struct err *e)
{
	const char *argv[256] = {"pt-train"};
	int argc = 1;
	bool is_path = is_file(words[0]);
	scoped_str json = {0}, settings = {0};
	if (n > 200)
		return err_set(
			e, EX_USAGE, "%d settings are too many; the maximum is 200", n);
	hf_config_path(words[0], &json);
	int n_hf = json.len ? read_hf_config(json.s, &settings, e) : 0;
	if (n_hf < 0)
		return -1;
	for (const char *setting = settings.s; n_hf > 0; n_hf--) {
		str_printf(given, "%s%s", argc > 1 ? " " : "", setting);
		argv[argc++] = setting;
		setting += strlen(setting) + 1;
	}
	if (!json.len) {
		argv[argc++] = is_path ? "--config" : "--preset";
		argv[argc++] = words[0];
		str_printf(given, "%s %s", argv[1], words[0]);
	}
	for (int i = 0; i < n; i++)
		if (!is_safe_in_shell(words[i]))
			return err_set(e, EX_USAGE,
				"'%s': --best prints for $(...), where the shell splits "
				"words at blanks and expands * ? [ to file names",
				words[i]);
	for (int i = 1; i < n; i++) {
		if (!strchr(words[i], '='))
			return err_set(e, EX_USAGE,
				"'%s' is not a setting of pt-train; give key=value",
				words[i]);
		argv[argc++] = words[i];
		if (!is_layout_setting(words[i]))
			str_printf(given, " %s", words[i]);
	}
	int n_left = opts_parse(&train_program, o, argc, (char **)argv, e);
	if (n_left > 0) /* an operand, which pt-train does not have */
		return opts_unknown_key_error(&train_program, argv[0], e);
	return n_left ? -1 : check_settings(o, e);
}

/* Sets the cluster, the ranks and the memory limit of *r. Returns -1 with *e set. */
static int cluster_from_options(const struct opts *o, struct request *r, struct err *e)
{
	struct cluster *c = &r->cluster;
	if (cluster_parse(o->cluster, c, e) ||
		(o->network && network_read(c, (int)o->hosts, o->network, e)))
		return -1;
	if (o->gpus)
		c->links.host_ranks = (int)o->gpus;
	if (only_parse(o->only, &r->only, e))
		return -1;
	if (r->trainer != BY_PT && !*c->model)
		return err_set(e, EX_USAGE,
			"--trainer %s was measured on GPUs only; give a --cluster of GPUs",
			trainer_names[r->trainer]);
	r->hosts = (int)o->hosts;
	if (o->hosts * c->links.host_ranks > 1 << 20)
		return err_set(
			e, EX_USAGE, "--hosts and --gpus: more than %d ranks", 1 << 20);
	r->ranks = r->hosts * c->links.host_ranks;
	r->limit = o->memory ? o->memory : c->capacity;
	return 0;
}

/* Rejects --only offload on CPUs without a directory to offload to. */
static int check_offload(const struct request *r, struct err *e)
{
	int kind[MAX_ONLY];
	int n = only_values(&r->only, SET_OFFLOAD, kind);
	for (int i = 0; i < n; i++)
		if (kind[i] && r->o->device == DEVICE_CPU && !r->o->offload_to)
			return err_set(e, EX_USAGE,
				"--only offload: CPUs offload to a directory; give the setting "
				"offload-to=DIRECTORY");
	return 0;
}

/* Warns about key=value settings without effect: the search or the cluster determines them. */
static void warn_ignored_settings(
	const struct request *r, const struct train_opts *o, char **words, int n)
{
	scoped_str keys = {0};
	bool has_gpus = *r->cluster.model;
	for (int i = 1; i < n; i++)
		if (is_setting_ignored(&r->only, words[i]))
			str_printf(&keys, "%s%s", keys.len ? "," : "", words[i]);
	if (keys.len)
		warn("%s: ignored, because the search tries all values; --only %s restricts it",
			keys.s, keys.s);
	if (o->device == (has_gpus ? DEVICE_CPU : DEVICE_CUDA))
		warn("device=%s: ignored; the ranks of --cluster %s are %s",
			has_gpus ? "cpu" : "cuda", r->cluster.name,
			has_gpus ? "GPUs" : "CPUs");
}

/* Sets dtype to bf16 for trainers other than pt, unless it is float8. Rejects another given
 * dtype. */
static int choose_dtype(const struct request *r, struct train_opts *o, struct err *e)
{
	if (r->trainer == BY_PT || o->dtype == PRECISION_FLOAT8)
		return 0;
	if (o->dtype != PRECISION_BF16 && opts_given(&train_program, o, "dtype"))
		return err_set(e, EX_USAGE,
			"dtype: --trainer %s computes in bf16 or float8; give dtype=bf16",
			trainer_names[r->trainer]);
	o->dtype = PRECISION_BF16;
	return 0;
}

/* Sets t->batch from --tokens, if given. Returns -1 with *e set if it does not
 * divide into sequences. */
static int set_batch(
	const struct opts *o, struct train_opts *t, const struct model *m, struct err *e)
{
	if (o->tokens && o->tokens % m->c.context)
		return err_set(e, EX_USAGE,
			"--tokens %lld is not a multiple of the context %lld",
			(long long)o->tokens, (long long)m->c.context);
	if (o->tokens)
		t->batch = o->tokens / m->c.context;
	return 0;
}

/* Appends the goodput of the fastest layout, if failures or stragglers are given. */
static void print_goodput(const struct opts *o, const struct request *r,
	const struct search *s, struct str *out)
{
	struct goodput x, y;
	double step = s->best[0].times.step;
	char every[64];
	if (o->job.failures <= 0 && (o->job.slow <= 1 || o->job.probability <= 0))
		return;
	goodput_compute(&o->job, r->ranks, step, &x);
	goodput_simulate(&o->job, r->ranks, step, o->hours, (uint64_t)o->seed, &y);
	if (isinf(x.interval))
		snprintf(every, sizeof(every), "no checkpoints");
	else
		snprintf(every, sizeof(every), "checkpoints every %.0f s", x.interval);
	str_printf(out,
		"# goodput: %.4f by the formula, %.4f in %g simulated hours; %s; a step takes "
		"%.4f times as long as without stragglers\n",
		x.fraction, y.fraction, o->hours, every, x.slowdown);
}

static void print_timeline(const struct opts *o, const struct request *r,
	const struct search *s, struct str *out)
{
	const struct straggling x = {
		&o->job, (uint64_t)o->seed, reduces_each_micro_batch(&s->best[0].l)};
	print_straggled_step(r, &s->best[0], &x, (int)o->timeline, out);
}

/* Checks that the search found a layout. */
static int require_layout(const struct opts *o, const struct search *s, struct err *e)
{
	if (s->n)
		return 0;
	if (s->rejected && !s->planned)
		return err_set(e, EX_FAILED,
			"pt-train rejects all layouts, the first one because: %s",
			s->rejection.msg);
	return err_set(e, EX_FAILED, "no layout fits into memory%s",
		o->explain ? "" : "; --explain prints why");
}

/* Appends what the options ask for: JSON, arguments, answers, table, details, timeline. */
static int append_results(const struct opts *o, const struct request *r,
	const struct search *s, const char *given, struct str *out, struct err *e)
{
	if (o->json)
		return report_json(r, s, given, out, e) || require_layout(o, s, e) ? -1
										   : 0;
	if (!o->best && (o->explain || s->n))
		report_header(r, out);
	if (o->explain)
		explain_choice(r, s, out);
	if (require_layout(o, s, e))
		return -1;
	if (o->best) {
		if (o->target == BY_PT)
			report_arguments(r, &s->best[0].l, given, out);
		else
			trainer_arguments((enum trainer_kind)o->target, r->o, r->m,
				&s->best[0].l, out);
		str_putc(out, '\n');
		return 0;
	}
	if (!o->explain || o->details)
		report_table(r, s, out);
	if (o->details)
		report_details(r, s, out);
	print_goodput(o, r, s, out);
	if (o->timeline)
		print_timeline(o, r, s, out);
	return 0;
}

/* Rejects options that exclude each other. Other output of --best would become arguments, too. */
static int check_options(const struct opts *o, struct err *e)
{
	const struct mistake mistakes[] = {
		{o->best && (o->explain || o->json || o->timeline || o->details),
			"--best prints arguments only; omit --explain, --json, --details and "
			"--timeline"},
		{o->target != BY_PT && !o->best,
			"--for needs --best, which prints the arguments"},
		{o->trainer != BY_PT && o->exact >= 0,
			"--exact plans by the code that trains, so it needs --trainer pt"},
		{!trainer_has_times((enum trainer_kind)o->trainer) &&
				(o->timeline || o->job.failures > 0 ||
					o->job.probability > 0),
			"--timeline, --failures and --slow-prob need the time of a step, which is "
			"not predicted for nanotron"},
		{o->json && (o->explain || o->timeline),
			"--json prints no text; omit --explain and --timeline"},
	};
	return options_reject(mistakes, ARRAY_LEN(mistakes), e);
}

/* Warns about the first listed layout that the device of pt-train rejects. */
static void warn_rejected(const struct request *r, const struct search *s)
{
	struct train_opts o = *r->o;
	enum device_kind kind;
	struct err e;
	for (int64_t i = 0; i < min64(s->n, r->show) && r->trainer == BY_PT; i++) {
		layout_to_options(&s->best[i].l, &o);
		if (!backend_choose(&o, &kind, &e))
			continue;
		warn("pt-train rejects layouts of this list: %s", e.msg);
		return;
	}
}

/* Prints the results, and to stderr the counts of layouts with --verbose. */
static int print_results(const struct opts *o, const struct request *r,
	const struct search *s, const char *given, struct err *e)
{
	scoped_str out = {0}, counts = {0};
	int rc = append_results(o, r, s, given, &out, e);
	fputs(out.s ? text_printable(out.s) : "", stdout);
	report_counts(s, &counts);
	if (o->verbose)
		fputs(counts.s, stderr);
	warn_rejected(r, s);
	return rc;
}

/* Rejects trainers whose formulas do not have experts, and a load that would end the run. */
static int check_experts(
	const struct request *r, const struct model *m, double imbalance, struct err *e)
{
	if (m->c.experts && r->trainer != BY_PT)
		return err_set(e, EX_UNAVAILABLE,
			"--trainer %s: the formulas are for dense models; a mixture of experts "
			"is planned with --trainer pt only",
			trainer_names[r->trainer]);
	if (m->c.experts && r->o->expert_room > 0 && imbalance > r->o->expert_room)
		return err_set(e, EX_USAGE,
			"--imbalance %g: a run with expert-room=%g would end; give a larger "
			"expert-room",
			imbalance, r->o->expert_room);
	return 0;
}

/* Parses the model and the cluster, searches, and prints the layouts. */
static int plan_and_print(
	const struct opts *o, char **words, int n, struct str *given, struct err *e)
{
	struct train_opts t;
	struct model m;
	struct request r = {.model = words[0],
		.o = &t,
		.m = &m,
		.trainer = (enum trainer_kind)o->trainer,
		.show = o->best ? 1 : o->show,
		.exact = o->exact};
	struct search s = {.n = 0};
	if (parse_model(words, n, &t, given, e) || cluster_from_options(o, &r, e) ||
		choose_dtype(&r, &t, e))
		return -1;
	warn_ignored_settings(&r, &t, words, n);
	t.device = *r.cluster.model ? DEVICE_CUDA : DEVICE_CPU;
	t.micro_batch = 1;
	if (options_check(&t, e) || check_offload(&r, e) ||
		options_model_init(&t, &m, 0, e) ||
		check_experts(&r, &m, o->imbalance, e)) {
		opts_add_origins(&train_program, &t, e);
		return -1;
	}
	dispatch_plan_imbalance(o->imbalance);
	comm_plan_hosts(r.hosts > 1 ? r.cluster.links.host_ranks : 0,
		env_switch("PT_SHARED") != 0);
	int rc = set_batch(o, &t, &m, e) || search_run(&r, &s, e) ||
				 print_results(o, &r, &s, given->s, e)
			 ? -1
			 : 0;
	search_release(&s);
	model_release(&m);
	return rc;
}

int main(int argc, char **argv)
{
	struct opts o;
	struct err e = {0};
	scoped_str given = {0};
	options_give_advice();
	int n = opts_parse_or_die(&program, &o, argc, argv);
	if (o.trainer == BY_PT)
		o.trainer = o.target;
	else if (o.target == BY_PT && o.best)
		o.target = o.trainer;
	if (n < 1)
		return err_print(
			&(struct err){EX_USAGE, "give a model: a preset of pt-train, "
						"or a config file"});
	int rc =
		check_options(&o, &e) || plan_and_print(&o, argv, n, &given, &e) ? -1 : 0;
	stdout_close();
	return rc ? err_print(&e) : 0;
}
