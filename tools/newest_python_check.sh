#!/usr/bin/env bash
# Runs a short TFF training on the newest installed Python, if newer than .venv.
#
#   bash tools/newest_python_check.sh
#
# Searches PATH and pyenv's versions, and installs the lock into
# build/venv-newest. If there is no newer Python, it says so and succeeds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "newest_python_check: $*"; }

version_of() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null
}

tested=$(version_of .venv/bin/python)
newest=
for version in 3.13 3.12 3.11; do
  [[ $version != "$tested" ]] || break  # The others are older.
  for candidate in "python$version" \
    "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
    if [[ $(version_of "$candidate") == "$version" ]]; then
      newest=$candidate
      break 2
    fi
  done
done
if [[ -z $newest ]]; then
  say "no Python newer than $tested is installed: nothing to check"
  exit 0
fi

mkdir -p build
PYTHON=$newest sh tools/setup_env.sh build/venv-newest
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
build/venv-newest/bin/python -m scripts.prepare_users \
  --output_dir="$folder/data" --synthetic_users=60 --max_sentences=32 \
  --num_public_users=4 --vocabulary_size=1000 > /dev/null
build/venv-newest/bin/python -m scripts.train \
  --flagfile=scripts/presets/tiny.flags --engine=tff --method=pda --seed=0 \
  --data_dir="$folder/data" --output_dir="$folder/run" > /dev/null
[[ -s $folder/run/result.json ]]
say "a TFF run with Python $(version_of build/venv-newest/bin/python): ok"
