# shellcheck shell=bash
# Hosts: a network namespace each, on one bridge; their own name, address and /mnt/fastssd come with slurmd.

BRIDGE=steelrail0
FASTSSD=/mnt/fastssd

namespace() { echo "steelrail-$1"; }
link() { echo "sr-$1"; }
address() { awk -v host="$1" '$2 == host { print $1 }' "$DIR/conf/hosts"; }
in_net() { local host=$1; shift; nsenter --net="/run/netns/$(namespace "$host")" "$@"; }

make_bridge() {
  if ! ip link show "$BRIDGE" >/dev/null 2>&1; then
    if ip -o -4 addr show | grep -F " $NET." >/dev/null; then
      die 1 "the network $NET.0/24 must be free, is in use (ip addr): free it"
    fi
    ip link add "$BRIDGE" type bridge
    ip addr add "$HEAD/24" dev "$BRIDGE"
  fi
  ip link set "$BRIDGE" up
}

# HOST: its slurmd, if it runs, runs in the namespace of that name, not in one that was lost and made anew.
at_home() {
  local pid; pid=$(pid_of "slurmd.$1") || return 0
  [ "/proc/$pid/ns/net" -ef "/run/netns/$(namespace "$1")" ]
}

make_host() { # HOST: namespace and cable; does nothing to a healthy one
  local host=$1 ns; ns=$(namespace "$host")
  if ! in_net "$host" true 2>/dev/null || ! ip link show "$(link "$host")" >/dev/null 2>&1 || ! at_home "$host"; then
    stop "slurmd.$host"
    remove_host "$host"
    ip netns add "$ns"
    ip link add "$(link "$host")" type veth peer name eth0 netns "$ns"
    ip link set "$(link "$host")" master "$BRIDGE"
    in_net "$host" sh -c "ip link set lo up && ip addr add $(address "$host")/24 dev eth0 && ip link set eth0 up"
  fi
  ip link set "$(link "$host")" up
  speed_up "$host"
}

remove_host() {
  local ns; ns=$(namespace "$1")
  kill_all_in "$1"
  ip link del "$(link "$1")" 2>/dev/null || true
  if [ -e "/run/netns/$ns" ]; then ip netns del "$ns"; fi
}

pids_in() { ip netns pids "$(namespace "$1")" 2>/dev/null; } # HOST: the namespace is ours, so they all are

kill_all_in() { # HOST: every process of the host
  local pids end=$((SECONDS + 10))
  while pids=$(pids_in "$1") && [ -n "$pids" ]; do
    # shellcheck disable=SC2086 # a list of pids
    kill -KILL $pids 2>/dev/null || true
    [ "$SECONDS" -lt "$end" ] || die 1 "the processes of $1 must end on SIGKILL, are still there: ps -fp '${pids//$'\n'/ }'"
    sleep 0.05
  done
}

speed_up() { in_net "$1" tc qdisc del dev eth0 root 2>/dev/null || true; }
slow_down() { in_net "$1" tc qdisc replace dev eth0 root tbf rate "$2" burst 64kb latency 50ms; }

# Runs COMMAND as a process of HOST, which has our /etc/slurm whatever the head has: Snakemake strips SLURM_CONF from jobs.
# (`ip netns exec` does not do: it remounts /sys and slurmd then finds no cgroups.)
enter_host() {
  local host=$1; shift
  install -d -m 1777 "$DIR/nodes/$host/fastssd"
  mkdir -p "$ETC"
  # shellcheck disable=SC2016 # expanded by the inner shell
  nsenter --net="/run/netns/$(namespace "$host")" unshare --uts --mount --propagation private sh -ec '
    hostname "$1"; mount --bind "$2" "$3"; mount --bind "$4/hosts" /etc/hosts
    mount --bind "$4" "$5"; mount -t tmpfs -o mode=1777 shm /dev/shm
    shift 5; exec "$@"' sh "$host" "$DIR/nodes/$host/fastssd" "$FASTSSD" "$CONF" "$ETC" "$@" 9>&-
}

make_fastssd() { # the mount point; on the head it stays an empty folder that users cannot write
  [ -d "$FASTSSD" ] || { mkdir -p "$FASTSSD"; touch "$DIR/made-fastssd"; }
}

remove_fastssd() {
  [ ! -e "$DIR/made-fastssd" ] || { rmdir "$FASTSSD" 2>/dev/null || true; rm -f "$DIR/made-fastssd"; }
}
