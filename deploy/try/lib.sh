# For the scripts beside this file: claims and their table, a folder for the run, a cache, and cleaning up.
# A script sources it, calls begin NAME, and ends with verdict.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# begin makes $work, which the end of the run removes, and $cache, which stays. What a script starts runs in cgroups of the
# script's own, so that the end of the run finds all of it.
begin() {
	name=$1
	[ "$(id -u)" = 0 ] || { echo "$name: run it as root"; exit 3; }
	[ "$(uname -s)" = Linux ] && command -v apt-get >/dev/null || { echo "$name: it needs Debian"; exit 3; }
	alone
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/usher-try/$name
	mkdir -p "$cache"
	work=$(mktemp -d "/var/tmp/usher-try-$name.XXXXXX")
	chmod 755 "$work"
	undo=()
	trap clean_up EXIT
	trap 'exit 130' INT TERM
	note_sysctls
	enclose
	: >"$work/table"
}

# alone waits for other trials: each changes sysctls and puts back what it found. The lock goes with the last process of a trial, so that
# a killed trial's engine counts as one, too.
alone() {
	local lock
	exec {lock}>/run/lock/usher-try
	flock -n "$lock" && return
	echo "$name: another trial runs here; waiting for it"
	flock "$lock"
}

# later has a command run at the end, the last one first.
later() { undo+=("$*"); }

clean_up() {
	local code=$? i
	set +e
	trap - EXIT
	for ((i = ${#undo[@]} - 1; i >= 0; i--)); do eval "${undo[i]}"; done
	local left
	left=$(grep -c " $work" /proc/self/mountinfo)
	[ "$left" = 0 ] || { echo "$left mounts are left below $work"; exit 1; }
	rm -rf "$work"
	exit "$code"
}

# Container engines and a kubelet change these.
note_sysctls() {
	local key value
	for key in kernel.panic kernel.panic_on_oops kernel.keys.root_maxbytes kernel.keys.root_maxkeys vm.overcommit_memory vm.panic_on_oom \
		net.ipv4.ip_forward net.ipv4.conf.all.forwarding net.ipv4.conf.default.forwarding net.ipv6.conf.all.forwarding net.ipv6.conf.default.forwarding; do
		value=$(sysctl -n "$key" 2>/dev/null) || continue
		later "[ \"\$(sysctl -n $key)\" = '$value' ] || sysctl -q -w $key='$value'"
	done
}

# enclose moves this shell, and with it all that it starts, into a cgroup of each hierarchy.
enclose() {
	group=usher-try-$name-$$
	local hierarchy
	hierarchies=()
	for hierarchy in $(awk '$3 ~ /^cgroup2?$/ {print $2}' /proc/self/mounts); do
		case $hierarchy in *cpuset) continue ;; esac # a new one has no processors
		mkdir "$hierarchy/$group"
		hierarchies+=("$hierarchy")
		echo $$ >"$hierarchy/$group/cgroup.procs"
	done
	later leave
}

leave() {
	local hierarchy procs
	for hierarchy in "${hierarchies[@]}"; do echo $$ >"$hierarchy/cgroup.procs"; done
	for hierarchy in "${hierarchies[@]}"; do
		for _ in {1..50}; do
			procs=$(find "$hierarchy/$group" -name cgroup.procs -exec cat {} + 2>/dev/null)
			[ -n "$procs" ] || break
			kill -9 $procs 2>/dev/null
			sleep 0.1
		done
	done
	# An engine makes one in each hierarchy.
	for hierarchy in $(awk '$3 ~ /^cgroup2?$/ {print $2}' /proc/self/mounts); do
		[ ! -d "$hierarchy/$group" ] || find "$hierarchy/$group" -depth -type d -exec rmdir {} +
	done
}

step() { printf '== %d:%02d %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# packages PACKAGE... installs what is missing, and says it.
packages() {
	local missing=() package
	for package; do dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package"); done
	[ ${#missing[@]} = 0 ] && return
	step "installing the packages ${missing[*]} (they stay)"
	apt-get update -q -o DPkg::Lock::Timeout=600 >/dev/null
	# No service that a package brings is started.
	local keep=
	[ -e /usr/sbin/policy-rc.d ] && keep=yes || printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
	chmod 755 /usr/sbin/policy-rc.d
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=600 "${missing[@]}" >"$work/apt" || { cat "$work/apt"; exit 1; }
	[ -n "$keep" ] || rm /usr/sbin/policy-rc.d
}

# made FILE COMMAND... makes a file of the cache, unless it is there.
made() {
	local file=$1
	shift
	[ -e "$file" ] && return
	"$@" "$file.new" >"$work/made" 2>&1 || { cat "$work/made"; rm -rf "$file.new"; exit 1; }
	mv "$file.new" "$file"
}

# debian_tar PACKAGE,... FILE makes a tar of a Debian as it is installed, from this machine's own sources.
debian_tar() {
	local sources=() file
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do [ -s "$file" ] && sources+=("$file"); done
	nice mmdebstrap --mode=root --variant=minbase --include="$1" --format=tar "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$2" "${sources[@]}"
}

# claim TEXT COMMAND... tries a command, in a shell that ends with its first error. What the command writes with note stands behind
# the text in the table.
claim() {
	local text=$1 code said
	shift
	: >"$work/note"
	set +e
	(set -e; "$@") >"$work/log" 2>&1
	code=$?
	set -e
	said=$(cat "$work/note")
	if [ $code = 0 ]; then
		printf 'yes  %s\n' "$text${said:+ ($said)}" | tee -a "$work/table"
	else
		printf 'no   %s\n' "$text${said:+ ($said)}" | tee -a "$work/table"
		tail -n "${TAIL-25}" "$work/log" | sed 's/^/       | /'
	fi
}

note() { echo "$*" >"$work/note"; }

# eventually SECONDS COMMAND... tries it until it holds.
eventually() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || { echo "still not: $*"; return 1; }
		sleep 0.2
	done
}

# is WANT GOT
is() { [ "$1" = "$2" ] || { printf 'want: %s\ngot:  %s\n' "$1" "$2"; return 1; }; }

# refused COMMAND... holds if the command fails.
refused() { if "$@"; then echo "it did: $*"; return 1; fi; }

# verdict prints the table and ends the script: with 0 if each claim holds.
verdict() {
	echo
	cat "$work/table"
	# A machine that has much else to do is one reason for a no: a database that does not answer in time, an endpoint that goes too late.
	printf '%d:%02d minutes, on %s processors with a load of %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$(nproc)" "$(cut -d' ' -f1-3 /proc/loadavg)"
	if grep -q '^no ' "$work/table"; then exit 1; fi
	exit 0
}
