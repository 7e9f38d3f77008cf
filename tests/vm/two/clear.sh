#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 120
# encrypt = no on both sides: proven with a key all the same, bytes go in the clear. On one side
# only: encrypted.
. tests/vm/pair.sh

start_pair 'transport { encrypt = no }'
clients 1
move pull 1
move push 2
[ "$(peer_column encryption)" = none ] || fail "$(ctl peer list -o node,encryption)"
[[ $(ctl --json peer list) == *'"identity":"key '* ]] || fail "$(ctl --json peer list)"
zeroes 1
[ "$NODE" = 2 ] || [ "$ZEROES" -gt 20 ] || fail "no bytes go in the clear"

stop_pair
barrier "stopped"
encrypt=no
[ "$NODE" = 1 ] || encrypt=yes
start_kvtd "trust { key = \"$KEY_FILE\" }
	transport { encrypt = $encrypt }
	$(quick_peers)"
barrier "up again"
clients 2
move pull 3
move push 4
[[ $(peer_column encryption) == *tls ]] || fail "$(ctl peer list -o node,encryption)"
bye me
wait_for 20 "nothing of clients is left" at_rest
barrier "at rest"
stop_kvtd
