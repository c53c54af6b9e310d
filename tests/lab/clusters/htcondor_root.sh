#!/usr/bin/env bash
# Makes a folder with a whole HTCondor in it, for tests/lab/clusters/test_htcondor.py: Debian 12 has no server, its
# unstable branch has. Nothing outside the folder changes. Needs root, debootstrap and a Debian mirror; takes
# about two minutes and 700 MB.
#
#   tests/lab/clusters/htcondor_root.sh /tmp/htcondor [MIRROR]
#   ARCNB_HTCONDOR_ROOT=/tmp/htcondor .venv/bin/python -m pytest tests/lab/clusters/test_htcondor.py
set -euo pipefail
root=${1:?usage: htcondor_root.sh FOLDER [MIRROR]}
mirror=${2:-http://deb.debian.org/debian}

[ -x "$root/usr/bin/apt-get" ] || debootstrap --variant=minbase sid "$root" "$mirror"
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"   # no service starts while packages install
chmod 755 "$root/usr/sbin/policy-rc.d"
# Packages ask for /proc; in a mount namespace of its own it is gone again when the shell ends.
unshare --mount bash -e -c '
    mount -t proc proc "$1/proc"
    chroot "$1" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends condor python3
    chroot "$1" apt-get clean
' _ "$root"
echo "$root holds $(chroot "$root" dpkg-query -W -f '${Package} ${Version}' condor)"
