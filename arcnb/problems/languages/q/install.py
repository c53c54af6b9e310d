"""Finding q and its licence on this machine, or saying what is missing and where it goes."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.problems.languages.q.process import Interpreter, run_script
from arcnb.problems.languages.q.text import DRIVER, answers, driver, error_mark
from arcnb.programs.executor.limits import Limits

LICENCES = ("kc.lic", "k4.lic", "ks.lic", "kx.lic")
LICENCE_VARIABLES = ("KDB_LICENSE_B64", "KDB_K4LICENSE_B64")
WHAT_TO_DO = (
    "install kdb+ (https://kx.com/kdb-personal-edition-download) so that $QHOME/l64/q runs, or PyKX (pip "
    "install pykx), and put the licence file kc.lic or k4.lic into the folder $QLIC, or $QHOME without QLIC"
)
PYKX = "import sys, pykx; pykx.q('system', b'l ' + sys.argv[1].encode())"
CERTIFICATES = ("/etc/ssl", "/etc/pki", "/usr/share/ca-certificates")
QUICK = Limits(seconds=30.0, memory_mb=1024)


def find_q(environment: Mapping[str, str] | None = None, check: bool = True) -> Interpreter:
    """The q of this machine: the binary in QHOME or on PATH, else PyKX. ArcnbError where none runs."""
    environment = os.environ if environment is None else environment
    binary = _binary(environment)
    if binary is None and importlib.util.find_spec("pykx") is None:
        raise ArcnbError(f"problems in q need a q interpreter, and none was found; {WHAT_TO_DO}")
    licence = _licence(environment, binary)
    in_variable = {name: environment[name] for name in LICENCE_VARIABLES if environment.get(name)}
    if licence is None and not (binary is None and in_variable):
        where = binary or "PyKX"
        raise ArcnbError(
            f"q was found ({where}), but no licence file ({', '.join(LICENCES[:2])}); {WHAT_TO_DO}"
        )
    interpreter = _of_binary(binary, licence) if binary else _of_pykx(licence, in_variable)
    if check:
        refuse_silent(interpreter)
    return interpreter


def refuse_silent(interpreter: Interpreter) -> None:
    """ArcnbError, quoting what it said, unless the interpreter evaluates 1+1."""
    transcript = run_script(interpreter, {DRIVER: driver("probe", ["1+1"], False)}, DRIVER, QUICK)
    if answers(transcript.text, "probe").get(0) != (True, "2"):
        said = (
            error_mark(transcript.text) or transcript.text.strip()[:200] or f"nothing ({transcript.status})"
        )
        raise ArcnbError(f"{interpreter.described} does not evaluate 1+1, it says {said!r}; {WHAT_TO_DO}")


def _binary(environment: Mapping[str, str]) -> Path | None:
    folder = "m64" if sys.platform == "darwin" else "l64arm" if platform.machine() == "aarch64" else "l64"
    homes = [environment.get("QHOME"), "~/q", "~/.kx"]
    for home in homes:
        for name in (f"{folder}/q", "bin/q"):
            path = Path(home, name).expanduser() if home else None
            if path and os.access(path, os.X_OK) and path.is_file():
                return path
    found = shutil.which("q", path=environment.get("PATH"))
    # Other programs are called q, too; a script may be a wrapper around kdb+'s, which cannot be confined.
    return Path(found) if found and Path(found).read_bytes()[:4] == b"\x7fELF" else None


def _licence(environment: Mapping[str, str], binary: Path | None) -> Path | None:
    folders = [environment.get("QLIC"), environment.get("QHOME"), binary and binary.parents[1], Path.home()]
    for folder in folders:
        for name in LICENCES:
            if folder and (path := Path(folder, name)).is_file():
                return path
    return None


def _of_binary(binary: Path, licence: Path) -> Interpreter:
    home = binary.parents[1]
    online = licence.name == "kc.lic"  # licensed on demand: q asks KX over the network
    return Interpreter(
        (str(binary),),
        ("-q", "-w", "{memory_mb}"),
        {"QHOME": str(home), "QLIC": str(licence.parent)},
        (str(home), str(licence.parent), *(CERTIFICATES if online else ())),
        f"q at {binary}, licence {licence.name}",
        may_connect=online,
    )


def _of_pykx(licence: Path | None, variables: dict) -> Interpreter:
    import sysconfig

    environment = {**variables, **({"QLIC": str(licence.parent)} if licence else {})}
    readable = (sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), *CERTIFICATES)
    more = (str(licence.parent),) if licence else ()
    return Interpreter(
        (sys.executable, "-c", PYKX),
        (),
        environment,
        (*readable, *more),
        "q inside PyKX",
        may_connect=True,
        base_mb=4096,
    )
