#!/usr/bin/env bats
# pt-train on several ranks that share a GPU, which is emulated unless GPU=yes tests/run has begun
# this: messages go by way of the program's memory, and every layout gives the bits of one rank.
load helpers

setup() {
	gpu_setup
}

# Fixed virtual degrees, so that layouts are comparable.
SMALL=(--layers 2 --dim 32 -b 4 -n 2 --eval-every 0 --log-every 2 --virtual "tp=2,cp=2"
	--peak-flops 1e12)

on_gpu() { # RANKS OPTION...
	local n=$1 launch=()
	shift
	[ "$n" -eq 1 ] || launch=(mpiexec -n "$n")
	timeout -k 1 900 "${launch[@]}" pt-train "${TINY[@]}" "${SMALL[@]}" --device cuda "$@" </dev/null
}

same_on() { # RANKS OPTION...: as the run `one`
	rm -rf test
	on_gpu "$@" -o test >/dev/null || {
		echo "$*: code $?"
		return 1
	}
	cmp one/checkpoints/latest.h5 test/checkpoints/latest.h5 || {
		echo "$*"
		return 1
	}
}

plan() { # OPTION...: bytes on the GPU, of one rank
	PT_CUDA=$PWD/nowhere.so on_gpu 1 "$@" --dry-run | awk '/^on the GPU/ { print $4 }'
}

sample_of() { # FILE: what follows its announcement
	sed -n '/a sample after step 3/{n;p}' "$1"
}

@test "two ranks along every axis give the bits of one; nobody else touches the GPU's memory" {
	make_shard
	on_gpu 1 -o one >/dev/null
	while read -r layout; do
		# shellcheck disable=SC2086
		same_on 2 $layout
	done < <(printf '%s\n' '--tp 2' '--dp 2' '--pp 2' '--fsdp 2 --zero 1' | spared 1)
	! spare_starts || return 0
	unset PT_EMU_GUARD # which takes long
	same_on 2 --cp 2
	same_on 2 --fsdp 2 --zero 3
	export PT_EMU_GUARD=no
	same_on 2 --cp 2 --cp-comm gather
}

@test "so do two ranks with attention within documents" {
	make_text >text.txt
	export PT_DATA=documents.h5
	pt-prepare -q --separator $'.\n' text.txt -o "$PT_DATA"
	SMALL+=(-T 64 --packing documents)
	on_gpu 1 -o one >/dev/null
	while read -r layout; do
		# shellcheck disable=SC2086
		same_on 2 $layout
	done < <(printf '%s\n' '--cp 2' '--pp 2' | spared 1)
	on_gpu 1 --packing stream -o stream >/dev/null
	not cmp -s one/checkpoints/latest.h5 stream/checkpoints/latest.h5
}

@test "so do four ranks along two, in bf16, of Llama with dropout" {
	make_shard
	SMALL+=(--dtype bf16 --dropout 0.1 -a llama --kv-heads 1)
	on_gpu 1 -o one >/dev/null
	same_on 4 --tp 2 --fsdp 2 --zero 3 --no-sp
	! spare_starts || return 0
	same_on 2 --fsdp 2 --zero 2 --fsdp-kind flat --offload optimizer
	PT_EMU_LAZY=yes same_on 2 --fsdp 2 --offload all
	[ "${LONG:-no}" != yes ] || PT_EMU_LAZY=first same_on 2 --dp 2 --offload all
	same_on 2 --pp 2 --pp-schedule zb-h1 --recompute full
	SMALL+=(--residual-dtype bf16)
	on_gpu 1 --overwrite -o one >/dev/null
	same_on 2 --pp 2 --recompute matmuls
	same_on 2 --cp 2 --cp-comm gather --recompute full
	# A rank that has nothing of a block's norms waits for what it has of the matrices.
	SMALL+=(--layers 3 --heads 1 --dim 2 -b 3 -m 1 --virtual "tp=1,cp=1")
	on_gpu 1 --overwrite -o one >/dev/null
	PT_EMU_LAZY=yes same_on 3 --fsdp 3 --offload all --offload-to .
}

@test "so do two with our own matmuls; recomputation changes no bit either" {
	make_shard
	SMALL+=(--dtype bf16 -a gpt2 --dim 64 --ffn-dim 272 --vocab-multiple 48)
	export PT_LAB_ON=all
	on_gpu 1 -o one >/dev/null
	same_on 2 --tp 2
	same_on 1 --recompute selective
	! spare_starts || return 0
	same_on 2 --cp 2
	same_on 2 --fsdp 2 --zero 3
}

@test "so do two of a mixture of experts; so do graphs and recomputation" {
	make_shard
	SMALL+=(-a llama --kv-heads 2 --experts 6 --experts-per-token 2 --expert-dim 24 --router-z-loss 0.01)
	SMALL+=(--shared-expert-dim 16 --shared-expert-gate)
	on_gpu 1 -o one >/dev/null
	same_on 2 --tp 2 --recompute full
	! spare_starts || return 0
	same_on 2 --cp 2
	same_on 2 --fsdp 2 --zero 3
	SMALL+=(--dtype bf16 --virtual "tp=1,cp=1" --router sigmoid --router-groups 3 --router-top-groups 2)
	SMALL+=(--router-bias 0.01 --balance-over sequence -b 8 --expert-capacity 0.75)
	on_gpu 1 --overwrite -o one >/dev/null
	same_on 1 --cuda-graph
	same_on 2 --pp 2
	same_on 2 --fsdp 2 --ep 2 --expert-room 4
	same_on 3 --fsdp 3 --zero 2 --ep 3 --expert-room 4 --recompute full # one has no micro-batch
	reports 64 '--cuda-graph cannot be used with --ep' on_gpu 2 --fsdp 2 --ep 2 --cuda-graph
}

@test "so do two in float8; a step of several is no graph" {
	make_shard
	SMALL+=(--dtype float8 --no-float8-skip-ends)
	on_gpu 1 -o one >/dev/null
	same_on 2 --tp 2
	same_on 2 --fsdp 2 --zero 3
	! spare_starts || return 0
	same_on 2 --fsdp 2 --zero 3 --offload all --fsdp-kind flat
	same_on 1 --recompute full
	run on_gpu 2 --cuda-graph -o other
	[ "$status" -eq 64 ]
	# Casts are kept for the backward, but where chunks are added up and where it is made again.
	SMALL+=(--virtual "tp=2,cp=1" -a llama --kv-heads 2 --dropout 0.1)
	on_gpu 1 --overwrite -o one >/dev/null
	same_on 2 --tp 2
	same_on 2 --tp 2 --no-sp
	same_on 2 --pp 2 --pp-schedule zb-h1
	same_on 1 --recompute selective
	same_on 1 --recompute matmuls
	same_on 1 --recompute full
}

@test "the products of several ranks are those that the first has measured" {
	make_shard
	local o=(--numerics fast --dtype bf16 -n 3 --decay-steps 3)
	on_gpu 2 "${o[@]}" --pp 2 -o one >/dev/null
	same_on 2 "${o[@]}" --tp 2 --gemm-algorithms one/algorithms
	on_gpu 1 "${o[@]}" -o alone --gemm-algorithms one/algorithms >/dev/null 2>said
	cmp one/checkpoints/latest.h5 alone/checkpoints/latest.h5
	cmp one/algorithms alone/algorithms # the stages' all
	# The first rank reads the file for all: others may have none.
	mkdir away
	local each=(pt-train "${TINY[@]}" "${SMALL[@]}" --device cuda "${o[@]}" --tp 2
		-d "$PWD/data.h5" -o "$PWD/away/run" --gemm-algorithms one/algorithms)
	PT_DATA='' timeout -k 1 900 mpiexec -n 1 "${each[@]}" : -n 1 -wdir "$PWD/away" "${each[@]}" \
		>/dev/null </dev/null
	cmp one/checkpoints/latest.h5 away/run/checkpoints/latest.h5
}

@test "samples, and going on with another layout, of what one rank has read" {
	make_shard
	TINY=("${TINY[@]:1}") # samples are said
	SMALL+=(-n 3 --decay-steps 3 --sample-every 3 --sample-tokens 8 -a llama)
	on_gpu 1 -o one 2>one.text >/dev/null
	on_gpu 2 --tp 2 -n 2 -o test >/dev/null
	on_gpu 2 --fsdp 2 --zero 3 --ckpt-load broadcast --resume auto -o test 2>test.text >/dev/null
	cmp one/checkpoints/latest.h5 test/checkpoints/latest.h5
	sample_of one.text | grep -q .
	cmp <(sample_of one.text) <(sample_of test.text)
}

# Two workers that train apart, and synchronize after steps 1, 3 and 5.
EDIT=(--layers 1 -m 1 -n 5 --edit-workers 2 --edit-warmup-steps 1 --edit-sync-interval 2)
OUTER=(--edit-outer sgd --edit-outer-momentum 0.8 --edit-outer-nesterov)
PENALTY=("${OUTER[@]}" --edit-reducer linear --edit-pseudo-gradnorm-reduce --edit-skip-anomaly
	--edit-ewma-warmup 1 --edit-clip-pseudo-grad 0.1)

same_workers() { # A B: the state of both workers
	for worker in '' /worker-1; do
		cmp "$1$worker/checkpoints/latest.h5" "$2$worker/checkpoints/latest.h5" || return
	done
}

@test "workers that train apart follow those on CPUs, and nobody else touches the GPU's memory" {
	make_shard
	on_gpu 2 "${EDIT[@]}" "${PENALTY[@]}" --no-ckpt --gemm-algorithms measure -o gpu >/dev/null
	cmp gpu/algorithms gpu/worker-1/algorithms
	on_gpu 2 "${EDIT[@]}" "${PENALTY[@]}" --no-ckpt --device cpu -o cpu >/dev/null
	for worker in '' /worker-1; do
		run pt-compare --rtol 1e-4 cpu$worker gpu$worker
		[ "$status" -eq 0 ]
		[[ $output =~ 'outer_grad_norm '[^,]*,' 2 values'|'outer_grad_norm '.*' of 2 values' ]]
	done
	unset PT_EMU_GUARD
	on_gpu 2 "${EDIT[@]}" "${PENALTY[@]}" -n 2 -b 2 --dim 16 --virtual tp=1,cp=1 --no-ckpt --edit-wire int8 \
		--edit-sync-interval 1 --edit-warmup-steps 0 -o guarded >/dev/null
}

@test "the layout of a worker changes no bit, however it agrees with the other" {
	make_shard
	n=0
	while IFS='|' read -r how layouts; do
		# shellcheck disable=SC2206 # options are words
		local edit=("${EDIT[@]}" $how)
		on_gpu 2 "${edit[@]}" --overwrite -o one >/dev/null
		while IFS=: read -r ranks layout; do
			# shellcheck disable=SC2086
			on_gpu $((2 * ranks)) "${edit[@]}" $layout --overwrite -o test >/dev/null
			same_workers one test || {
				echo "$how: $layout"
				return 1
			}
			n=$((n + 1))
		done < <(tr ',' '\n' <<<"$layouts")
	done < <(spared 1 <<-END
		--dtype bf16 --dropout 0.1 --edit-wire int8 ${PENALTY[*]}|2:--fsdp 2 --zero 3,1:--cuda-graph
		${OUTER[*]} --edit-wire sparse --no-edit-by-unit|2:--tp 2
		--edit-reducer gta --edit-sparsification random --edit-density 0.5|2:--fsdp 2
	END
	)
	[ $n -eq 4 ] || spare_starts
}

@test "streaming goes on from any step, and what was done by the clock can be repeated" {
	make_shard
	local stream=("${EDIT[@]}" "${OUTER[@]}" -n 8 --dtype bf16 --edit-sync-interval 4 --edit-fragments 2 --edit-sync-delay 1)
	on_gpu 2 "${stream[@]}" --ckpt-every 1 --keep 0 -o one >/dev/null
	for step in $(printf '%s\n' 3 4 | spared 1); do # a fragment is under way, or has just come
		on_gpu 4 "${stream[@]}" --resume one/checkpoints/step-0000000$step.h5 --fsdp 2 -o from-$step >/dev/null
		same_workers one from-$step
	done
	local clock=(-n 8 --layers 1 -m 1 --edit-workers 2 --edit-use-async --edit-sync-time 0.2
		--edit-min-total-global-steps 1 --edit-outer adamw --edit-use-step-weight)
	on_gpu 2 "${clock[@]}" --inject-delay 1:200 -o timed >/dev/null
	on_gpu 4 "${clock[@]}" --edit-replay timed --dp 2 -o again >/dev/null
	same_workers timed again
}

@test "ranks share the memory of their GPU, and keep to the plan" {
	make_shard
	local kernels=100663296 planned taken # of the first, what every rank has
	on_gpu 2 --fsdp 2 --zero 3 --no-ckpt -o run >rows
	planned=$(plan --fsdp 2 --zero 3 --no-ckpt)
	taken=$(sed -n 's/^step=2 .* mem=\([^ ]*\).*/\1/p' rows)
	awk -v p="$planned" -v t="$taken" -v k=$kernels \
		'BEGIN { exit !(t > k && t - k <= p - k && t - k > 0.9 * (p - k)) }'
	# Two workers, with what they have of each other.
	local big=(--dim 256 -n 1 --no-ckpt --overwrite)
	local apart=("${EDIT[@]}" "${OUTER[@]}" --edit-wire bf16 "${big[@]}")
	on_gpu 2 "${apart[@]}" -o apart >rows
	planned=$(plan "${apart[@]}")
	taken=$(sed -n 's/^step=1 .* mem=\([^ ]*\).*/\1/p' rows)
	[ "$taken" -eq "$planned" ]
}

@test "what is enough for one rank is not for two, but where each has a GPU" {
	make_shard
	if real_gpu; then
		# As many layers as take seven tenths of what there is.
		local wide=(--dim 1024 --heads 8 --virtual "tp=1,cp=1" -n 1 --no-ckpt) few more room
		few=$(plan "${wide[@]}" --layers 2)
		more=$(plan "${wide[@]}" --layers 4)
		room=$("$BUILD/tests/test_device" room)
		wide+=(--layers $((2 + (room * 7 / 10 - few) * 2 / (more - few))))
		[ "$(plan "${wide[@]}")" -lt "$room" ]
		run on_gpu 2 "${wide[@]}" --dp 2 -o two
		[ "$status" -eq 1 ]
		[[ $output == *'out of memory'*'ranks that share it'* ]]
		return
	fi
	local big=(--dim 256 --virtual "tp=1,cp=1" -n 1 --no-ckpt --overwrite) room
	room=$(($(plan "${big[@]}") + 1000000))
	PT_EMU_MEMORY=$room on_gpu 1 "${big[@]}" -o one >/dev/null
	PT_EMU_MEMORY=$((room - 700000)) run on_gpu 1 "${big[@]}" -o one # CUDA's own is more
	[ "$status" -eq 1 ]
	PT_EMU_MEMORY=$room run on_gpu 2 "${big[@]}" -o two
	[ "$status" -eq 1 ]
	[[ $output == *'out of memory'*'ranks that share it'* ]]
	PT_EMU_GPUS=2 PT_EMU_MEMORY=$room on_gpu 2 "${big[@]}" -o two >/dev/null
	# Two workers need all of it twice.
	local apart=("${EDIT[@]}" "${OUTER[@]}" --edit-wire bf16 "${big[@]}")
	planned=$(plan "${apart[@]}")
	PT_EMU_MEMORY=$((planned + 1000000)) run on_gpu 2 "${apart[@]}" -o none
	[ "$status" -eq 1 ]
	[[ $output == *'out of memory'*'ranks that share it'* ]]
	# One alone has too little: none waits for it.
	local o=(pt-train "${TINY[@]}" "${SMALL[@]}" --device cuda "${apart[@]}" -o none)
	PT_EMU_GPUS=2 run timeout -k 1 900 mpiexec -n 1 "${o[@]}" : \
		-n 1 -env PT_EMU_MEMORY $((planned - 1000000)) "${o[@]}"
	[ "$status" -eq 1 ]
	[[ $output == *'rank 1: out of memory'* ]]
}

@test "without --device, several ranks are on GPUs if each has its own" {
	make_shard
	local o=(pt-train "${TINY[@]}" "${SMALL[@]}" -n 1 --no-ckpt --overwrite) gpu
	gpu="device = $(gpu_name)"
	together() { # NAME=VALUE NAME=VALUE OPTION...: what either of two ranks has in its environment
		timeout -k 1 900 mpiexec -n 1 env "$1" "${o[@]}" "${@:3}" : \
			-n 1 env "$2" "${o[@]}" "${@:3}" </dev/null
	}
	if real_gpu; then
		# One, of which two ranks would have a half each.
		export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
		export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*}
		local all=CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES none=CUDA_VISIBLE_DEVICES=
		timeout -k 1 900 "${o[@]}" -o run1 >/dev/null
		grep -qF "$gpu" run1/journal.txt
		timeout -k 1 900 mpiexec -n 2 "${o[@]}" -o run2 >/dev/null </dev/null
		grep -q 'device = cpu' run2/journal.txt
	else
		local all=PT_EMU_GPUS=2 none=PT_EMU_GPUS=0
		for n in 1 2 3; do
			PT_EMU_GPUS=$n timeout -k 1 900 mpiexec -n 2 "${o[@]}" -o run$n >/dev/null </dev/null
		done
		grep -q 'device = cpu' run1/journal.txt
		grep -qF "$gpu" run2/journal.txt
		grep -qF "$gpu" run3/journal.txt
		# A launcher may show each rank one GPU, its own.
		together PT_EMU_GPU=0 PT_EMU_GPU=1 -o mixed >/dev/null
		grep -qF "$gpu" mixed/journal.txt
	fi
	# Where one rank has none, the other does without.
	together "$all" "$none" -o mixed >/dev/null
	grep -q 'device = cpu' mixed/journal.txt
	# Workers that train apart do not: what they bring would not be the same.
	run together "$all" "$none" --edit-workers 2 -o apart
	[ "$status" -eq 64 ]
	[[ $output == *'some workers have a GPU'* ]]
}
