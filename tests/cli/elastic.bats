#!/usr/bin/env bats
# Workers that train apart, when their number changes, or one is lost.

load helpers
export SETUP=make_shard

supervise=$BATS_TEST_DIRNAME/../../share/recipes/supervise

# 12 sequences a step, which 2, 3 and 4 workers can share.
EDIT=(-b 12 -m 1 --watchdog 30 --edit-warmup-steps 3 --edit-sync-interval 4 --edit-outer sgd
	--edit-outer-momentum 0.8 --edit-reducer linear --edit-pseudo-gradnorm-reduce
	--edit-skip-anomaly --edit-ewma-warmup 3)

edit() { # RANKS OPTION...
	timeout -k 1 120 mpiexec -n "$1" pt-train "${TINY[@]}" "${EDIT[@]}" "${@:2}" </dev/null >/dev/null
}

on() { # RANKS OPTION...: goes on with a run
	timeout -k 1 120 mpiexec -n "$1" pt-train -q "${@:2}" </dev/null >/dev/null
}

have_agreed() { # FOLDER WORKERS: their last checkpoints have the same parameters
	local worker
	for worker in $(seq $(($2 - 1))); do
		pt-ckpt hash "$1/worker-$worker" | cut -d' ' -f1
	done >hashes
	[ "$(wc -l <hashes)" -eq $(($2 - 1)) ]
	[ "$(sort -u hashes)" = "$(pt-ckpt hash "$1" | cut -d' ' -f1)" ]
}

differ_in() { # A B GROUP...: these groups of two checkpoints, and no others
	pt-ckpt diff "$1" "$2" >differences || true
	awk '$2 ~ /^(model|exp_avg|exp_avg_sq|anchor|outer_avg|outer_avg_sq|residual)$/ { print $2 }' differences |
		sort -u | diff - <(printf '%s\n' "${@:3}" | sort)
}

step_of() { # FOLDER: of its last checkpoint
	local name
	name=$(readlink "$1/checkpoints/latest.h5")
	name=${name%.h5}
	echo $((10#${name#step-}))
}

rank_at() { # RANK: its process, of the runs here
	local pid
	for pid in $(pgrep -x pt-train); do
		[ "$(readlink "/proc/$pid/cwd")" = "$PWD" ] || continue
		[ "$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^PMI_RANK=//p')" != "$1" ] || echo "$pid"
	done
}

@test "4 workers, then 2, then 3: they go on, and agree" {
	edit 4 --edit-workers 4 -n 11 --ckpt-syncs 1 --ckpt-best=no --keep 0 -o run
	# the end of the warm-up and two synchronizations
	for worker in '' /worker-3; do
		echo run$worker/checkpoints/step-* | sed 's/[^ ]*step-0*//g' | grep -qx '3.h5 7.h5 11.h5'
	done
	cp -r run wide
	on 2 --edit-workers 2 --resume auto -n 14 -o run
	grep -q '^# event .* step=11 resuming with 2 workers instead of 4$' run/worker-1/journal.txt
	have_agreed run 2
	# of which no bit is the layout's
	on 4 --edit-workers 2 --fsdp 2 --resume auto -n 14 -o wide
	for worker in '' /worker-1; do
		cmp run$worker/checkpoints/latest.h5 wide$worker/checkpoints/latest.h5
	done
	on 3 --edit-workers 3 --resume auto -n 19 -o run
	grep -q '^# event .* step=14 resuming with 3 workers instead of 2$' run/journal.txt
	have_agreed run 3
	# a worker that was, and is again, has the rows of both times
	grep -o '^step=[0-9]*' run/worker-2/journal.txt | cut -d= -f2 | tr '\n' ' ' |
		grep -qx '1 2 3 4 5 6 7 8 9 10 11 15 16 17 18 19 '
	pt-compare -q run/worker-2 run/worker-2
	# what is left of the fourth is nobody's checkpoint now
	[ "$(step_of run/worker-3)" -eq 11 ]
	on 4 --edit-workers 4 --resume auto -n 23 -o run
	have_agreed run 4
	grep -q 'step=19 resuming with 4 workers instead of 3' run/worker-3/journal.txt
}

@test "between two synchronizations: back to the anchor, each with moments of its own" {
	edit 2 --edit-workers 2 --edit-wire int8 -n 14 --ckpt-every 1 --keep 0 -o run
	rm run/checkpoints/step-00000014.h5
	from=checkpoints/step-00000013.h5 at=checkpoints/step-00000011.h5
	on 3 --edit-workers 3 --resume run/$from -n 12 -o named
	grep -q 'step=11 resuming with 3 workers instead of 2; step 13 was between two synchronizations: back to step 11' \
		named/worker-2/journal.txt
	differ_in run/$at named/$at exp_avg exp_avg_sq
	differ_in run/$from named/$at model
	differ_in run/worker-1/$from named/worker-1/$at model
	# what the wire owes is owed once
	differ_in run/$from named/worker-2/$at model residual
	h5dump -a samples named/$at | grep -q '(0): 132$'
	# the same in the folder of the run, whose later checkpoints go
	on 3 --edit-workers 3 --resume auto -n 12 -o run
	not ls run/checkpoints/step-0000001[34].h5 run/worker-1/checkpoints/step-0000001[34].h5
	for worker in '' /worker-1 /worker-2; do
		cmp run$worker/checkpoints/latest.h5 named$worker/checkpoints/latest.h5
	done
	# the first worker's finds the others
	reports 65 "give --resume the first worker's" on 3 --edit-workers 3 --resume run/worker-1/$at -o other
}

@test "averages have nothing to go back to: only from where they agreed" {
	timeout -k 1 120 mpiexec -n 2 pt-train "${TINY[@]}" -b 12 -m 1 -n 7 --edit-workers 2 --edit-sync-interval 4 \
		--ckpt-every 1 --keep 0 -o run </dev/null >/dev/null
	code_of 65 on 3 --edit-workers 3 --resume run/checkpoints/step-00000006.h5 -o other
	says 'its 2 workers have differed since step 4 and keep no anchor'
	[ ! -e other ]
	rm run/checkpoints/step-00000007.h5 # the last, at which they agreed
	on 3 --edit-workers 3 --resume auto -n 8 -o run 2>err
	grep -q 'step-00000005.h5: its 2 workers .* looking for an older checkpoint' err
	grep -q 'step=4 resuming with 3 workers instead of 2$' run/journal.txt
	have_agreed run 3
	# a worker's file of another time is not one of this
	cp run/checkpoints/latest.h5 run/worker-1/checkpoints/step-00000008.h5
	timeout -k 1 120 mpiexec -n 3 pt-train -q --resume auto -n 9 -o run </dev/null >/dev/null 2>err
	grep -q 'worker-1/checkpoints/step-00000008.h5 is not the checkpoint of worker 1 of 3' err
	reports 64 'ckpt-syncs needs --edit-workers' tiny --ckpt-syncs 1 -o other
}

@test "workers that meet when it is time, and more of them from a step on, can be repeated" {
	local clock=(-b 12 -m 1 --edit-use-async --edit-warmup-steps 3 --edit-sync-time 0.03 --watchdog 30
		--edit-min-total-global-steps 4 --edit-outer sgd --ckpt-every 10 --keep 0 --inject-delay 0:10)
	timeout -k 1 120 mpiexec -n 2 pt-train "${TINY[@]}" "${clock[@]}" -n 20 --edit-workers 2 -o run </dev/null >/dev/null
	on 3 --edit-workers 3 --resume auto -n 32 -o run --inject-delay 0:10
	syncs=$(grep -o ' syncs=[0-9]*' run/worker-2/journal.txt | head -n 1 | cut -d= -f2)
	[ "$syncs" -gt 1 ]
	on 3 --edit-workers 3 --resume run/checkpoints/step-00000020.h5 -n 32 --edit-replay run -o again
	for worker in '' /worker-1 /worker-2; do
		pt-compare -q --common run$worker again$worker
		cmp run$worker/checkpoints/latest.h5 again$worker/checkpoints/latest.h5
	done
	# of a time before the third there is nothing to repeat
	code_of 65 mpiexec -n 3 pt-train "${TINY[@]}" "${clock[@]}" -n 32 --edit-workers 3 --edit-replay run -o none
	says "run/worker-2: the log lacks synchronization 1; resume from a checkpoint after synchronization $((syncs - 1)) (--resume)"
	[ ! -e none ]
}

@test "a run parts, and is a plain one again" {
	tiny -b 12 -m 1 -n 12 --ckpt-every 6 --keep 0 -o plain >/dev/null
	mkdir -p run/checkpoints
	cp plain/checkpoints/step-00000006.h5 run/checkpoints
	on 3 "${EDIT[@]}" --edit-workers 3 --edit-sync-interval 3 --resume auto -n 12 -o run
	grep -q 'step=6 resuming with 3 workers instead of 0$' run/worker-2/journal.txt
	grep -o '^step=[0-9]*.* syncs=[0-9]*' run/journal.txt | sed 's/ .*syncs=/ /' | tr '\n' ' ' |
		grep -qx 'step=9 1 step=12 2 '
	have_agreed run 3
	# its parameters are the anchor, as those at the end of a warm-up are
	on 3 "${EDIT[@]}" --edit-workers 3 --edit-sync-interval 3 --edit-warmup-steps 6 \
		--resume plain/checkpoints/step-00000006.h5 -n 12 -o warm
	pt-ckpt diff run warm
	on 2 --edit-workers 0 --dp 2 --resume auto -n 14 -o run
	grep -q 'step=12 resuming with 0 workers instead of 3$' run/journal.txt
	on 1 --edit-workers 0 --resume run/worker-2/checkpoints/latest.h5 -n 14 -o other
	differ_in run other exp_avg exp_avg_sq model # moments were a worker's own
	on 2 --resume auto -n 16 -o run
	[ "$(grep -c 'resuming with' run/journal.txt)" -eq 2 ]
	# one that never did goes on as ever
	cp plain/checkpoints/step-00000006.h5 .
	on 1 --resume step-00000006.h5 -o again
	cmp plain/checkpoints/latest.h5 again/checkpoints/latest.h5
	not grep -q 'resuming with' again/journal.txt
}

@test "a rank is killed under the supervisor: an interval is lost at most, and no bit" {
	long=(-n 100 --edit-workers 4 --edit-sync-interval 20 --ckpt-syncs 1 --ckpt-wait --keep 0)
	edit 4 "${long[@]}" -o whole
	# (slow, so that a busy machine does not find it at its end)
	WAIT=0.1 timeout -k 1 120 "$supervise" mpiexec -n 4 pt-train "${TINY[@]}" "${EDIT[@]}" "${long[@]}" -o run \
		--inject-delay 2:30 >/dev/null 2>err 3>&- &
	pid=$!
	wait_for '^step=48 ' run/worker-2/journal.txt
	victim=$(rank_at 2)
	kill -STOP "$victim"
	sleep 0.3 # the others wait for it
	kill -9 "$victim"
	ended $pid
	cat err
	[ "$status" -eq 0 ]
	grep -q '^supervise: the run exited with [1-9][0-9]*; newest checkpoint: step ' err
	resumed=$(sed -n 's/^# event [^ ]* step=\([0-9]*\) resume$/\1/p' run/worker-2/journal.txt)
	lost=$(($(sed '/ resume$/,$d' run/worker-2/journal.txt | grep -o '^step=[0-9]*' | tail -n 1 | cut -d= -f2) - resumed))
	echo "step $resumed, and $lost of the steps after it are lost"
	[ "$resumed" -ge 43 ]
	[ $lost -ge 0 ]
	[ $lost -le 20 ]
	for worker in '' /worker-1 /worker-2 /worker-3; do
		cmp whole$worker/checkpoints/latest.h5 run$worker/checkpoints/latest.h5
		pt-compare -q whole$worker run$worker
	done
}

@test "the supervisor goes on with fewer workers, hands on a signal, and knows when to give up" {
	# no four ranks to be had
	mkdir bin
	# shellcheck disable=SC2016
	printf '#!/bin/sh\n[ "$PMI_SIZE" != 4 ] || exit 9\nexec %s "$@"\n' "$(command -v pt-train)" >bin/pt-train
	chmod +x bin/pt-train
	PATH=$PWD/bin:$PATH WORKERS='4 2 1' RESTARTS=1 WAIT=0.1 timeout -k 1 120 "$supervise" \
		mpiexec -n '{ranks}' pt-train "${TINY[@]}" "${EDIT[@]}" --edit-workers '{workers}' -n 100000 \
		--eval-every 0 -o run >/dev/null 2>err 3>&- &
	pid=$!
	wait_for '^step=30 ' run/worker-1/journal.txt
	kill -TERM $pid
	ended $pid
	cat err
	[ "$status" -eq 75 ]
	[ "$(grep -c 'the run exited with' err)" -eq 2 ]
	grep -q 'continuing with 2 workers' err
	grep -q 'ends with code 75' run/worker-1/journal.txt
	have_agreed run 2
	# a usage error is no reason to try again; what ends for nothing is, so many times
	code_of 64 "$supervise" pt-train --no-such -o other
	[ "$(grep -c 'no-such' <<<"$output")" -eq 1 ]
	code_of 64 "$supervise" pt-train -d data.h5
	# shellcheck disable=SC2016
	RESTARTS=2 WAIT=0.01 code_of 7 "$supervise" sh -c 'echo "started $*"; exit 7' sh --out=nothing
	[ "$(grep -c 'started --out=nothing --resume auto' <<<"$output")" -eq 3 ]
	says 'giving up'
	# and 0 is no success where no journal says so
	RESTARTS=0 code_of 1 "$supervise" true --out=nothing --resume auto
}
