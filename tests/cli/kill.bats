#!/usr/bin/env bats
# Ranks that are killed, stopped or slow: nothing hangs, nothing is lost, and the run goes on
# to the same end, bit for bit.
load helpers
export SETUP=make_shard

kills=6
[ "${LONG:-no}" != yes ] || kills=200

# A run of 1 to 3 ranks, of which at a random moment one is killed, or all, or the launcher:
# one moment in four counts from the start, the others from a row of the log, so that a slow
# machine does not make all of them fall into the start. What the run was doing then, as far
# as its folder tells, is in $phase.
kill_one() { # RANKS VICTIM OPTION...
	local ranks=$1 victim=$2 pid pids
	shift 2
	rm -rf run
	mpiexec -n "$ranks" pt-train "${TINY[@]}" "$@" -o run >out 2>/dev/null 3>&- &
	pid=$!
	random_moment 300
	pids=$(ranks_of $pid || true)
	case $victim in
	one) pids=$(shuf -n 1 <<<"$pids") ;;
	launcher) pids="$pid" ;;
	esac
	# shellcheck disable=SC2086
	kill -9 $pids 2>/dev/null || true
	begin=$SECONDS
	ended $pid
	while pgrep -f "^pt-train .*$PWD/run" >/dev/null; do sleep 0.02; done
	[ $((SECONDS - begin)) -lt 60 ]
	if [ ! -e run/journal.txt ]; then
		phase=start
	elif grep -q 'ends with code' run/journal.txt; then
		phase=ended
	elif compgen -G 'run/checkpoints/*.tmp*' >/dev/null; then
		phase=checkpoint
	elif compgen -G 'run/*.tmp*' >/dev/null; then
		phase=log
	else
		phase=steps
	fi
}

@test "kill -9 at random moments: nothing hangs, no row is lost, and the run goes on, bit for bit" {
	options="-n 40 --ckpt-every 3 --keep 3 --eval-every 4 --publish-secs 0"
	tiny $options -o whole >/dev/null
	declare -A phases
	for i in $(seq $kills); do
		ranks=$((RANDOM % 3 + 1))
		victims=(all one launcher)
		victim=${victims[RANDOM % 3]}
		kill_one $ranks $victim $options -o "$PWD/run"
		echo "$i: $ranks ranks, killed: $victim, in: $phase"
		phases[$phase]=$((${phases[$phase]:-0} + 1))
		# each row that was printed is in the journal, and run.h5 opens
		{ grep '^step=.* mem=[0-9]*$' out || true; } >rows
		if [ -s rows ]; then
			[ "$(grep -cxFf rows run/journal.txt)" -ge "$(wc -l <rows)" ]
		fi
		if [ -e run/run.h5 ]; then pt-compare --common whole run >/dev/null; fi
		if [ -e run/checkpoints/latest.h5 ]; then pt-ckpt verify -q run/checkpoints/latest.h5; fi
		tiny_on $((RANDOM % 3 + 1)) $options -o run --resume auto >/dev/null 2>err || {
			cat err
			false
		}
		pt-compare whole run >compared || {
			cat compared
			false
		}
		cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
		[ -z "$(find run -name '*.tmp*')" ]
	done
	for p in "${!phases[@]}"; do echo "# figure: $kills kills, ${phases[$p]} of them in: $p" >&3; done
	[ $((${phases[steps]:-0} + ${phases[checkpoint]:-0})) -gt $((kills / 4)) ]
}

# All ranks are killed on one layout, and the run goes on on another.
killed_then() { # RANKS LAYOUT RANKS LAYOUT
	local pid row=$((RANDOM % 24 + 8))
	rm -rf run
	# shellcheck disable=SC2086
	mpiexec -n "$1" pt-train "${TINY[@]}" "${options[@]}" $2 -o run >out 2>err 3>&- &
	pid=$!
	wait_for "^step=$row " out
	# shellcheck disable=SC2046
	kill -9 $(ranks_of $pid)
	ended $pid
	[ "$status" -ne 0 ]
	# shellcheck disable=SC2086
	tiny_on "$3" "${options[@]}" $4 -o run --resume auto >out
	not grep -q '^step=1 ' out
	pt-compare whole run >compared || {
		cat compared
		return 1
	}
	cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
}

@test "a run that is killed goes on on another layout, bit for bit" {
	options=(--layers 4 --heads 4 --virtual "tp=2,cp=2" -n 36 --ckpt-every 3 --keep 3)
	tiny "${options[@]}" -o whole >/dev/null
	killed_then 4 '--fsdp 2 --tp 2' 4 '--pp 2 --dp 2 --pp-schedule zb-h1'
	killed_then 4 '--pp 2 --cp 2 --zero 1' 3 '--fsdp 3 --recompute full'
}

@test "one rank killed: all end" {
	mpiexec -n 3 pt-train "${TINY[@]}" -n 100000 -o run >/dev/null 3>&- &
	pid=$!
	wait_for 'step=20 ' run/journal.txt
	kill -9 "$(ranks_of $pid | tail -n 1)"
	begin=$SECONDS
	ended $pid
	[ "$status" -ne 0 ]
	[ $((SECONDS - begin)) -lt 60 ]
}

@test "a rank that stops responding is named, with what it is missing from" {
	for shared in yes no; do
		PT_SHARED=$shared mpiexec -n 3 pt-train "${TINY[@]}" -n 1000000 -o run --overwrite \
			--eval-every 0 --watchdog 3 >/dev/null 2>err 3>&- &
		pid=$!
		wait_for 'step=20 ' run/journal.txt
		mapfile -t pids < <(ranks_of $pid)
		stopped=$(tr '\0' '\n' <"/proc/${pids[1]}/environ" | sed -n 's/^PMI_RANK=//p')
		kill -STOP "${pids[1]}"
		begin=$SECONDS
		ended $pid
		cat err
		[ "$status" -eq 1 ]
		[ $((SECONDS - begin)) -lt 60 ]
		grep -qE "waited 3 s for [a-z ]+ number [0-9]+ of .* on [a-z*]+: rank $stopped did not start it" err
		grep -c 'did not start it' err | grep -qx 1
		# the last operation of a rank that waits is not complete
		grep -q '; the last operations of this rank: run/flight-record\.' err
		[ "$(grep -c . run/flight-record.0)" -eq 65 ]
		sort -n "run/flight-record.$(((stopped + 1) % 3))" | tail -n 1 | grep -q ' -  *$'
		for _ in $(seq 1200); do
			kill -0 "${pids[1]}" 2>/dev/null || break
			sleep 0.05
		done
		not kill -0 "${pids[1]}" 2>/dev/null
		rm -r run
	done
}

@test "a job that is stopped as a whole goes on when it is let" {
	tiny -n 3000 --log-every 100 --eval-every 0 -o whole >/dev/null
	mpiexec -n 2 pt-train "${TINY[@]}" -n 3000 --log-every 100 --eval-every 0 -o run --watchdog 2 \
		>/dev/null 3>&- &
	pid=$!
	wait_for 'step=100 ' run/journal.txt
	# shellcheck disable=SC2046
	kill -STOP $(ranks_of $pid)
	sleep 3
	# shellcheck disable=SC2046
	kill -CONT $(ranks_of $pid)
	ended $pid
	[ "$status" -eq 0 ]
	pt-compare whole run
}

@test "a pipe may be slow: nobody is missing" {
	tiny -n 5 -o whole >/dev/null
	mkfifo fifo
	{ head -c 1000 data.h5 && sleep 7 && tail -c +1001 data.h5; } >fifo 3>&- &
	tiny_on 2 -d fifo -n 5 -o run --watchdog 3 >/dev/null
	pt-compare whole run
}
