#!/bin/bash
# Exits with 0 when the node in this container takes requests (GET /readyz says 200). It costs an interpreter only where
# the port speaks TLS. Whom it asks is itself, so it checks no certificate, and shows the node's own.
set -eu

if [ -n "${LSMQ_TLS_CERT:-}" ]; then
  exec python3 -I -S -c '
import os, socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.load_cert_chain(os.environ["LSMQ_TLS_CERT"], os.environ["LSMQ_TLS_KEY"])
with socket.create_connection(("127.0.0.1", int(os.environ.get("LSMQ_PORT", "7600"))), timeout=3) as plain:
    with context.wrap_socket(plain) as asking:
        asking.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        status = asking.recv(64).split(b" ")[1].decode()
print(f"/readyz: {status}")
sys.exit(status != "200")
'
fi
exec 3<>"/dev/tcp/127.0.0.1/${LSMQ_PORT:-7600}"
printf 'GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
read -r _ status _ <&3
echo "/readyz: $status"
[ "$status" = 200 ]
