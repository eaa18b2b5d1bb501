#!/usr/bin/env bats
# A wall clock that jumps, files with times that mean nothing, a file system without locks.
load helpers

# A library that stands before the C library's, and lies.
make_liar() {
	! sanitized || skip 'the sanitizer wants to come first'
	cat >liar.c <<-'END'
		#define _GNU_SOURCE
		#include <dlfcn.h>
		#include <errno.h>
		#include <fcntl.h>
		#include <stdarg.h>
		#include <stdlib.h>
		#include <sys/time.h>
		#include <time.h>
		typedef int gettime_fn(clockid_t, struct timespec *);
		static long long shift(void)
		{ /* hours back and forth, many times a second; or by so many seconds */
			struct timespec t;
			const char *fixed = getenv("LIAR_SHIFT");
			((gettime_fn *)dlsym(RTLD_NEXT, "clock_gettime"))(CLOCK_MONOTONIC, &t);
			if (fixed)
				return atoll(fixed);
			return (t.tv_nsec / 7000000 % 3 - 1) * 7 * 3600;
		}
		int clock_gettime(clockid_t c, struct timespec *t)
		{
			int rc = ((gettime_fn *)dlsym(RTLD_NEXT, "clock_gettime"))(c, t);
			if (c == CLOCK_REALTIME || c == CLOCK_REALTIME_COARSE)
				t->tv_sec += shift();
			return rc;
		}
		time_t time(time_t *out)
		{
			struct timespec t;
			clock_gettime(CLOCK_REALTIME, &t);
			if (out)
				*out = t.tv_sec;
			return t.tv_sec;
		}
		int gettimeofday(struct timeval *out, void *zone)
		{
			struct timespec t;
			(void)zone;
			clock_gettime(CLOCK_REALTIME, &t);
			out->tv_sec = t.tv_sec;
			out->tv_usec = t.tv_nsec / 1000;
			return 0;
		}
		typedef int fcntl_fn(int, int, void *);
		static int lie(int fd, int command, void *arg, const char *name)
		{
			if (getenv("LIAR_LOCK") && command == F_OFD_SETLK) {
				errno = atoi(getenv("LIAR_LOCK"));
				return -1;
			}
			return ((fcntl_fn *)dlsym(RTLD_NEXT, name))(fd, command, arg);
		}
		int fcntl(int fd, int command, ...)
		{
			va_list ap;
			va_start(ap, command);
			void *arg = va_arg(ap, void *);
			va_end(ap);
			return lie(fd, command, arg, "fcntl");
		}
		int fcntl64(int fd, int command, ...)
		{
			va_list ap;
			va_start(ap, command);
			void *arg = va_arg(ap, void *);
			va_end(ap);
			return lie(fd, command, arg, "fcntl64");
		}
	END
	cc -shared -fPIC -O1 -o liar.so liar.c -ldl || skip 'no C compiler'
	liar=$PWD/liar.so
}

lying() { # COMMAND...
	env LD_PRELOAD="$liar" "$@"
}

@test "a clock that jumps by hours changes recorded dates, and nothing else" {
	make_liar
	make_shard
	options=(-n 150 --ckpt-every 50 --keep 0 --ckpt-secs 1 --publish-secs 0.5)
	tiny "${options[@]}" -o whole >/dev/null
	for n in 1 2; do
		mpiexec -n $n env LD_PRELOAD="$liar" pt-train "${TINY[@]}" "${options[@]}" -o run$n >/dev/null
		pt-compare whole run$n
		for step in 050 100 150; do
			cmp whole/checkpoints/step-00000$step.h5 run$n/checkpoints/step-00000$step.h5
		done
		# durations are what they were
		awk '/^step=/ { for (i = 1; i <= NF; i++) if ($i ~ /^dt(_[a-z]+)?=/) {
			split($i, v, "="); n++; if (v[2] < 0 || v[2] > 60) exit bad = 1 } }
			END { exit bad || n < 750 }' run$n/journal.txt
	done
	# it did jump
	[ "$(grep -o '^# event [^ :]*' run1/journal.txt | sort -u | wc -l)" -gt 1 ]
	# the same, stopped by a signal and gone on with in another year
	env LD_PRELOAD="$liar" pt-train "${TINY[@]}" -n 150 -o on >/dev/null 3>&- &
	pid=$!
	wait_for '^step=20 ' on/journal.txt
	kill -TERM $pid
	ended $pid
	[ "$status" -eq 75 ] || [ "$status" -eq 0 ]
	LIAR_SHIFT=-1900000000 lying pt-train -q --resume auto -o on >/dev/null
	pt-compare whole on
	LIAR_SHIFT=9000000000 lying pt-train "${TINY[@]}" -n 150 -o later >/dev/null
	pt-compare whole later
	grep -q '^# meta started = 2[23]' later/journal.txt
}

@test "checkpoints by time and run.h5 come while the clock stands in the past" {
	make_liar
	make_shard
	for shift in -7200 7200 jumps; do
		rm -rf run
		[ $shift = jumps ] && unset LIAR_SHIFT || export LIAR_SHIFT=$shift
		env LD_PRELOAD="$liar" pt-train "${TINY[@]}" -n 1000000 --keep 0 --no-ckpt-best --ckpt-secs 0.2 --publish-secs 0.2 -o run >/dev/null 3>&- &
		pid=$!
		for _ in 1 2 3; do
			wait_for 'in time' run/journal.txt
			mv run/run.h5 was.h5 2>/dev/null || true
			for _ in $(seq 1200); do [ ! -e run/run.h5 ] || break; sleep 0.05; done
			[ -e run/run.h5 ]
		done
		kill -TERM $pid
		ended $pid
		[ "$status" -eq 75 ]
		# by time, and not at every step
		[ "$(grep -c 'in time' run/journal.txt)" -lt $(($(grep -c ^step= run/journal.txt) / 2)) ]
	done
	unset LIAR_SHIFT
}

@test "the newest checkpoint is that of the last step, whatever the times of files say" {
	make_shard
	tiny -n 30 --ckpt-every 10 --keep 0 -o run >/dev/null
	tiny -n 30 -o whole >/dev/null
	touch -d 2001-01-01 run/checkpoints/step-00000030.h5
	touch -d 2035-01-01 run/checkpoints/step-00000010.h5
	touch -d 2035-01-02 run/journal.txt data.h5
	run pt-train --resume auto -o run -d data.h5 -n 40 --decay-steps 30
	[ "$status" -eq 0 ]
	says 'resuming from run/checkpoints/step-00000030.h5'
	pt-compare --common whole run
	tiny -n 50 --keep 2 --ckpt-every 5 --resume auto -o run >/dev/null
	touch -d 2001-01-01 run/checkpoints/*
	tiny -n 60 --keep 2 --ckpt-every 5 --resume auto -o run >/dev/null
	[ "$(readlink run/checkpoints/latest.h5)" = step-00000060.h5 ]
	[ -e run/checkpoints/step-00000055.h5 ]
	[ ! -e run/checkpoints/step-00000045.h5 ] || [ "$(readlink run/checkpoints/best.h5)" = step-00000045.h5 ]
}

@test "a file system without locks is a warning, and a run" {
	make_liar
	make_shard
	for errno in 37 38 95; do # ENOLCK ENOSYS EOPNOTSUPP
		code_of 0 env LIAR_LOCK=$errno LIAR_SHIFT=0 LD_PRELOAD="$liar" pt-train "${TINY[@]}" -n 3 -o run$errno
		says "run$errno: the file system has no locks"
		[ "$(grep -c 'no locks' <<<"$output")" -eq 1 ]
		code_of 0 env LIAR_LOCK=$errno LIAR_SHIFT=0 LD_PRELOAD="$liar" pt-train "${TINY[@]}" -n 6 --resume auto -o run$errno
		[ "$(grep -c 'no locks' <<<"$output")" -eq 1 ]
	done
}
