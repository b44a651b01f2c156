#!/bin/sh
# Start two workers of a new build, give them all work, and stop those of the old build: ./roll-out.sh BUILD
set -eu
cd "$(dirname "$0")"
old=$(cat workers.pid 2> /dev/null || true)
waystation worker check
waystation replay --open
for _ in 1 2; do
    waystation worker --deployment-version "backoffice.$1" >&2 &
    echo $!
done > workers.pid
until temporal worker deployment set-current-version --deployment-name backoffice --build-id "$1" --yes; do sleep 1; done
for worker in $old; do kill "$worker"; done
