#!/usr/bin/env bats
# A checkpoint may be anybody's: what it has saved changes nothing but the run.
load helpers

forge() { # FROM TO TEXT
	"$BUILD/tests/test_saved" forge "$@"
}

forge_number() { # FILE NAME N
	"$BUILD/tests/test_saved" number "$@"
}

# A run of four steps, and good.h5, a copy of its checkpoint.
make_run() {
	make_shard
	tiny -n 4 --decay-steps 8 -o run >/dev/null
	cp run/checkpoints/step-00000004.h5 good.h5
}

damaged() { # FILE TEXT
	reports 65 "$2" pt-ckpt verify "$1"
	[[ $output == *DAMAGED* ]]
}

refused() { # FILE TEXT: by all who read its options
	damaged "$@"
	code_of 65 pt-ckpt show --options "$1"
	code_of 65 pt-ckpt strip "$1" -o new.h5
	reports 65 "$2" tiny -n 6 --resume "$1" -o new
	code_of 65 tiny -n 6 --init-from "$1" -o new
	[ ! -e new ]
	[ ! -e new.h5 ]
}

@test "no option that is the user's is taken from a checkpoint" {
	make_run
	echo precious >victim
	local name whose value names=()
	while read -r name whose value; do
		[ "$whose" = user ] || continue
		names+=("$name")
		[ "$value" != victim ] || value=$PWD/victim
		forge good.h5 "evil-$name.h5" "$name = $value"
	done < <("$BUILD/tests/test_saved" options)
	[ "${#names[@]}" -gt 40 ]
	code_of 65 pt-ckpt verify evil-*.h5
	[ "$(grep -c DAMAGED <<<"$output")" -eq "${#names[@]}" ]
	for name in "${names[@]}"; do
		says "'$name' is not an option of a run"
	done
	for name in out trace inject-delay; do # one test of all programs for each kind of use
		refused "evil-$name.h5" "'$name' is not an option of a run"
	done
	[ "$(cat victim)" = precious ]
}

@test "an option of the run is taken from a checkpoint, unless the user gives it" {
	make_run
	forge good.h5 other.h5 $'keep = 7\nseed = 9\nsample-prompt = lord'
	[ "$(pt-ckpt verify other.h5)" = 'other.h5: ok' ]
	tiny -n 5 --resume other.h5 -o new >/dev/null
	for line in 'keep = 7' 'seed = 9' 'sample-prompt = lord'; do
		pt-ckpt show --options new/checkpoints/latest.h5 | grep -qx "$line"
	done
	tiny -n 5 --resume other.h5 -o own --seed 3 >/dev/null
	pt-ckpt show --options own/checkpoints/latest.h5 | grep -qx 'seed = 3'
}

@test "what a run cannot have saved is damage, to verify too" {
	make_run
	local text
	for text in 'layers = 0' 'no-such = 1' 'batch = 1e400' 'dropout = nan' 'arch = lama'; do
		forge good.h5 evil.h5 "$text"
		refused evil.h5 "${text%% *}"
	done
	code_of 65 pt-sample evil.h5 x
	forge good.h5 evil.h5 'layers = 100000'
	reports 65 'the file has 20 tensors, but its options, of 100000 layers' tiny -n 6 --resume evil.h5 -o new
	forge good.h5 evil.h5 lr
	refused evil.h5 'expected `key = value`'
}

@test "steps, samples and tokens agree" {
	make_run
	local change
	for change in 'samples 9223372036854775807' 'samples 9007199254740992' 'samples 3' 'samples 0' \
		'tokens 511' 'tokens 496' 'tokens 528' 'tokens 9223372036854775807' 'step 0' 'step 33' 'step -1'; do
		cp good.h5 evil.h5
		# shellcheck disable=SC2086 # words
		forge_number evil.h5 $change
		refused evil.h5 "${change% *}"
	done
	# another batch than before is no damage
	tiny -n 6 -b 4 --resume good.h5 -o new >/dev/null 2>&1
	pt-ckpt show new/checkpoints/latest.h5 | grep -qx 'samples = 40'
	[ "$(pt-ckpt verify new)" = 'new: ok' ]
}

@test "samples that slower workers skipped: what is made of the parameters is no damage" {
	make_run
	"$BUILD/tests/test_saved" skipped good.h5 slow.h5 3
	[ "$(pt-ckpt verify slow.h5)" = 'slow.h5: ok' ]
	pt-ckpt strip slow.h5 -o stripped.h5
	pt-ckpt average slow.h5 slow.h5 -o mean.h5
	pt-ckpt cast --dtype bf16 slow.h5 -o cast.h5
	for name in stripped mean cast; do
		[ "$(pt-ckpt verify $name.h5)" = "$name.h5: ok" ]
		pt-ckpt show $name.h5 | grep -qx 'tokens = 464'
		tiny -n 1 --init-from $name.h5 -o of-$name >/dev/null
	done
	# with its optimizer, or more tokens than there were samples for, it would be damage
	forge_number slow.h5 tokens 480
	refused slow.h5 tokens
	forge_number stripped.h5 tokens 528
	refused stripped.h5 tokens
}

@test "--resume auto passes over what is damaged so" {
	make_run
	tiny -n 6 --resume auto --keep 0 -o run >/dev/null 2>&1
	forge run/checkpoints/step-00000006.h5 evil.h5 "trace = $PWD/victim"
	mv evil.h5 run/checkpoints/step-00000006.h5
	tiny -n 8 --resume auto -o run >/dev/null 2>err
	grep -q "'trace' is not an option of a run; looking for an older checkpoint" err
	[ ! -e victim ]
	[ "$(grep -o '^# event .* step=[0-9]* resume$' run/journal.txt | tail -n 1 | cut -d' ' -f4-)" = 'step=4 resume' ]
}

@test "other data: refused by --resume-exact, else in the journal" {
	make_run
	rev text.txt >other.txt
	pt-prepare -q other.txt -o other.h5
	tiny -n 6 --resume run/checkpoints/latest.h5 -o same --resume-exact >/dev/null
	not grep -q 'other data' same/journal.txt
	reports 65 'resume-exact: the data differ' tiny -n 6 -d other.h5 --resume run -o exact --resume-exact
	[ ! -e exact ]
	tiny_on 2 -n 6 -d other.h5 --resume run -o new >/dev/null 2>err
	[ "$(grep -c 'trained on other data' err)" -eq 1 ]
	grep -q '^# event .*step=4 the data differ from the checkpoint' new/journal.txt
}

# (pt-prepare --verify)
@test "numbers of a shard that cannot be are damage" {
	make_text >text.txt
	pt-prepare -q --separator $'.\n' text.txt -o data.h5
	local change
	for change in 'train_total -1' 'train_total 1152921504606846976' 'val_total 0' 'documents -1' \
		'source_bytes -5' 'index 1' 'count 0'; do
		cp data.h5 evil.h5
		# shellcheck disable=SC2086 # words
		forge_number evil.h5 $change
		reports 65 'evil.h5: DAMAGED' pt-prepare --verify evil.h5
		code_of 65 tiny -n 1 -d evil.h5 -o new
	done
	for change in '/documents_train 5' '/documents_val 0' '/tokenizer/offsets 3'; do
		cp data.h5 evil.h5
		# shellcheck disable=SC2086 # words
		"$BUILD/tests/test_saved" element evil.h5 $change 1152921504606846976
		reports 65 'evil.h5: DAMAGED' pt-prepare --verify evil.h5
	done
	[ "$(pt-prepare --verify data.h5)" = 'data.h5: ok' ]
	rm data.h5
	make_run
	"$BUILD/tests/test_saved" element good.h5 /tokenizer/offsets 3 1152921504606846976
	reports 65 'good.h5: DAMAGED' pt-ckpt verify good.h5
}

no_commands() { # of a terminal
	not grep -q $'\e' <<<"$output"
}

@test "options that contradict the tensors are damage, found before memory is allocated" {
	make_run
	local text
	for text in 'layers = 100000' 'layers = 2' 'dim = 1000000' 'dim = 8' 'ffn-dim = 16777216' 'vocab-multiple = 1000000' \
		'bias = no' 'tie = no' 'arch = llama' 'act = swiglu' 'heads = 3' 'virtual = tp=1000'; do
		forge good.h5 evil.h5 "$text"
		refused evil.h5 'evil.h5: '
		code_of 65 pt-train -q --self-test no -t 1 -n 6 --resume evil.h5 -o new
		code_of 65 pt-sample evil.h5 x
	done
	forge good.h5 evil.h5 'vocab-multiple = 1000000'
	refused evil.h5 'tok_embeddings.weight is ['
	says ', 16], but the options in the file give [1000000, 16]'
	# parameters alone may be a part of a model, but no run and no sample begins from them
	pt-ckpt strip good.h5 -o bare.h5
	forge bare.h5 part.h5 'layers = 100000'
	[ "$(pt-ckpt verify part.h5)" = 'part.h5: ok' ]
	for text in 'pt-sample part.h5 x' 'pt-train -q -t 1 -n 6 --resume part.h5 -o new' \
		'pt-train -q -t 1 -n 6 --init-from part.h5 -o new' 'pt-ckpt convert part.h5 -o new.bin'; do
		# shellcheck disable=SC2086 # words
		reports 65 '100000 layers, ' $text
	done
	[ ! -e new ]
	pt-ckpt average part.h5 part.h5 -o same.h5
	[ "$(pt-ckpt verify same.h5)" = 'same.h5: ok' ]
}

@test "names and texts of a checkpoint command no terminal" {
	make_run
	local red=$'\e[31m'
	"$BUILD/tests/test_saved" name good.h5 evil.h5 "norm${red}"
	reports 65 'evil.h5: DAMAGED' pt-ckpt verify evil.h5
	says '/norm?[31m is not a tensor'
	no_commands
	code_of 64 pt-ckpt rename good.h5 --rename "norm.bias=$red" -o new.h5
	no_commands
	"$BUILD/tests/test_saved" by good.h5 evil.h5 "me$red"
	run pt-ckpt show evil.h5
	says 'created_by = me?[31m'
	no_commands
	run pt-ckpt diff good.h5 evil.h5
	says 'me?[31m'
	no_commands
	forge good.h5 evil.h5 "arch = $red"
	reports 65 "'?[31m'" pt-ckpt verify evil.h5
	no_commands
	# as they are for a file, which may be a config
	forge good.h5 evil.h5 "sample-prompt = $red"
	pt-ckpt show --options evil.h5 | grep -qF "$red"
	run pt-ckpt diff good.h5 evil.h5
	says 'option sample-prompt '
	no_commands
	# of a vocabulary
	sed "s/of/$red/" text.txt >red.txt
	pt-prepare -q red.txt -o red.h5
	run pt-train "${TINY[@]:1}" -d red.h5 -n 1 --sample-every 1 --sample-prompt "$red"
	says 'a sample after step 1:'
	says '?[31m'
	no_commands
}

@test "an option of a checkpoint commands no terminal" {
	needs_terminal
	make_run
	forge good.h5 evil.h5 $'sample-prompt = \e[31m'
	run script -qc 'pt-ckpt show --options evil.h5' /dev/null </dev/null
	says 'sample-prompt = ?[31m'
	no_commands
}

@test "texts of a log command no terminal" {
	make_run
	sed "s/^# arith lr = .*/# arith lr = "$'\e[31m/; s/^# meta arithmetic = .*/# meta arithmetic = 0x1/; s/ loss=/ loss=9/' \
		run/journal.txt >other.txt
	reports 1 'lr: 0.001, ?[31m' pt-compare run/journal.txt other.txt
	no_commands
}

@test "a signal ends an evaluation that takes long, which has no loss, and a sample" {
	make_run
	# text for so many windows that no machine evaluates all of them during this test
	for _ in $(seq 500); do cat text.txt; done >much.txt
	pt-prepare -q much.txt -o much.h5
	forge good.h5 evil.h5 $'eval-every = 1\neval-windows = 9007199254740992\nsample-every = 1\nsample-tokens = 1000000000'
	# it comes to the last of two ranks
	timeout -k 5 300 mpiexec -n 2 pt-train -t 1 --self-test no -d much.h5 -n 1000000 --log-every 1 \
		--resume evil.h5 -o long >/dev/null 2>err 3>&- &
	local pid=$!
	wait_for '# event .* start' long/journal.txt
	kill -TERM "$(ranks_of "$(pgrep -P $pid)" | tail -n 1)"
	ended $pid
	[ "$status" -eq 75 ]
	pt-ckpt verify long/checkpoints/latest.h5
	grep -q '# event .*the evaluation was ended by a signal' long/journal.txt
	not grep -q 'val_loss=' long/journal.txt
	grep -q '^step=5 ' long/journal.txt
	grep -q 'a sample after step 5:' err
}

@test "a run whose gradients were other sums is resumed with other arithmetic, and says so" {
	make_run
	cp good.h5 old.h5
	forge_number old.h5 grid 0
	reports 64 'sums tree -> grid-50' tiny -n 6 --resume old.h5 --resume-exact -o new
	tiny -n 6 --resume old.h5 -o new >/dev/null
	grep -q 'event .* the arithmetic changes: sums tree -> grid-50$' new/journal.txt
	cp good.h5 older.h5
	forge_number older.h5 order 0
	reports 64 'order 0 -> 2' tiny -n 6 --resume older.h5 --resume-exact -o other
	tiny -n 6 --resume good.h5 --resume-exact -o same >/dev/null
	not grep -q 'arithmetic changes' same/journal.txt
}
