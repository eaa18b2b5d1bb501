#!/usr/bin/env bats
# Audits over many layouts and planted bits, and the time until a defective device is found.
# PLANTS, 200: planted bits. RUNS, 300: runs with a defective device. SEED: of what is drawn.
load helpers
export SETUP=make_shard

# One micro-batch per data rank, so that each flip is in one that is audited.
LAYOUTS=('2 2 --dp 2' '3 3 --dp 3' '2 2 --fsdp 2' '3 3 --fsdp 3' '4 4 --fsdp 4' '4 4 --dp 2 --fsdp 2' '4 4 --fsdp 4 --zero 2'
	'2 2 --fsdp 2 --zero 1' '2 2 --fsdp 2 --offload all --offload-to .' '4 2 --fsdp 2 --tp 2' '4 2 --fsdp 2 --tp 2 --sp'
	'4 2 --dp 2 --tp 2 --fsdp-kind flat' '4 2 --fsdp 2 --cp 2' '4 2 --dp 2 --cp 2' '4 2 --dp 2 --pp 2' '4 2 --fsdp 2 --pp 2 --tie yes'
	'4 2 --dp 2 --pp 2 --pp-schedule zb-h1' '2 2 --fsdp 2 --dtype bf16' '2 2 --fsdp 2 -a llama --experts 4'
	'4 4 --fsdp 4 -a llama --experts 4 --ep 2')
PLACES=(activation gradient leaf tokens activation:layers.0.attention.wq activation:layers.1.attention
	activation:output gradient:layers.1.attention gradient:layers.0.feed_forward leaf:layers.0.attention.wk.weight
	leaf:layers.1.attention.wo.weight leaf:layers.1.attention_norm.weight)

train() { # DIRECTORY LAYOUT OPTION...
	local out=$1 ranks batch layout
	read -r ranks batch layout <<<"$2"
	shift 2
	# shellcheck disable=SC2086 # one word each
	tiny_on "$ranks" --layers 2 -n 4 --clip 0.1 --eval-every 0 -m 1 -b "$batch" $layout --overwrite -o "$out" "$@" >/dev/null 2>err
}

@test "each planted bit is detected and its rank named, or it changes nothing" {
	local i l rank step place flip named=0 harmless=0
	RANDOM=${SEED:-1}
	for ((i = 0; i < ${PLANTS:-200}; i++)); do
		l=$((i % ${#LAYOUTS[@]}))
		[ -e "clean-$l" ] || train "clean-$l" "${LAYOUTS[l]}"
		rank=$((RANDOM % ${LAYOUTS[l]%% *})) step=$((RANDOM % 4 + 1)) place=${PLACES[RANDOM % ${#PLACES[@]}]}
		flip=$rank:$step:$place
		[[ $place == *:* ]] && flip+=:$((RANDOM % 32)) || flip+=::$((RANDOM % 32))
		rm -rf run
		train run "${LAYOUTS[l]}" --referee 1 --inject-flip "$flip" || {
			echo "${LAYOUTS[l]}: $flip: exit code $?" && cat err
			return 1
		}
		cmp "clean-$l/checkpoints/latest.h5" run/checkpoints/latest.h5 || {
			echo "${LAYOUTS[l]}: $flip changes the run" && cat err
			return 1
		}
		if [ ! -e run/suspects ]; then
			harmless=$((harmless + 1))
		elif [ "$(cut -f2,5,6 run/suspects)" = "$step	$rank	sporadic" ]; then
			named=$((named + 1))
		else
			echo "${LAYOUTS[l]}: $flip" && cat err run/suspects
			return 1
		fi
	done
	echo "# figure: $named planted bits detected and their rank named, $harmless that change nothing" >&3
	[ "$named" -gt $((8 * harmless)) ]
}

# A rank with a wrong leaf in each micro-batch with probability 0.05 is found in step 1 / (1 - 0.95^2) = 10.3 on
# average: in each step, another rank computes its micro-batch, and it computes another rank's.
@test "a defective device is found after as many steps as computed" {
	local i sum=0 n=${RUNS:-300}
	for ((i = 1; i <= n; i++)); do
		rm -rf run
		! tiny_on 2 -n 400 -m 1 -b 2 --fsdp 2 --eval-every 0 -o run --referee 1 --referee-strikes 1 --seed "$i" \
			--inject-flip 1:1p0.05:leaf:layers.0.attention.wq.weight:25 >/dev/null 2>err || return 1
		[ "$(cut -f5 run/suspects)" = 1 ] || {
			cat err run/suspects
			return 1
		}
		sum=$((sum + $(cut -f2 run/suspects)))
	done
	echo "# figure: found in step $(awk "BEGIN { print $sum / $n }") on average, computed: 10.26" >&3
	awk "BEGIN { exit !($sum / $n > 0.9 * 10.26 && $sum / $n < 1.1 * 10.26) }"
}
