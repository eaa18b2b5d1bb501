#!/usr/bin/env bats
# Checkpoints that are written while training goes on: what is in them, who waits for them,
# and what becomes of them when something goes wrong meanwhile.
load helpers

# A disk as slow as the test wants: threads that write beside the training wait while there is
# a file `hold`. On rank R they find the disk full while there is a file full-R, and with
# late-R the disk finds out when it is told to sync; when that has gone well there is a file
# synced-R. What the main thread writes passes.
make_slow() {
	! sanitized || skip 'the sanitizer wants to come first'
	cat >slow.c <<-'END'
		#define _GNU_SOURCE
		#include <errno.h>
		#include <fcntl.h>
		#include <stdio.h>
		#include <stdlib.h>
		#include <sys/syscall.h>
		#include <unistd.h>
		static int beside(void)
		{
			if (syscall(SYS_gettid) == getpid())
				return 0;
			while (!access("hold", F_OK))
				usleep(1000);
			return 1;
		}
		static const char *name_of(const char *what)
		{
			static _Thread_local char name[64];
			const char *rank = getenv("PMI_RANK");
			snprintf(name, sizeof(name), "%s-%s", what, rank ? rank : "0");
			return name;
		}
		static int told(const char *what)
		{
			return !access(name_of(what), F_OK);
		}
		ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
		{
			if (beside() && told("full")) {
				errno = ENOSPC;
				return -1;
			}
			return syscall(SYS_pwrite64, fd, p, n, at);
		}
		ssize_t pwrite64(int fd, const void *p, size_t n, off_t at)
		{
			return pwrite(fd, p, n, at);
		}
		int fsync(int fd)
		{
			if (beside() && told("late")) {
				errno = EIO;
				return -1;
			}
			int rc = (int)syscall(SYS_fsync, fd);
			if (!rc && beside()) {
				int told_in = creat(name_of("synced"), 0600);
				if (write(told_in, "yes\n", 4) == 4)
					close(told_in);
			}
			return rc;
		}
	END
	cc -shared -fPIC -o slow.so slow.c
	make_shard
}

slowly() { # RANKS OPTION...
	LD_PRELOAD=$PWD/slow.so paced "$@"
}

finished() { # CODE: of the run, whose rows are read to the end
	cat <&4 >/dev/null
	exec 4<&-
	# shellcheck disable=SC2154 # paced() sets it
	ended $pid
	cat err
	[ "$status" -eq "$1" ]
}

# Waits until all ranks have written their parts, as long as that takes, and then reads on, row by
# row, until the checkpoint has its name; the run may be 200 rows ahead.
until_named() { # RANKS STEP FIRST LAST
	local row rank
	for rank in $(seq 0 $(($1 - 1))); do wait_for yes "synced-$rank"; done
	shift
	for row in $(seq "$2" "$3"); do
		until_step "$row"
		[ -z "$(times_of "$1")" ] || return 0
		sleep 0.05
	done
	echo "the checkpoint of step $1 has no name at row $3"
	return 1
}

# Of the event of a checkpoint: "step total stalled".
times_of() { # STEP
	sed -nE "s/^# event [^ ]* step=([0-9]+) checkpoint .*step-0*$1\.h5 \(.*, ([^ ]+) s, stalled ([^ ]+) s\)$/\1 \2 \3/p" \
		run/journal.txt
}

@test "it holds the state of its step, though training went on, and costs no bit" {
	make_slow
	options=(-n 900 --eval-every 100 --keep 0 --ckpt-every 400 --no-ckpt-best)
	tiny "${options[@]}" --ckpt-wait -o whole >/dev/null
	for n in 1 2 3; do
		rm -rf run on synced-*
		touch hold
		slowly $n "${options[@]}" -o run
		until_step 400
		wait_for '^step=450 ' run/journal.txt
		sleep 1
		[ ! -e run/checkpoints/step-00000400.h5 ]
		compgen -G 'run/checkpoints/step-00000400.h5.*.tmp'
		rm hold
		until_named $n 400 401 580
		finished 0
		read -r step total stalled <<<"$(times_of 400)"
		echo "ended after step $step: $total s, stalled $stalled s"
		[ "$step" -ge 450 ]
		[ "$step" -lt 800 ]
		awk "BEGIN { exit !($total > 1 && $stalled > 0 && $total - $stalled > 0.9) }"
		for f in whole/checkpoints/*.h5; do cmp "$f" "run/checkpoints/${f##*/}"; done
		pt-compare whole run
		tiny_on $((n % 3 + 1)) "${options[@]}" -o on --resume run/checkpoints/step-00000400.h5 >/dev/null
		cmp whole/checkpoints/latest.h5 on/checkpoints/latest.h5
	done
}

@test "--ckpt-wait waits" {
	make_slow
	touch hold
	slowly 2 -n 300 --ckpt-every 100 --no-ckpt-best --ckpt-wait -o run
	until_step 101
	[ -e run/checkpoints/step-00000100.h5 ]
	finished 0
	for step in 100 200 300; do
		read -r at total stalled <<<"$(times_of $step)"
		[ "$at" -eq $step ] # (the times are equal, unless another program runs between two looks at the clock)
	done
	[ "$(pt-train --dry-run "${TINY[@]:1}" | awk '/^checkpoint/ { print $2 }')" -gt 30000 ]
	for option in --ckpt-wait --no-ckpt; do
		[ "$(pt-train --dry-run "${TINY[@]:1}" $option | awk '/^checkpoint/ { print $2 }')" -eq 0 ]
	done
}

@test "the next one waits for the one before: never two at once" {
	make_slow
	for n in 1 2; do
		rm -rf run
		touch hold
		slowly $n -n 200 --ckpt-every 50 --no-ckpt-best --keep 0 -o run
		until_step 100
		sleep 1
		not grep -q '^step=101 ' run/journal.txt
		[[ $(find run/checkpoints -name 'step-*') =~ ^run/checkpoints/step-00000050\.h5\.[0-9a-f]{16}\.tmp$ ]]
		rm hold
		finished 0
		[ "$(times_of 50 | cut -d' ' -f1)" -eq 100 ]
		read -r _ total stalled <<<"$(times_of 50)"
		awk "BEGIN { exit !($stalled > 0.1) }"
		pt-ckpt verify -q run/checkpoints/step-*.h5
		[ "$(pt-ckpt ls run | sed 1d | wc -l)" -eq 4 ]
	done
}

@test "a signal right after the beginning: 75, and both are whole" {
	make_slow
	options=(-n 900 --keep 0 --no-ckpt-best --ckpt-every 400)
	tiny "${options[@]}" -o whole >/dev/null
	for n in 1 2; do
		rm -rf run
		touch hold
		slowly $n "${options[@]}" -o run
		until_step 400
		kill -TERM "$(cat pid)"
		cat <&4 >/dev/null &
		reader=$!
		sleep 0.5
		kill -0 "$(cat pid)" # it waits for the file
		rm hold
		wait $reader
		finished 75
		[ "$(pt-ckpt ls run | sed 1d | wc -l)" -eq 2 ]
		pt-ckpt verify -q run/checkpoints/*.h5
		cmp whole/checkpoints/step-00000400.h5 run/checkpoints/step-00000400.h5
		[ "$(readlink run/checkpoints/latest.h5)" != step-00000400.h5 ]
		tiny_on $((3 - n)) -o run --resume auto >/dev/null
		cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
		pt-compare whole run
	done
}

@test "kill -9 while it is written: the older one is there, and the run goes on from it" {
	make_slow
	options=(-n 1100 --no-ckpt-best --ckpt-every 400)
	tiny "${options[@]}" -o whole >/dev/null
	for n in 1 2; do
		rm -rf run synced-*
		slowly $n "${options[@]}" -o run
		until_step 400
		until_named $n 400 401 580
		touch hold
		until_step 800
		wait_for '^step=810 ' run/journal.txt
		kill -9 "$(cat pid)"
		cat <&4 >/dev/null
		exec 4<&-
		ended $pid
		rm hold
		[ "$status" -ne 0 ]
		compgen -G 'run/checkpoints/step-00000800.h5.*.tmp'
		[ "$(readlink run/checkpoints/latest.h5)" = step-00000400.h5 ]
		pt-ckpt verify -q run
		tiny_on $((3 - n)) -o run --resume auto >/dev/null
		[ -z "$(find run -name '*.tmp*')" ]
		cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
		pt-compare whole run
	done
}

@test "a disk that is found full meanwhile, on any rank: a warning, and training goes on" {
	make_slow
	options=(-n 300 --ckpt-every 100 --no-ckpt-best --keep 0)
	tiny "${options[@]}" -o whole >/dev/null
	for way in '1 full No space left on device' '2 late Input/output error'; do
		read -r n how why <<<"$way"
		rm -rf run full-* late-*
		touch "$how-$((n - 1))"
		slowly "$n" "${options[@]}" -o run
		until_step 299
		rm "$how-$((n - 1))"
		finished 0
		prefix=''
		[ "$n" -eq 1 ] || prefix="rank $((n - 1)): "
		grep -q "the checkpoint of step 100 was not written: ${prefix}run/.*: $why; training continues" err
		grep -q "checkpoint failed: .*$why" run/journal.txt
		[ "$(find run/checkpoints -name 'step-*')" = run/checkpoints/step-00000300.h5 ]
		cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
		pt-compare whole run
	done
}

@test "a run that goes bad meanwhile keeps what it has begun" {
	make_slow
	options=(-n 400 --no-ckpt-best --lr 1e30 --clip 0)
	tiny "${options[@]}" -o bad >/dev/null 2>&1 || true
	good=$(sed -n 's/^step=\([0-9]*\) .*/\1/p' bad/journal.txt | tail -n 1)
	[ "$good" -ge 1 ]
	for n in 1 2; do
		rm -rf run
		touch hold
		slowly $n "${options[@]}" --ckpt-every "$good" -o run
		wait_for 'stopped: step' run/journal.txt
		[ ! -e "run/checkpoints/step-0000000$good.h5" ]
		rm hold
		finished 1
		pt-ckpt verify -q run
		[ "$(readlink run/checkpoints/latest.h5)" = "step-0000000$good.h5" ]
	done
}

@test "no memory for the copy: said once, and training waits" {
	plain_memory
	make_shard
	export MALLOC_ARENA_MAX=1 # a thread's own would be address space for nothing
	options=(--dim 512 --layers 4 -n 7 --ckpt-every 2 --eval-every 0)
	cat >peak.c <<-'END'
		#include <stdlib.h>
		__attribute__((destructor)) static void at_end(void)
		{
			unsetenv("LD_PRELOAD");
			if (system("grep VmPeak /proc/$PPID/status >>peak"))
				abort();
		}
	END
	cc -shared -fPIC -o peak.so peak.c
	LD_PRELOAD=$PWD/peak.so pt-train "${TINY[@]}" "${options[@]}" --ckpt-wait -o whole >/dev/null
	peak=$(awk '$2 > most { most = $2 } END { print most }' peak)
	copy=$(pt-train --dry-run "${TINY[@]:1}" "${options[@]}" | awk '/^checkpoint/ { print int($2 / 1024) }')
	[ "$copy" -gt 100000 ]
	for room in 1 3; do
		code_of 0 bash -c 'ulimit -v $0; exec "$@"' $((peak + copy * room / 2)) \
			pt-train "${TINY[@]}" "${options[@]}" -o run --overwrite
		warnings=$(grep -c 'no memory for a copy of the state' <<<"$output" || true)
		[ "$warnings" -eq $((room == 1)) ]
		step=$(times_of 2 | cut -d' ' -f1) # after which it had its name
		if [ $room -eq 1 ]; then [ "$step" -eq 2 ]; else [ "$step" -gt 2 ]; fi
		cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
	done
}
