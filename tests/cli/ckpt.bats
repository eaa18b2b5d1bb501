#!/usr/bin/env bats
# pt-ckpt: list, show, verify, compare, hash, remove; damaged and wrong files.
load helpers

# Runs with checkpoints at steps 10 and 20.
make_run() { # FOLDER OPTION...
	local folder=$1
	shift
	[ -e data.h5 ] || make_shard
	tiny -n 20 -o "$folder" --keep 0 --ckpt-every 10 "$@" >/dev/null
}

at20=run/checkpoints/step-00000020.h5

@test "ls: a line a checkpoint, of runs, folders and files" {
	make_run run
	val=$(grep -o 'val_loss=[^ ]*' run/journal.txt | cut -d= -f2)
	for what in run run/checkpoints; do
		pt-ckpt ls $what >out
		[ "$(wc -l <out)" -eq 3 ]
		diff <(sed 1d out | awk '{ print $1, $2, $4 }') \
			<(paste -d' ' <(printf '10 1280\n20 2560\n') <(echo "$val"))
		grep -q '^20 .*step-00000020.h5 (latest)' out
		[ "$(grep -c '(latest)' out)" -eq 1 ]
		grep -q "/$(readlink run/checkpoints/best.h5).*(best)" out
	done
	loss=$(grep -o '^step=20 .* loss=[^ ]*' run/journal.txt | sed 's/.*=//')
	pt-ckpt ls $at20 | grep -q "^20 .* $loss .* KiB  $at20\$"
	(cd run && pt-ckpt ls) | grep -q '^20 '
	tiny -n 0 -o seed >/dev/null
	pt-ckpt ls seed run | sed 1d | awk '{ print $1 }' | tr '\n' ' ' | grep -qx '0 10 20 '
	pt-ckpt ls seed | grep -qE '^0 +0 +- '
}

@test "no byte of a file is outside of what HDF5 checks or we do" {
	make_run run
	tiny -n 1 -o deep --layers 20 >/dev/null # more than 255 tensors
	for file in data.h5 run/run.h5 $at20 deep/checkpoints/latest.h5; do
		h5stat -S $file >space
		grep -q 'Unaccounted space: 0 bytes' space
	done
}

@test "show: what is known, and every tensor; --options trains the same again" {
	make_run run
	pt-ckpt show $at20 >out
	grep -qx 'step = 20' out
	grep -qx 'samples = 160' out
	grep -qx 'tokens = 2560' out
	grep -qx 'tokenizer = char' out
	n=$(awk '/^#/ || / = / { next } { sub(/\[.*\]/, ""); n += $2 } END { print n }' out)
	grep -qx "# $n parameters" out
	pt-train -d data.h5 "${TINY[@]:1}" --dry-run | grep -q "^  $n parameters"
	h5ls $at20/model | sed 's/ .*//' | diff - <(awk '/\[/ { print $1 }' out | sort)
	pt-ckpt show --options $at20 >options
	pt-train -q --config options -d data.h5 --keep 0 -o again >/dev/null
	cmp $at20 again/checkpoints/step-00000020.h5
}

@test "hash: of the parameters alone, on any layout" {
	make_run run
	hash=$(pt-ckpt hash $at20)
	pt-ckpt show $at20 | grep -qx "param_hash = ${hash%% *}"
	make_run again --log-every 7 -t 2
	pt-ckpt hash again/checkpoints/latest.h5 | grep -q "^${hash%% *} "
	make_run other -s 2
	not grep -q "^${hash%% *} " <(pt-ckpt hash other/checkpoints/latest.h5)
	[ "$(pt-ckpt hash run/checkpoints/step-*.h5 | sort -u | wc -l)" -eq 2 ]
	# moments are no part of it
	pt-train -q -d data.h5 -n 0 --init-from $at20 -o moved "${TINY[@]:1}" -n 0 >/dev/null
	pt-ckpt hash moved/checkpoints/latest.h5 | grep -q "^${hash%% *} "
}

@test "diff: 0 the same, 1 they differ, with names, numbers and ULPs" {
	make_run run
	make_run same -t 2
	code_of 0 pt-ckpt diff $at20 same/checkpoints/latest.h5
	says '20 tensors are equal, with their optimizer state'
	code_of 1 pt-ckpt diff $at20 run/checkpoints/step-00000010.h5
	[ "$(grep -c ' model ' <<<"$output")" -eq 20 ]
	[ "$(grep -c ' exp_avg_sq ' <<<"$output")" -eq 20 ]
	says 'max |Δ|'
	code_of 1 pt-ckpt diff --no-optimizer $at20 run/checkpoints/step-00000010.h5
	not grep -q exp_avg <<<"$output"
	# the same parameters, other moments
	tiny -n 0 --init-from $at20 -o moved >/dev/null
	reports 0 '20 tensors are equal' pt-ckpt diff --no-optimizer $at20 moved/checkpoints/latest.h5
	code_of 1 pt-ckpt diff $at20 moved/checkpoints/latest.h5
	not grep -q ' model ' <<<"$output"
	# other models
	make_run wide --dim 32
	reports 1 'has a different shape' pt-ckpt diff $at20 wide/checkpoints/latest.h5
	make_run llama --arch llama
	reports 1 'only in the first' pt-ckpt diff $at20 llama/checkpoints/latest.h5
	says 'only in the second'
}

@test "diff: the same tensors, and what else differs; --strict minds it" {
	make_run run
	make_run other --eval-every 0 --vocab-multiple 1 --sample-tokens 7
	code_of 0 pt-ckpt diff run/checkpoints/step-00000020.h5 other
	says '20 tensors are equal, with their optimizer state; these differ:'
	val=$(pt-ckpt show run | sed -n 's/^val_loss = //p')
	grep -qE "^  val_loss ${val:0:5}[0-9.]*, none\$" <<<"$output"
	grep -qx '  option eval-every 10, 0' <<<"$output"
	grep -qx '  option sample-tokens 200, 7' <<<"$output"
	not grep -q 'vocabulary\|param_hash\|option seed' <<<"$output"
	reports 1 '20 tensors are equal' pt-ckpt diff --strict run other
	code_of 0 pt-ckpt diff --strict run $at20
	not grep -q differ <<<"$output"
	# another vocabulary of the same size
	tr a-z b-za <text.txt >moved.txt
	pt-prepare -q moved.txt -o moved.h5
	tiny -n 0 -o a >/dev/null
	tiny -n 0 -o b -d moved.h5 >/dev/null
	n=$(pt-ckpt show a | sed -n 's/^vocab = //p')
	code_of 0 pt-ckpt diff a b
	grep -qx "  vocabulary $n char, $n char" <<<"$output"
	grep -qE '^  data_hash 0x[0-9a-f]{16}, 0x[0-9a-f]{16}$' <<<"$output"
	code_of 1 pt-ckpt diff --strict a b
}

@test "a run's folder stands for its last checkpoint" {
	make_run run
	pt-ckpt show run | diff - <(pt-ckpt show $at20)
	pt-ckpt hash run | diff - <(pt-ckpt hash $at20 | sed "s,$at20,run,")
	code_of 0 pt-ckpt diff run $at20
	code_of 0 pt-ckpt verify run/checkpoints
	cp $at20 whole.h5
	head -c 5000 whole.h5 >$at20
	reports 65 'run: DAMAGED' pt-ckpt verify run
}

@test "diff: by how much, where it can be known" {
	make_shard
	tiny -n 0 -o zero >/dev/null
	tiny -n 1 --lr 0.0009765625 --warmup 0 --clip 0 -o one >/dev/null
	run pt-ckpt diff {zero,one}/checkpoints/latest.h5
	# AdamW's first step is the learning rate, 2^-10; below 1 floats are 2^-24 apart
	grep -qE '^norm.weight +model +16 of 16 differ, from element 0; max \|Δ\| 0.0009766, 16384 ULP$' <<<"$output"
	# and from 0 it is as many floats as its bits say, within eps
	ulps=$(sed -nE 's/^norm.bias +model .* 0.0009766, ([0-9]+) ULP$/\1/p' <<<"$output")
	[ "$ulps" -gt $((0x3a800000 - 1000)) ]
	[ "$ulps" -le $((0x3a800000)) ]
}

@test "verify: truncated anywhere it is damaged" {
	make_run run
	reports 0 "$at20: ok" pt-ckpt verify $at20 run/checkpoints/latest.h5
	size=$(stat -c %s $at20)
	for n in 0 1 7 8 47 48 96 511 512 $(seq 1000 19973 "$size") $((size - 4096)) $((size - 1)); do
		head -c "$n" $at20 >bad.h5
		reports 65 'bad.h5: DAMAGED' pt-ckpt verify bad.h5
		says 'pt-ckpt: bad.h5: '
	done
	# longer is no harm, and a hole is
	{ cat $at20 && head -c 100 /dev/zero; } >long.h5
	run pt-ckpt verify long.h5
	[ "$status" -eq 0 ] || [ "$status" -eq 65 ]
	cp $at20 bad.h5
	dd if=/dev/zero of=bad.h5 bs=4096 seek=3 count=1 conv=notrunc status=none
	code_of 65 pt-ckpt verify bad.h5
}

@test "verify: any bit of what is stored, and it says so" {
	make_run run
	size=$(stat -c %s $at20)
	h5dump $at20 | sed 1d >dump
	unseen=0
	for at in $(seq 0 9 47) $(seq 50 97 800) $(seq 1000 2799 $((size - 1))) $((size - 1)); do
		damage $at20 bad.h5 "$at"
		run pt-ckpt verify bad.h5
		[ "$status" -eq 65 ] && continue
		# nothing is stored there
		[ "$status" -eq 0 ]
		h5dump bad.h5 | sed 1d | cmp - dump
		unseen=$((unseen + 1))
	done
	[ "$unseen" -lt 10 ]
}

@test "verify: a damaged tensor is named, and no command takes it" {
	make_run run
	for tensor in model/norm.weight exp_avg/tok_embeddings.weight exp_avg_sq/norm.bias; do
		at=$(h5dump -p -H -d "$tensor" $at20 | sed -n 's/.*OFFSET //p')
		damage $at20 bad.h5 "$at"
		reports 65 "/$tensor: rows 0 to" pt-ckpt verify bad.h5
		code_of 65 pt-ckpt diff $at20 bad.h5
		code_of 65 pt-ckpt diff bad.h5 $at20
		not grep -q 'are equal' <<<"$output"
		code_of 65 pt-train -q -d data.h5 --resume bad.h5 -n 30 -o resumed
		[ ! -e resumed/run.h5 ]
	done
	at=$(h5dump -p -H -d model/norm.weight $at20 | sed -n 's/.*OFFSET //p')
	damage $at20 bad.h5 "$at"
	for what in show hash; do
		code_of 65 pt-ckpt $what bad.h5
	done
	code_of 65 pt-sample bad.h5
	# all are looked at
	reports 65 'bad.h5: DAMAGED' pt-ckpt verify bad.h5 $at20 nowhere.h5
	says "$at20: ok"
	says 'nowhere.h5: cannot be read'
	not grep -q 'nowhere.h5: DAMAGED' <<<"$output"
	head -c 9000 bad.h5 >short.h5
	grep -o '^pt-ckpt: [a-z]*.h5' <<<"$(pt-ckpt verify bad.h5 nowhere.h5 short.h5 2>&1)" >why
	printf 'pt-ckpt: %s.h5\n' bad nowhere short | cmp - why # each with its reason, in their order
	code_of 74 pt-ckpt verify nowhere.h5
	reports 65 'data.h5: not a checkpoint' pt-ckpt verify data.h5
}

@test "ls names what is damaged, goes on, and ends with 65" {
	make_run run
	head -c 5000 $at20 >short
	cp short $at20
	reports 65 "damaged  $at20 (latest)" pt-ckpt ls run
	says "$at20: not an HDF5 file, or damaged"
	grep -q '^10 ' <<<"$output"
	mkdir none
	reports 65 'none: no checkpoints found' pt-ckpt ls none
	reports 65 'other  data.h5' pt-ckpt ls data.h5
	not grep -q 'damaged' <<<"${lines[1]}"
	reports 74 'nowhere: No such file' pt-ckpt ls nowhere
}

@test "other files, folders and missing ones" {
	make_run run
	mkdir folder
	for what in verify show hash rm; do
		reports 65 'a pt-shard file instead of a pt-checkpoint file' pt-ckpt $what data.h5
		reports 65 'a pt-run file' pt-ckpt $what run/run.h5
		reports 65 'text.txt: not an HDF5 file' pt-ckpt $what text.txt
		code_of 65 pt-ckpt $what folder
		reports 74 'nowhere.h5: No such file' pt-ckpt $what nowhere.h5
		code_of 74 pt-ckpt $what text.txt/x.h5
	done
	[ -e data.h5 ]
	[ -e text.txt ]
	[ -e run/run.h5 ]
	for pair in "$at20 data.h5" "text.txt $at20"; do
		read -ra pair <<<"$pair"
		code_of 65 pt-ckpt diff "${pair[@]}"
	done
	code_of 74 pt-ckpt diff $at20 nowhere.h5
}

@test "a wrong command, or too few operands, is 64" {
	reports 64 'ls, show, verify, diff, hash, ' pt-ckpt
	says 'prune or rm'
	reports 64 "did you mean 'verify'" pt-ckpt verfy x
	for what in show verify diff hash rm 'diff x' 'show x y' 'diff x y z'; do
		read -ra what <<<"$what"
		code_of 64 pt-ckpt "${what[@]}"
	done
}

@test "rm: a checkpoint, no link, and the latest and the best only by --force" {
	make_run run
	ln -sfn step-00000020.h5 run/checkpoints/best.h5
	reports 64 'is a link' pt-ckpt rm run/checkpoints/latest.h5
	reports 64 '--force removes it' pt-ckpt rm $at20
	code_of 65 pt-ckpt rm run
	[ -e $at20 ]
	(cd run/checkpoints && code_of 64 pt-ckpt rm step-00000020.h5)
	ln -sfn step-00000010.h5 run/checkpoints/best.h5
	code_of 64 pt-ckpt rm run/checkpoints/step-00000010.h5
	ln -sfn step-00000020.h5 run/checkpoints/best.h5
	code_of 0 pt-ckpt rm run/checkpoints/step-00000010.h5
	[ ! -e run/checkpoints/step-00000010.h5 ]
	[ -e $at20 ]
	code_of 0 pt-ckpt rm --force $at20
	[ ! -e $at20 ]
	# what is damaged, by --force; never another file
	make_run run --overwrite
	for n in 0 5000; do
		cp $at20 whole.h5
		head -c $n whole.h5 >run/checkpoints/step-00000015.h5
		reports 65 '--force removes it' pt-ckpt rm run/checkpoints/step-00000015.h5
		[ -e run/checkpoints/step-00000015.h5 ]
		code_of 0 pt-ckpt rm -f run/checkpoints/step-00000015.h5
		[ ! -e run/checkpoints/step-00000015.h5 ]
	done
	cp data.h5 step-00000001.h5
	ln -s whole.h5 step-00000002.h5
	mkdir step-00000003.h5
	echo mine >step-1.h5.txt
	for f in step-00000001.h5 step-00000003.h5 step-1.h5.txt text.txt; do
		code_of 65 pt-ckpt rm -f $f
	done
	code_of 64 pt-ckpt rm -f step-00000002.h5
	[ -e step-00000001.h5 ]
	[ -e step-00000002.h5 ]
	[ -d step-00000003.h5 ]
	[ -e step-1.h5.txt ]
	[ -e text.txt ]
	# a checkpoint elsewhere, of a name that says nothing
	make_run run --overwrite
	cp $at20 mine
	code_of 0 pt-ckpt rm mine
	[ ! -e mine ]
}

@test "each optimizer goes on from its own state, on another layout and offloaded, and from no other's" {
	make_shard
	for how in 'sgd --momentum 0.9 --nesterov yes' muon; do
		rm -rf whole half other
		# shellcheck disable=SC2086 # words
		tiny -n 6 --virtual tp=2 --optimizer $how -o whole
		# shellcheck disable=SC2086
		tiny_on 2 -n 6 --tp 2 --optimizer $how --ckpt-every 3 -o half
		tiny_on 2 --resume half/checkpoints/step-00000003.h5 --fsdp 2 --offload optimizer --offload-to . -o other
		pt-ckpt diff whole/checkpoints/step-00000006.h5 half/checkpoints/step-00000006.h5
		pt-ckpt diff -a whole/checkpoints/step-00000006.h5 other/checkpoints/step-00000006.h5
	done
	reports 64 'was trained with --optimizer muon' tiny --resume whole --optimizer adamw -n 8
	says 'init-from'
	tiny --init-from whole --virtual tp=2 --optimizer adamw -n 2 -o fresh
}

@test "options of an optimizer that is not there are refused" {
	make_shard
	reports 64 'momentum needs --optimizer sgd or muon' tiny --momentum 0.9
	reports 64 'muon-scale needs --optimizer muon' tiny --optimizer sgd --muon-scale original
	reports 64 'nesterov needs --momentum' tiny --optimizer sgd --momentum 0 --nesterov yes
}

@test "SGD without momentum keeps no state, and may take it up" {
	make_shard
	tiny -n 4 --optimizer sgd --momentum 0 -o none
	not h5ls none/checkpoints/latest.h5/momentum_buffer
	pt-ckpt verify none/checkpoints/latest.h5
	reports 0 'starts at zero' tiny --resume none --momentum 0.9 -n 6 -o some
}
