#!/bin/sh
# Builds a page of one's own in examples/page/site. Usage: sh examples/page/build.sh [MODEL]
set -eu
cd "$(dirname "$0")"
weft=../../.venv/bin/weft
[ -x "$weft" ] || weft=weft
"$weft" export web "$@" -o site/model
cp index.html page.css page.js site/
echo "look at it: weft serve-page $(pwd)/site"
