# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2119,SC2120
# Sourced by scripts that run in guests. A script runs on every guest at the same time, in the
# source tree, as root: status 0 is passed, 77 skipped, all else failed. It has
#
#	NODE NODES RAILS  which guest, of how many, with how many cards toward the other one
#	BOOT              2 in its second life, after host_kill and host_boot
#	DIR               its folder in /out, shared by all guests and kept: logs go there
#	SCRATCH           a folder of this guest, gone afterwards
#	KVT_SRC KVT_BUILD the source and the build tree
#	KVT_LONG          1: what takes long, too; else 0
#
# and one that needs more than 60 s a line "# limit: SECONDS".
set -eu -o pipefail

exec {nothing_fd}<> <(:)

nap() {
	read -rt "${1:-0.1}" <&"$nothing_fd" || true
}

say() {
	local up

	read -r up _ </proc/uptime
	echo "$up $*"
}

# Ends the script, on the other guest too where that waits for this one.
fail() {
	: >"$DIR/failed.$NODE"
	say "FAIL: $*"
	exit 1
}

# A command that fails, anywhere, is told with its place.
trap 'rc=$?; say "FAIL: line $LINENO: $BASH_COMMAND: $rc"; : >"$DIR/failed.$NODE"; exit $rc' ERR
set -E

skip() {
	echo "$*"
	exit 77
}

# now_ms: a clock that no freeze stops
now_ms() {
	local up

	read -r up _ </proc/uptime
	up=${up/./}
	echo $((10#$up * 10))
}

# wait_for SECONDS WHAT COMMAND...: until the command succeeds
wait_for() {
	local deadline=$((SECONDS + $1)) what=$2

	shift 2
	until "$@"; do
		[ $SECONDS -lt "$deadline" ] || fail "not in time: $what"
		nap
	done
}

# ---- between guests

other_failed() {
	local k

	for ((k = 1; k <= NODES; k++)); do
		if [ "$k" != "$NODE" ] && [ -e "$DIR/failed.$k" ]; then
			say "guest $k has failed"
			exit 1
		fi
	done
}

there_or_failed() {
	[ ! -e "$1" ] || return 0
	other_failed
	return 1
}

# give NAME [VALUE]: for take on any guest
give() {
	echo "${2-}" >"$DIR/sync/$1.new.$NODE"
	mv "$DIR/sync/$1.new.$NODE" "$DIR/sync/$1"
}

# take NAME [SECONDS]: waits for what was given; sets REPLY
take() {
	wait_for "${2:-40}" "'$1' of the other guest" there_or_failed "$DIR/sync/$1"
	REPLY=$(cat "$DIR/sync/$1")
}

# barrier NAME [SECONDS]: until all guests are here
barrier() {
	local k

	give "barrier-$1.$NODE"
	for ((k = 1; k <= NODES; k++)); do
		take "barrier-$1.$k" "${2:-40}"
	done
}

# ---- the host

requests=0

# host freeze|thaw|kill|boot K: has been done when it returns
host() {
	local id=$NODE.$BOOT.$TEST.$((++requests)) said

	echo "$*" >"/out/host/req.$id.new"
	mv "/out/host/req.$id.new" "/out/host/req.$id"
	wait_for 20 "host: $*" test -e "/out/host/ans.$id"
	said=$(cat "/out/host/ans.$id")
	[ "$said" = ok ] || fail "host: $*: $said"
}

host_freeze() { host freeze "$1"; }
host_thaw() { host thaw "$1"; }
host_kill() { host kill "$1"; }
host_boot() { host boot "$1"; }

# address K [RAIL]: of the other guest or this one
address() {
	echo "10.10.${2:-0}.$1"
}

# ---- kvtd

PORT=7588
SOCKET=$SCRATCH/client/kvtd.sock
ADMIN=$SCRATCH/admin/admin.sock
CONF=$SCRATCH/kvtd.conf
KVTD_LOG=$DIR/kvtd.$NODE.log
kvtd_pid=

ctl() {
	"$KVT_BUILD/kvtctl" -a "$ADMIN" "$@"
}

kvtd_ready() {
	kill -0 "$kvtd_pid" 2>/dev/null || fail "kvtd did not start: $(tail -n 5 "$KVTD_LOG")"
	tail -c +"$((kvtd_log_from + 1))" "$KVTD_LOG" | grep -q ' is ready'
}

# configure [TEXT]: kvtd.conf of this node, which listens if there are two
configure() {
	{
		echo "node = \"guest$NODE\""
		echo "client_group = \"\""
		[ "$NODES" = 1 ] || echo "listen = {\"$(address "$NODE"):$PORT\"}"
		echo "${1-}"
	} >"$CONF"
}

# start_kvtd [CONFIGURATION]: and waits until it is ready
start_kvtd() {
	configure "${1-}"
	touch "$KVTD_LOG"
	kvtd_log_from=$(stat -c %s "$KVTD_LOG")
	"$KVT_BUILD/kvtd" -f -c "$CONF" -s "$SOCKET" -a "$ADMIN" >>"$KVTD_LOG" 2>&1 &
	kvtd_pid=$!
	wait_for 20 "kvtd is ready" kvtd_ready
}

# at_rest: nothing of clients is left
at_rest() {
	local left

	left=$(ctl --json status | grep -oE '"(clients|regions|grants|transfers|fencing)":[1-9][0-9]*') ||
		return 0
	at_rest_said=$left
	return 1
}

# stop_kvtd: with nothing left and in good order
stop_kvtd() {
	local rc=0

	wait_for 20 "nothing of clients is left" at_rest
	kill "$kvtd_pid"
	wait "$kvtd_pid" || rc=$?
	kvtd_pid=
	[ $rc = 0 ] || fail "kvtd ended with $rc"
	! grep -iE 'impossible|runtime error|sanitizer' "$KVTD_LOG" || fail "kvtd's log"
}

# ---- clients: tests/integration/c/actor, a command a line and one line of answer

declare -A actor_in=() actor_out=() actor_pid=()

# actor NAME: a client, connected
actor() {
	local in out

	mkfifo "$SCRATCH/$1.in" "$SCRATCH/$1.out"
	(
		for fd in "${actor_in[@]}" "${actor_out[@]}"; do
			exec {fd}>&-
		done
		exec "$KVT_BUILD/tests/integration/c/actor" <"$SCRATCH/$1.in" >"$SCRATCH/$1.out"
	) &
	actor_pid[$1]=$!
	exec {in}>"$SCRATCH/$1.in" {out}<"$SCRATCH/$1.out"
	rm "$SCRATCH/$1.in" "$SCRATCH/$1.out"
	actor_in[$1]=$in
	actor_out[$1]=$out
	ok "$1" "open $SOCKET name=$1"
}

# tell NAME COMMAND: the answer is heard later
tell() {
	echo "$2" >&"${actor_in[$1]}"
}

# hear NAME [SECONDS]: sets STATUS, and REPLY to the rest of the answer
hear() {
	read -rt "${2:-60}" STATUS REPLY <&"${actor_out[$1]}" || fail "$1 does not answer"
}

# ask NAME COMMAND
ask() {
	tell "$1" "$2"
	hear "$1"
	say "$1: ${2:0:150}: $STATUS ${REPLY:0:200}"
}

# expect STATUS[|STATUS] NAME COMMAND
expect() {
	ask "$2" "$3"
	[[ "|$1|" == *"|$STATUS|"* ]] || fail "$2: ${3:0:200}: $STATUS $REPLY, not $1"
}

ok() {
	expect OK "$@"
}

# grant NAME WHAT: as actor's command; sets TOKEN
grant() {
	ok "$1" "grant $2"
	TOKEN=$REPLY
}

# event NAME KIND: reads events up to one of that kind
event() {
	local tries

	for ((tries = 0; tries < 50; tries++)); do
		ok "$1" "event 20000"
		[ "${REPLY%% *}" != "$2" ] || return 0
	done
	fail "$1: no event $2"
}

# bye NAME...: in good order
bye() {
	local name

	for name; do
		ok "$name" exit
		wait "${actor_pid[$name]}"
	done
}
