#!/usr/bin/env bats
# Gradients that are too large for the grid of exact sums, or not finite.
load helpers

# GPT-2 whose last norm has weights of 1e6, and with them the gradient of the head.
make_large() {
	make_shard
	tiny -n 1 --heads 4 --vocab-multiple 1 -o small >/dev/null
	pt-ckpt merge --weights "$1,$1" small/checkpoints/latest.h5 small/checkpoints/latest.h5 -o large.h5
}

LARGE=(--init-from large.h5 --heads 4 --virtual 'tp=2,cp=2' -n 3 --log-every 1 --eval-every 0 --overwrite)

curve() { # and the parameters at the end
	grep '^step=' "$1/journal.txt" | grep -o ' \(loss\|grad_norm\)=[^ ]*'
	pt-ckpt hash "$1/checkpoints/latest.h5" | grep -o '0x[0-9a-f]*'
}

@test "a leaf beyond the grid makes every layout compute the step again, and the bits are equal" {
	make_large 2e3
	tiny "${LARGE[@]}" -o one >/dev/null

	grep -q 'event .* a gradient of step 1 was too large for exact sums: the step was repeated, with gradients rounded to multiples of 2^-25$' one/journal.txt
	grep -q '^step=3 ' one/journal.txt
	local ranks layout
	while read -r ranks layout; do
		# shellcheck disable=SC2086
		tiny_on "$ranks" "${LARGE[@]}" -o two $layout >/dev/null
		cmp <(curve one) <(curve two)
		[ "$(grep -c 'was too large' one/journal.txt)" -eq "$(grep -c 'was too large' two/journal.txt)" ]
	done <<-END
		2 --dp 2
		3 --fsdp 3 --zero 3
		2 --tp 2
		2 --cp 2
		2 --pp 2
		4 --dp 2 --fsdp 2
		2 --edit-workers 2 --edit-warmup-steps 99
	END
}

# (GPT-2's biases of keys have gradients so small that the grid rounds them, and AdamW makes them large.)
# (A GPU has begun the update by the time that the host knows that the step counts for nothing.)
@test "the hashes of a step that is computed again are those of the last attempt" {
	make_large 2e3
	local o=("${LARGE[@]}" -n 1 --hash-tensors)
	tiny "${o[@]}" one.txt -o one >/dev/null
	grep -q 'was too large' one/journal.txt
	[ "$(grep -c ' micro=0 phase=forward name=tokens elements=32 ' one.txt)" -eq 1 ]
	# each parameter once in each phase, with its elements
	local phase
	for phase in gradient updated; do
		cmp <(grep ' phase=parameter ' one.txt | grep -o ' name=.* elements=[0-9]*') \
			<(grep " phase=$phase " one.txt | grep -o ' name=.* elements=[0-9]*')
	done
	tiny_on 2 "${o[@]}" two.txt --dp 2 -o two >/dev/null
	cmp one.txt two.txt
	gpu_setup
	tiny "${o[@]}" gpu.txt --device cuda -o gpu >/dev/null
	grep -q 'was too large' gpu/journal.txt
	cmp <(grep -o '.* elements=[0-9]*' one.txt) <(grep -o '.* elements=[0-9]*' gpu.txt)
}

@test "before local SGD parts its workers, their grid is finer, since the mean of their sums is taken" {
	make_shard
	tiny_on 2 -n 12 -m 1 --heads 4 --virtual 'tp=2,cp=2' --dp 2 -o together >/dev/null
	tiny_on 2 -n 12 -m 1 --heads 4 --virtual 'tp=2,cp=2' --edit-workers 2 --edit-warmup-steps 99 -o warm >/dev/null
	cmp <(curve together) <(curve warm)
	cmp <(curve warm) <(curve warm/worker-1)
}

# Of two workers, one has a text that the model has learned: there its gradients are small, or 0.
make_learned() {
	make_text >words.txt
	printf 'a%.0s' {1..9000} >same.txt
	pt-prepare -q -t byte words.txt -o words.h5
	pt-prepare -q -t byte same.txt -o same.h5
	tiny -n 60 --lr 0.01 --vocab-multiple 1 -d same.h5 -o small >/dev/null
}

# Workers of which one is beyond a limit do what ranks of data parallelism do.
one_is_beyond() { # WHAT-IS-SAID SCALE-OF-THE-RANKS OPTION...
	local said=$1 scale=$2 order run files
	local o=(--eval-every 0 --log-every 1 --watchdog 30 "${@:3}")
	tiny "${o[@]}" -d same.h5 -o learned >/dev/null
	not grep -q "$said" learned/journal.txt
	o+=(--data-per-rank --overwrite)
	for order in 'same words' 'words same'; do
		files=(-d "${order% *}.h5" -d "${order#* }.h5")
		tiny_on 2 "${o[@]}" "${files[@]}" --dp 2 --loss-scale "$scale" -o together >/dev/null
		grep -q "$said" together/journal.txt
		tiny_on 2 "${o[@]}" "${files[@]}" --edit-workers 2 --edit-warmup-steps 99 -o warm >/dev/null
		for run in warm warm/worker-1; do
			[ "$(grep -c "$said" together/journal.txt)" -eq "$(grep -c "$said" $run/journal.txt)" ]
			cmp <(curve together) <(curve $run)
		done
	done
}

@test "before local SGD parts its workers, all compute a step again if a gradient of one is too large" {
	make_learned
	pt-ckpt merge --weights 1e3,1e3 small/checkpoints/latest.h5 small/checkpoints/latest.h5 -o large.h5
	one_is_beyond 'was too large' 1 -n 3 --init-from large.h5
}

# (Workers divide the sums by their number at the end.)
@test "before local SGD parts its workers, all skip a step of fp16 if the gradients of one overflow" {
	make_learned
	one_is_beyond 'gradients overflow' 2e6 -n 9 --init-from small/checkpoints/latest.h5 --dtype fp16 --loss-scale 1e6
}

@test "before local SGD parts its workers, their offloaded gradients are added too" {
	make_shard
	local o=(-m 1 --heads 4 --virtual 'tp=2,cp=2' -n 4 --log-every 1 --eval-every 0)
	local offload=(--offload grads --offload-to .)
	tiny_on 2 "${o[@]}" --dp 2 -o dp >/dev/null
	tiny_on 2 "${o[@]}" --edit-workers 2 --edit-warmup-steps 99 "${offload[@]}" -o alone >/dev/null
	tiny_on 4 "${o[@]}" --edit-workers 2 --edit-warmup-steps 99 --fsdp 2 "${offload[@]}" -o sharded >/dev/null
	cmp <(curve dp) <(curve alone)
	cmp <(curve dp) <(curve sharded)
}

@test "an eps that would notice the grid is warned of" {
	local o
	for o in '--eps 1e-11' '--optimizer muon --eps 0'; do
		# shellcheck disable=SC2086
		pt-train --dry-run --vocab 50 $o 2>err >/dev/null
		grep -q 'warning: --eps .*: gradients are sums of multiples of 2^-50' err
	done
	for o in '--eps 1e-10' '--optimizer sgd'; do
		# shellcheck disable=SC2086
		pt-train --dry-run --vocab 50 $o 2>err >/dev/null
		not grep -q 'multiples of' err
	done
}
