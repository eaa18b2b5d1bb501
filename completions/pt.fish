# fish completion for all programs of pt, which know the candidates: PROGRAM --complete WORD...
function __pt_complete
	set -l words (commandline -opc) (commandline -ct)
	$words[1] --complete $words[2..] 2>/dev/null
end

for program in @PROGRAMS@
	complete -c $program -f -a '(__pt_complete | string match -v ":*")'
	complete -c $program -n '__pt_complete | string match -q ":*"' -F
end
