#!/bin/sh
# Resolves requirements.in + overrides.txt into the hash-pinned requirements.txt,
# and requirements-aarch64.in into requirements-aarch64.txt.
#
#   sh tools/lock.sh [--upgrade]
#
# Without --upgrade, pins that still fit stay as they are. Any Python 3 will do:
# the lock's own Python version is given to the resolver.
#
# uv is used for its --override (pip has none); it lives in a throw-away
# environment, since nothing else needs it. Wheels only: an install must not
# depend on a compiler or on unpinned build dependencies.
set -eu

uv_version=0.13.7
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT

"${PYTHON:-python3}" -m venv "$tools/uv"
"$tools/uv/bin/python" -m pip install --quiet --disable-pip-version-check \
  "uv==$uv_version"
compile() {
  "$tools/uv/bin/uv" pip compile --quiet \
    --python-version 3.11 --generate-hashes --only-binary :all: \
    --no-emit-index-url --custom-compile-command 'make lock' "$@"
}
compile --python-platform x86_64-manylinux_2_31 --override overrides.txt \
  --output-file requirements.txt requirements.in "$@"
# --no-deps: what it needs is in requirements.txt, in versions that TFF takes.
compile --python-platform aarch64-manylinux_2_31 --no-deps \
  --output-file requirements-aarch64.txt requirements-aarch64.in "$@"
printf '%s\n' "pda_fed: requirements*.txt written; make setup installs them."
