#!/usr/bin/env bats
# --offload: what has no room in memory is in files, and no bit changes.
load helpers

teardown() {
	cd / || return
	[ ! -d "$BATS_TEST_TMPDIR/disk" ] || umount -l "$BATS_TEST_TMPDIR/disk" 2>/dev/null || true
}

value() { # COLUMN FILE: of the last row
	grep -o "\b$1=[^ ]*" "$2" | tail -n 1 | cut -d = -f 2
}

@test "a file instead of memory changes no bit, on any layout" {
	make_shard
	mkdir files
	tiny -n 8 --layers 2 -o one --sample-every 8 --check-replicas yes >rows 2>/dev/null
	not grep -q "offload_read=" rows
	for what in optimizer params grads all; do # tests/support/layouts.c has more of all
		local layouts=('1 --dp 1' '4 --dp 2 --fsdp 2 --fsdp-kind flat')
		case $what in
		optimizer) layouts+=('4 --tp 2 --fsdp 2') ;;
		params) layouts+=('4 --tp 2 --fsdp 2' '2 --pp 2' '2 --fsdp 2 --reshard-after-forward keep-last') ;;
		grads) layouts=('3 --dp 3' '4 --dp 2 --tp 2' '2 --fsdp 2 --zero 1') ;;
		all) layouts+=('2 --pp 2') ;;
		esac
		for layout in "${layouts[@]}"; do
			# shellcheck disable=SC2086 # words
			set -- $layout
			local virtual=()
			[[ $layout != *tp* ]] || virtual=(--virtual tp=2)
			[[ $layout != *tp* || -e two ]] ||
				tiny -n 8 --layers 2 -o two --virtual tp=2 --sample-every 8 --check-replicas yes &>/dev/null
			echo "$what $layout"
			rm -rf test
			timeout 120 mpiexec -n "$1" pt-train "${TINY[@]}" -n 8 --layers 2 "${@:2}" "${virtual[@]}" \
				--sample-every 8 --check-replicas yes \
				--offload $what --offload-to files -o test >rows 2>/dev/null
			if [ ${#virtual[@]} -gt 0 ]; then same two test; else same one test; fi
			not grep -q '(host' test/journal.txt
			[ "$(value offload_written rows)" -gt 0 ]
		done
	done
	[ -z "$(ls -A files)" ]
}

@test "zero 1 and 2 keep parameters, and their moments may go" {
	make_shard
	tiny -n 8 -o one >/dev/null
	for zero in 1 2; do
		code_of 64 tiny_on 2 --fsdp 2 --zero $zero --offload params --offload-to .
		says "zero $zero keeps all parameters in memory"
		timeout 120 mpiexec -n 2 pt-train "${TINY[@]}" -n 8 --fsdp 2 --zero $zero \
			--offload optimizer --offload-to . -o zero$zero >/dev/null
		same one zero$zero
	done
	reports 64 'give --zero 3, or --offload grads' tiny_on 2 --fsdp 2 --zero 2 --offload all --offload-to .
}

@test "the scales of float8, found layer by layer, are those of all layers at once" {
	make_shard
	mkdir files
	local o=(--layers 3 -n 3 --dtype float8 --no-float8-skip-ends)
	tiny "${o[@]}" -o one >/dev/null
	tiny "${o[@]}" --offload all --offload-to files -o test >/dev/null
	same one test
}

@test "runs go on from each other's checkpoints" {
	make_shard
	tiny -n 12 -o whole >/dev/null
	tiny -n 6 --decay-steps 12 -o run --offload all --offload-to . >/dev/null
	pt-train -q --resume auto -o run -d data.h5 -n 9 --decay-steps 12 >/dev/null
	timeout 120 mpiexec -n 2 pt-train -q --resume auto -o run -d data.h5 -n 12 --decay-steps 0 \
		--fsdp 2 --offload params --offload-to . >/dev/null
	cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
}

@test "the plan knows memory, and what is read and written" {
	make_shard
	for options in '--offload optimizer' '--offload params' '--offload params --zero 3' \
		'--offload grads -m 1' '--offload all --optimizer muon'; do
		# shellcheck disable=SC2086 # words
		set -- $options
		tiny --layers 3 --dim 64 "$@" --offload-to . --dry-run >plan
		tiny --layers 3 --dim 64 -n 3 "$@" --offload-to . -o run --overwrite --no-ckpt >rows
		for way in read written; do
			planned=$(awk -v key=$way/step '$1 == key { print $2 }' plan)
			echo "$options: $way $planned $(value offload_$way rows)"
			[ "$planned" -gt 0 ]
			[ "$(printf %.6g "$planned")" = "$(printf %.6g "$(value offload_$way rows)")" ]
		done
	done
	total() { awk '$1 == "total" { print $2 }' "$1"; }
	# few tokens: gradients that replace activations are few
	wide=(--layers 8 --dim 256 -T 4 -b 1 -m 1 --dry-run)
	tiny "${wide[@]}" >none
	tiny "${wide[@]}" --offload optimizer --offload-to . >optimizer
	tiny "${wide[@]}" --offload params --offload-to . >params
	tiny "${wide[@]}" --offload grads --offload-to . >grads
	tiny "${wide[@]}" --offload all --offload-to . >all
	# of four numbers a parameter two are left, and little more than one
	[ $(($(total optimizer) * 100)) -lt $(($(total none) * 60)) ]
	[ $(($(total params) * 100)) -lt $(($(total none) * 45)) ]
	[ $(($(total grads) * 100)) -lt $(($(total none) * 45)) ]
	# the gradient's share is what memory is less by, except for two blocks, the ends and a piece
	parameters=$(awk '$1 == "parameters" { print $2 }' none)
	for what in 'optimizer grads' 'params all'; do
		less=$(($(total "${what% *}") - $(total "${what#* }")))
		echo "$what: $less of $parameters"
		[ $((less * 100)) -gt $((parameters * 60)) ]
		[ $less -lt "$parameters" ]
	done
}

@test "a model that has no room in memory trains with offload" {
	plain_memory
	make_shard
	big=(-n 2 --layers 13 --dim 512 -b 1 -m 1 --eval-every 0 --no-ckpt)
	beside=275000 # KiB of the program and its libraries
	kib() { tiny "${big[@]}" "$@" --dry-run | awk '$1 == "total" { print int($2 / 1024) }'; }
	limited() { # KIB OPTION...: of the address space
		timeout 120 bash -c 'ulimit -v "$0"; exec pt-train "$@"' "$1" "${TINY[@]}" "${big[@]}" "${@:2}"
	}
	tiny "${big[@]}" -o free >rows
	for what in optimizer params all; do
		limit=$(($(kib --offload $what --offload-to .) + beside))
		[ "$limit" -lt "$(kib)" ]
		[ "$(value mem rows)" -gt $((limit * 1024)) ]
		reports 1 'out of memory' limited "$limit" -o none --overwrite
		limited "$limit" --offload $what --offload-to . -o $what >rows.$what
		pt-compare -q free $what
		[ $what = all ] || continue # and the limit that the plan keeps
		limit=$(($(kib --offload $what --offload-to .) + 1))
		reports 1 'and --memory is' tiny "${big[@]}" --memory ${limit}K -o none --overwrite
		tiny -n 1 "${big[@]:2}" --memory ${limit}K --offload $what --offload-to . -o $what --overwrite >/dev/null
	done
}

@test "tiles change no bit, and need less" {
	make_shard
	wide=(--heads 4 --layers 2 --virtual tp=4)
	tiny -n 6 "${wide[@]}" -o one >/dev/null
	tiny -n 6 "${wide[@]}" --arch llama --kv-heads 2 -o llama >/dev/null
	wide=(--heads 4 --layers 2) # the pieces say it
	for layout in '1 --offload params --offload-to .' '1 --offload all --offload-to .' \
		'4 --dp 2 --fsdp 2 --recompute full' '4 --fsdp 2 --pp 2 --pp-schedule zb-h1 --recompute selective' \
		'2 --dp 2 --offload all --offload-to .' '3 --fsdp 3 --arch llama --kv-heads 2' \
		'4 --fsdp 2 --tp 2 --arch llama --kv-heads 2'; do
		# shellcheck disable=SC2086 # words
		set -- $layout
		echo "$layout"
		timeout 120 mpiexec -n "$1" pt-train "${TINY[@]}" -n 6 "${wide[@]}" "${@:2}" --tile 4 \
			-o test --overwrite >/dev/null
		if [[ $layout == *llama* ]]; then same llama test; else same one test; fi
	done
	gathered() { tiny --dim 256 --heads 16 "$@" --dry-run | awk '$1 == "gathered" { print $2 }'; }
	# blocks; the embedding, which is the output; both of them
	for model in '' '--vocab-multiple 30000' '--vocab-multiple 30000 --tie no'; do
		for how in '--fsdp 2' '--offload params --offload-to .'; do
			# shellcheck disable=SC2086 # words; of two units, or three, there are two pieces
			[ $(($(gathered $how $model --tile 16) * 7)) -lt "$(gathered $how $model --virtual tp=16)" ]
		done
	done
}

@test "a vocabulary that takes several tiles of rows changes no bit by tiles" {
	make_shard
	wide=(-n 2 --heads 4 --dim 8 -m 4 --vocab-multiple 524288 --eval-windows 4)
	for model in '--arch gpt2' '--arch llama --dtype bf16'; do
		# shellcheck disable=SC2086 # words
		tiny "${wide[@]}" $model --virtual tp=4 --no-ckpt -o one --overwrite >/dev/null
		for layout in '1 --offload params --offload-to .' '2 --fsdp 2'; do
			# shellcheck disable=SC2086 # words
			set -- $layout
			echo "$model: $layout"
			# shellcheck disable=SC2086 # words
			timeout 120 mpiexec -n "$1" pt-train "${TINY[@]}" "${wide[@]}" $model --tile 4 "${@:2}" \
				--no-ckpt -o test --overwrite >/dev/null
			pt-compare -q one test
		done
	done
}

@test "a layer that has no room in memory trains with tiles" {
	plain_memory
	make_shard
	# the embedding is 128 MiB, and so is the output
	big=(-n 1 --arch llama --heads 16 --dim 128 --vocab-multiple 262144 -b 1 -m 1 --eval-every 0 --no-ckpt
		--offload params --offload-to .)
	beside=275000 # KiB of the program and its libraries
	kib() { tiny "${big[@]}" "$@" --dry-run | awk '$1 == "total" { print int($2 / 1024) }'; }
	limited() { # KIB OPTION...: of the address space
		timeout -k 1 120 bash -c 'ulimit -v "$0"; exec pt-train "$@"' "$1" "${TINY[@]}" "${big[@]}" "${@:2}"
	}
	need=$(kib --tile 16)
	[ $((need + 240000)) -lt "$(kib --virtual tp=16)" ]
	reports 1 'out of memory' limited $((need + beside)) --virtual tp=16 -o none --overwrite
	reports 1 'and --memory is' tiny "${big[@]}" --virtual tp=16 --memory $((need + 1))K -o none --overwrite
	limited $((need + beside)) --tile 16 --memory $((need + 1))K -o tiled >/dev/null
}

@test "what makes no sense is refused" {
	make_shard
	reports 64 '--offload on a CPU needs --offload-to DIRECTORY' tiny --offload params
	reports 64 '--offload-to needs --offload' tiny --offload-to .
	reports 64 "'host' is the memory that a CPU uses already" tiny --offload optimizer --offload-to host
	for what in params all; do
		reports 64 'keeps them' tiny --offload $what --offload-to . --reshard-after-forward no
	done
	reports 64 'parameters that are gathered or offloaded' tiny --tile 2
	code_of 64 tiny --tile 1 --offload params --offload-to .
	says 'tile gives a rank only one piece of each weight; give --tile 2'
	reports 64 'tile: a rank has 2 virtual chunks' tiny --tile 2 --offload params --offload-to . --virtual cp=2
	code_of 64 tiny --tile 2 --offload params --offload-to . --dtype float8
	says 'float8 weights cannot be gathered in tiles'
	code_of 64 tiny --tile 2 --offload params --offload-to . --virtual tp=4
	says 'tile is 2, but its pieces are the 4 virtual slices; give --tile 4'
	code_of 64 tiny --tile 3 --tp 2 --fsdp 2 --dry-run
	says 'tile 3 is not divisible by 2 ranks of tp, but no larger number divides the 2 heads'
	# the advice is what the model allows: RANKS OF TP, TILE, HEADS, KV-HEADS, FFN-DIM, ADVICE
	local tp tile heads kv ffn advice
	while read -r tp tile heads kv ffn advice; do
		set -- pt-train --vocab 61 -b 8 -m 1 --dim $((heads * 8)) --heads "$heads" --kv-heads "$kv" --ffn-dim "$ffn" \
			--fsdp 2 --tp "$tp" --dry-run --tile
		reports 64 "$advice" "$@" "$tile"
		case $advice in --*) "$@" "${advice#* }" >/dev/null ;; esac
	done <<-end
		1 1 6 0 0 --tile 2
		2 2 4 0 0 --tile 4
		1 1 9 3 99 --tile 3
		2 3 6 0 0 --tile 6
		2 3 8 2 0 --tile 4
		2 5 12 3 0 no larger number divides the 12 heads
		1 1 9 9 64 no larger number divides the 9 heads
	end
	[ ! -e run-001 ]
}

@test "no folder: one message, from any of the ranks" {
	make_shard
	for where in missing data.h5; do
		reports 74 "offload-to: $where: No" tiny --offload optimizer --offload-to $where
		code_of 74 timeout 120 mpiexec -n 3 pt-train "${TINY[@]}" --offload optimizer --offload-to $where
		[ "$(grep -c ^pt-train <<<"$output")" -eq 1 ]
	done
	mkdir there
	# shellcheck disable=SC2016 # by the shell of the rank
	code_of 74 timeout 120 mpiexec -n 3 sh -c 'if [ "$PMI_RANK" = 2 ]; then where=missing; else where=there; fi
		exec pt-train "$@" --offload optimizer --offload-to $where' sh "${TINY[@]}"
	says 'rank 2: --offload-to: missing: No such file'
	[ "$(grep -c ^pt-train <<<"$output")" -eq 1 ]
}

@test "a full disk is found out before anything is computed" {
	make_shard
	mkdir disk
	mount -t tmpfs -o size=1m pt disk 2>/dev/null || skip 'no disk can be mounted'
	big=(-n 2 --layers 2 --dim 256 --eval-every 0 --no-ckpt)
	reports 74 'offload-to: disk: cannot allocate' tiny "${big[@]}" --offload optimizer --offload-to disk -o run
	not grep -q ^step= <<<"$output"
	code_of 74 timeout 120 mpiexec -n 2 pt-train "${TINY[@]}" "${big[@]}" --offload optimizer --offload-to disk -o run
	[ "$(grep -c ^pt-train <<<"$output")" -eq 1 ]
	[ "$(stat -f -c '%f' disk)" -ge 250 ]
	# and one that is memory is said to be
	run pt-train "${TINY[@]:1}" -n 1 --eval-every 0 --no-ckpt --offload optimizer --offload-to disk -o run
	[ "$status" -eq 0 ]
	says 'disk is in memory (tmpfs)'
}

@test "a killed run leaves nothing in the folder" {
	make_shard
	mkdir disk
	mount -t tmpfs -o size=64m pt disk 2>/dev/null || skip 'no disk can be mounted'
	free=$(stat -f -c '%f' disk)
	paced 2 -n 100000 --dim 64 --offload optimizer --offload-to disk -o run
	until_step 3
	[ -z "$(ls -A disk)" ]
	[ "$(stat -f -c '%f' disk)" -lt "$free" ]
	kill -9 "$(cat pid)"
	# shellcheck disable=SC2154 # paced sets it
	ended "$pid"
	exec 4<&-
	for _ in $(seq 1200); do
		[ "$(stat -f -c '%f' disk)" -lt "$free" ] || break
		sleep 0.05
	done
	[ "$(stat -f -c '%f' disk)" -eq "$free" ]
}
