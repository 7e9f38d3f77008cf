#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 180
# The cluster key is replaced on two hosts, step by step, while transfers go on without a pause: not
# one is lost or wrong. Afterwards daemons that start anew prove themselves with the new key, and
# one that has the old key only is refused.
. tests/vm/pair.sh

keygen() {
	"$KVT_BUILD/kvtctl" keygen "$@"
}

fingerprints() {
	keygen --show "$KEY_FILE" | grep -oE '[0-9a-f]{16}'
}

# traffic: pulls under one token until told to stop, each compared; in a process of its own
traffic() {
	local n=0

	actor busy
	ok busy "cache C 8 2 131072 guard=4096"
	if [ "$NODE" = 1 ]; then
		ok busy "fill 9 C:0-7"
		grant busy "g read C:0-7"
		give busy "$TOKEN"
		tell busy "gwait g 160000"
		hear busy 170
		[ "$STATUS" = OK ] || fail "traffic: the grant: $STATUS $REPLY"
	else
		take busy
		TOKEN=$REPLY
		while [ ! -e "$SCRATCH/enough" ]; do
			n=$((n + 1))
			{
				ok busy "noise C $n"
				ok busy "xfer x$n pull $TOKEN C:7-0"
				ok busy "wait x$n 20000"
				ok busy "check 9 C:7-0"
				ok busy "changed C C:7-0"
				ok busy "free x$n"
			} >>"$DIR/traffic.log"
			echo $n >"$SCRATCH/traffic.new"
			mv "$SCRATCH/traffic.new" "$SCRATCH/traffic"
		done
		ok busy "xfer last pull $TOKEN C:7-0 final"
		ok busy "wait last 20000"
		say "traffic: $n pulls, all of them right"
	fi
	bye busy
}

# phase N WHAT: both have done it, and transfers have begun and ended since
phase() {
	ctl reload
	barrier "$1"
	if [ "$NODE" = 2 ]; then
		local from

		from=$(cat "$SCRATCH/traffic")
		wait_for 20 "traffic after: $2" more_than $((from + 2))
	fi
	barrier "$1 on"
	say "$2: $(fingerprints | tr '\n' ' ')"
}

more_than() {
	kill -0 $traffic 2>/dev/null || fail "traffic has ended"
	[ "$(cat "$SCRATCH/traffic")" -ge "$1" ]
}

start_pair
old=$(fingerprints)
echo 0 >"$SCRATCH/traffic"
traffic &
traffic=$!
phase begin "one key"

if [ "$NODE" = 1 ]; then
	keygen >"$SCRATCH/new" 2>/dev/null
	give new "$(cat "$SCRATCH/new")"
fi
take new
echo "$REPLY" | keygen --import "$KEY_FILE"
new=$(fingerprints | grep -v "$old")
phase added "the new key is accepted"

keygen --first "$new" "$KEY_FILE"
phase first "the new key dials"

keygen --remove "$old" "$KEY_FILE"
phase removed "the old key is gone"
[ "$(fingerprints)" = "$new" ] || fail "$(fingerprints)"

touch "$SCRATCH/enough"
wait $traffic
clients 1
move pull 1
stop_pair

# Guest 2's daemon comes back, once with each key.
barrier "stopped"
[ "$NODE" = 1 ] || cp "$KEY_FILE" "$SCRATCH/new.key"
start_kvtd "trust { key = \"$KEY_FILE\" }
	$(quick_peers)"
barrier "up with the new key"
clients 1
move push 2
[[ $(ctl --json peer list) == *"\"identity\":\"key $new\""* ]] || fail "$(ctl --json peer list)"
if [ "$NODE" = 2 ]; then
	bye me
	stop_kvtd
	take key
	echo "$REPLY" >"$KEY_FILE"
	start_kvtd "trust { key = \"$KEY_FILE\" }
		$(quick_peers)"
	clients 1
fi
begin pull 3
if [ "$NODE" = 2 ]; then
	end_of 3
	[ "$STATUS" = PERMISSION ] || fail "the old key: $STATUS $REPLY"
	give refused
fi
take refused
grep "$old" "$KVTD_LOG" | tail -n 1
if [ "$NODE" = 1 ]; then
	ok me "revoke g3"
	end_of 3
fi
stop_pair
