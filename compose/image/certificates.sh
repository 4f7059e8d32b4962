#!/bin/sh
# certificates AUTHORITY TLS HOST NODE...: makes an authority in the one directory where there is none, and in the other, for
# each node, what it is to show by HOST and by the names that it has among the others. Each time anew, for a year: so
# whoever has all of it started again at least once in a year has certificates that are good.
set -eu
umask 077

authority="$1" tls="$2" host="$3"
shift 3
[ -e "$authority/ca.crt" ] || lsmq tls init "$authority"
for node in "$@"; do
  lsmq tls issue "$authority" "$node" \
    --host "$host" --host localhost --host 127.0.0.1 --host "$node" --host "$node-inside"
  for part in crt key; do
    cp "$authority/$node.$part" "$tls/$node/node.$part.new"
    mv "$tls/$node/node.$part.new" "$tls/$node/node.$part"
    rm "$authority/$node.$part"
  done
done
for reader in "$@" clients; do
  cp "$authority/ca.crt" "$tls/$reader/ca.crt"
done
