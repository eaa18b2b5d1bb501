# bash completion for pt-sample; made by pt-sample --generate bash
_pt_sample()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
	case $prev in
	-p | --prompt) COMPREPLY=(); return ;;
	-n | --tokens) COMPREPLY=(); return ;;
	-N | --samples) COMPREPLY=(); return ;;
	-t | --temperature) COMPREPLY=(); return ;;
	-k | --top-k) COMPREPLY=(); return ;;
	--top-p) COMPREPLY=(); return ;;
	-s | --seed) COMPREPLY=(); return ;;
	--stop) COMPREPLY=(); return ;;
	--threads) COMPREPLY=(); return ;;
	--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--generate) COMPREPLY=(); return ;;
	esac
	if [[ $cur == -* ]]; then
		COMPREPLY=($(compgen -W '--prompt --tokens --samples --temperature --top-k --top-p --seed --stop --echo --no-echo --cache --no-cache --threads --logits --config --print-config --quiet --help --version --generate ' -- "$cur"))
		return
	fi
	COMPREPLY=($(compgen -f -X '!*.h5' -- "$cur") $(compgen -d -S / -- "$cur"))
}
complete -o filenames -F _pt_sample pt-sample
