#!/usr/bin/env bats
# Tables of matmul algorithms that come with the programs, on a GPU or the emulated one.
load helpers

setup() {
	gpu_setup
}

on_gpu() { # OPTION...
	timeout -k 1 900 pt-train "${TINY[@]}" --layers 2 --dim 32 --peak-flops 1e12 --device cuda "$@"
}

absent() { # PATTERN FILE
	[ "$(grep -c "$@")" -eq 0 ]
}

@test "a table of algorithms for this GPU and cuBLASLt: exact runs use it, and record that" {
	make_shard
	local o=(-n 2 --no-ckpt --self-test no) name line how
	mkdir -p share/algorithms
	export PT_SHARE=$PWD/share
	PT_LAB_CANDIDATES=rows on_gpu "${o[@]}" -o first >/dev/null
	absent 'table of algorithms' first/journal.txt
	# the times are made up: the first that exact runs may use is slower than the second, then it is not
	awk -F '\t' -v OFS='\t' '!/^#/ { $11 = $3 == "exact" && $4 == 0 ? 10 : 5 } { print }' rows >quick
	awk -F '\t' -v OFS='\t' '!/^#/ { $11 = 10 } { print }' rows >same
	name=$(gpu_name | tr 'A-Z ' 'a-z-')
	name=${name%%-(*}-cublaslt-$(grep -o 'cuBLASLt [0-9.]*' <(gpu_name) | cut -d ' ' -f 2)
	"$BATS_TEST_DIRNAME/../bench/algorithm_table" same >"share/algorithms/$name"
	[ "$(wc -l <"share/algorithms/$name")" -eq 1 ]
	"$BATS_TEST_DIRNAME/../bench/algorithm_table" quick quick >"share/algorithms/$name"
	[ "$(wc -l <"share/algorithms/$name")" -gt 5 ]
	[ "$(head -n 1 "share/algorithms/$name")" = "$(head -n 1 first/algorithms)" ]
	on_gpu "${o[@]}" -o second >/dev/null 2>err
	absent 'not available' err
	grep -q ', table of algorithms 0x' second/journal.txt
	while read -r line; do
		grep -qxF "$line" second/algorithms
		absent -xF "$line" first/algorithms
	done < <(tail -n +2 "share/algorithms/$name")
	run pt-compare first second
	[[ $output == *'matmuls: '*' table of algorithms 0x'* ]]
	for how in 'PT_LAB_OFF=gelu,table' PT_LAB_OFF=all 'X= --gemm-algorithms first' 'X= --gemm-algorithms first/algorithms'; do
		# shellcheck disable=SC2046,SC2086 # words
		env ${how%% *} timeout -k 1 900 pt-train "${TINY[@]}" --layers 2 --dim 32 --peak-flops 1e12 --device cuda "${o[@]}" \
			$([ "$how" = "${how#* }" ] || echo "${how#* }") -o without --overwrite >/dev/null
		cmp first/algorithms without/algorithms || [[ $how == PT_LAB_OFF* ]]
		absent ', table of algorithms 0x' without/journal.txt
	done
	on_gpu "${o[@]}" --numerics fast -o fast >/dev/null
	absent ', table of algorithms 0x' fast/journal.txt
	# what nobody can have measured, and what is no table
	sed -i '2s/.\{128\}$/'"$(printf '%0128d' 0)"'/' "share/algorithms/$name"
	on_gpu "${o[@]}" -o third >/dev/null 2>err
	grep 'not available' err
	sed -i '3s/ [0-9]* / -1 /' "share/algorithms/$name"
	run on_gpu "${o[@]}" -o fourth
	[ "$status" -eq 65 ]
	[[ $output == *"share/algorithms/$name"*'line 3'* ]]
	: >"share/algorithms/$name"
	run on_gpu "${o[@]}" -o fourth
	[ "$status" -eq 65 ]
	[[ $output == *"share/algorithms/$name"*empty* ]]
}
