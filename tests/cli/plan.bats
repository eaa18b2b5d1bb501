#!/usr/bin/env bats
# pt-plan: layouts that pt-train accepts, their order, the decision list, JSON, goodput.
load helpers

SHAPE=(model.conf dtype=bf16 layers=7 heads=4 dim=128 ffn-dim=256 context=64 vocab=256)
EXPERTS=(experts=8 expert-dim=32 experts-per-token=2)
SMALL=(layers=4 heads=4 dim=64 context=64 vocab=256 batch=16)

plan() { # OPTION...
	pt-plan -c cpu,gpus=4,cores=4 "$@" model.conf "${SMALL[@]}"
}

small() { # a config file that adds nothing
	echo 'arch = llama' >model.conf
}

number() { # KEY: of the first result
	sed -nE "s/^ *\"$1\": ([-0-9.e]+),?$/\1/p" json | head -n 1
}

results() { # KEY FILE: "arguments value" of each result
	sed -nE "s/^ *\"$1\": ([-0-9.e]+),?$/value \1/p; s/^ *\"arguments\": \"(.*)\",?$/\1/p" "$2" |
		awk -v key="$1" '/^value/ { value = $2; next }
			{ gsub(" ", "_"); print $0, value }'
}

@test "the tables of the pages fit into a line of 80 characters" {
	command -v groff >/dev/null || skip 'no groff'
	for page in pt-plan.1 pt-collbench.1; do
		[ -z "$(groff -mdoc -Tutf8 "$BATS_TEST_DIRNAME/../../man/$page" 2>&1 >/dev/null)" ]
	done
}

@test "each of the first ten layouts passes pt-train --dry-run" {
	small
	local layout n=0
	plan --json >json
	while read -r layout; do
		n=$((n + 1))
		# shellcheck disable=SC2086 # arguments are words
		pt-train --dry-run $layout >/dev/null
	done < <(sed -nE 's/^ *"arguments": "(.*)",?$/\1/p' json)
	[ "$n" -eq 10 ]
	pt-plan --json -H 2 llama3-1b dtype=bf16 batch=64 >json
	n=0
	while read -r layout; do
		n=$((n + 1))
		# shellcheck disable=SC2086
		[ $n -gt 1 ] || pt-train --dry-run $layout >/dev/null
	done < <(sed -nE 's/^ *"arguments": "(.*)",?$/\1/p' json)
	[ "$n" -eq 10 ]
}

@test "a run with the best layout trains" {
	small
	make_shard
	for ranks in 2 4; do
		# shellcheck disable=SC2046
		mpiexec -n $ranks pt-train -q -d data.h5 -n 2 -t 1 --no-ckpt --eval-every 0 --log-every 1 \
			$(pt-plan --best -c cpu,gpus=$ranks,cores=2 model.conf "${SMALL[@]}") >"log$ranks"
		grep -q '^step=2 .*loss=' "log$ranks"
	done
}

@test "the memory and the time are those of pt-train --dry-run --cluster" {
	local step total words
	while read -ra words; do
		pt-plan --json -n 1 -x 1 "${words[@]}" >json
		step=$(number step) total=$(number total)
		# shellcheck disable=SC2046
		pt-train --dry-run --cluster h100 $(pt-plan --best -x 1 "${words[@]}") >dry
		awk -v step="$step" -v total="$total" '
			/^on the GPU/ { memory = $4 }
			/^  step / { time = $2 }
			END { exit !(memory == total && (time / step - 1) ^ 2 < 1e-8) }' dry
	done <<-end
		llama3-1b dtype=bf16 batch=64
		--only pp=2,tp=2 llama3-1b dtype=bf16 batch=16 residual-dtype=bf16
		--only recompute=full,zero=2 gpt2-124m dtype=bf16 batch=32 optimizer=muon
		--only cp=2,offload=optimizer llama3-1b dtype=float8 batch=16
	end
}

@test "the layout wins over what was given" {
	small
	plan --best -x 5 --tokens 2048 >best
	pt-plan --best -x 5 --tokens 2048 -c cpu,gpus=4,cores=4 model.conf "${SMALL[@]}" micro-batch=8 zero=1 fsdp=2 \
		pp-stages=2 reshard-after-forward=yes >other
	diff <(sed 's/.*batch=32/batch=32/' best) <(sed 's/.*batch=32/batch=32/' other)
	# shellcheck disable=SC2046
	pt-train --dry-run --print-config $(cat other) >conf
	local word
	for word in $(sed 's/.*batch=32//' other); do
		grep -qx "${word%%=*} = ${word#*=}" conf || {
			echo "$word is not in force"
			return 1
		}
	done
	grep -q ' batch=32 ' other
	grep -qx 'batch = 32' conf
}

@test "the memory of pipelines is that of the stage that needs most; of CPUs that of pt-train" {
	local layout n=0 total
	small
	pt-plan --json -c h100,gpus=4 -x 0 -n 10000 "${SHAPE[@]}" batch=8 >json
	while read -r total layout; do
		case $layout in
		*' pp=1 '* | *' dp=2 '*) continue ;;
		esac
		[ $((n++ % 9)) -eq 0 ] || continue
		# shellcheck disable=SC2086
		pt-train --dry-run $layout >dry
		awk -v total="$total" '/^on the GPU/ { exit total != $4 }' dry || {
			echo "$layout: $total"
			grep '^on the GPU' dry
			return 1
		}
	done < <(sed -nE 's/^ *"total": ([0-9]*),?$/\1/p; s/^ *"arguments": "(.*)",?$/\1/p' json | paste - -)
	[ "$n" -gt 20 ]
	small
	plan --json -x 5 -n 5 >json
	while read -r total layout; do
		# shellcheck disable=SC2086
		pt-train --dry-run $layout >dry
		awk -v total="$total" '/^checkpoint/ { copy = $2 } /^total/ { all = $2 }
			END { exit all - copy != total }' dry
	done < <(sed -nE 's/^ *"total": ([0-9]*),?$/\1/p; s/^ *"arguments": "(.*)",?$/\1/p' json | paste - -)
}

@test "degrees that are no powers of two" {
	small
	pt-plan --json -x 0 -n 1000 -c cpu,gpus=3,cores=3 model.conf layers=3 heads=3 dim=48 ffn-dim=96 context=384 vocab=256 batch=4 >json
	grep -q '"tp": 3' json
	grep -q '"cp": 3' json
	grep -q '"pp": 3' json
}

@test "what pt-train refuses, with its message" {
	small
	reports 1 'pt-train rejects all layouts' pt-plan "${SHAPE[@]}" layers=2 dtype=float8
	says 'float8 leaves the first and the last block in bf16'
	reports 64 'plans a single worker' pt-plan llama3-1b edit-workers=2
	reports 64 'give batch=N' pt-plan llama3-1b batch-per-rank=2
	reports 64 'cores' pt-plan -c h100,cores=4 llama3-1b
}

@test "options that exclude each other, and no layout" {
	local option
	for option in --explain --json --details '--timeline 80'; do
		# shellcheck disable=SC2086
		code_of 64 pt-plan --best $option llama3-1b
	done
	code_of 64 pt-plan --json --explain llama3-1b
	code_of 1 pt-plan --json -m 1G llama3-8b dtype=bf16 batch=8
	code_of 1 pt-plan --explain -m 1G llama3-8b dtype=bf16 batch=8
	reports 64 'blanks' pt-plan 'a file.conf'
}

@test "offloaded state is not counted; a restart that is always interrupted ends" {
	pt-plan --json -n 1 -x 3 -m 9G -c h100,gpus=1 llama3-1b dtype=bf16 batch=8 offload=all >json
	grep -q '"exact": true' json
	pt-plan -x 1 -n 1 llama3-1b dtype=bf16 batch=8 --failures 200 --restart-cost 600 >text
	grep -q '^# goodput: ' text
}

@test "more memory never makes the best layout slower, and too little refuses" {
	local first
	small
	plan --json -x 0 -m 100M >json
	first=$(number step)
	plan --json -x 0 -m 3M >json
	awk -v a="$first" -v b="$(number step)" 'BEGIN { exit !(a <= b) }'
	reports 1 'no layout fits into memory' pt-plan -m 1G llama3-8b dtype=bf16 batch=8
}

@test "the decision list: what fits, what does not, and a slow network" {
	pt-plan --explain -x 1 llama3-405b dtype=bf16 -H 8 -m 60G >text
	grep -q '^no   Does the model fit on one rank?' text
	grep -q '^yes  Does any layout fit?.*None fits without --tile or --offload. Its host needs' text
	pt-plan --explain llama3-405b dtype=bf16 batch=256 -H 32 >text
	grep -q '^yes  Does any layout fit?.*bubble\.$' text
	pt-plan --explain -x 1 llama3-1b dtype=bf16 batch=64 >text
	grep -q '^yes  Does the model fit on one rank?' text
	grep -q '^no   Is the network slow' text
	small
	plan --explain -x 1 >text
	grep -q '(without a limit)' text
	pt-plan --explain -c cpu,gpus=1 -x 1 model.conf "${SMALL[@]}" >text
	not grep -q 'network' text
	pt-plan --explain -x 1 -c h100,net=0.1 -H 8 llama3-8b dtype=bf16 batch=64 >text
	grep -q '^yes  Is the network slow' text
	reports 1 'no   Does the largest layer fit?' pt-plan --explain -x 1 llama3-405b dtype=bf16 -H 8 -m 1G
	says 'no   Does any layout fit? Each needs '
}

@test "the decision list: sequences, and the fastest layout" {
	pt-plan --explain -x 1 llama3-405b dtype=bf16 -H 64 batch=512 >text
	grep -q '^no   Do the activations of one sequence fit?.*sequences must be split' text
	grep -q '^yes  Does each rank get a sequence of its own? 512 sequences, 512 ranks' text
	grep -q '^yes  Does the largest layer fit?.*FSDP alone can do it' text
	pt-plan --explain -x 1 -H 8 llama3-8b dtype=bf16 batch=8 >text
	grep -q '^no   Does each rank get a sequence of its own?.*some axis must split' text
	grep -q '^yes  Do the activations of one sequence fit?' text
	grep -q '^yes  Does any layout fit?.*the fastest is .*tp=.* mb=1.*: ' text
}

@test "goodput: the formula and the simulation agree; the interval of Daly" {
	small
	plan -x 1 --failures 60 --ckpt-cost 0.5 --restart-cost 2 --slow 2 --slow-prob 0.001 --hours 50 >text
	awk '/^# goodput/ { d = $3 - $7; found = 1; exit !(d * d < 0.01 ^ 2 && $3 > 0.5 && $3 < 1) }
		END { if (!found) exit 1 }' text
	plan -x 1 --timeline 80 --slow 3 --slow-prob 0.2 >text
	grep -q '^# a step of 4 ranks' text
	plan -x 1 --slow 3 --slow-prob 0.2 >text
	grep -q 'no checkpoints' text
}

@test "the first line and JSON say what was planned" {
	pt-plan -n 1 -x 1 -H 2 -g 4 -m 70G llama3-1b dtype=bf16 batch=64 >text
	head -n 1 text | grep -qx '# llama3-1b dtype=bf16 batch=64 context=8192, trained by pt on 2 x 4 h100 with 70.0 GiB each'
	pt-plan --explain -x 1 -c h100,net=25 llama3-1b >text
	head -n 1 text | grep -q '^# llama3-1b dtype=fp32 .* h100,gpus=8,.*net=25:'
	pt-plan --json -n 1 --trainer torchtitan llama3-1b batch=64 >json
	grep -q '"model": "llama3-1b"' json
	grep -q '"trainer": "torchtitan"' json
	grep -q '"dtype": "bf16"' json
	grep -q '"cluster": "h100,gpus=8,' json
	[ "$(number batch) $(number context)" = '64 8192' ]
	# another device
	reports 64 "cluster: '4090' is none of h100, h200, b200, a100, cpu; for another device" pt-plan -c 4090 llama3-1b
	reports 64 "'v100' is none of h100, h200, b200, a100, cpu; for another device" pt-plan -c v100 llama3-1b
	not grep -q 'did you mean' <<<"$output"
	says 'h100,flops=165000,memory=1008,capacity=22G'
	pt-plan --json -n 1 -x 1 -c h100,flops=165000,memory=1008,capacity=22G llama3-1b dtype=bf16 batch=8 >json
	[ "$(number memory_limit)" -eq $((22 << 30)) ]
}

@test "the example of README plans what is trained: in bf16" {
	local words
	read -ra words < <(sed -n 's/^    pt-plan \(.*\) --network network.h5$/\1/p' "$BATS_TEST_DIRNAME/../../README.md")
	[ ${#words[@]} -gt 3 ]
	pt-plan -n 1 -x 1 "${words[@]}" >text
	head -n 1 text | grep -q ' dtype=bf16 .* on 2 x 8 h100'
}

@test "wrong models, clusters and batches" {
	small
	code_of 64 pt-plan
	reports 64 "preset 'nothing' is not in" pt-plan nothing
	local name near
	while read -r name near; do
		reports 64 "preset '$name' is not in" pt-plan "$name"
		says "did you mean '$near'"
	done <<-end
		gpt2-1.5b gpt2-1558m
		gpt2-345m gpt2-350m
		llama3-405m llama3-405b
		lama3-8b llama3-8b
	end
	code_of 64 pt-plan -c nowhere llama3-1b
	reports 64 'is not a multiple of the context' plan --tokens 100
	reports 64 'give key=value' pt-plan model.conf layers
	echo text >file
	code_of 65 plan --network file
}

@test "keys with a dot, of other trainers, are refused, with our name of what is known" {
	local key
	for key in parallelism.tensor_parallel_degree training.seq_len model.layers foo.bar ./foo; do
		reports 64 "unknown key '$key'" pt-plan gpt2-124m dtype=bf16 $key=8
	done
	reports 64 "did you mean 'tp'" pt-plan gpt2-124m parallelism.tensor_parallel_degree=8
	reports 64 "did you mean 'context'" pt-plan gpt2-124m training.seq_len=64
	reports 64 "did you mean '--context'" pt-train --dry-run -p gpt2-124m --training.seq_len 64
	# but the model may be a file whose name has both
	mkdir a.b=1
	echo 'arch = llama' >a.b=1/model.conf
	pt-plan -c cpu,gpus=4,cores=4 -x 1 -n 1 a.b=1/model.conf "${SMALL[@]}" >text
	grep -q '^  .* mb=' text
}

@test "what is given and not used is named: settings of the layout, the device, another trainer's precision" {
	small
	code_of 0 pt-plan -c cpu,gpus=4,cores=4 -x 1 -n 1 model.conf "${SMALL[@]}" tp=2 zero=1 tile=2
	says 'tp=2,zero=1: ignored, because the search tries all values; --only tp=2,zero=1 restricts it'
	code_of 0 pt-plan -c cpu,gpus=4,cores=4 -x 1 -n 1 --only tp=2,zero=1 model.conf "${SMALL[@]}" tp=2 zero=1 fsdp=-1 recompute=auto
	not grep -q 'the search tries' <<<"$output"
	code_of 0 pt-plan -x 1 -n 1 gpt2-124m dtype=bf16 device=cpu
	says 'device=cpu: ignored; the ranks of --cluster h100 are GPUs'
	code_of 0 pt-plan -x 1 -n 1 gpt2-124m dtype=bf16 device=cuda
	not grep -q 'device=' <<<"$output"
	code_of 64 pt-plan --trainer torchtitan llama3-8b dtype=fp32
	says 'torchtitan computes in bf16 or float8; give dtype=bf16'
	code_of 64 pt-plan --best --for megatron llama3-8b dtype=fp16
	code_of 0 pt-plan -n 1 --trainer torchtitan llama3-8b
	not grep -q 'dtype:' <<<"$output"
	# and --best prints each key once
	pt-plan --best -c cpu,gpus=4,cores=4 -x 1 --only tp=2 model.conf "${SMALL[@]}" tp=2 device=cpu tile=0 |
		tr ' ' '\n' | grep '=' | sed 's/=.*//' | sort | uniq -d >twice
	[ ! -s twice ]
}

# Seconds of a processor, written as a decimal number.
seconds_of() { # COMMAND...
	local TIMEFORMAT=%U
	{ time "$@" >text; } 2>&1
}

# The search reads fewer of the layouts than there are: many ranks have many more.
@test "Llama 405B on 4,096 ranks takes less than four times the search of 128 ranks" {
	local few many
	few=$(seconds_of pt-plan -n 1 -H 16 llama3-405b dtype=bf16 batch=2048)
	many=$(seconds_of pt-plan -n 1 -H 512 llama3-405b dtype=bf16 batch=2048)
	echo "$few s and $many s"
	instrumented || awk -v a="$few" -v b="$many" 'BEGIN { exit !(b < 4 * a + 0.5) }'
	grep -q '^ .* fsdp=' text
	grep -q '^# planned exactly: [1-9][0-9]*, [1-9][0-9]* with fewer layers' text
	# the first one is planned whole, too
	awk '/^# planned/ { time = $(NF - 8); memory = $(NF - 3); found = 1 }
		END { exit !(found && time < 1 && memory < 1) }' text
}

@test "405B on 8 GPUs, where little fits, takes less than four times the search of 70B" {
	local less more
	less=$(seconds_of pt-plan -n 1 llama3-70b dtype=bf16)
	more=$(seconds_of pt-plan -n 1 llama3-405b dtype=bf16)
	echo "$less s and $more s"
	instrumented || awk -v a="$less" -v b="$more" 'BEGIN { exit !(b < 4 * a + 0.5) }'
	grep -q ' offload=all$' text
}

@test "fewer layers predict the whole model" {
	local options=(-n 40 --only "recompute=full,recompute=none" llama3-1b dtype=bf16 layers=40 batch=32)
	pt-plan --json "${options[@]}" >json
	grep -q '"whole": false' json
	pt-plan --json -x 40 "${options[@]}" >whole
	not grep -q '"whole": false' whole
	local key
	for key in step total computation; do
		join <(results "$key" json | sort) <(results "$key" whole | sort) >both
		awk -v key="$key" '{ d = $2 / $3 - 1; if (d * d > 0.01 ^ 2) { print key, $0; bad = 1 } }
			END { exit bad || NR < 20 }' both
	done
}

# With four and six layers, gathers are hidden ever better, and from ten on each layer waits as long as the next one.
@test "where few layers do not yet cost the same, more are planned; rows are in the order of their times" {
	local only=zero=3,pp=1,tp=2,recompute=none,recompute=selective
	pt-plan -n 5 -H 32 --only $only,fsdp=32,fsdp=64 llama3-70b dtype=bf16 batch=512 >text
	awk '/^# planned/ { found = $(NF - 8) < 1 }
		/^[ =] / { if ($1 == "=") sub(/^=/, ""); if ($1 < last || $6 " " $7 ~ /-/) bad = 1; last = $1; n++; print }
		END { exit bad || !found || n < 3 }' text
	# the first one is planned whole
	grep -m 1 '^[ =] ' text | grep -q '^  '
}

@test "the first layout is the best by the middle of its band, and fits with the error of its memory" {
	local total words=(llama3-70b dtype=bf16 --hosts 32 --gpus 8)
	pt-plan --show 5 "${words[@]}" >text # tp=2 cp=4 is a hundredth faster, with -10%+80%
	grep -m 1 '^[ =] ' text | grep -q ' -10%+20% .* fsdp=64 tp=4 '
	tail -n 1 text | grep -qx '# 3 of [0-9]* layouts listed; --exact 60 plans more'
	not grep -q '!' text
	small
	plan -n 1000 -x 0 >text
	not grep -q '!\|plans more' text # without a limit
	total=$(plan --json -n 1 -x 0 | sed -nE 's/^ *"total": ([0-9]+),?$/\1/p')
	plan -n 1000 -x 0 -m $((total + 1)) >text
	not grep -q '!' <<<"$(grep -m 1 '^[ =] ' text)"
	grep '^[ =] ' text | awk '/!/ { n++; next } n { bad = 1 } END { exit !n || bad }'
	tail -n 1 text | grep -q '^# !: above the limit'
	plan --json -n 1000 -x 0 -m $((total + 1)) | awk '/"memory_tight": true/ { n++ } END { exit !n }'
}

@test "--only restricts the search, and adds what is not searched otherwise" {
	small
	plan -n 100 --only tp=2,pp-schedule=gpipe,pp=2 >text
	grep -q 'gpipe' text
	not grep '^[ ~=] ' text | grep -v 'pp=2 .*tp=2 gpipe'
	plan --json -n 1000 --only recompute=full,recompute=none,zero=0 >json
	[ "$(grep -c '"recompute": "full"' json)" -gt 0 ]
	[ "$(grep -c '"recompute": "none"' json)" -gt 0 ]
	not grep -q '"recompute": "[sm]' json
	not grep -q '"zero": [1-3]' json
	diff <(plan --only '') <(plan)
	plan --best --only micro-batch=4,tp=4 >best
	grep -q ' micro-batch=4 .* tp=4 ' best
	plan --only fsdp=4,reshard-after-forward=keep-last >text
	plan --best --only tile=2,fsdp=4 >best
	grep -q ' tile=2' best
	# shellcheck disable=SC2046
	pt-train --dry-run $(cat best) >/dev/null
	pt-plan --best -H 4 --only dp=4,fsdp=8 llama3-1b dtype=bf16 batch=64 >best
	grep -q ' dp=4 fsdp=8 ' best
	reports 64 'is none of' plan --only color=red
	reports 64 'give key=value' plan --only tp
	code_of 64 plan --only tp=x
	code_of 64 plan --only pp-schedule=none
	reports 64 'offload-to=DIRECTORY' plan --only offload=all
	reports 64 'within the settings of --only' plan --only tp=3
}

@test "last resorts: tiles, then offloading" {
	pt-plan -n 1 -m 16G llama3-70b dtype=bf16 batch=16 -H 8 >text
	grep -q 'tile=\|offload=' text
	pt-plan --best -m 16G llama3-70b dtype=bf16 batch=16 -H 8 >best
	# shellcheck disable=SC2046
	pt-train --dry-run --cluster h100 $(cat best) >dry
	awk '/^on the GPU/ { memory = $4 } END { exit !(memory <= 16 * 2 ^ 30) }' dry
	code_of 1 pt-plan -m 16G --only tile=0,offload=none llama3-70b dtype=bf16 batch=16 -H 8
}

@test "a step of interleaved stages takes as long for each micro-batch" {
	local batch only=tp=2,pp=4,pp-schedule=interleaved,pp-stages=2,micro-batch=1,recompute=matmuls
	for batch in 64 128 256; do
		pt-plan --json -x 1 -n 1 --only $only llama3-1b layers=32 dtype=bf16 batch=$batch >json
		number step
	done >steps
	awk '{ x = $1 / 2 ^ NR; if (NR > 1 && (x > last || x < 0.95 * last)) exit bad = 1; last = x }
		END { exit bad || NR != 3 }' steps
}

rate() { # HOSTS BATCH TRAINER ONLY MODEL...: tokens per second and GPU
	local hosts=$1 batch=$2 trainer=$3 only=$4
	shift 4
	pt-plan --json -n 1 -H "$hosts" --trainer "$trainer" --only "$only,recompute=none" "$@" batch="$batch" >json
	awk -v s="$(number step)" -v n=$((batch * ${context:-8192})) -v g=$((hosts * 8)) 'BEGIN { print n / s / g }'
}

near() { # X PUBLISHED BOUND
	awk -v x="$1" -v y="$2" -v b="$3" 'BEGIN { e = x / y - 1; print x, y, e; exit !(e < b && -e < b) }'
}

@test "Megatron-Bridge's tokens per second, of float8 on 8 to 1,024 H100" {
	local fp8=(context=8192 dtype=float8) v=dp=1,zero=1,micro-batch=1,pp-schedule=interleaved,pp-stages
	near "$(rate 1 128 megatron fsdp=8,zero=3,micro-batch=1 llama3-8b "${fp8[@]}")" 14451 0.15
	near "$(rate 8 128 megatron $v=5,tp=4,pp=8,fsdp=2 llama3-70b "${fp8[@]}")" 1602 0.15
	near "$(rate 128 512 megatron $v=8,tp=8,pp=8,cp=2,fsdp=8 llama3-405b "${fp8[@]}")" 297 0.15
	awk -v m="$(number total)" 'BEGIN { exit !(m < 76 * 2 ^ 30) }'
}

@test "nanotron: memories, which rows of its playbook have, and no times" {
	small
	gigabytes() { # HOSTS ONLY MODEL...
		local hosts=$1 only=$2
		shift 2
		pt-plan --json -n 1 -m 10T -H "$hosts" --trainer nanotron --only "$only,recompute=none" model.conf \
			heads=32 context=4096 vocab=131072 batch=256 "$@" >json
		awk -v m="$(number total)" 'BEGIN { print m / 1e9 }'
	}
	near "$(gigabytes 1 pp=1,tp=1,dp=8,fsdp=1,micro-batch=2 layers=16 dim=2048 ffn-dim=8192 tie=yes)" 50.2 0.1
	near "$(gigabytes 1 pp=1,tp=2,fsdp=4,zero=1,micro-batch=1 layers=16 dim=2048 ffn-dim=8192 tie=yes)" 12.5 0.1
	not grep -q '"step\|"mfu\|"communication' json
	pt-plan -n 3 --details --trainer nanotron -H 8 llama3-8b context=4096 batch=256 >text
	grep -q '^# no times: .*; memory is within -15%+25%$' text
	sed -n 4p text | grep -qx '~ *59.7 GiB  fsdp=64 zero=1 mb=1 full' # the simplest, with the least memory
	[ "$(grep -c '^~ ' text)" -eq 3 ]
	not grep -q 'seconds' text
	pt-plan --explain --trainer nanotron -H 8 llama3-8b context=4096 batch=256 >text
	grep -q 'the simplest is .* of 76\.0 GiB\.$' text
	for option in '--timeline 60' '--failures 1' '--slow-prob 0.1'; do
		# shellcheck disable=SC2086 # words
		reports 64 'not predicted for nanotron' pt-plan --trainer nanotron $option llama3-8b
	done
}

@test "torchtitan's published tokens per second are within the bands that are printed" {
	local published hosts batch context only model dtype
	while read -r published hosts batch context only model dtype; do
		pt-plan --json -n 1 -c h100,memory=2400 -m 10T -H "$hosts" --trainer torchtitan --only "zero=3,$only" "$model" \
			dtype="$dtype" context="$context" batch="$batch" >json
		awk -v t="$(awk -v n=$((batch * context)) -v g=$((hosts * 8)) -v p="$published" 'BEGIN { print n / p / g }')" \
			-v a="$(number step_low)" -v b="$(number step_high)" 'BEGIN { print a, t, b; exit !(a < t && t < b) }'
	done <<-end
		6667 1 16 8192 fsdp=8,micro-batch=2,recompute=matmuls llama3-8b bf16
		829 32 512 8192 fsdp=32,tp=8,micro-batch=16,recompute=full llama3-70b float8
		2540 1 4 65536 fsdp=4,cp=2,micro-batch=1,recompute=full llama3-8b float8
		1071 1 2 131072 fsdp=2,cp=4,micro-batch=1,recompute=full llama3-8b float8
		548 1 1 262144 fsdp=1,cp=8,micro-batch=1,recompute=full llama3-8b float8
	end
}

@test "ranks of context parallelism alone share what --zero says" {
	pt-plan -n 1 -H 1 --only tp=1,pp=1,zero=3 llama3-8b context=131072 batch=1 dtype=bf16 >text
	grep -q ' cp=8 zero=3 ' text
	pt-plan -n 1 -H 1 --only tp=1,pp=1 llama3-8b context=131072 batch=1 dtype=bf16 >text
	not grep -q offload text
}

@test "every time has its band, and a trainer that is not pt no plan" {
	pt-plan -n 3 --trainer torchtitan -H 8 llama3-8b batch=256 >text
	grep -q "^# band: from torchtitan's published times" text
	[ "$(grep -c '^~ .* [-+][0-9]*%+[0-9]*' text)" -eq 3 ]
	not grep -q 'planned exactly' text
	pt-plan --json -n 1 --trainer megatron -H 8 llama3-8b >json
	awk -v a="$(number step_low)" -v b="$(number step)" -v c="$(number step_high)" 'BEGIN { exit !(a < b && b < c) }'
	pt-plan -x 1 -n 1 -g 4 -c h100,capacity=70G,attention=0.34 gpt2-124m >text
	grep -q "^# band: it has four of five of torchtitan's published times on H100" text
	# of which there are none on other devices
	local cluster
	for cluster in cpu a100 h100,flops=165000 h200,net=100; do
		pt-plan -x 1 -n 1 -c "$cluster" gpt2-124m >text
		grep -q '^# band: assumed, as on H100; no published time was compared on ' text
		not grep -q 'four of five' text
	done
	pt-plan -n 1 --trainer megatron -c h200 llama3-8b >text
	grep -q '^# band: assumed.* on h200;' text
	pt-plan -n 1 --trainer megatron -H 8 llama3-8b >text
	grep -q '^# band: .*memory is assumed to be within' text
	reports 64 'was measured on GPUs' pt-plan --trainer megatron -c cpu llama3-8b
	reports 64 '--exact plans by the code that trains' pt-plan --trainer megatron -x 3 llama3-8b
	reports 64 'by the rules of this trainer' pt-plan --trainer nanotron --only offload=all llama3-8b
}

@test "other trainers: of times within the band, the simplest layout and none that is known to be too fast; B200" {
	pt-plan --trainer torchtitan -H 8 -n 1 llama3-70b batch=128 >out
	grep -q ' fsdp=16 tp=4 zero=3 mb=1$' out
	pt-plan --trainer megatron -n 1 qwen3-8b batch=512 >out
	grep -q ' fsdp=8 zero=1 mb=1$' out
	pt-plan --trainer megatron -c b200 -n 1 --only micro-batch=1 qwen3-8b batch=512 >b200
	awk '$1 == "~" { if (!n++) was = $2; else exit !(was > 2 * $2 && was < 2.4 * $2) }' out b200
	pt-plan --trainer megatron -H 8 -n 1 qwen3-32b batch=128 >out
	grep -q ' fsdp=16 tp=4 ' out
}

@test "the model of a directory of Hugging Face, or of its config.json" {
	make_shard
	local wanted
	pt-train -q -d data.h5 -n 0 -a llama --layers 4 --heads 4 --kv-heads 2 --dim 64 --ffn-dim 96 -T 64 -o run
	pt-ckpt convert run -o hf
	pt-plan --json -c cpu,gpus=4,cores=4 -n 3 -x 3 hf batch=16 >json
	pt-plan --json -c cpu,gpus=4,cores=4 -n 3 -x 3 hf/config.json batch=16 >file
	echo 'arch = llama' >model.conf
	pt-plan --json -c cpu,gpus=4,cores=4 -n 3 -x 3 model.conf layers=4 heads=4 kv-heads=2 dim=64 ffn-dim=96 \
		context=64 vocab="$(sed -nE 's/.*"vocab_size": ([0-9]+).*/\1/p' hf/config.json)" batch=16 >conf
	for wanted in file conf; do
		diff <(grep -E '"(step|total|batch|context)"' json) <(grep -E '"(step|total|batch|context)"' $wanted)
	done
	# and what --best prints trains it
	# shellcheck disable=SC2046
	mpiexec -n 2 pt-train -q -d data.h5 -n 1 -t 1 --no-ckpt --eval-every 0 --init-from hf \
		$(pt-plan --best -c cpu,gpus=2,cores=2 hf batch=16) >log
	grep -q '^step=1 ' log
	# a preset of the same name is meant, unless there is a slash
	cp -r hf gpt2-124m
	pt-plan -n 1 -x 1 gpt2-124m | head -n 1 | grep -q 'context=1024'
	pt-plan -n 1 -x 1 ./gpt2-124m batch=16 | head -n 1 | grep -q 'context=64'
	mkdir empty
	reports 74 'empty/config.json: No such file' pt-plan ./empty
	sed -i 's/"num_hidden_layers": 4/"num_hidden_layers": 99999999/' hf/config.json
	code_of 65 pt-plan hf
	says layers
}

@test "layouts of experts: pt-train accepts them, and plans the same memory and bytes" {
	local layout n=0 total bytes
	small
	pt-plan --json -c cpu,gpus=4,cores=4 -n 30 model.conf "${SMALL[@]}" "${EXPERTS[@]}" >json
	while read -r total layout; do
		n=$((n + 1))
		# shellcheck disable=SC2086
		pt-train --dry-run $layout >dry
		[ "$(awk '$1 == "total" { print $2 }' dry)" -eq \
			$((total + $(awk '$1 == "checkpoint" { print $2 }' dry))) ]
		# a token's slots go there and back, in the forward and in the backward, in fp32; and so do
		# the gates and their gradients. With recomputation, the rows go there once more
		bytes=$(awk -v ep="$(sed 's/.* ep=\([0-9]*\) .*/\1/' <<<"$layout")" \
			-v more="$(grep -c 'recompute=[smf]' <<<"$layout")" \
			'BEGIN { print 4 * 4 * 2 * 64 * 4 * (1 - 1 / ep) * ((4 + more) * 64 + 2) }')
		[ "$(awk '$1 == "rows" { print $2 }' dry)" = "$([ "$bytes" = 0 ] || echo "$bytes")" ]
	done < <(sed -nE 's/^ *"total": ([0-9]+),?$/\1/p; s/^ *"arguments": "(.*)",?$/\1/p' json | paste -d ' ' - -)
	[ "$n" -eq 30 ]
	grep -q '"ep": 1' json && grep -q '"ep": [24]' json
	pt-plan --json -c cpu,gpus=4,cores=4 -o ep=8 model.conf "${SMALL[@]}" "${EXPERTS[@]}" >json || true
	not grep -q '"ep": 8' json
}

@test "experts: parameters, the load of the fullest rank, the rate of their matmuls" {
	step() { pt-plan --json -H 2 -n 1 -o ep=8,fsdp=16,recompute=full,micro-batch=4 "$@" qwen3-30b-a3b dtype=bf16 batch=64 >json && number step; }
	pt-plan -H 2 -n 1 qwen3-30b-a3b dtype=bf16 batch=64 >list
	grep -q '^# 30.5 G parameters; 3.35 G of them, with 8 of 128 experts, compute a token' list
	awk -v a="$(step)" -v b="$(step --imbalance 1.5)" -v c="$(step -c h100,experts=0.235)" \
		'BEGIN { print a, b, c; exit !(b > 1.1 * a && c > 1.2 * a) }'
	reports 64 '--imbalance 1.6: a run with expert-room=1.5 would end' pt-plan --imbalance 1.6 qwen3-30b-a3b
	reports 69 '--trainer megatron: the formulas are for dense models' pt-plan --trainer megatron qwen3-30b-a3b
}

@test "a model_type that is not supported is named" {
	echo '{"model_type": "qwen3", "num_experts": null}' >dense.json
	echo '{"model_type": "nemotron_h_moe", "num_experts": 128}' >moe.json
	reports 69 'moe.json: model_type "nemotron_h_moe"' pt-plan ./moe.json
	reports 65 'dense.json: ' pt-plan ./dense.json
	not grep -q 'key = value' <<<"$output"
	cp dense.json dense.conf
	reports 65 'dense.conf:1: expected `key = value`, not JSON' pt-plan ./dense.conf
}

@test "the arguments of other trainers" {
	pt-plan --best --for megatron -H 128 --only tp=8,pp=8,cp=2,pp-stages=8,micro-batch=1 \
		llama3-405b context=8192 dtype=float8 batch=512 >best
	local word
	for word in '--num-layers 126' '--tensor-model-parallel-size 8' '--pipeline-model-parallel-size 8' \
		'--context-parallel-size 2' '--num-virtual-stages-per-pipeline-rank 8' '--global-batch-size 512' \
		'--num-query-groups 8' --use-distributed-optimizer --account-for-loss-in-pipeline-split '--fp8-format hybrid'; do
		grep -q -e " $word" best
	done
	pt-plan --best --for torchtitan -H 32 --only tp=8,fsdp=32,recompute=full llama3-70b batch=512 >best
	for word in 'tensor_parallel_degree 8' 'data_parallel_shard_degree 32' 'fsdp_reshard_after_forward [a-z]*'; do
		grep -q -e " --parallelism.$word" best
	done
	grep -q 'activation-checkpoint:full$' best
	not grep -q layers_per_stage best
	pt-plan --best --trainer nanotron llama3-8b context=4096 batch=256 >best
	grep -q 'parallelism.dp=.*optimizer.zero_stage=' best
	# it shards over all data-parallel ranks, or none
	code_of 64 pt-plan --best --trainer nanotron --only dp=2,fsdp=4 llama3-8b context=4096 batch=256
	# 34 layers, with the embedding and the head, in pieces of 3 are 12 stages and not 16
	pt-plan --best --for torchtitan -H 2 --only pp=4,pp-stages=3 llama3-8b >best
	grep -q 'layers_per_stage 3 ' best
	code_of 64 pt-plan --best --for torchtitan -H 2 --only pp=4,pp-stages=4 llama3-8b
	# it shards over ranks of cp too
	code_of 64 pt-plan --best --for torchtitan -H 1 --only cp=4,fsdp=1,zero=0 llama3-8b
	pt-plan --best --for torchtitan -H 8 --only pp=8,pp-stages=1,pp-schedule=1f1b llama3-8b >best
	not grep -q layers_per_stage best
	pt-plan --best --for megatron qwen2.5-0.5b head-dim=128 >best
	for word in '--kv-channels 128' --add-qkv-bias --disable-bias-linear '--rotary-base 1000000' '--norm-epsilon 1e-06'; do
		grep -q -e " $word" best
	done
	pt-plan --best --for megatron -H 4 --only dp=4,fsdp=8,zero=1 llama3-8b rope-scaling=llama3 >best
	grep -q ' --num-distributed-optimizer-instances 4 ' best
	grep -q ' --use-rope-scaling --rope-scaling-factor ' best
	not grep -q -e --add-qkv-bias best
	reports 0 ' --disable-bias-linear --add-qkv-bias ' pt-plan --best --for megatron -H 8 llama3-8b bias=attention
	says 'Megatron-LM cannot add a bias to attention'
	reports 64 '--for needs --best' pt-plan --for megatron llama3-8b
}

# Arguments that exist in Megatron-LM of 22 August 2026 (d98e8a64), torchtitan of 21 August 2026 (b5bcd76c) and
# nanotron of 7 April 2026 (2411b022); a name that is printed and not here has not been looked up.
@test "arguments of other trainers are names that they have" {
	cat >names <<-end
		account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split add-qkv-bias bf16 ckpt-format
		context-parallel-size data-parallel-sharding-strategy disable-bias-linear ffn-hidden-size fp8-format
		global-batch-size group-query-attention hidden-size kv-channels max-position-embeddings micro-batch-size
		no-rope-freq norm-epsilon normalization num-attention-heads num-distributed-optimizer-instances num-layers
		num-query-groups num-virtual-stages-per-pipeline-rank overlap-grad-reduce overlap-param-gather
		pipeline-model-parallel-size position-embedding-type qk-layernorm recompute-granularity recompute-method
		recompute-num-layers rope-scaling-factor rotary-base seq-length sequence-parallel swiglu
		tensor-model-parallel-size untie-embeddings-and-output-weights use-distributed-optimizer use-megatron-fsdp
		use-rope-scaling window-attn-skip-freq window-size
		parallelism.context_parallel_degree parallelism.data_parallel_replicate_degree
		parallelism.data_parallel_shard_degree parallelism.fsdp_reshard_after_forward parallelism.num_pp_microbatches
		parallelism.pipeline_parallel_degree parallelism.pipeline_parallel_layers_per_stage
		parallelism.pipeline_parallel_schedule parallelism.tensor_parallel_degree training.max_context_length
		training.num_tokens_per_microbatch_per_dp_rank training.num_tokens_per_train_step
		optimizer.zero_stage parallelism.dp parallelism.pp parallelism.recompute_layer parallelism.tp
		tokens.batch_accumulation_per_replica tokens.micro_batch_size tokens.sequence_length
	end
	tr ' ' '\n' <names | sort -u >known
	{
		pt-plan --best --for megatron -H 4 --only recompute=full,pp=4,pp-stages=2,tp=2,cp=2 \
			qwen3-0.6b context=4096 dtype=float8 layers=16
		pt-plan --best --for megatron -H 4 --only pp=4,dp=2,fsdp=4,recompute=selective llama3-8b rope-scaling=llama3
		pt-plan --best --for megatron -H 4 --only zero=3 llama3-8b sliding-window=512 sliding-window-from=28
		pt-plan --best --for megatron smollm3-3b
		pt-plan --best --for megatron qwen2.5-0.5b head-dim=128
		pt-plan --best --for torchtitan -H 2 --only pp=4,pp-stages=3 llama3-8b
		pt-plan --best --trainer nanotron llama3-8b context=4096 batch=256
	} >best
	grep -o -e '--[a-z][^ ]*' -e ' [a-z]*\.[a-z_]*=' best | tr -d ' =' | sed 's/^--//' | sort -u >used
	comm -23 used known >unknown
	[ ! -s unknown ]
	grep -q -e "--window-size '(511,0)' --window-attn-skip-freq '\[0\]\*28+\[1\]\*4'" best
	pt-plan --best --for megatron llama3-8b sliding-window=512 sliding-window-skip=6 >best
	grep -q -e "--window-size '(511,0)' --window-attn-skip-freq 6 " best
	# every eighth of the later ones attends to all
	pt-plan --best --for megatron llama3-8b sliding-window=512 sliding-window-from=20 sliding-window-skip=8 >best
	grep -q -e "'\[0\]\*20+\[1\]\*3+\[0\]\*1+\[1\]\*7+\[0\]\*1'" best
}

@test "405B on 16,384 ranks takes less than six times the search of 2,048 ranks" {
	local few many trainer
	for trainer in pt megatron; do
		few=$(seconds_of pt-plan -n 1 -H 256 --trainer $trainer llama3-405b dtype=bf16 batch=2048)
		many=$(seconds_of pt-plan -n 1 -H 2048 --trainer $trainer llama3-405b dtype=bf16 batch=2048)
		echo "$trainer: $few s and $many s"
		instrumented || awk -v a="$few" -v b="$many" 'BEGIN { exit !(b < 6 * a + 0.5) }'
	done
}

@test "layers that differ, by windows or --freeze, are planned as --exact 0 plans them" {
	local setting
	for setting in freeze='layers\.20\.' sliding-window=1024,sliding-window-from=16 sliding-window=1024,sliding-window-skip=3; do
		# shellcheck disable=SC2086 # several settings
		set -- -n 1 -g 8 --only tp=2,cp=1,pp=1,zero=2 -t 524288 llama3-8b ${setting//,/ }
		pt-plan "$@" | tail -1 >few
		pt-plan --exact 0 "$@" | tail -1 >all
		grep ' tp=2 ' all
		cmp few all
	done
	# characters of the shell, unless it would make names of files of them; MFU counts what is computed
	pt-plan "$@" 'freeze=tok_|layers\.[0-9]\.|layers\.[12][0-9]\.' >all
	awk '/^ / { n++; if ($3 > 0.7 || $3 < 0.2) exit 1 } END { exit !n }' all
	: >freeze=layers.3
	reports 64 'to file names' pt-plan "$@" 'freeze=layers.[0-9]'
	# the names of its layers are not those of smaller models
	pt-plan -n 1 -g 8 --only tp=2,cp=1,pp=1,zero=2 llama3-8b lr-scale-of='layers.20=2' | grep -q 'fsdp=4 tp=2'
}
