#!/usr/bin/env bats
# pt-check: right and wrong steps of pt-train itself; forms of a batch; bad input.
# (Steps of PyTorch: tests/unit/test_check.c and tests/bench/oracle.)
load helpers

# A shard of one window, so that every step of a run has these 17 tokens; and a run of three steps.
make_window() {
	make_text >text.txt
	head -c 17 text.txt >window
	export PT_DATA=window.h5
	pt-prepare -q -t byte -f 0 window -o window.h5
	as 2 window >batch.u16
}

ONE=(-b 1 -m 1 --eval-every 0 --warmup 1 --ckpt-every 1 --keep 0 --arch llama)

steps() { # RUN STEPS OPTION...
	tiny "${ONE[@]}" -o "$1" --steps "$2" "${@:3}" >"$1.log"
}

at() { # RUN STEP
	echo "$1/checkpoints/step-0000000$2.h5"
}

# Converts the bytes of a file to integers of so many bytes.
as() { # BYTES FILE
	od -An -v -w1 -tx1 "$2" | while read -r x; do
		printf '%b' "\\x$x"
		head -c $(($1 - 1)) /dev/zero
	done
}

npy() { # DESCR SHAPE: converts standard input to a NumPy file
	local header="{'descr': '$1', 'fortran_order': False, 'shape': ($2), }"
	printf '\x93NUMPY\x01\x00%b\x00%s\n' "\\x$(printf %x $((${#header} + 1)))" "$header"
	cat
}

safetensors() { # HEADER: writes it, then standard input
	printf '%b\0\0\0\0\0\0\0%s' "\\x$(printf %x ${#1})" "$1"
	cat
}

check() { # OPTION...: checks step 2 of `run`, with its one sequence
	pt-check --shape 1,17 "$(at run 1)" "$(at run 2)" "$@"
}

logged() { # COLUMN STEP RUN
	sed -n "s/^step=$2 .* $1=\([^ ]*\).*/\1/p" "$3.log"
}

@test "right steps of GPT-2 and Llama: the first step and a later one" {
	make_window
	for arch in gpt2 llama; do
		steps $arch 0 --arch $arch
		mv $arch zero
		steps $arch 3 --arch $arch
		first=$(at zero 0)
		for step in 1 2 3; do
			code_of 0 pt-check --shape 1,17 "$first" "$(at $arch $step)" --batch batch.u16 \
				--grad-norm "$(logged grad_norm $step $arch)" --loss "$(logged loss $step $arch)"
			says 'verdict: the step is right'
			says ' within bounds; worst '
			says "learning rate $(logged lr $step $arch) at the optimizer's step $step; weight decay: 0.1 ("
			not grep -q 'NOT checked' <<<"$output"
			first=$(at $arch $step)
		done
		rm -r zero
	done
}

@test "a small weight decay is not counted as none" {
	make_window
	steps run 2 --weight-decay 0.01 --lr 0.01
	code_of 0 check --batch batch.u16
	says '; weight decay: 0.01 (9 tensors), none (3)'
	steps plain 2 --weight-decay 0 --lr 0.01
	code_of 0 pt-check --shape 1,17 "$(at plain 1)" "$(at plain 2)" --batch batch.u16
	says '; weight decay: none (12 tensors)'
}

@test "a step on four ranks is right, in every layout" {
	make_window
	tiny_on 4 "${ONE[@]}" -o run --steps 2 --fsdp 1 --tp 2 --cp 2 >/dev/null
	reports 0 'verdict: the step is right' check --batch batch.u16
	rm -r run
	tiny_on 2 "${ONE[@]}" -b 2 -o run --steps 2 --fsdp 2 >/dev/null # both ranks have the same sequence
	cp batch.u16 again.u16
	reports 0 'batch   2 sequences of 16 positions, 32 targets; loss ' check --batch batch.u16 again.u16
	code_of 0 check --batch batch.u16 # the mean of one is the mean of both
	says '1 sequence'
}

@test "a batch has many forms" {
	make_window
	steps run 2
	as 4 window >batch.u32
	cp batch.u32 batch.i32
	as 8 window >batch.i64
	npy '<u2' '1, 17' <batch.u16 >windows.npy
	npy '<i8' '17,' <batch.i64 >row.npy
	npy '|u1' '1, 1, 17' <window >bytes.npy
	safetensors '{"tokens":{"dtype":"I64","shape":[1,17],"data_offsets":[0,136]}}' <batch.i64 >tokens.safetensors
	# inputs, labels that are the next tokens, positions
	{ head -c 64 && tail -c 64 batch.i32; } <batch.i32 >both
	safetensors '{"labels":{"dtype":"I32","shape":[1,16],"data_offsets":[64,128]},"inputs":{"dtype":"I32","shape":[1,16],"data_offsets":[0,64]}}' \
		<both >both.safetensors
	for batch in batch.* *.npy *.safetensors; do
		code_of 0 check --batch "$batch"
		says "batch   1 sequence of 16 positions, 16 targets; loss $(printf %.6f "$(logged loss 2 run)") (float64)"
		says 'verdict: the step is right'
	done
	# one row twice: its mean is the same
	npy '<u2' '2, 17' < <(cat batch.u16 batch.u16) >two.npy
	reports 0 '2 sequences of 16 positions, 32 targets' check --batch two.npy
	# labels below 0 do not count, which the run did not know
	{ head -c 64 batch.i32 && tail -c 64 batch.i32 | head -c 60 && printf '\x9c\xff\xff\xff'; } >both
	safetensors '{"inputs":{"dtype":"I32","shape":[1,16],"data_offsets":[0,64]},"labels":{"dtype":"I32","shape":[1,16],"data_offsets":[64,128]}}' \
		<both >masked.safetensors
	reports 1 '16 positions, 15 targets' check --batch masked.safetensors
}

@test "findings name what is wrong" {
	make_window
	steps zero 0 --dim 32
	from=$(at zero 0)
	try() { # FINDING OPTION OF THE RUN... -- OPTION OF pt-check...
		local want=$1 run=()
		shift
		while [ "$1" != -- ]; do
			run+=("$1")
			shift
		done
		rm -rf after
		steps after 1 --dim 32 --init-from "$from" "${run[@]}"
		reports 1 "$want" pt-check --shape 1,17 "$from" "$(at after 1)" --batch batch.u16 "${@:2}"
		says 'verdict: wrong: '
	}
	try 'as if rope theta were 500000' --rope-theta 500000 --
	try 'as if the norms had eps 1e-6' --norm-eps 1e-6 --
	try 'exp_avg_sq: as if beta2 were 0.999 instead of 0.95' --beta2 0.999 -- --beta2 0.95
	try 'learning rate 0.0005 instead of 0.002' -- --lr 2e-3
	try 'weight decay 0.2 instead of 0.1' --weight-decay 0.2 -- --weight-decay 0.1
	try 'no tensor decays' --weight-decay 0 -- --weight-decay 0.1
	try 'scale: grad_norm 6' --clip 1 -- --grad-norm 6
	try 'above 0.5' --clip 1 -- --clip 0.5
	# the same runs, with the options that they had
	for option in '--rope-theta 500000' '--beta2 0.95' '--weight-decay 0.2' '--clip 0.5'; do
		rm -rf after zero
		# shellcheck disable=SC2086 # two words
		steps zero 0 --dim 32 $option
		# shellcheck disable=SC2086
		steps after 1 --dim 32 $option
		code_of 0 pt-check --shape 1,17 "$(at zero 0)" "$(at after 1)" --batch batch.u16
	done
}

@test "effects of rounding are not findings" {
	make_window
	# after a first step with a small rate, biases are too small to determine the weight decay
	steps run 2 --arch gpt2 --dim 128 --warmup 200
	code_of 0 check --batch batch.u16
	# 1 - 0.999 in fp32 is off by 1e-5
	steps zero 0 --beta2 0.999
	steps after 1 --beta2 0.999
	code_of 0 pt-check --shape 1,17 "$(at zero 0)" "$(at after 1)" --batch batch.u16
	# 16 factors always fit 16 slices of 16 elements
	steps theta 1 --beta2 0.999 --init-from "$(at zero 0)" --rope-theta 500000
	code_of 1 pt-check --shape 1,17 "$(at zero 0)" "$(at theta 1)" --batch batch.u16
	says '(12): as if rope theta were 500000'
}

@test "another batch, another order, another step" {
	make_window
	steps run 3
	tail -c 17 text.txt >other
	as 2 other >other.u16
	reports 1 'loss: ' check --batch other.u16 --loss "$(logged loss 2 run)"
	says 'the batch differs'
	reports 1 '2 sequences' check --batch batch.u16 other.u16
	reports 64 'BEFORE and AFTER are the same file' pt-check "$(at run 1)" "$(at run 1)" --shape 1,17 --batch batch.u16
	# the gradients are right, so a wrong loss is a note
	reports 0 'note    loss: 3 was logged' check --batch batch.u16 --loss 3
	code_of 1 pt-check "$(at run 2)" "$(at run 1)" --shape 1,17 --batch batch.u16
	says "the optimizer's step goes from 2 to 1: are BEFORE and AFTER exchanged?"
	cp "$(at run 2)" again.h5
	code_of 1 pt-check "$(at run 2)" again.h5 --shape 1,17 --batch batch.u16
	says 'finding neither parameters nor moments changed: the step was skipped'
	not grep -q null <<<"$output"
	code_of 1 pt-check --json "$(at run 2)" again.h5 --shape 1,17 --batch batch.u16
	jq -e '.verdict == "wrong" and (.findings | length) == 1' <<<"$output"
	code_of 2 pt-check "$(at run 1)" "$(at run 3)" --shape 1,17 --batch batch.u16
	says 'steps 1 and 3 of the optimizer: only a single step can be checked'
}

@test "without a batch: moments and update, but no gradient" {
	make_window
	steps run 2
	reports 0 'moments 12 of 12 within bounds' pt-check "$(at run 1)" "$(at run 2)"
	says 'update  12 of 12 within bounds'
	says 'verdict: nothing is wrong that shows without a batch'
	not grep -q '^grads' <<<"$output"
	reports 1 'exp_avg_sq: as if beta2 were 0.99 instead of 0.9' pt-check "$(at run 1)" "$(at run 2)" --beta2 0.9
}

@test "nothing to compare ends with 2" {
	make_window
	steps run 2
	pt-ckpt -q strip -o after.h5 "$(at run 2)"
	reports 2 'after.h5 has no moments of AdamW' pt-check --shape 1,17 "$(at run 1)" after.h5 --batch batch.u16
	reports 2 'verdict: nothing could be checked' pt-check "$(at run 1)" after.h5
	pt-ckpt -q strip -o before.h5 "$(at run 1)" # nor is it a first step from zero moments
	steps run 4 --resume auto
	reports 2 'before.h5 has no moments' pt-check before.h5 "$(at run 4)" --shape 1,17 --batch batch.u16
}

@test "--json prints JSON with every tensor; --quiet prints the verdict" {
	make_window
	steps run 2
	check --json --batch batch.u16 >right.json
	jq -e '.verdict == "right" and .findings == [] and (.tensors | length) == 12 and .optimizer_step == 2 and
		.reference == "float64" and .scale_checked == false' right.json
	jq -e 'all(.tensors[]; .finite and .changed and .cause == null and (.gradient.wrong or .moments.wrong or
		.update.wrong | not) and .gradient.residual <= .gradient.bound)' right.json
	code_of 1 check --json --batch batch.u16 --grad-norm 50
	jq -e '.verdict == "wrong" and (.findings | length) == 1 and .findings[0].tensors == 0 and
		(.findings[0].text | startswith("scale: grad_norm 50 was logged"))' <<<"$output"
	code_of 0 check -q --batch batch.u16
	[ "$output" = 'verdict: the step is right, but its scale was not checked' ]
	code_of 1 check -q --batch batch.u16 --grad-norm 50
	[ "$output" = 'verdict: wrong: 1 finding' ]
}

@test "without --precision, a step in bf16 is not decided" {
	make_window
	steps run 2 --dtype bf16
	reports 2 'verdict: not decided: right if the run computed in bf16' check --batch batch.u16
	says 'note    the gradients are beyond the bounds of fp32, but within the bounds of bf16'
	code_of 2 check --json --batch batch.u16 --report step.md
	jq -e '.verdict == "not decided" and all(.findings[]; .note) and all(.tensors[]; .gradient.wrong | not)' <<<"$output"
	grep -qF '**not decided**: right if the run computed in bf16, wrong if it computed in fp32' step.md
	grep -qF 'unknown precision' step.md
	reports 1 'verdict: wrong: ' check --batch batch.u16 --precision fp32
	code_of 0 check --batch batch.u16 --precision autocast
	code_of 1 check --batch batch.u16 --lr 5 # the update is wrong in any precision
}

@test "usage" {
	make_window
	steps run 2
	reports 64 'give two checkpoints' pt-check
	reports 64 '--batch took all 3 files; give the checkpoints first' pt-check --batch batch.u16 before after
	reports 64 "precision: 'fp16' is not supported; use autocast" pt-check -p fp16 a b
	echo '{"model_type": "llama"}' >config.json
	reports 65 "a model's config.json is for --model-config" pt-check --config config.json a b
	code_of 64 pt-check "$(at run 1)"
	code_of 64 pt-check "$(at run 1)" "$(at run 2)" "$(at run 2)"
	code_of 64 check --batch batch.u16 --precision fp8
	code_of 64 check --batch batch.u16 --lr nan
	reports 64 'plain integers need --shape' pt-check "$(at run 1)" "$(at run 2)" --batch batch.u16
	for shape in '' 0 1,0 -1,17 1x17 1,17,1,1,1 99999999999999999999; do
		code_of 64 check --shape="$shape" --batch batch.u16
	done
	reports 65 'batch.u16: ' check --shape 2,17 --batch batch.u16
	code_of 65 check --shape 1073741824,1073741824 --batch batch.u16
	code_of 74 check --batch no.txt
	# a batch is read before the checkpoints, which may be large
	echo no >no.u16
	reports 65 'no.u16: ' pt-check no-before no-after --shape 1,17 --batch no.u16
}

@test "hostile batches are rejected by name" {
	make_window
	steps run 2
	refuse() { # FILE: expects that it is rejected as a batch
		code_of "${2:-65}" check --batch "$1"
		[ "$(messages)" -eq 1 ]
		says "$1"
		not grep -qE '^(before|batch|verdict)' <<<"$output"
	}
	npy '<u2' '1, 17' <batch.u16 >good.npy
	for n in 0 3 6 9 11 40 70 79 "$(($(stat -c %s good.npy) - 1))"; do # truncated
		head -c "$n" good.npy >cut.npy
		refuse cut.npy
	done
	{ cat good.npy && printf x; } >long.npy
	refuse long.npy
	printf '%s\n' '<f4' '>i8' '<i3' '<U2' '<i' '' '|O' >types
	while read -r type; do
		npy "$type" '1, 17' <batch.u16 >type.npy
		refuse type.npy
	done <types
	printf '%s\n' '0, 17' '-1, 17' '17' '1, 18' '4611686018427387904, 4' '1073741824, 1073741824' \
		'1, 1, 1, 1, 17' '' '1e3,' '99999999999999999999,' 'x' >shapes
	while read -r shape; do
		npy '<u2' "$shape" <batch.u16 >shape.npy
		refuse shape.npy
	done < <(grep -vx 17 shapes)
	sed 's/False/True /' good.npy >fortran.npy
	refuse fortran.npy
	{ printf '\x93NUMPY\x01\x00\xff\xff' && cat good.npy; } >header.npy
	refuse header.npy
	{ head -c 20 good.npy && head -c 30 /dev/zero && tail -c +51 good.npy; } >nul.npy
	refuse nul.npy
	head -c 34 /dev/zero >zeros
	for name in zeros.npy zeros.pt zeros.safetensors zeros.txt; do
		cp zeros $name
		refuse $name
	done
	: >empty.u16
	refuse empty.u16
	safetensors '{"tokens":{"dtype":"F32","shape":[1,17],"data_offsets":[0,68]}}' < <(as 4 window) >type.safetensors
	refuse type.safetensors
	safetensors '{"tokens":{"dtype":"I32","shape":[1,17],"data_offsets":[0,4000000000]}}' < <(as 4 window) >far.safetensors
	refuse far.safetensors
	safetensors '{"inputs":{"dtype":"I32","shape":[1,8],"data_offsets":[0,32]},"labels":{"dtype":"I32","shape":[1,9],"data_offsets":[32,68]}}' \
		< <(as 4 window) >shapes.safetensors
	refuse shapes.safetensors
	safetensors '{"inputs":{"dtype":"I32","shape":[1,8],"data_offsets":[0,32]},"labels":{"dtype":"I32","shape":[1,8],"data_offsets":[32,64]}}' \
		< <(as 4 text.txt | head -c 64) >labels.safetensors
	refuse labels.safetensors
	# tokens beyond the model's vocabulary
	{ head -c 32 batch.u16 && printf '\x00\x01'; } >beyond.u16
	reports 65 "--batch: token 256 is outside the model's vocabulary of 256 tokens" check --batch beyond.u16
	{ as 8 window | head -c 128 && printf '\xff\xff\xff\xff\xff\xff\xff\x7f'; } >huge.i64
	refuse huge.i64
	{ as 8 window | head -c 64 && printf '\xff\xff\xff\xff\xff\xff\xff\xff' && as 8 window | head -c 64; } >negative.i64
	refuse negative.i64
	# a missing or unreadable file
	mkdir folder.npy
	refuse folder.npy 74
	refuse nowhere.npy 74
	# sequences of different lengths
	npy '<u2' '9,' < <(head -c 18 batch.u16) >short.npy
	reports 65 'short.npy: sequences have 8 positions, but 16 in the preceding files' check --batch batch.u16 short.npy
}

@test "checkpoints that do not belong together, or are damaged" {
	make_window
	steps run 2
	steps other 2 --layers 2
	steps wide 2 --dim 32
	steps gpt2 2 --arch gpt2
	reports 65 ' is missing, but ' pt-check "$(at run 1)" "$(at other 2)"
	reports 65 'has 21 tensors, but run/' pt-check "$(at other 1)" "$(at run 2)"
	reports 65 ': the shape of ' pt-check "$(at run 1)" "$(at wide 2)"
	code_of 65 pt-check "$(at run 1)" "$(at gpt2 2)"
	damage "$(at run 2)" bad.h5 $(($(stat -c %s "$(at run 2)") / 2))
	reports 65 'bad.h5' pt-check "$(at run 1)" bad.h5
	head -c 3000 "$(at run 2)" >cut.h5
	code_of 65 pt-check "$(at run 1)" cut.h5
	code_of 65 pt-check text.txt cut.h5
	says text.txt
	code_of 74 pt-check nowhere "$(at run 2)"
	code_of 74 pt-check "$(at run 1)" nowhere
	says nowhere
}

@test "attention within documents, and positions that restart" {
	printf 'aaaa.bbb bbbbb.cc' >window
	export PT_DATA=window.h5
	pt-prepare -q -t byte -f 0 --separator . window -o window.h5
	as 2 window >batch.u16
	steps run 2 --packing documents
	reports 0 'attention within documents' check --batch batch.u16 --document-end 46
	code_of 1 check --batch batch.u16
	# the same, from positions
	{ as 4 window | head -c 64 && as 4 window | tail -c 64 && for p in 0 1 2 3 4 0 1 2 3 4 5 6 7 8 9 0; do
		printf '%b\0\0\0' "\\x$p"
	done; } >all
	safetensors '{"inputs":{"dtype":"I32","shape":[1,16],"data_offsets":[0,64]},"labels":{"dtype":"I32","shape":[1,16],"data_offsets":[64,128]},"positions":{"dtype":"I32","shape":[1,16],"data_offsets":[128,192]}}' \
		<all >all.safetensors
	reports 0 'attention within documents' check --batch all.safetensors
}

@test "the last label of a document may be its end token, which is not an input" {
	printf 'aaaa.bbb bbbbb.cc' >window
	export PT_DATA=window.h5
	pt-prepare -q -t byte -f 0 --separator . window -o window.h5
	as 2 window >batch.u16
	steps run 2 --packing documents
	printf 'aaa.!bb bbbbb.!c' >labels # ! follows each dot, instead of the next document's first letter
	{ as 4 window | head -c 64 && as 4 labels && for p in 0 1 2 3 4 0 1 2 3 4 5 6 7 8 9 0; do
		printf '%b\0\0\0' "\\x$p"
	done; } >all
	safetensors '{"inputs":{"dtype":"I32","shape":[1,16],"data_offsets":[0,64]},"labels":{"dtype":"I32","shape":[1,16],"data_offsets":[64,128]},"positions":{"dtype":"I32","shape":[1,16],"data_offsets":[128,192]}}' \
		<all >ends.safetensors
	code_of 1 check --batch ends.safetensors # this run had other labels
	says '16 targets, attention within documents'
	# pt-train's kernels cannot measure the bounds: their targets are always the next tokens
	code_of 1 check --batch ends.safetensors --json
	jq -e 'all(.tensors[]; .gradient.bound < 1e-4)' <<<"$output"
	reports 64 'some targets are not the next tokens' check --batch ends.safetensors --reference fp32
}

@test "two runs of one step, without a batch" {
	make_window
	steps run 2
	steps again 2 --seed 1
	tiny_on 2 "${ONE[@]}" -b 2 -o ranks --steps 2 --fsdp 2 >/dev/null # the same mean
	steps theta 2 --rope-theta 500000
	for other in again ranks; do
		reports 0 'verdict: ' pt-check "$(at run 2)" "$(at $other 2)"
	done
	reports 1 'verdict: wrong: ' pt-check "$(at run 2)" "$(at theta 2)"
	reports 0 'the same, but their scale was not checked' pt-check --two-runs "$(at run 1)" "$(at ranks 1)"
	norm=$(logged grad_norm 1 run)
	code_of 0 pt-check --two-runs "$(at run 1)" "$(at ranks 1)" --grad-norm "$norm,$norm"
	[[ $output == *'of both runs are the same' ]]
	code_of 0 pt-check --two-runs "$(at run 1)" "$(at ranks 1)" --clip 0
	[[ $output == *'of both runs are the same' ]]
	code_of 1 pt-check --two-runs "$(at run 1)" "$(at ranks 1)" --dp 2 --grad-norm 1.25,2.5
	says '2.5 by the second: 2 times: not divided by the 2 data-parallel ranks'
	code_of 0 pt-check --two-runs "$(at run 1)" "$(at ranks 1)" --grad-norm 1.2,1.3
	code_of 64 pt-check --two-runs "$(at run 1)" "$(at ranks 1)" --grad-norm 1
	code_of 64 check --batch batch.u16 --grad-norm 1,2
	code_of 1 pt-check --two-runs "$(at run 1)" "$(at theta 1)"
	code_of 64 pt-check --two-runs "$(at run 1)" "$(at ranks 1)" --batch batch.u16
}

@test "frozen tensors and scaled learning rates, from the run's files and from options" {
	make_window
	steps frozen 2 --freeze tok_ --freeze 'layers\.0\.attention'
	steps rates 2 --lr-scale-of norm=4 --lr-scale-of wq=0.5
	for run in frozen rates; do
		code_of 0 pt-check --shape 1,17 "$(at $run 1)" "$(at $run 2)" --batch batch.u16 \
			--grad-norm "$(logged grad_norm 2 $run)"
		says 'verdict: the step is right'
		not grep -q '^note' <<<"$output"
		code_of 0 pt-check "$(at $run 1)" "$(at $run 2)"
	done
	# without the options in the checkpoint
	for batch in '' '--batch batch.u16 --shape 1,17'; do
		# shellcheck disable=SC2086 # words
		code_of 1 pt-check "$(at frozen 1)" "$(at frozen 2)" $batch --freeze ''
		says 'no gradient: it is not trained (--freeze)'
	done
	reports 1 'is frozen (--freeze), but has a gradient' pt-check "$(at frozen 1)" "$(at frozen 2)" --freeze norm
	says 'is frozen (--freeze), but changed'
	code_of 1 pt-check "$(at rates 1)" "$(at rates 2)" --lr-scale-of norm=2 --lr-scale-of wq=0.5
	says 'learning rate 0.004 instead of 0.002'
	not grep -q 'wq' <<<"$output"
	reports 64 'freeze: ' pt-check "$(at rates 1)" "$(at rates 2)" --freeze '('
	reports 64 'matches no tensor' pt-check "$(at rates 1)" "$(at rates 2)" --lr-scale-of nothing=2
}

@test "unchanged parameters are a note, and a finding if --lr is above 0" {
	make_window
	steps run 2 --lr 0 --min-lr 0
	reports 0 'note    no parameter changed: a learning rate of 0' check --batch batch.u16
	reports 1 'finding no parameter changed, and the learning rate is 0.001' check --batch batch.u16 --lr 1e-3
}
