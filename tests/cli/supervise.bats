#!/usr/bin/env bats
# The recipe supervise with a list of hosts: dead and suspect ones are left out, and the list may change.
load helpers

supervise=$BATS_TEST_DIRNAME/../../share/recipes/supervise

# Hosts on this machine: the launcher starts the ranks of each, and those in the file `dead` fail the probe.
setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	cat >launcher <<-'END'
		#!/bin/sh
		[ "$1" != -x ] || shift
		shift
		exec sh -c "$*"
	END
	# shellcheck disable=SC2016
	printf '#!/bin/sh\n! grep -qx "$1" dead 2>/dev/null\n' >probe
	# In place of a run: start N adds the hosts to `starts`, and does what the file start-N says.
	cat >fake <<-'END'
		#!/bin/bash
		{ echo "$1 ranks:" $(cat "$2"); } >>starts
		n=$(wc -l <starts)
		mkdir -p run
		. "./start-$n"
	END
	chmod +x launcher probe fake
	export HOSTS=hosts PROBE='./probe {host}' PROBE_SECS=0.1 WAIT=0.01
}

fake=("$supervise" ./fake '{ranks}' '{hostfile}' --out=run)

starts() { # LINE...: what the fake run was started on
	printf '%s\n' "$@" | diff - starts
}

@test "hosts die, are added and removed: the run goes on with the ranks that it can use, with the same bits" {
	make_shard
	local options=(-n 500 --ckpt-every 50)
	tiny "${options[@]}" -o whole >/dev/null
	printf 'n1\nn2  # the second\nn3:1\n' >hosts
	timeout 300 "$supervise" mpiexec -launcher ssh -launcher-exec "$PWD/launcher" -f '{hostfile}' \
		-n '{ranks}' pt-train "${TINY[@]}" "${options[@]}" --fsdp -1 --watchdog 30 --inject-delay 0:20 \
		-o run >/dev/null 2>err 3>&- &
	pid=$!
	wait_for '^step=20 ' run/journal.txt
	echo n2 >dead
	wait_for 'resuming with 2 ranks instead of 3 (host n2 did not answer); [0-9.]* s since the last row$' run/journal.txt
	# more hosts than the four micro-batches of a step
	printf 'n4:2\nn5\n' >>hosts
	wait_for 'resuming with 4 ranks instead of 2 (hosts changed; host n2 did not answer); ' run/journal.txt
	printf 'n1\n' >hosts
	wait_for 'resuming with 1 rank instead of 4 (hosts changed); ' run/journal.txt
	ended $pid
	cat err
	[ "$status" -eq 0 ]
	grep -qx 'supervise: starting 4 ranks on 3 hosts (host n2 did not answer)' err
	same whole run
}

@test "hosts with a persistent fault are left out; 71 without one to leave out is a failure like others" {
	printf 'n1:2\nn2:2\nn3.cluster:2\nn4\n' >hosts
	printf '9\t9\tn2\t0\t3\tpersistent\tw2\n9\t9\tn1\t\t1\tsporadic\tw2\n' >first
	echo 'mv first run/suspects; exit 71' >start-1
	printf 'printf "9\\t9\\tn3\\t\\t3\\tpersistent\\tw1\\n" >>run/suspects; exit 71' >start-2
	echo 'exit 71' | tee start-3 >start-4
	code_of 71 "${fake[@]}"
	starts '7 ranks: n1:2 n2:2 n3.cluster:2 n4:1' '5 ranks: n1:2 n3.cluster:2 n4:1' '3 ranks: n1:2 n4:1' '3 ranks: n1:2 n4:1'
	says 'the run exited with 71 (host n2 computed wrongly); newest'
	says 'starting 3 ranks on 2 hosts (host n2 computed wrongly; host n3.cluster computed wrongly)'
	says 'the run exited with 71; newest'
	says 'the run exited with 71, without progress: giving up'
	# without a list of hosts there is none to leave out
	rm starts
	HOSTS='' RESTARTS=0 code_of 71 "$supervise" ./fake 1 /dev/null --out=run
}

@test "too few ranks: tried again, and then the end" {
	printf 'n1\nn2\nn3\n' >hosts
	printf 'n1\nn3\n' >dead
	MIN_RANKS=2 RESTARTS=2 code_of 1 "${fake[@]}"
	says 'the run can use 1 of 1 available rank (host n1 did not answer; host n3 did not answer), but needs 2 or more'
	[ "$(grep -c 'the run can use' <<<"$output")" -eq 3 ]
	says 'the run cannot start, without progress: giving up'
	[ ! -e starts ]
	# one that comes back in time is used
	echo 'exit 64' >start-1
	MIN_RANKS=2 RESTARTS=100 WAIT=0.2 "${fake[@]}" 2>err 3>&- &
	pid=$!
	wait_for 'the run can use' err
	echo n1 >dead
	ended $pid
	[ "$status" -eq 64 ]
	starts '2 ranks: n2:1 n3:1'
	# a signal meanwhile
	rm starts
	MIN_RANKS=3 RESTARTS=100 WAIT=5 "${fake[@]}" 2>err 3>&- &
	pid=$!
	wait_for 'restarting in 5 s' err
	kill -TERM $pid
	ended $pid
	[ "$status" -eq 75 ]
	[ ! -e starts ]
}

@test "a probe that hangs has failed; a run that ignores SIGTERM is killed; nothing is left" {
	export TMPDIR=$PWD/tmp
	mkdir tmp
	printf 'n1\nn2\n' >hosts
	# shellcheck disable=SC2016
	printf '#!/bin/sh\ntrap "" TERM\nwhile grep -qx "$1" dead; do sleep 0.1; done\n' >probe
	echo nobody >dead
	echo 'trap "" TERM; echo yes >runs; while :; do sleep 0.1; done' >start-1
	echo 'exit 64' >start-2
	"${fake[@]}" 2>err 3>&- &
	pid=$!
	wait_for yes runs
	echo n2 >dead
	ended $pid
	cat err
	[ "$status" -eq 64 ]
	starts '2 ranks: n1:1 n2:1' '1 ranks: n1:1'
	grep -q 'the run exited with 137 (host n2 did not answer); newest checkpoint: step -1; restarting in 0 s' err
	[ -z "$(ls tmp)" ]
}

@test "a list that is being written changes nothing; other hosts do" {
	printf 'n1\nn2\n' >hosts
	echo 'trap "exit 75" USR1; echo yes >runs; echo step=1 >run/journal.txt; while :; do sleep 0.05; done' >start-1
	echo 'exit 64' >start-2
	"${fake[@]}" 2>err 3>&- &
	pid=$!
	wait_for yes runs
	: >hosts
	wait_for '^supervise: the run can use 0 of 0 available ranks, but needs 1 or more' err
	# shellcheck disable=SC2016
	echo '-oProxyCommand=touch${IFS}bad' >hosts
	wait_for "is not NAME or NAME:RANKS" err
	rm hosts
	sleep 0.3
	printf 'n1\nn2\n# as before\n' >hosts
	sleep 1
	[ "$(wc -l <starts)" -eq 1 ]
	printf 'n3:2\n' >>hosts
	ended $pid
	cat err
	[ "$status" -eq 64 ]
	starts '2 ranks: n1:1 n2:1' '4 ranks: n1:1 n2:1 n3:2'
	[ ! -e bad ]
	grep -q 'the run exited with 75 (hosts changed)' err
}

@test "names of hosts that a command could take for something else are rejected" {
	for name in -oProxyCommand=true 'n1 n2' 'n1;true' 'n1:x' "\$(true)" 'user@n1' n1:1234567; do
		printf 'n0\n%s\n' "$name" >hosts
		reports 64 'is not NAME or NAME:RANKS' "${fake[@]}"
	done
	HOSTS=none reports 64 'cannot read "none"' "${fake[@]}"
	RANKS_PER_HOST='x[0]' reports 64 '"x[0]" is not a number' "${fake[@]}"
	[ ! -e starts ]
}

fits() { # RANKS OF OPTION...: so many ranks of OF
	[ "$(pt-train "${model[@]}" "${@:3}" --print-ranks "$2")" = "$1" ]
}

@test "how many ranks a layout can use" {
	local model=("${TINY[@]}" -n 3 --vocab 50)
	fits 4 7 --fsdp -1
	fits 3 3 --fsdp -1
	fits 6 7 --fsdp -1 --tp 2
	fits 0 3 --fsdp -1 --tp 2 --pp 2
	fits 7 7 --dp -1 -m 1
	fits 3 7 --pp -1 --layers 3
	fits 4 7 --tp -1 --heads 4 --virtual tp=4
	fits 2 9 --dp 2
	fits 0 1 --dp 2
	fits 0 0 --dp -1
	fits 6 7 --edit-workers 3 --fsdp -1 -b 12 -m 1
	reports 64 'the batch would depend on the ranks' pt-train --vocab 50 --batch-per-rank 2 --print-ranks 4
	reports 64 'tp (3)' pt-train "${TINY[@]}" --vocab 50 --tp 3 --fsdp -1 --print-ranks 7
	# a run keeps its micro-batches and virtual degrees
	make_shard
	tiny_on 2 -n 2 --tp 2 --heads 4 -o run >/dev/null
	cp run/journal.txt .
	model=()
	fits 2 4 -o run --resume auto --tp -1
	fits 8 12 -o run --resume auto --fsdp -1 --tp 2
	cmp journal.txt run/journal.txt
}

@test "a launcher that exits with 0: the journal has the code, unless an earlier start wrote it" {
	local line='# event 2026-01-01T00:00:00Z step=3 ends with code 75 after step 3'
	fake=("$supervise" ./fake 1 /dev/null --out=run)
	export HOSTS='' RESTARTS=0
	mkdir run
	echo "$line" >run/journal.txt
	echo 'exit 0' >start-1
	code_of 1 "${fake[@]}"
	echo "echo '${line/00Z/01Z}' >>run/journal.txt; exit 0" >start-2
	code_of 75 "${fake[@]}"
}

@test "progress: rows and resumptions of a run with a vault, else checkpoints; a crash loop ends" {
	local n
	export HOSTS='' RESTARTS=1
	fake=("$supervise" ./fake 1 /dev/null --out=run --vault=none)
	for n in 1 2 3 4; do echo "echo step=$n loss=2 >>run/journal.txt; exit 9" >start-$n; done
	# as with --log-every 10
	for n in 5 6; do echo "echo '# event 2026-01-01T00:00:00Z step=$n resume' >>run/journal.txt; exit 9" >start-$n; done
	# the same step again, in a row and in a resumption
	echo "echo step=6 >>run/journal.txt; exit 9" >start-7
	cp start-6 start-8
	code_of 9 "${fake[@]}"
	[ "$(wc -l <starts)" -eq 8 ]
	says 'the run exited with 9, without progress: giving up'
	# rows that are in no checkpoint are lost without a vault
	rm -r run starts
	code_of 9 "${fake[@]:0:5}"
	[ "$(wc -l <starts)" -eq 2 ]
	mkdir -p run/checkpoints
	rm starts
	for n in 1 2 3; do echo "ln -sf step-000$n.h5 run/checkpoints/latest.h5; exit 9" >start-$n; done
	for n in 4 5; do echo 'exit 9' >start-$n; done
	code_of 9 "${fake[@]:0:5}"
	[ "$(wc -l <starts)" -eq 5 ]
}
