#!/usr/bin/env bats
# "To add" of pt(7): patches that do what it says, in the files that it names, build and run.
load helpers

@test "an option, a tokenizer, an architecture, an activation function, a router, an optimizer and a format of logs are each a file or a row" {
	root=$(realpath "$BATS_TEST_DIRNAME/../..")
	mkdir tree
	(cd "$root" && tar cf - Makefile cmd libcore kernels man share completions tests/additions tests/support) | tar xf - -C tree
	cd tree
	for patch in tests/additions/*.patch; do
		git apply "$patch"
	done
	env -u MAKEFLAGS -u MAKELEVEL make -s -j"$(nproc)" DEPS=no CUDA=no programs WERROR=-Werror </dev/null 1>/dev/null
	PATH=$PWD/build:$PATH
	printf 'the quick brown fox jumps over the lazy dog. %.0s' {1..200} >text
	pt-prepare --tokenizer rot13 text -o data.h5
	pt-prepare --decode train data.h5 | head -c 19 >start
	[ "$(cat start)" = 'the quick brown fox' ]
	small=(-d data.h5 --layers 2 --dim 32 --heads 2 --context 16 -b 4 -m 1 -n 4 --arch parrot --optimizer nag
		--virtual tp=2)
	pt-train "${small[@]}" --greet 2 -o one 2>err >/dev/null
	[ "$(grep -c hello err)" -eq 2 ]
	mpiexec -n 4 pt-train "${small[@]}" --fsdp 2 --tp 2 -o four &>/dev/null
	cmp one/checkpoints/step-00000004.h5 four/checkpoints/step-00000004.h5
	pt-train "${small[@]}" --act squared-relu -o relu &>/dev/null
	mpiexec -n 2 pt-train "${small[@]}" --act squared-relu --tp 2 -o two &>/dev/null
	cmp relu/checkpoints/step-00000004.h5 two/checkpoints/step-00000004.h5
	experts=(--arch llama --ffn-dim 32 --experts 4 --router softplus --balance-loss 1)
	pt-train "${small[@]}" "${experts[@]}" -o mixture &>/dev/null
	mpiexec -n 4 pt-train "${small[@]}" "${experts[@]}" --tp 2 --fsdp 2 --ep 2 --expert-room 2 -o mixtures &>/dev/null
	cmp mixture/checkpoints/step-00000004.h5 mixtures/checkpoints/step-00000004.h5
	pt-train --help | grep -q '|squared-relu'
	pt-train --help | grep -q 'nag|adamw'
	pt-train --generate man | grep -q greet
	# a checkpoint with the names of Parakeet, which are as long as Hugging Face's
	cp -r "$root/tests/golden/torch/shards" nest
	chmod -R u+w nest
	LC_ALL=C sed -i 's/layers/perchs/g; s/proj/wing/g; s/embed_tokens/perch_tokens/g' nest/*
	pt-ckpt diff --no-optimizer --model-config "$root/tests/golden/torch/hf/config.json" nest "$root/tests/golden/torch/hf"
	printf 'parrot %d says %s\n' 1 2.5 2 2.25 >log
	pt-compare --export - log | tail -1 | grep -qx '2,2.25'
	pt-compare --generate formats | grep -q parrot
}
