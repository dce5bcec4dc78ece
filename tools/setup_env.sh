#!/bin/sh
# Finds a Python for tools/install_lock.py, which creates the environment.
#
#   sh tools/setup_env.sh .venv
#
# If $PYTHON is set, no other Python is tried. An environment that is up to date
# is kept, whichever other Pythons are installed.
set -eu

venv=${1:?usage: setup_env.sh VENV}
install_lock=$(dirname "$0")/install_lock.py

if [ -n "${PYTHON:-}" ]; then
  set -- "$PYTHON"
else
  "$venv/bin/python" "$install_lock" --check "$venv" 2>/dev/null && exit 0
  set -- python3 python3.13 python3.12 python3.11 python
fi

found=
for candidate in "$@"; do
  # pyenv's commands for inactive versions fail.
  version=$("$candidate" -c '
import platform
print(platform.python_implementation() + " " + platform.python_version())
' 2>/dev/null) || continue
  found="$found $candidate ($version)"
  case $version in
    'CPython 3.11.'* | 'CPython 3.12.'* | 'CPython 3.13.'*) ;;
    *) continue ;;
  esac
  "$candidate" -c 'import ensurepip, venv' 2>/dev/null &&
    exec "$candidate" "$install_lock" "$venv"
  found="$found without the venv module"
done
printf '%s\n' "pda_fed: error: CPython 3.11, 3.12 or 3.13 with the venv module \
is needed (found:${found:- none}). Install it (Debian, Ubuntu: apt install \
python3-venv; anywhere: pyenv or conda), or name one: \
PYTHON=/path/to/python3.13 make ..." >&2
exit 1
