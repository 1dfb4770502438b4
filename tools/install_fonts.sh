#!/bin/sh
# Install the fonts that the Han characters of the experiments are drawn with: 300 MB.
set -eu

if ! command -v apt-get > /dev/null; then
  echo "error: apt-get is missing; install the fonts of the Debian packages in this file" >&2
  exit 2
fi
root=""
if [ "$(id -u)" -ne 0 ]; then root=sudo; fi
export DEBIAN_FRONTEND=noninteractive
$root apt-get update -q
$root apt-get install -q -y --no-install-recommends \
  fonts-noto-cjk fonts-noto-cjk-extra fonts-arphic-uming fonts-arphic-ukai fonts-wqy-zenhei \
  fonts-wqy-microhei fonts-hanazono fonts-babelstone-han fonts-droid-fallback
