#!/bin/sh
# Runs a command as it is. Before `lsmq serve` in a cluster it sees to the cluster's secret, which the nodes of one
# machine share in a volume: who may write there makes it where there is none, who may not waits a little for it.
set -eu

secret="${LSMQ_CLUSTER_SECRET_FILE:-}"
if [ "${1:-} ${2:-}" = "lsmq serve" ] && [ -n "$secret" ] && [ ! -e "$secret" ]; then
  if [ -w "${secret%/*}" ]; then
    umask 077
    new="$(mktemp "$secret.XXXXXX")"
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$new"
    # Of nodes that start together one wins: a link is made once, and what it shows is whole.
    ln "$new" "$secret" 2>/dev/null || true
    rm "$new"
  else
    # In vain, the node says what it lacks.
    waits=100
    while [ ! -e "$secret" ] && [ "$waits" -gt 0 ]; do
      sleep 0.1
      waits=$((waits - 1))
    done
  fi
fi
exec "$@"
