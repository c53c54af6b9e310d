"""Plans: what a notebook is asked to do, as one frozen tree of dataclasses.

    @dataclass(frozen=True)
    class Guard:
        window: int = option(20, "logged steps that the guard's means are taken over", "steps")

    @dataclass(frozen=True)
    class GrpoPlan(Plan):
        seed: int = option(0, "prompts, order and samples derive from it")
        guard: Guard = branch(Guard)
        trl: Settings = library(GRPO_CONFIG)

    plan = GrpoPlan.of({"seed": 3, "guard_window": 10, "more": {"beta": 0.02}})
    plan.guard.window, plan.trl["beta"]

An option is known by its path (`guard.window`), by the path with underscores (`guard_window`, for a
parameters cell), and by its last word (`window`) where no other option has it. `more` holds options that have
no line in the parameters cell. The field names of the library's class are options, too; a plan's own come
first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pkgutil import resolve_name
from typing import Any, ClassVar, Self

from arcnb.errors import ArcnbError, nearest
from arcnb.machine.library_source import config_fields
from arcnb.values import (
    FINITE,
    NOT_NEGATIVE,
    KeysOf,
    ReadBy,
    Within,
    as_floats,
    choices,
    fits,
    range_problem,
)

MORE = "more"  # the parameter that holds options without a line in the parameters cell


@dataclass(frozen=True)
class Option:
    """One thing that can be asked for. kind: its annotation, as text. within: see `option`. free: may differ
    when a run resumes. ours: not a field of a library's class that keeps the library's default."""

    path: str
    kind: str
    default: Any
    meaning: str
    unit: str = ""
    free: bool = False
    ours: bool = True
    of_library: bool = False
    within: Within = NOT_NEGATIVE

    @property
    def flat(self) -> str:
        """Its name in a parameters cell."""
        return self.word if self.of_library else self.path.replace(".", "_")

    @property
    def described(self) -> str:
        """Meaning and unit."""
        return f"{self.meaning} ({self.unit})" if self.unit else self.meaning

    @property
    def word(self) -> str:
        return self.path.rpartition(".")[2]


# What is often said, and what options are called where there are such.
_CALLED = {
    "lr": "learning_rate",
    "rank": "lora.r",
    "lora_rank": "lora.r",
    "batch_size": "per_device_train_batch_size",
}


class Settings(dict[str, Any]):
    """Values for a library's configuration class: those with a default of ours, and those that were given."""


@dataclass(frozen=True)
class Library:
    """A configuration class, read from its source: importing it would load torch.

    sources: "file:class" below the installed packages, base classes first. defaults: ours, where the
    library's are unsuited. reserved: fields that the program sets itself. free: fields that may differ when a
    run resumes. within: ranges and choices by name; other numbers are finite.
    """

    sources: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    reserved: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    within: Mapping[str, Within] = field(default_factory=dict)


def option(
    default: Any, meaning: str, unit: str = "", *, free: bool = False, within: Within = NOT_NEGATIVE
) -> Any:
    """A dataclass field that can be asked for by name."""
    kind = {"default_factory": default} if callable(default) else {"default": default}
    return field(**kind, metadata={"option": (meaning, unit, free, within)})


def branch(kind: type) -> Any:
    """A dataclass field that holds further options."""
    return field(default_factory=kind, metadata={"branch": kind})


def library(of: Library) -> Any:
    """A dataclass field that holds settings of a library's configuration class."""
    return field(default_factory=lambda: Settings(of.defaults), metadata={"library": of})


class Plan:
    """Base of the plans. A subclass is a frozen dataclass; its fields that are neither option nor branch are
    handed to `of` by name.

    checks: "module:function" that gives a sentence for each reason why a plan cannot be carried out, as far
    as the plan itself and the names in it tell.
    """

    checks: ClassVar[str]

    def check(self) -> None:
        """ArcnbError with all of these reasons; no model is loaded and no tasks are read."""
        refuse(resolve_name(self.checks)(self))

    @classmethod
    def of(cls, parameters: Mapping[str, Any] | None = None, **given: Any) -> Self:
        """The plan that a notebook's parameters ask for; ArcnbError names every parameter that is wrong."""
        chosen, problems = {}, []
        for name, value in opened(parameters or {}, cls.knows).items():
            try:
                known = cls.find(name)
                if known.path in chosen:
                    raise ArcnbError(f"{name!r} is given twice, also as {known.flat!r}")
                said = known.flat if "." in name else name
                chosen[known.path] = fitting(value, known.kind, said, known.default, known.within)
            except ArcnbError as error:
                problems.append(str(error))
        refuse(problems)
        return _built(cls, chosen, given)

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Every option by its path, in the order of the tree; the library's options last."""
        return _options(cls)

    @classmethod
    def libraries(cls) -> dict[str, Library]:
        """The library's classes by the names of the fields that hold settings of them."""
        return {part.name: part.metadata["library"] for part in fields(cls) if "library" in part.metadata}

    @classmethod
    def find(cls, name: str) -> Option:
        """The option of this name; ArcnbError for one that is unknown or of several branches."""
        known = _names(cls).get(name, [])
        if len(known) == 1:
            return known[0]
        if known:
            paths = " or ".join(found.path for found in known)
            raise ArcnbError(f"{name!r} is an option of several branches; say {paths}")
        if name in _reserved(cls):
            raise ArcnbError(f"{name} is derived from the other settings and cannot be set")
        if inside := [path for path in cls.options() if path.startswith(f"{name}.")]:
            raise ArcnbError(f"{name!r} is no parameter, but has some; say {inside[0]}, for instance")
        raise ArcnbError(f"there is no parameter {name!r}{nearest_option(name, _names(cls))}")

    @classmethod
    def knows(cls, name: str) -> bool:
        """Whether an option may be called so."""
        return name in _names(cls)

    def changed(self, parameters: Mapping[str, Any]) -> Self:
        """The plan with these options in place of its own."""
        given = {entry.name: getattr(self, entry.name) for entry in fields(self) if not entry.metadata}
        asked = {self.find(name).path: value for name, value in opened(parameters).items()}
        return self.of(self.values() | asked, **given)

    def values(self) -> dict[str, Any]:
        """Value of every option by path, ready for JSON; of the library's settings those that have one."""
        found = {path: _value(self, path) for path in self.options()}
        return {path: value for path, value in found.items() if value is not MISSING}

    def identity(self) -> dict[str, Any]:
        """Value, by flat name, of every option that a resumed run must share with the run it goes on with."""
        known = self.options()
        return {known[path].flat: value for path, value in self.values().items() if not known[path].free}

    def table(self):
        """A data frame: option, value, default, where the value comes from, and what it means."""
        import pandas as pd

        rows = []
        for path, value in self.values().items():
            known = self.options()[path]
            source = "default" if value == known.default else "given"
            rows.append((path, value, known.default, source, known.described))
        return pd.DataFrame(rows, columns=["option", "value", "default", "from", "meaning"]).set_index(
            "option"
        )

    def _repr_html_(self) -> str:
        import pandas as pd

        with pd.option_context("display.max_rows", None, "display.max_colwidth", None):
            table = self.table()
            given = int((table["from"] == "given").sum())
            head = f"The plan: {given} of {len(table)} options given, the others by default"
            return f"<details><summary>{head}</summary>{table.to_html()}</details>"


def nearest_option(name: str, names: Iterable[str]) -> str:
    """As `nearest`, of options: what is often called otherwise is known, and resembles none of the others."""
    if name not in _CALLED:
        return nearest(name, names)
    return f"; did you mean {_CALLED[name]!r}?" if _CALLED[name] in names else ""


def refuse(problems: Iterable[str]) -> None:
    """Raise one error with every problem, if there is any: a line each, which also reads well on one line."""
    problems = list(dict.fromkeys(problems))
    if problems:
        raise ArcnbError(";\n".join(problems))


def refusals(do: Callable, *given: Any, **more: Any) -> list[str]:
    """The sentences of the ValueError that a call ends with; none where it does not."""
    try:
        do(*given, **more)
    except ValueError as error:
        return str(error).split(";\n")
    return []


def conflicts(options: Mapping[str, Any], reasons: Mapping[str, Any]) -> list[str]:
    """A sentence for each option that is asked for, and each reason against it that holds."""
    against = [reason for reason, holds in reasons.items() if holds]
    return [
        f"{one} does not go with {reason}" for one, asked in options.items() if asked for reason in against
    ]


def opened(
    parameters: Mapping[str, Any], whole: Callable[[str], bool] = lambda name: False
) -> dict[str, Any]:
    """Flat values: the others, and what `more` holds, nested mappings by dotted names. ArcnbError where
    `more` gives a parameter that has a line of its own. whole: see `dotted`."""
    more = parameters.get(MORE)
    if MORE in parameters and not isinstance(more, Mapping):
        raise ArcnbError(f"{MORE} must be a dictionary of further parameters, not {more!r}")
    values = {name: value for name, value in parameters.items() if name != MORE}
    for name, value in dotted(more or {}, "", whole).items():
        if name in values:
            raise ArcnbError(f"{MORE} gives {name!r}, which has a line of its own in the parameters cell")
        values[name] = value
    return values


def fitting(
    value: Any, kind: str, name: str, default: Any, within: Within = "", lenient: bool = False
) -> Any:
    """The value, with whole numbers for floats made floats; ArcnbError if it is neither of this kind nor the
    default itself, not within its range or choices, or a text that cannot be read. lenient: as in
    `arcnb.values.fits`."""
    found = value
    if kind != "any" and not (type(value) is type(default) and value == default):
        candidates = [one for one in (value, as_floats(value)) if fits(one, kind, lenient)]
        if not candidates:
            got = f"{value!r} of type {type(value).__name__}"
            raise ArcnbError(f"parameter {name!r} must be {kind} (default {default!r}), got {got}")
        found = candidates[0]
    match within:
        case str():
            if wanted := range_problem(found, within):
                told = f"must be {wanted} (default {default!r}), got {value!r}"
                raise ArcnbError(f"parameter {name!r} {told}")
        case ReadBy():
            within.read(found)
        case KeysOf(others=reader) if reader:
            resolve_name(reader)(found)
        case _:
            known = choices(within)  # where none are known every value will do
            if known and found not in known:
                raise ArcnbError(f"{name}={found!r} does not exist; there are {', '.join(map(str, known))}")
    return found


def dotted(
    values: Mapping[str, Any], before: str = "", whole: Callable[[str], bool] = lambda name: False
) -> dict[str, Any]:
    """Nested mappings by dotted names: {"guard": {"window": 10}} as {"guard.window": 10}. whole: which names
    are of options, whose value a mapping then is."""
    found = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and not whole(f"{before}{name}"):
            found |= dotted(value, f"{before}{name}.", whole)
        else:
            found[f"{before}{name}"] = value
    return found


@functools.cache
def _options(plan: type, before: str = "") -> dict[str, Option]:
    own, of_library = {}, {}
    for entry in fields(plan):
        path = f"{before}{entry.name}"
        if "option" in entry.metadata:
            meaning, unit, free, within = entry.metadata["option"]
            default = entry.default if entry.default is not MISSING else entry.default_factory()
            own[path] = Option(path, str(entry.type), default, meaning, unit, free, within=within)
        elif "branch" in entry.metadata:
            own |= _options(entry.metadata["branch"], f"{path}.")
        elif "library" in entry.metadata:
            of_library |= _library_options(entry.metadata["library"], f"{path}.")
    return own | of_library


def _library_options(known: Library, before: str) -> dict[str, Option]:
    read = {name: found for source in known.sources for name, found in config_fields(source).items()}
    names = [*known.defaults, *(name for name in read if name not in known.defaults)]
    found = {}
    for name in names:
        if name in known.reserved:
            continue
        kind, default, meaning = read.get(name, (type(known.defaults.get(name)).__name__, None, ""))
        default = known.defaults.get(name, default)
        found[f"{before}{name}"] = Option(
            f"{before}{name}",
            kind,
            default,
            meaning,
            free=name in known.free,
            ours=name in known.defaults,
            of_library=True,
            within=known.within.get(name, FINITE),
        )
    return found


@functools.cache
def _names(plan: type) -> dict[str, list[Option]]:
    """Every name that an option may be called by. A plan's own options come before the library's."""
    own: dict[str, list[Option]] = {}
    of_library: dict[str, list[Option]] = {}
    places = plan.libraries()
    for known in _options(plan).values():
        names = of_library if known.path.partition(".")[0] in places else own
        for name in dict.fromkeys((known.path, known.path.replace(".", "_"), known.word)):
            names.setdefault(name, []).append(known)
    for name, known in own.items():  # a root option is not hidden by one of a branch
        exact = [one for one in known if name in (one.path, one.path.replace(".", "_"))]
        own[name] = exact or known
    return of_library | own


@functools.cache
def _reserved(plan: type) -> frozenset[str]:
    return frozenset().union(*(known.reserved for known in plan.libraries().values()))


def _value(node: Any, path: str) -> Any:
    for name in path.split("."):
        node = node.get(name, MISSING) if isinstance(node, Mapping) else getattr(node, name)
        if node is MISSING:
            return MISSING
    return node


def _built(kind: type, chosen: Mapping[str, Any], given: Mapping[str, Any], before: str = "") -> Any:
    values = dict(given)
    for entry in fields(kind):
        path = f"{before}{entry.name}"
        if "branch" in entry.metadata:
            values[entry.name] = _built(entry.metadata["branch"], chosen, {}, f"{path}.")
        elif "library" in entry.metadata:
            start = f"{path}."
            asked = {
                name.removeprefix(start): value for name, value in chosen.items() if name.startswith(start)
            }
            values[entry.name] = Settings({**entry.metadata["library"].defaults, **asked})
        elif path in chosen:
            values[entry.name] = chosen[path]
    return kind(**values)
