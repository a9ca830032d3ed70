# What quickstart.sh, test.sh and .ci/run share: installing what is missing, and building. To be sourced, from any folder.
# shellcheck shell=bash disable=SC2034

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$source_dir" || exit

# Debian's and Ubuntu's names. libopenblas0 alone, not its -dev: the program loads it when it starts.
build_packages=(g++ cmake ninja-build ccache libfmt-dev nlohmann-json3-dev libcxxopts-dev zlib1g-dev)
run_packages=(libopenblas0 gnuplot-nox curl ca-certificates)
test_packages=(libgtest-dev libbenchmark-dev python3 libopenmpi-dev openmpi-bin iproute2)
fuzz_packages=(clang libomp-dev)

say() { printf '\n== %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 3
}

# quietly LOG COMMAND...: its output goes to LOG, and is shown only when it fails.
quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  if ! "$@" >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    die "failed: $* (all of its output is in $log)"
  fi
}

missing_packages() {
  local package
  for package in "$@"; do
    # Not `dpkg -s`: it also succeeds for a package that was removed and left its configuration.
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || printf '%s\n' "$package"
  done
}

# install_packages NAME...: those that are missing, by apt. SEXTANT_SKIP_SETUP=1 trusts that everything is there.
install_packages() {
  [[ ${SEXTANT_SKIP_SETUP:-0} != 1 ]] || return 0
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    die "this machine has no apt. Install what these Debian packages hold: $*; then run again with SEXTANT_SKIP_SETUP=1"
  fi
  local missing=() as_root=()
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} > 0)) || return 0
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "not root and no sudo. Run as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "Installing ${missing[*]}"
  as_root+=(env DEBIAN_FRONTEND=noninteractive apt-get -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120)
  local log
  log=$(mktemp "${TMPDIR:-/tmp}/sextant-apt.XXXXXX")
  quietly "$log" "${as_root[@]}" update
  quietly "$log" "${as_root[@]}" install --no-install-recommends "${missing[@]}"
  rm -f "$log"
}

# The name of the package with clang's sanitizers, which carries its version; nothing where the compiler's own package holds them.
clang_runtime_package() {
  local package
  package=libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev
  ! apt-cache show "$package" >/dev/null 2>&1 || echo "$package"
}

# build PRESET FOLDER [CMAKE_BUILD_ARGUMENT...]: configures by CMakePresets.json and builds into FOLDER.
build() {
  local preset=$1 folder=$2
  shift 2
  say "Building ($preset, in $folder)"
  quietly "$folder/configure.log" cmake --preset "$preset"
  if [[ -t 1 ]]; then
    cmake --build "$folder" --parallel "$(nproc)" "$@"
  else
    quietly "$folder/build.log" cmake --build "$folder" --parallel "$(nproc)" "$@"
  fi
}
