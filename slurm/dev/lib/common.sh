# shellcheck shell=bash
# Paths, messages, and processes that we start, know again and end.

DIR=${STEELRAIL_DEV_DIR:-/var/lib/steelrail-dev}
DEV=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
PROJECT=$(cd "$DEV/../.." && pwd -P)
NET=10.77.0
HEAD=$NET.254
NODES=(node1 node2 node3 node4)
SPARE=node5
HOSTS=("${NODES[@]}" "$SPARE" cpu1)
DEV_USER=steelrail
DEV_HOME=/home/$DEV_USER

say() { printf 'cluster: %s\n' "$*" >&2; }
die() { local rc=$1; shift; say "$*"; exit "$rc"; }

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

wait_for() { # SECONDS COMMAND...: poll until it succeeds
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.1
  done
}

pid_of() { # NAME: the pid if that process lives and is ours, whatever the pid file of an earlier boot says
  local pid
  pid=$(cat "$DIR/run/$1.pid" 2>/dev/null) && [ -n "$pid" ] || return 1
  [ -r "/proc/$pid/stat" ] && ! grep -q ') [ZX] ' "/proc/$pid/stat" || return 1
  # Its environment may be closed to us (another user's, in a container).
  { tr '\0' '\n' <"/proc/$pid/cmdline"; tr '\0' '\n' <"/proc/$pid/environ" || true; } 2>/dev/null |
    grep -F -- "$DIR/" >/dev/null || return 1
  echo "$pid"
}

alive() { pid_of "$1" >/dev/null; }
port_open() { (exec 3<>"/dev/tcp/$HEAD/$1") 2>/dev/null; }

spawn() { # NAME COMMAND...: in the background, in a session of its own, without our lock
  local name=$1; shift
  setsid "$@" </dev/null >"$DIR/log/$name.out" 2>&1 9>&- &
  echo $! >"$DIR/run/$name.pid"
}

stop() { # NAME [SECONDS]: TERM, then KILL; returns when it is gone
  local pid
  pid=$(pid_of "$1") || { rm -f "$DIR/run/$1.pid"; return 0; }
  # A stopped process takes TERM only once it is continued.
  kill -TERM "$pid" 2>/dev/null || true
  kill -CONT "$pid" 2>/dev/null || true
  wait_for "${2:-10}" not_running "$1" || kill -KILL "$pid" 2>/dev/null || true
  wait_for 5 not_running "$1" || die 1 "$1 (pid $pid) must end on SIGKILL, is still there: look at /proc/$pid"
  rm -f "$DIR/run/$1.pid"
}

not_running() { ! alive "$1"; }

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
