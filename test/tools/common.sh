# Helpers shared by the scripts in this folder; sourced by bash, not run.

umask 022

# pg_regress, psql and make must not see settings meant for another server or
# for the make that called us.
for v in ${!PG*} MAKEFLAGS MFLAGS MAKELEVEL PERL5LIB; do unset "$v"; done
unset v

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$tools/../.." && pwd)

# The majors we test: Debian's packaged server, then builds with assertions.
packaged_major=15
source_majors="17 18"
all_majors="$packaged_major $source_majors"

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$*"; exit 1; }

# Where built servers are kept.  Root's must be readable by the ordinary user
# that runs them.
if [ -n "${JOBQ_CACHE:-}" ]; then
	cache=$JOBQ_CACHE
elif [ "$(id -u)" = 0 ]; then
	cache=/var/cache/jobq
else
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/jobq
fi

# Servers refuse to run as root: then they run as this user.
if [ "$(id -u)" = 0 ]; then
	user=${JOBQ_USER:-postgres}
else
	user=$(id -un)
fi

# Run a command as the ordinary user, in the current folder, with our
# environment.
as_user() {
	if [ "$(id -u)" = 0 ]; then
		runuser -u "$user" -- env HOME="$(getent passwd "$user" | cut -d: -f6)" \
			USER="$user" LOGNAME="$user" "$@"
	else
		"$@"
	fi
}

# Make an empty folder owned by the ordinary user and print its name.  It is
# short, because a socket's path is limited to 107 bytes.
private_folder() {
	local dir
	dir=$(mktemp -d "${TMPDIR:-/tmp}/jobq.XXXXXX")
	if [ "$(id -u)" = 0 ]; then
		chown "$user": "$dir"
	fi
	echo "$dir"
}

# Copy the work tree, without what git ignores, to a folder of the ordinary
# user.
copy_tree() {
	mkdir -p "$1"
	(cd "$root" && git -c safe.directory="$root" ls-files -co --exclude-standard -z |
		while IFS= read -r -d '' f; do
			if [ -e "$f" ]; then printf '%s\0' "$f"; fi
		done | tar -c --null -T -) | tar -xf - -C "$1" --no-same-owner
	own "$1"
}

# Give a folder to the ordinary user.
own() {
	[ "$(id -u)" != 0 ] || chown -R "$user": "$1"
}

# Copy the server of MAJOR to a folder of the ordinary user, so that installing
# into it needs no privilege, and print the path of its pg_config.
copy_server() {
	local prefix
	prefix=$("$tools/build-postgres" "$1") || return
	cp -a "$prefix" "$2"
	own "$2"
	find "$2" -path '*/bin/pg_config'
}

# End every process that works in a folder (a server works in its data folder,
# make and prove in the tree), then remove the folder.
remove_folder() {
	local signal dir found
	cd /
	for signal in QUIT KILL; do
		found=
		for dir in /proc/[0-9]*; do
			case $(readlink "$dir/cwd" 2>/dev/null) in
				"$1"/*)
					found=1
					kill -"$signal" "${dir#/proc/}" 2>/dev/null || true
					;;
			esac
		done
		[ -n "$found" ] || break
		sleep 1
	done
	rm -rf "$1"
}
