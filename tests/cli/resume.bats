#!/usr/bin/env bats
# pt-train: evaluations have no dropout; and a resumed run is the run that was not stopped, in what
# only checkpoints remember.
load helpers
export SETUP=make_shard

val_loss() { # of the last evaluation in a file
	grep -o 'val_loss=[^ ]*' "$1" | tail -n 1
}

@test "an evaluation drops nothing, whatever its number of windows" {
	tiny -n 2 --dropout 0.5 --eval-every 2 --eval-windows 24 -o run >/dev/null
	tiny --eval-only --eval-windows 24 --dropout 0 --resume run/checkpoints/latest.h5 >out
	[ -n "$(val_loss out)" ]
	[ "$(val_loss out)" = "$(val_loss run/journal.txt)" ]
}

@test "a resumed run drops what the whole run drops" {
	tiny -n 6 --dropout 0.3 -o whole >/dev/null
	tiny -n 3 --dropout 0.3 --decay-steps 6 -o run >/dev/null
	tiny -n 6 --dropout 0.3 --decay-steps 0 -o run --resume auto >/dev/null
	cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
}

@test "the best loss is that of the whole run, and best.h5 stays" {
	tiny -n 2 --eval-every 1 --lr 1 --min-lr 1 --warmup 0 --keep 0 -o run >/dev/null
	tiny -n 4 --eval-every 2 --lr 1 --min-lr 1 --warmup 0 --keep 0 -o run --resume auto >/dev/null
	least=$(grep -o 'val_loss=[^ ]*' run/journal.txt | cut -d= -f2 | sort -g | head -n 1)
	[ "$(grep -o 'val_loss=[^ ]*' run/journal.txt | tail -n 1)" != "val_loss=$least" ]
	pt-ckpt show run/checkpoints/latest.h5 | grep -qx "best_val_loss = $least"
	pt-ckpt show run/checkpoints/best.h5 | grep -qx "val_loss = $least"
}

@test "a run resumes on layouts that need other arithmetic, and says so; not with --resume-exact" {
	tiny -n 4 --decay-steps 8 -o run >/dev/null
	for x in "2 --tp 2" "2 --cp 2" "8 --dp 8" "1 --tile 2 --offload params --offload-to ."; do
		read -ra words <<<"$x"
		rm -rf other && cp -r run other
		tiny_on "${words[0]}" -n 8 -o other --resume auto "${words[@]:1}" >/dev/null 2>err
		grep -q 'the arithmetic changes from step 5 on (\(virtual tp=1,cp=1 -> tp=.,cp=.\|micro-batch 2 -> 1\))' err
		grep -q '^# event .*step=4 the arithmetic changes: ' other/journal.txt
		[ "$(grep -c '^step=' other/journal.txt)" -eq 8 ]
		rm -rf other && cp -r run other
		code_of 64 tiny_on "${words[0]}" -n 8 -o other --resume auto --resume-exact "${words[@]:1}"
	done
	tiny -n 8 -o run --resume auto --resume-exact >/dev/null 2>err
	[ ! -s err ]
}

@test "on a CPU, --kernels is not part of the arithmetic" {
	tiny -n 4 --kernels ref -o ref >/dev/null
	tiny -n 4 --kernels fused -o fused >/dev/null
	reports 0 'identical bit for bit' pt-compare ref fused
	[[ $output != *arithmetic* ]]
	tiny -n 4 --resume ref --resume-exact --kernels fused -o again >/dev/null
}

@test "identical bits of different arithmetic are reported as such" {
	tiny -n 4 -o a >/dev/null
	tiny -n 4 --loss-scale-window 100 -o b >/dev/null
	reports 0 'different arithmetic, but the same bits in these runs' pt-compare a b
}

@test "from there on the arithmetic is that of the new degrees; padding of the vocabulary comes and goes" {
	# (the shard has 17 symbols)
	tiny -n 4 --decay-steps 8 -o run >/dev/null
	cp -r run one
	cp -r run two
	tiny -n 8 -o one --resume auto --virtual tp=2 >/dev/null 2>&1
	tiny_on 2 -n 8 -o two --resume auto --tp 2 >/dev/null 2>&1
	cmp one/checkpoints/latest.h5 two/checkpoints/latest.h5
	pt-ckpt show one/checkpoints/latest.h5 | grep -q '^tok_embeddings.weight *\[18, 16\]'
	tiny -n 9 -o one --resume auto --virtual tp=1 >/dev/null 2>&1
	pt-ckpt show one/checkpoints/latest.h5 | grep -q '^tok_embeddings.weight *\[17, 16\]'
}

@test "1, 2, 4 and 8 ranks train with the defaults, with equal bits" {
	for n in 1 2 4 8; do
		mpiexec -n $n pt-train -q -t 1 -n 2 --eval-every 0 -o ranks$n >/dev/null 2>&1
		cmp ranks1/checkpoints/latest.h5 ranks$n/checkpoints/latest.h5
	done
}

@test "--batch-per-rank is the batch of that many ranks" {
	o=(-q --layers 1 --heads 2 --dim 16 -T 16 -t 1 -n 4 --eval-every 0)
	mpiexec -n 2 pt-train "${o[@]}" --batch-per-rank 4 --lr-scale sqrt -o per >/dev/null
	pt-train "${o[@]}" -b 8 -m 4 --lr-scale sqrt --lr-scale-batch 4 -o whole >/dev/null
	cmp per/checkpoints/latest.h5 whole/checkpoints/latest.h5
	reports 64 'mutually exclusive' pt-train "${o[@]}" --batch-per-rank 4 -b 8 -o both
}

@test "--eval-first: losses and a sample before the first step, and only there" {
	tiny -n 2 --eval-first -o run >/dev/null
	grep -q '^step=0 tokens=0 train_loss=.* val_loss=' run/journal.txt
	tiny_on 2 -n 2 --eval-first -o two >/dev/null
	pt-compare run two
	tiny -n 3 --eval-first --decay-steps 2 -o run --resume auto >/dev/null
	[ "$(grep -c '^step=0 ' run/journal.txt)" -eq 1 ]
	# (samples are for those who read messages)
	pt-train "${TINY[@]:1}" -n 2 --eval-first --sample-every 2 --sample-tokens 5 \
		--sample-prompt 'the lord' -o loud >/dev/null 2>err
	grep -q 'a sample after step 0:' err
	[ "$(grep -c '^the lord.' err)" -eq 2 ]
}

@test "more steps are other arithmetic if the learning rate decayed over fewer" {
	tiny -n 4 --warmup 1 -o run >/dev/null
	code_of 64 tiny -n 8 --warmup 1 -o run --resume auto --resume-exact
	tiny -n 8 --warmup 1 -o run --resume auto >/dev/null 2>err
	grep -q 'the arithmetic changes from step 5 on (steps 4 -> 8)' err
	tiny -n 9 --warmup 1 --decay-steps 8 -o run --resume auto --resume-exact >/dev/null 2>err
	[ ! -s err ]
}

# The log that a warning tells of as kept under these names is the one of the folder `before`.
kept() { # RUN NUMBER
	grep -qF "the log of the steps so far is kept in $1/journal.txt.$2 and $1/run.h5.$2" err
	cmp before/journal.txt "$1/journal.txt.$2"
	cmp before/run.h5 "$1/run.h5.$2"
}

@test "--resume auto that begins again keeps the log, if it has a step" {
	tiny -n 6 -o run >/dev/null
	cp -r run before
	rm run/checkpoints/step-*
	reports 65 'run/checkpoints/latest.h5: step-00000006.h5 is missing; ' tiny -n 3 -o run --resume auto
	diff -r -x checkpoints before run
	rm run/checkpoints/*
	tiny -n 3 -o run --resume auto >/dev/null 2>err
	kept run 1
	tiny -n 3 -o whole >/dev/null
	same whole run
	rm -r before run/checkpoints
	cp -r run before
	tiny_on 2 -n 3 -o run --resume auto >/dev/null 2>err
	kept run 2
	same whole run
	# with run.h5 alone, too
	rm run/journal.txt run/checkpoints/*
	reports 64 'run holds a run' tiny -n 3 -o run
	tiny -n 3 -o run --resume auto >/dev/null 2>err
	pt-compare before run/run.h5.3
	[ ! -e run/journal.txt.3 ]
	# what never had a step has nothing to keep
	tiny -n 0 --eval-every 0 -o none >/dev/null
	[ -e none/run.h5 ]
	rm none/checkpoints/*
	not grep '^step=' none/journal.txt
	tiny -n 3 -o none --resume auto >/dev/null 2>err
	[ ! -s err ]
	[ ! -e none/run.h5.1 ]
}

@test "a run that has ended before its first checkpoint leaves its log to the next" {
	code_of 1 tiny -n 30 --lr 1e30 --min-lr 1e30 --warmup 1 --clip 0 --eval-every 0 -o run
	grep -q '^step=1 ' run/journal.txt
	cp -r run before
	tiny -n 3 -o run --resume auto >/dev/null 2>err
	kept run 1
}

@test "of a journal that is lost or cut, run.h5 keeps the rows" {
	tiny -n 10 --decay-steps 20 -o run >/dev/null
	for bytes in 0 3000; do
		rm -rf cut && cp -r run cut
		head -c $bytes run/journal.txt >cut/journal.txt
		[ $bytes -gt 0 ] || rm cut/journal.txt
		tiny -n 12 --decay-steps 20 -o cut --resume auto >/dev/null 2>err
		grep -q "cut/journal.txt lacks [0-9]* rows of run.h5; the old run.h5 is kept as cut/run.h5.1" err
		cmp run/run.h5 cut/run.h5.1
		pt-compare --common run cut/run.h5.1
	done
	echo damaged >run/run.h5
	tiny -n 12 --decay-steps 20 -o run --resume auto >/dev/null 2>err
	grep -q 'the file is kept as run/run.h5.1' err
	tiny -n 13 --decay-steps 20 -o run --resume auto >/dev/null 2>err
	[ ! -s err ]
}

@test "a resume that has no step to do records none of its options" {
	tiny -n 6 --decay-steps 20 -o run >/dev/null
	cp -r run before
	for words in "-n 4" "-n 6 --virtual tp=2" "-n 6 --lr 0.5"; do
		# shellcheck disable=SC2086
		tiny --decay-steps 20 $words -o run --resume auto >out 2>err
		[ ! -s err ]
		not grep 'arithmetic' out
		tail -n 1 run/journal.txt | grep -q 'ends with code 0 after step 6' # jobs read it there
		diff <(grep -v '^# event' before/journal.txt) <(grep -v '^# event' run/journal.txt)
		pt-compare before run
		diff -r before/checkpoints run/checkpoints
	done
	tiny -n 7 --decay-steps 20 -o run --resume auto >/dev/null
	[ "$(grep -c '^# meta arithmetic' run/journal.txt)" -eq 2 ]
	# in another folder it is the head of what is there; and rows that it drops are recorded
	tiny -n 6 --decay-steps 20 -o other --resume before >/dev/null
	grep -q '^# meta arithmetic' other/journal.txt
	[ -e other/checkpoints/step-00000006.h5 ]
	tiny -n 6 --decay-steps 20 -o run --resume run/checkpoints/step-00000006.h5 >/dev/null
	pt-compare before run
	[ "$(tail -n 1 run/journal.txt | grep -c 'ends with code 0 after step 6')" -eq 1 ]
}
