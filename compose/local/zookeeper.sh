#!/bin/bash
# Starts the ZooKeeper of Debian's packages, configured by the variables of the public image `zookeeper`.
set -euo pipefail

config="${ZOO_CONF_DIR:-/conf}/zoo.cfg"
jars=/usr/share/java
classpath=""
for pattern in zookeeper zookeeper-jute netty-all netty-\* netty slf4j-api slf4j-simple metrics-core \
  snappy-java findbugs-annotations commons-io commons-cli; do
  for jar in "$jars"/$pattern.jar; do
    if [[ -e $jar ]]; then classpath+="$jar:"; fi
  done
done

{
  echo "dataDir=/data"
  echo "dataLogDir=/datalog"
  echo "tickTime=${ZOO_TICK_TIME:-2000}"
  echo "initLimit=${ZOO_INIT_LIMIT:-5}"
  echo "syncLimit=${ZOO_SYNC_LIMIT:-2}"
  echo "maxClientCnxns=${ZOO_MAX_CLIENT_CNXNS:-60}"
  echo "standaloneEnabled=${ZOO_STANDALONE_ENABLED:-true}"
  echo "admin.enableServer=${ZOO_ADMINSERVER_ENABLED:-false}"
  echo "autopurge.snapRetainCount=${ZOO_AUTOPURGE_SNAPRETAINCOUNT:-3}"
  echo "autopurge.purgeInterval=${ZOO_AUTOPURGE_PURGEINTERVAL:-0}"
  echo "4lw.commands.whitelist=${ZOO_4LW_COMMANDS_WHITELIST:-srvr}"
  tr ' ' '\n' <<<"${ZOO_SERVERS:-server.1=localhost:2888:3888;2181}"
  tr ' ' '\n' <<<"${ZOO_CFG_EXTRA:-}"
} >"$config"
if [[ ! -e /data/myid ]]; then echo "${ZOO_MY_ID:-1}" >/data/myid; fi

# shellcheck disable=SC2086  # JVMFLAGS is a list of options.
exec java -cp "$classpath" ${JVMFLAGS:-} org.apache.zookeeper.server.quorum.QuorumPeerMain "$config"
