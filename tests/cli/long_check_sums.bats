#!/usr/bin/env bats
# Many flipped bits in sums and messages on many layouts: --check-sums finds and names each.
load helpers
export SETUP=make_shard

MODEL=(--layers 2 -m 1 -n 4 --clip 0.1 --eval-every 0)
PLANTS=${PLANTS:-200} # over all layouts

layouts() {
	cat <<-END
		1
		1 --offload grads --offload-to .
		2 --dp 2
		2 --fsdp 2
		2 --fsdp 2 --zero 1
		2 --fsdp 2 --zero 2 -a llama --experts 4 --ep 2
		2 --fsdp 2 --offload all --offload-to .
		2 --pp 2
		2 --pp 2 --tie yes
		2 --cp 2
		2 --tp 2
		2 --fsdp 2 --dtype bf16
		2 --dp 2 -a llama --kv-heads 1
		3 --fsdp 3
		3 --fsdp 3 --offload all --offload-to .
		3 --dp 3
		4 --dp 2 --fsdp 2
		4 --fsdp 2 --tp 2 --fsdp-kind flat
		4 --dp 2 --fsdp 2 --zero 1
		4 --pp 2 --dp 2 --tie yes
	END
}

TENSORS=(layers.0.attention.wq.weight layers.1.attention.wo.weight layers.0.feed_forward.w1.weight
	layers.1.feed_forward.w2.weight layers.1.ffn_norm.weight layers.0.attention_norm.weight norm.weight
	tok_embeddings.weight '')

train() { # DIRECTORY OPTION...
	tiny_on "$ranks" "${MODEL[@]}" "${options[@]}" --overwrite -o "$@" >/dev/null 2>err
}

same() {
	cmp clean/checkpoints/latest.h5 run/checkpoints/latest.h5
}

# Returns 0 if the plant was found, named and, if sporadic, repaired; 2: there was nothing to flip, or the bit is
# below the precision of sums, and nothing follows from it.
plant() { # FLIP RANK PERSISTENT
	local status=0
	train run --check-sums yes --inject-flip "$1" || status=$?
	grep -q 'flipped bit' err || { [ "$status" -eq 0 ] && return 2; }
	if [ "$3" = yes ] && [ "$status" -eq 71 ]; then
		grep -qE "sums of gradients are wrong, twice: rank $2 \(host [^ ]+\) (sent other numbers|added wrongly).* in the bucket of" err
		return
	fi
	[ "$status" -eq 0 ] && same || return 1
	grep -q 'a sum of gradients was wrong; computed again it was right: sporadic' run/journal.txt && [ "$3" = no ] && return 0
	not grep -q 'a sum of gradients was wrong' run/journal.txt || return 1
	return 2
}

@test "plants in sums and messages on twenty layouts are found, named and repaired" {
	local line n=0 tried=0 none=0 persistent rank place bit tensor step x code
	RANDOM=${SEED:-57}
	mapfile -t lines < <(layouts)
	[ "${#lines[@]}" -eq 20 ]
	for line in "${lines[@]}"; do
		read -ra options <<<"$line"
		ranks=${options[0]} options=("${options[@]:1}")
		train clean
		for ((k = 0; k < PLANTS / ${#lines[@]}; tried++)); do
			[ $((tried - n)) -le $((4 * PLANTS)) ]
			rank=$((RANDOM % ranks)) step=$((2 + RANDOM % 3)) bit=$((RANDOM % 64))
			tensor=${TENSORS[RANDOM % ${#TENSORS[@]}]}
			place=sum && ((RANDOM % 2 && ranks > 1)) && place=message
			persistent=no && ((RANDOM % 4 == 0)) && persistent=yes && bit=$((16 + RANDOM % 8))
			x=$rank:$step:$place:$tensor:$bit
			[ $persistent = no ] || x=$rank:$step+:$place:$tensor:$bit
			code=0
			plant "$x" "$rank" $persistent || code=$?
			[ $code -ne 1 ] || { echo "$line: $x" && cat err && grep -a event run/journal.txt && false; }
			[ $code -eq 0 ] && k=$((k + 1)) && n=$((n + 1)) || none=$((none + 1))
		done
		echo "# $line: $n of $PLANTS found, named and repaired; $none without effect" >&3
	done
	[ "$n" -eq "$PLANTS" ]
}
