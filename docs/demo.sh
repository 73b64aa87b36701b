#!/bin/sh
# The main job, twice: the same two policies on the same synthetic workload, first on a real model, then in the simulator.
set -eu
BATCHWRIGHT=${BATCHWRIGHT:-batchwright}
# Threads that spin while they wait make real time collapse on a machine that has other work to do.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
# Where no terminal shows bars, lines say how far it is.
export BATCHWRIGHT_PROGRESS="${BATCHWRIGHT_PROGRESS:-lines}"
A=prefill_first
B=stall_free:chunk_size=64

echo "== SmolLM2-135M on this machine's CPU, in real time =="
echo "48 requests under $A, then the same under stall_free: about a minute in all" >&2
$BATCHWRIGHT ab $A $B --backend cpu:smollm2-135m \
  --workload "synthetic:rate=4,n=48,prompt=uniform(64,256),output=uniform(16,32),prefix=32,prefixes=2,seed=1" \
  --set max_num_batched_tokens=128 --set max_num_seqs=16

echo
echo "== Llama-3.1-8B on one H100, simulated =="
echo "1,000 requests under each: some seconds" >&2
$BATCHWRIGHT ab $A stall_free:chunk_size=512 --backend sim:llama-3.1-8b@h100 \
  --workload "synthetic:rate=12,n=1000,prompt=lognormal(1024,0.8),output=uniform(64,256),seed=1" \
  --set max_num_batched_tokens=2048
