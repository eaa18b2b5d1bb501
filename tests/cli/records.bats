#!/usr/bin/env bats
# pt-prepare: records that say which tokens count, from lines to shards, and what is printed of them.
load helpers

make_chats() { # N: conversations of one to three questions
	awk -v n="$1" 'BEGIN { srand(2)
		for (i = 0; i < n; i++) {
			printf "{\"messages\": ["
			for (k = int(rand() * 3); k >= 0; k--) {
				printf "{\"role\": \"user\", \"content\": \"question %d of %d?\"}, ", k, i
				printf "{\"role\": \"assistant\", \"content\": \"ANSWER"
				for (j = int(rand() * 9); j > 0; j--) printf " %d", i * j % 10
				printf ".\"}%s", k ? ", " : ""
			}
			printf "]}\n"
		} }'
}

@test "a conversation is shown with what counts" {
	echo '{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4."}]}' >c.jsonl
	pt-prepare -t byte --chat-template chatml -f 0 c.jsonl -o c.h5 2>err
	grep -q 'warning: --chat-template chatml: no marker of user turns is a special token' err
	grep -q '12 tokens count (17.4%)' err
	pt-prepare --show 5 c.h5 >shown
	cat >want <<-'END'
		# document 0, train: 69 tokens, 12 count (17.4%)
		<|im_start|>user
		2 + 2?<|im_end|>
		<|im_start|>assistant
		⟦4.<|im_end|>⟧
		# 1 document: 69 tokens, 12 count (17.4%)
	END
	diff shown want
	pt-prepare --verify c.h5
	[ "$(pt-prepare --info c.h5 | grep version)" = 'version = 3' ]
	[ "$(pt-prepare --decode train c.h5 | head -n 1)" = '<|im_start|>user' ]
	reports 64 '--show-from 1: the last document is 0' pt-prepare --show 1 --show-from 1 c.h5
	# nothing in a text commands the terminal
	printf '{"prompt": "a\\u001b[2Jb", "completion": "c\\u0000d"}' |
		pt-prepare -q -t byte --record prompt -f 0 - -o e.h5
	[ "$(pt-prepare --show 1 e.h5 | sed -n 2p)" = 'a?[2Jb⟦c?d⟧' ]
}

@test "what is shown on a terminal is short, and of one token" {
	printf x >x.txt
	pt-prepare -q -t byte -f 0 x.txt -o x.h5
	[ "$(pt-prepare --show 1 x.h5 | tail -n 1)" = '# 1 document: 1 token, 1 counts (100.0%)' ]
	needs_terminal
	# 2,000 characters of two bytes, of which a cut is never within
	{ printf x; yes é | head -n 2000 | tr -d '\n'; } >long.txt
	pt-prepare -q -t byte -f 0 long.txt -o long.h5
	script -qc 'pt-prepare --show 1 long.h5' /dev/null </dev/null >shown
	grep -q ' \[\.\.\. 3202 bytes \.\.\.\] ' shown
	not grep -q '?' shown
	[ "$(pt-prepare --show 1 long.h5 | sed -n 2p | wc -c)" -eq 4008 ]
}

@test "the same shards by any number of threads and ranks, in windows and shuffled" {
	make_chats 3000 >c.jsonl
	opts=(-q -t byte --chat-template chatml --window 400 --shuffle --dedup -s hash -f 0.1)
	pt-prepare "${opts[@]}" --threads 1 c.jsonl -o one.h5
	pt-prepare "${opts[@]}" --threads 3 c.jsonl -o three.h5
	cmp one.h5 three.h5
	mpiexec -n 2 pt-prepare "${opts[@]}" --work work c.jsonl -o two.h5
	cmp one.h5 two.h5
	pt-prepare --verify one.h5
	# what an assistant says has capital letters
	pt-prepare --show 3000 one.h5 | grep -v '^#' >shown
	[ "$(grep -c ANSWER shown)" -gt 3000 ]
	[ "$(grep -c '⟦ANSWER.*<|im_end|>⟧$' shown)" -eq "$(grep -c ANSWER shown)" ]
	[ "$(grep -o '⟦' shown | wc -l)" -eq "$(grep -c ANSWER shown)" ]
	# windows are whole, and a token more is at the end
	for s in train val; do
		[ $(($(pt-prepare --info one.h5 | sed -n "s/^${s}_tokens = //p") % 400)) -eq 1 ]
	done
	pt-prepare --show 99999 one.h5 | grep -c padding
	# together with a shard without windows, they are none
	pt-prepare -q -t byte --format text c.jsonl -o plain.h5
	pt-prepare -q one.h5 plain.h5 -o both.h5
	pt-prepare --verify both.h5
	[ "$(pt-prepare --info both.h5 | grep -c window)" -eq 0 ]
}

@test "work files are continued, unless what counts is another thing" {
	make_chats 500 >c.jsonl
	opts=(-q -t byte --chat-template chatml -f 0 --work work c.jsonl)
	code_of 74 pt-prepare "${opts[@]}" -o nosuch/a.h5
	[ -s work/pieces-0 ]
	cp -r work copy
	pt-prepare "${opts[@]}" --count all -o all.h5
	[ "$(pt-prepare --show 1 all.h5 | sed -n 2p)" = '<⟦|im_start|>user' ]
	mv copy work
	# the pieces are taken as they are
	n=$(stat -c %s work/pieces-0)
	code_of 74 pt-prepare "${opts[@]}" -o nosuch/a.h5
	[ "$(stat -c %s work/pieces-0)" -eq "$n" ]
	pt-prepare "${opts[@]}" -o a.h5
	pt-prepare -q -t byte --chat-template chatml -f 0 c.jsonl -o b.h5
	cmp a.h5 b.h5
}

@test "broken lines are counted, and named with --strict" {
	make_chats 2 >c.jsonl
	printf '%s\n' '{"messages": []}' '{"text": "x"}' '{"messages": [{"role": "tool"}]}' >>c.jsonl
	pt-prepare -t byte --chat-template qwen -f 0 c.jsonl -o a.h5 2>err
	grep -q 'c.jsonl:3: the conversation has no turns' err
	grep -q '3 broken lines skipped' err
	code_of 65 pt-prepare -t byte --chat-template qwen --strict -f 0 c.jsonl -o b.h5
	says 'c.jsonl:3: the conversation has no turns'
	code_of 65 pt-prepare -t byte --strict -f 0 c.jsonl -o b.h5
	says "field 'text' is missing, but the line has a conversation; give --chat-template"
	not ls b.h5*
}

@test "token files with masks" {
	printf '\1\0\2\0\3\0\4\0' >ids.bin
	printf '\1\0\1\1' >ids.mask
	pt-prepare ids.bin --mask-file ids.mask --vocab 9 -f 0 -o a.h5 2>err
	grep -q '2 tokens count (50.0%)' err
	pt-prepare --show 1 a.h5 | grep -q '4 tokens, 2 count'
	# and to token files with masks, as they were, in files of another size too
	for to in nanogpt llmc megatron; do
		pt-prepare --to $to a.h5 -o $to 2>err
		grep -q '2 tokens count (50.0%)' err
		printf '\0\0\1\1' | cmp - ${to}_train.mask
		pt-prepare -q ${to}_train.bin --mask-file ${to}_train.mask --vocab 9 -f 0 -o b.h5 --overwrite
		diff <(pt-prepare --show 1 a.h5) <(pt-prepare --show 1 b.h5)
	done
	cmp nanogpt_train.bin ids.bin
	pt-prepare -q --to nanogpt --shard-size 6 a.h5 -o part
	[ "$(ls part_*)" = "$(printf 'part_train_0000%s\n' 0.bin 0.mask 1.bin 1.mask)" ]
	cat part_train_0000?.mask | cmp - nanogpt_train.mask
	pt-prepare -q --to nanogpt ids.bin -f 0 -o plain
	not ls plain_train.mask
	# a mask in the format of another file of tokens
	printf '\1\0\0\0\1\0\1\0' >m.bin
	pt-prepare -q --to megatron --format nanogpt m.bin -f 0 -o m
	pt-prepare -q ids.bin --mask-file m_train.idx --vocab 9 -f 0 -o c.h5
	cmp <(pt-prepare --show 1 a.h5) <(pt-prepare --show 1 c.h5)
	code_of 65 timeout 20 pt-prepare ids.bin --mask-file /dev/zero --vocab 9 -f 0 -o b.h5
	says '/dev/zero: larger than 4 bytes'
	reports 64 '1 mask files for 2 token files' pt-prepare ids.bin --mask-file ids.mask --val-file ids.bin -o b.h5
	reports 64 'do not apply to shards, which have their own' pt-prepare a.h5 --mask-file ids.mask -o b.h5
	echo x >text.txt
	reports 64 'for token files, not for text' pt-prepare text.txt --mask-file ids.mask -o b.h5
}

@test "plain shards say nothing of what counts" {
	make_text >text.txt
	pt-prepare text.txt -o a.h5 2>err
	not grep -q 'count' err
	[ "$(pt-prepare --info a.h5 | grep version)" = 'version = 2' ]
	not h5dump -H -d /counted_train a.h5
	[ "$(pt-prepare --info a.h5 | grep -c window)" -eq 0 ]
	pt-prepare --show 1 a.h5 | head -n 1 | grep -q '36000 tokens, 36000 count (100.0%)'
}

@test "windows that are too short for what counts: a warning, with the length that would do" {
	make_chats 3 >c.jsonl
	for how in cut split drop; do
		pt-prepare -t byte --chat-template chatml --window 400 --too-long $how -f 0 c.jsonl -o $how.h5 2>err
		not grep -q 'longer than a window' err
	done
	pt-prepare -t byte --chat-template chatml --window 24 -f 0 c.jsonl -o cut24.h5 2>err
	grep -q '3 documents longer than a window, the longest of [0-9]* tokens, were cut' err
	grep -q 'no token counts: there is nothing to train on; a larger --window' err
	n=$(sed -nE 's/.*the longest of ([0-9]+) tokens.*/\1/p' err)
	pt-prepare -t byte --chat-template chatml --window $((n - 1)) -f 0 c.jsonl -o less.h5 2>err
	grep -q "1 document longer than a window, the longest of $n tokens, was cut" err
	pt-prepare -t byte --chat-template chatml --window "$n" -f 0 c.jsonl -o all.h5 2>err
	not grep -q 'longer than a window\|no token counts' err
	# what was meant is no warning
	pt-prepare -t byte --chat-template chatml --count none --window 24 -f 0 c.jsonl -o none.h5 2>err
	not grep -q 'no token counts' err
}

@test "Jinja is that of a template that is known, or is rejected" {
	make_chats 3 >c.jsonl
	opts=(-q -t byte -f 0 c.jsonl)
	pt-prepare "${opts[@]}" --chat-template chatml -o named.h5
	local end='{% endfor %}{%if add_generation_prompt%}{{"<|im_start|>assistant\n"}}{%endif%}'
	local loop='{% for message in messages %}{{ "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n" }}'
	mkdir tiny other
	printf '%s\n' "$loop$end" >tiny/chat_template.jinja
	jq -n --arg x "$loop$end" '{chat_template: $x}' >other/tokenizer_config.json
	for from in tiny tiny/chat_template.jinja other other/tokenizer_config.json; do
		pt-prepare "${opts[@]}" --chat-template $from -o of.h5 --overwrite
		cmp named.h5 of.h5
	done
	# one more space, another mark, a condition
	for from in "${loop/\\n/ \\n}$end" "${loop/im_end/eot}$end" "$loop{% if loop.last %}{{ eos_token }}{% endif %}$end" "$loop"; do
		printf %s "$from" >x.jinja
		code_of 65 pt-prepare "${opts[@]}" --chat-template x.jinja -o x.h5
		says 'x.jinja: this Jinja is not a known template'
		says 'the known templates are chatml, llama3, llama3.1, qwen, qwen3, qwen3-2507'
	done
	mkdir empty
	code_of 65 pt-prepare "${opts[@]}" --chat-template empty -o x.h5
	says 'empty: the directory has no chat_template.jinja and no tokenizer_config.json'
	echo '{"eos_token": "x"}' >empty/tokenizer_config.json
	code_of 65 pt-prepare "${opts[@]}" --chat-template empty -o x.h5
	says 'empty/tokenizer_config.json: has no chat_template; the known templates are'
}

@test "options that do not go together" {
	make_chats 2 >c.jsonl
	reports 64 'conversations need --chat-template' pt-prepare --record messages c.jsonl -o a.h5
	code_of 64 pt-prepare --record spans --chat-template chatml c.jsonl -o a.h5
	says 'applies only to --record messages and prompt'
	reports 64 '--format text has no records' pt-prepare --chat-template chatml --format text c.jsonl -o a.h5
	reports 64 'give --vocab' pt-prepare --record ids c.jsonl -o a.h5
	code_of 74 pt-prepare --chat-template nosuch c.jsonl -o a.h5
	says nosuch
	echo '{"prompt": "a", "completion": "b"}' >p.jsonl
	pt-prepare -t byte --record prompt --too-long drop -f 0 p.jsonl -o a.h5 2>err
	grep -q 'without --window, no document is too long' err
	pt-prepare -t byte --field prompt --count all -f 0 p.jsonl -o t.h5 2>err
	grep -q 'all of a text counts' err
	make_shard b.h5
	code_of 64 pt-prepare b.h5 --window 8 -o c.h5
	says '--window applies to text and JSONL, not to files of tokens; EXAMPLES'
}

@test "a vocabulary of conversations, with their markers" {
	make_chats 200 >c.jsonl
	opts=(--chat-template chatml c.jsonl)
	pt-prepare -q --train-bpe 300 --special-token '<|im_start|>' --special-token '<|im_end|>' --vocab-out v "${opts[@]}"
	pt-prepare -t bpe --vocab-files v -f 0 "${opts[@]}" -o a.h5 2>err
	not grep -q 'no token counts' err
	grep -q 'a vocabulary of 300' err
	pt-prepare --show 1 a.h5 | grep -q '⟦ANSWER'
	n=$(pt-prepare --info a.h5 | sed -n 's/^train_tokens = //p')
	h5dump -d /train -y -w 0 a.h5 | grep -o '\b29[89]\b' | sort | uniq -c >markers
	[ "$(awk '{ print $2 }' markers | tr '\n' ' ')" = '298 299 ' ]
	[ "$(awk 'NR == 1 { n = $1 } END { print n == $1 }' markers)" -eq 1 ]
	# the end counts as the token before it would, of which a first one is no target
	printf '{"prompt": "", "completion": "%s"}\n' a ab >p.jsonl
	pt-prepare -q -t bpe --vocab-files v --end-of-text --record prompt -f 0 p.jsonl -o p.h5
	pt-prepare --show 2 p.h5 | grep -v '^#' >shown
	printf 'a⟦<|endoftext|>⟧\na⟦b<|endoftext|>⟧\n' | diff - shown
	for bad in x '<|im_end|>' '<|endoftext|>'; do
		code_of 64 pt-prepare --train-bpe 300 --special-token "$bad" --special-token '<|im_end|>' --vocab-out w "${opts[@]}"
		says 'special-token'
	done
}
