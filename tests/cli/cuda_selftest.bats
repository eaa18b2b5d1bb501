#!/usr/bin/env bats
# pt-train holds the kernels of a GPU, emulated or real, to those of the CPU before it trains.
load helpers

setup() {
	gpu_setup
	export XDG_CACHE_HOME=$PWD/cache
	ONE=(--dim 32 -n 1 --eval-every 0 --no-ckpt --peak-flops 1e12 --self-test auto)
}

LAUNCH=() # of several ranks
on_gpu() { # OPTION...
	timeout -k 1 900 "${LAUNCH[@]}" pt-train "${TINY[@]}" "${ONE[@]}" --device cuda --overwrite "$@" </dev/null
}

tested() { # OPTION...: the run is tested, and not only remembered
	on_gpu -o run "$@" >/dev/null
	grep -q '^# event .* self-test passed: [0-9]* kernel calls, ' run/journal.txt || {
		echo "not tested: $*"
		return 1
	}
}

@test "the first run of a kind is tested, the next one is not" {
	make_shard
	tested
	[ "$(find cache -type f | wc -l)" -eq 1 ]
	on_gpu -o run >/dev/null
	grep -q '^# event .* self-test passed before' run/journal.txt
	tested --self-test yes
	cp run/algorithms with
	on_gpu -o run --self-test no >/dev/null
	cmp with run/algorithms
	not grep -q "self-test passed" run/journal.txt
	# Other shapes, other numbers, another build
	tested --dtype bf16
	! spare_starts || return 0
	tested -T 32
	tested --numerics fast
	cp "$PT_CUDA" other.so
	echo >>other.so
	PT_CUDA=$PWD/other.so tested
}

@test "float8 without context parallelism, where other kernels than attention find the largest numbers, passes" {
	make_shard
	tested --dtype float8 --no-float8-skip-ends
	tested -a llama --dtype float8 --no-float8-skip-ends --dropout 0.1
}

@test "what is remembered need not be there, or what it was" {
	! spare_starts || skip 'of files, not of the GPU'
	make_shard
	tested
	local file
	file=$(find cache -type f)
	damage "$file" damaged 100
	cp damaged "$file"
	tested
	cmp -s damaged "$file" && return 1
	head -c 3000000 /dev/zero >"$file"
	tested
	rm "$file"
	mkfifo "$file"
	tested
	rm -f "$file"
	mkdir "$file"
	tested
	XDG_CACHE_HOME=/dev/null tested
	XDG_CACHE_HOME='' HOME='' tested
	XDG_CACHE_HOME=relative HOME=$PWD/home tested
	[ ! -e relative ]
	[ "$(find home/.cache/pt -type f | wc -l)" -eq 1 ]
}

@test "a CPU is not tested" {
	make_shard
	tiny "${ONE[@]}" --device cpu -o run >/dev/null
	not grep -q "self-test passed" run/journal.txt
	reports 64 '--self-test needs a GPU' tiny "${ONE[@]}" --device cpu --self-test yes -o run
}

# Options of a run and the kernels that it calls; :NAME is the name in the message, that of a fused
# kernel.
edit='--edit-workers 1 --edit-sync-interval 3 --edit-outer'
layer_cases=(
	'--dtype bf16 --dropout 0.1 | embed_fwd embed_bwd linear_fwd linear_bwd_x linear_bwd_w bias_bwd:linear_gelu_bwd
	norm_fwd norm_bwd attn_fwd attn_bwd act_fwd:linear_gelu_fwd linear_gelu_bwd
	dropout residual residual_norm round xent_stats xent_join xent_fused exact_sum exact_sumsq grid_sum grid_count adamw
	step_end normal zero'
	'-a llama --dtype float8 --no-float8-skip-ends --virtual tp=2,cp=2 | round_scaled amax rope
	attn_bwd linear_fwd act_bwd xent_bwd add'
	'--optimizer muon --dtype bf16 | muon_momentum muon_update muon_normalize muon_unpack axpby'
	'--optimizer sgd --hash-tensors hashes | sgd copy hash'
	'--kernels ref --sample-every 1 | norm_bwd_x norm_bwd_w bias_fwd linear_row attn_row'
	'-a llama --qk-norm --dtype bf16 | head_norm_fwd head_norm_bwd_x head_norm_bwd_w'
	'-a llama --experts 4 --shared-expert-dim 32 --router sigmoid --router-bias 0.01 | route_fwd route_bwd
	route_bwd_x route_bwd_w sort_slots rows_take slots_combine groups_fwd groups_bwd_x groups_bwd_w
	expert_act_fwd expert_act_bwd counts_sum counts_fractions bias_balance'
	'--check-replicas yes | word_sums checksum_word'
	'-a llama --experts 4 --expert-capacity 1 | slots_drop slots_mask'
)
worker_cases=(
	"$edit sgd --edit-outer-momentum 0.9 --edit-reducer gta --edit-sparsification random
	--edit-density 0.25 --edit-fragments 2 --edit-sync-delay 1 --edit-wire int8 | combine sgd keep_largest count_sizes keep_sizes
	keep_random quantize dequantize sub"
	"$edit adamw --edit-wire sparse | topk_pack topk_scatter"
	"$edit adamw --edit-wire bf16 | narrow widen round_stochastic"
)
two_ranks_cases=(
	'--fsdp 2 --dtype float8 --no-float8-skip-ends | narrow_scaled widen_scaled'
)

finds_each() { # 'OPTION... | KERNEL[:NAME]...'...
	local row kernel
	! real_gpu || skip 'only the emulated GPU can have a wrong kernel'
	make_shard
	for row in "$@"; do
		for kernel in ${row#*|}; do
			# shellcheck disable=SC2086
			PT_EMU_BREAK=${kernel%:*} code_of 1 on_gpu ${row%|*} -o run
			says 'self-test: '
			says "gives wrong results: ${kernel#*:} "
			says ': element '
			[ ! -e run ]
			[ ! -e cache ]
		done
	done
}

# (No run calls find_nonfinite or rows_put on a GPU. The self-test runs linear_fwd and xent_fused for linear_xent.)
@test "each kernel is in a case, except find_nonfinite, linear_xent and rows_put" {
	local kernel cases missing=
	cases=" $(tr '\n\t|:' ' ' <<<"${layer_cases[*]} ${worker_cases[*]} ${two_ranks_cases[*]}") "
	for kernel in $(sed -n 's/^KERNEL([^,]*, *\([a-z0-9_]*\),.*/\1/p' "$BATS_TEST_DIRNAME"/../../kernels/*.h); do
		[[ $cases == *" $kernel "* ]] || missing+="$kernel "
	done
	echo "$missing"
	[ "$(tr ' ' '\n' <<<"$missing" | sort | xargs)" = 'find_nonfinite linear_xent rows_put' ]
}

@test "any wrong kernel of a layer stops the run before its first step" {
	finds_each "${layer_cases[@]}"
}

@test "any wrong kernel of local SGD stops the run before its first step" {
	finds_each "${worker_cases[@]}"
}

@test "any wrong kernel of two ranks stops the run before its first step" {
	LAUNCH=(mpiexec -n 2)
	finds_each "${two_ranks_cases[@]}"
}

@test "the tests above have every kernel of the list" {
	local listed tried row
	tried='find_nonfinite linear_xent rows_put '
	for row in "${layer_cases[@]}" "${worker_cases[@]}" "${two_ranks_cases[@]}"; do
		tried+="${row#*|} "
	done
	listed=$(sed -n 's/^KERNEL([a-z0-9_]*, \([a-z0-9_]*\),.*/\1/p' "$BATS_TEST_DIRNAME"/../../kernels/*.h)
	[ "$(tr -s ' \t:' '\n' <<<"$tried" | sed '/^$/d' | sort -u)" = "$(sort <<<"$listed")" ]
}

@test "of ranks that share a GPU one tests, of ranks with a GPU each all do" {
	! real_gpu || skip 'only the emulated GPU can have a wrong kernel'
	make_shard
	on_two() { # OPTION...: with a kernel that is wrong on rank 1 alone
		# shellcheck disable=SC2016
		timeout -k 1 900 mpiexec -n 2 sh -c \
			'[ "$PMI_RANK" = 0 ] || export PT_EMU_BREAK=attn_bwd; exec "$@"' sh \
			pt-train "${TINY[@]}" "${ONE[@]}" --device cuda --overwrite -o run "$@" </dev/null
	}
	on_two --dp 2 >/dev/null
	grep -q 'self-test passed: ' run/journal.txt
	rm -r run cache
	PT_EMU_GPUS=2 code_of 1 on_two --dp 2
	says 'rank 1: self-test: '
	says 'wrong results: attn_bwd '
	[ ! -e run ]
	[ ! -e cache ]
}
