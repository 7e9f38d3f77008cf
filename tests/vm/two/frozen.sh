#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 180
# A host that stands still for longer than keepalive_timeout, in the middle of a transfer: the other
# side hears PEER_LOST in time; once it goes on, it ends its own half, nothing is written any more,
# and a new connection works. In every role: frozen as owner, as reader, as source, as destination.
. tests/vm/pair.sh

SLACK=3 # seconds, for emulation on a busy machine

# lost OP N: guest 2 is frozen in the middle of it
lost() {
	local start took

	slow
	begin "$1" "$2"
	if [ "$NODE" = 1 ]; then
		moving "$1" "$2"
		host_freeze 2
		start=$(now_ms)
		lost_too "$1" "$2"
		took=$(($(now_ms) - start))
		say "$1 $2: $STATUS after $took ms"
		[ $took -le $(((KEEPALIVE + FENCE + SLACK) * 1000)) ] || fail "$1 $2: only after $took ms"
		tc qdisc del dev eth0 root
		host_thaw 2
		give "thawed.$2"
	else
		take "thawed.$2" 60
		tc qdisc del dev eth0 root
		lost_too "$1" "$2"
	fi
	barrier "both have ended $2"
	ok me "changed C 700"
	again "$2"
}

small_buffers
start_pair
clients 1 16
move pull 1
OWNER=1
lost pull 2
lost push 3
OWNER=2
lost pull 4
lost push 5
stop_pair
