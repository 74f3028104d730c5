# shellcheck shell=bash
# In place of what the other files say, where namespaces are refused: one GPU host and the CPU host, both of them this
# machine on its loopback address. No links, no spare, no private disk; /etc/slurm is the machine's own.

# shellcheck disable=SC2034,SC2153 # read, and set before, by the other files
HEAD=127.0.0.1
NODES=(node1)
HOSTS=("${NODES[@]}" cpu1)
SPARE=
FASTSSD=$DIR/nodes/loopback/fastssd
RENDER=(-E -f "$DEV/loopback.sed")
S3_URL=http://$HEAD:$S3_PORT
WEED_SOCKETS=(/tmp/seaweedfs-{master-grpc-18335,volume-grpc-18337,filer-grpc-18339,s3-grpc-18333}.sock)
S3_PORTS=(-master.port=8335 -volume.port=8337 -filer.port=8339) # the usual ones (8080, 8888) are often taken

make_bridge() { :; }
make_host() { :; }
make_fastssd() { install -d -m 1777 "$FASTSSD"; }
as_head() { "$@" 9>&-; }
enter_host() { shift; as_head "$@"; }

remove_host() { # stopped before they are killed: none may start another meanwhile, which would be nobody's
  local pids seen=
  while pids=$(pids_in "$1") && [ "$pids" != "$seen" ]; do
    # shellcheck disable=SC2086 # a list of pids
    kill -STOP $pids 2>/dev/null || true
    seen=$pids
  done
  kill_all_in "$1"
}

# slurmd, and each slurmstepd that has its socket in this host's spool with all that descends from it. Who is whose
# child is read from what everybody may see: the files of other users' processes are closed to such a root.
pids_in() { # HOST
  pid_of "slurmd.$1" || true
  ps -e -o pid=,ppid=,args= | awk -v steps="$(cd "$DIR/spool/$1" 2>/dev/null && ls)" -v host="$1" '
    BEGIN { for (n = split(steps, name, "\n"); n; n--) { split(name[n], part, /[_.]/); if (part[1] == host) ours[part[2]] } }
    { parent[$1] = $2 }
    $3 == "slurmstepd:" { split(substr($4, 2), part, "."); if (part[1] in ours) root[$1] }
    END { for (pid in parent) { for (p = pid; p in parent && !(p in root); p = parent[p]); if (p in root) print pid } }' |
    sort
}
