#!/usr/bin/env bats
# Families of transformers beside Llama: what pt-check reads, what pt-train trains and rejects (tests/golden/families).
load helpers

golden=$BATS_TEST_DIRNAME/../golden/families

sixteen() { # a shard whose vocabulary has 16 tokens
	printf abcdefghijklmnop | awk '{ for (i = 0; i < 300; i++) printf "%s", $0 }' >text
	pt-prepare -q -t char -o sixteen.h5 text
}

@test "steps of all families are right, by their config.json" {
	local f
	for f in "$golden"/*/; do
		code_of 0 pt-check --clip 0 "$f/before.pt" "$f/after.pt" --batch "$f/batch.npy"
		says 'verdict: the step is right'
	done
}

@test "a config.json of another class is rejected by its model_type, whatever the tensors are" {
	cp "$golden/gemma2/before.pt" .
	local type
	for type in phi olmo gpt_oss llama4; do
		echo "{\"model_type\": \"$type\"}" >config.json
		reports 69 "config.json: model_type \"$type\" is not supported, only gpt2, llama, " \
			pt-check before.pt "$golden/gemma2/after.pt"
	done
	# a class with tensors of another one
	cp "$golden/gemma3/config.json" .
	reports 65 'describes gemma3, but the tensors are gemma2' pt-ckpt verify before.pt
}

@test "keys that would change the function are rejected by name" {
	try() { # FAMILY SED TEXT
		cp "$golden/$1/before.pt" .
		sed "$2" "$golden/$1/config.json" >config.json
		reports 69 "$3" pt-ckpt verify before.pt
	}
	try gemma2 's/{/{"use_bidirectional_attention": true,/; /"use_bidirectional_attention": null/d' \
		'use_bidirectional_attention is true'
	try gemma3 's/"attn_logit_softcapping": null/"attn_logit_softcapping": 50.0/' 'attn_logit_softcapping is not supported'
	try phi3 's/"rope_type": "default"/"rope_type": "longrope"/' 'rope_type must be default'
	try llama-yarn 's/"factor": 4.0/"factor": 4.0, "truncate": false/' 'truncate is false'
	try llama-yarn 's/"rope_type": "yarn"/"rope_type": "dynamic"/' \
		'rope_type must be default, linear, llama3 or yarn'
	try llama-yarn 's/"factor": 4.0/"factor": 4.0, "partial_rotary_factor": 0.5/' 'partial_rotary_factor is not 1'
	try granite 's/"attention_multiplier"/"sliding_window": 5, "attention_multiplier"/' 'sliding_window is not supported'
}

@test "what the kernels lack is not trained, sampled or written" {
	sixteen
	make_shard
	reports 69 'arch gemma2 is not supported in training and sampling; pt-check(1) checks' \
		tiny -o run --arch gemma2
	reports 69 'logit-cap is not supported' tiny -o run --arch llama --logit-cap 30
	local f
	for f in olmo2 gemma3 glm4; do
		pt-ckpt convert "$golden/$f/before.pt" -o $f.h5
		reports 69 "arch $f is not supported" pt-train -q -d sixteen.h5 --resume $f.h5 -n 3 -T 12 -o run
		reports 69 "a model with arch $f cannot be written" pt-ckpt convert --to huggingface $f.h5 -o $f
	done
	[ ! -e run ]
}

@test "Phi-3 and YaRN are trained: the next step from PyTorch's moments" {
	sixteen
	local f
	for f in phi3 llama-yarn; do
		pt-ckpt convert "$golden/$f/after.pt" -o $f.h5
		pt-train -q -d sixteen.h5 --resume $f.h5 -n 3 -b 2 -m 1 -t 1 --warmup 0 --self-test no -T 12 -o $f \
			>log-$f 2>&1
		grep -q 'step=3 ' log-$f
		pt-ckpt diff $f.h5 $f >differ || true
		grep -q 'attention.wq' differ
	done
	# channels that are not rotated: no class of transformers that is written has them
	reports 69 'rotary-channels cannot be written' pt-ckpt convert --to huggingface phi3 -o out
	pt-ckpt convert --to huggingface llama-yarn -o out
	grep -q '"rope_type": "yarn"' out/config.json
	pt-ckpt diff --no-optimizer out llama-yarn
}

@test "a wrong tensor is named as in the file, too, with its rows in a fused tensor" {
	sed 's/"partial_rotary_factor": 0.75/"partial_rotary_factor": 1.0/' "$golden/phi3/config.json" >config.json
	cp "$golden/phi3/before.pt" "$golden/phi3/after.pt" .
	code_of 1 pt-check --clip 0 before.pt after.pt --batch "$golden/phi3/batch.npy"
	says 'first   wrong in backward order: output.weight (model.lm_head.weight), residual'
	pt-check -j --clip 0 before.pt after.pt --batch "$golden/phi3/batch.npy" >json || true
	name() { # TENSOR
		jq -r ".tensors[] | select(.name == \"layers.1.$1.weight\") | .file_name" json
	}
	[ "$(name attention.wk)" = 'model.model.layers.1.self_attn.qkv_proj.weight[16:24]' ]
	[ "$(name feed_forward.w3)" = 'model.model.layers.1.mlp.gate_up_proj.weight[8:16]' ]
	[ "$(name ffn_norm)" = model.model.layers.1.post_attention_layernorm.weight ]
}

@test "what a run leaves out of a family's function is named" {
	left_out() { # FAMILY SED TEXT: the configuration has what the run did not compute
		cp "$golden/$1/before.pt" "$golden/$1/after.pt" .
		sed "$2" "$golden/$1/config.json" >config.json
		reports 1 "$3" pt-check --clip 0 before.pt after.pt --batch "$golden/$1/batch.npy"
	}
	granite='s/"model_type": "llama"/"model_type": "granite", "attention_multiplier": 0.35355339059327373'
	left_out gemma3 's/"final_logit_softcapping": null/"final_logit_softcapping": 4.0/' 'as if logits had no limit'
	left_out llama-yarn "$granite, \"embedding_multiplier\": 3.0/" 'as if the embedding were not scaled'
	left_out llama-yarn "$granite, \"residual_multiplier\": 0.5/" \
		'as if the outputs of sublayers were not scaled before the residual addition'
	left_out llama-yarn "$granite, \"logits_scaling\": 2.0/" 'as if logits were not scaled'
	left_out llama-yarn 's/"model_type": "llama"/"model_type": "granite", "attention_multiplier": 0.2/' \
		"as if scores were divided by the root of a head's width"
}
