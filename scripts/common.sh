# Shared by quickstart and test: what is needed, and a quiet build.
packages=(g++ cmake ninja-build libboost-dev libboost-graph-dev libeigen3-dev libcli11-dev nlohmann-json3-dev catch2 libbenchmark-dev)

install_packages() {
  local missing=()
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local sudo=""
  [ "$(id -u)" -eq 0 ] || sudo=sudo
  mkdir -p build
  { $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >build/packages.log 2>&1 ||
    { tail -n 20 build/packages.log; echo "error: could not install: ${missing[*]}" >&2; exit 1; }
}

# Builds the named targets, or all.
build_release() {
  install_packages
  mkdir -p build
  { cmake --preset release && cmake --build --preset release ${1:+--target "$@"}; } >build/build.log 2>&1 ||
    { grep -E 'error|FAILED' build/build.log | head -n 20; tail -n 5 build/build.log; exit 1; }
}
