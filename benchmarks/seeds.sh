#!/usr/bin/env bash
# Train a preset with several seeds, one after another, and print the greedy evaluation of each as one JSON line.
# usage: benchmarks/seeds.sh PRESET DIRECTORY SEED... [-- OPTION...]
set -euo pipefail
PATH="$(dirname "$0")/../.venv/bin:$PATH"
preset=$1 directory=$2
shift 2
seeds=()
while [ $# -gt 0 ] && [ "$1" != "--" ]; do seeds+=("$1"); shift; done
[ "${1:-}" = "--" ] && shift
for seed in "${seeds[@]}"; do
    vmpo train "$preset" --seed "$seed" --directory "$directory/$preset-seed$seed" --quiet --json "$@" | tail -n 1
done
