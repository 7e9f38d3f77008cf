#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 180
# The cable is pulled in the middle of a transfer: both sides hear PEER_LOST by themselves, in time;
# nothing is written any more; plugged in again, they find each other.
. tests/vm/pair.sh

SLACK=3

# cut OP N: guest 2's card is down
cut_in() {
	local start took

	slow
	begin "$1" "$2"
	if [ "$NODE" = 2 ]; then
		moving "$1" "$2"
		ip link set eth0 down
		give "down.$2"
	fi
	take "down.$2"
	start=$(now_ms)
	lost_too "$1" "$2"
	took=$(($(now_ms) - start))
	say "$1 $2: $STATUS after $took ms"
	[ $took -le $(((KEEPALIVE + FENCE + SLACK) * 1000)) ] || fail "$1 $2: only after $took ms"
	barrier "both have heard of $2"
	[ "$NODE" = 1 ] || ip link set eth0 up
	fast
	ok me "changed C 700"
	again "$2"
}

small_buffers
start_pair
clients 1 16
move pull 1
cut_in pull 2
cut_in push 3
stop_pair
