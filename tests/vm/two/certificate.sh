#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# limit: 120
# Two hosts with certificates of one authority, then one of another authority and one whose name is
# another node's.
. tests/vm/pair.sh

pki=$DIR/pki

# authority NAME
authority() {
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
		-subj "/CN=$1" -keyout "$pki/$1.key" -out "$pki/$1.pem" 2>/dev/null
}

# certificate FILE NODE AUTHORITY
certificate() {
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$2" \
		-addext "subjectAltName=DNS:$2" -keyout "$pki/$1.key" -out "$pki/$1.csr" 2>/dev/null
	openssl x509 -req -in "$pki/$1.csr" -CA "$pki/$3.pem" -CAkey "$pki/$3.key" -days 1 \
		-copy_extensions copy -out "$pki/$1.pem" 2>/dev/null
	cat "$pki/$3.pem" >>"$pki/$1.pem"
}

# trust FILE: the configuration that uses it
trust() {
	cat <<-CONF
		trust {
			cert = "$pki/$1.pem"
			cert_key = "$SCRATCH/$1.key"
			ca = "$pki/ours.pem"
		}
		$(quick_peers)
	CONF
	install -m 0600 "$pki/$1.key" "$SCRATCH/$1.key"
}

if [ "$NODE" = 1 ]; then
	mkdir "$pki"
	authority ours
	authority theirs
	certificate guest1 guest1 ours
	certificate guest2 guest2 ours
	certificate stranger guest2 theirs
fi
barrier "certificates"
# this guest's clock may be behind that of the one that made them
wait_for 10 "the certificates are valid" openssl verify -CAfile "$pki/ours.pem" \
	"$pki/guest1.pem" "$pki/guest2.pem"

start_kvtd "$(trust "guest$NODE")"
barrier "kvtd is up"
clients 1
move pull 1
move push 2
OWNER=2
move pull 3
[[ $(ctl --json peer list) == *"\"identity\":\"certificate guest$OTHER\""* ]] ||
	fail "$(ctl --json peer list)"
stop_pair

# Guest 2 comes back with a certificate that another authority has signed.
barrier "stopped"
if [ "$NODE" = 1 ]; then
	start_kvtd "$(trust guest1)"
else
	start_kvtd "$(trust stranger)"
fi
barrier "a stranger"
clients 1
begin pull 10
if [ "$NODE" = 2 ]; then
	end_of 10
	[ "$STATUS" = PERMISSION ] || fail "$STATUS $REPLY"
	give refused
fi
take refused
grep -iE 'certificate' "$KVTD_LOG" | grep -viE 'is ready' || fail "the log does not say why"
if [ "$NODE" = 1 ]; then
	ok me "revoke g10"
	end_of 10
fi
stop_pair
