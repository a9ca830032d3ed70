#!/usr/bin/env bash
# Installs what is missing, builds the tests and runs them all. Arguments go to ctest, e.g. ./test.sh -R Safetensors
set -euo pipefail
# shellcheck source=tests/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/tests/setup.sh"

install_packages "${build_packages[@]}" "${run_packages[@]}" "${test_packages[@]}"
build test build

say "Testing"
ctest --preset test --parallel "$(nproc)" "$@"
