#!/usr/bin/env bash
# A Ceph of one host behind an S3 gateway (mon, one OSD, radosgw) on the loopback address, without systemd.
#   ceph-rgw.sh up | kill | down | wipe | status | env
#   ceph-rgw.sh admin ARGUMENT...      radosgw-admin of this Ceph
# up starts what does not run (after kill too); kill is SIGKILL to all of it; down ends exactly what up started; wipe forgets its data.
# Settings: CEPH_RGW_DIR (private folder of all it keeps, default /var/lib/steelrail-ceph), CEPH_RGW_PORT (S3, default 7480),
#           CEPH_RGW_HOST (address of the gateway, default 127.0.0.1), CEPH_RGW_MON (port of the monitor, which takes the next
#           one too; default 6790), CEPH_RGW_GIB (size of the disk, sparse, default 8).
# The old and strict one of the two S3 servers that `make test-faults` asks; docs/faults.md says how it differs.
set -euo pipefail
umask 077
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
PROJECT=$(cd "$HERE/../.." && pwd -P)
DIR=${CEPH_RGW_DIR:-/var/lib/steelrail-ceph}
HOST=${CEPH_RGW_HOST:-127.0.0.1}
PORT=${CEPH_RGW_PORT:-7480}
MON=${CEPH_RGW_MON:-6790}
GIB=${CEPH_RGW_GIB:-8}
BUCKET=steelrail
CONF=$DIR/ceph.conf
DAEMONS=(rgw osd mon) # in the order in which they end
export CEPH_ARGS="--conf $CONF"

# shellcheck source-path=SCRIPTDIR source=lib/processes.sh
. "$HERE/lib/processes.sh"

port_open() { (exec 3<>"/dev/tcp/$HOST/$PORT") 2>/dev/null; }

require_packages() {
  local program
  for program in ceph-mon ceph-osd radosgw radosgw-admin ceph monmaptool ceph-authtool; do
    command -v "$program" >/dev/null || { "$PROJECT/scripts/setup.sh" --with ceph; break; }
  done
}

make_conf() { # FSID
  cat >"$CONF" <<CONF_END
[global]
fsid = $1
mon host = [v2:127.0.0.1:$((MON + 1)),v1:127.0.0.1:$MON]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv4 = true
ms bind ipv6 = false
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = $DIR/keyring
run dir = $DIR/run
admin socket = $DIR/run/\$name.asok
log file = $DIR/log/\$name.log
crash dir = $DIR/crash
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 2000
mon warn on pool no redundancy = false
mon osd full ratio = 0.98
osd failsafe full ratio = 0.99
mon osd nearfull ratio = 0.96
mon osd backfillfull ratio = 0.97
mon data avail warn = 2
mon data avail crit = 1
log to stderr = false
[mon]
mon data = $DIR/mon
mon initial members = a
mon pg warn min per osd = 0
auth allow insecure global id reclaim = false
paxos propose interval = 0.05
[osd]
osd data = $DIR/osd
osd objectstore = bluestore
bluestore block size = $((GIB * 1024 * 1024 * 1024))
bluestore block create = true
bluestore block db size = 0
bluestore block wal size = 0
osd memory target = 939524096
bluestore cache size = 134217728
bluestore cache autotune = false
osd max object name len = 2048
osd class update on start = false
osd crush update on start = true
[client.rgw.a]
keyring = $DIR/keyring
rgw frontends = beast endpoint=$HOST:$PORT
rgw thread pool size = 64
rgw enable usage log = false
rgw lc debug interval = -1
rgw dns name = localhost
rgw override bucket index max shards = 1
rgw enable apis = s3, admin
# A quota is looked at on every put, not now and then.
rgw bucket quota ttl = 0
rgw user quota bucket sync interval = 1
CONF_END
}

make_key() { # NAME CAPABILITY...
  local name=$1; shift
  ceph-authtool "$DIR/keyring" --gen-key -n "$name" "$@" >/dev/null
}

init_cluster() {
  local fsid; fsid=$(cat /proc/sys/kernel/random/uuid)
  wipe # what an up that did not come to its end left
  mkdir -p "$DIR"/{run,log,crash,mon,osd}
  make_conf "$fsid"
  ceph-authtool --create-keyring "$DIR/keyring" --gen-key -n mon. --cap mon 'allow *' >/dev/null
  make_key client.admin --cap mon 'allow *' --cap osd 'allow *'
  make_key osd.0 --cap mon 'allow profile osd' --cap osd 'allow *'
  make_key client.rgw.a --cap mon 'allow rwx' --cap osd 'allow rwx'
  monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$((MON + 1)),v1:127.0.0.1:$MON]" "$DIR/monmap" >/dev/null
  ceph-mon -i a --mkfs --monmap "$DIR/monmap" --keyring "$DIR/keyring" -c "$CONF" >>"$DIR/log/mkfs.out" 2>&1
}

make_osd() {
  local uuid; uuid=$(cat /proc/sys/kernel/random/uuid)
  ceph osd new "$uuid" >/dev/null 2>&1
  ceph-osd -i 0 --mkfs -c "$CONF" --osd-uuid "$uuid" >>"$DIR/log/mkfs.out" 2>&1
}

osd_up() { ceph --connect-timeout 3 osd stat | grep -q '1 up' && ceph --connect-timeout 3 tell osd.0 version; }

make_user() {
  local access secret; access=$(random_hex 10); secret=$(random_hex 20)
  radosgw-admin user create --uid=steelrail --display-name=steelrail --access-key="$access" --secret-key="$secret" >/dev/null 2>>"$DIR/log/admin.out"
  printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$access" "$secret" >"$DIR/credentials"
}

make_bucket() {
  env AWS_SHARED_CREDENTIALS_FILE="$DIR/credentials" AWS_EC2_METADATA_DISABLED=true "$PROJECT/.venv/bin/python" -c '
import sys, boto3
boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1").create_bucket(Bucket=sys.argv[2])
' "http://$HOST:$PORT" "$BUCKET"
}

up() {
  require_packages
  mkdir -p "$DIR"; chmod 700 "$DIR"
  if ! alive rgw && port_open; then die 1 "port $PORT of $HOST must be free, is in use: set CEPH_RGW_PORT"; fi
  local fresh=no; [ -e "$DIR/ready" ] || { fresh=yes; init_cluster; }
  alive mon || spawn mon ceph-mon -f -i a -c "$CONF"
  wait_for 20 ceph --connect-timeout 2 mon stat || die 1 "the monitor must start, did not: see $DIR/log"
  [ $fresh = no ] || make_osd
  alive osd || spawn osd ceph-osd -f -i 0 -c "$CONF"
  wait_for 40 osd_up || die 1 "the OSD must start, did not: see $DIR/log"
  alive rgw || spawn rgw radosgw -f -n client.rgw.a -c "$CONF"
  wait_for 60 port_open || die 1 "the gateway must start, did not: see $DIR/log"
  [ $fresh = no ] || { make_user; make_bucket; touch "$DIR/ready"; }
  say "up: http://$HOST:$PORT, bucket $BUCKET; credentials in $DIR/credentials"
}

stop_all() { # SIGNAL
  local daemon
  for daemon in "${DAEMONS[@]}"; do stop "$daemon" 15 "$1"; done
}

wipe() {
  stop_all TERM
  rm -rf "${DIR:?}"/{run,log,crash,mon,osd,keyring,monmap,credentials,ready,ceph.conf}
}

status() {
  local daemon rc=0
  for daemon in "${DAEMONS[@]}"; do
    if alive "$daemon"; then echo "$daemon up pid=$(pid_of "$daemon")"; else echo "$daemon down"; rc=1; fi
  done
  return $rc
}

print_env() {
  printf 'export %s\n' "AWS_SHARED_CREDENTIALS_FILE=$DIR/credentials" "AWS_ENDPOINT_URL_S3=http://$HOST:$PORT" \
    "AWS_DEFAULT_REGION=us-east-1" "STEELRAIL_DEV_BUCKET=$BUCKET"
}

case ${1:-} in
  up) up ;;
  kill) stop_all KILL ;;
  down) stop_all TERM ;;
  wipe) wipe ;;
  status) status ;;
  env) print_env ;;
  admin) shift; exec radosgw-admin "$@" ;;
  *) sed -n '2,4p' "${BASH_SOURCE[0]}" | cut -c3- >&2; exit 2 ;;
esac
