#!/usr/bin/env bash
# Makes a folder with a whole HTCondor in it, and Apptainer, for tests/lab/clusters/test_htcondor.py: Debian 12 has
# neither, its unstable branch has both. Nothing outside the folder changes. Needs root, debootstrap
# and a Debian mirror; takes about two minutes and 800 MB.
#
#   tests/lab/clusters/htcondor_root.sh /tmp/htcondor [MIRROR]
#   ARCNB_HTCONDOR_ROOT=/tmp/htcondor .venv/bin/python -m pytest tests/lab/clusters/test_htcondor.py
set -euo pipefail
unset TMPDIR   # which the new root does not have
root=${1:?usage: htcondor_root.sh FOLDER [MIRROR]}
mirror=${2:-http://deb.debian.org/debian}

[ -x "$root/usr/bin/apt-get" ] || debootstrap --variant=minbase sid "$root" "$mirror"
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"   # no service starts while packages install
chmod 755 "$root/usr/sbin/policy-rc.d"
# Packages ask for /proc; in a mount namespace of its own it is gone again when the shell ends.
unshare --mount bash -e -c '
    mount --bind "$1" "$1"   # Apptainer wants its root to be one that is mounted
    mount -t proc proc "$1/proc"
    chroot "$1" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        condor python3 apptainer squashfuse fuse3
    # By running this image a node finds out whether it can run a `.sif`; the package lacks it.
    tries=/usr/libexec/condor
    [ -e "$1$tries/exit_37.sif" ] || chroot "$1" apptainer -q build $tries/exit_37.sif $tries/singularity_test_sandbox
    chroot "$1" apt-get clean
' _ "$root"
echo "$root holds $(chroot "$root" dpkg-query -W -f '${Package} ${Version}' condor)"
