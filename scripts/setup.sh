# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts/run and scripts/test: installs what is missing and builds what is stale.

lockstep_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# lockstep_install [tests]: installs the packages of scripts/packages that are not there, with those
# for tests alone only if asked to; quick when none is missing.
lockstep_install() {
  local wanted missing=() name until='/^# For tests alone/,$d'
  [ "${1:-}" = tests ] && until=''
  mapfile -t wanted < <(sed "$until" "$lockstep_root/scripts/packages" | grep -v '^#')
  local installed
  # dpkg-query fails where one of them was never heard of; what it prints is right all the same.
  installed=$({ dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null ||
    true; } | sed -n 's/^installed //p')
  for name in "${wanted[@]}"; do
    grep -qx -- "$name" <<<"$installed" || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "lockstep: these packages are missing and installing them needs root or sudo:" >&2
      echo "  ${missing[*]}" >&2
      return 2
    }
    as_root=(sudo)
  fi
  echo "lockstep: installing ${missing[*]}" >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q >&2 &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y \
      --no-install-recommends "${missing[@]}" >&2
}

# lockstep_build TARGET...: configures once and builds; silent when nothing is stale.
lockstep_build() {
  local build="$lockstep_root/build/release" log
  mkdir -p "$build"
  if [ ! -f "$build/build.ninja" ]; then
    echo "lockstep: configuring" >&2
    (cd "$lockstep_root" && cmake --preset release) >"$build/configure.log" 2>&1 || {
      cat "$build/configure.log" >&2
      return 2
    }
  fi
  if [ "$(ninja -C "$build" -n "$@" 2>/dev/null | tail -n 1)" != "ninja: no work to do." ]; then
    echo "lockstep: building (some minutes the first time)" >&2
    ninja -C "$build" "$@" >&2 || return 2
  fi
}

# One thread per rank; the simulator's ranks share a core.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
