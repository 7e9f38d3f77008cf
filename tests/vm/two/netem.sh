#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 180
# Wires that delay, lose and reorder packets: what ends OK has the right bytes on the right places,
# what does not says why, and nothing is written afterwards. What is lost is made up for by TCP, so
# that all is right but where a wire is so bad that a peer counts as dead.
. tests/vm/pair.sh

# wire NETEM...: of both directions
wire() {
	tc qdisc replace dev eth0 root netem limit 2000 "$@"
}

# clean OP N: a transfer that has to be right
clean() {
	local start

	start=$(now_ms)
	move "$1" "$2"
	say "$wire_name: $1: $(($(now_ms) - start)) ms"
}

# dirty OP N: a transfer that is right or has a status
dirty() {
	local mine

	begin "$1" "$2" "timeout=10000"
	end_of "$2" 25000
	if [ "$NODE" != "$OWNER" ]; then
		[ "$STATUS" != PENDING ] || fail "$1 $2 does not end"
		give "ended.$2"
	elif [ "$STATUS" = PENDING ]; then # it would take another reader
		take "ended.$2"
		ok me "revoke g$2"
		end_of "$2"
	fi
	mine=$STATUS
	say "$wire_name: $1 $2: $mine"
	give "end.$2.$NODE" "$mine"
	take "end.$2.$OTHER"
	if [ "$mine$REPLY" = OKOK ]; then
		compare "$1" "$2"
	else
		[ "$NODE" = "$OWNER" ] || [ "$mine" != OK ] ||
			fail "$1 $2: OK for the reader, $REPLY for the owner"
		# over is over: nothing comes later
		ok me "noise C 77"
		ok me "changed C 500"
	fi
	barrier "$1 $2"
}

start_pair
clients 1 8
wire_name="no loss"
clean pull 1

wire_name="20 ms each way"
wire delay 20ms # and as much on the way back
clean pull 2
clean push 3

wire_name="reordered"
wire delay 5ms reorder 75% 50%
clean pull 4
clean push 5

wire_name="1 % loss"
wire loss 1%
clean pull 6
clean push 7

bye me
clients 1 2 2 32768
wire_name="20 % loss"
wire loss 20%
for i in 1 2 3; do
	dirty pull 1$i
	dirty push 2$i
done

fast
barrier "no loss any more"
again 3
stop_pair
