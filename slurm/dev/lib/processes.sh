# shellcheck shell=bash
# Messages, secrets, and processes that a script starts, knows again and ends.
# Its one setting is DIR, the script's folder: pid files are in DIR/run, what processes say in DIR/log. Ours is what names DIR.

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }
die() { local rc=$1; shift; say "$*"; exit "$rc"; }

random_hex() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; } # BYTES

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
not_running() { ! alive "$1"; }

spawn() { # NAME COMMAND...: in the background, in a session of its own, without our lock
  local name=$1; shift
  setsid "$@" </dev/null >"$DIR/log/$name.out" 2>&1 9>&- &
  echo $! >"$DIR/run/$name.pid"
}

stop() { # NAME [SECONDS [SIGNAL]]: TERM or another signal, then KILL; returns when it is gone
  local pid
  pid=$(pid_of "$1") || { rm -f "$DIR/run/$1.pid"; return 0; }
  # A stopped process takes TERM only once it is continued.
  kill "-${3:-TERM}" "$pid" 2>/dev/null || true
  kill -CONT "$pid" 2>/dev/null || true
  wait_for "${2:-10}" not_running "$1" || kill -KILL "$pid" 2>/dev/null || true
  wait_for 5 not_running "$1" || die 1 "$1 (pid $pid) must end on SIGKILL, is still there: look at /proc/$pid"
  rm -f "$DIR/run/$1.pid"
}
