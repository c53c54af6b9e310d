#!/bin/sh
# What both recipes do inside the image: `install.sh packages FILE`, then `install.sh package FOLDER`.
set -eu
environment=/opt/arcnb
pip="$environment/bin/python -m pip install --no-cache-dir --no-deps"
case $1 in
packages)
    # For vLLM and torch: a compiler and the libraries of its loops.
    apt-get update
    apt-get install -y --no-install-recommends g++ libgomp1 libnuma1
    rm -rf /var/lib/apt/lists/*
    python3 -m venv "$environment"
    $pip -r "$2" # complete, hence --no-deps
    ;;
package)
    $pip --no-build-isolation "$2"
    rm -rf "$2"
    ;;
esac
