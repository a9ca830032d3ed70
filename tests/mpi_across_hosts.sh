#!/usr/bin/env bash
# Two hosts on this machine: network namespaces joined by a veth pair, with host names of their own, one rank in each, TCP between
# them. The bits are those of one process; a cable that is pulled stops the job within a minute, and the run goes on from its last
# checkpoint. Needs root, iproute2 and mpirun; exits with 77 (skipped) and says why where one of them is missing or not allowed.
#   tests/mpi_across_hosts.sh build/sextant
set -euo pipefail
program=$(realpath "$1")
here=sextant-a-$$ there=sextant-b-$$
address_here=10.231.77.1 address_there=10.231.77.2
folder=$(mktemp -d)

skip() {
  echo "skipped: $*"
  exit 77
}
fail() {
  echo "failed: $*" >&2
  exit 1
}
clean() {
  ip netns del "$here" 2>/dev/null || true
  ip netns del "$there" 2>/dev/null || true
  rm -rf "$folder"
}
trap clean EXIT

((EUID == 0)) || skip "not root"
command -v ip >/dev/null || skip "iproute2 is not installed"
command -v mpirun >/dev/null || skip "mpirun is not installed"
ldd "$(dirname "$program")"/libsextant.so 2>/dev/null | grep -q libmpi || skip "built without MPI"
ip netns add "$here" 2>/dev/null || skip "network namespaces are not allowed here"
ip netns add "$there"
ip link add veth-a netns "$here" type veth peer name veth-b netns "$there" 2>/dev/null || skip "veth pairs are not allowed here"
ip -n "$here" addr add "$address_here/24" dev veth-a
ip -n "$there" addr add "$address_there/24" dev veth-b
for name in "$here" "$there"; do ip -n "$name" link set lo up; done
ip -n "$here" link set veth-a up
ip -n "$there" link set veth-b up

# What mpirun calls in the place of ssh: AGENT HOST COMMAND...
cat >"$folder/agent" <<EOF
#!/bin/sh
shift
exec ip netns exec $there unshare --uts sh -c "hostname host-b; \$*"
EOF
chmod +x "$folder/agent"
across() {
  ip netns exec "$here" unshare --uts sh -c 'hostname host-a; exec "$@"' sh \
    mpirun --allow-run-as-root --host "$address_here:1,$address_there:1" -np 2 --mca plm_rsh_agent "$folder/agent" \
    --mca btl tcp,self --mca btl_tcp_if_include 10.231.77.0/24 --mca oob_tcp_if_include 10.231.77.0/24 \
    --mca oob_tcp_keepalive_time 5 --mca oob_tcp_keepalive_intvl 2 --mca oob_tcp_keepalive_probes 5 \
    "$program" "$@"
}

model=(--data canon --layers 2 --width 32 --heads 2 --context 64 --batch 4 --threads 1 --position "rope+affine" --quiet)
"$program" train "${model[@]}" --steps 40 --out "$folder/alone"
across train "${model[@]}" --steps 40 --out "$folder/across"
cmp "$folder/alone/checkpoint.safetensors" "$folder/across/checkpoint.safetensors" || fail "two hosts gave other bits than one process"
echo "two hosts gave the bits of one process"

"$program" train "${model[@]}" --steps 3000 --out "$folder/whole" &
whole=$!
across train "${model[@]}" --steps 3000 --save-every 20 --out "$folder/cut" >"$folder/log" 2>&1 &
job=$!
for _ in $(seq 600); do
  [[ $(wc -l <"$folder/cut/metrics.csv" 2>/dev/null || echo 0) -lt 60 ]] || break
  sleep 0.1
done
ip -n "$here" link set veth-a down
SECONDS=0
while kill -0 "$job" 2>/dev/null; do
  ((SECONDS < 60)) || { kill -9 "$job"; fail "60 seconds after the cable was pulled the job still ran"; }
  sleep 0.5
done
wait "$job" && fail "the job ended well though the cable was pulled"
echo "the job ended $SECONDS seconds after the cable was pulled"
wait "$whole"
"$program" train --resume "$folder/cut" --quiet
cmp "$folder/whole/checkpoint.safetensors" "$folder/cut/checkpoint.safetensors" || fail "the resumed run has other bits"
echo "the resumed run has the bits of an undisturbed one"
