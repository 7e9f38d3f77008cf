#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The guest itself: a kernel of 6.1, verbs with active ports, the modules that other tests want.
. tests/vm/lib.sh

[[ $(uname -r) == 6.1.* ]] || fail "the kernel is $(uname -r)"
for device in rxe0 rxe1 rxe2; do
	ibv_devinfo -d "$device" >"$SCRATCH/info" || fail "no $device"
	grep -q 'state:.*PORT_ACTIVE' "$SCRATCH/info" || fail "$device: $(cat "$SCRATCH/info")"
done
grep -q '^tls ' /proc/modules || fail "no module tls"
tc qdisc add dev veth1 root netem delay 1ms
tc qdisc del dev veth1 root
tc qdisc add dev veth1 root tbf rate 10mbit burst 32k latency 50ms
tc qdisc del dev veth1 root
grep -q '^out /out 9p ' /proc/mounts || fail "/out is not shared: $(grep out /proc/mounts)"
say "$(uname -r), $(nproc) processors"
