#!/usr/bin/env bats
# Fine-tuning: --init-from a model of Hugging Face, --freeze, --lr-scale-of.
load helpers

recipe=$BATS_TEST_DIRNAME/../../share/recipes/finetune

setup_file() {
	cd "$BATS_FILE_TMPDIR" || exit 1
	unset PT_DATA
	seq 300 | sed 's/.*/line & of a text for a tokenizer, and of it the line &/' >text
	pt-prepare -q --train-bpe 300 --vocab-out vocab text
	pt-prepare -q -t bpe --vocab-files vocab text -o text.h5
	pt-prepare -q -t byte text -o byte.h5
	pt-train -q -d text.h5 -o base "${model[@]}" -n 3 >out 2>&1
	pt-ckpt convert base -o hf --vocabulary vocab
}

model=(-a llama --layers 3 --heads 2 --dim 16 -T 16 -b 4 -m 1 --warmup 0 --eval-windows 8 -t 1)
tune=(pt-train -q -T 16 -b 4 -m 1 --warmup 0 --eval-windows 8 -t 1 -n 3)

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	unset PT_DATA
	ln -s "$BATS_FILE_TMPDIR"/{hf,base,text.h5,byte.h5,vocab} .
}

@test "init-from: a directory of Hugging Face is as good as the checkpoint that it was made of" {
	"${tune[@]}" -d text.h5 -o a --init-from hf
	mpiexec -n 2 "${tune[@]}" -d text.h5 -o b --init-from hf --fsdp 2 --virtual tp=1,cp=1
	mpiexec -n 2 "${tune[@]}" -d text.h5 -o c --init-from hf --dp 2 --virtual tp=1,cp=1 --ckpt-load broadcast
	"${tune[@]}" -d text.h5 -o d --init-from base
	for run in b c d; do
		[ "$(pt-ckpt hash $run/checkpoints/latest.h5 | cut -d' ' -f1)" = "$(pt-ckpt hash a/checkpoints/latest.h5 | cut -d' ' -f1)" ]
	done
	# a run that resumes does not need it
	"${tune[@]}" -d text.h5 -o a --init-from gone --resume auto -n 4
	pt-train --dry-run --init-from hf | grep -q 'layers.0 to 2'
}

@test "init-from: a tokenizer that cannot be read, or has another normalizer" {
	cp -r hf/. lower
	jq '.normalizer.type = "Lowercase"' hf/tokenizer.json >lower/tokenizer.json
	pt-prepare -q --train-bpe 280 --vocab-out few "$BATS_FILE_TMPDIR/text"
	pt-prepare -q -t bpe --vocab-files few "$BATS_FILE_TMPDIR/text" -o few.h5
	code_of 65 mpiexec -n 2 "${tune[@]}" -d few.h5 -o x --init-from lower
	[ "$(grep -c "the normalizer 'Lowercase' is not supported" <<<"$output")" -eq 1 ]
	grep -q "has 300 rows: .* or give --vocab-multiple 300 if" <<<"$output"
	mkdir nfc
	jq '.normalizer = {"type": "NFC"}' vocab/tokenizer.json >nfc/tokenizer.json
	pt-prepare -q -t bpe --vocab-files nfc "$BATS_FILE_TMPDIR/text" -o nfc.h5
	code_of 65 "${tune[@]}" -d nfc.h5 -o x --init-from hf
	says "its tokenizer has the normalizer none, but the data's has NFC"
	# a checkpoint without files of Hugging Face says its normalizer
	pt-train -q -d nfc.h5 -o small "${model[@]}" -n 1
	pt-ckpt convert small -o again
	jq -e '.normalizer.type == "NFC"' again/tokenizer.json
	"${tune[@]}" -d nfc.h5 -o y --init-from again -n 1
}

@test "init-from: bytes and characters, in the tokenizer.json that pt-ckpt writes of them" {
	local text=$BATS_FILE_TMPDIR/text kind run
	pt-prepare -q -t char "$text" -o char.h5
	for kind in byte char; do
		pt-train -q -d $kind.h5 -o $kind "${model[@]}" -n 1
		pt-ckpt convert $kind -o $kind.hf
		"${tune[@]}" -d $kind.h5 --init-from $kind.hf -o $kind.new 2>err
		not grep warning err
		"${tune[@]}" -d $kind.h5 --init-from $kind -o $kind.own
		for run in new own; do
			pt-ckpt hash $kind.$run | cut -d' ' -f1 >$run
		done
		cmp new own
		pt-prepare -q -t bpe --vocab-files $kind.hf "$text" --overwrite -o again.h5
		for run in $kind again; do
			pt-prepare --info $run.h5 | grep -E '(train|val)_xxh3|^vocab' >$run.info
		done
		cmp $kind.info again.info
	done
	sed 's/e/E/g' "$text" >other
	pt-prepare -q other -o other.h5
	reports 65 "differs from the data's" "${tune[@]}" -d other.h5 -o x --init-from char.hf
	reports 65 "the vocabulary has no character 'E'" pt-prepare -t bpe --vocab-files char.hf other -o x.h5
	code_of 65 pt-prepare -t gpt2 --vocab-files char.hf "$text" -o x.h5
	says 'char.hf/tokenizer.json: a vocabulary of characters takes no pattern or model'
}

@test "init-from: options and data that contradict the model are refused, with both" {
	reports 64 "hf: its --layers is 3, but the run's is 4" "${tune[@]}" -d text.h5 -o x --init-from hf --layers 4
	code_of 64 "${tune[@]}" -d text.h5 -o x --init-from base --act gelu
	says "its --act is swiglu, but the run's is gelu"
	code_of 65 "${tune[@]}" -d byte.h5 -o x --init-from hf
	says "its vocabulary (bpe of 300 tokens) differs from the data's (byte of 256)"
	code_of 74 "${tune[@]}" -d text.h5 -o x --init-from nothing
	[ ! -e x ]
	# another length of sequences is no contradiction, nor are options that say the same
	"${tune[@]}" -d text.h5 -o y --init-from hf -T 8 --bias no --kv-heads 2
}

@test "export: the tokens, positions and chat of the original go through a run of shorter sequences" {
	cp -r -L hf original
	sed -i -e 's/"eos_token_id": .*/"eos_token_id": [5, 7],/' -e 's/"bos_token_id": null/"bos_token_id": 3/' \
		-e '/pad_token_id/d' original/config.json
	echo '{"eos_token": "<|endoftext|>", "chat_template": "{{ messages }}"}' >original/tokenizer_config.json
	echo '{"eos_token_id": [5, 7], "temperature": 0.6}' >original/generation_config.json
	echo '{"eos_token": "<|endoftext|>"}' >original/special_tokens_map.json
	printf 'a\0b' >original/added_tokens.json # is no text
	mpiexec -n 2 "${tune[@]}" -d text.h5 -o run --init-from original -T 8 --fsdp 2 --ckpt-load broadcast
	rm -r original/model.safetensors
	"${tune[@]}" -d text.h5 -o run --resume run -T 8 -n 4
	pt-ckpt convert run -o out
	rm out/model.safetensors
	diff -r original out >differ || true
	# the keys are in another order
	[ "$(grep -c '^diff' differ)" -eq 1 ]
	diff <(tr -d ' ,\n' <original/config.json | fold -w 1 | sort) <(tr -d ' ,\n' <out/config.json | fold -w 1 | sort)
	grep -q '"max_position_embeddings": 16' out/config.json
	# of a checkpoint that is not of Hugging Face: its vocabulary's end, and the positions
	"${tune[@]}" -d text.h5 -o own --init-from base -T 8
	pt-ckpt convert own -o own.hf
	diff hf/config.json own.hf/config.json
	grep -q '"eos_token_id": 299' own.hf/config.json
	# another tokenizer's files replace those of the original, but not what the model says
	pt-ckpt convert run -o other --vocabulary vocab
	cmp other/generation_config.json original/generation_config.json
	mkdir named
	cp vocab/tokenizer.json named
	echo '{"tokenizer_class": "PreTrainedTokenizerFast"}' >named/tokenizer_config.json
	pt-ckpt convert run -o third --vocabulary named
	cmp third/tokenizer_config.json named/tokenizer_config.json
	[ ! -e third/special_tokens_map.json ]
	grep -q '"bos_token_id": 3' third/config.json
}

@test "freeze: tensors that match stay, others get the bits that they get without it" {
	"${tune[@]}" -d text.h5 -o all --init-from hf -n 1 --clip 0
	"${tune[@]}" -d text.h5 -o some --init-from hf -n 1 --clip 0 --freeze tok_ --freeze 'layers\.[01]\.'
	pt-ckpt diff --no-optimizer hf some >out || true
	not grep -E '^(tok_|layers\.[01])' out
	grep -q '^layers\.2' out
	grep -q '^norm' out
	pt-ckpt diff all some >out || true
	grep -qE '^tok_' out
	not grep -E '^(layers\.2|norm|output)' out
}

@test "freeze: the plan is what a run needs, and less than without" {
	need() { # SETTING...: planned and measured
		pt-train --dry-run -d text.h5 --init-from hf --no-ckpt "$@" | sed -n 's/^total  *\([0-9]*\) .*/\1/p'
		rm -rf x
		"${tune[@]}" -d text.h5 -o x -b 12 --init-from hf --no-ckpt -n 1 "$@" 2>&1 |
			sed -n 's/.* mem_active=\([0-9]*\).*/\1/p'
	}
	# shellcheck disable=SC2046 # two numbers each
	set -- $(need -m 2) $(need -m 2 --freeze tok_ --freeze 'layers\.0')
	echo "$@"
	[ $# -eq 4 ]
	[ $(($1 - $2)) -ge 0 ]
	[ $(($1 - $2)) -lt 100000 ]
	[ $(($3 - $4)) -ge 0 ]
	[ $(($3 - $4)) -lt 100000 ]
	[ $(($3 * 6)) -lt $(($1 * 5)) ]
}

@test "freeze: a checkpoint has no state of frozen tensors, and goes on without, on any layout" {
	local frozen=(--freeze 'tok_' --freeze 'layers\.[01]\.' --virtual 'tp=2,cp=1' --lr-schedule constant)
	"${tune[@]}" -d text.h5 -o all --init-from hf --lr-schedule constant
	"${tune[@]}" -d text.h5 -o one --init-from hf "${frozen[@]}"
	[ $(($(stat -L -c %s one/checkpoints/latest.h5) * 3)) -lt $(($(stat -L -c %s all/checkpoints/latest.h5) * 2)) ]
	h5ls -r one/checkpoints/latest.h5 >parts
	grep -q '^/exp_avg/layers.2.attention.wq.weight ' parts
	not grep -E '^/(xxh3/)?exp_avg[^/]*/(tok_|layers.[01]\.)' parts
	[ "$(pt-ckpt show one | grep -c 'frozen, without state')" -eq 19 ]
	pt-ckpt verify one all
	pt-ckpt convert one -o copy.h5
	cmp copy.h5 one/checkpoints/latest.h5
	# what other programs of this project have read before is of version 1
	h5dump -a /version all/checkpoints/latest.h5 | grep -q '(0): 1$'
	h5dump -a /version copy.h5 | grep -q '(0): 2$'
	mpiexec -n 2 "${tune[@]}" -d text.h5 -o two --init-from hf "${frozen[@]}" --fsdp 2 --ckpt-wait
	cmp two/checkpoints/latest.h5 copy.h5
	"${tune[@]}" -d text.h5 --resume one -o one -n 5 --resume-exact
	mpiexec -n 2 "${tune[@]}" -d text.h5 --resume two -o two --tp 2 -n 5 --resume-exact --ckpt-load broadcast
	pt-ckpt diff one two
	damage copy.h5 bad.h5 "$(h5dump -p -H -d exp_avg/norm.weight copy.h5 | sed -n 's/.*OFFSET //p')"
	code_of 65 pt-ckpt verify bad.h5
}

@test "freeze: what cannot be is refused, and resuming with another one is told" {
	reports 64 "freeze: '(', at character 2" "${tune[@]}" -d text.h5 -o x --init-from hf --freeze '('
	code_of 64 "${tune[@]}" -d text.h5 -o x --init-from hf --freeze wte
	says "'wte' matches no tensor; the first are tok_embeddings.weight and"
	reports 64 'nothing would be trained' "${tune[@]}" -d text.h5 -o x --init-from hf --freeze .
	reports 64 "use --freeze 'norm'" "${tune[@]}" -d text.h5 -o x --init-from hf --lr-scale-of 'norm=0'
	reports 64 'is not REGEX=X' "${tune[@]}" -d text.h5 -o x --init-from hf --lr-scale-of norm
	"${tune[@]}" -d text.h5 -o y --init-from hf --freeze tok_ --lr-schedule constant
	"${tune[@]}" -d text.h5 --resume y -o y -n 4 --resume-exact
	"${tune[@]}" -d text.h5 --resume y -o y -n 5 --freeze '' >out 2>&1
	grep -q 'the optimizer state of previously frozen tensors begins at zero' out
	grep -q 'freeze tok_ -> ' out
	code_of 64 "${tune[@]}" -d text.h5 --resume y -o y -n 6 --freeze norm --resume-exact
	# between two synchronizations, parameters are those of the anchor, which frozen tensors do not have
	mpiexec -n 2 "${tune[@]}" -d text.h5 -o z --init-from hf --freeze tok_ --edit-workers 2 --edit-sync-interval 2 \
		--edit-outer sgd -n 4 --ckpt-every 3 --ckpt-wait
	code_of 64 "${tune[@]}" -d text.h5 --resume z/checkpoints/step-00000003.h5 -o w --edit-workers 0 --freeze ''
	says 'local SGD between two synchronizations needs the --freeze with which it began'
	"${tune[@]}" -d text.h5 --resume z -o w -n 5 --edit-workers 0 --freeze ''
}

@test "lr-scale-of: a step of SGD is as long as the factor" {
	sgd=(--optimizer sgd --momentum 0 --weight-decay 0 --clip 0 --lr-schedule constant -n 1)
	"${tune[@]}" -d text.h5 -o twice --init-from hf "${sgd[@]}" --lr 0.5
	"${tune[@]}" -d text.h5 -o scaled --init-from hf "${sgd[@]}" --lr 0.25 \
		--lr-scale-of '.=4' --lr-scale-of 'norm|layers=2'
	pt-ckpt diff twice scaled >out || true
	not grep -E '^(norm|layers)' out
	grep -q '^output' out
	reports 1 'lr-scale-of' pt-compare twice scaled
}

@test "recipe: a model that is tuned on two ranks as on one" {
	STEPS=60 "$recipe" work >out 2>&1 || {
		cat out
		return 1
	}
	grep -q 'Two ranks gave the bytes of one' out
	grep -q '⟦It is ' out
	[ -s work/tuned/model.safetensors ]
}
