#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 120
# The guests themselves: they reach each other, by TCP and by verbs; what one writes the other
# reads; the host freezes, kills and boots one of them.
. tests/vm/lib.sh

other=$((3 - NODE))

if [ "$BOOT" = 2 ]; then
	give reborn "$(cut -d' ' -f1 /proc/uptime)"
	barrier end
	exit 0
fi

for ((i = 0; i < RAILS; i++)); do
	ibv_devinfo -d "rxe$i" | grep -q 'state:.*PORT_ACTIVE' || fail "rxe$i is not active"
done
give "value.$NODE" "of $NODE"
take "value.$other"
[ "$REPLY" = "of $other" ] || fail "$REPLY"

server=(ibv_rc_pingpong -d rxe0 -g 1 -n 50)
if [ "$NODE" = 1 ]; then
	"${server[@]}" &
	wait_for 10 "a listener" grep -q ':4853 ' /proc/net/tcp6 /proc/net/tcp # 18515
	give listening
	wait $!
else
	take listening
	"${server[@]}" "$(address 1)"
fi

# A frozen guest does nothing: its counter stands still.
if [ "$NODE" = 2 ]; then
	give running
	while [ ! -e "$DIR/sync/thawed" ]; do
		cut -d' ' -f1 /proc/uptime >"$DIR/counter"
		nap
	done
	give ready-to-die
	nap 60
	fail "was not killed"
fi
take running
host_freeze 2
before=$(cat "$DIR/counter")
nap 1
[ "$(cat "$DIR/counter")" = "$before" ] || fail "guest 2 is not frozen"
host_thaw 2
wait_for 10 "guest 2 goes on" test "$(cat "$DIR/counter")" != "$before"
give thawed
take ready-to-die
host_kill 2
host_boot 2
take reborn 60
barrier end
