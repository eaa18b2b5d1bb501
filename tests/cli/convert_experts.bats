#!/usr/bin/env bats
# pt-ckpt: mixtures of experts in Hugging Face's format, and hostile files of them.
load helpers
export SETUP=make_shard

FAMILIES='mixtral olmoe qwen2_moe qwen3_moe dots1'

# A model of two layers with four experts, after two steps.
make_family() { # FAMILY
	local options
	case $1 in
	mixtral) options=(--ffn-dim 8) ;;
	olmoe) options=(--ffn-dim 8 --qk-norm --qk-norm-all --no-router-norm) ;;
	qwen2_moe) options=(--ffn-dim 24 --expert-dim 8 --bias qkv --shared-expert-dim 12 --shared-expert-gate --moe-from 1 --no-router-norm) ;;
	qwen3_moe) options=(--ffn-dim 24 --expert-dim 8 --qk-norm --head-dim 6 --moe-every 2) ;;
	dots1) options=(--ffn-dim 24 --expert-dim 8 --qk-norm --shared-expert-dim 16 --moe-from 1 --router sigmoid
		--router-scale 2.5 --router-bias 0.01 --router-groups 2 --router-top-groups 1) ;;
	esac
	tiny --layers 2 -n 2 --eval-every 0 -o "$1" --arch llama --kv-heads 1 --experts 4 "${options[@]}" >log
	pt-ckpt convert -q "$1" -o "$1.hf"
}

header_of() { # FILE: of a safetensors file
	tail -c +9 "$1" | head -c "$(od -An -tu8 -N8 "$1" | tr -d ' ')"
}

# Writes each tensor of a model to DIRECTORY/NAME, and its shape to DIRECTORY/shape-NAME.
unpack() { # MODEL DIRECTORY
	local name shape begin end file=$1/model.safetensors
	local data=$((9 + $(od -An -tu8 -N8 "$file")))
	mkdir "$2"
	while read -r name shape begin end; do
		tail -c +$((data + begin)) "$file" | head -c $((end - begin)) >"$2/$name"
		echo "$shape" >"$2/shape-$name"
	done < <(header_of "$file" | jq -r 'del(.__metadata__) | to_entries[] |
		"\(.key) \(.value.shape | join(",")) \(.value.data_offsets | join(" "))"')
}

with_header() { # FILE HEADER: writes the header, then standard input
	{
		printf '%b' "$(printf '\\x%02x' $((${#2} & 255)) $((${#2} >> 8 & 255)) $((${#2} >> 16 & 255)) $((${#2} >> 24)) 0 0 0 0)"
		printf %s "$2"
		cat
	} >"$1"
}

# Writes the tensors of a directory to MODEL/model.safetensors, without pt-ckpt's checksums.
pack() { # DIRECTORY MODEL
	local files=("$1"/model.* "$1"/lm_head.weight)
	cat "${files[@]}" | with_header "$2/model.safetensors" "$(
		paste -d' ' <(stat -c '%n %s' "${files[@]}") <(cat "${files[@]/#"$1/"/"$1/shape-"}") | awk '{
			sub(".*/", "", $1)
			printf "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%d,%d]}",
				(NR == 1 ? "{" : ","), $1, $3, at, at + $2
			at += $2
		} END { printf "}" }'
	)"
}

# The stacks of experts of transformers 5 in memory, in place of a tensor per matrix.
stack() { # DIRECTORY
	local layer e in out
	for layer in 0 1; do
		in=$1/model.layers.$layer.mlp.experts gate=gate_proj up=up_proj down=down_proj
		out=$in
		[ ! -e "$1/model.layers.$layer.block_sparse_moe.gate.weight" ] || {
			in=$1/model.layers.$layer.block_sparse_moe.experts gate=w1 up=w3 down=w2
			mv "$1/model.layers.$layer.block_sparse_moe.gate.weight" "$1/model.layers.$layer.mlp.gate.weight"
			mv "$1/shape-model.layers.$layer.block_sparse_moe.gate.weight" "$1/shape-model.layers.$layer.mlp.gate.weight"
		}
		[ -e "$in.0.$gate.weight" ] || continue
		for e in 0 1 2 3; do
			cat "$in.$e.$gate.weight" "$in.$e.$up.weight" >>"$out.gate_up_proj"
			cat "$in.$e.$down.weight" >>"$out.down_proj"
			rm "$in.$e".*
		done
		echo 4,16,16 >"${out%/*}/shape-${out##*/}.gate_up_proj"
		echo 4,16,8 >"${out%/*}/shape-${out##*/}.down_proj"
	done
}

# The names of the tensors that a class has beside the attention and the embeddings.
expected_names() { # FAMILY
	local layer
	for layer in 0 1; do
		case $1 in
		mixtral)
			printf "model.layers.$layer.block_sparse_moe.%s.weight\n" gate experts.{0..3}.w{1..3}
			continue
			;;
		qwen2_moe | qwen3_moe | dots1)
			if [ $layer = 0 ]; then
				printf "model.layers.$layer.mlp.%s_proj.weight\n" gate up down
				continue
			fi
			;;
		esac
		printf "model.layers.$layer.mlp.%s.weight\n" gate experts.{0..3}.{gate,up,down}_proj
		case $1 in
		qwen2_moe) printf "model.layers.$layer.mlp.%s.weight\n" shared_expert_gate shared_expert.{gate,up,down}_proj ;;
		dots1)
			printf "model.layers.$layer.mlp.%s\n" gate.e_score_correction_bias shared_experts.{gate,up,down}_proj.weight
			;;
		esac
	done | sort
}

@test "Hugging Face's format and back: all families, the names of their tensors, the keys of config.json" {
	local f
	for f in $FAMILIES; do
		make_family $f
		pt-ckpt verify "$f.hf"
		header_of $f.hf/model.safetensors | jq -r 'keys[]' | grep -E '\.mlp\.|block_sparse_moe' | sort >names
		expected_names $f | diff - names
		[ "$(jq -r .model_type $f.hf/config.json)" = $f ]
		[ "$(pt-ckpt hash $f $f.hf | cut -d' ' -f1 | sort -u | wc -l)" -eq 1 ]
		pt-ckpt convert -q $f.hf -o $f.h5
		pt-ckpt strip $f -o stripped.h5
		pt-ckpt diff stripped.h5 $f.h5
		pt-ckpt convert -q $f.h5 -o again.hf
		diff -r -x 'tokenizer*' $f.hf again.hf
		pt-ckpt convert -q $f --shard-size 4K -o $f.shards
		pt-ckpt convert -q $f.shards -o again.h5
		cmp $f.h5 again.h5
		rm -r again.hf again.h5 stripped.h5
		pt-train -q --init-from $f.hf -n 1 -T 16 -b 2 -m 2 -t 1 --self-test no --eval-every 0 -o $f.next >log
	done
	keys() { # FAMILY FILTER
		jq -c "$2" "$1.hf/config.json"
	}
	[ "$(keys mixtral '[.num_local_experts, .num_experts_per_tok, .intermediate_size, .architectures[0]]')" = '[4,2,8,"MixtralForCausalLM"]' ]
	[ "$(keys olmoe '[.num_experts, .norm_topk_prob, .intermediate_size, .clip_qkv]')" = '[4,false,8,null]' ]
	[ "$(keys qwen2_moe '[.moe_intermediate_size, .shared_expert_intermediate_size, .mlp_only_layers, .norm_topk_prob]')" = '[8,12,[0],false]' ]
	[ "$(keys qwen3_moe '[.moe_intermediate_size, .decoder_sparse_step, .head_dim, .norm_topk_prob]')" = '[8,2,6,true]' ]
	[ "$(keys dots1 '[.n_routed_experts, .n_shared_experts, .first_k_dense_replace, .n_group, .topk_group, .routed_scaling_factor]')" = '[4,2,1,2,1,2.5]' ]
}

@test "stacks of experts, as transformers 5 has them in memory, are the same model" {
	local f
	for f in $FAMILIES; do
		make_family $f
		unpack $f.hf tensors
		mkdir split.hf stacked.hf
		cp $f.hf/config.json split.hf
		cp $f.hf/config.json stacked.hf
		pack tensors split.hf
		stack tensors
		pack tensors stacked.hf
		[ "$(header_of stacked.hf/model.safetensors | jq length)" -lt "$(header_of split.hf/model.safetensors | jq length)" ]
		pt-ckpt verify stacked.hf
		pt-ckpt convert -q split.hf -o split.h5
		pt-ckpt convert -q stacked.hf -o stacked.h5
		cmp split.h5 stacked.h5
		pt-ckpt diff $f.hf stacked.hf
		rm -r tensors split.* stacked.*
	done
}

# A model.safetensors that SCRIPT changed, whose tensors are in `tensors`, is rejected.
rejected() { # CODE TEXT SCRIPT
	rm -rf bad tensors
	cp -r good bad
	cp -r unpacked tensors
	eval "$3"
	pack tensors bad
	reports "$1" "$2" timeout 60 pt-ckpt verify bad
	says 'bad'
}

@test "hostile files: experts that are missing, twice, too many, of other shapes" {
	local x=model.layers.1.block_sparse_moe.experts
	make_family mixtral
	unpack mixtral.hf unpacked
	cp -r mixtral.hf good
	pack unpacked good
	pt-ckpt verify good
	rejected 65 'the model has 41 tensors' "rm tensors/$x.3.w2.weight"
	rejected 65 "tensor $x.3.w2.weight is missing" "mv tensors/$x.3.w2.weight tensors/$x.4.w2.weight
		cp tensors/shape-$x.3.w2.weight tensors/shape-$x.4.w2.weight"
	rejected 65 "$x.4.w2.weight is not a tensor of the model" "cp tensors/$x.3.w2.weight tensors/$x.4.w2.weight
		cp tensors/shape-$x.3.w2.weight tensors/shape-$x.4.w2.weight"
	# 2^64 is not 0, nor is 2^64 + 3 a 3
	rejected 65 "tensor $x.0.w2.weight is missing" "mv tensors/$x.0.w2.weight tensors/$x.18446744073709551616.w2.weight
		cp tensors/shape-$x.0.w2.weight tensors/shape-$x.18446744073709551616.w2.weight"
	rejected 65 "$x.18446744073709551619.w2.weight is not a tensor of the model" \
		"cp tensors/$x.3.w2.weight tensors/$x.18446744073709551619.w2.weight
		cp tensors/shape-$x.3.w2.weight tensors/shape-$x.18446744073709551619.w2.weight"
	rejected 65 "the shape of $x.2.w1.weight does not fit" "echo 16,8 >tensors/shape-$x.2.w1.weight"
	rejected 65 "the shape of $x.2.w1.weight does not fit" "echo 2,4,16 >tensors/shape-$x.2.w1.weight"
	rejected 65 'the shape of model.layers.0.block_sparse_moe.gate.weight does not fit' 'sed -i "s/\"num_local_experts\": 4/\"num_local_experts\": 3/" bad/config.json'
	rejected 65 'the model has 47 tensors' 'sed -i "s/\"num_local_experts\": 4/\"num_local_experts\": 5/" bad/config.json'
	rejected 65 'num_local_experts is out of range' 'sed -i "s/\"num_local_experts\": 4/\"num_local_experts\": 9223372036854775807/" bad/config.json'
	rejected 65 'not a JSON object' 'sed -i "s/\"num_local_experts\": 4/\"num_local_experts\": 18446744073709551620/" bad/config.json'
	rejected 65 'num_local_experts differs from the same key under another name' 'sed -i "s/{/{\"num_experts\": 5,/" bad/config.json'
	rejected 65 'experts-per-token' 'sed -i "s/\"num_experts_per_tok\": 2/\"num_experts_per_tok\": 5/" bad/config.json'
	# stacks
	local y=model.layers.1.mlp.experts
	rejected 65 "the shape of $y.gate_up_proj does not fit" "stack tensors; echo 2,32,16 >tensors/shape-$y.gate_up_proj"
	rejected 65 "the shape of $y.down_proj does not fit" "stack tensors; echo 4,8,16 >tensors/shape-$y.down_proj"
	rejected 65 "the shape of $y.down_proj does not fit" "stack tensors; echo 64,8 >tensors/shape-$y.down_proj"
	rejected 65 "tensor $y.down_proj is missing" "stack tensors; rm tensors/$y.down_proj; cp tensors/model.norm.weight tensors/model.x
		cp tensors/shape-model.norm.weight tensors/shape-model.x"
	rejected 65 "model.layers.1.mlp.experts.0.gate_proj.weight is not a tensor" "stack tensors
		cp unpacked/$x.0.w1.weight tensors/$y.0.gate_proj.weight
		cp unpacked/shape-$x.0.w1.weight tensors/shape-$y.0.gate_proj.weight"
}

@test "hostile headers: an expert twice, and 50,000 tensors with the bytes of one expert" {
	local header x=model.layers.1.block_sparse_moe.experts.3.w2.weight
	make_family mixtral
	unpack mixtral.hf tensors
	pack tensors mixtral.hf
	pt-ckpt verify mixtral.hf
	header=$(header_of mixtral.hf/model.safetensors)
	cat tensors/{model.*,lm_head.weight} >data
	with_header mixtral.hf/model.safetensors "${header%\}},\"$x\":$(jq -c ".\"$x\"" <<<"$header")}" <data
	reports 65 'duplicate object key' timeout 60 pt-ckpt verify mixtral.hf
	more() { # SHAPE,OFFSETS: of experts 4 to 50,000
		seq -f ",\"${x%.3.*}.%.0f.w2.weight\":{\"dtype\":\"F32\",\"shape\":[${1%%,*}],\"data_offsets\":[${1#*,}]}" 4 50000
	}
	with_header mixtral.hf/model.safetensors "${header%\}}$(more 0,0,0)}" <data
	reports 65 '.w2.weight is not a tensor of the model' timeout 60 pt-ckpt verify mixtral.hf
	with_header mixtral.hf/model.safetensors "${header%\}}$(more 4,0,16)}" <data
	reports 65 'overlap another tensor' timeout 60 pt-ckpt verify mixtral.hf
}

@test "names of torchtitan and Megatron-LM: the numbers under the names of transformers" {
	local class file golden=$BATS_TEST_DIRNAME/../golden n=0
	for class in qwen3 dots1 mixtral; do
		cp "$golden/moe-steps/$class/0.pt" "$golden/moe-steps/$class/config.json" .
		for file in "$golden"/moe-names/{titan,megatron}-"$class"{,-old,-stacked,-local,-grouped}.pt; do
			[ -e "$file" ] || continue
			cp "$file" file.pt
			pt-ckpt diff file.pt 0.pt
			pt-ckpt convert -q file.pt -o $class-$((++n)).h5
			pt-ckpt diff $class-$n.h5 0.pt
		done
	done
	[ $n -eq 9 ]
	cp "$golden/moe-names"/adamw-qwen3*.pt "$golden/moe-steps/qwen3/config.json" .
	pt-ckpt convert -q adamw-qwen3-titan.pt -o titan.h5
	pt-ckpt convert -q adamw-qwen3.pt -o adamw.h5
	cmp titan.h5 adamw.h5
	pt-ckpt export-json titan.h5 | grep -q exp_avg
	# the bias of a router that no other program has
	cp "$golden/moe-names/titan-qwen3-bias.pt" "$golden/moe-steps/qwen3/config.json" .
	reports 69 'layers.1.moe.expert_bias_E is not zero: a bias of experts is supported only with sigmoid scores' pt-ckpt verify titan-qwen3-bias.pt
	jq '.num_experts = 6 | .num_local_experts = 6' "$golden/moe-steps/qwen3/config.json" >config.json
	cp "$golden/moe-names/megatron-qwen3.pt" "$golden/moe-names/titan-qwen3.pt" .
	for file in megatron titan; do
		reports 65 'the number of experts is 6, but the shapes of the tensors give 5' pt-ckpt verify $file-qwen3.pt
	done
	rm config.json
	reports 64 'the tensors do not determine' pt-ckpt verify megatron-qwen3.pt
	printf 'arch = llama\nheads = 2\ncontext = 32\nqk-norm = yes\nexperts = 5\n' >model.conf
	printf 'moe-every = 2\nnorm-eps = 1e-6\nexpert-dim = 6\nffn-dim = 12\n' >>model.conf
	cp "$golden/moe-steps/qwen3/config.json" "$golden/moe-steps/qwen3/0.pt" .
	pt-ckpt convert -q megatron-qwen3.pt --model-config model.conf -o options.h5
	pt-ckpt diff options.h5 0.pt
}
