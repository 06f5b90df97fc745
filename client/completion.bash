# bash completion for the program jobq.  Commands and options are those that its
# help names.

_jobq()
{
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command= i

	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
			-d | -h | -p | -U | --dbname | --host | --port | --username | --color) ((i++)) ;;
			-*) ;;
			*)
				command=${COMP_WORDS[i]}
				break
				;;
		esac
	done
	case $before in
		--color)
			mapfile -t COMPREPLY < <(compgen -W 'always never auto' -- "$word")
			return
			;;
		-q | --queue)
			command=pause
			;;
	esac
	if [[ $word == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(jobq ${command:+help "$command"} ${command:---help} 2>/dev/null |
			grep -o -- '--[a-z0-9-]*')" -- "$word")
		return
	fi
	case $command in
		'' | help)
			mapfile -t COMPREPLY < <(compgen -W "$(jobq --help 2>/dev/null |
				sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p') help" -- "$word")
			;;
		pause | resume | clear | drain | work | alter-queue | drop-queue)
			# as far as the server can be asked without a password
			mapfile -t COMPREPLY < <(compgen -W "$(PGCONNECT_TIMEOUT=2 jobq -w --json queues 2>/dev/null |
				grep -o '"name":"[^"]*"' | cut -d '"' -f 4)" -- "$word")
			;;
	esac
}
complete -F _jobq jobq
