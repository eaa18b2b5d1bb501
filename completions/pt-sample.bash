# bash completion for pt-sample; made by pt-sample --generate bash
_pt_sample()
{
	local at=$COMP_CWORD flag=
	local cur=${COMP_WORDS[at]}
	[[ $cur == = ]] && cur= && at=$((at + 1))
	local option=${COMP_WORDS[at-1]}
	COMPREPLY=()
	if [[ $option == = && ${COMP_WORDS[at-2]} == --* ]]; then
		flag=${COMP_WORDS[at-2]}
		option=--${flag#--}
	fi
	case $option in
	-p | --prompt) return ;;
	-n | --tokens) return ;;
	-N | --samples) return ;;
	-t | --temperature) return ;;
	-k | --top-k) return ;;
	--top-p) return ;;
	-s | --seed) return ;;
	--stop) return ;;
	--tp) return ;;
	--fsdp) return ;;
	--threads) return ;;
	--device) mapfile -t COMPREPLY < <(compgen -W 'auto cpu cuda' -- "$cur"); return ;;
	--comm) mapfile -t COMPREPLY < <(compgen -W 'auto nccl mpi' -- "$cur"); return ;;
	--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--generate) mapfile -t COMPREPLY < <(compgen -W 'man bash zsh fish' -- "$cur"); return ;;
	esac
	if [[ $flag ]]; then
		mapfile -t COMPREPLY < <(compgen -W 'yes no' -- "$cur")
		return
	fi
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W '--prompt --allow-special --tokens --samples --temperature --top-k --top-p --seed --stop --echo --no-echo --cache --no-cache --tp --fsdp --threads --device --comm --logits --config --print-config --quiet --help --version --generate ' -- "$cur")
		return
	fi
	compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur")
}
complete -F _pt_sample pt-sample
