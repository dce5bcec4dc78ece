#!/bin/sh
# Makes the virtual environment that every make target uses.
#
#   sh tools/setup_env.sh .venv
#
# Finds Python 3.11, creates the environment and installs requirements.txt with
# its hashes; on aarch64 without the one package that has no wheel there, and
# with requirements-aarch64.txt. A stamp, written last, holds the checksum of
# what is installed: an environment without it is half-made and is made anew; one
# with another checksum belongs to another lock and is made anew too. When the
# stamp fits, this takes no time.
set -eu

venv=${1:?usage: setup_env.sh VENV}
stamp=$venv/.installed-lock
log=$venv-install.log

say() { printf '%s\n' "pda_fed: $*"; }
fail() { printf '%s\n' "pda_fed: error: $*" >&2; exit 1; }

platform=$(uname -sm)
case $platform in
  'Linux x86_64') locks=requirements.txt left_out= ;;
  'Linux aarch64')
    locks='requirements.txt requirements-aarch64.txt'
    left_out=tensorflow-federated ;;
  *) fail "this is $platform; the lock has wheels for Linux x86_64 and, but for" \
    "tensorflow-federated, for Linux aarch64." ;;
esac
for lock in $locks; do
  [ -f "$lock" ] ||
    fail "$lock is not here: run this in the root of a whole clone."
done

# Prints the lock: an entry is a line NAME==VERSION and the indented ones below.
print_lock() {
  awk -v "left_out=$left_out==" \
    '/^[^ ]/ { skip = index($0, left_out) == 1 } !skip' $locks
}
checksum=$(print_lock | sha256sum | cut -d ' ' -f 1)
up_to_date() {
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$checksum" ] &&
    "$venv/bin/python" -c '' 2>/dev/null
}
up_to_date && exit 0

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
[ -z "$left_out" ] ||
  say "$left_out has no wheels for aarch64: --engine=tff and its tests are left out."
rm -rf "$venv"
: > "$log"
"$python" -m venv "$venv" >> "$log" 2>&1 ||
  fail "could not create $venv: $(tail -n 1 "$log") (all of it: $log)"
print_lock > "$venv/lock.txt"
"$venv/bin/python" -m pip install --no-deps --only-binary :all: \
  --require-hashes --disable-pip-version-check --no-input \
  -r "$venv/lock.txt" >> "$log" 2>&1 ||
  fail "could not install the lock: $(grep -i error "$log" | tail -n 1)." \
    "Check the network and the disk's free space, then run the same command" \
    "again (all of it: $log)"
printf '%s\n' "$checksum" > "$stamp"
rm -f "$log"
say "$venv is ready."
