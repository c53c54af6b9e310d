#!/bin/sh
# What both recipes do inside the image: `install.sh packages FILE`, then `install.sh package FOLDER`.
set -eu
environment=/opt/arcnb
pip="$environment/bin/python -m pip install --no-cache-dir --no-deps"
case $1 in
packages)
    # For vLLM, Triton and torch: a compiler, the headers of a Python without them, and the libraries of loops.
    headers=$(python3 -c 'import os, sysconfig
if not os.path.exists(sysconfig.get_path("include", "posix_prefix") + "/Python.h"): print("python3-dev")')
    apt-get update
    apt-get install -y --no-install-recommends g++ libgomp1 libnuma1 $headers
    rm -rf /var/lib/apt/lists/*
    python3 -m venv "$environment"
    $pip -r "$2" # complete, hence --no-deps
    ;;
package)
    $pip --no-build-isolation "$2"
    rm -rf "$2"
    ;;
esac
