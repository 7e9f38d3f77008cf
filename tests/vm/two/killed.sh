#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 180
# A host that dies in the middle of a transfer and is booted again on the same address: PEER_LOST in
# time, PEER_UNREACHABLE while it is away, then PEER_RESTARTED for its old tokens, and new ones work.
. tests/vm/pair.sh

SLACK=3

unreachable() {
	ask me "tstatus $TOKEN"
	[ "$STATUS" = PEER_UNREACHABLE ]
}

restarted() {
	ask me "tstatus $TOKEN"
	[ "$STATUS" = PEER_RESTARTED ]
}

small_buffers
if [ "$BOOT" = 2 ]; then
	start_pair
	clients 2 16
	again 3
	stop_pair
	exit 0
fi

shared_key
start_kvtd "trust { key = \"$KEY_FILE\" }
	$(quick_peers)"
give "here.$NODE"
take "here.$OTHER"
clients 2 16
move pull 1
slow
begin pull 2
if [ "$NODE" = 2 ]; then
	nap 60
	fail "was not killed"
fi
moving pull 2
host_kill 2
start=$(now_ms)
end_of 2 30000 "then=C seed=5"
took=$(($(now_ms) - start))
[ "$STATUS" = PEER_LOST ] || fail "$STATUS $REPLY"
say "PEER_LOST after $took ms"
[ $took -le $(((KEEPALIVE + FENCE + SLACK) * 1000)) ] || fail "only after $took ms"
wait_for 20 "PEER_UNREACHABLE" unreachable
host_boot 2
fast
wait_for 60 "PEER_RESTARTED" restarted
ok me "changed C 100"
barrier "kvtd is up"
again 3
stop_pair
