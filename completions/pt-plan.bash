# bash completion for pt-plan; made by pt-plan --generate bash
_pt_plan()
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
	-c | --cluster) return ;;
	-H | --hosts) return ;;
	-g | --gpus) return ;;
	-m | --memory) return ;;
	--network) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur"); return ;;
	-t | --tokens) return ;;
	-o | --only) return ;;
	-x | --exact) return ;;
	-n | --show) return ;;
	--timeline) return ;;
	--failures) return ;;
	--ckpt-cost) return ;;
	--ckpt-secs) return ;;
	--restart-cost) return ;;
	--slow) return ;;
	--slow-prob) return ;;
	--hours) return ;;
	--seed) return ;;
	--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--generate) mapfile -t COMPREPLY < <(compgen -W 'man bash zsh fish' -- "$cur"); return ;;
	esac
	if [[ $flag ]]; then
		mapfile -t COMPREPLY < <(compgen -W 'yes no' -- "$cur")
		return
	fi
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W '--cluster --hosts --gpus --memory --network --tokens --only --exact --show --best --explain --details --json --verbose --timeline --failures --ckpt-cost --ckpt-secs --restart-cost --slow --slow-prob --hours --seed --config --print-config --quiet --help --version --generate ' -- "$cur")
		return
	fi
	compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}
complete -F _pt_plan pt-plan
