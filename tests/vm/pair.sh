# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2119,SC2120
# For scripts on two guests: an owner on guest 1, a reader on guest 2, or the other way round, and
# transfers between them whose bytes, and those around them, are compared. Both guests call the same
# functions with the same arguments.
. tests/vm/lib.sh

OTHER=$((3 - NODE))
KEEPALIVE=3 # seconds, in quick_peers
FENCE=1

quick_peers() {
	echo "peers { keepalive_interval = \"250 ms\" keepalive_timeout = \"$KEEPALIVE s\" redial_max = \"500 ms\" }"
	echo "fence_timeout = \"$FENCE s\""
}

# shared_key: a cluster key, the same on both; made by guest 1
shared_key() {
	KEY_FILE=$SCRATCH/cluster.key
	if [ "$NODE$BOOT" = 11 ]; then
		"$KVT_BUILD/kvtctl" keygen "$KEY_FILE"
		give key "$(cat "$KEY_FILE")"
	else
		take key
		(umask 077 && echo "$REPLY" >"$KEY_FILE")
	fi
}

# start_pair [CONFIGURATION]: kvtd on both, with a key
start_pair() {
	shared_key
	start_kvtd "trust { key = \"$KEY_FILE\" }
		$(quick_peers)
		${1-}"
	barrier "kvtd is up"
}

# clients OWNER [BLOCKS [PLANES [BYTES]]]: an actor "me" on each guest, with the cache C; OWNER is
# the guest that makes the grants. What one "move" moves is all of it.
clients() {
	local blocks=${2:-8}

	OWNER=$1
	ALL=C:0-$((blocks - 1))
	ALL_TURNED=C:$((blocks - 1))-0
	actor me
	ok me "cache C $blocks ${3:-2} ${4:-131072} guard=4096"
}

# begin OP N [MORE]: the grant gN is made, the transfer xN is started by the other side
begin() {
	local access="read"

	[ "$1" = pull ] || access="write"
	if [ "$NODE" = "$OWNER" ]; then
		if [ "$1" = pull ]; then
			ok me "fill $2 $ALL"
			ok me "snap C"
		else
			ok me "noise C $2"
		fi
		grant me "g$2 $access $ALL"
		give "token.$2" "$TOKEN"
	else
		if [ "$1" = pull ]; then
			ok me "noise C $2"
		else
			ok me "fill $2 $ALL_TURNED"
			ok me "snap C"
		fi
		take "token.$2"
		TOKEN=$REPLY
		ok me "xfer x$2 $1 $TOKEN $ALL_TURNED final ${3-}"
	fi
}

# compare OP N: as it is after an OK
compare() {
	if [ "$NODE" = "$OWNER" ]; then
		ok me "check $2 $ALL"
		[ "$1" = pull ] || ok me "changed C $ALL"
	else
		ok me "check $2 $ALL_TURNED"
		[ "$1" = push ] || ok me "changed C $ALL_TURNED"
	fi
	# the source is as it was
	if { [ "$1" = pull ] && [ "$NODE" = "$OWNER" ]; } ||
		{ [ "$1" = push ] && [ "$NODE" != "$OWNER" ]; }; then
		ok me "changed C"
	fi
}

# end_of N [MS [MORE]]: waits for it on this side; STATUS and REPLY are its end
end_of() {
	if [ "$NODE" = "$OWNER" ]; then
		ask me "gwait g$1 ${2:-30000} ${3-}"
	else
		ask me "wait x$1 ${2:-30000} ${3-}"
	fi
}

# move OP N: one transfer that has to be right
move() {
	begin "$1" "$2"
	end_of "$2"
	[ "$STATUS" = OK ] || fail "$1 $2: $STATUS $REPLY"
	compare "$1" "$2"
	give "moved.$2.$NODE"
	take "moved.$2.$OTHER"
}

# small_buffers: before kvtd starts; what has left the memory of a sender is soon at the other end.
# The owner of a pull is done when the last byte is in its socket.
small_buffers() {
	sysctl -q -w net.ipv4.tcp_wmem="4096 16384 65536" net.ipv4.tcp_rmem="4096 65536 131072"
}

# apart: guest 1's card is moved behind a wire of its own, in a network namespace: what hold() holds
# there has left guest 2, and comes even if that is no more. Both call it, before kvtd starts.
apart() {
	local mac=52:54:00:00 there=(ip netns exec wire)

	if [ "$NODE" = 2 ]; then
		ip neigh replace "$(address 1)" lladdr $mac:01:00 dev eth0 nud permanent
		return
	fi
	[ ! -e /run/netns/wire ] || return 0
	rdma link delete rxe0
	ip netns add wire
	ip link add hold0 mtu 4200 type veth peer name hold1 mtu 4200 netns wire
	ip link set eth0 netns wire
	ip addr add "$(address 1)/24" dev hold0
	ip link set hold0 up
	"${there[@]}" ip link set hold1 up
	"${there[@]}" ip link set eth0 mtu 4200 up
	"${there[@]}" ip route add "$(address 1)" dev hold1
	"${there[@]}" ip route add "$(address 2)" dev eth0
	"${there[@]}" sysctl -q -w net.ipv4.ip_forward=1
	"${there[@]}" ip neigh replace "$(address 2)" lladdr $mac:02:00 dev eth0 nud permanent
	"${there[@]}" ip neigh replace "$(address 1)" dev hold1 nud permanent \
		lladdr "$(cat /sys/class/net/hold0/address)"
	ip neigh replace "$(address 2)" dev hold0 nud permanent \
		lladdr "$("${there[@]}" cat /sys/class/net/hold1/address)"
}

# hold MS: on guest 1, after apart: each byte that comes
hold() {
	ip netns exec wire tc qdisc replace dev hold1 root netem limit 20000 delay "$1ms"
}

# slow: 4 MiB take some three seconds
slow() {
	tc qdisc replace dev eth0 root tbf rate 10mbit burst 64k latency 200ms
}

# moving OP N: here or at the other side, some bytes have come
moving() {
	if { [ "$1" = pull ] && [ "$NODE" != "$OWNER" ]; } ||
		{ [ "$1" = push ] && [ "$NODE" = "$OWNER" ]; }; then
		local all=$ALL

		[ "$NODE" = "$OWNER" ] || all=$ALL_TURNED
		ok me "until $2 $all least=200000 ms=20000"
	else
		local sent

		sent=$(cat /sys/class/net/eth0/statistics/tx_bytes)
		wait_for 20 "bytes are sent" sent_more $((sent + 200000))
	fi
}

sent_more() {
	[ "$(cat /sys/class/net/eth0/statistics/tx_bytes)" -gt "$1" ]
}

# fast: as it was
fast() {
	tc qdisc del dev eth0 root 2>/dev/null || true
}

# again N: a peer that was lost comes back, and transfers are right
again() {
	local i

	for i in 1 2 3 4 5 6 7 8 9; do
		begin pull "$1$i"
		end_of "$1$i"
		give "again.$1$i.$NODE" "$STATUS"
		take "again.$1$i.$OTHER"
		if [ "$STATUS$REPLY" = OKOK ]; then
			compare pull "$1$i"
			move push "${1}0"
			return
		fi
		nap 0.3
	done
	fail "the connection does not come back: $STATUS, $REPLY"
}

# lost_too OP N: this side, too, ends it with PEER_LOST, and its memory is its own again
lost_too() {
	end_of "$2" 30000 "then=C seed=$NODE"
	[ "$STATUS" = PEER_LOST ] || fail "$1 $2: $STATUS $REPLY"
}

# zeroes N: what the wire shows of a pull of nothing but zeroes, from OWNER; sets ZEROES to the
# number of frames that hold some
zeroes() {
	local sniffer=

	ok me "cache Z 4 1 65536 raw"
	if [ "$NODE" = 1 ]; then
		rm -f "$SCRATCH/sniffed"
		/usr/bin/python3 tests/vm/sniff.py eth0 "$SCRATCH/sniffing" "$SCRATCH/sniffed" \
			>"$SCRATCH/frames" &
		sniffer=$!
		wait_for 20 "a sniffer" test -e "$SCRATCH/sniffing"
	fi
	barrier "zeroes $1"
	if [ "$NODE" = "$OWNER" ]; then
		grant me "z read Z:0-3"
		give "zeroes.$1" "$TOKEN"
		expect OK me "gwait z 20000"
	else
		take "zeroes.$1"
		TOKEN=$REPLY
		ok me "noise Z 3"
		ok me "xfer z pull $TOKEN Z:0-3 final"
		ok me "wait z 20000"
	fi
	barrier "zeroes $1 are over"
	[ -n "$sniffer" ] || return 0
	: >"$SCRATCH/sniffed"
	wait "$sniffer"
	read -r FRAMES ZEROES <"$SCRATCH/frames"
	say "the wire: $FRAMES frames, zeroes in $ZEROES of them"
	[ "$FRAMES" -gt 40 ] || fail "$FRAMES frames are too few" # 256 KiB in frames of 4200
}

# peer_column NAME: of the only peer
peer_column() {
	ctl peer list -n -r -o "$1"
}

# stop_pair: in good order, on both; each leaves when the other has nothing more to do
stop_pair() {
	bye me
	wait_for 20 "nothing of clients is left" at_rest
	barrier "both are at rest"
	stop_kvtd
}
