#!/usr/bin/env bats
# --dry-run --cluster: the predicted time of a step, and what of its communication is exposed.
load helpers

MODEL=(-a llama --layers 4 --heads 8 --dim 512 --ffn-dim 1536 -T 512 --vocab 1024 --dtype bf16 --device cuda
	--dry-run)

predict() { # CLUSTER OPTION...: into the file `plan`
	pt-train "${MODEL[@]}" --cluster "$@" >plan
}

value() { # NAME [COLUMN]: of a row of the prediction; with overlap, or column 2, without
	awk -v name="$1" -v column="${2:-1}" '/^# predicted/ { on = 1 }
		on && substr($0, 1, 2) == "  " {
			row = substr($0, 3, 22); sub(/ *$/, "", row)
			if (row == name) { $0 = substr($0, 25); print $column; exit }
		}' plan
}

holds() { # EXPRESSION of awk
	awk "BEGIN { exit !($1) }" || {
		echo "does not hold: $1"
		sed -n '/^# predicted/,$p' plan
		return 1
	}
}

@test "what is exposed, with overlap and without" {
	local layout
	for layout in '--fsdp 8 -b 16 -m 2' '--fsdp 16 -b 16 -m 1' '--dp 4 -b 16 -m 2 --zero 0' '--fsdp 8 --zero 1 -b 16 -m 2' \
		'--dp 2 --fsdp 8 -b 16 -m 1' '--tp 4 --fsdp 2 -b 16 -m 2' '--cp 2 --fsdp 4 -b 8 -m 1' '--tp 2 --pp 2 -b 16 -m 2'; do
		# shellcheck disable=SC2086 # options are words
		predict h100 $layout
		echo "$layout"
		holds "0 < $(value exposed) && $(value exposed) <= $(value exposed 2)"
		holds "$(value step) < $(value step 2) && $(value tokens/s) > $(value tokens/s 2)"
		holds "$(value computation) > 0"
		holds "($(value exposed) - $(value all 2)) ^ 2 < 1e-10"
		# messages of a ring and between stages are not waited for one after the other
		[[ $layout == *--[cp]p* ]] || holds "($(value all) - $(value all 3)) ^ 2 < 1e-10"
		[[ $layout == *--pp* ]] || {
			holds "($(value computation) + $(value exposed) - $(value step)) ^ 2 < 1e-10"
			holds "($(value computation 2) + $(value exposed 2) - $(value step 2)) ^ 2 < 1e-10"
		}
	done
	holds "$(value bubble) > 0"
	holds "($(value computation) + $(value exposed) + $(value bubble) - $(value step)) ^ 2 < 1e-10"
}

@test "one rank has no communication" {
	predict h100 -b 4 -m 2
	holds "$(value exposed) == 0 && $(value exposed 2) == 0 && $(value step) == $(value computation)"
	not grep -q '^# communication  *alone' plan
	cp plan fast
	predict nvlink=1,net=1 -b 4 -m 2
	diff <(sed '/^# predicted/d' fast) <(sed '/^# predicted/d' plan)
}

@test "attention at a rate of its own" {
	local all
	predict h100 -b 4 -m 2
	all=$(value computation)
	predict h100,attention=0.47 -b 4 -m 2
	holds "$(value computation) == $all"
	predict h100,attention=0.1 -b 4 -m 2
	holds "$(value computation) > $all"
	predict h100,attention=0.9 -b 4 -m 2
	holds "$(value computation) < $all"
}

@test "a step takes at least as long as the copies of offloaded state" {
	local step
	predict h100,pcie=10000 --offload all -b 4 -m 2
	step=$(value step)
	holds "$(value copies) == 0"
	predict h100,pcie=0.1 --offload all -b 4 -m 2
	holds "$(value copies) > 0 && ($(value step) - $(value copies) - $step) ^ 2 < 1e-10"
	awk -v step="$(value step)" '/^read\/step/ { read = $2 } /^written\/step/ { written = $2 }
		END { most = (read > written ? read : written) / 1e8; exit !(most > 0 && (step / most - 1) ^ 2 < 1e-8) }' plan
}

@test "links change communication, and nothing else" {
	local computation all exposed
	predict nvlink=20:10 --fsdp 8 -b 16 -m 2
	computation=$(value computation) all=$(value all) exposed=$(value exposed)
	predict nvlink=40:10 --fsdp 8 -b 16 -m 2
	holds "$(value computation) == $computation && $(value all) < $all && $(value exposed) < $exposed"
	predict nvlink=20:100 --fsdp 8 -b 16 -m 2
	holds "$(value computation) == $computation && $(value all) > $all && $(value exposed) > $exposed"
	# no rank is on another host, or every one is
	predict nvlink=20:10,net=1 --fsdp 8 -b 16 -m 2
	holds "$(value all) == $all"
	predict nvlink=1,net=20:10,gpus=1 --fsdp 8 -b 16 -m 2
	holds "$(value all) == $all && $(value exposed) == $exposed"
	# all 4 ranks of a host receive what the other one has, or each a quarter of it, as with NCCL's
	# gathers
	predict net=1:0,gpus=4 --fsdp 8 -b 16 -m 2 --comm mpi
	gather=$(value 'fsdp gather')
	predict net=1:0,gpus=4 --fsdp 8 -b 16 -m 2
	holds "$(value 'fsdp gather') < $gather / 2"
	# a step takes at least as long as the messages of an axis, which follow one another
	predict nvlink=1:10 --fsdp 8 -b 16 -m 2
	holds "$(value 'fsdp gather') + $(value 'fsdp sum') > $(value computation)"
	holds "$(value step) > $(value 'fsdp gather') + $(value 'fsdp sum')"
	predict h100,efficiency=0.2 --fsdp 8 -b 16 -m 2
	holds "$(value computation) > $computation"
	predict h100 --fsdp 8 -b 16 -m 2 --peak-flops 98.94e12
	holds "$(value computation) > 2 * $computation"
}

@test "without latency, communication is its bytes over the bandwidth" {
	local axis
	for layout in '--fsdp 8 -b 16 -m 2' '--dp 8 -b 16 -m 2' '--tp 8 -b 4 -m 2'; do
		# shellcheck disable=SC2086 # options are words
		predict nvlink=100:0 $layout
		axis=${layout%% [0-9]*} axis=${axis#--}
		sent=$(awk -v axis="$axis" '/^# communication$/ { on = 1 } on && $1 == axis { print $2; exit }' plan)
		seconds=$(awk -v axis="$axis" '/^# communication / { on = 1 } on && $1 == axis { n += $3 } END { print n }' plan)
		holds "$sent > 0 && ($seconds - $sent / 100e9) ^ 2 < 1e-11"
	done
}

@test "each further micro-batch takes as long" {
	predict h100 --fsdp 8 -b 128 -m 2
	local eight
	eight=$(value step)
	predict h100 --fsdp 8 -b 256 -m 2
	local sixteen
	sixteen=$(value step)
	predict h100 --fsdp 8 -b 384 -m 2
	holds "($(value step) - 2 * $sixteen + $eight) ^ 2 < 1e-10 && $sixteen > 1.7 * $eight"
}

@test "the predicted timeline" {
	predict h100 --fsdp 8 -b 16 -m 2 --trace t.json
	[ "$(head -n 1 t.json)" = '{"displayTimeUnit":"ms","traceEvents":[' ]
	[ "$(tail -n 1 t.json)" = ']}' ]
	sed '1d;$d' t.json >events
	[ "$(grep -c '},$' events)" -eq $(($(wc -l <events) - 1)) ]
	not grep -q ',$' <(tail -n 1 events)
	grep -q '"name":"rank 0, predicted"' events
	grep -q '"name":"forward, micro-batch 0"' events
	# what was waited for is what is exposed
	waited=$(sed -nE 's/.*"name":"waiting".*"dur":([0-9.]*).*/\1/p' events | awk '{ n += $1 } END { print n / 1e6 }')
	holds "$waited > 0 && ($waited - $(value exposed)) ^ 2 < 1e-11"
	for what in gather sum; do
		[ "$(grep -c "\"ph\":\"b\",\"cat\":\"fsdp\",\"name\":\"fsdp: $what\"" events)" -ge 4 ]
		[ "$(grep -c "\"ph\":\"b\".*\"name\":\"fsdp: $what\"" events)" -eq "$(grep -c "\"ph\":\"e\".*\"name\":\"fsdp: $what\"" events)" ]
	done
	# of a pipeline, a rank of each stage
	predict h100 --pp 2 -b 16 -m 2 --trace t.json
	grep -q '"name":"rank 0, predicted"' t.json
	grep -q '"name":"rank 1, predicted"' t.json
	code_of 74 pt-train "${MODEL[@]}" --cluster h100 --trace no-such-folder/t.json
}

@test "--tp beyond a host is warned of" {
	for tp in 2 4; do
		pt-train "${MODEL[@]}" --cluster h100,gpus=2 --tp $tp -b 4 -m 2 >plan 2>err
		[ "$(grep -c 'more than the 2 ranks per host' err)" -eq $((tp / 4)) ]
	done
}

@test "--device auto is the device of the cluster; the host has a total of its own" {
	local model=(-p gpt2-124m --dry-run)
	pt-train "${model[@]}" --cluster h100 >plan
	pt-train "${model[@]}" --cluster h100 --device cuda | diff plan -
	pt-train "${model[@]}" --cluster cpu | diff <(pt-train "${model[@]}" --cluster cpu --device cpu) -
	# rows after the first ones: of the GPU, or of the host
	awk '/^(data|checkpoint|pinned) / { host += $2 } /^on the host / { is = $4 } /^total/ { bad = 1 }
		END { exit !(is == host && is > 0) || bad }' plan
}

@test "a cluster that is refused" {
	reports 64 'needs --dry-run' pt-train --vocab 61 --cluster h100
	reports 64 '--device cuda' pt-train --vocab 61 --dry-run --device cpu --cluster h100
	for cluster in h1000 h100,nvlin=4 nvlink net=0 gpus=1.5 gpus=0 nvlink=450:x forward=maybe memory=-1 efficiency=2 attention=2 pcie=0; do
		code_of 64 pt-train "${MODEL[@]}" --cluster "$cluster"
		says cluster
	done
}
