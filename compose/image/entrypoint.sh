#!/bin/sh
# Runs a command as it is. Before `lsmq serve` in a cluster it makes the cluster's secret, if there is none yet and
# its directory may be written: the nodes of one machine share it in a volume, and the first one to start makes it.
set -eu

secret="${LSMQ_CLUSTER_SECRET_FILE:-}"
if [ "${1:-} ${2:-}" = "lsmq serve" ] && [ -n "$secret" ] && [ ! -e "$secret" ] && [ -w "${secret%/*}" ]; then
  umask 077
  new="$(mktemp "$secret.XXXXXX")"
  od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$new"
  # Of nodes that start together one wins: a link is made once, and what it shows is whole.
  ln "$new" "$secret" 2>/dev/null || true
  rm "$new"
fi
exec "$@"
