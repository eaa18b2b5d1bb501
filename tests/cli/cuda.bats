#!/usr/bin/env bats
# pt-train on a GPU: a real one if GPU=yes tests/run has begun this, or else an emulated one, the
# same kernels compiled for the CPU. What only that can do is not asked of a real one: to fail at
# a launch, to have so much memory, to be late with what it is asked for, to count who waits.
load helpers

setup() {
	gpu_setup
}

TWO=(--layers 2 --dim 32 --peak-flops 1e12)

on_gpu() { # OPTION...
	timeout -k 1 900 pt-train "${TINY[@]}" "${TWO[@]}" --device cuda "$@"
}

on_cpu() { # OPTION...
	tiny "${TWO[@]}" --device cpu "$@"
}

memory_of() { # NAME FILE: bytes of that line of a plan
	awk -v name="$1" '$0 ~ "^" name " +[0-9]" { sub(name, ""); print $1 }' "$2"
}

@test "fp32 follows the CPU, and nothing but kernels and copies touches the GPU's memory" {
	make_shard
	unset PT_EMU_GUARD
	on_cpu -n 5 --no-ckpt -o cpu >/dev/null
	on_gpu -n 5 --no-ckpt -o gpu >/dev/null
	pt-compare --rtol 1e-4 cpu gpu
	run pt-compare cpu gpu
	[[ $output == *"matmuls: CPU"*"$(gpu_name)"* ]] # other arithmetic, and that is said
}

@test "losses stay within 1e-4 of the CPU's, of GPT-2 and of Llama with shared keys" {
	make_shard
	local steps=20
	[ "${LONG:-no}" = no ] || steps=50
	for arch in "gpt2 -n $steps" "llama --kv-heads 1 -n $steps"; do
		# shellcheck disable=SC2086
		on_cpu -m 8 -a $arch --eval-every 0 --no-ckpt --overwrite -o cpu >/dev/null
		# shellcheck disable=SC2086
		on_gpu -m 8 -a $arch --eval-every 0 --no-ckpt --overwrite -o gpu >/dev/null
		pt-compare --rtol 1e-4 cpu gpu
	done
}

@test "recomputing, plain kernels and a resume change no bit, in bf16 and fp16" {
	make_shard
	for dtype in $(printf '%s\n' bf16 fp16 | spared 1); do
		local o=(--dtype "$dtype" --dropout 0.1 -n 4 --decay-steps 4) others=4
		[ $dtype = bf16 ] && ! spare_starts || others=1
		on_gpu "${o[@]}" --overwrite -o one >/dev/null
		while read -r other; do
			# shellcheck disable=SC2086
			on_gpu "${o[@]}" $other --overwrite -o two >/dev/null
			cmp one/checkpoints/latest.h5 two/checkpoints/latest.h5
		done < <(printf '%s\n' '--recompute full' '--recompute matmuls' '--recompute selective' '--zero 3' |
			some_of $others)
		on_gpu "${o[@]}" --kernels ref --overwrite -o two >/dev/null
		run pt-compare one two
		[[ $output =~ loss' '+identical.*grad_norm' '+identical ]]
		on_gpu "${o[@]}" -n 2 --overwrite -o two >/dev/null
		on_gpu "${o[@]}" --resume auto -o two >/dev/null
		cmp one/checkpoints/latest.h5 two/checkpoints/latest.h5
	done
}

@test "what is offloaded changes no bit, whichever stream is late" {
	make_shard
	local o=(-a llama -n 4 --decay-steps 4 --dtype bf16 --eval-every 0
		--sample-every 3 --sample-tokens 3)
	same_as_one() { # LATE OPTION...
		PT_EMU_LAZY=$1 on_gpu "${o[@]}" "${@:2}" --overwrite -o two >/dev/null
		cmp one/checkpoints/latest.h5 two/checkpoints/latest.h5
	}
	on_gpu "${o[@]}" -o one >/dev/null
	while read -r late options; do
		# shellcheck disable=SC2086
		same_as_one "$late" $options
	done < <(spared 2 <<-END
		yes --offload all --offload-to .
		yes --offload params
		first --offload optimizer
		first --offload params --zero 3 --recompute full
		first --offload params --gather-dtype fp32
		first --offload grads
		yes --offload all
		first --offload params --zero 3 --offload-to .
		no --offload grads --offload-to .
	END
	)
	# A run goes on with or without.
	on_gpu "${o[@]}" -n 2 --offload optimizer --overwrite -o two >/dev/null
	PT_EMU_LAZY=yes on_gpu "${o[@]}" --resume auto --offload params -o two >/dev/null
	cmp one/checkpoints/latest.h5 two/checkpoints/latest.h5
	# Updates that overflow leave the copies of parameters as they are.
	o+=(--dtype fp16 --loss-scale 1e12)
	on_gpu "${o[@]}" --overwrite -o one >/dev/null
	same_as_one no --offload params
}

@test "the state of local SGD in the host's memory changes no bit, and the plan knows it" {
	make_shard
	local o=(-a llama -m 1 -n 5 --eval-every 0 --ckpt-wait --edit-workers 1 --edit-sync-interval 2
		--edit-outer sgd --edit-outer-momentum 0.9 --edit-wire int8) planned taken
	on_gpu "${o[@]}" -o one >/dev/null
	while read -r more; do
		# shellcheck disable=SC2086
		PT_EMU_LAZY=${more%% *} on_gpu "${o[@]}" ${more#* } --overwrite -o two >rows
		cmp one/checkpoints/latest.h5 two/checkpoints/latest.h5
	done < <(printf '%s\n' 'yes --edit-offload' 'first --edit-offload' 'yes --offload params' | spared 1)
	on_gpu "${o[@]}" --edit-sync-delay 1 --overwrite -o one >/dev/null
	PT_EMU_LAZY=yes on_gpu "${o[@]}" --edit-sync-delay 1 --edit-offload --overwrite -o two >rows
	cmp one/checkpoints/latest.h5 two/checkpoints/latest.h5
	pt-train "${TINY[@]}" "${TWO[@]}" --device cuda "${o[@]}" --edit-sync-delay 1 --edit-offload --dry-run >plan
	# anchor, momentum, residual, and what is under way
	[ "$(memory_of pinned plan)" -ge $((4 * $(memory_of parameters plan))) ]
	planned=$(memory_of 'on the GPU' plan)
	taken=$(sed -n 's/^step=5 .* mem=\([^ ]*\).*/\1/p' rows)
	echo "planned $planned, taken $taken"
	awk -v p="$planned" -v t="$taken" -v kernels=100663296 \
		'BEGIN { p -= kernels; t -= kernels; exit !(p > 0 && t > 0.97 * p && t <= 1.03 * p) }'
}

@test "virtual slices and chunks are computed as such" {
	make_shard
	local o=(-n 4 --eval-every 0 --virtual 'tp=2,cp=2')
	on_cpu "${o[@]}" -o cpu >/dev/null
	on_gpu "${o[@]}" -o gpu >/dev/null
	pt-compare --rtol 1e-4 cpu gpu
	on_gpu "${o[@]}" --dtype bf16 -o narrow >/dev/null
}

@test "less precision is near the CPU's of the same" {
	make_shard
	for dtype in bf16:2e-3 fp16:5e-4 float8:1e-2; do
		local o=(--dtype "${dtype%:*}" --no-float8-skip-ends -n 6 --eval-every 0 --no-ckpt)
		on_cpu "${o[@]}" --overwrite -o cpu >/dev/null
		on_gpu "${o[@]}" --overwrite -o gpu >/dev/null
		pt-compare --rtol ${dtype#*:} cpu gpu
	done
}

@test "the memory is that of the plan, which needs no GPU" {
	make_shard
	local kernels=100663296 way planned taken
	for offload in none optimizer grads params all; do
		local o=(-a llama -m 1 --dtype bf16 --dim 64 --no-ckpt -n 2 --offload "$offload")
		[[ $offload == @(params|all) ]] || o+=(--sample-every 1 --sample-tokens 1)
		[ $offload != none ] || o+=(--peak-flops measure)
		PT_CUDA=$PWD/nowhere.so pt-train "${TINY[@]}" "${TWO[@]}" --device cuda "${o[@]}" \
			--dry-run >plan.$offload
		[[ $offload == @(none|all) ]] || ! spare_starts || continue
		on_gpu "${o[@]}" --overwrite -o run >rows
		planned=$(($(memory_of 'on the GPU' plan.$offload) - kernels))
		taken=$(sed -n 's/^step=2 .* mem=\([^ ]*\).*/\1/p' rows)
		echo "$offload: planned $planned, taken $((taken - kernels))"
		awk -v p="$planned" -v t=$((taken - kernels)) \
			'BEGIN { exit !(p > 0 && t > 0.97 * p && t <= 1.03 * p) }'
		for way in read written; do
			planned=$(awk -v key=$way/step '$1 == key { print $2 }' plan.$offload)
			taken=$(sed -n "s/^step=2 .* offload_$way=\([^ ]*\).*/\1/p" rows)
			[ $offload = none ] || [ "$(printf %.6g "$planned")" = "$(printf %.6g "$taken")" ]
		done
	done
	PT_CUDA=$PWD/nowhere.so pt-train "${TINY[@]}" "${TWO[@]}" --device cuda "${o[@]}" --offload-to . \
		--dry-run >plan.file
	[ "$(memory_of 'on the GPU' plan.file)" -eq "$(memory_of 'on the GPU' plan.all)" ]
	[ "$(memory_of file plan.file)" -eq "$(memory_of pinned plan.all)" ]
	grep -q '^pinned .* buffers to and from the file$' plan.file
	grep -q '^parameters .*, and a copy of 16 bits$' plan.none
	PT_CUDA='' pt-train "${TINY[@]}" --device cuda --dtype bf16 --fsdp 2 --dry-run >plan.fsdp
	grep -q '^parameters .* fp32$' plan.fsdp
	grep -q '^# memory of each rank, on its GPU$' plan.fsdp
	grep -q '^# logits with 17 columns .*--vocab-multiple 128' plan.none
	[ "$(memory_of pinned plan.params)" -gt "$(memory_of pinned plan.optimizer)" ]
	[ "$(memory_of pinned plan.all)" -gt "$(memory_of pinned plan.params)" ]
	[ "$(memory_of 'on the GPU' plan.grads)" -lt "$(memory_of 'on the GPU' plan.optimizer)" ]
	[ "$(memory_of 'on the GPU' plan.optimizer)" -lt "$(memory_of 'on the GPU' plan.none)" ]
	[ "$(memory_of 'on the GPU' plan.params)" -lt "$(memory_of 'on the GPU' plan.optimizer)" ]
	# More than it may have, and more than there is.
	for more in '--dim 512 --memory 1M' '--dim 8192 --heads 64 --layers 64'; do
		# shellcheck disable=SC2086
		run on_gpu -n 2 $more --no-ckpt -o small
		[ "$status" -eq 1 ]
		[[ $output == *'out of memory'*'--dry-run'*'--micro-batch'* ]]
	done
	real_gpu && return
	PT_EMU_PINNED=40000000 run on_gpu "${o[@]}" --dim 1024 --heads 8 -o run --overwrite
	[ "$status" -eq 1 ]
	[[ $output == *'of pinned memory'*'--offload optimizer'* ]]
	PT_EMU_MEMORY=150000000 run on_gpu -n 2 --dim 512 --no-ckpt -o small
	[ "$status" -eq 1 ]
	[[ $output == *'out of memory'*'--dry-run'*'--micro-batch'* ]]
}

@test "what a GPU cannot do, or a CPU, is refused" {
	make_shard
	run on_gpu --cuda-graph --edit-workers 1 --edit-sync-interval 2 --edit-sync-delay 1 --edit-outer sgd -o run
	[ "$status" -eq 64 ]
	[[ $output == *'--cuda-graph cannot be used with --edit-sync-delay'* ]]
	run on_gpu --heads 1 --dim 264 -o run
	[ "$status" -eq 64 ]
	[[ $output == *'heads of more than 256 channels'* ]]
	run on_gpu -n 3 --profile 4:5 -o run
	[ "$status" -eq 64 ]
	[[ $output == *'the run has only 3 steps'* ]]
	run on_cpu --numerics fast -o run
	[ "$status" -eq 64 ]
	run on_cpu --profile 1:2 -o run
	[ "$status" -eq 64 ]
	run on_cpu --cuda-graph -o run
	[ "$status" -eq 64 ]
	run on_gpu --cuda-graph --offload params --offload-to . -o run
	[ "$status" -eq 64 ]
	[[ $output == *'--cuda-graph cannot be used with --offload-to'* ]]
	PT_CUDA=$PWD/nowhere.so run on_gpu -o other
	[ "$status" -eq 1 ]
	[[ $output == *nowhere.so* ]]
	PT_CUDA=$PWD/nowhere.so pt-train "${TINY[@]}" -n 1 -o auto >/dev/null # is a CPU
	grep -q 'device = cpu' auto/journal.txt
}

@test "steps as a graph change no bit, with evaluations and a profile in between" {
	make_shard
	local all=('-a llama --virtual tp=2,cp=2 -m 4 --dtype float8 --no-float8-skip-ends --dropout 0.1'
		'--dtype fp16 --loss-scale 1e9 --loss-scale-window 1 --zero 3 -m 8 --dropout 0.1'
		'--offload all -m 4 --dtype bf16 --virtual tp=2')
	local lates=yes
	! spare_starts || all=("${all[0]}" "${all[2]}")
	if [ "${LONG:-no}" = yes ]; then
		all+=('' '-m 8 --recompute full --dropout 0.1' '--dtype bf16 -m 8'
			'--offload optimizer' '--offload grads -m 4' '--offload params --tile 2')
		lates='no yes first'
	fi
	for more in "${all[@]}"; do
		local o=(-n 7 --eval-every 2 --eval-windows 4 --sample-every 4 --sample-tokens 3)
		# shellcheck disable=SC2206
		o+=($more --overwrite)
		on_gpu "${o[@]}" -o one >/dev/null
		for late in $lates; do
			PT_EMU_LAZY=$late on_gpu "${o[@]}" --cuda-graph -o two >/dev/null
			cmp one/checkpoints/latest.h5 two/checkpoints/latest.h5
			cmp <(grep -o ' offload_.*' one/journal.txt) <(grep -o ' offload_.*' two/journal.txt)
		done
	done
	pt-train "${TINY[@]:1}" "${TWO[@]}" "${o[@]}" --device cuda --cuda-graph --profile 5:6 -o two \
		>/dev/null 2>said
	cmp one/checkpoints/latest.h5 two/checkpoints/latest.h5
	grep -q '^ *attn_bwd ' said # and in these steps the kernels are seen
	# A bad number of such a step is found, as without.
	local bad=(-n 14 --lr 3e8 --weight-decay 0 --clip 0 --warmup 0 --lr-schedule constant)
	run on_gpu "${bad[@]}" --eval-every 0 -o three
	[[ $output =~ 'step '([4-9]|1[0-4])': loss '.*'first non-finite value: '[^,]*', element '[0-9]+ ]]
	said=${BASH_REMATCH[0]}
	run on_gpu "${bad[@]}" --eval-every 0 --cuda-graph -o four
	[ "$status" -eq 1 ]
	[[ $output == *"$said"* ]]
	real_gpu && return
	# In the others nobody asks for them.
	PT_EMU_FAIL=3000 run on_gpu -n 500 --cuda-graph --eval-every 0 -o five
	[ "$status" -eq 1 ]
	[[ $output == *cudaErrorIllegalAddress*$'\n  graph\n'* ]]
}

@test "float8 casts each matrix once, and finds most largest numbers on the way" {
	make_shard
	pt-train "${TINY[@]:1}" "${TWO[@]}" --layers 3 -m 8 --dtype float8 --device cuda \
		--eval-every 0 --no-ckpt -n 3 --profile 2:2 -o run >/dev/null 2>said
	calls() {
		awk -v name="$1" '$1 == name { n = $2 } END { print n + 0 }' said
	}
	# In one block: h1, o, h2, y and their gradients, of which q, k and v have one each; six weights.
	[ "$(calls round_scaled)" -eq 16 ]
	[ "$(calls amax)" -eq 10 ] # o, dq, dk, dv, and the weights
	[ "$(calls zero)" -eq 12 ] # of the weights in one go
	[ "$(calls bias_fwd)" -eq 0 ]
	# The two layers in bf16 have one matmul for q, k and v.
	[ "$(calls linear_bwd_w)" -eq 15 ] # and nothing is transposed for them
	[ $(($(calls linear_bwd_x) + $(calls linear_gelu_bwd))) -eq 15 ]
}

@test "a step waits for its result, and for nothing else" {
	! real_gpu || skip 'a real GPU does not count who waits for it'
	make_shard
	export PT_EMU_LAZY=yes PT_EMU_WAITS=yes
	waits() { # STEPS OPTION...; measuring the peak would wait as often as there is time for
		local n=$1
		shift
		timeout -k 1 900 pt-train "${TINY[@]}" -m 8 --device cuda --peak-flops 1e12 --eval-every 0 --no-ckpt \
			--overwrite -o run -n "$n" "$@" 2>&1 >/dev/null |
			sed -n 's/.* \([0-9]*\) waits$/\1/p'
	}
	for more in '' '--cuda-graph --dtype float8 --no-float8-skip-ends --dropout 0.1'; do
		# shellcheck disable=SC2086
		short=$(waits 4 $more) long=$(waits 9 $more)
		echo "$short waits in 4 steps, $long in 9"
		[ $((long - short)) -eq 5 ]
	done
}

@test "fp16 skips the steps that a CPU skips" {
	make_shard
	local o=(--dtype fp16 --loss-scale 1e9 -n 12 --eval-every 0 --no-ckpt)
	on_cpu "${o[@]}" -o cpu >/dev/null
	on_gpu "${o[@]}" -o gpu >/dev/null
	grep -q 'gradients overflow' cpu/journal.txt
	cmp <(grep -o '^.*gradients overflow.*' cpu/journal.txt | sed 's/.*step=/step=/') \
		<(grep -o '^.*gradients overflow.*' gpu/journal.txt | sed 's/.*step=/step=/')
	pt-compare --rtol 5e-4 cpu gpu
}

@test "a kernel that fails is named with its shapes, a bad number is found" {
	make_shard
	run on_gpu -n 10 --lr 1e30 --clip 0 --warmup 0 -o bad
	[ "$status" -eq 1 ]
	[[ $output == *'first non-finite value: '* ]]
	real_gpu && return
	PT_EMU_FAIL=200 run on_gpu -n 3 -o run
	[ "$status" -eq 1 ]
	[[ $output == *cudaErrorIllegalAddress* ]]
	[[ $output == *PT_CUDA_SYNC* ]]
}

@test "the table of kernels, and the algorithms of matmuls" {
	make_shard
	on_gpu -n 3 --profile 2:3 -o run >rows 2>err || cat err
	pt-train "${TINY[@]:1}" "${TWO[@]}" --device cuda -n 3 --profile 2:9 -o told >/dev/null 2>err
	grep -q 'kernels of steps 2 to 3:' err # all that there were
	grep -q '^ *attn_fwd ' err
	pt-train "${TINY[@]:1}" "${TWO[@]}" --device cuda --resume told -n 4 --profile 2:4 -o on >/dev/null 2>err
	grep -q 'kernels of steps 4 to 4:' err
	grep -q '^ *linear_bwd_w ' err
	grep -qE '^step=3 .* dt_forward=[0-9.e-]*[1-9][0-9.e-]* dt_backward=[0-9.e-]*[1-9]' rows
	[ -s run/algorithms ]
	on_gpu -n 3 --gemm-algorithms run/algorithms -o again >/dev/null
	cmp run/algorithms again/algorithms
	cmp run/checkpoints/latest.h5 again/checkpoints/latest.h5
	# Whether GELU is the last step of a product has been measured: it is kept too.
	local o=(-n 3 --dtype bf16 --numerics fast --no-ckpt)
	on_gpu "${o[@]}" -o fast >fast.rows
	[ "$(grep -cE ' bf16 [34] 0 [0-9]+ 1 ' fast/algorithms)" -ge 2 ]
	on_gpu "${o[@]}" --gemm-algorithms fast/algorithms -o slow >slow.rows
	cmp fast/algorithms slow/algorithms
	cmp <(grep -o 'loss=.* lr' fast.rows) <(grep -o 'loss=.* lr' slow.rows)
	echo 'nonsense' >bad
	run on_gpu -n 3 --gemm-algorithms bad -o other
	[ "$status" -ne 0 ]
	[[ $output == *bad* ]]
	# A run that goes on has its own, however its checkpoint is called.
	cp bad run/algorithms
	export PT_DATA=$PWD/data.h5
	cd run
	for checkpoint in $(printf '%s\n' checkpoints . checkpoints/latest.h5 ../run | spared 1); do
		run on_gpu -n 4 --resume $checkpoint -o other
		[ "$status" -eq 65 ]
		[[ $output == *run/algorithms:* ]]
	done
}

@test "the manual has every switch of PT_LAB_OFF, and the lab of GPUs no other" {
	local root=$BATS_TEST_DIRNAME/../.. names name
	names=$(sed -n 's/^\t{"\(.*\)", LAB_.*/\1/p' "$root/kernels/cuda/lab.cu")
	[ "$(wc -l <<<"$names")" -ge 12 ]
	for name in $names; do
		grep -qE "^\.It Cm (.* )?${name//-/\\\\-}( |$)" "$root/man/pt-config.5" || { echo "not in the manual: $name"; false; }
	done
	for name in $(sed -n 's/^PT_LAB_OFF=\([a-z0-9-]*\) .*/\1/p' "$root/tests/bench/gpu_lab"); do
		grep -qx "$name" <<<"$names" || { echo "no switch $name"; false; }
	done
}

@test "PT_LAB_ON: our own matmuls have cuBLASLt's bits, and their epilogues those of separate kernels" {
	make_shard
	local o=("${TINY[@]:1}" --device cuda --dim 64 --ffn-dim 264 -T 48 --dtype bf16 --vocab-multiple 264 -n 2) gelu
	trained() { # ARCHITECTURE PT_LAB_ON
		PT_LAB_ON=$2 pt-train "${o[@]}" -a "$1" -o "$1-$2" --profile 2:2 >/dev/null 2>"$1-$2.err"
	}
	runs() { # ARCHITECTURE PT_LAB_ON KERNEL...
		for kernel in "${@:3}"; do grep -q "^ *$kernel " "$1-$2.err"; done
	}
	same() { # ARCHITECTURE NAMES NAMES
		cmp "$1-$2/checkpoints/latest.h5" "$1-$3/checkpoints/latest.h5"
	}
	# (the emulated cuBLASLt adds in the order of k too; its GELU' multiplies what is not rounded)
	trained llama ''
	trained llama matmul
	same llama '' matmul
	gelu=matmul,matmul-gelu
	trained gpt2 matmul
	trained gpt2 $gelu
	trained gpt2 $gelu,matmul-columns
	runs gpt2 $gelu linear_gelu_fwd linear_gelu_bwd
	same gpt2 matmul $gelu
	same gpt2 matmul $gelu,matmul-columns
	trained llama matmul-xent
	trained llama matmul,matmul-xent
	runs llama matmul-xent softmax_tiles
	runs llama matmul,matmul-xent linear_xent
	same llama matmul-xent matmul,matmul-xent
	rm -r llama-
	o+=(--experts 4 --experts-per-token 2 --expert-dim 64)
	trained llama ''
	trained llama groups
	runs llama groups groups_fwd_wgmma groups_bwd_x_wgmma
	same llama '' groups
	PT_LAB_ON=matmul,nothing run on_gpu -n 1 -o other
	[ "$status" -eq 64 ]
	[[ $output == *"PT_LAB_ON: 'nothing'"* ]]
}

@test "PT_LAB_OFF leaves out what makes it quick, and no bit changes" {
	make_shard
	local o=("${TINY[@]:1}" --device cuda --dim 80 -T 4 --zero 3 --dtype bf16 -n 1)
	pt-train "${o[@]}" -o quick >/dev/null
	PT_LAB_OFF=sumsq,amax-block,bias,rope,attn-first,attn-item,attn-store,attn-ahead,attn-three,norm-loads pt-train "${o[@]}" -o plain >/dev/null
	cmp quick/checkpoints/latest.h5 plain/checkpoints/latest.h5
	# Those that gpu_lab measures exist; and all of them at once.
	local all
	all=$(sed -n 's/^PT_LAB_OFF=\([a-z0-9-]*\) .*/\1/p' "$BATS_TEST_DIRNAME/../bench/gpu_lab" | paste -sd ,)
	[[ $all == attn-item,* ]]
	PT_LAB_OFF=$all on_gpu -n 1 -o each >/dev/null
	PT_LAB_OFF=all on_gpu -n 1 -o none >/dev/null
	cmp each/checkpoints/latest.h5 none/checkpoints/latest.h5
	PT_LAB_ATTN_SPARE=3 PT_LAB_MATMUL_SPARE=2 pt-train "${o[@]}" -o spare >/dev/null
	cmp quick/checkpoints/latest.h5 spare/checkpoints/latest.h5
	PT_LAB_ATTN_SPARE=all run on_gpu -n 1 -o other
	[ "$status" -eq 64 ]
	[[ $output == *"PT_LAB_ATTN_SPARE: 'all'"* ]]
	PT_LAB_OFF=bias,nothing run on_gpu -n 1 -o other
	[ "$status" -eq 64 ]
	[[ $output == *"PT_LAB_OFF: 'nothing'"* ]]
}
