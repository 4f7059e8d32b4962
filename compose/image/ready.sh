#!/bin/bash
# Exits with 0 when the node in this container takes requests (GET /readyz says 200). It costs no interpreter.
set -eu

exec 3<>"/dev/tcp/127.0.0.1/${LSMQ_PORT:-7600}"
printf 'GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
read -r _ status _ <&3
echo "/readyz: $status"
[ "$status" = 200 ]
