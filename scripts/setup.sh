#!/usr/bin/env bash
# Installs what Steelrail needs on a Debian 12 machine: packages, and a virtual environment in .venv. Run it as often as you like.
#   scripts/setup.sh [--with ceph] [--with chromium] [--without cluster]
# Settings: STEELRAIL_DEV_DIR (folder of the dev cluster, default /var/lib/steelrail-dev).
set -euo pipefail
umask 022
PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
DIR=${STEELRAIL_DEV_DIR:-/var/lib/steelrail-dev}
PYTHON=/usr/bin/python3
# Slurm of several hosts (slurm/dev) and what its script calls. curl and ca-certificates are for its S3 server's probe.
PACKAGES=(python3-venv slurm-wlm slurmdbd munge mariadb-server iproute2 procps util-linux curl make git)
CEPH=(ceph-mon ceph-osd radosgw ceph-common)
CHROMIUM=(chromium chromium-driver fonts-dejavu-core)

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

read_arguments() {
  while [ $# -gt 0 ]; do
    case "$1 ${2:-}" in
      "--with ceph") PACKAGES+=("${CEPH[@]}") ;;
      "--with chromium") PACKAGES+=("${CHROMIUM[@]}") ;;
      "--without cluster") PACKAGES=(python3-venv) ;; # enough for processes of this host
      *) die "arguments must be '--with ceph', '--with chromium' or '--without cluster', are '$*'" ;;
    esac
    shift 2
  done
}

missing_packages() {
  local package
  for package in "${PACKAGES[@]}"; do
    [ -e "/var/lib/dpkg/info/$package.list" ] || [ -e "/var/lib/dpkg/info/$package:$(dpkg --print-architecture).list" ] || echo "$package"
  done
}

install_packages() {
  local -a missing; mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || die "packages ${missing[*]} must be installed, are missing (dpkg -l): run as root 'apt-get install ${missing[*]}', or this script as root"
  say "installs ${missing[*]}"
  local policy=; policy=$(forbid_services)
  export DEBIAN_FRONTEND=noninteractive
  local ok=yes
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; } || ok=no
  [ -z "$policy" ] || rm -f "$policy"
  [ $ok = yes ] || die "apt-get must install ${missing[*]}, did not (see above): check the machine's package sources"
}

# The dev cluster starts its own daemons; a fresh package must not start one of its own. Prints the file to remove again.
forbid_services() {
  local policy=/usr/sbin/policy-rc.d
  [ -e "$policy" ] && return 0
  printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && echo "$policy"
}

# Jobs run as an ordinary user: may he reach the project's folder?
reachable() {
  local folder=$PROJECT
  while [ "$folder" != / ]; do
    [ $((8#$(stat -c %a "$folder") & 1)) = 1 ] || return 1
    folder=$(dirname "$folder")
  done
}

venv_folder() {
  if reachable || [ "$(id -u)" != 0 ]; then echo "$PROJECT/.venv"; else echo "$DIR/venv-$(printf %s "$PROJECT" | sha256sum | cut -c1-12)"; fi
}

# An editable install needs no repeat when the source changes; a copy, for the user who cannot reach the source, does.
wanted_stamp() {
  { cat pyproject.toml constraints.txt "scripts/setup.sh"
    reachable || find src -type f -name '*.py*' -not -path '*/__pycache__/*' -print0 | sort -z | xargs -0 cat
  } | sha256sum | cut -d' ' -f1
}

link_venv() { # VENV: .venv leads to it
  [ "$1" != "$PROJECT/.venv" ] || { [ ! -L .venv ] || rm .venv; return 0; }
  [ ! -d .venv ] || [ -L .venv ] || rm -rf .venv
  ln -sfn "$1" .venv
}

# The second pip's packages: tests read their tokenizer files only; what they depend on is not wanted.
fill_venv() { # VENV (steps joined by &&, since bash has no 'set -e' in a function called with ||)
  local -a project=(-e '.[dev]') pip=("$1/bin/pip" --quiet --disable-pip-version-check install --constraint constraints.txt)
  reachable || project=('.[dev]')
  { [ -x "$1/bin/pip" ] || "$PYTHON" -m venv "$1"; } &&
    "${pip[@]}" "${project[@]}" &&
    "${pip[@]}" --no-deps litellm llama-models
}

make_venv() {
  local venv stamp; venv=$(venv_folder); stamp=$(wanted_stamp)
  link_venv "$venv"
  [ "$(cat "$venv/.steelrail-stamp" 2>/dev/null)" != "$stamp" ] || return 0
  say "fills $venv (minutes at first)"
  mkdir -p "$(dirname "$venv")"
  fill_venv "$venv" || die "pip must fill $venv, did not (see above): mend pyproject.toml or constraints.txt"
  rm -rf build
  echo "$stamp" >"$venv/.steelrail-stamp"
}

main() {
  cd "$PROJECT"
  read_arguments "$@"
  install_packages
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$PYTHON must be 3.11 or newer, is $("$PYTHON" --version)"
  make_venv
}
main "$@"
