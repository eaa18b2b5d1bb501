#!/usr/bin/env bats
# pt-train --hash-tensors, and pt-compare --locate: the first tensor that differs.
load helpers

MODEL=(--layers 4 --heads 4 --virtual "tp=2,cp=2" -m 1 -n 3 --eval-every 0)

hashes_on() { # RANKS FILE OPTION...
	local n=$1 file=$2
	shift 2
	rm -rf hashed
	tiny_on "$n" "${MODEL[@]}" -o hashed --hash-tensors "$file" "$@" >/dev/null
}

@test "the hashes of all tensors are equal on every layout" {
	make_shard
	MODEL+=(--hash-steps 1:2 --dropout 0.1)
	hashes_on 1 one
	for layout in --tp --cp --pp --fsdp --dp; do
		hashes_on 2 test $layout 2
		cmp one test
	done
	hashes_on 2 test --tp 2 --no-sp --recompute selective
	cmp one test
	hashes_on 4 test --tp 2 --pp 2 --pp-schedule zb-h1 --recompute full
	cmp one test
	hashes_on 4 test --dp 2 --fsdp 2 --fsdp-kind flat
	cmp one test
	not grep -q 'replicas=differ' one
	# a tensor of each kind
	for what in 'micro=7 phase=forward name=tokens' 'phase=parameter name=norm.bias' \
		'micro=0 phase=forward name=layers.3.attention.wk' 'micro=0 phase=backward name=layers.0.ffn_norm' \
		'micro=0 phase=backward name=tok_embeddings.weight:output' 'phase=gradient name=tok_embeddings.weight' \
		'phase=norm name=grad_norm' 'phase=state name=exp_avg_sq/norm.weight' 'phase=updated name=norm.weight'; do
		[ "$(grep -c " $what " one)" -eq 2 ] || {
			echo "not twice: $what"
			return 1
		}
	done
}

@test "leaves of experts have the micro-batch and the chunk of their rows, whoever computes them" {
	make_shard
	MODEL+=(--hash-steps 1 -a llama --experts 8 --expert-dim 12 --expert-room 4 -b 6)
	hashes_on 1 one
	hashes_on 4 test --dp 4 --ep 4
	cmp one test
	hashes_on 4 test --fsdp 2 --cp 2 --ep 2 --zero 3 --recompute full
	cmp one test
	hashes_on 4 test --pp 2 --tp 2 --pp-schedule zb-h1
	cmp one test
	[ "$(grep -c ' micro=5 phase=backward name=layers.3.experts.w13.weight ' one)" -eq 1 ]
}

@test "the hashes of Llama and of lower precision are equal, too" {
	make_shard
	for of in '--arch llama --kv-heads 1' '--dtype bf16' '--optimizer muon'; do
		# shellcheck disable=SC2086 # words
		hashes_on 1 one $of
		# shellcheck disable=SC2086
		hashes_on 4 test $of --tp 2 --fsdp 2
		cmp one test
	done
	# one row, so that a rank of tp has none
	hashes_on 1 one -T 1 --virtual tp=2,cp=1
	hashes_on 2 test -T 1 --virtual tp=2,cp=1 --tp 2
	cmp one test
}

@test "the run ends after the last hashed step, and computes what it would without hashes" {
	make_shard
	tiny "${MODEL[@]}" -o run >/dev/null
	hashes_on 1 one --hash-steps 2
	[ "$(grep -c '^step=' hashed/journal.txt)" -eq 2 ]
	grep -q 'ends with code 0 after step 2' hashed/journal.txt
	code_of 0 pt-compare --common run hashed
	grep '^step=2 ' one >/dev/null
	not grep -v '^step=2 ' one
}

@test "what cannot be is refused" {
	make_shard
	reports 64 'hash-steps needs --hash-tensors' tiny --hash-steps 1 -o x
	code_of 64 tiny --hash-tensors f --hash-steps 2:1 -o x
	code_of 64 tiny --hash-tensors f --edit-workers 1 -o x
	reports 74 'nowhere/f: No such file' tiny --hash-tensors nowhere/f -o x
	# all ranks end with the code of a write that fails
	code_of 74 tiny_on 2 --dp 2 --hash-tensors /dev/full --hash-steps 1:2 -o full
	says '/dev/full: No space left on device'
	[ "$(grep -c '^step=' full/journal.txt)" -eq 1 ]
	grep -q 'ends with code 74' full/journal.txt
	code_of 64 pt-compare --locate a b c
	code_of 2 pt-compare --locate nowhere elsewhere
}

# A batch of random tokens in step 6 is a difference whose place is known.
two_runs() { # OPTION...
	make_shard
	MODEL=("${MODEL[@]/3/8}")
	tiny "${MODEL[@]}" -n 8 -o a "$@" >/dev/null
	tiny_on 2 "${MODEL[@]}" -n 8 --tp 2 --corrupt-batch 0:6:6 -o b "$@" >/dev/null
}

@test "the first tensor that differs, from the last common checkpoint before it" {
	two_runs --ckpt-every 4 --keep 0
	export TMPDIR=$PWD/tmp
	mkdir tmp
	reports 1 'the logs differ from step 6 on' pt-compare --locate a b
	says 'computed again from step 4 to step 6'
	says 'first tensor that differs: step 6, micro-batch 0, forward, activation tokens'
	reports 1 'step 6, micro-batch 0, forward, activation tokens' pt-compare --locate b a --launcher 'mpiexec -n'
	rmdir tmp # all temporary files are gone
}

# An option in the config of a log would write to a file of the log's choice.
@test "a hostile log overwrites no file" {
	make_shard
	tiny "${MODEL[@]}" -o a >/dev/null
	tiny "${MODEL[@]}" --lr 0.01 -o b >/dev/null
	echo precious >victim
	local option head
	head=$(grep -n '^step=' b/journal.txt | head -n 1 | cut -d: -f1)
	for option in trace out 'hash-tensors offload-to config'; do
		{
			head -n $((head - 1)) b/journal.txt
			# shellcheck disable=SC2086 # words
			printf "# config %s = $PWD/victim\n" $option
			[ "$option" != out ] || echo "# meta invocation = \"data = $PWD/data.h5\ntrace = $PWD/victim\""
			tail -n +"$head" b/journal.txt
		} >hostile
		reports 1 'step 1, update, parameter tok_embeddings.weight' pt-compare --locate a/journal.txt hostile
		[ "$(cat victim)" = precious ]
	done
}

@test "SIGINT leaves no temporary files" {
	two_runs --ckpt-every 0
	export TMPDIR=$PWD/tmp
	mkdir tmp
	cat >slow <<-'END'
		#!/bin/bash
		while [ "$1" != --out ]; do shift; done
		mkdir "$2" && echo >"$2/journal.txt" && echo $$ >started
		exec sleep 60
	END
	chmod +x slow
	for signal in INT TERM; do
		rm -f started
		env --default-signal=INT pt-compare --locate a b --control-program ./slow 3>&- &
		local pid=$!
		while [ ! -s started ]; do sleep 0.05; done
		kill -$signal $pid
		wait $pid || [ $? -eq $((128 + $(kill -l $signal))) ]
		[ -z "$(ls tmp)" ]
		not kill -0 "$(cat started)"
	done
}

@test "if too few steps are logged, the parameters after each step are compared" {
	two_runs --log-every 100 --ckpt-every 0 --clip 0
	pt-compare --locate a b >out || [ $? -eq 1 ]
	grep -q 'first tensor that differs: step 6, micro-batch 0, forward, activation tokens' out
}

@test "runs that do not differ, and programs that cannot be started" {
	make_shard
	tiny "${MODEL[@]}" -o a >/dev/null
	tiny "${MODEL[@]}" -o same >/dev/null
	tiny "${MODEL[@]}" --lr 0.01 -o other >/dev/null
	reports 0 'no tensor differs' pt-compare --locate a same
	reports 1 'lr: 0.001, 0.01' pt-compare --locate a other
	says 'step 1, update, parameter tok_embeddings.weight'
	sed 's/^\(step=2 .*\)loss=\([0-9]\)/\1loss=1\2/' same/journal.txt >edited
	reports 0 'the logs differ from step 2 on' pt-compare --locate a/run.h5 edited
	says 'the difference is not reproducible'
	code_of 2 pt-compare --locate a other --test-program nothing-of-this-name
	says 'nothing-of-this-name: the program cannot be started'
	rm data.h5
	reports 2 'data.h5: No such file' pt-compare --locate a other
}

@test "checkpoints, and files of hashes, are compared as they are" {
	make_shard
	hashes_on 1 one
	sed 's/\(name=output .*\)hash=0x./\1hash=0x_/; s/0x_/0x0/' one | sed '0,/name=output/! s/$//' >two
	code_of 1 pt-compare --locate one two
	says 'first tensor that differs: step 1, micro-batch 0, forward, activation output'
	code_of 0 pt-compare --locate one one
	printf '# a comment\n\nstep=1 phase=forward\n' >bad
	reports 2 'bad: line 3 is not the hash of a tensor' pt-compare --locate one bad
	tiny "${MODEL[@]}" -o a >/dev/null
	tiny "${MODEL[@]}" --lr 0.01 -o b >/dev/null
	code_of 1 pt-compare a/checkpoints/step-00000003.h5 b/checkpoints/step-00000003.h5
	says 'first tensor that differs: model/'
	code_of 0 pt-compare a/checkpoints/step-00000003.h5 a/checkpoints/step-00000003.h5
}
