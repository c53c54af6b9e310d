"""Which programs may share a process: those whose code reaches nothing that outlives them.

A program is *plain* when its compiled code names only numpy, the grid libraries and the harmless part of the
standard library, never a private or dunder attribute, and neither defines a class nor assigns an attribute.
Such a program can read its input and build values of its own; it cannot reach a module's dictionary, a frame,
a file descriptor or an object of another program. Plain programs run in batches, one sandboxed child for many;
all others get a child each. Nothing is refused here.

The check reads opcodes and names off the compiled code, not the source: what runs is what is checked, and it
takes microseconds. An attribute is safe because it stands in the lists below, or because nothing loaded in
this interpreter has an attribute of that name: then a namedtuple of the program has it, or the program fails.
What stays out on purpose, because it leads further than it looks: `operator.attrgetter` and `str.format`
(attributes named in strings), `functools.wraps` (assigns attributes), `type` (makes classes), `view`,
`frombuffer`, `resize` and `as_strided` (memory as other types), match on classes (attributes in constants).
"""

from __future__ import annotations

import builtins
import opcode
import re
import sys
import types
from collections.abc import Iterator

MODULES = frozenset(
    [
        "numpy",
        "numpy.linalg",
        "math",
        "itertools",
        "collections",
        "collections.abc",
        "functools",
        "operator",
        "copy",
        "typing",
        "heapq",
        "bisect",
        "string",
        "sys",
        "scipy",
        "scipy.ndimage",
        "common",
        "dsl",
        "rearc_dsl",
        "__future__",
    ]
)
# Modules whose whole public contents may be spread into a program.
_SPREADABLE = frozenset(["common", "dsl", "rearc_dsl", "math", "itertools"])

_BUILTINS = frozenset(
    [
        "abs",
        "all",
        "any",
        "ascii",
        "bin",
        "bool",
        "bytes",
        "callable",
        "chr",
        "complex",
        "dict",
        "divmod",
        "enumerate",
        "filter",
        "float",
        "format",
        "frozenset",
        "hasattr",
        "hash",
        "hex",
        "id",
        "int",
        "isinstance",
        "issubclass",
        "iter",
        "len",
        "list",
        "map",
        "max",
        "min",
        "next",
        "object",
        "oct",
        "ord",
        "pow",
        "print",
        "range",
        "repr",
        "reversed",
        "round",
        "set",
        "slice",
        "sorted",
        "str",
        "sum",
        "tuple",
        "zip",
        "Ellipsis",
        "NotImplemented",
    ]
)
_NUMPY = """
    abs absolute add all allclose any append apply_along_axis apply_over_axes arange argmax argmin argsort argwhere
    around array array_equal array_equiv array_split asarray ascontiguousarray atleast_1d atleast_2d atleast_3d
    average bincount bitwise_and bitwise_not bitwise_or bitwise_xor block broadcast_arrays broadcast_to ceil choose
    clip column_stack compress concatenate convolve copy copyto corrcoef count_nonzero cross cumprod cumsum delete
    diag diag_indices diagflat diagonal diff digitize divide dot dsplit dstack ediff1d einsum empty empty_like equal
    exp expand_dims extract eye fill_diagonal flatnonzero flip fliplr flipud floor floor_divide fmax fmin frompyfunc
    fromfunction fromiter full full_like gcd gradient greater greater_equal histogram histogram2d hsplit hstack hypot
    identity in1d indices inner insert interp intersect1d invert isclose isfinite isin isinf isnan ix_ kron lcm less
    less_equal lexsort linspace log log10 log2 logical_and logical_not logical_or logical_xor matmul max maximum mean
    median meshgrid min minimum mod moveaxis multiply nan_to_num nanargmax nanargmin nanmax nanmean nanmin nansum
    ndenumerate ndim ndindex negative nonzero not_equal ogrid mgrid c_ r_ s_ ones ones_like outer packbits unpackbits
    pad percentile piecewise place power prod ptp put put_along_axis putmask quantile ravel ravel_multi_index
    remainder repeat reshape right_shift left_shift rint roll rollaxis rot90 round row_stack searchsorted select
    setdiff1d setxor1d shape sign size sort sqrt square squeeze stack std subtract sum swapaxes take take_along_axis
    tensordot tile trace transpose tri tril tril_indices tril_indices_from trim_zeros triu triu_indices
    triu_indices_from true_divide trunc union1d unique unravel_index vander var vdot vectorize vsplit vstack where
    zeros zeros_like unstack concat permute_dims astype sin cos tan arctan2 float_power bitwise_count
    accumulate reduce reduceat at
    ndarray generic number integer floating signedinteger unsignedinteger bool_ object_ int_ intp int8 int16 int32
    int64 uint8 uint16 uint32 uint64 float16 float32 float64 inf nan pi e newaxis iinfo finfo dtype bits
    linalg norm det inv solve matrix_rank matrix_power lstsq pinv svd eig eigh LinAlgError
    argpartition conj fill flat flatten imag item itemsize nbytes partition real strides T tolist tobytes kind name
"""
_TYPES = """
    append extend insert remove pop clear index count sort reverse copy keys values items get setdefault update
    popitem fromkeys add discard union intersection difference symmetric_difference issubset issuperset isdisjoint
    intersection_update difference_update symmetric_difference_update join split rsplit strip lstrip rstrip replace
    startswith endswith find rfind upper lower isdigit isalpha isalnum isnumeric isupper islower isspace zfill ljust
    rjust center title capitalize swapcase casefold splitlines partition rpartition translate maketrans
    removeprefix removesuffix bit_length bit_count is_integer as_integer_ratio real imag conjugate numerator
    denominator start stop step args hex
    appendleft popleft rotate extendleft maxlen most_common elements total subtract move_to_end
"""
_STANDARD = """
    Counter defaultdict deque namedtuple OrderedDict ChainMap abc Iterable Iterator Sequence Mapping Hashable
    MutableMapping MutableSequence Generator Callable Sized Container Collection
    product permutations combinations combinations_with_replacement chain from_iterable groupby accumulate islice
    cycle repeat zip_longest starmap takewhile dropwhile tee pairwise filterfalse batched
    partial lru_cache cache cmp_to_key cache_clear cache_info
    and_ or_ xor not_ neg pos truth itemgetter eq ne lt le gt ge sub mul truediv floordiv countOf indexOf contains
    getitem setitem is_ is_not lshift rshift inv invert concat
    ceil comb copysign cos dist degrees exp factorial fabs floor fmod fsum gcd hypot isclose isfinite isinf isnan
    isqrt lcm log log10 log1p log2 perm pow prod radians sin sqrt tan tau trunc acos asin atan atan2 modf
    deepcopy heapify heappop heappush heappushpop heapreplace nlargest nsmallest merge
    bisect bisect_left bisect_right insort insort_left insort_right
    ascii_letters ascii_lowercase ascii_uppercase digits punctuation setrecursionlimit getrecursionlimit maxsize
    List Tuple Dict Set FrozenSet Optional Union Any Iterable Deque DefaultDict Literal Type TypeVar TypeAlias Final
    NamedTuple Annotated Never NoReturn cast annotations
"""
_NDIMAGE = """
    ndimage label find_objects binary_closing binary_dilation binary_erosion binary_fill_holes binary_hit_or_miss
    binary_opening binary_propagation center_of_mass convolve convolve1d correlate correlate1d distance_transform_cdt
    distance_transform_edt distance_transform_bf extrema generate_binary_structure generic_filter grey_dilation
    grey_erosion iterate_structure labeled_comprehension maximum maximum_filter maximum_position mean median minimum
    minimum_filter minimum_position rotate shift sum sum_labels uniform_filter value_indices zoom
"""
ATTRIBUTES = frozenset(" ".join((_NUMPY, _TYPES, _STANDARD, _NDIMAGE)).split())
_HARMLESS_DUNDERS = frozenset(("__name__", "__annotations__"))

_OP = opcode.opmap
_KNOWN_VERSION = sys.version_info[:2] in ((3, 11), (3, 12))  # whose opcodes were studied
_FORBIDDEN = ("STORE_ATTR", "DELETE_ATTR", "LOAD_BUILD_CLASS", "MATCH_CLASS", "LOAD_SUPER_ATTR")
_PERMITTED = bytes(code for code in range(256) if code not in {_OP.get(name) for name in _FORBIDDEN})
_NAMED = frozenset(op for op in opcode.hasname if op < 256)  # 3.12 lists pseudo-operations as well
# The name's index is the argument shifted by flags: LOAD_GLOBAL since 3.11, LOAD_ATTR since 3.12.
_SHIFT = {_OP["LOAD_GLOBAL"]: 1} | ({_OP["LOAD_ATTR"]: 1} if sys.version_info >= (3, 12) else {})
_EXTENDED, _IMPORT, _IMPORT_FROM = _OP["EXTENDED_ARG"], _OP["IMPORT_NAME"], _OP["IMPORT_FROM"]
_INTRINSIC, _INTRINSIC_STAR = _OP.get("CALL_INTRINSIC_1"), 2  # how 3.12 spells the next one
_STAR = _OP.get("IMPORT_STAR", -1)
_INTERESTING = re.compile(
    b"[" + re.escape(bytes(sorted(_NAMED | {_STAR if _INTRINSIC is None else _INTRINSIC}))) + b"]", re.DOTALL
)
_ATTRIBUTE_LOADS = {_OP["LOAD_ATTR"], _OP.get("LOAD_METHOD")}
_GLOBAL_LOADS = {_OP["LOAD_NAME"], _OP["LOAD_GLOBAL"]}
_BINDINGS = {_OP[name] for name in ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL")}
_OWN_PACKAGES = ("arcnb.", "_rearc_source")


class Screen:
    """Decides for one warm interpreter; built after everything it preloads is loaded.

    ``libraries`` are the grid libraries by import name. Their functions and constants are safe, except those
    that draw random numbers and those that are mutable (``shared``).
    """

    def __init__(self, libraries: dict[str, types.ModuleType]) -> None:
        names = {name for library in libraries.values() for name in vars(library)}
        mutable = {name for _, name, _ in mutable_values(libraries.values())}
        self._shared = mutable | {name for name in names if name.startswith("random")}
        self._known = frozenset(_attribute_names())
        self._modules = (MODULES & set(sys.modules)) | set(libraries)
        self._exports = {name for name in names if not name.startswith("_")} - self._shared
        self._unsafe_builtins = frozenset(
            name
            for name, value in vars(builtins).items()
            if name not in _BUILTINS | _HARMLESS_DUNDERS
            and not (isinstance(value, type) and issubclass(value, BaseException))
        )
        # Safe as a global and as an attribute alike; import statements are looked at in any case.
        self._anywhere = (ATTRIBUTES | (_BUILTINS - {"format"})) - self._shared - self._unsafe_builtins

    def is_plain(self, code: types.CodeType) -> bool:
        """Whether a compiled program may share its process."""
        return _KNOWN_VERSION and all(self._is_plain(part) for part in _nested(code))

    def _is_plain(self, code: types.CodeType) -> bool:
        operations = code.co_code[::2]
        if operations.translate(None, _PERMITTED):
            return False
        if _IMPORT not in operations:
            for name in code.co_names:
                if name not in self._anywhere and (
                    name in self._known or name[0] == "_" or name in self._shared
                ):
                    break
            else:
                return True
        module = None
        for operation, name in _operations(code):
            if operation == _IMPORT:
                module = name
                safe = module in self._modules
            elif operation == _STAR:
                safe = module in _SPREADABLE
            elif operation == _IMPORT_FROM:
                safe = name in ATTRIBUTES or name in self._exports
            elif operation in _GLOBAL_LOADS:
                safe = name not in self._unsafe_builtins and name not in self._shared and not _is_dunder(name)
            elif operation in _ATTRIBUTE_LOADS:
                safe = name in self._anywhere or not (
                    name in self._known or name in self._shared or name[0] == "_"
                )
            else:
                safe = operation in _BINDINGS and not _is_dunder(name)
            if not safe:
                return False
        return True


def mutable_values(modules) -> Iterator[tuple[object, str, object]]:
    """Lists, dictionaries and sets that the modules and their classes hold: (holder, name, value)."""
    for module in modules:
        for name, value in vars(module).items():
            if name.startswith("__"):
                continue
            if isinstance(value, list | dict | set):
                yield module, name, value
            elif isinstance(value, type) and _is_own(value):
                for inner, held in vars(value).items():
                    if not inner.startswith("__") and isinstance(held, list | dict | set):
                        yield value, inner, held


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _operations(code: types.CodeType) -> Iterator[tuple[int, str]]:
    """The operations of ``code`` that carry a name, and star imports; inline caches read as operation 0."""
    raw, names = code.co_code, code.co_names
    operations = raw[::2]
    for match in _INTERESTING.finditer(operations):
        at = match.start()
        operation, argument, shift = operations[at], raw[2 * at + 1], 8
        while at and operations[at - 1] == _EXTENDED:
            at -= 1
            argument |= raw[2 * at + 1] << shift
            shift += 8
        if operation in _NAMED:
            yield operation, names[argument >> _SHIFT.get(operation, 0)]
        elif operation == _STAR or argument == _INTRINSIC_STAR:
            yield _STAR, "*"


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name not in _HARMLESS_DUNDERS


def _attribute_names() -> Iterator[str]:
    """Every name that a loaded module or class has as an attribute, our own libraries apart."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and not module.__name__.startswith(_OWN_PACKAGES):
            yield from vars(module)
            yield from getattr(module, "__all__", ())
            yield name.rpartition(".")[2]
            if "__dir__" in vars(module):  # a package that loads its parts on demand
                yield from dir(module)
    seen: set[type] = set()
    waiting: list[type] = [object]
    while waiting:
        kind = waiting.pop()
        if kind not in seen:
            seen.add(kind)
            waiting += type.__subclasses__(kind)
            if not _is_own(kind):
                yield from vars(kind)


def _is_own(kind: type) -> bool:
    """Whether a class comes from the grid libraries (some classes have a property for ``__module__``)."""
    module = vars(kind).get("__module__")
    return isinstance(module, str) and module.startswith(_OWN_PACKAGES)
