#!/usr/bin/env bash
# Install programs that some tests use, on Debian or Ubuntu; what cannot be had is said, no failure.
set -euo pipefail

# A package that starts a server when it is installed must not: the tests start their own.
no_servers() {
  if [ ! -e /usr/sbin/policy-rc.d ] && [ -w /usr/sbin ]; then
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
}

for program in "$@"; do
  if ! command -v "$program" >/dev/null && command -v apt-get >/dev/null; then
    no_servers
    export DEBIAN_FRONTEND=noninteractive
    (apt-get update -qq && apt-get install -y -qq --no-install-recommends "$program") >/dev/null 2>&1 ||
      echo "$program could not be installed: its tests are skipped"
  fi
done
