#!/usr/bin/env bash
# A real Slurm of four GPU hosts, a spare and a CPU host, with accounting and an S3 server, on one machine.
#   cluster.sh check | up | down | wipe | status | env
#   cluster.sh cut HOST | mend HOST | slow HOST RATE|off | spare up|down
#   cluster.sh kill-slurmd HOST | kill-host HOST | start-slurmd HOST
#   cluster.sh restart slurmctld|slurmdbd
#   cluster.sh s3 start|stop|kill|pause|resume
#   cluster.sh as-user COMMAND...
# Needs root and namespaces (exit code 3 without). Settings: STEELRAIL_DEV_DIR (state, default /var/lib/steelrail-dev),
# STEELRAIL_DEV_ETC_SLURM=no (leave /etc/slurm to another Slurm), STEELRAIL_DEV_HOSTS=loopback (no namespaces: one GPU
# host and the CPU host, on the loopback address; remembered until wipe). How to use it: docs/dev-cluster.md
set -euo pipefail
umask 022
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib/processes.sh
. "$HERE/lib/processes.sh"
# shellcheck source-path=SCRIPTDIR source=lib/common.sh
. "$HERE/lib/common.sh"
# shellcheck source-path=SCRIPTDIR source=lib/hosts.sh
. "$HERE/lib/hosts.sh"
# shellcheck source-path=SCRIPTDIR source=lib/slurm.sh
. "$HERE/lib/slurm.sh"
# shellcheck source-path=SCRIPTDIR source=lib/s3.sh
. "$HERE/lib/s3.sh"
HOST_KIND=$(host_kind)
# shellcheck source-path=SCRIPTDIR source=lib/loopback.sh
[ "$HOST_KIND" = namespaces ] || . "$HERE/lib/loopback.sh"
export SLURM_CONF=$CONF/slurm.conf

make_folders() {
  install -d -m 0755 "$DIR" "$DIR"/{conf,log,run,spool,nodes,dev}
  install -d -m 0700 "$DIR"/{state,munge,s3,log/weed}
  install -d -m 0700 -o mysql "$DIR/mysql"
  echo "$HOST_KIND" >"$DIR/.steelrail-dev"
}

# Two people (or two test runs) may call us at once; one changes the cluster, the other waits.
lock() { mkdir -p "$DIR"; exec 9>"$DIR/lock"; flock -w 300 9 || die 1 "$DIR/lock must be free, is held for 5 minutes: see who runs cluster.sh"; }

up() {
  local host
  make_folders; check_etc; render_conf; make_user; make_fastssd
  make_bridge
  for host in "${HOSTS[@]}"; do make_host "$host"; done
  make_s3_keys; launch_s3
  start_mariadb; start_munge; start_slurmdbd; make_accounts; start_slurmctld; link_etc
  for host in "${NODES[@]}" cpu1; do start_slurmd "$host"; done
  nodes_ready "${NODES[@]}" cpu1
  start_s3
}

down() {
  local host daemon
  # It takes 15 s to leave: it is told first and waited for last.
  if alive weed; then signal_s3 TERM; rm -f "${WEED_SOCKETS[@]}"; fi
  for host in "${HOSTS[@]}"; do stop "slurmd.$host"; remove_host "$host"; done
  # Cancelled first, a batch script could leave its srun behind, which then is nobody's.
  if alive slurmctld; then cancel_all_jobs; fi
  for daemon in slurmctld slurmdbd mariadbd munged weed; do stop "$daemon" 20; done
  ip link del "$BRIDGE" 2>/dev/null || true
  rm -f "$DIR"/run/*.sock
  unlink_etc; remove_fastssd
}

wipe() {
  [ -e "$DIR/.steelrail-dev" ] || die 1 "$DIR must be a dev cluster's folder, is not: nothing removed"
  down
  rm -rf "${DIR:?}"/{conf,log,run,spool,nodes,dev,state,munge,s3,mysql,.steelrail-dev}
}

status() {
  local name rc=0
  for name in munged mariadbd slurmdbd slurmctld weed "${NODES[@]/#/slurmd.}" slurmd.cpu1; do
    if alive "$name"; then echo "$name up pid=$(pid_of "$name")"; else echo "$name down"; rc=1; fi
  done
  for name in $SPARE; do # one, or none
    if alive "slurmd.$name"; then echo "slurmd.$name up (spare)"; else echo "slurmd.$name down (spare)"; fi
  done
  if alive slurmctld; then timeout 10 sinfo || rc=1; fi
  return $rc
}

print_env() {
  printf 'export %s\n' "SLURM_CONF=$CONF/slurm.conf" "AWS_SHARED_CREDENTIALS_FILE=$CREDENTIALS" \
    "AWS_ENDPOINT_URL_S3=$S3_URL" "AWS_DEFAULT_REGION=us-east-1" "STEELRAIL_DEV_BUCKET=$S3_BUCKET"
}

kill_slurmd() {
  local pid; pid=$(pid_of "slurmd.$1") || die 1 "slurmd of $1 must run, does not: cluster.sh start-slurmd $1"
  kill -KILL "$pid"
  wait_for 5 not_running "slurmd.$1"
}

mend() {
  make_host "$1"
  ! alive "slurmd.$1" || nodes_ready "$1"
}

slow() {
  [[ ${2:-} =~ ^([0-9]+(k|m|g)bit|off)$ ]] || die 2 "RATE must be like 200mbit, or off, is '${2:-}'"
  if [ "$2" = off ]; then speed_up "$1"; else slow_down "$1" "$2"; fi
}

spare() { case ${1:-} in up) spare_up ;; down) spare_down ;; *) die 2 "spare must be followed by up or down, is '${1:-}'" ;; esac; }

restart() {
  case ${1:-} in
    slurmctld) stop slurmctld 20; start_slurmctld ;;
    slurmdbd) stop slurmdbd 20; start_slurmdbd; wait_for 30 dbd_up ;;
    *) die 2 "restart must be followed by slurmctld or slurmdbd, is '${1:-}'" ;;
  esac
}

usage() { sed -n '2,9p' "${BASH_SOURCE[0]}" | cut -c3- >&2; exit 2; }

main() {
  local command=${1:-}; shift || true
  case $command in
    up | down | wipe | spare | restart | s3 | cut | mend | slow | kill-slurmd | kill-host | start-slurmd) require_machine; lock ;;
    as-user) require_machine ;;
  esac
  case $command in cut | mend | slow | kill-slurmd | kill-host | start-slurmd) known_host "${1:-}" ;; esac
  case $command in cut | mend | slow | kill-host | spare) own_hosts "$command" ;; esac
  case $command in
    up) up; say "up: sinfo; S3 at $S3_URL, bucket $S3_BUCKET; jobs are submitted by user $DEV_USER" ;;
    down) down ;;
    wipe) wipe ;;
    check) check_etc ;;
    status) status ;;
    env) print_env ;;
    cut) ip link set "$(link "$1")" down ;;
    mend) mend "$1" ;;
    slow) slow "$1" "${2:-}" ;;
    spare) spare "${1:-}" ;;
    kill-slurmd) kill_slurmd "$1" ;;
    kill-host) kill_all_in "$1" ;;
    start-slurmd) start_slurmd "$1"; resume_node "$1" ;;
    restart) restart "${1:-}" ;;
    s3) s3_command "${1:-}" ;;
    as-user) as_user "$@" ;;
    *) usage ;;
  esac
}
main "$@"
