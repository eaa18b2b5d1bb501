#!/usr/bin/env bats
# Workers that train apart, with experts: random layouts, of SEED or of the clock.

load helpers
export SETUP=make_shard

one() { # WORDS...: one of them; -: none
	local all=("$@")
	local words=${all[RANDOM % $#]}
	[ "$words" = - ] || echo "$words"
}

train() { # RANKS DIRECTORY OPTION...
	timeout -k 1 300 mpiexec -n $((2 * $1)) pt-train "${TINY[@]}" --layers 4 --heads 4 -m 1 -n 10 \
		--virtual tp=2,cp=2 --edit-workers 2 --edit-sync-interval 3 --edit-warmup-steps 3 \
		-o "$2" "${@:3}" </dev/null >/dev/null
}

differs() {
	echo "$i: ${model[*]}: ${layout[*]}"
	return 1
}

@test "random layouts of workers with experts have the bits of a rank per worker" {
	RANDOM=${SEED:-$(date +%s)}
	for ((i = 0; i < ${LAYOUTS_RANDOM:-12}; i++)); do
		# shellcheck disable=SC2207 # words
		model=(-a llama --experts 8 --expert-dim 12
			$(one - '--shared-expert-dim 8' '--shared-expert-dim 8 --shared-expert-gate') $(one - '--moe-from 1')
			$(one - '--router sigmoid' '--router sigmoid --router-groups 4 --router-top-groups 2')
			$(one - '--experts-per-token 3') $(one - '--balance-over sequence' '--balance-over model')
			$(one - '--router-z-loss 0.1') $(one - '--optimizer muon' '--optimizer sgd') $(one - '--dtype bf16')
			--edit-outer sgd --edit-outer-lr 0.7 --edit-outer-momentum 0.8
			$(one - '--edit-wire int8' '--edit-fragments 2 --edit-sync-delay 1')
			$(one - '--edit-reducer linear --edit-pseudo-gradnorm-reduce'))
		# shellcheck disable=SC2207
		layout=($(one '2 --dp 2 --ep 2' '2 --fsdp 2 --ep 2' '2 --cp 2 --ep 2' '4 --dp 2 --fsdp 2 --zero 3 --ep 4' \
			'4 --fsdp 2 --cp 2 --zero 1 --ep 4' '4 --fsdp 4 --ep 2 --fsdp-kind flat' '4 --fsdp 2 --tp 2 --ep 2' \
			'4 --pp 2 --dp 2 --ep 2' '4 --pp 2 --fsdp 2 --pp-schedule zb-h1 --ep 2') --expert-room 8
			$(one - '--recompute full' '--recompute selective') $(one - '--bucket 20000'))
		train 1 "one-$i" "${model[@]}"
		train "${layout[0]}" "more-$i" "${model[@]}" "${layout[@]:1}" --ckpt-every 5 --keep 0 ||
			differs
		train 1 "then-$i" --resume "more-$i/checkpoints/step-00000005.h5"
		for worker in '' /worker-1; do
			for other in more then; do
				pt-ckpt diff "one-$i$worker" "$other-$i$worker" || differs
			done
		done
		echo "# ${model[*]}: ${layout[*]}" >>layouts
	done
	[ "$(wc -l <layouts)" -eq "${LAYOUTS_RANDOM:-12}" ]
}
