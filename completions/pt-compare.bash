# bash completion for pt-compare; made by pt-compare --generate bash
_pt_compare()
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
	--control) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--test) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--format) mapfile -t COMPREPLY < <(compgen -W 'auto pt wordplay maxtext torchtitan torchtitan-losses nanogpt nanochat modded-nanogpt llmq llmc megatron megatron-golden megatron-bridge olmo-core trainer-state tensorboard csv jsonl' -- "$cur"); return ;;
	-b | --by) mapfile -t COMPREPLY < <(compgen -W 'step tokens' -- "$cur"); return ;;
	-r | --rtol) return ;;
	-a | --atol) return ;;
	--spool-limit) return ;;
	-y | --column) return ;;
	--require) mapfile -t COMPREPLY < <(compgen -W 'auto identical within equivalent' -- "$cur"); return ;;
	--rule) mapfile -t COMPREPLY < <(compgen -W 'ours torchtitan megatron megatron-approximate megatron-bridge maxtext olmo-core modded-nanogpt llmc' -- "$cur"); return ;;
	--margin) return ;;
	--alarm) return ;;
	--confidence) return ;;
	--follow-timeout) return ;;
	--control-program) return ;;
	--test-program) return ;;
	--launcher) return ;;
	-x | --axis) mapfile -t COMPREPLY < <(compgen -W 'auto step tokens seconds bytes' -- "$cur"); return ;;
	--marks) mapfile -t COMPREPLY < <(compgen -W 'auto braille ascii' -- "$cur"); return ;;
	--width) return ;;
	--height) return ;;
	-p | --plot) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	-o | --report) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--generate) mapfile -t COMPREPLY < <(compgen -W 'man bash zsh fish run columns formats names rules' -- "$cur"); return ;;
	esac
	if [[ $flag ]]; then
		mapfile -t COMPREPLY < <(compgen -W 'yes no' -- "$cur")
		return
	fi
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W '--control --test --format --by --rtol --atol --common --spool-limit --column --require --rule --margin --alarm --confidence --follow --follow-timeout --locate --control-program --test-program --launcher --json --axis --graph --marks --log-scale --width --height --plot --report --speed --table --config --print-config --quiet --help --version --generate ' -- "$cur")
		return
	fi
	compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}
complete -F _pt_compare pt-compare
