#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 400
# Bytes that are on the wire for 1.5 s. Guest 2 pushes into blocks of guest 1, and is cancelled,
# frozen or killed when some have come; the owner revokes at once, and uses the blocks again at his
# terminal event, with as much still on the way: not one byte comes late. The same with the owner's
# fence off must show late bytes: else this would prove nothing. (killed: with KVT_LONG, a boot more.)
. tests/vm/pair.sh

HOLD=1500  # ms, in front of guest 1: what is on the way outlives guest 2
WATCH=2500 # ms

# revoked N: guest 1's end; sets LATE to CHANGED or OK
revoked() {
	local start took

	start=$(now_ms)
	ok me "revoke g$1"
	end_of "$1" 30000 "then=C seed=$((100 + $1))"
	took=$(($(now_ms) - start))
	[ "$STATUS" = REVOKED ] || fail "$STATUS $REPLY"
	# the wire is slow, the end is not
	[ $took -le $(((FENCE + 2) * 1000)) ] || fail "REVOKED only after $took ms"
	say "REVOKED after $took ms"
	ask me "changed C $WATCH"
	LATE=$STATUS
}

# push N: some of it has come, not all
push() {
	begin push "$1"
	if [ "$NODE" = 1 ]; then
		ok me "until $1 $ALL least=20000 ms=30000"
		[ "${REPLY% *}" -lt "$((${REPLY#* } / 2))" ] || fail "$REPLY bytes: too many"
	fi
}

# verdict N HOW: as it must be with this fence
verdict() {
	say "$2, fence $FENCED: $LATE"
	[ "$LATE" = "$EXPECTED" ] || fail "$2, fence $FENCED: $LATE, not $EXPECTED"
}

cancelled() {
	push "$1"
	if [ "$NODE" = 1 ]; then
		give "some.$1"
		take "cancelled.$1"
		revoked "$1"
		verdict "$1" "the pusher cancelled"
	else
		take "some.$1"
		ok me "cancel x$1"
		end_of "$1" 30000 "then=C seed=9"
		[ "$STATUS" = CANCELED ] || fail "$STATUS $REPLY"
		give "cancelled.$1"
		ok me "changed C 500"
	fi
	barrier "both have ended $1"
}

frozen() {
	push "$1"
	if [ "$NODE" = 1 ]; then
		host_freeze 2
		revoked "$1"
		host_thaw 2
		verdict "$1" "the pusher's host frozen"
		[ "$FENCED" = off ] || ok me "changed C $WATCH"
		give "thawed.$1"
	else
		take "thawed.$1" 60
		end_of "$1" 30000
		[[ $STATUS =~ ^(REVOKED|PEER_LOST)$ ]] || fail "$STATUS $REPLY"
	fi
	barrier "both have ended $1"
}

killed() {
	push "$1"
	if [ "$NODE" = 2 ]; then
		nap 60
		fail "was not killed"
	fi
	host_kill 2
	revoked "$1"
	verdict "$1" "the pusher's host killed"
	host_boot 2
}

answers() {
	ask me "tstatus $TOKEN"
	[ "$STATUS" = OK ]
}

# phase N FENCED WHAT...: with daemons of its own; it begins with a wire that does not hold anything
phase() {
	local n=$1 i=0 more="" what

	FENCED=$2 EXPECTED=OK
	if [ "$2" = off ]; then
		EXPECTED=CHANGED
		[ "$NODE" = 2 ] || more='fault = {"fence-off"}'
	fi
	shift 2
	start_kvtd "trust { key = \"$KEY_FILE\" }
		$(quick_peers)
		$more"
	barrier "kvtd is up in phase $n" 100 # guest 2 may be booting
	clients 1
	for what; do
		i=$((i + 1))
		[ "$NODE" = 2 ] || hold 0
		barrier "the wire is clear for $n$i"
		if [ "$i" = 1 ]; then
			move push "${n}0"
		else
			[ "$NODE" = 1 ] || wait_for 30 "the peer answers" answers
			barrier "connected for $n$i"
		fi
		[ "$NODE" = 2 ] || hold "$HOLD"
		barrier "the wire holds for $n$i"
		"$what" "$n$i"
	done
	[ "$NODE" = 2 ] || hold 0
	if [ "$NODE$FENCED" = 1off ]; then
		# it may be writing where nothing is mapped any more
		kill -KILL "$kvtd_pid" "${actor_pid[me]}" 2>/dev/null || true
		wait "$kvtd_pid" "${actor_pid[me]}" || true
	else
		bye me
		stop_kvtd
	fi
}

shared_key
apart
case $NODE$BOOT in
11 | 21)
	phase 1 on cancelled frozen
	phase 2 off cancelled frozen
	phase 3 on killed
	;;
esac
# guest 1 goes on, guest 2 has been booted
[ "${KVT_LONG:-0}" != 0 ] || exit 0
[ "$BOOT" = 3 ] || phase 4 off killed
