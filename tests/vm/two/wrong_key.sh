#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 120
# Each guest has a key of its own: refused, the client is told PERMISSION, both logs say which key;
# once guest 2 has the right one, a reload is enough.
. tests/vm/pair.sh

KEY_FILE=$SCRATCH/cluster.key
"$KVT_BUILD/kvtctl" keygen "$KEY_FILE"
own=$("$KVT_BUILD/kvtctl" keygen --show "$KEY_FILE" | grep -oE '[0-9a-f]{16}')
give "own.$NODE" "$own"
give "secret.$NODE" "$(cat "$KEY_FILE")"
take "own.2"
dialled_with=$REPLY

start_kvtd "trust { key = \"$KEY_FILE\" }
	$(quick_peers)"
barrier "kvtd is up"
clients 1
begin pull 1
if [ "$NODE" = 2 ]; then
	end_of 1
	[ "$STATUS" = PERMISSION ] || fail "$STATUS $REPLY"
	give refused
fi
take refused
grep "$dialled_with" "$KVTD_LOG" | grep -v ' is ready' || fail "the log does not name key $dialled_with"
[ -z "$(peer_column node)" ] || fail "$(ctl peer list)"

if [ "$NODE" = 2 ]; then
	take secret.1
	echo "$REPLY" >"$KEY_FILE"
	ctl reload
	give reloaded
else
	take reloaded
	ok me "revoke g1"
	end_of 1
fi
move pull 2
move push 3
stop_pair
