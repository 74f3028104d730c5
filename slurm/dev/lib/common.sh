# shellcheck shell=bash
# Paths, hosts, what the machine must have, and the ordinary user.

DIR=${STEELRAIL_DEV_DIR:-/var/lib/steelrail-dev}
DEV=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
PROJECT=$(cd "$DEV/../.." && pwd -P)
NET=10.77.0
# shellcheck disable=SC2034 # for the files that are sourced next
HEAD=$NET.254
NODES=(node1 node2 node3 node4)
SPARE=node5
HOSTS=("${NODES[@]}" "$SPARE" cpu1)
DEV_USER=steelrail
DEV_HOME=/home/$DEV_USER

# The kind of hosts a state folder was made for stands in its marker (nothing there: namespaces), for whoever comes later.
host_kind() {
  local kind kept=""
  if [ -e "$DIR/.steelrail-dev" ]; then kept=$(cat "$DIR/.steelrail-dev"); kept=${kept:-namespaces}; fi
  kind=${STEELRAIL_DEV_HOSTS:-${kept:-namespaces}}
  case $kind in namespaces | loopback) ;; *) die 2 "STEELRAIL_DEV_HOSTS must be namespaces or loopback, is '$kind'" ;; esac
  [ "$kind" = "${kept:-$kind}" ] ||
    die 1 "the hosts of $DIR must be $kind, are $kept: end and forget that cluster (slurm/dev/cluster.sh wipe), or set STEELRAIL_DEV_DIR to another folder"
  echo "$kind"
}

log_tail() { tail -n 15 "$DIR/log/$1" >&2 2>/dev/null || true; }

known_host() { # HOST...: only names of this cluster go into paths and commands
  case " ${HOSTS[*]} " in *" ${1:-} "*) ;; *) die 2 "HOST must be one of ${HOSTS[*]}, is '${1:-}'" ;; esac
}

own_hosts() { # COMMAND: what is done to a host must not be done to this machine
  [ "$HOST_KIND" = namespaces ] || die 2 "the hosts of $1 must be namespaces, are this machine (STEELRAIL_DEV_HOSTS=loopback): use a machine that allows namespaces"
}

require_machine() {
  [ "$(id -u)" = 0 ] || die 3 "the dev cluster must be run by root (namespaces, users), is uid $(id -u): use sudo"
  [ "$HOST_KIND" = loopback ] || unshare --net --mount --uts true 2>/dev/null ||
    die 3 "network, mount and UTS namespaces must be allowed, are refused here (unshare -n -m -u): use a machine that allows them, or set STEELRAIL_DEV_HOSTS=loopback for one GPU host without them"
  local program
  for program in slurmctld slurmd slurmdbd munged mariadbd mariadb-install-db ip tc nsenter runuser flock ps; do
    command -v "$program" >/dev/null || die 3 "$program must be installed, is missing: run scripts/setup.sh"
  done
  [ -x "$PROJECT/.venv/bin/weed" ] || die 3 "$PROJECT/.venv/bin/weed must be there, is missing: run scripts/setup.sh"
}

make_user() {
  id "$DEV_USER" >/dev/null 2>&1 || useradd --create-home --home-dir "$DEV_HOME" --shell /bin/bash "$DEV_USER"
  install -d -m 0700 -o "$DEV_USER" -g "$DEV_USER" "$DEV_HOME" "$DEV_HOME/.aws"
}

as_user() { # COMMAND...: as the ordinary user, with a login's environment and none of ours
  local -a env=(HOME="$DEV_HOME" USER="$DEV_USER" LOGNAME="$DEV_USER" SHELL=/bin/bash LANG=C.UTF-8)
  # In a project that he cannot reach, .venv leads to one that he can.
  env+=(PATH="$(readlink -f "$PROJECT/.venv")/bin:/usr/local/bin:/usr/bin:/bin" TERM="${TERM:-dumb}")
  if [ "${STEELRAIL_DEV_ETC_SLURM:-yes}" = no ]; then env+=(SLURM_CONF="$DIR/conf/slurm.conf"); fi
  runuser -u "$DEV_USER" -- env -i "${env[@]}" "$@" 9>&-
}
