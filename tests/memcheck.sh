#!/usr/bin/env bash
# Valgrind's memcheck over a short training, evaluation and sampling: no invalid access, no use of uninitialised memory, no definite
# leak. Exits with 77 (skipped) where valgrind is missing. Takes some minutes.
#   tests/memcheck.sh build/sextant
set -euo pipefail
program=$(realpath "$1")
command -v valgrind >/dev/null || { echo "skipped: valgrind is not installed"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Valgrind knows no AVX-512, hence the AVX2 kernels, and no OpenBLAS, whose kernels are tried in child processes.
export SEXTANT_ISA=avx2 GOMP_SPINCOUNT=0
check() {
  valgrind --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite --show-leak-kinds=definite \
    --suppressions="$(dirname "${BASH_SOURCE[0]}")/valgrind.supp" --trace-children=no "$program" "$@" --threads 2 --quiet
}
check train --data canon --layers 2 --width 32 --heads 2 --context 48 --batch 4 --accumulate 2 --steps 3 --save-every 1 \
  --position "pj-bias+rope+gate" --out "$folder/run"
check train --resume "$folder/run"
check eval "$folder/run" --lengths 48,200 --windows 1
check sample "$folder/run" --tokens 20 >/dev/null
echo "memcheck found nothing"
