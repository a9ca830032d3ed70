#!/usr/bin/env bash
# A soak: training, sampling and evaluating, over and over, for as many minutes as asked (120). Resident memory of the training
# process must stay flat (less than 1% growth after the first minutes) and its loss finite.
#   tests/soak.sh build/sextant [MINUTES]
set -euo pipefail
program=$(realpath "$1")
minutes=${2:-120}
folder=$(mktemp -d)
trap 'kill "${training:-}" 2>/dev/null || true; rm -rf "$folder"' EXIT

"$program" train --data canon --position "pj-bias+rope" --steps 100000000 --warmup 50 --eval-every 200 --save-every 100 --keep 3 --quiet \
  --out "$folder/run" &
training=$!
until [[ -f $folder/run/metrics.csv ]] || ! kill -0 "$training" 2>/dev/null; do sleep 0.2; done
resident() { awk '/^VmRSS:/ { print $2 }' "/proc/$training/status"; }
steps() { awk 'NR > 1 { ++count } END { print count + 0 }' "$folder/run/metrics.csv"; }

# Growth counts from when all that comes again has come once, however slow the machine: two validations, and more checkpoints than are kept.
settle=$((minutes >= 20 ? 300 : minutes * 15)) settle_steps=400
start=$SECONDS first=0 most=0 rounds=0
while ((SECONDS - start < minutes * 60)); do
  sleep 10
  kill -0 "$training" 2>/dev/null || { echo "failed: training ended by itself" >&2; exit 1; }
  ((SECONDS - start >= settle && $(steps) > settle_steps)) || continue
  now=$(resident)
  ((first > 0)) || first=$now
  ((now <= most)) || most=$now
  "$program" sample "$folder/run" --tokens 200 --quiet >/dev/null
  "$program" eval "$folder/run" --lengths 256,1024 --windows 2 --quiet --out "$folder/eval.json"
  rounds=$((rounds + 1))
done
kill -TERM "$training"
wait "$training" && status=0 || status=$?
((status == 143)) || { echo "failed: training ended with status $status" >&2; exit 1; }
! grep -qiE 'nan|inf' "$folder/run/metrics.csv" || { echo "failed: a loss is not finite" >&2; exit 1; }
echo "$minutes minutes, $(steps) steps, $rounds rounds of sampling and evaluating; resident memory $first kB, at most $most kB after"
((rounds >= 2)) || { echo "failed: too short to judge growth, which counts from step $settle_steps on; give it more minutes" >&2; exit 1; }
((most * 100 <= first * 101)) || { echo "failed: resident memory grew by more than 1%" >&2; exit 1; }
