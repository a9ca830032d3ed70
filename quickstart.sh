#!/usr/bin/env bash
# From a bare Debian or Ubuntu to a trained model and a report about it, in under five minutes: installs what is missing, builds,
# trains on the embedded corpus, evaluates at longer contexts than it was trained on. Safe to run again.
set -euo pipefail
# shellcheck source=tests/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/tests/setup.sh"

run=runs/quickstart
position='rope+affine'

install_packages "${build_packages[@]}" "${run_packages[@]}"
build release build --target sextant_program

[[ ! -f $run/manifest.json ]] || rm -r "$run" # of an earlier quickstart
say "Training a small Transformer on generated two-voice counterpoint (position: $position, context 256)"
build/sextant train --data canon --position "$position" --layers 3 --width 64 --heads 4 --context 256 --batch 16 --steps 300 --out "$run"

say "Evaluating it at up to 16 times that context"
build/sextant eval "$run" --lengths 256,512,1024,2048,4096 --windows 8

build/sextant report "$run"
say "Done. The report: $source_dir/$run/report.html"
echo "Next: build/sextant --help, or build/sextant experiment list"
