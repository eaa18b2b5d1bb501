#!/usr/bin/env bats
# pt-ckpt: checkpoints of PyTorch (tests/golden/torch, of make_torch.py).
load helpers

golden=$BATS_TEST_DIRNAME/../golden/torch

@test "files of torch.save and directories of DCP are the model of Hugging Face" {
	local config=$golden/hf/config.json f
	for f in ddp.pt titan megatron shards universal pytorch_model.bin bins zero1 zero2 zero3; do
		pt-ckpt verify --model-config "$config" "$golden/$f"
		code_of 0 pt-ckpt diff --no-optimizer --model-config "$config" "$golden/$f" "$golden/hf"
	done
	config=$golden/qwen3/config.json # norms of queries and keys: torchtitan rotates halves
	for f in qwen3.pt qwen3-megatron; do
		code_of 0 pt-ckpt diff --no-optimizer --model-config "$config" "$golden/$f" "$golden/qwen3"
	done
	sed 's/"qwen3"/"llama"/' "$config" >config.json
	code_of 65 pt-ckpt verify --model-config config.json "$golden/qwen3.pt"
	says 'no norms of queries and keys, but the tensors do'
	config=$golden/hf/config.json
	code_of 0 pt-ckpt diff --no-optimizer "$golden/nanogpt.pt" "$golden/gpt2"
	pt-ckpt show "$golden/nanogpt.pt" >shown
	grep -q '^step = 7$' shown
	grep -q "^param_hash = $(pt-ckpt hash "$golden/gpt2" | cut -d' ' -f1)$" shown
	grep -q '^layers.0.attention.wo.weight *\[16, 16\] ' shown
	# a configuration beside it, and in the directory
	mkdir old
	cp "$golden/pytorch_model.bin" "$config" old
	code_of 0 pt-ckpt diff old "$golden/hf"
	cp "$golden/ddp.pt" "$config" .
	pt-ckpt verify ddp.pt
}

@test "what the tensors do not tell is asked for" {
	reports 64 'the number of heads' pt-ckpt show "$golden/ddp.pt"
	says 'give --model-config FILE'
	printf 'heads = 4\ncontext = 16\n' >conf
	pt-ckpt show --options --model-config conf "$golden/ddp.pt" >options
	grep -qx 'beta2 = 0.95' options
	grep -qx 'kv-heads = 2' options
	reports 64 'does not accept --model-config' pt-ckpt ls --model-config conf
	reports 64 'can be read, but not written' pt-ckpt convert --to torch -o out.pt "$golden/nanogpt.pt"
}

@test "a run goes on from moments of PyTorch, whatever file they were in" {
	printf 'abcdefghij\n' | awk '{ for (i = 0; i < 300; i++) print }' >text
	pt-prepare -q -o eleven.h5 text
	printf 'heads = 4\ncontext = 16\n' >conf
	pt-ckpt convert --model-config conf "$golden/ddp.pt" -o ddp.h5
	pt-ckpt convert --model-config conf "$golden/titan" -o titan.h5
	pt-ckpt diff ddp.h5 titan.h5
	local f
	for f in ddp titan; do
		pt-train -q -d eleven.h5 --resume $f.h5 -n 9 -b 2 -m 1 -t 1 --warmup 0 --self-test no \
			-o run-$f >log-$f 2>&1
	done
	grep -q 'step=9 ' log-ddp
	pt-ckpt diff run-ddp run-titan
	pt-ckpt show run-ddp | grep -q '^step = 9$'
	# its own moments: without them the steps are others
	pt-ckpt strip titan.h5 -o bare.h5
	pt-train -q -d eleven.h5 --init-from bare.h5 -n 2 -b 2 -m 1 -t 1 --warmup 0 --self-test no -o other >/dev/null 2>&1
	code_of 1 pt-ckpt diff --no-optimizer run-ddp other
}

# What a file of a checkpoint of ZeRO was replaced by, and what is said about it.
refused() { # code, text
	reports "$1" "$2" pt-ckpt verify --model-config "$golden/hf/config.json" z
	rm -rf z
}

copy() {
	cp -r "$golden/$1" z
	chmod -R u+w z
}

@test "DeepSpeed: files of ranks that are missing, or of another run" {
	local rank=mp_rank_00_optim_states.pt model=mp_rank_00_model_states.pt r
	for r in 0 1 2; do
		copy zero2/global_step7
		rm z/zero_pp_rank_${r}_$rank
		refused 65 "z/zero_pp_rank_${r}_$rank is missing: 3 ranks have saved"
	done
	copy zero2/global_step7
	rm z/$model
	refused 65 "z/$model is missing"
	copy zero3
	rm z/zero_pp_rank_2_$model
	refused 65 "z/zero_pp_rank_2_$model is missing"
	copy zero2/global_step7
	cp z/zero_pp_rank_2_$rank z/zero_pp_rank_3_$rank
	refused 65 '3 ranks saved, but there are 4 optimizer files'
	copy zero2/global_step7
	rm z/zero_pp_rank_*
	refused 65 'optim_states.pt), which hold the fp32 parameters, are missing'
	copy zero2/global_step7
	cp "$golden"/zero3/zero_pp_rank_1_$rank z
	refused 65 "zero_pp_rank_1_$rank: from a different run (ZeRO 3, 3 ranks) than the other files"
	copy zero2/global_step7
	cp "$golden"/elastic/zero_pp_rank_1_$rank z
	refused 65 'the number of parameter groups (1) differs from rank 0 (2)'
	copy zero2/global_step7
	cp "$golden"/elastic/$model z
	refused 65 'has 1 parameter group, but the optimizer has 2'
	copy elastic
	cp "$golden"/zero1/$model z
	refused 65 'the parameters of group 0 have 2720 elements, the fp32 buffers 2736'
	copy zero3
	cp "$golden"/zero3-frozen/zero_pp_rank_1_$rank z
	refused 65 '(ZeRO 3, 2 ranks)'
}

@test "DeepSpeed: parts of models are refused, and the universal format has the same name of a file" {
	local model=mp_rank_00_model_states.pt
	copy zero2/global_step7
	cp z/$model z/mp_rank_01_model_states.pt
	refused 69 'tensor parallelism'
	copy zero2/global_step7
	touch z/layer_01-model_00-model_states.pt
	refused 69 'ZeRO with pipeline parallelism is not supported; convert the checkpoint with'
	copy zero2/global_step7
	touch z/layer_0_expert_0_mp_rank_00_model_states.pt
	refused 69 'expert parallelism'
	copy universal
	cp "$golden/zero2/global_step7/$model" z
	pt-ckpt verify --model-config "$golden/hf/config.json" z
	rm -rf z
	# a bit of the second moments of a rank, which parameters do not need
	copy zero3
	damage "$golden"/zero3/zero_pp_rank_2_mp_rank_00_optim_states.pt z/zero_pp_rank_2_mp_rank_00_optim_states.pt 8500
	pt-ckpt hash --model-config "$golden/hf/config.json" z
	refused 65 'zero_pp_rank_2_mp_rank_00_optim_states.pt: archive/data/3 does not match its checksum'
}

@test "nanotron: parts, stages, ZeRO 1; files that are missing, or of another run" {
	local name of=tp-rank-1-of-2.safetensors qkv=z/model/model/decoder/1/pp_block/attn/qkv_proj
	for name in nanotron nanotron-zero; do
		pt-ckpt verify "$golden/$name"
		code_of 0 pt-ckpt diff --no-optimizer "$golden/$name" "$golden/hf-even"
	done
	pt-ckpt diff "$golden/nanotron" "$golden/nanotron-zero" >differ
	code_of 0 pt-check --two-runs "$golden/nanotron" "$golden/nanotron-zero"
	pt-ckpt convert "$golden/nanotron-zero" -o ours.h5
	code_of 0 pt-ckpt diff "$golden/nanotron-zero" ours.h5
	copy nanotron-tied
	code_of 0 pt-ckpt convert --to huggingface -o hf z
	rm -rf z
	copy nanotron
	rm $qkv/*$of
	refused 65 'the parts of model.decoder.1.pp_block.attn.qkv_proj.weight leave a hole or overlap'
	copy nanotron
	rm z/optimizer/optimizer_pp-0-of-2_tp-1*
	refused 65 'the file before optimizer_pp-1-of-2_tp-0-of-2_exp-0-of-1.pt is missing; copy'
	copy nanotron-zero
	rm z/optimizer/*_dp-2-of-3_tp-1*
	refused 65 '6 ranks saved, but there are 5 files'
	copy nanotron
	cp "$golden"/nanotron-zero/optimizer/*_dp-0-of-3_tp-0* z/optimizer
	refused 65 'are from different layouts'
	copy nanotron
	touch $qkv/model_weight_pp-rank-1-of-2_tp-rank-0-of-2_exp-rank-0-of-4.safetensors
	refused 69 'mixture of experts is not supported'
	copy nanotron
	cp "$golden"/nanotron-zero/optimizer/*_dp-0-of-3_tp-0* z/optimizer/optimizer_pp-0-of-2_tp-0-of-2_exp-0-of-1.pt
	refused 65 'has fewer elements than its'
	copy nanotron
	for name in z/optimizer/*_tp-*; do
		cp "$name" "${name/_tp/_dp-0-of-2_tp}"
		mv "$name" "${name/_tp/_dp-1-of-2_tp}"
	done
	refused 65 'has more elements than its'
	# (whose product of ranks is negative in 64 bits)
	copy nanotron
	rm z/optimizer/*
	touch z/optimizer/optimizer_pp-0-of-800000000_dp-0-of-800000000_tp-0-of-800000000.pt
	code_of 0 pt-ckpt verify z
	copy nanotron
	sed -i 's/"is_llama_config": true/&, "moe_config": {"num_experts": 8}/' z/model_config.json
	reports 69 'moe_config is not supported' pt-ckpt verify z
	# a bit of the second moments of a rank
	rm -rf z
	copy nanotron-zero
	name=optimizer/optimizer_pp-0-of-1_dp-1-of-3_tp-1-of-2_exp-0-of-1.pt
	damage "$golden/nanotron-zero/$name" z/$name 5330
	reports 65 'checksum' pt-ckpt verify z
}

@test "replicas and tied tensors of ranks: equal, apart in this step, apart before" {
	local step=$golden/nanotron-step n of name
	reports 0 'update  20 of 20 within bounds' pt-check "$step/before" "$step/after"
	says 'copies  34 of 34 are the same'
	apart() { # WHAT RANK: of both steps, in `before` and `after`
		local s
		for s in before after; do
			rm -rf $s
			cp -r "$step/$s" .
			chmod -R u+w $s
			cp "$step/spoiled/$s-$1.pt" "$s/optimizer/optimizer_$2-of-2_exp-0-of-1.pt"
		done
	}
	while read -r name n of what; do
		apart "$name" "$n"
		reports 1 "copies  33 of 34 are the same" pt-check "$step/before" after
		says "finding copies: $what, which were equal before this step: the first is "
		says 'element 3, '
		reports 1 "finding copies: $what, as they did before this step: the first is " pt-check before after
		reports 1 'after: COPIES DIFFER' pt-ckpt verify after
		says "of $of elements, first in element 3: "
		pt-ckpt verify "$step/after"
		pt-ckpt hash after # which reads the first rank's
		code_of 1 pt-check "$step/before" after --json
		jq -e '([.copies[] | select(.different == 1 and .first == 3)] | length) == 1' <<<"$output"
	done <<-END
		norm pp-0-of-2_tp-1 16 exp_avg of pp 0 tp 1 and of pp 0 tp 0 differ in 1 of 2 tensors
		table pp-1-of-2_tp-0 192 exp_avg_sq of pp 1 and of pp 0 differ in 1 of 1 tensors
		masters pp-1-of-2_tp-1 16 parameters of pp 1 tp 1 and of pp 1 tp 0 differ in 1 of 3 tensors
	END
	# the copies of each of two runs
	reports 1 'finding copies: second run: parameters of pp 1 tp 1' pt-check --two-runs "$step/after" after
	reports 1 'finding copies: first run: parameters of pp 1 tp 1' pt-check --two-runs after "$step/after"
}

@test "an output layer that is not the embedding any more, though the model ties them" {
	cp -r "$golden/titan" other
	printf 'heads = 4\ncontext = 16\ntie = yes\n' >conf
	reports 65 'but the model ties them' pt-ckpt verify --model-config conf other
	code_of 1 pt-check -c conf "$golden/titan" other
	says 'finding copies: second run: parameters of the output layer and of the embedding that it is tied to differ in 1 of 1'
	printf 'heads = 4\ncontext = 16\n' >conf
	code_of 0 pt-check -c conf "$golden/titan" other
}

@test "a configuration without model_type, where its keys tell it and where they do not" {
	local tie='"tie_word_embeddings": false'
	cp -r "$golden/hf" z
	chmod -R u+w z
	jq 'del(.model_type)' "$golden/hf/config.json" >z/config.json
	code_of 0 pt-ckpt diff z "$golden/hf"
	sed "s/$tie/&, \"max_window_layers\": 28/" z/config.json >some.json
	code_of 69 pt-ckpt show --model-config some.json "$golden/ddp.pt"
	says 'model_type is missing, and other keys do not determine it; add "model_type": "llama" for'
	sed "s/$tie/&, \"max_window_layers\": 28, \"architectures\": [\"LlamaForCausalLM\"]/" z/config.json >some.json
	pt-ckpt show --model-config some.json "$golden/ddp.pt"
	jq 'del(.model_type)' "$golden/gpt2/config.json" >some.json
	pt-ckpt show --model-config some.json "$golden/nanogpt.pt"
}

@test "several files of a model: one that is missing, or has another tensor than the index" {
	copy bins
	rm z/pytorch_model-00002-of-00002.bin
	refused 65 'z/pytorch_model-00002-of-00002.bin: missing'
	copy bins
	sed -i 's/"model.norm.weight"/"model.norm.bias"/' z/*.json
	refused 65 'pytorch_model.bin.index.json: model.norm.bias is not in the file pytorch_model-00002-of-00002.bin'
	copy bins
	sed -i 's/ "weight_map": {/&"model.more.weight": "pytorch_model-00001-of-00002.bin",/' z/*.json
	refused 65 'model.more.weight is not in the file pytorch_model-00001-of-00002.bin'
	copy bins
	sed -i 's/"pytorch_model-00001/"..\/pytorch_model-00001/' z/*.json
	refused 65 'is not the name of a file in the same directory'
	copy bins
	echo '{}' >z/pytorch_model.bin.index.json
	refused 65 'weight_map is missing or empty'
}

@test "damage: a bit of a part, a part that is missing, a file that is not whole" {
	local config=$golden/hf/config.json
	cp -r "$golden/titan" .
	chmod -R u+w titan
	pt-ckpt verify --model-config "$config" titan
	damage "$golden/titan/__2_0.distcp" titan/__2_0.distcp 500
	reports 65 'titan/__2_0.distcp' pt-ckpt verify --model-config "$config" titan
	cp "$golden/titan/__2_0.distcp" titan
	# in a second moment, the last of the file
	damage "$golden/ddp.pt" flipped.pt $(($(stat -c %s "$golden/ddp.pt") - 9000))
	reports 65 'does not match its checksum' pt-ckpt verify --model-config "$config" flipped.pt
	pt-ckpt hash --model-config "$config" flipped.pt # of the parameters
	rm titan/__1_0.distcp
	reports 74 '__1_0.distcp: No such file' pt-ckpt verify --model-config "$config" titan
	head -c 1000 "$golden/titan/.metadata" >titan/.metadata
	reports 65 'unexpected end' pt-ckpt verify --model-config "$config" titan
	head -c 50000 "$golden/ddp.pt" >half.pt
	reports 65 'truncated' pt-ckpt verify --model-config "$config" half.pt
}

@test "files that PyTorch has written, with FSDP and tensor parallelism, DDP, and Megatron-LM" {
	local real=${PT_ORACLE:-$BATS_TEST_DIRNAME/../../shared/data/oracle} f
	[ -e "$real" ] || skip 'no shared/data/oracle'
	for f in dcp-nested/step-0 ddp-step-0.pt; do
		code_of 0 pt-ckpt diff --no-optimizer --model-config "$real/hf/config.json" "$real/$f" "$real/hf"
	done
	for f in dcp-nested/step-1 ddp-step-1.pt hf-sharded-step-1; do
		pt-ckpt verify --model-config "$real/hf/config.json" "$real/$f"
	done
	printf 'heads = 4\ncontext = 16\n' >conf
	pt-ckpt verify --model-config conf "$real/dcp-flat/step-1"
	pt-ckpt show --model-config "$real/hf/config.json" "$real/dcp-nested/step-1" | grep -qx 'step = 2'
	pt-ckpt show --model-config "$real/hf/config.json" "$real/ddp-step-1.pt" | grep -qx 'step = 1'
	code_of 65 pt-ckpt show "$real/torchdist" # a part of a model
}
