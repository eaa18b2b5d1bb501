#!/usr/bin/env bats
# pt-train: layouts, readers, pipes, resuming, signals, logs.
load helpers
export SETUP=make_shard

@test "ranks, threads and readers change no bit" {
	tiny -n 20 -o one >/dev/null
	tiny -n 20 -t 2 -o threads >/dev/null
	same one threads
	for n in 2 3 4; do
		tiny_on $n -n 20 -o ranks$n >/dev/null
		same one ranks$n
	done
	PT_SHARED=no tiny_on 3 -n 20 -o messages >/dev/null
	same one messages
	timeout -k 1 120 mpiexec -n 1 -env PT_SHARED no -env PT_OVERLAP no \
		pt-train "${TINY[@]}" -n 20 -o mixed --fsdp 2 : \
		-n 1 pt-train "${TINY[@]}" -n 20 -o mixed --fsdp 2 >/dev/null
	same one mixed
	for r in 1 2; do
		tiny_on 3 -n 20 -o readers$r --readers $r >/dev/null
		same one readers$r
	done
}

@test "readers mix nothing up when an evaluation comes between" {
	tiny -n 11 -o one >/dev/null
	for i in 1 2 3 4; do
		tiny_on 3 -n 11 --readers $((i % 2 + 1)) -o r$i >/dev/null
		pt-compare -q one r$i
	done
}

@test "with nothing but data it trains something sensible" {
	pt-train -d data.h5 -n 30 >out 2>err
	grep -q '^step=1 ' out
	grep -q '^step=30 .*val_loss=' out
	[ -e run-001/run.h5 ]
	[ -e run-001/checkpoints/step-00000030.h5 ]
	grep -q 'model  *gpt2, .* parameters: 4 layers,' err
	# a first screen that people read: nothing of what this run does not have
	[ "$(sed '/start: /q' err | wc -l)" -le 29 ]
	not grep -qE 'sync_wait|mfu|wq.weight' err
	pt-train -v -d data.h5 -n 1 --no-ckpt -o listed 2>&1 >/dev/null | grep -q 'tied to tok_embeddings'
	# it has learned something
	awk '{ for (i = 1; i <= NF; i++) if ($i ~ /^loss=/) { v = substr($i, 6); if (!first) first = v } }
		END { exit !(v < first - 1) }' out
	pt-train -q -d data.h5 -n 1 --no-ckpt >/dev/null
	[ -e run-002/journal.txt ]
	[ ! -e run-002/checkpoints/step-00000001.h5 ]
}

@test "pipes: pt-prepare | pt-train | tee | pt-compare" {
	tiny -n 20 -o control >/dev/null
	pt-prepare -q - <text.txt | tiny -d - -n 20 -o piped | tee log | pt-compare control/run.h5 - >verdict
	[ "${PIPESTATUS[*]}" = '0 0 0 0' ]
	grep -q 'verdict: identical bit for bit' verdict
	pt-compare log control
	cmp control/checkpoints/latest.h5 piped/checkpoints/latest.h5
	# a run.h5 passes a pipe too
	cat control/run.h5 | pt-compare - log
}

@test "a terminal gets short rows, and a pipe all columns, with the same bits" {
	tiny -n 2 -o full >full.txt
	grep -v '^#' full.txt | cmp - <(grep '^step=' full/journal.txt)
	tiny -n 2 --log-format short -o short >short.txt
	[ "$(wc -l <short.txt)" -eq 2 ]
	grep -Eqx 'step=2 loss=[0-9.]+ lr=[0-9.e-]+ val_loss=[0-9.]+ tps=[0-9.e+]+ left=0:00:00' short.txt
	pt-compare full short.txt >said && grep -q 'loss  *identical, 2 values' said
	grep '^step=2 ' short/journal.txt | grep -q ' grad_norm=.* mem='
	pt-train --columns >columns
	grep -q '^grad_norm  *global gradient norm' columns
	mpiexec -n 2 pt-train --columns | cmp - columns
	script -qc true /dev/null </dev/null >/dev/null 2>&1 || skip 'no script(1), or no pseudo-terminal'
	script -qc "pt-train ${TINY[*]} -n 2 -o screen" /dev/null </dev/null >screen.txt
	grep -q 'step=2 loss=.*left=' screen.txt
	not grep -q 'mem=\|# meta' screen.txt
}

@test "a FIFO under mpiexec: rank 0 reads for all" {
	tiny -n 10 -o control >/dev/null
	mkfifo fifo
	pt-prepare -q text.txt >fifo &
	tiny_on 2 -n 10 -d fifo -o test >/dev/null
	wait
	same control test
}

@test "many shards train as one" {
	pt-prepare -q text.txt -o part --shard-size 8000
	tiny -n 20 -o one >/dev/null
	tiny -n 20 -o many -d part-00003.h5 part-0000[!3].h5 >/dev/null
	pt-compare one many | grep -q 'identical bit for bit'
}

@test "--data-per-rank gives each rank its own files" {
	reports 64 'data-per-rank: 3 ranks need as many files; the run has 1' tiny_on 3 --data-per-rank
	rev text.txt >other.txt
	pt-prepare -q -t byte text.txt -o a.h5
	pt-prepare -q -t byte other.txt -o b.h5
	tiny_on 2 -n 10 -o own --data-per-rank -d a.h5 -d b.h5 >/dev/null
	[ -e own/checkpoints/step-00000010.h5 ]
}

@test "resuming continues the curve, with any number of ranks" {
	tiny -n 40 -o whole >/dev/null
	for ranks in 1 2 3; do
		rm -rf again
		mkdir -p again/checkpoints
		tiny -n ${ranks}0 --decay-steps 40 -o again --overwrite >/dev/null
		mpiexec -n $ranks pt-train -q --resume auto -o again -d data.h5 -n 40 --decay-steps 0 >/dev/null
		pt-compare whole again
		cmp whole/checkpoints/latest.h5 again/checkpoints/latest.h5
	done
}

@test "resume auto takes the newest whole checkpoint, and begins anew without one" {
	tiny -n 30 -o whole --ckpt-every 5 --keep 0 >/dev/null
	tiny -n 30 -o run --resume auto --ckpt-every 5 --keep 0 >/dev/null
	for step in 00000030 00000025; do # damage two
		printf 'x' | dd of=run/checkpoints/step-$step.h5 bs=1 seek=20000 conv=notrunc status=none
	done
	run pt-train --resume auto -o run -d data.h5
	[ "$status" -eq 0 ]
	says 'step-00000025.h5'
	says 'resuming from run/checkpoints/step-00000020.h5'
	pt-compare whole run
	cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
}

@test "a run that exists is not lost by accident" {
	tiny -n 5 -o run >/dev/null
	reports 64 '--resume auto continues it' tiny -n 5 -o run
	tiny -n 6 -o run --overwrite >/dev/null
	[ ! -e run/checkpoints/step-00000005.h5 ]
}

@test "SIGUSR1, SIGTERM and SIGHUP: checkpoint, 75, and on to the same end" {
	tiny -n 300 --log-every 20 -o whole >/dev/null
	for signal in USR1 TERM HUP; do
		rm -rf run
		env --default-signal=HUP pt-train "${TINY[@]}" -n 300 --log-every 20 -o run >/dev/null 3>&- &
		pid=$!
		wait_for 'step=20 ' run/journal.txt
		kill -$signal $pid
		ended $pid
		[ "$status" -eq 75 ]
		mpiexec -n 2 pt-train -q --resume auto -o run >/dev/null
		pt-compare --common whole run
		cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
	done
}

@test "SIGHUP ends no run of nohup, and no journal begins after one that comes early" {
	# (with MPI, whose UCX replaces the handler when it is loaded)
	env --ignore-signal=HUP PT_MPI=yes pt-train "${TINY[@]}" -n 1000000 -o run >/dev/null 3>&- &
	pid=$!
	wait_for 'step=20 ' run/journal.txt
	kill -HUP $pid
	rows=$(grep -c '^step=' run/journal.txt)
	wait_for "^step=$((rows + 200)) " run/journal.txt
	kill -TERM $pid
	ended $pid
	[ "$status" -eq 75 ]
	# while it starts, it ends at once
	mkfifo pipe
	env --default-signal=HUP pt-train "${TINY[@]}" -d pipe -o early >/dev/null 3>&- &
	pid=$!
	exec 5>pipe # it waits for data
	kill -HUP $pid
	exec 5>&-
	ended $pid
	[ "$status" -eq 129 ]
	[ ! -e early/journal.txt ]
}

# The code of mpiexec itself is now and then 0 then, whatever its ranks' codes: hydra 4.0.2.
@test "mpiexec hands a signal on, and all ranks end with 75" {
	mpiexec -n 2 pt-train "${TINY[@]}" -n 100000 -o run >/dev/null 3>&- &
	pid=$!
	wait_for 'step=20 ' run/journal.txt
	kill -TERM $pid
	ended $pid
	[ "$status" -eq 75 ] || [ "$status" -eq 0 ]
	tail -n 1 run/journal.txt | grep -q 'ends with code 75'
	pt-ckpt verify run/checkpoints/latest.h5
}

@test "keep the last and the best" {
	tiny -n 60 --ckpt-every 5 --keep 2 --eval-every 5 -o run >/dev/null
	n=$(ls run/checkpoints/step-*.h5 | wc -l)
	[ "$n" -eq 2 ] || [ "$n" -eq 3 ]
	[ "$(readlink run/checkpoints/latest.h5)" = step-00000060.h5 ]
	best=$(readlink run/checkpoints/best.h5)
	[ -e "run/checkpoints/$best" ]
	# it is the best of the log
	least=$(grep -o 'val_loss=[^ ]*' run/journal.txt | cut -d= -f2 | sort -g | head -n 1)
	pt-ckpt show run/checkpoints/best.h5 | grep -qx "val_loss = $least"
}

@test "--steps 0, --init-from, --eval-only" {
	tiny -n 0 -o seed >/dev/null
	[ -e seed/checkpoints/step-00000000.h5 ]
	tiny -n 10 -o fresh >/dev/null
	tiny -n 10 -o from --init-from seed/checkpoints/latest.h5 >/dev/null
	pt-compare fresh from
	pt-ckpt diff fresh/checkpoints/latest.h5 from/checkpoints/latest.h5
	tiny -n 10 -o other -s 2 --init-from seed/checkpoints/latest.h5 >/dev/null
	code_of 1 pt-ckpt diff fresh/checkpoints/latest.h5 other/checkpoints/latest.h5
	tiny --eval-only --resume fresh/checkpoints/latest.h5 >out
	want=$(grep -o 'val_loss=[^ ]*' fresh/journal.txt | tail -n 1)
	grep -q "$want" out
	# other arithmetic is no matter for a run that goes on nowhere, nor has it a journal
	tiny -n 20 -m 1 --eval-only --resume fresh/checkpoints/latest.h5 2>err >/dev/null
	[ ! -s err ]
	# nor are other data, nor what a step of a pipeline waits for
	rev text.txt | pt-prepare -q - -o other.h5
	tiny -n 1 --layers 2 -o two >/dev/null
	tiny_on 2 --layers 2 --pp 2 -m 8 -d other.h5 --eval-only --resume two/checkpoints/latest.h5 2>err >/dev/null
	[ ! -s err ]
	mpiexec -n 2 pt-train -q -d data.h5 --eval-only --resume fresh/checkpoints/latest.h5 >out2
	grep -q "$want" out2
	code_of 64 tiny -n 10 -o bad --dim 32 --init-from seed/checkpoints/latest.h5
	says "its --dim is 16, but the run's is 32"
}

@test "--ckpt-load broadcast: one rank reads the checkpoint" {
	tiny -n 20 -o whole >/dev/null
	tiny -n 10 --decay-steps 20 -o run >/dev/null
	mpiexec -n 3 pt-train -q --resume auto --ckpt-load broadcast -o run -d data.h5 -n 20 --decay-steps 0 >/dev/null
	cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
}

@test "virtual degrees train on one rank; they are arithmetic, ranks are not" {
	for a in gpt2 llama; do
		tiny -n 20 --arch $a --virtual tp=2,cp=2 --dropout 0.1 -o $a >/dev/null
		tiny_on 3 -n 20 --arch $a --virtual tp=2,cp=2 --dropout 0.1 -o ${a}3 >/dev/null
		same $a ${a}3
		tiny -n 20 --arch $a --dropout 0.1 -o ${a}1 >/dev/null
		reports 1 'different arithmetic' pt-compare $a ${a}1
		says 'virtual: tp=2,cp=2, tp=1,cp=1'
		pt-compare --rtol 1e-3 $a ${a}1
	done
}

@test "a number that is none stops the run, and says where it came from" {
	reports 1 'first non-finite value: ' tiny -n 20 --lr 1e30 --clip 0 -o bad
	says 'samples '
	[ ! -e bad/checkpoints/step-00000020.h5 ]
	reports 1 'first non-finite value: ' tiny_on 2 -n 20 --lr 1e30 --clip 0 -o bad2
	grep -q '# event .*stopped: step' bad2/journal.txt
}

@test "more ranks than micro-batches is refused by all, with one message" {
	reports 64 '5 ranks, but a step has only 4 micro-batches' mpiexec -n 5 pt-train -d data.h5 -b 8 -m 2 -q
	[ "$(grep -c 'ranks, but' <<<"$output")" -eq 1 ]
}

@test "a file that only one rank misses stops all" {
	# rank 1 looks for its data elsewhere
	code_of 74 timeout 120 mpiexec -n 1 pt-train -q -d data.h5 -b 8 -m 2 : \
		-n 1 pt-train -q -d nowhere.h5 -b 8 -m 2
	says 'rank 1: nowhere.h5: No such file'
}

@test "the plan: dry runs allocate nothing, and are close to what is used" {
	plain_memory
	pt-train --dry-run -p llama3-405b >out
	grep -q '^total' out
	used() { # COMMAND...: what the rank with most memory had, a copy for a checkpoint too
		"$@" -n 2 --eval-every 0 --ckpt-every 1 --overwrite -o run | grep -o 'mem=[0-9]*' | tail -n 1 | cut -d= -f2
	}
	small=$(used tiny)
	# one rank; and three, of which one has more micro-batches than the others
	for ranks in 1 3 '3 no'; do # 3 no: by messages, which need memory of their own
		export PT_SHARED=yes
		[[ $ranks != *no ]] || PT_SHARED=no
		ranks=${ranks% *}
		options='--dim 448 --heads 8 --layers 6 -T 32 -b 8 -m 1 -t 1'
		plan=$(pt-train --dry-run $options --dp $ranks | awk '/^total/ { print $2 }')
		[ "$plan" -gt 250000000 ]
		big=$(used mpiexec -n $ranks pt-train -q $options)
		awk -v plan="$plan" -v used=$((big - small)) 'BEGIN { print plan, used, plan / used
			exit !(plan / used > 0.95 && plan / used < 1.05) }'
	done
}

@test "logs: columns, exact floats, one write a line" {
	tiny -n 12 --log-every 5 --peak-flops 1e11 -o run >out
	[ "$(grep -c '^step=' out)" -eq 4 ] # 1, 5, 10, 12
	for c in tokens loss grad_norm lr dt dt_forward dt_backward dt_comm dt_data sps sps_per_gpu tps tps_per_gpu mfu mfu_causal mem_active mem; do
		grep -q "^step=12.* $c=[0-9]" out
	done
	tiny -n 2 -o plain | grep -c mfu= | grep -qx 0
	cmp <(grep '^step=' out) <(grep '^step=' run/journal.txt)
	h5ls run/run.h5/columns | grep -q '^loss'
	h5dump -d /columns/step -y run/run.h5 | grep -q '1, 5, 10, 12'
	# no MFU is above 1
	tiny -n 2 --log-every 1 -o slow --peak-flops 1000 >out 2>err
	[ "$(grep -c '^step=' out)" -eq 2 ]
	not grep -q mfu out
	[ "$(grep -c ' % is impossible, so it is not logged: the peak of 1e+03 FLOP/s is too low' err)" -eq 1 ]
}

@test "samples while it trains" {
	pt-train -d data.h5 --layers 1 --heads 2 --dim 16 -T 16 -n 4 --sample-every 2 --sample-tokens 30 \
		--eval-every 0 -o run 2>err >/dev/null
	[ "$(grep -c 'a sample after step' err)" -eq 2 ]
}

@test "a reader that leaves does not end the training" {
	tiny -n 30 -o run 2>err | head -n 2
	[ -e run/checkpoints/step-00000030.h5 ]
	grep -q 'training continues, and the journal has every line' err
}

@test "more gradient buckets than a handful" {
	tiny -n 3 --layers 20 -o one >/dev/null
	tiny_on 2 -n 3 --layers 20 --bucket 1K -o many >/dev/null
	same one many
}

@test "a stop adds nothing to the curve: rows, evaluations, checkpoints are those of the whole run" {
	options="-n 120 --log-every 7 --eval-every 50 --ckpt-every 40 --keep 0"
	tiny $options -o whole >/dev/null
	pt-train "${TINY[@]}" $options -o run >/dev/null 3>&- &
	pid=$!
	wait_for 'step=14 ' run/journal.txt
	kill -TERM $pid
	ended $pid
	[ "$status" -eq 75 ]
	pt-train -q --resume auto -o run >/dev/null
	pt-compare whole run
	for step in 0040 0080 0120; do
		cmp "whole/checkpoints/step-0000$step.h5" "run/checkpoints/step-0000$step.h5"
	done
}

@test "a signal with --no-ckpt says that nothing was kept" {
	pt-train "${TINY[@]}" -n 100000 --no-ckpt -o run >/dev/null 3>&- &
	pid=$!
	wait_for 'step=20 ' run/journal.txt
	kill -TERM $pid
	ended $pid
	[ "$status" -eq 143 ]
}

@test "resuming an older checkpoint leaves the newer ones behind" {
	tiny -n 40 --ckpt-every 10 --keep 0 -o run >/dev/null
	tiny -n 25 --ckpt-every 5 --keep 2 --resume run/checkpoints/step-00000010.h5 -o run >/dev/null
	[ "$(readlink run/checkpoints/latest.h5)" = step-00000025.h5 ]
	[ -e run/checkpoints/step-00000025.h5 ]
	[ -e run/checkpoints/step-00000020.h5 ]
	[ ! -e run/checkpoints/step-00000040.h5 ]
	[ ! -e run/checkpoints/step-00000030.h5 ]
}

@test "resume auto with nothing but damaged checkpoints begins nothing anew" {
	tiny -n 10 -o run >/dev/null
	for f in run/checkpoints/step-*.h5; do truncate -s 5000 "$f"; done
	cp run/journal.txt before
	reports 65 'no checkpoint is intact' tiny --resume auto -o run
	cmp run/journal.txt before
}

@test "a mark that cannot be set is an error on all ranks, not a wait" {
	mkdir -p run/checkpoints/latest.h5/x
	reports 74 'latest.h5' timeout 120 mpiexec -n 2 pt-train "${TINY[@]}" -n 20 --ckpt-every 10 -o run
}

@test "the validation loss is of the same windows, whatever the micro-batch" {
	for m in 1 4 8; do
		tiny -n 1 -b 8 -m $m --eval-windows 9 --eval-every 1 -o m$m >/dev/null
	done
	pt-compare --rtol 1e-5 m1 m4 m8
}

@test "an error on one rank ends all" {
	code_of 64 timeout 120 mpiexec -n 1 pt-train "${TINY[@]}" -n 5 -o run : \
		-n 1 pt-train "${TINY[@]}" -n 5 -o run --layres 3
	says "rank 1: unknown option"
	code_of 74 timeout 120 mpiexec -n 1 pt-train "${TINY[@]}" -n 5 -o run : \
		-n 1 pt-train "${TINY[@]}" -n 5 -o run --config nowhere.conf
	says 'rank 1: nowhere.conf'
}

@test "data that differ between ranks are refused" {
	rev text.txt >other.txt
	pt-prepare -q other.txt -o other.h5
	code_of 65 mpiexec -n 1 pt-train "${TINY[@]}" -n 5 -d data.h5 -o run : \
		-n 1 pt-train "${TINY[@]}" -n 5 -d other.h5 -o run
	says 'data of this rank differ'
}

@test "--data-per-rank: many files, one without a validation split" {
	pt-prepare -q text.txt -o part --shard-size 8000
	parts=(part-*.h5)
	tiny_on 2 -n 12 -b 4 --data-per-rank "${parts[@]/#/--data=}" -o many >/dev/null
	[ -e many/checkpoints/step-00000012.h5 ]
	pt-prepare -q -t byte text.txt -o a.h5
	pt-prepare -q -t byte -f 0 text.txt -o b.h5
	timeout 120 mpiexec -n 2 pt-train "${TINY[@]}" -n 12 --data-per-rank -d a.h5 -d b.h5 -o own >/dev/null
	not grep -q 'val_loss=' own/journal.txt
	# characters of separate texts are separate vocabularies: what to do is said, and helps
	tr a-z 0-9a-m <text.txt >digits.txt
	pt-prepare -q digits.txt -o digits.h5
	code_of 65 timeout 120 mpiexec -n 2 pt-train "${TINY[@]}" -n 2 --data-per-rank -d data.h5 -d digits.h5 -o none
	says "digits.h5: its vocabulary differs from rank 0's: the default vocabulary is the characters"
	says 'in one call of pt-prepare with --shard-size'
	pt-prepare -q text.txt digits.txt -o both --shard-size 20K
	timeout 120 mpiexec -n 2 pt-train "${TINY[@]}" -n 2 --data-per-rank -d both-00000.h5 -d both-00001.h5 -o both >/dev/null
}

@test "another vocabulary of the same size is refused" {
	tiny -n 2 -o run >/dev/null
	tr a-z b-za <text.txt >moved.txt
	pt-prepare -q moved.txt -o moved.h5
	reports 65 'vocabulary' tiny -n 4 -d moved.h5 --init-from run/checkpoints/latest.h5 -o a
	reports 65 'vocabulary' tiny -n 4 -d moved.h5 --resume auto -o run
}

@test "a preset for another vocabulary: a warning, once" {
	vocab=$(pt-prepare --info data.h5 | sed -n 's/^vocab = //p')
	small=(--layers 1 --heads 2 --dim 16 -T 16 -b 4 -m 2 -t 1 --self-test no --eval-every 0 -n 1)
	for how in --dry-run --ckpt; do
		mpiexec -n 2 pt-train -p gpt2-124m "${small[@]}" -o run "$how" 2>err >/dev/null
		[ "$(grep -c "a vocabulary of $vocab tokens, but --preset or --vocab specifies 50257" err)" -eq 1 ]
		grep -q "or give --vocab $vocab if" err
	done
	for v in 0 "$vocab"; do
		pt-train -p gpt2-124m --vocab "$v" "${small[@]}" -o "v$v" 2>err >/dev/null
		not grep warning err
	done
	pt-compare -q v0 "v$vocab"
}

@test "fine-tuning: the model's options come with its weights; resume auto goes on with it" {
	tiny -n 3 --layers 2 --dim 24 --heads 3 -a llama -o base >/dev/null
	for n in 6 12; do
		pt-train -q -m 2 -b 4 -n $n --decay-steps 12 --init-from base/checkpoints/latest.h5 \
			--resume auto -o tuned >/dev/null
	done
	pt-train -q -m 2 -b 4 -n 12 --init-from base/checkpoints/latest.h5 -o once >/dev/null
	pt-ckpt diff once/checkpoints/latest.h5 tuned/checkpoints/latest.h5
	grep -q 'config layers = 2' tuned/journal.txt
	pt-train --resume tuned/checkpoints/latest.h5 --print-config | grep -qx 'layers = 2'
	# a config that can be read only once
	pt-train -q --resume auto -o tuned --config <(echo 'steps = 14') >/dev/null
	[ -e tuned/checkpoints/step-00000014.h5 ]
}

@test "a run that goes on in a new folder, and has nothing left to do, has its checkpoint there" {
	tiny -n 6 --decay-steps 8 -o base >/dev/null
	tiny -n 4 --decay-steps 8 --resume base/checkpoints/latest.h5 -o moved >/dev/null
	pt-ckpt diff base/checkpoints/latest.h5 moved/checkpoints/step-00000006.h5
	tiny -n 8 --decay-steps 8 -o whole >/dev/null
	tiny -n 8 --decay-steps 8 --resume auto -o moved >/dev/null
	pt-ckpt diff whole/checkpoints/latest.h5 moved/checkpoints/latest.h5
}

@test "--ckpt-load broadcast: ranks that share no folder" {
	mkdir -p a b
	cp data.h5 a
	cp data.h5 b
	tiny -n 10 -o whole >/dev/null
	mpiexec -n 1 -wdir "$PWD/a" pt-train "${TINY[@]}" --ckpt-load broadcast -n 10 -o run : \
		-n 1 -wdir "$PWD/b" pt-train "${TINY[@]}" --ckpt-load broadcast -n 10 -o run >/dev/null
	cmp whole/checkpoints/latest.h5 a/run/checkpoints/latest.h5
}

@test "what cannot fit is refused before it is touched" {
	reports 1 'out of memory' timeout 120 pt-train -q -p llama3-70b
	[ ! -e run-001 ]
	code_of 64 timeout 120 pt-train --dry-run -b 1000000000000 -m 500000000000
	timeout 120 pt-train --dry-run -b 1000000000 -m 1 >/dev/null
}

@test "many virtual slices" {
	tiny -n 2 --dim 64 --heads 64 --virtual tp=64 --sample-every 2 --sample-tokens 5 -o run >/dev/null
	[ -e run/checkpoints/step-00000002.h5 ]
}

@test "a run's folder stands for its last checkpoint" {
	tiny -n 4 -o run >/dev/null
	tiny -n 8 --decay-steps 4 --resume run -o run >/dev/null
	tiny -n 2 --init-from run -o tuned >/dev/null
	[ -e run/checkpoints/step-00000008.h5 ]
	[ -e tuned/checkpoints/step-00000002.h5 ]
}

@test "the best of the first save after resuming is kept" {
	tiny -n 10 --eval-every 0 -o run >/dev/null
	tiny -n 30 --eval-every 10 --ckpt-every 2 --keep 1 -o run --resume auto >/dev/null
	best=$(readlink run/checkpoints/best.h5)
	[ -e "run/checkpoints/$best" ]
	# a folder with checkpoints holds a run, though its journal has no row
	grep -v '^step=' run/journal.txt >x && mv x run/journal.txt
	reports 64 'holds a run' tiny -n 5 -o run
	# another lr moves min-lr with it
	tiny -n 34 --lr 1e-5 -o run --resume auto >/dev/null
}

@test "a resume that only some ranks were given is refused" {
	tiny -n 4 -o run >/dev/null
	code_of 64 timeout 120 mpiexec -n 1 pt-train "${TINY[@]}" -n 8 -o run : \
		-n 1 -env PT_RESUME run pt-train "${TINY[@]}" -n 8 -o run
	says 'to some ranks only'
}
