#!/bin/sh
# Resolves requirements.in + overrides.txt into the hash-pinned requirements.txt,
# docs/requirements.in into docs/requirements.txt, and JAX's plugins for CUDA,
# beside the lock, into deploy/cuda12.txt and deploy/cuda13.txt.
#
#   sh tools/lock.sh [--upgrade]
#
# Without --upgrade, pins that still fit are kept. Any Python 3 will do: the
# resolver gets the Python versions of the lock.
#
# uv is used for --universal and --override, which pip lacks. It is installed
# into a temporary environment, since nothing else needs it. Only wheels are
# used: an install must not depend on a compiler or on unpinned build
# dependencies.
set -eu

uv_version=0.13.7
line='# ---- Installed without regard to their metadata ----'
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"${PYTHON:-python3}" -m venv "$folder/uv"
"$folder/uv/bin/python" -m pip install --quiet --disable-pip-version-check \
  "uv==$uv_version"
compile() {
  (cd "$folder" && uv/bin/uv pip compile --quiet --only-binary :all: "$@")
}

# Files of the sections, with the names that the lock's comments should show.
for file in requirements.in requirements.txt; do
  sed "/^$line/,\$d" "$file" > "$folder/$file"
done
mkdir "$folder/second"
sed "1,/^$line/d" requirements.in > "$folder/second/requirements.in"
cp overrides.txt "$folder"
mkdir "$folder/docs"
cp docs/requirements.* "$folder/docs"
cp deploy/cuda1?.txt "$folder"

set -- --generate-hashes --no-emit-index-url \
  --custom-compile-command 'make lock' "$@"
compile --universal --python-version 3.11 --override overrides.txt \
  --output-file requirements.txt requirements.in "$@"
# The only wheel of tensorflow-federated is for this system.
compile --no-deps --python-version 3.11 \
  --python-platform x86_64-manylinux_2_31 --no-header --no-annotate \
  --output-file second/requirements.txt second/requirements.in "$@"
# What the site is built with, apart from everything else.
compile --universal --python-version 3.11 \
  --output-file docs/requirements.txt docs/requirements.in "$@"

# What a GPU needs beside the lock, in versions that fit it.
locked=$(sed -n 's/^\([A-Za-z0-9._-]*\)==.*/--no-emit-package \1/p' \
  "$folder/requirements.txt" | sort -u)
for name in cuda12 cuda13; do
  echo "jax[$name]" > "$folder/$name.in"
  # shellcheck disable=SC2086 # Many arguments.
  compile --universal --python-version 3.11 --constraint requirements.txt \
    --no-annotate $locked --output-file "$name.txt" "$name.in" "$@"
done

for version in 3.11 3.12 3.13; do
  for platform in x86_64-manylinux_2_28 aarch64-manylinux_2_28 \
    aarch64-apple-darwin; do
    number=$(compile --python-version "$version" \
      --python-platform "$platform" --override overrides.txt --no-header \
      --no-annotate requirements.txt | grep -c ==)
    printf '%s\n' "pda_fed: Python $version on $platform: $number wheels."
  done
done
{
  cat "$folder/requirements.txt"
  printf '\n%s\n' "$line"
  cat "$folder/second/requirements.txt"
} > requirements.txt
cp "$folder/docs/requirements.txt" docs
cp "$folder"/cuda1?.txt deploy
printf '%s\n' "pda_fed: requirements.txt written; make setup installs it. \
docs/requirements.txt written; make site installs it. \
deploy/cuda12.txt and deploy/cuda13.txt written; deploy/Dockerfile installs one."
