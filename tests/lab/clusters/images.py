"""A container image for the tests of the schedulers."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


def image_of_mount_points(folder: Path, apptainer: Sequence[str] = ("apptainer",)) -> Path:
    """A `.sif` built by `apptainer`: places for system and environment of this machine, and a file /mark."""
    places, image = folder / "places", folder / "image.sif"
    for name in ("dev", "etc", "proc", "root", "sys", "tmp", "usr", "var/tmp"):
        (places / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (places / name).symlink_to(f"usr/{name}")
    (places / "mark").touch()
    subprocess.run([*apptainer, "build", str(image), str(places)], check=True, timeout=60)
    return image
