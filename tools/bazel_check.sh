#!/usr/bin/env bash
# Builds everything with Bazel, runs one script and a few tests.
#
#   bash tools/bazel_check.sh
#
# If Bazel is missing, root on Debian installs Debian's Bazel; after that no
# network is needed. A Bazel 6 or 7 on PATH is used. Prints one line per step,
# and the output of a step only if it fails. Leaves no server behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

script=(//scripts:train -- --flagfile=scripts/presets/tiny.flags
  --method=cold --seed=0)
tests=(
  //tests:schedules_test
  //tests/data_prep:assignment_test
  //tests/tff:aggregators_test
  //tests/linear_regression:quadratic_test
  //tests/privacy:plan_test
)
packages=(bazel-bootstrap bazel-rules-java bazel-rules-proto)
rules=/usr/share/bazel/rules  # Where the latter two are installed.

say() { printf '%s\n' "bazel_check: $*"; }
fail() { printf '%s\n' "bazel_check: error: $*" >&2; exit 1; }

work=$(mktemp -d)
# Otherwise the server would keep running for three hours.
trap 'bazel shutdown > "$work/log" 2>&1 || true; rm -rf "$work"' EXIT

# step WHAT COMMAND...: runs the command, and prints the result.
step() {
  local what=$1 start=$SECONDS
  shift
  if ! "$@" > "$work/log" 2>&1 < /dev/null; then
    tail -n 100 "$work/log" >&2
    fail "failed to $what"
  fi
  say "$what: ok ($((SECONDS - start)) s)"
}

is_debians() { [[ $(bazel --version 2> /dev/null) == "bazel no_version" ]]; }

is_installed() {
  command -v bazel > /dev/null || return 1
  ! is_debians || [[ -d $rules/java && -d $rules/proto ]]
}

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get -q update &&
    apt-get -q install -y --no-install-recommends "${packages[@]}"
}

# Runs the script with Bazel and with Python. Both must print the same.
same_output() {
  python -m scripts.prepare_users --output_dir="$work/data" \
    --synthetic_users=60 --max_sentences=32 --num_public_users=4 \
    --vocabulary_size=1000 || return
  local run=(--data_dir="$work/data" --output_dir="$work/run")
  bazel run "${options[@]}" "${script[@]}" "${run[@]}" > "$work/bazel" &&
    rm -r "$work/run" &&
    python -m "scripts.${script[0]#*:}" "${script[@]:2}" "${run[@]}" \
      > "$work/python" &&
    [[ -s $work/python ]] &&
    diff "$work/bazel" "$work/python"
}

[[ -x .venv/bin/python3 ]] || fail "there is no .venv: run make test first"
export PATH="$PWD/.venv/bin:$PATH"

if ! is_installed; then
  [[ $EUID == 0 ]] ||
    fail "Bazel is missing: run this as root, or install ${packages[*]}"
  command -v apt-get > /dev/null ||
    fail "Bazel is missing, and so is apt-get: install Bazel 6 or 7"
  step "install ${packages[*]}" install_packages
fi

options=(--noshow_progress)
if is_debians; then
  options+=(--config=debian)
fi

step "build //..." bazel build "${options[@]}" //...
step "run ${script[*]} as Python runs it" same_output
step "test ${#tests[@]} targets" \
  bazel test "${options[@]}" --nocache_test_results "${tests[@]}"
