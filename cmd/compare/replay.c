/* Computes a run again, by its own program, to hash its tensors. */
#include "base/file.h"
#include "compare/locate.h"
#include "engine/options.h"
#include "options/options.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Filters the options of a log, which is not trusted and must not choose where files are written.
 * Texts are parsed and printed again, so that the program reads exactly what was checked here. */
struct filter {
	const struct replay *r;
	struct str *out;
};

/* Appends an option of the config that determines results. */
static int append_config(void *to, const char *key, const char *value, struct err *e)
{
	struct filter *f = to;
	(void)e;
	if ((opts_flags(&train_program, key) & OPT_ARITH) == OPT_ARITH)
		conf_print(f->out, key, value);
	return 0;
}

/* Returns true for a path, such as a FIFO, that could block its reader forever. */
static bool may_block(const char *path)
{
	struct stat s;
	return !stat(path, &s) && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode);
}

/* Appends an option of the invocation that determines data, layout or device. */
static int append_invocation(void *to, const char *key, const char *value, struct err *e)
{
	struct filter *f = to;
	bool is_base = !strcmp(key, "init-from") || !strcmp(key, "resume");
	if (!(opts_flags(&train_program, key) & OPT_REPLAY) ||
		(is_base && (f->r->from || !strcmp(value, "auto"))))
		return 0;
	if ((is_base || !strcmp(key, "data")) && may_block(value))
		return err_set(e, EX_DATAERR,
			"%s = '%s' is not a file, so the run cannot be computed again",
			key, value);
	conf_print(f->out, key, strcmp(key, "offload-to") ? value : f->r->directory);
	return 0;
}

int replay_append_config(const struct replay *r, struct str *out, struct err *e)
{
	struct filter f = {r, out};
	const struct str *config = &r->log->config;
	const char *invocation = r->log->info.invocation;
	int rc = config->s ? conf_parse(config->s, config->len, r->log->name,
				     append_config, &f, e)
			   : 0;
	if (!rc && invocation)
		rc = conf_parse(invocation, strlen(invocation), r->log->name,
			append_invocation, &f, e);
	return rc;
}

/* Allocates the path DIRECTORY/NAME.SUFFIX of a replay. */
static char *replay_path(const struct replay *r, const char *suffix)
{
	struct str s = {0};
	str_printf(&s, "%s/%s.%s", r->directory, r->name, suffix);
	return s.s;
}

static int write_config(const struct replay *r, const char *path, struct err *e)
{
	scoped_str text = {0};
	return replay_append_config(r, &text, e) || file_replace(path, &text, e);
}

/* Appends the words of text, separated by spaces, to args. */
static void add_words(struct strs *args, const char *text)
{
	char *copy = xstrdup(text), *rest = copy, *word;
	while ((word = strsep(&rest, " ")))
		if (*word)
			strs_add(args, word);
	free(copy);
}

static void add_number(struct strs *args, long long n)
{
	char num[NUM_TEXT];
	snprintf(num, sizeof(num), "%lld", n);
	strs_add(args, num);
}

/* Appends an option and its value to args, and frees the value. */
static void add_option(struct strs *args, const char *name, char *value)
{
	strs_add(args, name);
	strs_add(args, value);
	free(value);
}

/* Lists the arguments that compute the run again; ends with NULL. */
static void make_arguments(const struct replay *r, struct strs *args)
{
	struct str steps = {0};
	str_printf(&steps, "%lld:%lld", (long long)r->first, (long long)r->last);
	if (r->log->info.ranks > 1) {
		add_words(args, r->launcher);
		add_number(args, r->log->info.ranks);
	}
	strs_add(args, r->program);
	strs_add(args, "-q");
	add_option(args, "--config", replay_path(r, "config"));
	add_option(args, "--out", replay_path(r, "run"));
	if (r->from)
		add_option(args, "--resume", xstrdup(r->from));
	add_option(args, "--hash-tensors", replay_path(r, "hashes"));
	add_option(args, "--hash-steps", steps.s);
	strs_add(args, "--no-ckpt");
	add_option(args, "--eval-every", xstrdup("0"));
	add_option(args, "--sample-every", xstrdup("0"));
	add_option(args, "--log-every", xstrdup("1"));
	args->v = xrealloc(args->v, (size_t)(args->n + 1) * sizeof(*args->v));
	args->v[args->n] = NULL;
}

/* ---- signals ---------------------------------------------------------------------- */

void replay_hold_signals(struct held_signals *h)
{
	static const int ending[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
	struct sigaction action;
	h->received = 0;
	signal(SIGCHLD, SIG_DFL);
	sigemptyset(&h->held);
	sigaddset(&h->held, SIGCHLD);
	for (size_t i = 0; i < ARRAY_LEN(ending); i++)
		if (!sigaction(ending[i], NULL, &action) && action.sa_handler != SIG_IGN)
			sigaddset(&h->held, ending[i]);
	sigprocmask(SIG_BLOCK, &h->held, &h->old_mask);
}

void replay_release_signals(struct held_signals *h)
{
	if (h->received)
		raise(h->received);
	sigprocmask(SIG_SETMASK, &h->old_mask, NULL);
}

/* Waits for a program to end. The first signal terminates the program, the second one kills it. */
static int wait_for_program(pid_t pid, struct held_signals *h, int *status)
{
	const struct timespec second = {.tv_sec = 1};
	pid_t ended;
	while (!(ended = waitpid(pid, status, WNOHANG))) {
		int number = sigtimedwait(&h->held, NULL, &second);
		if (number <= 0 || number == SIGCHLD)
			continue;
		kill(pid, h->received ? SIGKILL : SIGTERM);
		h->received = number;
	}
	return ended < 0 ? -1 : 0;
}

/* Starts a program whose output and messages are written to a file. Returns its pid, or -1. */
static pid_t start_program(
	char *const *args, const char *messages, const struct held_signals *h)
{
	pid_t pid = fork();
	if (pid)
		return pid;
	int output = open(messages, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (output < 0 || input < 0)
		_exit(126);
	dup2(input, STDIN_FILENO);
	dup2(output, STDOUT_FILENO);
	dup2(output, STDERR_FILENO);
	sigprocmask(SIG_SETMASK, &h->old_mask, NULL);
	execvp(args[0], args);
	_exit(127);
}

/* Appends the program's last message; if it has none, the first line of the file. */
static void append_last_message(const char *path, struct str *out)
{
	enum { MAX_BYTES = 1 << 20 };
	scoped_str text = {0};
	if (!file_read(path, MAX_BYTES, &text, &(struct err){0}) && text.s) {
		while (text.len && text.s[text.len - 1] == '\n')
			text.s[--text.len] = '\0';
		const char *line = strstr(text.s, "pt-train: ");
		for (const char *next = line; next; next = strstr(next + 1, "pt-train: "))
			line = next;
		line = line ? line : text.s;
		str_printf(out, "%.*s", (int)strcspn(line, "\n"), line);
	}
}

/* Returns -1 with *e set if the program failed before it wrote hashes. */
static int check_status(const struct replay *r, int status, const char *messages,
	const struct tensor_hashes *l, struct err *e)
{
	scoped_str message = {0};
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	if (!code || (l->n && code != 127))
		return 0;
	if (code == 127)
		return err_set(e, EX_FAILED, "%s: the program cannot be started",
			r->log->info.ranks > 1 ? r->launcher : r->program);
	append_last_message(messages, &message);
	err_set(e, EX_FAILED, "%s: computing the run again: %s exited with code %d%s%s",
		r->log->name, r->program, code, message.len ? ": " : "",
		message.len ? message.s : "");
	return -1;
}

/* Runs a replay's program until its end, with its output in the file `messages`. Sets *status.
 * Returns -1 with *e set if it cannot be run or a signal interrupts it. */
static int run_program(
	const struct replay *r, const char *messages, int *status, struct err *e)
{
	scoped_strs args = {0};
	make_arguments(r, &args);
	pid_t pid = start_program(args.v, messages, r->signals);
	int rc = 0;
	if (pid < 0 || wait_for_program(pid, r->signals, status))
		rc = err_set(e, EX_FAILED, "%s: %s", r->program, strerror(errno));
	else if (r->signals->received)
		rc = err_set(e, EX_FAILED, "interrupted");
	return rc;
}

int replay_run(const struct replay *r, struct tensor_hashes *l, struct err *e)
{
	scoped_ptr char *config = replay_path(r, "config"),
			*messages = replay_path(r, "messages");
	scoped_ptr char *hashes = replay_path(r, "hashes");
	int status = 0;
	*l = (struct tensor_hashes){0};
	int rc = write_config(r, config, e) || run_program(r, messages, &status, e);
	bool exists = !rc && file_exists(hashes);
	if (exists)
		rc = tensor_hashes_read(l, hashes, e);
	if (!rc)
		rc = check_status(r, status, messages, l, e);
	return rc ? -1 : 0;
}

/* Reads the next event "TIME step=N parameters 0xHASH" and moves *text after it. */
static bool next_parameters_hash(
	const char **text, long long *step, unsigned long long *hash)
{
	while (**text) {
		size_t len = strcspn(*text, "\n");
		char line[160];
		snprintf(
			line, sizeof(line), "%.*s", (int)min64((int64_t)len, 159), *text);
		*text += len + ((*text)[len] == '\n');
		if (sscanf(line, "%*s step=%lld parameters %llx", step, hash) == 2)
			return true;
	}
	return false;
}

int replay_find_difference(
	const struct replay *a, const struct replay *b, int64_t *step, struct err *e)
{
	char *paths[2] = {replay_path(a, "run"), replay_path(b, "run")};
	struct run_log logs[2] = {{0}};
	int rc = run_log_read(&logs[0], paths[0], e) ||
		 run_log_read(&logs[1], paths[1], e);
	const char *x = logs[0].events.s ? logs[0].events.s : "";
	const char *y = logs[1].events.s ? logs[1].events.s : "";
	long long i, j;
	unsigned long long p, q;
	*step = -1;
	while (!rc && *step < 0 && next_parameters_hash(&x, &i, &p) &&
		next_parameters_hash(&y, &j, &q))
		if (i != j || p != q)
			*step = i < j ? i : j;
	for (int k = 0; k < 2; k++) {
		run_log_free(&logs[k]);
		free(paths[k]);
	}
	return rc ? -1 : 0;
}

static int remove_entry(const char *path, const struct stat *s, int kind, struct FTW *at)
{
	(void)s, (void)kind, (void)at;
	return remove(path);
}

void replay_remove_files(const char *directory)
{
	enum { MAX_OPEN = 8 };
	if (nftw(directory, remove_entry, MAX_OPEN, FTW_DEPTH | FTW_PHYS))
		warn("%s: %s", directory, strerror(errno));
}
