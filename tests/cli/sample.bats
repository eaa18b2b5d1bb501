#!/usr/bin/env bats
# pt-sample: the cache, seeds, prompts, cutting off, streaming, refusals.
load helpers

ckpt=gpt2/checkpoints/latest.h5

# A context of 16, which the texts below fill more than once.
make_runs() {
	make_shard
	for a in gpt2 llama; do
		tiny -n 20 --arch $a -o $a >/dev/null
	done
}

@test "the cache changes nothing, beyond the context too, in both architectures" {
	make_runs
	tiny -n 20 --arch llama --heads 4 --kv-heads 2 -T 8 --virtual tp=2 -o grouped >/dev/null
	long=$(head -c 100 text.txt)
	for run in gpt2 llama grouped; do
		for prompt in t 'unto the lord ' "$long"; do
			pt-sample $run/checkpoints/latest.h5 "$prompt" -n 80 >cached
			pt-sample --no-cache $run/checkpoints/latest.h5 "$prompt" -n 80 | cmp - cached
			pt-sample --logits $run/checkpoints/latest.h5 "$prompt" >logits
			pt-sample --logits --no-cache $run/checkpoints/latest.h5 "$prompt" | cmp - logits
			[ "$(wc -l <logits)" -eq 17 ]
		done
	done
	pt-sample --threads 1 $ckpt "$long" -n 80 >one
	pt-sample --threads 2 $ckpt "$long" -n 80 | cmp - one
}

# Scores of long prompts need more memory than the rest of a small model, where a processor has several queries
# at a time (AVX-512).
@test "a prompt as long as the context, with many threads" {
	make_shard
	tiny -n 2 --layers 1 -T 2000 -b 1 -m 1 -o long >/dev/null
	head -c 1996 text.txt >prompt
	pt-sample --threads 1 long "$(cat prompt)" -n 3 >one
	pt-sample --threads 16 long "$(cat prompt)" -n 3 | cmp - one
	pt-sample --threads 16 --no-cache long "$(cat prompt)" -n 3 | cmp - one
}

@test "a model that no rank holds whole draws the text of one rank" {
	make_shard
	tiny -n 10 --heads 4 --virtual tp=4 -o gpt2 >/dev/null
	tiny -n 10 --arch llama --heads 4 --kv-heads 2 --layers 2 --virtual tp=4 -o llama >/dev/null
	printf 'the lord\n\nunto' >prompts
	for run in gpt2 llama; do
		for cache in --cache --no-cache; do
			o=("$run" - -n 20 -N 2 --stop e "$cache")
			pt-sample "${o[@]}" <prompts >one
			mpiexec -n 2 pt-sample --tp 2 "${o[@]}" <prompts | cmp - one
			mpiexec -n 3 pt-sample --fsdp -1 "${o[@]}" <prompts | cmp - one
			mpiexec -n 4 pt-sample --tp 2 --fsdp 2 "${o[@]}" <prompts | cmp - one
		done
		pt-sample --logits $run the >logits
		mpiexec -n 4 pt-sample --tp -1 --fsdp 2 --logits $run the | cmp - logits
	done
	code_of 64 mpiexec -n 2 pt-sample gpt2 the
	[ "$output" = 'pt-sample: 2 ranks need --tp or --fsdp, whose product must be 2' ]
	code_of 64 mpiexec -n 3 pt-sample --tp 2 gpt2 the
	[ "$output" = 'pt-sample: tp=2 needs 2 ranks, but there are 3' ]
	reports 64 'tp is 3, which does not divide virtual tp (4)' mpiexec -n 3 pt-sample --tp 3 gpt2 the
	code_of 74 mpiexec -n 2 pt-sample --tp 2 nowhere the
	[ "$output" = 'pt-sample: nowhere: No such file or directory' ]
	code_of 65 mpiexec -n 2 pt-sample --tp 2 gpt2 - < <(printf 'the\nQ\n')
	says "line 2 of standard input: the vocabulary has no character 'Q'"
	# rank 0 cannot write: all end, with one message
	code_of 74 mpiexec -n 2 sh -c 'exec pt-sample --tp 2 gpt2 the >/dev/full'
	[ "$(grep '^pt-sample' <<<"$output")" = 'pt-sample: rank 0: standard output: No space left on device' ]
	code_of 74 timeout 60 mpiexec -n 2 bash -c \
		'pt-sample --tp 2 gpt2 the -n 1000000000 | head -c 5 >/dev/null; exit "${PIPESTATUS[0]}"'
	says 'standard output: Broken pipe'
}

@test "a GPU draws a text of its own, on any ranks" {
	gpu_setup
	make_shard
	tiny -n 10 --device cpu --heads 4 --virtual tp=2 -o run >/dev/null
	pt-sample --device cuda run the -n 20 >one
	[ "$(wc -c <one)" -eq 24 ]
	pt-sample --device cuda --no-cache run the -n 20 | cmp - one
	mpiexec -n 2 pt-sample --device cuda --tp 2 run the -n 20 | cmp - one
	mpiexec -n 2 pt-sample --device cuda --fsdp 2 run the -n 20 | cmp - one
	pt-sample --logits run the >cpu
	pt-sample --logits --device cuda run the >gpu
	not cmp -s cpu gpu
	reports 1 "--device cuda: PT_CUDA: 'nowhere' does not exist" env PT_CUDA=nowhere pt-sample --device cuda run the
}

@test "a special token in the prompt, when that is asked for" {
	make_text >text.txt
	pt-prepare -q --train-bpe 300 --vocab-out v text.txt
	pt-prepare -q -t bpe --vocab-files v text.txt -o data.h5
	tiny -n 2 -d data.h5 -o run >/dev/null
	pt-sample --logits run '<|endoftext|>the' >as_text
	pt-sample --logits --allow-special run '<|endoftext|>the' >as_token
	not cmp -s as_text as_token
	pt-sample --logits --allow-special run 'the' >a
	pt-sample --logits run 'the' | cmp - a
	make_shard char.h5
	tiny -n 2 -o char >/dev/null
	reports 64 'tokenizer char has no special tokens' pt-sample --allow-special char the
}

# A model that has learned little, of conversations, with marks that are tokens: `chat`; its data are chat.jsonl.
make_chat() {
	awk 'BEGIN { split("one two three", w, " ")
		for (i = 0; i < 300; i++) {
			x = w[i % 3 + 1]
			print "What is " x "? It is " x "." >"sums.txt"
			printf "{\"messages\": [{\"role\": \"user\", \"content\": \"What is %s?\"}, " \
				"{\"role\": \"assistant\", \"content\": \"It is %s.\"}]}\n", x, x >"chat.jsonl"
		}
	}'
	pt-prepare -q --train-bpe 276 --special-token '<|im_start|>' --special-token '<|im_end|>' --vocab-out v sums.txt
	pt-prepare -q -t bpe --vocab-files v "$@" chat.jsonl -o chat.h5
	tiny -d chat.h5 -o chat -a llama --dim 32 -T 32 -n 60 --lr 2e-2 >/dev/null
}

@test "a conversation, with the template that the data were prepared with" {
	make_chat --chat-template chatml
	pt-prepare --info chat.h5 | grep -qx 'chat_template = chatml'
	prompt=$'<|im_start|>user\nWhat is two?<|im_end|>\n<|im_start|>assistant\n'
	pt-sample --logits --allow-special chat "$prompt" >as_prompt
	pt-sample --logits chat --chat 'What is two?' 2>err | cmp - as_prompt
	[ ! -s err ]
	# the answer alone, up to the end of the turn
	pt-sample -q chat --chat 'What is two?' -t 0 >answer
	[ "$(cat answer)" = 'It is two.' ]
	printf 'What is two?\nWhat is two?\n' | pt-sample chat --chat - -t 0 | cmp - <(cat answer answer)
	pt-sample chat --chat 'What is two?' -t 0 --echo | cmp - <(printf %s "$prompt" | cat - answer)
	mpiexec -n 2 pt-sample --fsdp 2 chat --chat 'What is two?' -t 0 | cmp - answer
	pt-sample chat --chat 'What is two?' -t 0 -n 9 --stop none | grep -q '^It is two.<|im_end|>.'
	[ "$(pt-sample chat --chat 'What is two?' -t 0 --stop is)" = 'It is' ]
	end=$(pt-sample --no-echo --allow-special --logits chat "$prompt"'It is two.' | wc -l)
	[ "$(pt-sample chat --chat 'What is two?' -t 0 --stop id:$((end - 1)))" = 'It is two.' ]
	reports 64 "--stop id:$end: not one of the $end tokens of the vocabulary" pt-sample chat --stop "id:$end" x
	# what the user says has no marks, and is not what they would make of it
	pt-sample --logits chat --chat 'What is two?<|im_end|>' 2>err >as_text
	grep -q "warning: the prompt: the text '<|im_end|>' of a special token becomes tokens of its characters$" err
	pt-sample --logits --allow-special chat "${prompt/two?/two?<|im_end|>}" >as_token
	not cmp -s as_text as_token
	pt-sample --logits chat "$prompt" 2>err >as_text
	grep -q "warning: .*'<|im_start|>' of a special token .*; --allow-special encodes it as the token, and --chat" err
	[ "$(wc -l <err)" -eq 1 ]
	not cmp -s as_text as_prompt
	# it is in each checkpoint, and in what is made of one
	mpiexec -n 2 pt-train "${TINY[@]}" -d chat.h5 --init-from chat -o more -n 1 -T 32 --dim 32 --dp 2 --virtual tp=1,cp=1 >/dev/null
	pt-ckpt convert more -o more.h5
	pt-ckpt verify more.h5
	pt-sample more.h5 --chat 'What is two?' -n 3 >/dev/null
	reports 64 '--chat and a prompt are mutually exclusive' pt-sample chat --chat x y
	code_of 64 pt-sample chat --chat x --allow-special
	reports 64 '--chat: the text is empty' pt-sample chat --chat ''
	reports 64 '--chat-template' pt-sample chat x --chat-template chatml
}

@test "a conversation, with the template of a file, a name, or the model of Hugging Face" {
	cat >own.json <<-'END'
		{"begin": "(", "roles": {"user": ["Q: ", "<|im_end|>"], "assistant": [" A: ", "<|im_start|>"]}}
	END
	make_chat --chat-template own.json
	rm own.json
	[ "$(pt-sample chat --chat 'What is two?' -n 0 --echo)" = '(Q: What is two?<|im_end|> A: ' ]
	[ "$(pt-sample chat --chat hi -n 0 --echo --chat-template llama3 | head -n 1)" = \
		'<|begin_of_text|><|start_header_id|>user<|end_header_id|>' ]
	pt-ckpt convert chat -o hf
	reports 64 'no chat template found; choose one with --chat-template: chatml, llama3' pt-sample hf --chat x
	# as Hugging Face's library has it, and in another spelling
	for jinja in '{% for message in messages %}{{ "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n" }}' \
		"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message[\"content\"]+'<|im_end|>' + '\n'}}"; do
		jinja+='{% endfor %}{% if add_generation_prompt %}{{ "<|im_start|>assistant\n" }}{% endif %}'
		jq --arg x "$jinja" '.chat_template = $x' hf/tokenizer_config.json >new
		cp new hf/tokenizer_config.json
		[ "$(pt-sample hf --chat two -n 0 --echo)" = $'<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant' ]
	done
	printf '%s\n' "${jinja/<|im_end|>/ <|im_end|>}" >hf/chat_template.jinja
	code_of 64 pt-sample hf --chat two
	says 'the chat template is not supported; choose one with --chat-template: chatml'
}

@test "a text ends with the token of its end, unless that is not wanted" {
	make_text >text.txt
	tr '.' '\n' <text.txt | grep . | sed 's/.*/{"text": "&"}/' >lines.jsonl
	pt-prepare -q --train-bpe 280 --vocab-out v text.txt
	pt-prepare -q -t bpe --vocab-files v lines.jsonl -o data.h5
	tiny -d data.h5 -n 2 -o run -T 16 >/dev/null
	pt-sample run the --stop none -n 3000 -t 5 >whole
	grep -q '<|endoftext|>' whole
	pt-sample run the -n 3000 -t 5 >ended
	[ "$(cat ended)" = "$(sed 's/<|endoftext|>.*//; /<|endoftext|>/q' whole | head -c "$(($(wc -c <ended) - 1))")" ]
	not grep '<|endoftext|>' ended
	[ "$(wc -c <ended)" -lt "$(wc -c <whole)" ]
	# the tokens of a model of Hugging Face
	pt-ckpt convert run -o hf
	first=$(pt-sample run the --logits | sort -g -k 2 | tail -n 1 | cut -f 1)
	echo "{\"eos_token_id\": [1000000, $first]}" >hf/generation_config.json
	[ "$(pt-sample hf the -t 0 --no-echo | wc -c)" -eq 1 ]
	jq ".eos_token_id = $first" hf/config.json >new
	cp new hf/config.json
	rm hf/generation_config.json
	[ "$(pt-sample hf the -t 0 --no-echo | wc -c)" -eq 1 ]
	tiny -d data.h5 --init-from hf -n 1 --lr 0 -o tuned >/dev/null
	[ "$(pt-sample tuned the -t 0 --no-echo | wc -c)" -eq 1 ]
	[ "$(pt-sample tuned the -t 0 --no-echo --stop none -n 5 | wc -c)" -gt 5 ]
}

@test "a directory of Hugging Face is as good as the checkpoint that is made of it, and stays as it is" {
	make_chat --chat-template chatml
	make_shard char.h5
	tiny -d char.h5 -o char -n 5 --vocab-multiple 64 >/dev/null
	tiny -d chat.h5 -o padded -n 5 -a llama --vocab-multiple 64 >/dev/null
	for run in char padded chat; do
		o=(--dtype bf16)
		[ $run != padded ] || o+=(--padding)
		pt-ckpt convert $run -o $run.hf "${o[@]}"
		pt-ckpt convert $run.hf --vocabulary $run.hf -o $run.new.h5
		ls -l --time-style=full-iso $run.hf >before
		for o in '-k 0 -t 3' '--logits' '-t 0 --no-cache'; do
			read -ra o <<<"$o"
			pt-sample $run.hf the "${o[@]}" -n 60 >text
			pt-sample $run.new.h5 the "${o[@]}" -n 60 | cmp - text
			mpiexec -n 2 pt-sample --fsdp 2 $run.hf the "${o[@]}" -n 60 | cmp - text
		done
		ls -l --time-style=full-iso $run.hf | cmp - before
	done
	# a tokenizer that is not of this model
	cp -r chat.hf bad
	cp char.hf/tokenizer.json bad
	reports 65 'bad: has 17 tokens, but the vocabulary of bad/model.safetensors has 276' pt-sample bad the
	echo '{"model": {"type": "Unigram"}}' >bad/tokenizer.json
	reports 65 "tokenizer.json: the model 'Unigram' is not supported" pt-sample bad the
	head -c 1000 chat.hf/model.safetensors >bad/model.safetensors
	code_of 65 pt-sample bad the
}

@test "as many tokens as told, of the vocabulary, after the prompt" {
	make_runs
	for n in 0 1 2 15 16 17 100; do
		pt-sample $ckpt 'the lord' -n $n >out
		[ "$(wc -c <out)" -eq $((8 + n + 1)) ]
		[ "$(head -c 8 out)" = 'the lord' ]
		pt-sample --no-echo $ckpt 'the lord' -n $n | cmp - <(tail -c +9 out)
	done
	[ -z "$(tr -d "$(tr -d '\n' <text.txt)"'\n' <out)" ]
	# without a prompt, a line break
	pt-sample $ckpt -n 5 | cmp - <(pt-sample $ckpt $'\n' -n 5)
	pt-sample $ckpt --prompt 'the lord' -n 17 | cmp - <(pt-sample $ckpt 'the lord' -n 17)
}

@test "equal seeds give equal text, others another" {
	make_runs
	pt-sample $ckpt the -n 60 >one
	pt-sample $ckpt the -n 60 --seed 1 | cmp - one
	for s in 2 3 -1 9223372036854775807; do
		pt-sample $ckpt the -n 60 --seed "$s" >other
		not cmp -s one other
	done
	# longer is the same, and more
	pt-sample --no-echo $ckpt the -n 90 | head -c 60 | cmp - <(pt-sample --no-echo $ckpt the -n 60 | head -c 60)
}

@test "samples and prompts have numbers of their own" {
	make_runs
	pt-sample -N 3 $ckpt the -n 20 --stop . >three
	pt-sample -N 1 $ckpt the -n 20 --stop . >one
	[ "$(head -c "$(wc -c <one)" three)" = "$(cat one)" ]
	pt-sample -N 2 -n 9 $ckpt the --no-echo >two
	[ "$(head -c 9 two)" != "$(tail -c 10 two)" ]
	# a line a prompt; a last one without an end counts, and an empty one is none
	printf 'the\nlord\n\nin' | pt-sample $ckpt - -n 6 --no-echo --stop $'\n' >lines
	printf 'the\n' | pt-sample $ckpt - -n 6 --no-echo --stop $'\n' >the
	[ "$(head -c "$(wc -c <the)" lines)" = "$(cat the)" ]
	printf 'the\nlord\n\nin' | pt-sample $ckpt - -n 0 | diff - <(printf 'the\nlord\n\n\nin\n')
	for o in '-n 9' '-n 9 --no-echo'; do
		read -ra o <<<"$o"
		pt-sample $ckpt '' "${o[@]}" >empty
		pt-sample $ckpt "${o[@]}" | cmp - empty
		echo | pt-sample $ckpt - "${o[@]}" | cmp - empty
	done
	# sample i of prompt j is the same whatever is drawn beside it
	printf 'the\nlord\n' | pt-sample $ckpt - -n 9 --no-echo | tail -c 10 >second
	printf 'the\nlord\n' | pt-sample $ckpt - -n 9 --no-echo -N 3 >six
	[ "$(wc -c <six)" -eq 60 ]
	tail -c 30 six | head -c 10 | cmp - second
	printf 'of\nlord\n' | pt-sample $ckpt - -n 9 --no-echo -N 2 | tail -c 20 | head -c 10 | cmp - second
	pt-sample $ckpt the -n 6 --no-echo --stop $'\n' | cmp - the
	printf 'of\nthe\n' | pt-sample $ckpt --prompt - -n 0 | diff - <(printf 'of\nthe\n')
	: | pt-sample $ckpt - | cmp - /dev/null
}

@test "greedy: temperature 0, top-k 1 and top-p 0 take the likeliest" {
	make_runs
	pt-sample $ckpt 'the lord' -n 40 -t 0 >greedy
	for o in '-k 1' '--top-p 0' '-t 0 --seed 7' '-t 1e-6 -k 0' '-k 1 --seed 9 -t 100'; do
		read -ra o <<<"$o"
		pt-sample $ckpt 'the lord' -n 40 "${o[@]}" | cmp - greedy
	done
	# it is the largest logit
	best=$(pt-sample --logits $ckpt 'the lord' |
		awk '{ cmd = "printf %.9g " $2; cmd | getline v; close(cmd)
			if (NR == 1 || v > max) { max = v; id = $1 } } END { print id }')
	next=$(head -c 9 greedy | tail -c 1 | od -An -tx1)
	[ "$(LC_ALL=C fold -w1 <<<"$(LC_ALL=C grep -o . text.txt | LC_ALL=C sort -u)" | sed -n "${best}p" |
		head -c 1 | od -An -tx1)" = "$next" ]
}

@test "top-k and top-p cut the unlikely off" {
	make_runs
	# the tokens after one prompt, in 300 samples, and how likely they are
	drawn() { pt-sample $ckpt the --no-echo -n 1 -N 300 "$@" | LC_ALL=C sort | uniq -c | sort -rn | wc -l; }
	[ "$(drawn -k 1)" -eq 1 ]
	[ "$(drawn -k 3 -t 5)" -eq 3 ]
	all=$(drawn -k 0 -t 5)
	[ "$all" -gt 12 ]
	[ "$(drawn -k 200 -t 5)" -eq "$all" ]
	some=$(drawn -k 0 -t 1 --top-p 0.5)
	[ "$some" -gt 1 ]
	[ "$some" -lt "$all" ]
	[ "$(drawn -k 0 --top-p 1 -t 5)" -eq "$all" ]
}

@test "--stop ends a text, and is its end" {
	make_runs
	pt-sample $ckpt the -n 200 --no-echo >whole
	pt-sample $ckpt the -n 200 --no-echo --stop e >ended
	[ "$(tail -c 2 ended)" = e ]
	[ "$(tr -cd e <ended | wc -c)" -eq 1 ]
	head -c $(($(wc -c <ended) - 1)) ended | cmp - <(head -c $(($(wc -c <ended) - 1)) whole)
	two=$(tail -c +30 whole | tr -d '\n' | head -c 2)
	pt-sample $ckpt the -n 200 --no-echo --stop "$two" | tr '\n' ' ' | grep -q "$two \$"
	# in the prompt it does not count
	[ "$(pt-sample $ckpt the -n 50 --stop the | wc -c)" -gt 4 ]
	pt-sample $ckpt the -n 200 --no-echo --stop nothere | cmp - whole
}

@test "text appears as it is drawn" {
	make_runs
	mkfifo pipe out
	pt-sample $ckpt - -n 8 --no-cache <pipe >out 3>&- &
	pid=$!
	exec 5>pipe 6<out
	echo the >&5
	read -rt 10 -n 8 first <&6 # while it waits for the next prompt
	kill -0 $pid
	[ "${first:0:3}" = the ]
	exec 5>&-
	cat <&6 >/dev/null
	ended $pid
	[ "$status" -eq 0 ]
	# an endless text ends when its reader does
	timeout 120 pt-sample $ckpt the -n 1000000000 | head -c 50 >start
	[ "${PIPESTATUS[0]}" -ne 124 ]
	[ "$(wc -c <start)" -eq 50 ]
	reports 74 'standard output' bash -c "pt-sample $ckpt the >/dev/full"
}

@test "a prompt that cannot be is refused, and says why" {
	make_runs
	reports 65 "the vocabulary has no character 'Q' (U+0051)" pt-sample $ckpt 'the Q'
	reports 65 '(U+00FC)' pt-sample $ckpt 'über'
	code_of 65 pt-sample $ckpt $'the\377'
	# what came before it is there
	code_of 65 bash -c "printf 'the\nQ\nlord\n' | pt-sample $ckpt - -n 0"
	says "line 2 of standard input: the vocabulary has no character 'Q'"
	[ "$(head -n 1 <<<"$output")" = the ]
	not grep -q lord <<<"$output"
	# prompts that cannot be read
	reports 74 'standard input: Bad file descriptor' bash -c "pt-sample $ckpt - -n 5 <&-"
	reports 74 'standard input: Is a directory' mpiexec -n 2 bash -c "pt-sample $ckpt --fsdp 2 - -n 5 <."
	# a vocabulary without a line break begins with its first token
	printf 'ab%.0s' {1..500} >ab.txt
	pt-prepare -q ab.txt -o ab.h5
	tiny -d ab.h5 -n 2 -o ab >/dev/null
	pt-sample ab -n 5 >out
	[ "$(wc -c <out)" -eq 7 ]
	[ "$(head -c 1 out)" = a ]
	echo | pt-sample ab - -n 5 | cmp - out
	# any byte is a token of bytes
	pt-prepare -q -t byte text.txt -o bytes.h5
	tiny -d bytes.h5 -n 2 -o bytes >/dev/null
	[ "$(LC_ALL=C pt-sample bytes/checkpoints/latest.h5 $'\377\001' -n 5 | wc -c)" -eq 8 ]
}

@test "wrong options are 64, and nothing is drawn" {
	make_runs
	for o in '-n -1' '-n x' '-t -1' '-t nan' '-k -1' '--top-p 1.1' '--top-p -0.1' '-N 0' '--seed x' \
		'--threads -1' '--tokens' '--temprature 1' 'a b'; do
		read -ra o <<<"$o"
		code_of 64 pt-sample $ckpt the "${o[@]}"
		[[ $output == pt-sample:* ]]
	done
	code_of 64 pt-sample
	reports 64 "did you mean '--temperature'" pt-sample $ckpt the --temprature 1
}

@test "a checkpoint that is none, or is damaged" {
	make_runs
	reports 74 'nowhere.h5: No such file' pt-sample nowhere.h5
	reports 65 'a pt-shard file' pt-sample data.h5
	code_of 65 pt-sample text.txt
	pt-sample gpt2 the -n 9 | cmp - <(pt-sample $ckpt the -n 9)
	mkdir none
	code_of 65 pt-sample none
	# what pt-ckpt convert makes a checkpoint of: the line that is said does
	pt-ckpt convert $ckpt --to huggingface -o hf
	mkdir dcp
	touch dcp/.metadata
	printf 'PK\003\004 and more' >x.pt
	code_of 65 pt-sample dcp
	says "dcp: a checkpoint of torch.distributed.checkpoint, not a pt checkpoint; 'pt-ckpt convert dcp -o NEW.h5' converts it"
	reports 65 "x.pt: a file of torch.save(), not a pt checkpoint; 'pt-ckpt convert x.pt -o NEW.h5' converts it" pt-sample x.pt
	code_of 65 pt-sample hf/model.safetensors
	says "; 'pt-ckpt convert --vocabulary hf hf/model.safetensors -o NEW.h5' converts it"
	not grep -q init-from <<<"$output"
	pt-ckpt convert $ckpt -o model.bin
	code_of 65 pt-sample model.bin
	says "model.bin: a model of llm.c, not a pt checkpoint; 'pt-ckpt convert model.bin -o NEW.h5' converts it"
	reports 65 "'pt-ckpt convert model.bin -o NEW.h5'" pt-ckpt export-json model.bin
	reports 65 "; --init-from takes it as it is" pt-train -q -d data.h5 --resume model.bin -n 1
	pt-train -q -d data.h5 --init-from model.bin -n 1 -o from_bin >/dev/null
	rm hf/tokenizer.json
	run pt-sample hf
	eval "$(grep -o "pt-ckpt convert[^']*" <<<"$output")"
	pt-ckpt diff --no-optimizer $ckpt NEW.h5
	reports 65 "; --init-from takes it as it is" pt-train -q -d data.h5 --resume hf -n 1
	size=$(stat -Lc %s $ckpt)
	for n in 0 100 5000 $((size / 2)) $((size - 1)); do
		head -c $n $ckpt >bad.h5
		reports 65 'bad.h5: ' pt-sample bad.h5 the
		not grep -q ^the <<<"$output"
	done
	pt-sample $ckpt the -n 30 >good
	for at in $(seq 13 3001 $((size - 1))); do
		damage $ckpt bad.h5 "$at"
		run pt-sample bad.h5 the -n 30
		# moments, and what nothing is stored in, are not read
		[ "$status" -eq 65 ] || diff good - <<<"$output"
	done
	at=$(h5dump -p -H -d model/norm.weight $ckpt | sed -n 's/.*OFFSET //p')
	damage $ckpt bad.h5 "$at"
	reports 65 '/model/norm.weight: rows 0 to' pt-sample bad.h5 the
}
