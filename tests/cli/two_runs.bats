#!/usr/bin/env bats
# Two programs that write to one place, ranks that do not see the same files, clocks that jump.
load helpers
export SETUP=make_shard

train() { # OPTION...: in the background, its process in $pid
	pt-train "${TINY[@]}" "$@" >out 2>err 3>&- &
	pid=$!
}

# Refused, at once or where another may just be stopping soon; and nothing was touched.
refused() { # TEXT COMMAND...
	local text=$1
	shift
	find run/checkpoints | sort >before
	reports 64 "$text" timeout 120 "$@"
	[ "$(grep '^pt-' <<<"$output" | grep -vc waiting)" -eq 1 ]
}

@test "a second run in the folder of one that goes on is refused, whoever started it" {
	options=(-n 100000 --ckpt-every 50 --ckpt-wait --keep 0 --eval-every 0)
	for n in 1 2; do
		rm -rf run
		mpiexec -n $n sh -c 'if [ "$PMI_RANK" = 0 ]; then echo $$ >pid; fi; exec "$@"' sh \
			pt-train "${TINY[@]}" "${options[@]}" -o run >out 2>err 3>&- &
		started=$!
		wait_for '^step=60 ' run/journal.txt
		busy="run: another pt-train is writing to this directory (process $(cat pid) on $(hostname)"
		# alone, it need not go on meanwhile
		[ $n -gt 1 ] || kill -STOP "$(cat pid)"
		refused 'run holds a run' pt-train "${TINY[@]}" -o run
		refused "$busy" pt-train "${TINY[@]}" -o run --overwrite
		[ $n -gt 1 ] || refused "$busy" mpiexec -n 2 pt-train -q --resume auto -o run
		refused "$busy" mpiexec -n 3 pt-train "${TINY[@]}" -o run --overwrite
		# reading is no writing
		tiny --eval-only --resume run/checkpoints/step-00000050.h5 -o run >/dev/null
		pt-train --resume auto -o run --dry-run >/dev/null
		kill -CONT "$(cat pid)"
		kill -TERM "$(cat pid)"
		ended $started
		[ "$status" -eq 75 ]
		[ "$(grep -c '^# meta started' run/journal.txt)" -eq 1 ]
		[ "$(ls run/checkpoints/*.tmp* 2>/dev/null | wc -l)" -eq 0 ]
	done
	# and it is the run it would have been
	steps=$(grep -c ^step= run/journal.txt)
	pt-train -q --resume auto -o run -n $((steps + 10)) --decay-steps 100000 >/dev/null
	tiny "${options[@]}" -n $((steps + 10)) --decay-steps 100000 -o whole >/dev/null
	pt-compare whole run
	cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
}

@test "two that begin at once: one does, and the other is refused" {
	tiny -n 30 -o whole >/dev/null
	for k in 1 2 3 4 5; do
		tiny -n 30 -o run$k >/dev/null 2>err1 3>&- & a=$!
		case $k in
		2 | 3) tiny_on 2 -n 30 -o run$k >/dev/null 2>err2 3>&- & b=$! ;;
		4) tiny -n 30 --resume auto -o run$k >/dev/null 2>err2 3>&- & b=$! ;;
		*) tiny -n 30 -o run$k >/dev/null 2>err2 3>&- & b=$! ;;
		esac
		ended $a
		first=$status
		ended $b
		echo "$k: $first $status"
		# whoever resumes may come when the first is done, and finds nothing left to do
		[ $((first + status)) -eq 64 ] || { [ $k -eq 4 ] && [ $((first + status)) -eq 0 ]; }
		[ $((first + status)) -eq 0 ] || cat err1 err2 | grep -qE 'writing to this directory|holds a run|has begun a run here'
		pt-compare whole run$k
		cmp whole/checkpoints/latest.h5 run$k/checkpoints/latest.h5
	done
	# without a name each gets its own
	for k in 1 2 3; do
		tiny -n 3 >/dev/null 3>&- &
	done
	wait
	for k in 1 2 3; do pt-ckpt verify run-00$k; done
}

@test "a run that is killed blocks nobody; one that is stopping is waited for" {
	train -n 100000 -o run
	wait_for '^step=20 ' run/journal.txt
	kill -9 $pid
	tiny -n 30 --decay-steps 100000 --resume auto -o run >/dev/null
	rm -r run
	train -n 100000 -o run
	wait_for '^step=20 ' run/journal.txt
	pt-train "${TINY[@]}" --resume auto -o run -n 10 >/dev/null 2>said 3>&- &
	next=$!
	wait_for 'run: another pt-train is writing to this directory; waiting' said
	kill -TERM $pid
	ended $pid
	[ "$status" -eq 75 ]
	ended $next
	[ "$status" -eq 0 ]
}

@test "two pt-prepare with one --out: a whole file, a whole set" {
	rev text.txt >other.txt
	mkdir a b
	pt-prepare -q text.txt -o a/x.h5 --shard-size 10000
	pt-prepare -q other.txt -o b/x.h5 --shard-size 10000
	pt-prepare -q other.txt -o other.h5
	for _ in 1 2 3 4; do
		rm -f x*.h5
		pt-prepare -q text.txt -o x.h5 2>err1 3>&- & one=$!
		pt-prepare -q other.txt -o x.h5 2>err2 3>&- & two=$!
		ended $one
		first=$status
		ended $two
		# without --overwrite only one
		[ $((first + status)) -eq 74 ]
		grep -qE 'x.h5 exists; --overwrite|x.h5: another program has just created this file' err1 err2
		cmp x.h5 data.h5 || cmp x.h5 other.h5
		rm -f x*.h5
		for how in '' --overwrite; do
			pt-prepare -q $how text.txt -o x.h5 --shard-size 10000 2>err1 3>&- & one=$!
			pt-prepare -q $how other.txt -o x.h5 --shard-size 10000 2>err2 3>&- & two=$!
			ended $one
			first=$status
			ended $two
			[ $((first + status)) -eq 74 ] || [ "$how" ]
			[ $((first + status)) -eq 0 ] || [ ! "$how" ]
			mkdir c && mv x-*.h5 c
			diff -r a c >/dev/null || diff -r b c
			rm -r c
		done
	done
	[ -z "$(find . -name '*.tmp')" ]
}

@test "two pt-collbench, two pt-compare with one output" {
	tiny -n 20 -o run >/dev/null
	for _ in 1 2 3; do
		pids=()
		for _ in 1 2 3; do
			pt-collbench -q -b 8 -e 64 -n 1 --out c.h5 >/dev/null 3>&- & pids+=($!)
			if command -v gnuplot >/dev/null; then
				pt-compare -q run run --plot x.svg >/dev/null 3>&- & pids+=($!)
			fi
		done
		for p in "${pids[@]}"; do
			ended "$p"
			[ "$status" -eq 0 ]
		done
		h5dump c.h5 >/dev/null
		[ ! -e x.svg ] || grep -q '</svg>' x.svg
	done
	[ -z "$(find . -name '*.tmp')" ]
}

@test "a file that only one rank misses stops all of 2 and 3, soon and with one message" {
	tiny -n 4 -o old >/dev/null
	mkdir there here
	cp -r data.h5 old there
	cp data.h5 here
	echo 'layers = 1' >there/c.conf
	ranks() { # N OPTION...: the last of them elsewhere
		mpiexec -n $(($1 - 1)) -wdir "$PWD/there" pt-train "${TINY[@]}" "${@:2}" : \
			-n 1 -wdir "$PWD/here" pt-train "${TINY[@]}" "${@:2}"
	}
	export -f ranks
	for n in 2 3; do
		one() { # CODE TEXT OPTION...
			code_of "$1" timeout 120 bash -c 'n=$1 TINY=($2); shift 2; ranks "$n" "$@"' x $n "${TINY[*]}" "${@:3}"
			says "$2"
			[ "$(messages)" -eq 1 ]
		}
		one 74 "rank $((n - 1)): c.conf: No such file" -n 2 -o new --config c.conf
		one 74 "rank $((n - 1)): old/checkpoints/step-00000004.h5: No such file" -n 8 -o new --resume old/checkpoints/step-00000004.h5
		if [ $n -eq 2 ]; then
			one 74 "rank 1: new/checkpoints: No such file or directory, on $(hostname); without a shared file system, give --ckpt-load broadcast" -n 2 -o new
		else # and nothing is removed for a run that cannot begin
			cp -r old there/new
			one 74 "rank 2: new/checkpoints: No such file" -n 2 -o new --overwrite
			diff -r old there/new
			rm -r there/new
		fi
		rm here/data.h5
		one 74 "rank $((n - 1)): data.h5: No such file" -d data.h5 -n 2 -o new
		cp data.h5 here
		cp text.txt here/data.h5
		one 65 "rank $((n - 1)): data.h5: not an HDF5 file" -d data.h5 -n 2 -o new
		cp data.h5 here
		[ "$(ls there here)" = "$(printf 'here:\ndata.h5\n\nthere:\nc.conf\ndata.h5\nold')" ]
	done
}
