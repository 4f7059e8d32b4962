#!/bin/sh
# certificates AUTHORITY TLS HOST NODE... -- ZOOKEEPER...: makes an authority in the one directory where there is none, and
# in the other, for each node, what it is to show by HOST and by the names that it has among the others. Each time anew, for
# a year: so whoever has all of it started again at least once in a year has certificates that are good.
#
# A ZooKeeper takes key and certificate as one file, runs as another user of this one's group, and believes another one that
# comes to it by the name that its address has: that of the container, in the network `inside` of PROJECT.
set -eu
umask 077

authority="$1" tls="$2" host="$3"
shift 3
[ -e "$authority/ca.crt" ] || lsmq tls init "$authority"

put() { # put MODE FILE: what comes by standard input, as a whole
  cat >"$2.new"
  chmod "$1" "$2.new"
  mv "$2.new" "$2"
}

while [ $# -gt 0 ] && [ "$1" != -- ]; do
  lsmq tls issue "$authority" "$1" \
    --host "$host" --host localhost --host 127.0.0.1 --host "$1" --host "$1-inside"
  put 600 "$tls/$1/node.crt" <"$authority/$1.crt"
  put 600 "$tls/$1/node.key" <"$authority/$1.key"
  put 600 "$tls/$1/ca.crt" <"$authority/ca.crt"
  rm "$authority/$1.crt" "$authority/$1.key"
  shift
done
[ $# -eq 0 ] || shift
for zookeeper in "$@"; do
  lsmq tls issue "$authority" "$zookeeper" \
    --host "$zookeeper-inside" --host "${PROJECT:-lsmq}-$zookeeper.${PROJECT:-lsmq}_inside"
  cat "$authority/$zookeeper.key" "$authority/$zookeeper.crt" | put 640 "$tls/$zookeeper/zookeeper.pem"
  put 640 "$tls/$zookeeper/ca.crt" <"$authority/ca.crt"
  rm "$authority/$zookeeper.crt" "$authority/$zookeeper.key"
done
put 600 "$tls/clients/ca.crt" <"$authority/ca.crt"
