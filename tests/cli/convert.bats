#!/usr/bin/env bats
# pt-ckpt: formats of other programs, combining, selecting, pruning, pipes.
load helpers

# A run with checkpoints at steps 10, 20, 30, 40.
make_run() { # FOLDER OPTION...
	local folder=$1
	shift
	[ -e data.h5 ] || make_shard
	tiny -n 40 -o "$folder" --keep 0 --ckpt-every 10 "$@" >/dev/null
}

step() { # FOLDER STEP
	printf '%s/checkpoints/step-%08d.h5' "$1" "$2"
}

same_hash() { # FILE...
	[ "$(pt-ckpt hash "$@" | cut -d' ' -f1 | sort -u | wc -l)" -eq 1 ]
}

@test "Hugging Face's format and back, of both architectures, in files of any size" {
	make_run run
	make_run llama --arch llama --kv-heads 1 --ffn-dim 40
	for r in run llama; do
		pt-ckpt convert $r -o $r.hf
		[ "$(find $r.hf -type f | wc -l)" -eq 4 ]
		pt-ckpt convert $r --shard-size 8K -o $r.shards
		[ -e $r.shards/model.safetensors.index.json ]
		[ ! -e $r.shards/model.safetensors ]
		pt-ckpt verify $r.hf $r.shards
		same_hash $r $r.hf $r.shards
		pt-ckpt convert $r.hf -o $r.h5
		pt-ckpt convert $r.shards -o again.h5
		cmp $r.h5 again.h5
		pt-ckpt convert $r.h5 -o again.hf
		diff -r -x 'tokenizer*' $r.hf again.hf
		[ ! -e again.hf/tokenizer.json ] # (it came without its vocabulary)
		rm -r again.h5 again.hf
	done
	reports 64 'is not empty' pt-ckpt convert run -o run.hf
	code_of 64 pt-ckpt convert -f run -o run.hf # with --force, neither
	says 'is not empty'
	reports 64 '--force replaces it' pt-ckpt convert run -o run.h5
	pt-ckpt convert -f run -o run.h5
	cmp run.h5 "$(step run 40)"
	damage run.hf/model.safetensors flipped 20000
	mv flipped run.hf/model.safetensors
	reports 65 'run.hf: DAMAGED' pt-ckpt verify run.hf
}

@test "files of a tokenizer: beside the weights, and as the vocabulary" {
	local tokens=$BATS_TEST_DIRNAME/../golden/tokens/tokenizer.json
	make_text >text.txt
	pt-prepare -q -t bpe --vocab-files "$tokens" -o bpe.h5 text.txt
	pt-train -q -d bpe.h5 -n 1 -b 2 -m 1 -t 16 --layers 1 --dim 16 --heads 2 --self-test no -o run >/dev/null 2>&1
	pt-ckpt convert run -o hf --vocabulary "$tokens"
	cmp "$tokens" hf/tokenizer.json
	echo '{}' >hf/tokenizer_config.json
	pt-ckpt convert hf -o again
	diff -r hf again
	pt-ckpt convert hf -o back.h5 --vocabulary hf
	same_hash run back.h5
	pt-sample back.h5 the -n 20 >first
	pt-sample run the -n 20 | cmp - first
	# not what is only in the same folder
	cp "$tokens" .
	pt-ckpt convert back.h5 -o bare
	not cmp -s tokenizer.json bare/tokenizer.json
	rm tokenizer.json
	# of another model
	make_run other
	code_of 64 pt-ckpt convert other -o x --vocabulary hf
	[ ! -e x ]
}

@test "a vocabulary goes with its model, as tokenizer.json, and comes back" {
	make_text >text.txt
	pt-prepare -q --train-bpe 300 --vocab-out voc text.txt
	local kind
	for kind in byte trained ranks; do
		case $kind in
		byte) pt-prepare -q -t byte -o $kind.h5 text.txt ;;
		trained) pt-prepare -q -t bpe --vocab-files voc -o $kind.h5 text.txt ;;
		ranks) pt-prepare -q -t bpe --vocab-files voc/vocab.tiktoken --pattern '\s+|[^\s\d]+|\d' -o $kind.h5 text.txt ;;
		esac
		pt-train -q -d $kind.h5 -n 1 -b 2 -m 1 -t 1 -T 16 --layers 1 --dim 16 --heads 2 --vocab-multiple 64 \
			--self-test no -o $kind >/dev/null
		pt-ckpt convert $kind -o $kind.hf
		grep -q '"tokenizer_class": "PreTrainedTokenizerFast"' $kind.hf/tokenizer_config.json
		pt-prepare -q -t bpe --vocab-files $kind.hf -o again.h5 text.txt
		for part in train val; do
			h5dump -y -d $part $kind.h5 | sed 1d >first
			h5dump -y -d $part again.h5 | sed 1d | cmp - first
		done
		pt-ckpt convert -f $kind.hf --vocabulary $kind.hf -o back.h5
		pt-sample $kind the -n 20 >first
		pt-sample back.h5 the -n 20 | cmp - first
		# the rows that pad the table are tokens without a text
		pt-ckpt convert --padding $kind -o padded.hf
		pt-ckpt convert -f padded.hf --vocabulary padded.hf -o back.h5
		same_hash $kind back.h5
		pt-sample back.h5 the -n 20 >/dev/null
		rm -r padded.hf again.h5
	done
	cmp voc/tokenizer.json trained.hf/tokenizer.json
	grep -q '"eos_token": "<|endoftext|>"' trained.hf/tokenizer_config.json
	# a given vocabulary, instead of the files of the model that is converted
	pt-ckpt convert trained.hf --vocabulary trained.h5 -o given.hf
	cmp voc/tokenizer.json given.hf/tokenizer.json
	# what Hugging Face's library reads otherwise is said, and the model is written
	pt-prepare -q -t bpe --vocab-files voc/vocab.tiktoken --pattern '\w+|\W' -o words.h5 text.txt
	pt-train -q -d words.h5 -n 1 -b 2 -m 1 -t 1 -T 16 --layers 1 --dim 16 --heads 2 --self-test no -o words >/dev/null
	pt-ckpt convert words -o words.hf 2>err
	grep -q 'tokenizer.json is not written: the pattern' err
	[ ! -e words.hf/tokenizer.json ]
	pt-ckpt verify words.hf
}

@test "llm.c's format and back" {
	make_run run
	pt-ckpt convert run -o run.bin
	pt-ckpt verify run.bin
	pt-ckpt convert run.bin -o back.h5
	same_hash run back.h5 run.bin
	pt-ckpt convert back.h5 -o again.bin
	cmp run.bin again.bin
	# as llm.c begins it
	od -An -tu4 -N32 run.bin | tr -s ' \n' ' ' | grep -q '^ 20240326 3 16 [0-9]* 1 2 16 128 $'
	pt-ckpt convert --dtype bf16 run -o half.bin
	[ $(((($(stat -c %s run.bin) - 1024)) / 2)) -eq $(($(stat -c %s half.bin) - 1024)) ]
	pt-ckpt convert half.bin -o half.hf --dtype bf16
	pt-ckpt cast --dtype bf16 run -o half.h5
	pt-ckpt convert half.h5 -o half2.bin --dtype bf16
	cmp half.bin half2.bin
	reports 64 'huggingface' pt-ckpt convert run --to llmc --shard-size 4K -o x.bin
	make_run plain --bias no
	reports 65 'llm.c supports GPT-2 only with' pt-ckpt convert plain -o plain.bin
	[ ! -e plain.bin ]
}

@test "a Llama in llm.c's format and back" {
	make_run run --arch llama --vocab-multiple 8
	pt-ckpt convert run -o model_40.bin
	# magic, fp32, context, padded vocabulary, layers, heads, kv-heads, dim
	od -An -tu4 -N32 model_40.bin | tr -s ' \n' ' ' | grep -Eq '^ 20240803 3 16 [0-9]*[08642] 1 2 2 16 $'
	pt-ckpt convert model_40.bin -o back.h5
	same_hash run back.h5 model_40.bin
	pt-ckpt convert back.h5 -o again.bin
	cmp model_40.bin again.bin
	damage model_40.bin bad.bin 3000
	reports 65 'does not match its checksum' pt-ckpt verify bad.bin
	# a size that fits no width of the feed-forward layers; without our words, as of llm.c
	head -c -4 model_40.bin >short.bin
	dd if=/dev/zero of=short.bin bs=1 seek=1008 count=16 conv=notrunc status=none
	reports 65 'no feed-forward width' pt-ckpt verify short.bin
	head -c 1000 model_40.bin >head.bin
	reports 65 'shorter than its header' pt-ckpt verify head.bin
	make_run other --arch llama --rope-theta 1000.5
	reports 65 'llm.c supports Llama 3 only with' pt-ckpt convert other -o other.bin
	[ ! -e other.bin ]
}

@test "numbers that are too large for a type are refused, with the tensor" {
	make_run run
	pt-ckpt merge --weights 1e6 run -o large.h5
	reports 65 'is too large for fp16' pt-ckpt cast --dtype fp16 large.h5 -o x.h5
	says 'tok_embeddings.weight has the value'
	[ ! -e x.h5 ]
	reports 65 'is too large for fp16' pt-ckpt convert --dtype fp16 large.h5 -o x.hf
	[ ! -e x.hf ]
	pt-ckpt cast --dtype bf16 large.h5 -o x.h5
	pt-ckpt verify x.h5
}

@test "an option that a command does not take is refused" {
	make_run run
	try() { # TEXT OPTION...
		local text=$1
		shift
		reports 64 "$text" pt-ckpt "$@"
		[ ! -e st.bin ]
		[ ! -e st.h5 ]
	}
	try 'strip does not accept --to' strip --to llmc -o st.h5 run
	try 'end with .h5' strip -o st.bin run
	try 'average does not accept --dtype' average --dtype bf16 -o st.h5 run
	try 'strip does not accept --shard-size' strip --shard-size 4K -o st.h5 run
	try 'ls does not accept --keep-last' ls --keep-last 1 run
	try 'ls does not accept --out' ls -o st.h5 run
	try 'verify does not accept --optimizer' verify --no-optimizer run
	try 'cast needs --dtype' cast -o st.h5 run
	# what the environment has may be for another program
	PT_DTYPE=bf16 pt-ckpt ls run
}

@test "files of different runs are not one model" {
	make_run run
	make_run other --seed 9
	pt-ckpt convert run --shard-size 8K -o a
	pt-ckpt convert other --shard-size 8K -o b
	cp b/model-00002-of-* a
	reports 65 'pt_param_hash differs from the other files' pt-ckpt verify a
	# averages: of one model, and one vocabulary
	for o in '--heads 4' '--norm-eps 1e-6' '--act gelu'; do
		make_run odd $o
		reports 65 'are different models' pt-ckpt average run odd -o x.h5
		code_of 65 pt-ckpt merge --weights 1,1 odd run -o x.h5
		rm -r odd
	done
	says 'act gelu and gelu-tanh'
	pt-ckpt convert run -o run.hf
	pt-ckpt average run run.hf -o x.h5
	same_hash run x.h5
	sed 's/e/E/g' text.txt >other.txt
	pt-prepare -q other.txt -o capital.h5
	pt-ckpt convert run.hf --vocabulary capital.h5 -o capital-run.h5
	reports 65 'different vocabularies' pt-ckpt average run capital-run.h5 -o y.h5
}

shapes() { # CHECKPOINT
	h5ls "$1/model" | sed 's/ *Dataset//'
}

@test "a converted checkpoint is one: it speaks, and a run starts from it" {
	make_run run --vocab-multiple 64
	pt-ckpt convert run -o run.hf
	pt-ckpt convert run --padding -o padded.hf
	pt-ckpt convert run.hf -o none.h5
	reports 65 'no vocabulary' pt-sample none.h5 'the'
	pt-ckpt convert run.hf --vocabulary data.h5 -o speaks.h5
	pt-ckpt convert padded.hf -o padded.h5
	same_hash run padded.h5
	# without --padding the shapes come back, too; and rows that pad are zeros, of the GPT-2 and the Llama
	make_run llama --vocab-multiple 48 -a llama --virtual tp=2
	pt-ckpt convert llama -o llama.hf
	pt-ckpt convert llama.hf -o llama-back.h5
	vocab=$(grep '"vocab_size"' run.hf/config.json | tr -dc 0-9)
	grep -q '"pt_vocab_multiple": 64' run.hf/config.json
	not grep -q pt_vocab_multiple padded.hf/config.json
	for pair in run:none.h5 llama:llama-back.h5; do
		shapes "$(readlink -f ${pair%:*}/checkpoints/latest.h5)" >first
		shapes ${pair#*:} >second
		grep -q "^tok_embeddings.weight {" first
		cmp first second
		h5dump -d /model/tok_embeddings.weight -s "$vocab,0" -c 1,4 ${pair#*:} | grep -q '): 0, 0, 0, 0$'
		pt-ckpt verify "${pair#*:}"
	done
	pt-sample run 'the' -n 40 >first
	pt-sample speaks.h5 'the' -n 40 >second
	cmp first second
	code_of 0 tiny -n 2 --init-from speaks.h5 -o from --lr 0
	tiny -n 2 --init-from run -o original --lr 0
	pt-compare original from | grep -q 'identical'
	seq 300 >digits.txt
	pt-prepare -q digits.txt -o other.h5
	reports 64 'other.h5' pt-ckpt convert run.hf --vocabulary other.h5 -o bad.h5
	[ ! -e bad.h5 ]
}

@test "what is written is said, and no file has the name of a format that it is not" {
	make_run run
	for name in gguf onnx pt pth ckpt safetensors; do
		reports 64 "model.$name: " pt-ckpt convert run -o model.$name
		says 'o DIRECTORY'
		[ ! -e model.$name ]
	done
	pt-ckpt convert run -o model.gguf 2>&1 | grep -q "GGUF cannot be written; llama.cpp's convert_hf_to_gguf.py reads"
	pt-ckpt convert run --to huggingface -o meant.pt 2>err
	grep -qx 'pt-ckpt: wrote meant.pt (huggingface)' err
	pt-ckpt convert run -o a.h5 2>err
	grep -qx 'pt-ckpt: wrote a.h5 (pt)' err
	pt-ckpt average -q run run -o b.h5 2>err
	[ ! -s err ]
	pt-ckpt convert run -o - 2>err >c.h5
	[ ! -s err ]
	cmp a.h5 c.h5
}

@test "files alone, and of other programs: what would work" {
	make_run run
	pt-ckpt convert run -o good
	cp good/model.safetensors alone.safetensors
	reports 74 'specify --model-config FILE' pt-ckpt verify alone.safetensors
	says 'alone.safetensors: cannot be read'
	pt-ckpt convert --model-config good/config.json alone.safetensors -o alone.h5
	pt-ckpt diff --no-optimizer alone.h5 good
	printf 'GGUF\3\0\0\0' >model.gguf
	code_of 65 pt-ckpt show model.gguf
	says 'GGUF files are not supported; pass the Hugging Face model that it was converted from'
	reports 65 '; .safetensors, .bin and .pt files and directories with config.json are supported, too' pt-ckpt convert good/config.json -o x.h5
}

@test "an adapter of PEFT is no model" {
	make_run run
	pt-ckpt convert run -o good
	mkdir adapter
	echo '{"peft_type": "LORA"}' | tee good/adapter_config.json >adapter/adapter_config.json
	cp good/model.safetensors adapter/adapter_model.safetensors
	cp good/{config,tokenizer}.json adapter # as some trainers do
	for path in adapter adapter/adapter_model.safetensors; do
		for command in "pt-ckpt show $path" "pt-ckpt convert $path -o x.h5" "pt-sample $path the" \
			"pt-train -q -d data.h5 --init-from $path -o x -n 1"; do
			read -ra command <<<"$command"
			code_of 69 "${command[@]}"
			says "$path: a PEFT adapter (LoRA), not a model; merge it into its base model first"
		done
	done
	reports 69 'adapter: not supported' pt-ckpt verify adapter
	reports 65 'adapter/adapter_config.json: lora_alpha and r must be numbers, r above 0' pt-check adapter good
	code_of 69 pt-check good adapter
	# beside a whole model, it is not what is read
	pt-ckpt diff --no-optimizer run good
}

@test "config.json and names that are not ours are refused, with the key" {
	make_run run
	pt-ckpt convert run -o good
	try() { # SED TEXT
		rm -rf bad
		cp -r good bad
		sed -i "$1" bad/config.json
		code_of "${3:-65}" pt-ckpt verify bad
		says "$2"
	}
	try 's/"gpt2"/"gpt3"/' 'model_type "gpt3" is not supported, only gpt2, llama, mistral, ' 69
	says 'bad: not supported'
	try 's/gelu_new/relu/' 'activation_function' 69
	try 's/{/{"quantization_config": {},/' 'quantization_config' 69
	try 's/{/{"sliding_window": 4096,/' 'sliding_window' 69
	try 's/{/{"partial_rotary_factor": 0.5,/' 'partial_rotary_factor is not 1' 69
	try 's/{/{"rope_parameters": {"partial_rotary_factor": 0.25},/' 'partial_rotary_factor is not 1' 69
	sed -i 's/.*"layer_norm_epsilon".*/"layer_norm_epsilon": null,/; s/{/{"sliding_window": 4, "use_sliding_window": false,/' \
		bad/config.json
	sed -i 's/"rope_parameters": {[^}]*},//' bad/config.json
	pt-ckpt verify bad
	windows_of() { # SED MODEL: the options of windows of a golden model with other keys
		rm -rf bad
		cp -r "$BATS_TEST_DIRNAME/../golden/hf-$2" bad
		jq . "$BATS_TEST_DIRNAME/../golden/hf-$2/config.json" | sed "$1" >bad/config.json
		rm -f read.h5
		pt-ckpt convert -q bad -o read.h5
		h5dump -d /config read.h5 | grep -o 'sliding-window[a-z-]* = [-0-9]*' | tr '\n' ' ' || true
	}
	[ "$(windows_of '' mistral-window)" = 'sliding-window = 5 ' ]
	[ "$(windows_of '/sliding_window/d' mistral-window)" = 'sliding-window = 4096 ' ]
	[ "$(windows_of 's/"sliding_window": 5/"sliding_window": null/' mistral-window)" = '' ]
	[ "$(windows_of '/layer_types/,/]/d' qwen2-window)" = 'sliding-window = 3 sliding-window-from = 1 ' ]
	[ "$(windows_of '/layer_types/,/]/d; /max_window_layers/d' qwen2-window)" = '' ]
	[ "$(windows_of '/layer_types/,/]/d; s/"use_sliding_window": true/"use_sliding_window": false/' qwen2-window)" = '' ]
	[ "$(windows_of '' qwen2-skip)" = 'sliding-window = 4 sliding-window-skip = 2 ' ]
	# of layers without positions
	[ "$(windows_of '' smollm3-window)" = 'sliding-window = 4 sliding-window-skip = -2 ' ]
	[ "$(windows_of '/layer_types/,/]/d' smollm3-window)" = 'sliding-window = 4 sliding-window-skip = -2 ' ]
	[ "$(windows_of '/layer_types/,/]/d; /"sliding_window"/d' smollm3-window)" = '' ]
	[ "$(windows_of '/layer_types/,/]/d; /"use_sliding_window"/d; /rope_layers/,/]/d; s/layer_interval": 2/layer_interval": 9/' smollm3)" = '' ]
	rm -rf good
	cp -r "$BATS_TEST_DIRNAME/../golden/hf-qwen2-skip" good
	jq . "$BATS_TEST_DIRNAME/../golden/hf-qwen2-skip/config.json" >good/config.json
	try 's/"sliding_attention"/"chunked_attention"/' 'layer_types must be full_attention or sliding_attention' 69
	try '/"full_attention"/d; s/"sliding_attention",/"sliding_attention"/' 'layer_types must have a value for each layer'
	try 's/"sliding_window": 4/"sliding_window": 0/' 'sliding_window is out of range'
	rm -r good
	pt-ckpt convert run -o good
	try 's/"n_layer": 1/"n_layer": 2/' 'not the options of'
	try 's/"n_layer": 1/"n_layer": 100000/' '100000 layers'
	try 's/"n_head": 2/"n_head": 3/' 'not divisible'
	try 's/"n_head": 2/"n_head": 1/' 'not the options of'
	try 's/{/[/' 'not a JSON object'
	try 's/"n_embd": 16/"n_embd": -1/' 'n_embd'
	rm -r bad/config.json
	reports 74 'bad/config.json' pt-ckpt hash bad
	code_of 74 pt-ckpt hash good/nowhere.safetensors
}

@test "SmolLM3's layers without positions: a list or an interval, of every Nth layer" {
	local hf=$BATS_TEST_DIRNAME/../golden/hf-smollm3
	try() { # SED: what is read
		rm -rf other
		cp -r "$hf" other
		tr -d ' \n' <"$hf/config.json" | sed "$1" >other/config.json
	}
	pt-ckpt convert "$hf" -o one.h5
	pt-ckpt show --options one.h5 | grep -qx 'nope-every = 2'
	try 's/"no_rope_layers":[^]]*],//'
	pt-ckpt convert other -o two.h5
	pt-ckpt diff -s one.h5 two.h5
	try 's/"no_rope_layers":[^]]*]/"no_rope_layers":[1,1,1,1]/'
	pt-ckpt show --options other >options
	not grep -q nope-every options
	try 's/"no_rope_layers":[^]]*]/"no_rope_layers":[0,1,0,1]/'
	reports 69 'no_rope_layers must be 0 in every Nth layer' pt-ckpt verify other
	try 's/"no_rope_layers":[^]]*]/"no_rope_layers":[1,0]/'
	code_of 65 pt-ckpt verify other
	# no class has both
	make_shard
	tiny -n 1 -o both --arch llama --layers 2 --qk-norm --nope-every 2 >/dev/null
	reports 65 'Qwen3ForCausalLM, which has norms of queries and keys, does not support' pt-ckpt convert --to huggingface -o both.hf both
}

@test "cat, and - for each command: a checkpoint through a pipe" {
	make_run run
	mkdir own && export TMPDIR=$PWD/own # other programs have files in /tmp
	pt-ckpt cat run >image.h5
	cmp image.h5 "$(step run 40)"
	pt-ckpt cat run | pt-ckpt show - | diff - <(pt-ckpt show run)
	pt-ckpt cat run | pt-ckpt hash - | grep -q "^$(pt-ckpt hash run | cut -d' ' -f1)  -"
	pt-ckpt cat run | pt-ckpt verify - | grep -qx -- '-: ok'
	pt-ckpt cat run | pt-ckpt ls - | grep -q '^40 '
	pt-ckpt cat run | pt-ckpt diff - run
	pt-ckpt cat run | pt-ckpt diff run -
	pt-ckpt cat run | pt-ckpt cat - | cmp - image.h5
	pt-ckpt cat run | pt-ckpt convert - -o piped.hf
	same_hash run piped.hf
	pt-ckpt convert piped.hf -o - | pt-ckpt verify -
	pt-ckpt cat run | pt-ckpt strip - -o - | pt-ckpt diff --no-optimizer - run
	pt-ckpt cat run | pt-ckpt export-json - | cmp - <(pt-ckpt export-json image.h5)
	reports 64 'only the format pt' pt-ckpt convert run --to llmc -o -
	code_of 65 pt-ckpt verify - <text.txt
	code_of 65 pt-ckpt hash - </dev/null
	head -c 9000 image.h5 >short
	code_of 65 pt-ckpt show - <short
	find own -mindepth 1 | not grep .
}

@test "export-json has every attribute, option and tensor" {
	make_run run
	pt-ckpt export-json run >out.json
	grep -q '"step": 40,' out.json
	grep -q "\"param_hash\": \"$(pt-ckpt hash run | cut -d' ' -f1)\"" out.json
	grep -q '"layers": "1"' out.json
	[ "$(grep -c '"name": ' out.json)" -eq 20 ]
	[ "$(grep -c '"exp_avg": "0x' out.json)" -eq 20 ]
	! command -v python3 >/dev/null || python3 - <<-'END'
		import json
		c = json.load(open("out.json"))
		total = sum(int(t["hash"]["model"], 16) for t in c["tensors"]) % 2**64
		assert total == int(c["attributes"]["param_hash"], 16)
		assert c["tensors"][0]["name"] == "tok_embeddings.weight"
	END
}

@test "export-json refuses names that are not UTF-8" {
	make_run run
	pt-ckpt rename run --rename "norm.bias=$(printf '\377')" -o odd.h5
	reports 65 'name: not valid UTF-8' pt-ckpt export-json odd.h5
}

@test "average, ema, merge" {
	make_run run
	a=$(step run 10) b=$(step run 20) c=$(step run 30)
	pt-ckpt average "$a" "$a" "$a" -o same.h5
	same_hash "$a" same.h5
	pt-ckpt average "$a" "$b" -o ab.h5
	pt-ckpt merge --weights 0.5,0.5 "$a" "$b" -o half.h5
	cmp ab.h5 half.h5
	pt-ckpt ema --decay 0.5 "$a" "$b" -o ema.h5
	cmp ab.h5 ema.h5
	pt-ckpt ema --decay 0.5 "$a" "$b" "$c" -o three.h5
	pt-ckpt merge --weights 0.25,0.25,0.5 "$a" "$b" "$c" -o merged.h5
	cmp three.h5 merged.h5
	pt-ckpt ema --decay 0 "$a" "$b" "$c" -o last.h5
	same_hash "$c" last.h5
	pt-ckpt verify ab.h5 three.h5
	pt-ckpt show ab.h5 | grep -qx 'loss = -'
	pt-sample ab.h5 'the' -n 5 >/dev/null
	reports 64 '2 finite numbers' pt-ckpt merge --weights 1 "$a" "$b" -o x.h5
	# what would not be finite in fp32
	for w in 1e308,1e308 1e308,-1e308 1e45,0; do
		reports 65 'the sum of ' pt-ckpt merge --weights $w "$a" "$b" -o x.h5
		says ' in fp32'
		[ ! -e x.h5 ]
	done
	for w in 1,x nan,1 1,inf; do
		reports 64 '2 finite numbers' pt-ckpt merge --weights $w "$a" "$b" -o x.h5
	done
	make_run wide --dim 32
	reports 65 'dim 16 and 32' pt-ckpt average "$a" "$(step wide 10)" -o x.h5
	pt-ckpt extract "$b" --tensor norm.weight -o some.h5
	reports 65 'tensors' pt-ckpt average "$a" some.h5 -o x.h5
	damage "$b" bad.h5 "$(h5dump -p -H -d model/norm.weight "$b" | sed -n 's/.*OFFSET //p')"
	code_of 65 pt-ckpt average "$a" bad.h5 -o x.h5
	[ ! -e x.h5 ]
}

@test "strip, extract, rename, cast" {
	make_run run
	pt-ckpt strip run -o weights.h5
	same_hash run weights.h5
	not h5ls weights.h5/exp_avg
	pt-ckpt verify weights.h5
	[ $(($(stat -c %s weights.h5) * 2)) -lt "$(stat -c %s "$(step run 40)")" ]
	reports 0 'exp_avg is missing, and starts at zero' tiny --resume weights.h5 -n 42 -o resumed
	pt-ckpt extract run --tensor 'layers.0.attention.*' --tensor norm.weight -o some.h5
	[ "$(pt-ckpt show some.h5 | grep -c '\[')" -eq 9 ]
	pt-ckpt verify some.h5
	reports 65 'is missing; the file holds another model' pt-sample some.h5 the
	reports 64 'no tensor matches "layers.9.*"' pt-ckpt extract run --tensor 'layers.9.*' -o x.h5
	pt-ckpt rename run --rename '^layers.0.=block.' --rename 'weight$=w' -o named.h5
	pt-ckpt show named.h5 | grep -q '^block.attention.wq.w '
	h5ls named.h5/exp_avg | grep -q '^block.attention.wq.w '
	pt-ckpt rename named.h5 --rename '^block.=layers.0.' --rename '.w$=.weight' -o back.h5
	cmp back.h5 "$(step run 40)"
	code_of 64 pt-ckpt rename run --rename 'nothing=x' -o x.h5
	reports 64 'two tensors would be named norm.bias' pt-ckpt rename run --rename '^norm.weight$=norm.bias' -o x.h5
	code_of 64 pt-ckpt rename run --rename 'norm=a/b' -o x.h5
	pt-ckpt cast --dtype bf16 run -o cast.h5
	pt-ckpt cast --dtype bf16 cast.h5 -o cast2.h5
	cmp cast.h5 cast2.h5
	not same_hash run cast.h5
	reports 64 'pt-ckpt cast' pt-ckpt convert --dtype bf16 run -o x.h5
	[ ! -e x.h5 ]
}

@test "prune keeps the last, every so many, the best, and always latest and best" {
	make_run run
	best=$(readlink run/checkpoints/best.h5)
	reports 64 'needs a rule' pt-ckpt prune run
	pt-ckpt prune run --keep-last 1 --dry-run >would
	[ "$(find run/checkpoints -name 'step-*' | wc -l)" -eq 4 ]
	not grep -q -e 00000040 -e "$best" would
	pt-ckpt prune run --keep-every 20 | grep -q 'step-00000010.h5$'
	[ ! -e "$(step run 10)" ]
	[ -e "$(step run 20)" ]
	[ -e "$(step run 40)" ]
	make_run run --overwrite
	ln -sfn step-00000010.h5 run/checkpoints/best.h5
	head -c 5000 "$(step run 40)" >"$(step run 35)"
	reports 0 'step-00000035.h5: not an HDF5 file, or damaged; the file is kept' pt-ckpt prune run --keep-best 1
	[ -e "$(step run 35)" ]
	for s in 10 40; do
		[ -e "$(step run $s)" ]
	done
	lowest=$(for s in 10 20 30 40; do
		sed -n "s/^step=$s .*val_loss=\([^ ]*\).*/\1 $s/p" run/journal.txt | tail -n 1
	done | sort -g | head -n 1 | cut -d' ' -f2)
	[ -e "$(step run "$lowest")" ]
	[ "$(find run/checkpoints -name 'step-*' | wc -l)" -le 4 ]
	pt-ckpt verify "$(step run 40)"
}

@test "prune removes the checkpoints of all local SGD workers" {
	make_shard
	tiny_on 2 -p edit --edit-workers 2 --edit-warmup-steps 0 --edit-sync-interval 4 -n 40 --ckpt-every 10 \
		--keep 0 -o run >/dev/null
	[ -e "$(step run/worker-1 10)" ]
	ln -sfn step-00000040.h5 run/checkpoints/best.h5
	pt-ckpt prune run --keep-last 2
	for s in 10 20; do
		[ ! -e "$(step run $s)" ]
		[ ! -e "$(step run/worker-1 $s)" ]
	done
	[ -e "$(step run/worker-1 30)" ]
	tiny_on 2 --resume run -n 44 -o run >/dev/null
	# also by another name of the directory
	rm -f run/checkpoints/best.h5 run/worker-1/checkpoints/best.h5
	cp -r run again
	(cd run && pt-ckpt prune checkpoints --keep-every 40)
	(cd again/checkpoints && pt-ckpt prune . --keep-every 40)
	for r in run again; do
		[ ! -e "$(step $r 30)" ]
		[ ! -e "$(step $r/worker-1 30)" ]
		[ -e "$(step $r/worker-1 40)" ]
	done
}

@test "diff is in forward order, with the first difference first" {
	make_run run --layers 11
	code_of 1 pt-ckpt diff --no-optimizer "$(step run 10)" "$(step run 20)"
	[ "${lines[0]}" = '# first difference: tok_embeddings.weight' ]
	awk '/ model / { print $1 }' <<<"$output" >names
	head -n 3 names | tail -n 1 | grep -qx layers.0.attention_norm.weight
	tail -n 1 names | grep -qx norm.bias
	awk -F. '/^layers/ { if ($2 < last) exit 1; last = $2 }' names
	# planted in one tensor
	pt-ckpt merge --weights 2 run -o doubled.h5
	pt-ckpt extract doubled.h5 --tensor 'layers.9.ffn_norm.*' -o some.h5
	reports 1 'only in the first' pt-ckpt diff --no-optimizer run some.h5
	# a group that one of them lacks is no tensor, and comes last
	pt-ckpt strip run -o bare.h5
	code_of 1 pt-ckpt diff run bare.h5
	not says '# first difference'
	[ "${lines[0]}" = "$(printf '%-38s only in the first' exp_avg)" ]
	pt-ckpt strip doubled.h5 -o other.h5
	code_of 1 pt-ckpt diff run other.h5
	[ "${lines[0]}" = '# first difference: tok_embeddings.weight' ]
	tail -n 1 <<<"$output" | grep -q '^exp_avg_sq .*only in the first'
}
