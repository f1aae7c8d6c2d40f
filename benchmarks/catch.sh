#!/bin/sh
# Catch at five reward scales as one multi-task run, with PopArt and without: catch.sh DIRECTORY [SEED]
set -e
cd "$(dirname "$0")/.."
tasks=benchmarks.catch:Scale0001,benchmarks.catch:Scale003,benchmarks.catch:Scale1,benchmarks.catch:Scale30
tasks=$tasks,benchmarks.catch:Scale1000
for rate in 1e-3 0; do
    vmpo train cartpole --env "$tasks" --directory "$1/popart-rate-$rate" --seed "${2:-0}" --frames 450000 \
        --actors.num-envs 40 --learner.batch-size 10 --env.stagger False --loss.popart-rate "$rate"
done
