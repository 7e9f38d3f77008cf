#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 120
# kvtd as a unit of Type=notify: active once it is ready, reloads, is started anew when it is
# killed, drains and stops in good order.
. tests/vm/lib.sh

# a name that systemd has not heard yet: daemon-reload takes long here
unit=kvtd-notify.service
unit_file=/run/systemd/system/$unit

property() {
	systemctl show -p "$1" --value $unit
}

# started RESTARTS: it runs, so often started anew
started() {
	[ "$(property ActiveState),$(property NRestarts)" = "active,$1" ]
}

trap 'journalctl -q -u $unit >$DIR/journal; systemctl stop $unit; rm -f $unit_file' EXIT
systemctl is-active systemd-udevd.service systemd-tmpfiles-setup.service ||
	fail "the guest's systemd is not whole"

configure
cat >$unit_file <<-UNIT
	[Unit]
	StartLimitIntervalSec=0
	[Service]
	Type=notify
	ExecStart=$KVT_BUILD/kvtd -c $CONF -s $SOCKET -a $ADMIN
	ExecReload=/bin/kill -HUP \$MAINPID
	Restart=on-failure
	RestartSec=100ms
UNIT
systemctl start $unit
started 0 || fail "$(systemctl status $unit)"
ctl status # is ready, as soon as systemctl has said so
say "status text: $(property StatusText)"

actor owner
actor reader
ok owner "cache A 4 2 4096 guard=64"
ok reader "cache B 4 2 4096 guard=64"
ok owner "fill 7 A:0-3"
grant owner "g read A:0-3"
ok reader "xfer x pull $TOKEN B:3-0 final"
ok reader "wait x 20000"
ok reader "check 7 B:3-0"
ok reader "changed B B:3-0"

configure 'log_level = "debug"'
systemctl reload $unit
debugging() {
	journalctl -q -o cat -u $unit | grep -q 'log_level'
}
wait_for 10 "the journal tells of the reload" debugging

systemctl kill -s KILL --kill-who=main $unit
wait_for 20 "it is started anew" started 1
bye owner reader

systemctl stop $unit
[ "$(property Result),$(property ActiveState)" = success,inactive ] ||
	fail "$(systemctl status $unit)"
[ ! -e "$SOCKET" ] || fail "$SOCKET is still there"
