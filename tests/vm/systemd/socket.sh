#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 120
# Socket activation: systemd has the client socket; the first client starts kvtd, and clients that
# are there outlive a restart of it.
. tests/vm/lib.sh

units=/run/systemd/system
unit=kvtd-socket # a name that systemd has not heard yet: daemon-reload takes long here

trap 'systemctl stop $unit.socket $unit.service; rm -f $units/$unit.*' EXIT

configure
cat >$units/$unit.socket <<-UNIT
	[Socket]
	ListenSequentialPacket=$SOCKET
	FileDescriptorName=client
	SocketMode=0600
UNIT
cat >$units/$unit.service <<-UNIT
	[Service]
	Type=notify
	ExecStart=$KVT_BUILD/kvtd -c $CONF -s $SOCKET -a $ADMIN
UNIT
systemctl start $unit.socket
state() {
	systemctl show -p ActiveState --value $unit.service
}
[ "$(state)" = inactive ] || fail "kvtd runs before anybody asked"
[ "$(stat -c %a "$SOCKET")" = 600 ] || fail "$(stat "$SOCKET")"

hand_over() { # GRANT
	grant owner "$1 read A:0-3"
	ok reader "xfer $1 pull $TOKEN B:3-0 final"
	ok reader "wait $1 20000"
	ok reader "check 7 B:3-0"
	ok reader "changed B B:3-0"
}

actor owner # starts it
[ "$(state)" = active ] || fail "kvtd is $(state)"
actor reader
ok owner "cache A 4 2 4096 guard=64"
ok reader "cache B 4 2 4096 guard=64"
ok owner "fill 7 A:0-3"
hand_over g

systemctl restart $unit.service
for a in owner reader; do
	event $a RECONNECTED
done
ok reader "noise B 5"
hand_over h
bye owner reader

systemctl stop $unit.service
[ "$(systemctl show -p Result --value $unit.service)" = success ] ||
	fail "$(systemctl status $unit.service)"
[ -e "$SOCKET" ] || fail "the socket is systemd's and went with kvtd"
