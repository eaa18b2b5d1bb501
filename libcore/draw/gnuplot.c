/* Runs gnuplot. */
#include "draw/gnuplot.h"
#include "base/file.h"
#include "base/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Appends s in double quotes, with octal escapes for special characters, since gnuplot fails on
 * two successive quotes within single quotes. */
void gnuplot_quote(struct str *out, const char *s)
{
	/* (a byte that is not UTF-8 makes gnuplot draw all text in another encoding) */
	scoped_ptr char *copy = text_printable(xstrdup(s));
	str_putc(out, '"');
	for (s = copy; *s; s++) {
		unsigned char c = (unsigned char)*s;
		if (isalnum(c) || c >= 0x80 || strchr(" ./_-", c))
			str_putc(out, *s);
		else if (c > ' ')
			str_printf(out, "\\%04o", c);
	}
	str_putc(out, '"');
}

/* Writes the script to an unnamed file, and returns its descriptor at the start of the file. */
static int open_script_file(const struct str *text, struct err *e)
{
	int fd = memfd_create("gnuplot", MFD_CLOEXEC);
	if (fd >= 0 && !write_all(fd, text->s, text->len) && !lseek(fd, 0, SEEK_SET))
		return fd;
	err_set(e, EX_IOERR, "cannot write the script for gnuplot: %s", strerror(errno));
	if (fd >= 0)
		close(fd);
	return -1;
}

/* Runs gnuplot in a child process: script in, output[1] out. Returns its process id, or -1. */
static pid_t start_gnuplot(int script_fd, const int output[2])
{
	pid_t pid = fork();
	if (pid)
		return pid;
	dup2(script_fd, STDIN_FILENO);
	dup2(output[1], STDOUT_FILENO);
	close(output[0]);
	close(output[1]);
	execlp("gnuplot", "gnuplot", "-", (char *)NULL);
	_exit(127);
}

/* Runs a script. Reads the picture through a pipe, since gnuplot ignores write errors. */
int gnuplot_run(const struct str *text, struct str *picture, struct err *e)
{
	enum { MAX_PICTURE = 1 << 30 };
	int pipes[2], status = 0, rc = -1, script = open_script_file(text, e);
	if (script < 0)
		return -1;
	if (pipe(pipes)) {
		close(script);
		return err_set(e, EX_IOERR, "pipe to gnuplot: %s", strerror(errno));
	}
	pid_t pid = start_gnuplot(script, pipes);
	close(pipes[1]);
	if (pid > 0)
		rc = file_read_rest(pipes[0], "gnuplot", MAX_PICTURE, picture, e);
	close(pipes[0]);
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		rc = err_set(e, EX_IOERR, "gnuplot: %s", strerror(errno));
	bool has_read_all =
		lseek(script, 0, SEEK_CUR) == (off_t)text->len; /* the whole script */
	close(script);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		return err_set(e, EX_FAILED,
			"gnuplot cannot be started (Debian: gnuplot-nox)%s",
			advice_on(ADVICE_GNUPLOT));
	return !rc && (status || !has_read_all) ? err_set(e, EX_FAILED, "gnuplot failed")
						: rc;
}

bool gnuplot_terminal(const char *path, int lines, struct str *out)
{
	static const struct {
		const char *suffix, *terminal, *more;
		double height, line;
	} kinds[] = {
		{".svg", "svg size 900,", " dynamic background rgb 'white'", 540, 18},
		{".png", "pngcairo size 900,", "", 540, 18},
		{".pdf", "pdfcairo size 18cm,", "cm", 11, 0.45},
	};
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		size_t len = strlen(path), suffix = strlen(kinds[i].suffix);
		if (len <= suffix || strcmp(path + len - suffix, kinds[i].suffix) != 0)
			continue;
		if (out)
			str_printf(out, "%s%g%s", kinds[i].terminal,
				kinds[i].height + kinds[i].line * lines, kinds[i].more);
		return true;
	}
	return false;
}
