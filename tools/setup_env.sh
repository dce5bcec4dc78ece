#!/bin/sh
# Makes the virtual environment that every make target uses.
#
#   sh tools/setup_env.sh .venv
#
# Finds Python 3.11, creates the environment and installs requirements.txt with
# its hashes. A stamp, written last, holds the lock's checksum: an environment
# without it is half-made and is made anew; one with another checksum belongs to
# another lock and is made anew too. When the stamp fits, this takes no time.
set -eu

venv=${1:?usage: setup_env.sh VENV}
lock=requirements.txt
stamp=$venv/.installed-lock
log=$venv-install.log

say() { printf '%s\n' "pda_fed: $*"; }
fail() { printf '%s\n' "pda_fed: error: $*" >&2; exit 1; }

[ -f "$lock" ] || fail "$lock is not here: run this in the root of the project."
checksum=$(sha256sum "$lock" | cut -d ' ' -f 1)
up_to_date() {
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$checksum" ] &&
    "$venv/bin/python" -c '' 2>/dev/null
}
up_to_date && exit 0

platform=$(uname -sm)
[ "$platform" = "Linux x86_64" ] ||
  fail "this is $platform; tensorflow-federated has wheels for Linux x86_64 only."
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d ' ' -f 2)
oldest=$(printf '%s\n2.31\n' "${glibc:-0}" | sort -V | head -n 1)
[ "$oldest" = 2.31 ] ||
  fail "glibc 2.31 or newer is needed (found ${glibc:-none}); Debian 11, Ubuntu 20.04 and later have it."

# Sets $python to the first interpreter that is CPython 3.11 with venv and pip.
find_python() {
  python=
  found=
  if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
  else
    set -- python3.11 python3 python
  fi
  for candidate in "$@"; do
    version=$("$candidate" -c '
import sys
print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || continue
    found="$found $candidate ($version)"
    case $version in
      3.11.*) ;;
      *) continue ;;
    esac
    if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
      python=$candidate
      return
    fi
    found="$found without the venv module"
  done
  fail "Python 3.11 with the venv module is needed (found:${found:- none})." \
    "Install it (Debian, Ubuntu: apt install python3.11-venv; anywhere: pyenv" \
    "or conda), or name one: PYTHON=/path/to/python3.11 make ..."
}
find_python

touch "$venv.lock" 2>/dev/null ||
  fail "cannot write $venv.lock: clone the project into a folder that you may write."
# Two makes at once: the second waits for the first instead of tripping over it.
exec 9> "$venv.lock"
flock -n 9 || { say "another make is setting up $venv; waiting for it."; flock 9; }
up_to_date && exit 0

say "setting up $venv with $("$python" -V 2>&1) (about 2.8 GB, a few minutes, once)."
rm -rf "$venv"
: > "$log"
"$python" -m venv "$venv" >> "$log" 2>&1 ||
  fail "could not create $venv: $(tail -n 1 "$log") (all of it: $log)"
"$venv/bin/python" -m pip install --no-deps --only-binary :all: \
  --require-hashes --disable-pip-version-check --no-input \
  -r "$lock" >> "$log" 2>&1 ||
  fail "could not install the lock: $(grep -i error "$log" | tail -n 1)." \
    "Check the network and the disk's free space, then run the same command" \
    "again (all of it: $log)"
printf '%s\n' "$checksum" > "$stamp"
rm -f "$log"
say "$venv is ready."
