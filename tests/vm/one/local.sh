#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A hand-over between two clients of one daemon, on a kernel that has no SO_PEERPIDFD; a client
# that dies is noticed all the same.
. tests/vm/lib.sh

start_kvtd
actor owner
actor reader
ok owner "cache A 16 3 4096 guard=64"
ok reader "cache B 16 3 4096 guard=64"

ok owner "fill 7 A:3,0,9,5"
ok owner "snap A"
grant owner "g read A:3,0,9,5"
ok reader "xfer x pull $TOKEN B:15,2,7,1 final"
ok reader "wait x 20000"
ok reader "check 7 B:15,2,7,1"
ok reader "changed B B:15,2,7,1"
ok owner "gwait g 20000"
ok owner "changed A"
ok reader "stats x"
[[ $REPLY == *path=local* ]] || fail "$REPLY"

grant owner "h write A:0-3"
ok reader "fill 8 B:0-3"
ok reader "xfer y push $TOKEN B:0-3 final"
ok reader "wait y 20000"
ok owner "gwait h 20000"
ok owner "check 8 A:0-3"

# killed with a grant and a region
grant owner "k read A:0"
kill -9 "${actor_pid[owner]}"
wait "${actor_pid[owner]}" || true
ended() {
	ask reader "tstatus $TOKEN"
	[ "$STATUS $REPLY" = "OK ENDED CLIENT_DIED" ]
}
wait_for 10 "the grant ends with its client" ended
bye reader
stop_kvtd
