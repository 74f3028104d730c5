# shellcheck shell=bash
# Munge, MariaDB, slurmdbd, slurmctld and one slurmd a host, none of them by systemd.

ETC=/etc/slurm
CONF=$DIR/conf
LINKED=(slurm.conf gres.conf topology.conf)
# What sed does to the files of conf besides filling in: GPU hosts may claim more cores and memory (MB) than four and 5,000,
# and a requeued job wait longer.
RENDER=(-e "s/CPUs=4 RealMemory=5000/CPUs=${STEELRAIL_DEV_CPUS:-4} RealMemory=${STEELRAIL_DEV_MEMORY:-5000}/"
  -e "s/cred_expire=5/cred_expire=${STEELRAIL_DEV_CRED_EXPIRE:-5}/")

render_conf() {
  local file
  for file in "$DEV"/conf/*; do
    sed "${RENDER[@]}" -e "s|@DIR@|$DIR|g" -e "s|@HEAD@|$HEAD|g" -e "s|@NET@|$NET|g" "$file" >"$CONF/.new"
    chmod 0644 "$CONF/.new"
    case $file in */slurmdbd.conf) chmod 0600 "$CONF/.new" ;; esac
    mv "$CONF/.new" "$CONF/${file##*/}"
  done
  touch "$DIR"/dev/gpu{0..15}
}

check_etc() { # a foreign Slurm's files are never replaced
  if [ "${STEELRAIL_DEV_ETC_SLURM:-yes}" = no ]; then
    [ "$HOST_KIND" = namespaces ] ||
      die 3 "STEELRAIL_DEV_ETC_SLURM must be yes where hosts have no $ETC of their own, is no: Snakemake's jobs would find another Slurm; use a machine that allows namespaces"
    return 0
  fi
  local file
  for file in "${LINKED[@]}"; do
    [ ! -e "$ETC/$file" ] && [ ! -L "$ETC/$file" ] && continue
    [ "$(readlink "$ETC/$file")" = "$CONF/$file" ] ||
      die 1 "$ETC/$file must be absent or ours, is another Slurm's: nothing is submitted to it; set STEELRAIL_DEV_ETC_SLURM=no to run our own beside it (found by SLURM_CONF, $ETC left as it is)"
  done
}

link_etc() {
  [ "${STEELRAIL_DEV_ETC_SLURM:-yes}" = no ] && return 0
  local file; mkdir -p "$ETC"
  for file in "${LINKED[@]}"; do ln -sfn "$CONF/$file" "$ETC/$file"; done
}

unlink_etc() {
  local file
  for file in "${LINKED[@]}"; do
    if [ "$(readlink "$ETC/$file" 2>/dev/null)" = "$CONF/$file" ]; then rm -f "$ETC/$file"; fi
  done
}

start_munge() {
  alive munged && return 0
  [ -s "$DIR/munge/key" ] || (umask 077; head -c 128 /dev/urandom >"$DIR/munge/key")
  rm -f "$DIR/run/munge.socket"
  munged --key-file="$DIR/munge/key" --socket="$DIR/run/munge.socket" --pid-file="$DIR/run/munged.pid" \
    --log-file="$DIR/munge/log" --seed-file="$DIR/munge/seed" 9>&- ||
    die 1 "munged must start, did not: see $DIR/munge/log"
}

sql_socket() { echo "$DIR/mysql/socket"; }
sql_up() { mariadb-admin --no-defaults --socket="$(sql_socket)" ping; }

start_mariadb() { # our own data and socket, no port: a MariaDB of the machine is not touched
  alive mariadbd && return 0
  if [ ! -d "$DIR/mysql/data/mysql" ]; then
    rm -rf "$DIR/mysql/data"
    mariadb-install-db --no-defaults --user=mysql --datadir="$DIR/mysql/data" --auth-root-authentication-method=socket \
      --skip-test-db >"$DIR/log/mariadb-install.out" 2>&1 || die 1 "mariadb-install-db must work, did not: see $DIR/log/mariadb-install.out"
  fi
  spawn mariadbd mariadbd --no-defaults --user=mysql --datadir="$DIR/mysql/data" --socket="$(sql_socket)" \
    --pid-file="$DIR/mysql/mariadbd.pid" --skip-networking --innodb-buffer-pool-size=64M --innodb-log-file-size=16M \
    --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=2 --performance-schema=off
}

# Both daemons get a host name of their own, so that the configuration does not depend on this machine's.
as_head() {
  # shellcheck disable=SC2016 # expanded by the inner shell
  unshare --uts --mount --propagation private sh -ec 'hostname head; mount --bind "$1" /etc/hosts; shift; exec "$@"' \
    sh "$CONF/hosts" "$@" 9>&-
}

start_slurmdbd() {
  alive slurmdbd && return 0
  wait_for 60 sql_up || { log_tail mariadbd.out; die 1 "MariaDB must answer, does not: see $DIR/log/mariadbd.out"; }
  MYSQL_UNIX_PORT=$(sql_socket) SLURM_CONF=$CONF/slurm.conf as_head slurmdbd
}

dbd_up() { sacctmgr --noheader --parsable2 list cluster format=cluster; }

# The cluster must be in the accounts before slurmctld starts, the user only before the first job.
make_accounts() {
  wait_for 60 dbd_up || { log_tail slurmdbd.log; die 1 "slurmdbd must answer, does not: see $DIR/log/slurmdbd.log"; }
  [ -e "$DIR/mysql/accounts-made" ] && return 0
  sacctmgr --immediate --quiet add cluster steelrail-dev >/dev/null || true
  sacctmgr --immediate --quiet add account steelrail cluster=steelrail-dev description=dev organization=dev >/dev/null || true
  sacctmgr --immediate --quiet add user "$DEV_USER" account=steelrail defaultaccount=steelrail >/dev/null || true
  sacctmgr --noheader --parsable2 list assoc user="$DEV_USER" format=account | grep -qx steelrail ||
    die 1 "user $DEV_USER must have the account steelrail, has not (sacctmgr list assoc): see $DIR/log/slurmdbd.log"
  touch "$DIR/mysql/accounts-made"
}

ctld_up() { scontrol ping | grep -F 'is UP'; }

start_slurmctld() {
  alive slurmctld && return 0
  as_head slurmctld -f "$CONF/slurm.conf"
  wait_for 30 ctld_up || { log_tail slurmctld.log; die 1 "slurmctld must answer, does not: see $DIR/log/slurmctld.log"; }
}

start_slurmd() { # HOST
  alive "slurmd.$1" && return 0
  install -d -m 0755 "$DIR/spool/$1"
  enter_host "$1" slurmd -N "$1" -f "$CONF/slurm.conf"
  wait_for 20 alive "slurmd.$1" || { log_tail "slurmd.$1.log"; die 1 "slurmd of $1 must start, did not: see $DIR/log/slurmd.$1.log"; }
}

resume_node() { # HOST: DOWN or DRAIN is lifted; a node that is fine refuses the wish, and that is fine
  scontrol update "NodeName=$1" State=RESUME 2>/dev/null || true
}

spare_up() { start_slurmd "$SPARE"; resume_node "$SPARE"; nodes_ready "$SPARE"; }

spare_down() {
  scontrol update "NodeName=$SPARE" State=DOWN Reason=spare
  stop "slurmd.$SPARE"
  kill_all_in "$SPARE"
}

node_states() { sinfo --noheader --Node --format='%N %t' | sort -u; }

node_usable() { node_states | grep -Ex "$1 (idle|alloc|mix|comp)"; }

# A node that Slurm gave up is looked at again only when its slurmd registers, as it would after a reboot.
register() { local pid; pid=$(pid_of "slurmd.$1") && kill -HUP "$pid"; }

nodes_ready() { # HOST...
  local host
  for host; do
    node_usable "$host" >/dev/null && continue
    wait_for 2 node_usable "$host" || register "$host"
    wait_for 15 node_usable "$host" || {
      resume_node "$host"
      wait_for 15 node_usable "$host" || die 1 "$host must be idle or in use, is $(node_states | grep "^$host "): see $DIR/log/slurmd.$host.log"
    }
  done
}

cancel_all_jobs() {
  local jobs
  jobs=$(timeout 10 squeue --noheader --format=%A | sort -u) || return 0
  # shellcheck disable=SC2086 # a list of job ids
  [ -z "$jobs" ] || timeout 20 scancel $jobs || true
}
