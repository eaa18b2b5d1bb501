#!/usr/bin/env bats
# Workers that train apart (EDiT): their runs.

load helpers
export SETUP=make_shard

refuse() { # TEXT COMMAND...: 64, and one message
	reports 64 "$1" "${@:2}"
	[ "$(messages)" -eq 1 ]
}

# 8 sequences a step, one at a time; the same arithmetic on any layout.
APART=(-m 1 --heads 4 --virtual 'tp=2,cp=2' --watchdog 30)
OUTER=(--edit-outer sgd --edit-outer-lr 0.7 --edit-outer-momentum 0.8 --edit-outer-nesterov)
PENALTY=(--edit-reducer linear --edit-pseudo-gradnorm-reduce --edit-skip-anomaly
	--edit-ewma-warmup 3 --edit-clip-pseudo-grad 10)

apart() { # RANKS FOLDER OPTION...
	timeout -k 1 120 mpiexec -n "$1" pt-train "${TINY[@]}" "${APART[@]}" -o "$2" "${@:3}" </dev/null >/dev/null
}

column() { # NAME FOLDER: of all rows that have it
	grep '^step=' "$2/journal.txt" | grep -o " $1=[^ ]*" | cut -d= -f2
}

same_runs() { # A B: in the rows that both have, and at their ends
	local worker
	for worker in '' /worker-1; do
		pt-compare -q --common "$1$worker" "$2$worker"
		pt-ckpt diff "$1$worker" "$2$worker"
	done
}

@test "until they part, workers are data-parallel ranks, bit for bit" {
	apart 2 together -n 12 -a llama --dp 2
	apart 2 warm -n 12 -a llama --edit-workers 2 --edit-warmup-steps 99
	diff <(column grad_norm together) <(column grad_norm warm)
	diff <(column val_loss together) <(column val_loss warm)
	diff <(column val_loss warm) <(column val_loss warm/worker-1)
	# of a step each sees its own half, but logs the whole
	column loss together >losses
	[ "$(grep -c . losses)" -eq 12 ]
	cmp losses <(column loss warm)
	cmp losses <(column loss warm/worker-1)
	not grep -q 'syncs=' warm/journal.txt
}

@test "a warm-up that lasts to the end of the run: a warning says that workers take no local steps" {
	tiny_on 2 -n 4 --edit-workers 2 --edit-warmup-steps 50 -o long >/dev/null 2>err
	[ "$(grep -c 'edit-warmup-steps 50: the run has only 4 steps, so its workers never take local steps' err)" -eq 1 ]
	tiny_on 2 -n 4 --edit-workers 2 --edit-warmup-steps 4 -o all >/dev/null 2>err
	grep -q 'never take local steps' err
	tiny_on 2 -n 4 --edit-workers 2 --edit-warmup-steps 3 -o most >/dev/null 2>err
	not grep 'never take local steps' err
}

@test "the mean loss of all workers after the warm-up, in the rows that have it" {
	edit=(-n 9 --log-every 2 -a llama --edit-workers 2 --edit-warmup-steps 4 --edit-sync-interval 3 "${OUTER[@]}")
	apart 2 own "${edit[@]}"
	apart 2 mean "${edit[@]}" --edit-global-loss
	apart 4 fsdp "${edit[@]}" --edit-global-loss --fsdp 2
	apart 2 together -n 9 --log-every 2 -a llama --dp 2
	diff <(column loss mean) <(column loss fsdp)
	diff <(column loss mean) <(column loss mean/worker-1)
	diff <(column sync_sent own) <(column sync_sent mean)
	pt-ckpt diff own mean
	paste <(column loss mean) <(column loss own) <(column loss own/worker-1) |
		awk '{ d = $1 - ($2 + $3) / 2; if (d > 1e-6 || d < -1e-6) exit 1 } END { exit NR != 7 }'
	# the step after the warm-up is still the control's
	diff <(column loss mean | head -n 3) <(column loss together | head -n 3)
	refuse 'edit-global-loss and --edit-use-async are mutually exclusive' tiny --edit-workers 1 --edit-use-async \
		--edit-global-loss
}

@test "experts: workers are data-parallel ranks in the warm-up, and a worker's layout changes no bit" {
	experts=(-n 10 --layers 2 -a llama --experts 8 --expert-dim 12 --edit-workers 2 --edit-sync-interval 3 "${OUTER[@]}")
	apart 2 together -n 10 --layers 2 -a llama --experts 8 --expert-dim 12 --dp 2
	apart 2 warm "${experts[@]}" --edit-warmup-steps 10
	diff <(column grad_norm together) <(column grad_norm warm)
	apart 2 alone "${experts[@]}" --edit-warmup-steps 3 "${PENALTY[@]}"
	while read -r ranks layout; do
		# shellcheck disable=SC2086 # options are words
		apart $((2 * ranks)) other --overwrite "${experts[@]}" --edit-warmup-steps 3 "${PENALTY[@]}" $layout
		pt-compare -q alone other
		pt-compare -q alone/worker-1 other/worker-1
	done <<-END
		2 --fsdp 2 --ep 2 --expert-room 2
		2 --tp 2
		2 --dp 2 --ep 2 --expert-room 2
		4 --fsdp 2 --cp 2 --zero 2 --ep 4 --expert-room 4
		4 --pp 2 --dp 2 --ep 2 --expert-room 2
	END
	# on from the middle, with another degree, and other techniques
	more=("${experts[@]}" --edit-warmup-steps 3 "${PENALTY[@]}" --edit-wire int8 --optimizer muon)
	apart 2 whole "${more[@]}"
	apart 4 first "${more[@]}" --dp 2 --ep 2 --expert-room 2 --ckpt-every 1 --keep 0
	for step in 05 06; do
		apart 8 "then-$step" --layers 2 --resume first/checkpoints/step-000000$step.h5 --fsdp 4 --zero 3 --ep 4 --expert-room 4
		same_runs whole "then-$step"
	done
	refuse 'edit-workers and --router-bias are mutually exclusive' tiny --edit-workers 1 -a llama --experts 4 \
		--router sigmoid --router-bias 0.1
	refuse 'edit-workers and --balance-over batch are mutually exclusive' tiny --edit-workers 1 -a llama --experts 4 \
		--balance-over batch
}

@test "a worker's layout changes no bit" {
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
	done < <(some_of 3 <<-END
		4 --fsdp 2 --tp 2
		2 --cp 2 --pp-schedule 1f1b
		1 --offload params --offload-to .
		2 --dp 2
		2 --fsdp 2
		4 --pp 2 --dp 2
	END
	)
	[ $n -ge 3 ]
	# steps 7, 11 and 15; the rows of two workers differ only in what is each worker's own
	column syncs alone | tr '\n' ' ' | grep -qx '1 2 3 '
	column lr alone | grep -c . | grep -qx 15
	for c in outer_grad_norm outer_clip local_loss; do
		diff <(column $c alone) <(column $c alone/worker-1)
	done
	diff <(column val_loss alone | tail -n 1) <(column val_loss alone/worker-1 | tail -n 1)
	not diff -q <(column pseudo_grad_norm alone) <(column pseudo_grad_norm alone/worker-1)
}

@test "copies of parameters in 16 bits, in files, are those of the last synchronization" {
	for outer in none sgd; do
		edit=(-n 4 --dtype bf16 --edit-workers 2 --edit-sync-interval 2 --edit-outer "$outer")
		apart 2 memory-$outer "${edit[@]}"
		apart 2 files-$outer "${edit[@]}" --offload params --offload-to .
		apart 4 shards-$outer "${edit[@]}" --offload all --offload-to . --fsdp 2
		same_runs memory-$outer files-$outer
		same_runs memory-$outer shards-$outer
	done
}

@test "what is sent to other workers is what the plan says" {
	edit=(-n 4 --edit-workers 2 --edit-sync-interval 2 --fsdp 2 "${OUTER[@]}")
	apart 4 run "${edit[@]}"
	pt-train "${TINY[@]}" "${APART[@]}" "${edit[@]}" --dry-run >plan
	grep -q '^# workers: 2, of 2 ranks each$' plan
	planned=$(awk '$1 == "sent/sync" { print $2 }' plan)
	[ "$(column sync_sent run | sort -u)" -eq "$planned" ]
	# fp32 of half the parameters, and little more
	part=$(awk '$1 == "parameters" && $2 > 0 { print $2 }' plan | tail -n 1)
	[ "$planned" -ge "$part" ]
	[ "$planned" -lt $((part + 2000)) ]
	# in an interval two thirds of what data parallelism sends in a step, whose sums of several leaves are
	# int64 (8 and 4 bytes an element instead of 4 and 4), but for what that says of losses
	apart 2 dp -n 4 --dim 64 --dp 2 --eval-every 0
	apart 2 edit -n 4 --dim 64 --edit-workers 2 --edit-sync-interval 4 "${OUTER[@]}" --eval-every 0
	awk -v dp="$(column sent dp | tail -n 1)" -v edit="$(column sync_sent edit)" \
		'BEGIN { exit !(edit <= 1.01 * dp / 1.5 && edit >= 0.97 * dp / 1.5 && dp > 2e5) }'
}

@test "a wire sends fewer bytes, as many as the plan says" {
	edit=(-n 2 --dim 64 --no-ckpt --eval-every 0 --edit-workers 2 --edit-sync-interval 2 --fsdp 2 "${OUTER[@]}")
	n=0
	while read -r wire least most; do
		apart 4 "$wire" "${edit[@]}" --edit-wire "$wire"
		planned=$(pt-train "${TINY[@]}" "${APART[@]}" "${edit[@]}" --edit-wire "$wire" --dry-run |
			awk '$1 == "sent/sync" { print $2 }')
		[ "$(column sync_sent "$wire")" -eq "$planned" ]
		[ "$wire" != fp32 ] || full=$planned
		awk -v sent="$planned" -v full="$full" -v least="$least" -v most="$most" \
			'BEGIN { print sent / full; exit sent < least * full || sent > most * full }'
		n=$((n + 1))
	done <<-END
		fp32 1 1
		bf16 0.5 0.52
		int8 0.25 0.29
		sparse 0.01 0.05
	END
	[ $n -eq 4 ]
}

@test "one worker trains on with an outer step" {
	tiny -n 12 --no-ckpt -o plain >/dev/null
	apart 1 same -m 2 --virtual tp=1,cp=1 --heads 2 -n 12 --edit-workers 1 --edit-sync-interval 4
	diff <(column loss plain) <(column loss same)
	apart 1 outer -m 2 --virtual tp=1,cp=1 --heads 2 -n 12 --edit-workers 1 --edit-sync-interval 4 "${OUTER[@]}"
	diff <(column loss plain | head -n 4) <(column loss outer | head -n 4)
	not diff -q <(column loss plain) <(column loss outer)
}

EDIT=(--edit-workers 2 --edit-warmup-steps 3 --edit-sync-interval 4 "${OUTER[@]}" "${PENALTY[@]}")

@test "a run goes on from any step, on any layout of its workers" {
	apart 2 whole -n 15 "${EDIT[@]}"
	apart 4 parts -n 15 "${EDIT[@]}" --fsdp 2 --ckpt-every 1 --keep 0
	same_runs whole parts
	n=0
	# in the warm-up, at its end, between two synchronizations, and at one
	for step in 02 03 05 07 14; do
		apart 2 from-$step --resume parts/checkpoints/step-000000$step.h5
		same_runs whole from-$step
		n=$((n + 1))
	done
	[ $n -eq 5 ]
	# a worker that had not written its last
	rm parts/worker-1/checkpoints/step-000000{14,15}.h5
	mpiexec -n 2 pt-train -q --resume auto -o parts </dev/null >/dev/null 2>err
	grep -q 'step-00000014.h5: worker 1 has no checkpoint of this step; looking for an older checkpoint' err
	same_runs whole parts
	# a folder, a link; and none of it for another warm-up
	for from in whole whole/checkpoints/latest.h5 whole/checkpoints; do
		mpiexec -n 2 pt-train -q --resume $from -n 18 -o further </dev/null >/dev/null
		[ "$(readlink further/worker-1/checkpoints/latest.h5)" = step-00000018.h5 ]
		rm -r further
	done
	code_of 64 mpiexec -n 2 pt-train -q --resume parts/checkpoints/step-00000005.h5 --edit-warmup-steps 9 -o other
	says '--edit-warmup-steps 9: the run is at step 5, but was started with 3'
	tiny --eval-only --resume whole | grep -q val_loss=
}

stop_rank() { # RANK: of the run in this folder, and no other
	local pid
	for pid in $(pgrep -x pt-train); do
		[ "$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^PMI_RANK=//p')" != "$1" ] ||
			[ "$(readlink "/proc/$pid/cwd")" != "$PWD" ] || kill -TERM "$pid"
	done
}

@test "checkpoints of the first worker alone: all resume from them" {
	apart 2 whole -n 15 "${EDIT[@]}"
	apart 2 one -n 15 "${EDIT[@]}" --ckpt-every 1 --keep 0 --edit-ckpt rank0
	pt-compare -q whole one
	[ -z "$(ls one/worker-1/checkpoints)" ]
	[ "$(find one/checkpoints -name "step-*" | grep -c .)" -eq 15 ]
	# in the warm-up all have one state, so that nothing is lost
	apart 4 warm --fsdp 2 --resume one/checkpoints/step-00000002.h5
	pt-compare -q --common whole warm
	pt-compare -q --common whole/worker-1 warm/worker-1
	# between two synchronizations: from the anchor, after step 7, with the first worker's moments
	apart 2 from-09 --resume one/checkpoints/step-00000009.h5
	grep -q "all 2 workers resume from the first one's checkpoint; step 9 was between .* back to step 7" from-09/journal.txt
	[ -z "$(ls from-09/worker-1/checkpoints)" ]
	apart 2 from-07 --resume from-09/checkpoints/step-00000007.h5
	pt-compare -q from-07 from-09
	pt-compare -q from-07/worker-1 from-09/worker-1
	diff <(column val_loss from-09 | tail -n 1) <(column val_loss from-09/worker-1 | tail -n 1)
	# in the same directory, and to checkpoints of each again
	rm one/checkpoints/step-00000015.h5
	apart 2 one --resume auto --edit-ckpt group -n 19
	[ -e one/worker-1/checkpoints/step-00000019.h5 ]
	grep -q "back to step 11" one/journal.txt
	stop_one told -n 100000 --eval-every 0 --log-every 100 --lr-schedule constant "${EDIT[@]}" --edit-ckpt rank0
	[ -e told/checkpoints/latest.h5 ]
	[ -z "$(ls told/worker-1/checkpoints)" ]
}

@test "rank 0 of each worker reads and writes its checkpoints for ranks that share no folder" {
	mkdir -p a b
	cp data.h5 a
	cp data.h5 b
	on_two_hosts() { # OPTION...: two workers of two ranks, of each the first in a, the second in b
		local ranks=() in
		for in in a b a b; do
			ranks+=(-n 1 -wdir "$PWD/$in" pt-train "${TINY[@]}" "${APART[@]}" -o run --ckpt-load broadcast
				--fsdp 2 "$@" :)
		done
		timeout -k 1 120 mpiexec "${ranks[@]::${#ranks[@]}-1}" </dev/null >/dev/null
	}
	apart 4 whole -n 15 "${EDIT[@]}" --fsdp 2
	on_two_hosts -n 15 "${EDIT[@]}" --ckpt-every 1 --keep 0
	[ ! -e b/run/checkpoints/latest.h5 ]
	same_runs whole a/run
	# in the warm-up, at its end, between two synchronizations
	for step in 02 03 05; do
		rm -rf a/moved b/moved
		on_two_hosts -n 15 -o moved --resume run/checkpoints/step-000000$step.h5
		same_runs whole a/moved
	done
}

@test "each rank of each worker has its own files, as the ranks of data parallelism" {
	unset PT_DATA
	local own=(--data-per-rank) f
	for f in 0 1 2 3; do
		tail -c +$((1 + 8000 * f)) text.txt | head -c 9000 >"part-$f.txt"
		pt-prepare -q -t byte "part-$f.txt" -o "$f.h5"
	done
	own=(-n 9 -a llama --data-per-rank -d 0.h5 -d 1.h5)
	apart 2 together "${own[@]}" --dp 2
	apart 2 warm "${own[@]}" --edit-workers 2 --edit-warmup-steps 99
	cmp <(column loss together) <(column loss warm)
	cmp <(column grad_norm together) <(column grad_norm warm)
	# four files: two of each worker, whatever else divides it
	own+=(-d 2.h5 -d 3.h5 --eval-every 4 "${EDIT[@]}" --dp 2)
	apart 4 two "${own[@]}" --ckpt-every 1 --keep 0
	apart 8 four "${own[@]}" --tp 2
	same_runs two four
	apart 4 resumed --resume two/checkpoints/step-00000005.h5 -d 0.h5 -d 1.h5 -d 2.h5 -d 3.h5
	same_runs two resumed
	apart 4 same -n 9 -a llama -d 0.h5 -d 1.h5 "${EDIT[@]}" --dp 2
	not diff -q <(column loss two) <(column loss same)
	# where the parameters are equal, all have the mean of what each sees
	diff <(grep -o 'step=[39] .*val_loss=[^ ]*' two/journal.txt | grep -o 'val_loss.*') \
		<(grep -o 'step=[39] .*val_loss=[^ ]*' two/worker-1/journal.txt | grep -o 'val_loss.*')
	[ "$(column val_loss two | tail -n 1)" = "$(column val_loss two/worker-1 | tail -n 1)" ]
	not diff -q <(column loss two | tail -n 4) <(column loss two/worker-1 | tail -n 4)
	diff <(readlink two/checkpoints/best.h5) <(readlink two/worker-1/checkpoints/best.h5)
	pt-train "${TINY[@]}" "${own[@]}" --edit-workers 2 --dry-run | grep -q 'workers: 2'
	pt-prepare -q -t char part-1.txt -o char.h5
	refuse 'the workers have different vocabularies' tiny_on 2 -m 1 --data-per-rank -d 0.h5 -d char.h5 --edit-workers 2 \
		--edit-sync-interval 2 -o none
	refuse 'prepare all texts with one vocabulary' tiny_on 2 -m 1 --data-per-rank -d 0.h5 -d char.h5 --edit-workers 2 \
		--edit-sync-interval 2 -o none
}

@test "what a worker could not send yet is in its checkpoints" {
	for wire in int8 sparse; do
		edit=(-n 9 "${EDIT[@]}" --edit-sync-interval 2 --edit-wire "$wire")
		apart 2 whole-$wire "${edit[@]}"
		apart 4 parts-$wire "${edit[@]}" --fsdp 2 --ckpt-every 1 --keep 0
		same_runs whole-$wire parts-$wire
		apart 2 from-$wire --resume parts-$wire/checkpoints/step-00000007.h5 --offload params --offload-to .
		same_runs whole-$wire from-$wire
		h5ls whole-$wire/worker-1/checkpoints/latest.h5 | grep -q '^residual '
	done
	not pt-compare -q whole-int8 whole-sparse
	# a wire that sends everything has no place for it; the same wire has
	for wire in fp32:1 int8:0; do
		apart 2 "on-$wire" --resume parts-int8/checkpoints/step-00000007.h5 --edit-wire "${wire%:*}" 2>err
		[ "$(grep -c 'the residuals of its workers are dropped' err || true)" -eq "${wire#*:}" ]
	done
}

stop_one() { # FOLDER OPTION...: of two workers, while they train; both end, and with 75
	local status=0 folder=$1
	shift
	timeout -k 1 120 mpiexec -n 2 pt-train "${TINY[@]}" "${APART[@]}" "$@" -o "$folder" \
		</dev/null >/dev/null 2>err 3>&- &
	wait_for '^step=[1-9][0-9][0-9]' "$folder/worker-1/journal.txt" # a slow one leaves some out
	stop_rank 1
	ended $!
	cat err
	[ "$status" -eq 75 ]
}

@test "who is told to stop tells the others where they meet, and the run goes on" {
	steps=(-n 100000 --eval-every 0 --log-every 100 --lr-schedule constant "${EDIT[@]}")
	stop_one run "${steps[@]}"
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
	apart 2 run -n 60 "${ASYNC[@]}" --inject-delay 0:5 --inject-delay 1:60 --ckpt-every 20 --keep 0
	# they agree on where they are, and on what has been seen; they did not do as much
	diff <(column syncs run) <(column syncs run/worker-1)
	diff <(grep ' syncs=' run/journal.txt | cut -d' ' -f1-2) <(grep ' syncs=' run/worker-1/journal.txt | cut -d' ' -f1-2)
	[ "$(tail -n 1 < <(column syncs run))" -ge 2 ]
	quick=$(column local_steps run | awk '{ n += $1 } END { print n }')
	slow=$(column local_steps run/worker-1 | awk '{ n += $1 } END { print n }')
	[ "$slow" -lt "$quick" ]
	tokens=$(tail -n 1 < <(grep -o '^step=60 tokens=[0-9]*' run/journal.txt) | cut -d= -f3)
	[ "$tokens" -eq $(((2 * 3 + quick + slow) * 4 * 16)) ]
	# the same checkpoints, all of them at a synchronization
	diff <(ls run/checkpoints) <(ls run/worker-1/checkpoints)
	pt-ckpt diff --no-optimizer run run/worker-1
	# again, on other layouts, and from the middle
	apart 4 again -n 60 "${ASYNC[@]}" --edit-replay run --fsdp 2 --ckpt-every 20 --keep 0
	same_runs run again
	first=$(find run/checkpoints -name 'step-*' | sort | head -n 1)
	apart 2 middle --resume "$first" --edit-replay run
	same_runs run middle
	# less than it was cannot be; more is done by the clock, and hears a signal
	reports 64 'run: the run has more than 58 steps' tiny_on 2 --resume "$first" --edit-replay run -n 58 -o none
	stop_one more --resume "$first" --edit-replay run -n 100000000 --log-every 100 --eval-every 0
	grep -q 'ends with code 75 after step' more/journal.txt
	diff <(ls more/checkpoints) <(ls more/worker-1/checkpoints)
	code_of 64 tiny_on 1 --edit-workers 1 --edit-use-async --edit-replay run -o none
	says 'run: has more workers than 1'
	code_of 74 tiny_on 2 --edit-workers 2 --edit-use-async --edit-replay run/worker-1 -o none
	says 'run/worker-1/worker-1: No such file'
}

@test "who waits for nobody is stopped at once, with the others" {
	slow=(-n 100000 --eval-every 0 --log-every 100 --lr-schedule constant "${ASYNC[@]}" --edit-sync-time 600)
	stop_one run "${slow[@]}"
	[ "$(readlink run/worker-1/checkpoints/latest.h5)" = "$(readlink run/checkpoints/latest.h5)" ]
	[ "$(column syncs run)" -eq 1 ]
}

@test "beside the next forward or at once: the same, also what is logged" {
	edit=(-n 14 --layers 2 --edit-workers 2 --edit-warmup-steps 3 --edit-sync-interval 4 "${OUTER[@]}" "${PENALTY[@]}")
	n=0
	while read -r ranks layout; do
		# shellcheck disable=SC2086 # options are words
		apart $((2 * ranks)) beside --overwrite "${edit[@]}" $layout
		# shellcheck disable=SC2086
		PT_OVERLAP=no apart $((2 * ranks)) once --overwrite "${edit[@]}" $layout
		same_runs beside once
		diff <(column sync_sent beside) <(column sync_sent once)
		diff <(column outer_grad_norm beside) <(column outer_grad_norm once)
		diff <(column outer_clip beside) <(column outer_clip once)
		n=$((n + 1))
	done < <(some_of 2 <<-END
		1 --edit-wire int8
		2 --tp 2 --edit-sync-interval 1
		2 --fsdp 2 --reshard-after-forward no
		2 --pp 2 --edit-clip-pseudo-grad 0.02
		4 --pp 2 --fsdp 2 --layers 4 --pp-schedule interleaved --edit-sync-interval 2 --dtype float8
	END
	)
	[ $n -ge 2 ]
	[ "$(column outer_grad_norm beside | grep -c .)" -ge 3 ]
}

STREAM=(-n 26 --layers 2 --edit-workers 2 --edit-warmup-steps 3 --edit-sync-interval 8 --edit-fragments 3
	--edit-sync-delay 3 "${OUTER[@]}" "${PENALTY[@]}")

@test "streaming: a fragment at a time, with a delay, on any layout and from any step" {
	apart 2 whole "${STREAM[@]}"
	# 8 steps apart: fragments after the 2nd, 5th and 8th, and what was made 3 steps later
	[ "$(grep -o '^step=[0-9]* .* syncs=' whole/journal.txt | cut -d' ' -f1 | tr '\n' ' ')" = \
		'step=5 step=8 step=11 step=13 step=16 step=19 step=21 step=24 step=26 ' ]
	[ "$(grep -o '^step=[0-9]* .* outer_grad_norm=' whole/journal.txt | cut -d' ' -f1 | tr '\n' ' ')" = \
		'step=8 step=11 step=14 step=16 step=19 step=22 step=24 step=26 ' ]
	apart 4 parts "${STREAM[@]}" --fsdp 2 --ckpt-every 6 --keep 0
	same_runs whole parts
	for step in 06 24; do # with fragments under way
		apart 2 from-$step --layers 2 --resume parts/checkpoints/step-000000$step.h5
		same_runs whole from-$step
	done
	# in the end all have the same
	pt-ckpt diff --no-optimizer whole whole/worker-1
	# a fragment in flight ends with the settings of its beginning
	at6=(tiny_on 2 --layers 2 --resume parts/checkpoints/step-00000006.h5 -o no)
	for other in '--edit-fragments 1' '--edit-sync-delay 1' '--edit-sync-interval 9' '--edit-sync-delay 0'; do
		# shellcheck disable=SC2086 # options are words
		code_of 64 "${at6[@]}" $other
		says 'a fragment of local SGD is in flight: resume with --edit-sync-interval 8, --edit-fragments 3 and --edit-sync-delay 3'
	done
	tiny_on 4 -m 1 --layers 2 --resume parts/checkpoints/step-00000006.h5 --edit-workers 4 -o four >/dev/null
	grep -q 'resuming with 4 workers instead of 2; each fragment is at its last synchronization' four/journal.txt
	pt-ckpt diff --no-optimizer four four/worker-3
	# another delay computes something else, and so does another part that is kept
	apart 2 other "${STREAM[@]}" --edit-update-alpha 0
	not diff -q <(column loss whole) <(column loss other)
	refuse 'edit-fragments needs --edit-outer or --edit-reducer' tiny --edit-workers 1 \
		--edit-sync-interval 4 --edit-fragments 2
	refuse 'edit-sync-delay needs a longer --edit-sync-interval' tiny --edit-workers 1 --edit-sync-interval 4 \
		--edit-sync-delay 4 --edit-outer sgd
}

@test "the state of local SGD in files changes no bit, and is needed for synchronizations only" {
	local files=(--edit-offload --offload-to .) planned
	apart 2 whole -n 11 "${EDIT[@]}"
	apart 4 files -n 11 "${EDIT[@]}" "${files[@]}" --fsdp 2 --ckpt-every 1 --keep 0
	same_runs whole files
	for step in 03 05; do # with and without
		apart 2 from-$step --resume files/checkpoints/step-000000$step.h5
		same_runs whole from-$step
	done
	apart 2 on --resume whole/checkpoints/latest.h5 -n 15 "${files[@]}"
	apart 2 further --resume whole/checkpoints/latest.h5 -n 15
	same_runs on further
	apart 2 streams "${STREAM[@]}" --edit-wire int8
	apart 4 stream-files "${STREAM[@]}" --edit-wire int8 "${files[@]}" --pp 2
	same_runs streams stream-files
	# the plan knows the file, and what a step and a synchronization move
	apart 2 plain -n 4 --edit-workers 2 --edit-sync-interval 2 --no-edit-by-unit "${OUTER[@]}" "${files[@]}" --no-ckpt
	pt-train "${TINY[@]}" "${APART[@]}" --edit-workers 2 --no-edit-by-unit "${OUTER[@]}" "${files[@]}" --dry-run >plan
	for way in read written; do
		planned=$(awk -v key=$way/sync '$1 == key { print $2 }' plan)
		[ "$(column offload_$way plain | tail -n 3 | tr '\n' ' ')" = "$planned 0 $planned " ]
	done
	[ "$(awk '$1 == "file" { print $2 }' plan)" -eq $((2 * 4 * 4096)) ]
	pt-train "${TINY[@]}" "${APART[@]}" --edit-workers 2 "${OUTER[@]}" --dim 256 --dry-run >none
	pt-train "${TINY[@]}" "${APART[@]}" --edit-workers 2 "${OUTER[@]}" --dim 256 "${files[@]}" --dry-run >plan
	awk '$1 == "outer" { n[++i] = $2 } END { exit !(n[2] > 0 && n[2] < n[1] / 7) }' none plan
	[ "$(awk '$1 == "optimizer" { print $2 }' none)" -eq "$(awk '$1 == "optimizer" { print $2 }' plan)" ]
	refuse 'edit-offload on a CPU needs --offload-to DIRECTORY' tiny --edit-workers 1 "${OUTER[@]}" --edit-offload
	refuse 'edit-offload needs --edit-outer or --edit-reducer' tiny --edit-workers 1 --edit-offload --offload-to .
}

@test "bad data: of one worker and of some steps, the same on any layout" {
	good=(-n 30 --lr 1e-2 --edit-workers 2 --edit-warmup-steps 99)
	bad=("${good[@]}" --corrupt-batch 1:27:28)
	apart 2 good "${good[@]}"
	apart 2 bad "${bad[@]}"
	apart 4 other "${bad[@]}" --dp 2
	pt-compare -q bad/worker-1 other/worker-1
	diff <(column loss good | head -n 26) <(column loss bad | head -n 26)
	[ "$(paste <(column loss good/worker-1) <(column loss bad/worker-1) |
		awk '$2 > $1 + 0.25 { printf "%d ", NR }')" = '27 28 ' ]
	# the other worker's own loss is another only when a gradient of step 27 has come there
	apart 2 own "${bad[@]}" --edit-warmup-steps 26 --edit-sync-interval 2
	apart 2 good-own "${good[@]}" --edit-warmup-steps 26 --edit-sync-interval 2
	diff <(column loss own | head -n 28) <(column loss good-own | head -n 28)
	not diff -q <(column loss own) <(column loss good-own)
	refuse "--corrupt-batch '1:4:3': expected" tiny --corrupt-batch 1:4:3
}

@test "the journal names the workers and units that were left out, and the units that were clipped" {
	local edit=(-n 10 --layers 9 --lr 1e-4 --lr-schedule constant --eval-every 0 --edit-workers 2 --edit-sync-interval 2
		--edit-outer sgd --edit-skip-anomaly --edit-ewma-warmup 4 --edit-ewma-threshold 1)
	apart 2 run "${edit[@]}"
	# no norm is like the first four, which grow with the moments; each worker has the line
	grep -oE 'synchronization [0-9]+: left out.*' run/journal.txt >names
	diff names <(grep -oE 'synchronization [0-9]+: left out.*' run/worker-1/journal.txt)
	[ "$(column anomalies run | sed -n 5p)" -eq 11 ]
	[ "$(column anomalies run/worker-1 | sed -n 5p)" -eq 11 ]
	list='tok_embeddings, layers.0, layers.1, layers.2, layers.3, layers.4 and 5 more units'
	head -n 1 names | grep -qx "synchronization 5: left out worker 0: $list; worker 1: $list"
	# the factor is that of the row; without groups of units it is the model's
	apart 2 clip -n 4 --eval-every 0 --edit-workers 2 --edit-sync-interval 2 --edit-outer sgd --edit-clip-pseudo-grad 0.001
	grep -qE 'synchronization 1: clipped tok_embeddings by 0\.[0-9e-]*, layers.0 by 0\.[0-9e-]*, output by' clip/journal.txt
	apart 2 model -n 4 --eval-every 0 --edit-workers 2 --edit-sync-interval 2 --edit-outer sgd --edit-clip-pseudo-grad 0.001 \
		--no-edit-by-unit
	[ "$(grep -c 'clipped the model by' model/journal.txt)" -eq 2 ]
	apart 2 streams "${STREAM[@]}" --edit-clip-pseudo-grad 0.001
	grep -q 'fragment 1: clipped layers.0 by' streams/journal.txt
	# with -v, as is_debug has it, also on standard error: once, not by each worker
	for v in '' -v; do
		# shellcheck disable=SC2086 # none or one
		mpiexec -n 2 pt-train "${TINY[@]:1}" "${edit[@]}" $v -o "said$v" >/dev/null 2>err
		[ "$(grep -c 'step [0-9]*: synchronization 5: left out worker 0: tok_embeddings, ' err)" -eq $((${#v} / 2)) ]
	done
}

@test "workers whose norms all rise are left out 3 times, on any layout and from any step" {
	local edit=(-n 30 --layers 2 --lr 1e-2 --warmup 40 --eval-every 0 --edit-workers 2 --edit-sync-interval 2
		--edit-outer sgd --edit-skip-anomaly)
	apart 2 run "${edit[@]}" --edit-ewma-warmup 4 2>err
	# synchronizations 8, 9 and 10; there are 15, and all norms rise to the end
	column anomalies run | tr '\n' ' ' | grep -qx '0 0 0 0 0 0 0 4 4 4 0 0 0 0 0 '
	[ "$(grep -c 'all workers were left out, and nothing changed' run/journal.txt)" -eq 3 ]
	grep -q 'step=22 4 units: all workers were outliers more than 3 times in a row, and were included' run/journal.txt
	[ "$(grep -c 'warning: step 22: --edit-skip-anomaly excluded all workers in 3 ' err)" -eq 1 ]
	[ "$(grep -c '^pt-' err)" -eq 1 ]
	apart 4 parts "${edit[@]}" --edit-ewma-warmup 4 --fsdp 2 --ckpt-every 1 --keep 0 2>/dev/null
	same_runs run parts
	for step in 17 19 20 22; do
		apart 2 from-$step "${edit[@]}" --resume parts/checkpoints/step-000000$step.h5
		same_runs run from-$step
	done
	# by default, the warmup of the learning rate is over before a norm is judged
	apart 2 covered "${edit[@]}" --warmup 250 --edit-warmup-steps 3
	grep -qx '# config edit-ewma-warmup = 124' covered/journal.txt
	apart 2 short "${edit[@]}"
	grep -qx '# config edit-ewma-warmup = 120' short/journal.txt
	apart 2 saved "${edit[@]}" --resume short --warmup 400 -n 32
	grep -qx '# config edit-ewma-warmup = 120' saved/journal.txt
}

@test "the largest elements of whole tensors, on any layout" {
	edit=(-n 6 --eval-every 0 --edit-workers 2 --edit-sync-interval 2 --edit-reducer gta
		--edit-sparsification magnitude-tensor --edit-density 0.1)
	apart 2 alone "${edit[@]}"
	apart 4 sharded "${edit[@]}" --fsdp 2
	apart 4 sliced "${edit[@]}" --tp 2
	apart 2 files "${edit[@]}" --offload params --offload-to .
	for other in sharded sliced files; do
		same_runs alone $other
	done
	apart 2 rows "${edit[@]}" --edit-sparsification magnitude
	not pt-ckpt diff -q alone rows
}

@test "frozen tensors have no part in a synchronization" {
	edit=(-n 4 --eval-every 0 --edit-workers 2 --edit-sync-interval 2 --edit-reducer gta --freeze layers)
	apart 2 start "${edit[@]}" -n 0
	for kind in random magnitude magnitude-tensor; do
		sparse=("${edit[@]}" --edit-sparsification "$kind" --edit-density 0.1)
		apart 2 $kind "${sparse[@]}"
		apart 4 sharded-$kind "${sparse[@]}" --fsdp 2 --zero 2
		same_runs $kind sharded-$kind
		pt-ckpt diff --no-optimizer start $kind >changed && false
		grep -q '^tok_embeddings' changed
		not grep -q '^layers' changed
	done
	# with a delay, the pseudo-gradient is not in the place of the parameters
	apart 2 delayed "${edit[@]}" --edit-sync-delay 1
	diff <(column pseudo_grad_norm random | head -n 1) <(column pseudo_grad_norm delayed | head -n 1)
}

@test "what cannot be is refused" {
	refuse '3 ranks cannot be divided into 2 workers' tiny_on 3 -b 12 --no-ckpt --edit-workers 2
	refuse '--batch 8 is not divisible by --edit-workers 3' tiny_on 3 --no-ckpt --edit-workers 3
	mkfifo pipe.h5
	refuse 'pipe.h5 can be read only once' tiny_on 2 -d pipe.h5 --edit-workers 2
	refuse 'data-per-rank: 2 ranks need as many files; the run has 1' tiny_on 2 --no-ckpt --edit-workers 2 --data-per-rank
	refuse 'edit-sync-interval needs --edit-workers' tiny --edit-sync-interval 4
	refuse 'edit-skip-anomaly needs --edit-outer or --edit-reducer' tiny --edit-workers 1 --edit-skip-anomaly
	refuse 'edit-consensus needs --edit-reducer gta' tiny --edit-workers 1 --edit-consensus sum
	refuse 'edit-density needs --edit-sparsification' tiny --edit-workers 1 --edit-density 0.5
	refuse 'edit-use-step-weight needs --edit-use-async' tiny --edit-workers 1 --edit-use-step-weight
	refuse 'edit-sync-interval counts steps' tiny --edit-workers 1 --edit-use-async --edit-sync-interval 2
	while IFS='|' read -r options needs; do
		# shellcheck disable=SC2086 # options are words
		refuse "$needs" tiny --edit-workers 1 $options
	done <<-END
		--edit-outer-lr 0.7|edit-outer-lr needs --edit-outer
		--edit-outer-decay 0.5|edit-outer-decay needs --edit-outer
		--edit-outer sgd --edit-outer-beta2 0.9|edit-outer-beta2 needs --edit-outer adamw
		--edit-outer sgd --edit-ewma-warmup 10|edit-ewma-warmup needs --edit-skip-anomaly
		--edit-sync-time 3|edit-sync-time needs --edit-use-async
		--edit-use-async --edit-step-weight-ratio 1|needs --edit-use-step-weight
		--edit-outer sgd --edit-update-alpha 0|needs --edit-sync-delay
	END
	refuse '--inject-delay: rank 2 does not exist' tiny_on 2 --edit-workers 2 --inject-delay 2:5
	refuse '--corrupt-batch: worker 2 does not exist' tiny_on 2 --edit-workers 2 --corrupt-batch 2:1:5
	refuse '--inject-delay: rank 4 does not exist' tiny --edit-workers 2 --dp 2 --inject-delay 3:5 --inject-delay 4:5 --dry-run
	refuse '--corrupt-batch: worker 2 does not exist' tiny --edit-workers 2 --corrupt-batch 2:1:5 --dry-run
	refuse "--inject-delay 'some:3': expected" tiny --inject-delay some:3
	refuse 'edit-wire needs --edit-outer or --edit-reducer' tiny --edit-workers 1 --edit-wire int8
	refuse 'edit-wire-density needs --edit-wire sparse' tiny --edit-workers 1 "${OUTER[@]}" --edit-wire int8 \
		--edit-wire-density 0.1
	refuse 'edit-outer-nesterov and --edit-outer-dampening are mutually exclusive' tiny --edit-workers 1 \
		"${OUTER[@]}" --edit-outer-dampening 0.5
	refuse 'edit-outer-nesterov needs --edit-outer-momentum' tiny --edit-workers 1 \
		--edit-outer sgd --edit-outer-nesterov
}

@test "workers whose optimizer is Muon have the bits of one rank each, however they share it" {
	local apart=(-n 5 --optimizer muon --virtual tp=2 --edit-workers 2 --edit-sync-interval 2
		--edit-outer sgd --edit-outer-momentum 0.9)
	tiny_on 2 "${apart[@]}" -o alone
	tiny_on 4 "${apart[@]}" --tp 2 -o tp
	tiny_on 4 "${apart[@]}" --fsdp 2 -o fsdp
	for run in tp fsdp; do
		for worker in . worker-1; do
			pt-ckpt diff -a "alone/$worker/checkpoints/latest.h5" "$run/$worker/checkpoints/latest.h5"
		done
	done
}
