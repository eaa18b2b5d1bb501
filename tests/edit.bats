#!/usr/bin/env bats
# Workers that train apart (EDiT): their runs.

load helpers

refuse() { # TEXT COMMAND...: 64, and one message
	code_of 64 "${@:2}"
	says "$1"
	[ "$(grep -c '^pt-train: ' <<<"$output")" -eq 1 ]
}

# 8 sequences a step, one at a time; the same arithmetic on any layout.
APART=(-m 1 --heads 4 --virtual 'tp=2,cp=2' --watchdog 30)
OUTER=(--edit-outer sgd --edit-outer-lr 0.7 --edit-outer-momentum 0.8 --edit-outer-nesterov)
PENALTY=(--edit-reducer linear --edit-pseudo-gradnorm-reduce --edit-skip-anomaly
	--edit-ewma-warmup 3 --edit-clip-pseudo-grad 10)

apart() { # RANKS FOLDER OPTION...
	timeout -k 1 60 mpiexec -n "$1" pt-train "${TINY[@]}" "${APART[@]}" -o "$2" "${@:3}" </dev/null >/dev/null
}

column() { # NAME FOLDER: of all rows that have it
	grep '^step=' "$2/journal.txt" | grep -o " $1=[^ ]*" | cut -d= -f2
}

@test "until they part, workers are data-parallel ranks, bit for bit" {
	make_shard
	# (a tied weight's two uses are summed within each worker first, which rounds otherwise)
	apart 2 together -n 12 -a llama --dp 2
	apart 2 warm -n 12 -a llama --edit-workers 2 --edit-warmup-steps 99
	diff <(column grad_norm together) <(column grad_norm warm)
	diff <(column val_loss together) <(column val_loss warm)
	diff <(column val_loss warm) <(column val_loss warm/worker-1)
	# of a step each sees its own half
	paste <(column loss together) <(column loss warm) <(column loss warm/worker-1) |
		awk '{ d = $1 - ($2 + $3) / 2; if (d > 1e-6 || d < -1e-6) exit 1 } END { exit NR != 12 }'
	not grep -q 'sync=' warm/journal.txt
}

@test "a worker's layout changes no bit" {
	make_shard
	edit=(-n 15 --layers 2 --edit-workers 2 --edit-warmup-steps 3 --edit-sync-interval 4 "${OUTER[@]}" "${PENALTY[@]}")
	apart 2 alone "${edit[@]}"
	n=0
	while read -r ranks layout; do
		# shellcheck disable=SC2086 # options are words
		apart $((2 * ranks)) other --overwrite "${edit[@]}" $layout
		for worker in '' /worker-1; do
			pt-compare -q "alone$worker" "other$worker"
		done
		n=$((n + 1))
	done <<-END
		2 --dp 2
		2 --fsdp 2
		4 --fsdp 2 --tp 2
		2 --cp 2 --pp-schedule 1f1b
		4 --pp 2 --dp 2
		1 --offload params --offload-to .
	END
	[ $n -eq 6 ]
	# steps 7, 11 and 15; the rows of two workers differ only in what is each worker's own
	column sync alone | tr '\n' ' ' | grep -qx '1 2 3 '
	column lr alone | grep -c . | grep -qx 15
	for c in sync_reduced sync_clip sync_loss; do
		diff <(column $c alone) <(column $c alone/worker-1)
	done
	diff <(column val_loss alone | tail -n 1) <(column val_loss alone/worker-1 | tail -n 1)
	not diff -q <(column sync_norm alone) <(column sync_norm alone/worker-1)
}

@test "what is sent to other workers is what the plan says" {
	make_shard
	edit=(-n 4 --edit-workers 2 --edit-sync-interval 2 --fsdp 2 "${OUTER[@]}")
	apart 4 run "${edit[@]}"
	pt-train "${TINY[@]}" "${APART[@]}" "${edit[@]}" --dry-run >plan
	grep -q '^# workers: 2, of 2 ranks each$' plan
	planned=$(awk '$1 == "sent/sync" { print $2 }' plan)
	[ "$(column sync_sent run | sort -u)" -eq "$planned" ]
	# fp32 of half the parameters, and little more
	part=$(awk '$1 == "parameters" && $2 > 0 { print $2 }' plan | tail -n 1)
	[ "$planned" -ge "$part" ] && [ "$planned" -lt $((part + 2000)) ]
}

@test "one worker trains on with an outer step" {
	make_shard
	tiny -n 12 --no-ckpt -o plain >/dev/null
	apart 1 same -m 2 --virtual tp=1,cp=1 --heads 2 -n 12 --edit-workers 1 --edit-sync-interval 4
	diff <(column loss plain) <(column loss same)
	apart 1 outer -m 2 --virtual tp=1,cp=1 --heads 2 -n 12 --edit-workers 1 --edit-sync-interval 4 "${OUTER[@]}"
	diff <(column loss plain | head -n 4) <(column loss outer | head -n 4)
	not diff -q <(column loss plain) <(column loss outer)
}

EDIT=(--edit-workers 2 --edit-warmup-steps 3 --edit-sync-interval 4 "${OUTER[@]}" "${PENALTY[@]}")

same_runs() { # A B: in the rows that both have, and at their ends
	local worker
	for worker in '' /worker-1; do
		pt-compare -q --common "$1$worker" "$2$worker"
		pt-ckpt diff "$1$worker" "$2$worker"
	done
}

@test "a run goes on from any step, on any layout of its workers" {
	make_shard
	apart 2 whole -n 15 "${EDIT[@]}"
	apart 4 parts -n 15 "${EDIT[@]}" --fsdp 2 --ckpt-every 1 --keep 0
	same_runs whole parts
	n=0
	# in the warm-up, at its end, between two synchronisations, and at one
	for step in 02 03 05 07 14; do
		apart 2 from-$step --resume parts/checkpoints/step-000000$step.h5
		same_runs whole from-$step
		n=$((n + 1))
	done
	[ $n -eq 5 ]
	# a worker that had not written its last
	rm parts/worker-1/checkpoints/step-000000{14,15}.h5
	mpiexec -n 2 pt-train -q --resume auto -o parts </dev/null >/dev/null 2>err
	grep -q 'step-00000014.h5: worker 1 has none; looking for an older checkpoint' err
	same_runs whole parts
	# a folder, a link; and none of it for another warm-up
	for from in whole whole/checkpoints/latest.h5 whole/checkpoints; do
		mpiexec -n 2 pt-train -q --resume $from -n 18 -o further </dev/null >/dev/null
		[ "$(readlink further/worker-1/checkpoints/latest.h5)" = step-00000018.h5 ]
		rm -r further
	done
	code_of 64 mpiexec -n 2 pt-train -q --resume parts/checkpoints/step-00000005.h5 --edit-warmup-steps 9 -o other
	says 'edit-warmup-steps 9: the run is at step 5, and it was 3'
	tiny --eval-only --resume whole | grep -q val_loss=
	code_of 65 mpiexec -n 4 pt-train -q --resume whole --edit-workers 4 -o other
	says 'another number of workers cannot go on with it yet'
}

stop_rank() { # RANK: of the run in this folder, and no other
	local pid
	for pid in $(pgrep -x pt-train); do
		[ "$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^PMI_RANK=//p')" != "$1" ] ||
			[ "$(readlink "/proc/$pid/cwd")" != "$PWD" ] || kill -TERM "$pid"
	done
}

@test "who is told to stop tells the others where they meet, and the run goes on" {
	make_shard
	steps=(-n 100000 --eval-every 0 --log-every 100 --lr-schedule constant "${EDIT[@]}")
	timeout -k 1 60 mpiexec -n 2 pt-train "${TINY[@]}" "${APART[@]}" "${steps[@]}" -o run \
		</dev/null >/dev/null 2>err 3>&- &
	mpi=$!
	wait_for 'step=100 ' run/worker-1/journal.txt
	stop_rank 1
	status=0
	wait $mpi || status=$?
	cat err
	[ "$status" -eq 75 ]
	step=$(readlink run/checkpoints/latest.h5)
	[ "$(readlink run/worker-1/checkpoints/latest.h5)" = "$step" ]
	step=${step%.h5}
	step=$((10#${step#step-}))
	[ $(((step - 3) % 4)) -eq 0 ]
	apart 2 run --resume auto -n $((step + 10))
	apart 2 whole "${steps[@]}" -n $((step + 10))
	same_runs run whole
}

ASYNC=(--edit-workers 2 --edit-warmup-steps 3 --edit-use-async --edit-sync-time 0.03
	--edit-min-total-global-steps 4 --edit-use-step-weight "${OUTER[@]}" "${PENALTY[@]}")

@test "workers that meet when it is time: a slow one does fewer steps, and all can be repeated" {
	make_shard
	apart 2 run -n 60 "${ASYNC[@]}" --straggle 0:2 --straggle 1:10 --ckpt-every 20 --keep 0
	# they agree on where they are, and on what has been seen; they did not do as much
	diff <(column sync run) <(column sync run/worker-1)
	diff <(grep ' sync=' run/journal.txt | cut -d' ' -f1-2) <(grep ' sync=' run/worker-1/journal.txt | cut -d' ' -f1-2)
	[ "$(tail -n 1 < <(column sync run))" -ge 2 ]
	quick=$(column sync_steps run | awk '{ n += $1 } END { print n }')
	slow=$(column sync_steps run/worker-1 | awk '{ n += $1 } END { print n }')
	[ "$slow" -lt "$quick" ]
	tokens=$(tail -n 1 < <(grep -o '^step=60 tokens=[0-9]*' run/journal.txt) | cut -d= -f3)
	[ "$tokens" -eq $(((2 * 3 + quick + slow) * 4 * 16)) ]
	# the same checkpoints, all of them at a synchronisation
	diff <(ls run/checkpoints) <(ls run/worker-1/checkpoints)
	pt-ckpt diff --no-optimizer run run/worker-1
	# again, on other layouts, and from the middle
	apart 4 again -n 60 "${ASYNC[@]}" --edit-replay run --fsdp 2 --ckpt-every 20 --keep 0
	same_runs run again
	first=$(find run/checkpoints -name 'step-*' | sort | head -n 1)
	apart 2 middle --resume "$first" --edit-replay run
	same_runs run middle
	code_of 74 tiny_on 2 --edit-workers 2 --edit-use-async --edit-replay run/worker-1 -o none
	says 'run/worker-1/worker-1: No such file'
}

@test "who waits for nobody is stopped at once, with the others" {
	make_shard
	slow=(-n 100000 --eval-every 0 --log-every 100 --lr-schedule constant "${ASYNC[@]}" --edit-sync-time 600)
	timeout -k 1 60 mpiexec -n 2 pt-train "${TINY[@]}" "${APART[@]}" "${slow[@]}" -o run \
		</dev/null >/dev/null 2>err 3>&- &
	mpi=$!
	wait_for 'step=100 ' run/worker-1/journal.txt
	stop_rank 1
	status=0
	wait $mpi || status=$?
	cat err
	[ "$status" -eq 75 ]
	[ "$(readlink run/worker-1/checkpoints/latest.h5)" = "$(readlink run/checkpoints/latest.h5)" ]
	[ "$(column sync run)" -eq 1 ]
}

@test "bad data: of one worker and of some steps, the same on any layout" {
	make_shard
	good=(-n 30 --lr 1e-2 --edit-workers 2 --edit-warmup-steps 99)
	bad=("${good[@]}" --garble 1:27:28)
	apart 2 good "${good[@]}"
	apart 2 bad "${bad[@]}"
	apart 4 other "${bad[@]}" --dp 2
	pt-compare -q bad/worker-1 other/worker-1
	# the other worker's own loss is another only when the gradient of step 27 has come there
	diff <(column loss good | head -n 27) <(column loss bad | head -n 27)
	diff <(column loss good/worker-1 | head -n 26) <(column loss bad/worker-1 | head -n 26)
	[ "$(paste <(column loss good/worker-1) <(column loss bad/worker-1) |
		awk '$2 > $1 + 0.5 { printf "%d ", NR }')" = '27 28 ' ]
	refuse "garble: '1:4:3' is not" tiny --garble 1:4:3
}

@test "what cannot be is refused" {
	make_shard
	refuse '3 ranks cannot be shared out to 2 workers' tiny_on 3 -b 12 --no-ckpt --edit-workers 2
	refuse 'batch (8) cannot be shared out to 3 workers' tiny_on 3 --no-ckpt --edit-workers 3
	mkfifo pipe.h5
	refuse 'pipe.h5 can be read once' tiny_on 2 -d pipe.h5 --edit-workers 2
	refuse 'data-per-rank does not go with edit-workers yet' tiny_on 2 --edit-workers 2 --data-per-rank
	refuse 'workers that train apart needs --edit-workers' tiny --edit-sync-interval 4
	refuse 'edit-skip-anomaly needs something to go back to' tiny --edit-workers 1 --edit-skip-anomaly
	refuse 'edit-consensus needs --edit-reducer gta' tiny --edit-workers 1 --edit-consensus sum
	refuse 'edit-density needs --edit-sparsification' tiny --edit-workers 1 --edit-density 0.5
	refuse 'edit-use-step-weight needs --edit-use-async' tiny --edit-workers 1 --edit-use-step-weight
	refuse 'edit-sync-interval counts steps' tiny --edit-workers 1 --edit-use-async --edit-sync-interval 2
	refuse "straggle: 'some:3' is not" tiny --straggle some:3
	refuse 'edit-outer-nesterov needs --edit-outer-momentum' tiny --edit-workers 1 \
		--edit-outer sgd --edit-outer-nesterov
}
