# bash completion for pt-train; made by pt-train --generate bash
_pt_train()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
	case $prev in
	-d | --data) COMPREPLY=($(compgen -f -X '!*.h5' -- "$cur") $(compgen -d -S / -- "$cur")); return ;;
	--sampling) COMPREPLY=($(compgen -W 'epoch random' -- "$cur")); return ;;
	-s | --seed) COMPREPLY=(); return ;;
	--readers) COMPREPLY=(); return ;;
	-b | --batch) COMPREPLY=(); return ;;
	-m | --micro-batch) COMPREPLY=(); return ;;
	-n | --steps) COMPREPLY=(); return ;;
	-p | --preset) COMPREPLY=(); return ;;
	-a | --arch) COMPREPLY=($(compgen -W 'gpt2 llama' -- "$cur")); return ;;
	--layers) COMPREPLY=(); return ;;
	--heads) COMPREPLY=(); return ;;
	--kv-heads) COMPREPLY=(); return ;;
	--dim) COMPREPLY=(); return ;;
	--ffn-dim) COMPREPLY=(); return ;;
	-T | --context) COMPREPLY=(); return ;;
	--vocab) COMPREPLY=(); return ;;
	--vocab-multiple) COMPREPLY=(); return ;;
	--act) COMPREPLY=($(compgen -W 'by-arch gelu-tanh gelu swiglu' -- "$cur")); return ;;
	--bias) COMPREPLY=($(compgen -W 'by-arch yes no' -- "$cur")); return ;;
	--tie) COMPREPLY=($(compgen -W 'by-arch yes no' -- "$cur")); return ;;
	--dropout) COMPREPLY=(); return ;;
	--norm-eps) COMPREPLY=(); return ;;
	--init) COMPREPLY=($(compgen -W 'by-arch gpt2 llama depth' -- "$cur")); return ;;
	--rope-theta) COMPREPLY=(); return ;;
	--rope-scaling) COMPREPLY=($(compgen -W 'none linear llama3' -- "$cur")); return ;;
	--rope-factor) COMPREPLY=(); return ;;
	--rope-low) COMPREPLY=(); return ;;
	--rope-high) COMPREPLY=(); return ;;
	--rope-original) COMPREPLY=(); return ;;
	-l | --lr) COMPREPLY=(); return ;;
	--min-lr) COMPREPLY=(); return ;;
	--lr-schedule) COMPREPLY=($(compgen -W 'constant cosine linear wsd' -- "$cur")); return ;;
	-w | --warmup) COMPREPLY=(); return ;;
	--decay-steps) COMPREPLY=(); return ;;
	--wsd-decay) COMPREPLY=(); return ;;
	--wsd-shape) COMPREPLY=($(compgen -W 'linear sqrt' -- "$cur")); return ;;
	--lr-scale) COMPREPLY=($(compgen -W 'none sqrt linear' -- "$cur")); return ;;
	--lr-scale-batch) COMPREPLY=(); return ;;
	--beta1) COMPREPLY=(); return ;;
	--beta2) COMPREPLY=(); return ;;
	--eps) COMPREPLY=(); return ;;
	--weight-decay) COMPREPLY=(); return ;;
	--clip) COMPREPLY=(); return ;;
	--dp) COMPREPLY=(); return ;;
	-t | --threads) COMPREPLY=(); return ;;
	--device) COMPREPLY=($(compgen -W 'auto cpu' -- "$cur")); return ;;
	--bucket) COMPREPLY=(); return ;;
	--virtual) COMPREPLY=(); return ;;
	-e | --eval-every) COMPREPLY=(); return ;;
	--eval-windows) COMPREPLY=(); return ;;
	--sample-every) COMPREPLY=(); return ;;
	--sample-tokens) COMPREPLY=(); return ;;
	--sample-prompt) COMPREPLY=(); return ;;
	-o | --out) COMPREPLY=($(compgen -d -- "$cur")); return ;;
	-r | --resume) COMPREPLY=($(compgen -f -X '!*.h5' -- "$cur") $(compgen -d -S / -- "$cur")); return ;;
	--init-from) COMPREPLY=($(compgen -f -X '!*.h5' -- "$cur") $(compgen -d -S / -- "$cur")); return ;;
	--load) COMPREPLY=($(compgen -W 'each broadcast' -- "$cur")); return ;;
	-c | --ckpt-every) COMPREPLY=(); return ;;
	--ckpt-secs) COMPREPLY=(); return ;;
	-k | --keep) COMPREPLY=(); return ;;
	--log-every) COMPREPLY=(); return ;;
	--publish-secs) COMPREPLY=(); return ;;
	--check-replicas-every) COMPREPLY=(); return ;;
	--peak-flops) COMPREPLY=(); return ;;
	--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--generate) COMPREPLY=(); return ;;
	esac
	if [[ $cur == -* ]]; then
		COMPREPLY=($(compgen -W '--data --sampling --seed --readers --data-per-rank --batch --micro-batch --steps --preset --arch --layers --heads --kv-heads --dim --ffn-dim --context --vocab --vocab-multiple --act --bias --tie --dropout --norm-eps --init --rope-theta --rope-scaling --rope-factor --rope-low --rope-high --rope-original --lr --min-lr --lr-schedule --warmup --decay-steps --wsd-decay --wsd-shape --lr-scale --lr-scale-batch --beta1 --beta2 --eps --weight-decay --clip --dp --threads --device --bucket --virtual --eval-every --eval-windows --eval-only --sample-every --sample-tokens --sample-prompt --out --overwrite --resume --init-from --load --ckpt --no-ckpt --ckpt-every --ckpt-secs --ckpt-best --no-ckpt-best --keep --log-every --publish-secs --check-replicas-every --peak-flops --log-all-ranks --dry-run --config --print-config --quiet --help --version --generate ' -- "$cur"))
		return
	fi
	COMPREPLY=($(compgen -f -X '!*.h5' -- "$cur") $(compgen -d -S / -- "$cur"))
}
complete -o filenames -F _pt_train pt-train
