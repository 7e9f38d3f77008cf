#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 120
# Two hosts of one cluster key: pulls and pushes in both directions, encrypted; who does the
# encryption, kvtd or the kernel, is what kvtctl says it is.
. tests/vm/pair.sh

start_pair
clients 1 16
move pull 1
move push 2
ctl status
ctl peer list -o node,state,paths,identity,encryption

[ "$(peer_column node)" = "guest$OTHER" ] || fail "$(ctl peer list)"
fingerprint=$("$KVT_BUILD/kvtctl" keygen --show "$KEY_FILE" | grep -oE '[0-9a-f]{16}')
[[ $(ctl --json peer list) == *"\"identity\":\"key $fingerprint\""* ]] || fail "$(ctl --json peer list)"

# sessions that this kernel's module keeps, in its own cipher
kernel=$(awk '/^TlsCurr(Tx|Rx)Sw/ { n += $2 } END { print n + 0 }' /proc/net/tls_stat)
encryption=$(peer_column encryption)
say "encryption: $encryption; sessions in the kernel: $kernel"
case $encryption in
ktls) [ "$kernel" -gt 0 ] || fail "no session is in the kernel" ;;
tls) [ "$kernel" = 0 ] || fail "$kernel sessions are in the kernel" ;;
*) fail "encryption: $encryption" ;;
esac

zeroes 1
[ "$NODE" = 2 ] || [ "$ZEROES" = 0 ] || fail "bytes go in the clear"

OWNER=2 # from here on
move pull 3
move push 4
stop_pair
