#!/usr/bin/env bats
# Workers that train apart (EDiT): their runs.

load helpers

refuse() { # TEXT COMMAND...: 64, and one message
	code_of 64 "${@:2}"
	says "$1"
	[ "$(grep -c '^pt-train: ' <<<"$output")" -eq 1 ]
}

# 8 sequences a step, one at a time; the same arithmetic on any layout.
APART=(-m 1 --heads 4 --no-ckpt --virtual 'tp=2,cp=2' --watchdog 30)
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

@test "a stop reaches all workers, also those that are not at the same step" {
	make_shard
	timeout -k 1 60 mpiexec -n 2 pt-train "${TINY[@]}" "${APART[@]}" -o run -n 1000000 --eval-every 0 \
		--edit-workers 2 --edit-sync-interval 7 "${OUTER[@]}" >/dev/null 2>err 3>&- &
	mpi=$!
	wait_for 'step=20 ' run/journal.txt
	# one of them hears of it, the other at the next synchronisation
	kill -TERM "$(pgrep -P "$(pgrep -P $mpi -n)" -x pt-train -n || pgrep -n -x pt-train)"
	status=0
	wait $mpi || status=$?
	cat err
	[ "$status" -eq 143 ]
	grep -q 'stopped by a signal' run/journal.txt
	grep -q 'stopped by a signal' run/worker-1/journal.txt
}

@test "what cannot be is refused" {
	make_shard
	refuse '3 ranks cannot be shared out to 2 workers' tiny_on 3 -b 12 --no-ckpt --edit-workers 2
	refuse 'batch (8) cannot be shared out to 3 workers' tiny_on 3 --no-ckpt --edit-workers 3
	refuse 'checkpoints of several workers cannot be written yet' tiny_on 2 --edit-workers 2
	refuse 'workers that train apart needs --edit-workers' tiny --edit-sync-interval 4
	refuse 'edit-skip-anomaly needs something to go back to' tiny --edit-workers 1 --edit-skip-anomaly
	refuse 'edit-consensus needs --edit-reducer gta' tiny --edit-workers 1 --edit-consensus sum
	refuse 'edit-density needs --edit-sparsification' tiny --edit-workers 1 --edit-density 0.5
	refuse 'edit-outer-nesterov needs --edit-outer-momentum' tiny --edit-workers 1 \
		--edit-outer sgd --edit-outer-nesterov
}
