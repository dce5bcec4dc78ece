#!/usr/bin/env bash
# Builds everything with Bazel, runs one script and a few tests.
#
#   bash tools/bazel_check.sh
#
# If Bazel is missing, root on Debian installs Debian's Bazel; after that no
# network is needed. A Bazel 6 or 7 on PATH is used. Prints one line per step,
# and the output of a step only if it fails. Leaves no process behind.
set -euo pipefail
set -m  # A step is a process group, so that all of it can be killed.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

script=(//scripts:train -- --flagfile=scripts/presets/tiny.flags
  --method=cold --seed=0)
tests=(
  //tests:schedules_test
  //tests/data_prep:partition_test
  //tests/tff:aggregators_test
  //tests/linear_regression:quadratic_test
  //tests/privacy:plan_test
)
packages=(bazel-bootstrap bazel-rules-java bazel-rules-proto)
rules=/usr/share/bazel/rules  # Where the latter two are installed.

say() { printf '%s\n' "bazel_check: $*"; }
fail() { printf '%s\n' "bazel_check: error: $*" >&2; exit 1; }

log=$(mktemp)
child=
server=no
finish() {
  if [[ -n $child ]]; then  # Interrupted during a step.
    kill -- "-$child" 2> /dev/null || true
    wait "$child" || true
  fi
  # Otherwise the server would keep running for three hours.
  [[ $server == no ]] || bazel shutdown > "$log" 2>&1 || cat "$log" >&2
  rm -f "$log"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# step WHAT COMMAND...: runs the command, and prints the result.
step() {
  local what=$1 start=$SECONDS
  shift
  "$@" > "$log" 2>&1 < /dev/null &  # Signals only interrupt `wait`.
  child=$!
  if ! wait "$child"; then
    child=
    tail -n 100 "$log" >&2
    fail "failed to $what"
  fi
  child=
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
  local folder run
  folder=$(mktemp -d)
  python -m scripts.prepare_users --output_dir="$folder/data" \
    --synthetic_users=60 --max_sentences=32 --num_public_users=4 \
    --vocabulary_size=1000 || return
  run=(--data_dir="$folder/data" --output_dir="$folder/run")
  bazel run "${options[@]}" "${script[@]}" "${run[@]}" > "$folder/bazel" &&
    rm -r "$folder/run" &&
    python -m "scripts.${script[0]#*:}" "${script[@]:2}" "${run[@]}" \
      > "$folder/python" &&
    [[ -s $folder/python ]] &&
    diff "$folder/bazel" "$folder/python" &&
    rm -r "$folder"
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

server=yes
step "build //..." bazel build "${options[@]}" //...
step "run ${script[*]} as Python runs it" same_output
step "test ${#tests[@]} targets" \
  bazel test "${options[@]}" --nocache_test_results "${tests[@]}"
