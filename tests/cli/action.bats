#!/usr/bin/env bats
# share/action: the script of the GitHub action, run as the runner does.
load helpers

action=$BATS_TEST_DIRNAME/../../share/action
TORCH=$BATS_TEST_DIRNAME/../golden/torch

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	mkdir tmp
	export GITHUB_ACTION_PATH=$action GITHUB_OUTPUT=$PWD/outputs GITHUB_STEP_SUMMARY=$PWD/summary.md RUNNER_TEMP=$PWD/tmp
	for i in 1 2 3 4 5 6 7 8; do echo "step=$i loss=$i.5"; done >a.log
	cp a.log same.log
	sed 's/3.5/3.6/' a.log >b.log
}

# Runs the command of action.yml with its defaults; NAME=VALUE are inputs.
act() { # CODE [NAME=VALUE]...
	local code=$1 command inputs=(INPUT_REQUIRE=identical INPUT_UNDECIDED=fail)
	shift
	command=$(sed -n "s/^      run: '\(.*judge.*\)'$/\1/p" "$action/action.yml")
	[ -n "$command" ]
	: >"$GITHUB_OUTPUT"
	: >"$GITHUB_STEP_SUMMARY"
	code_of "$code" env "${inputs[@]}" "$@" bash --noprofile --norc -eo pipefail -c "$command"
}

# The value of an output, as the runner reads it.
output_of() { # NAME
	awk -v name="$1" 'end != "" && $0 == end { end = ""; next }
		end != "" { if (take) print; next }
		{ i = index($0, "<<"); end = substr($0, i + 2); take = substr($0, 1, i - 1) == name }' "$GITHUB_OUTPUT"
}

# The lines that the runner would execute: commands outside ::stop-commands::.
commands() {
	awk 'stop != "" { if ($0 == "::" stop "::") stop = ""; next }
		/^::stop-commands::/ { stop = substr($0, 18); next }
		/^::/ || /##\[/' <<<"$output"
}

make_step() { # OPTIONS-AS-JSON
	mkdir -p step
	cp -r "$TORCH/trainer/checkpoint-0" step/before
	cp -r "$TORCH/trainer/checkpoint-1" step/after
	cp "$TORCH"/trainer/batch-?.pt step
	echo "{\"options\": $1, \"batch\": [\"batch-0.pt\", \"../x/batch-1.pt\"]}" >step/step.json
}

@test "logs: identical is a notice, different is an error; summary, outputs and report" {
	act 0 INPUT_CONTROL=a.log INPUT_TEST=same.log
	[ "$(commands)" = '::notice title=pt::verdict: identical bit for bit' ]
	[ "$(output_of verdict)" = 'verdict: identical bit for bit' ]
	[ "$(output_of code)" = 0 ]
	grep -q '</html>' "$(output_of report)"
	grep -q '^    verdict: identical' summary.md
	act 1 INPUT_CONTROL=a.log INPUT_TEST=b.log INPUT_REPORT=out.html
	[[ "$(commands)" == '::error title=pt::verdict: '* ]]
	[ "$(output_of report)" = out.html ]
	grep -q '</html>' out.html
	act 0 INPUT_CONTROL=a.log INPUT_TEST=b.log INPUT_REQUIRE=within $'INPUT_OPTIONS=\n--rtol=0.5\r\n\n--common\n'
	[[ "$(output_of verdict)" == 'verdict: the same within the tolerance' ]]
}

@test "logs: undecided fails unless the workflow accepts it" {
	awk 'BEGIN { srand(3); for (i = 1; i < 200; i++) print "step=" i " loss=" 5 - i / 100 + rand() }' >c.log
	awk 'BEGIN { srand(4); for (i = 1; i < 200; i++) print "step=" i " loss=" 5 - i / 100 + rand() }' >d.log
	act 3 INPUT_CONTROL=c.log INPUT_TEST=d.log INPUT_REQUIRE=equivalent
	[[ "$(commands)" == '::error title=pt::verdict: undecided'* ]]
	[ "$(output_of code)" = 3 ]
	act 0 INPUT_CONTROL=c.log INPUT_TEST=d.log INPUT_REQUIRE=equivalent INPUT_UNDECIDED=pass
	[[ "$(commands)" == '::notice title=pt::verdict: undecided'* ]]
	[ "$(output_of code)" = 3 ]
}

@test "a step: right, wrong, and facts that are not facts" {
	make_step '{"clip": 0.5, "precision": null, "freeze": []}'
	act 0 INPUT_STEP=step
	[ "$(commands)" = '::notice title=pt::verdict: the step is right' ]
	grep -q '</html>' "$(output_of report)"
	act 1 INPUT_STEP=step INPUT_OPTIONS=--clip=0.4
	[[ "$(commands)" == '::error title=pt::verdict: wrong'*'%0Afinding clip: '* ]]
	[ "$(output_of code)" = 1 ]
	rm step/step.json
	act 64 INPUT_STEP=step
	says '::error title=pt::step/step.json cannot be read'
	echo '{"options": {"report": "owned.html"}, "batch": []}' >step/step.json
	act 64 INPUT_STEP=step
	says '::error title=pt::step/step.json: report is not a fact of a step'
	echo '{"options": ' >step/step.json
	act 64 INPUT_STEP=step
}

@test "inputs that are missing or wrong" {
	act 64 INPUT_CONTROL=a.log
	says '::error title=pt::control or test is missing'
	act 64 INPUT_CONTROL=a.log INPUT_TEST=b.log INPUT_STEP=step
	says 'either a step, or control and test'
	act 64 INPUT_CONTROL=a.log INPUT_TEST=b.log INPUT_UNDECIDED=maybe
	act 64 INPUT_CONTROL=a.log INPUT_TEST=b.log INPUT_OPTIONS='-o x'
	says "option '-o x': write --NAME=VALUE"
	act 64 INPUT_CONTROL=a.log INPUT_TEST=b.log INPUT_OPTIONS=--nonsense
	[[ "$(commands)" == '::error title=pt::'*nonsense* ]]
	[ -z "$(output_of report)" ]
	act 2 INPUT_CONTROL=a.log INPUT_TEST=missing.log
	[[ "$(commands)" == '::error title=pt::'*missing.log* ]]
}

@test "hostile names: nothing is evaluated, and no line of the output is a command" {
	local name
	for name in '$(touch owned)' '`touch owned`' '; touch owned #' "a'b\"c" '--help' '${{ x }}' '::error::x' '%0A::error::x' \
		'```' '* [x](y) <img>' 'a b' '\e]0;x' $'x\e[2Jy' $'\u2028'; do
		cp b.log "./$name"
		act 1 INPUT_CONTROL=a.log "INPUT_TEST=$name"
		[ "$(commands | wc -l)" -eq 1 ]
		[ ! -e owned ]
		not grep -qvE '^(    |### pt-compare$|$)' summary.md
		act 0 "INPUT_CONTROL=$name" "INPUT_TEST=$name"
		[ "$(commands | wc -l)" -eq 1 ]
	done
	# a name with a line break is two names
	act 2 INPUT_CONTROL=a.log $'INPUT_TEST=b.log\n::set-output name=code::0'
	[ "$(commands | wc -l)" -eq 1 ]
	# a log with commands, and a message that repeats what it read
	printf 'step=1 loss=1\n::add-mask::x\n##[error]x\nstep=2 loss=::error::2\n' >bad.log
	act 1 INPUT_CONTROL=a.log INPUT_TEST=bad.log
	[ "$(commands | wc -l)" -eq 1 ]
	# outputs keep their names
	cp b.log same.log
	act 1 INPUT_CONTROL=a.log INPUT_TEST=b.log $'INPUT_REPORT=x\ncode<<E\n0\nE\n.html'
	[ "$(output_of code)" = 1 ]
	make_step '{"clip": "$(touch owned)\n::error::x"}'
	mkdir -p './--config=x/$(touch owned)'
	mv step './--config=x/$(touch owned)/'
	act 64 'INPUT_STEP=--config=x/$(touch owned)/step'
	[ "$(commands | wc -l)" -eq 1 ]
	[ ! -e owned ]
}

@test "action.yml gives each input to a variable, and no expression to a shell; the examples use its inputs" {
	local inputs used
	inputs=$(sed -n '/^inputs:/,/^outputs:/s/^  \([a-z]*\):$/\1/p' "$action/action.yml" | sort)
	[ "$(wc -w <<<"$inputs")" -eq 8 ]
	used=$(grep -o '^ *INPUT_[A-Z]*: ${{ inputs\.[a-z]* }}$' "$action/action.yml" | sed 's/.*inputs\.\([a-z]*\).*/\1/' | sort)
	[ "$inputs" = "$used" ]
	# in YAML, a value with a colon and a blank needs quotes
	not grep -nE "^ *(- )?[a-z-]+: [^\"'|].*: " "$action/action.yml" "$action"/examples/*
	not grep -n 'run: .*\${{' "$action/action.yml" "$action"/examples/*
	for used in $(sed -n '/share\/action@/,/^$/s/^          \([a-z]*\): .*/\1/p' "$action"/examples/*.yml | sort -u); do
		grep -qx "$used" <<<"$inputs"
	done
	[ "$(grep -l 'share/action@' "$action"/examples/*.yml | wc -l)" -eq 3 ]
}
