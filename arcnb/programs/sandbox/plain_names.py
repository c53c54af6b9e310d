"""The names that plain programs may use (see ``plain``), by where they come from.

A name gets into these lists only if it is harmless on every object a plain program can hold, for the screen
does not know whose attribute it is. Left out on purpose, because they lead further than they look:
`attrgetter`, `methodcaller` and `format` (attributes named in texts), `wraps` (assigns attributes), `type`
(makes classes), `view`, `frombuffer`, `resize` and `as_strided` (memory as another type), `errstate` and
`set_printoptions` (state of the process), `get_type_hints` (evaluates texts).
"""

_MODULES = """
    numpy numpy.linalg numpy.random math itertools collections collections.abc functools operator
    copy typing heapq bisect string re random sys time scipy scipy.ndimage common dsl rearc_dsl
    __future__
"""
_BUILTINS = """
    abs all any ascii bin bool bytes callable chr complex dict divmod enumerate filter float format
    frozenset hasattr hash hex id int isinstance issubclass iter len list map max min next object
    oct ord pow print range repr reversed round set slice sorted str sum tuple zip Ellipsis
    NotImplemented
"""
_NUMPY = """
    abs absolute add all allclose any append apply_along_axis apply_over_axes arange argmax argmin
    argsort argwhere around array array_equal array_equiv array_split asarray ascontiguousarray
    atleast_1d atleast_2d atleast_3d average bincount bitwise_and bitwise_not bitwise_or bitwise_xor
    block broadcast_arrays broadcast_to ceil choose clip column_stack compress concatenate convolve
    copy copyto corrcoef count_nonzero cross cumprod cumsum delete diag diag_indices diagflat
    diagonal diff digitize divide dot dsplit dstack ediff1d einsum empty empty_like equal exp
    expand_dims extract eye fill_diagonal flatnonzero flip fliplr flipud floor floor_divide fmax
    fmin frompyfunc fromfunction fromiter full full_like gcd gradient greater greater_equal
    histogram histogram2d hsplit hstack hypot identity in1d indices inner insert interp intersect1d
    invert isclose isfinite isin isinf isnan ix_ kron lcm less less_equal lexsort linspace log log10
    log2 logical_and logical_not logical_or logical_xor matmul max maximum mean median meshgrid min
    minimum mod moveaxis multiply nan_to_num nanargmax nanargmin nanmax nanmean nanmin nansum
    ndenumerate ndim ndindex negative nonzero not_equal ogrid mgrid c_ r_ s_ ones ones_like outer
    packbits unpackbits pad percentile piecewise place power prod ptp put put_along_axis putmask
    quantile ravel ravel_multi_index remainder repeat reshape right_shift left_shift rint roll
    rollaxis rot90 round row_stack searchsorted select setdiff1d setxor1d shape sign size sort sqrt
    square squeeze stack std subtract sum swapaxes take take_along_axis tensordot tile trace
    transpose tri tril tril_indices tril_indices_from trim_zeros triu triu_indices triu_indices_from
    true_divide trunc union1d unique unravel_index vander var vdot vectorize vsplit vstack where
    zeros zeros_like unstack concat permute_dims astype sin cos tan arctan2 float_power
    bitwise_count accumulate reduce reduceat at ndarray generic number integer floating
    signedinteger unsignedinteger bool_ object_ int_ intp int8 int16 int32 int64 uint8 uint16 uint32
    uint64 float16 float32 float64 inf nan pi e newaxis iinfo finfo dtype bits linalg norm det inv
    solve matrix_rank matrix_power lstsq pinv svd eig eigh LinAlgError argpartition conj fill flat
    flatten imag item itemsize nbytes partition real strides T tolist tobytes kind name
"""
_TYPES = """
    append extend insert remove pop clear index count sort reverse copy keys values items get
    setdefault update popitem fromkeys add discard union intersection difference
    symmetric_difference issubset issuperset isdisjoint intersection_update difference_update
    symmetric_difference_update join split rsplit strip lstrip rstrip replace startswith endswith
    find rfind upper lower isdigit isalpha isalnum isnumeric isupper islower isspace zfill ljust
    rjust center title capitalize swapcase casefold splitlines partition rpartition translate
    maketrans removeprefix removesuffix bit_length bit_count is_integer as_integer_ratio real imag
    conjugate numerator denominator start stop step args hex appendleft popleft rotate extendleft
    maxlen most_common elements total subtract move_to_end
"""
_STANDARD = """
    Counter defaultdict deque namedtuple OrderedDict ChainMap abc Iterable Iterator Sequence Mapping
    Hashable MutableMapping MutableSequence Generator Callable Sized Container Collection product
    permutations combinations combinations_with_replacement chain from_iterable groupby accumulate
    islice cycle repeat zip_longest starmap takewhile dropwhile tee pairwise filterfalse batched
    partial lru_cache cache cmp_to_key cache_clear cache_info and_ or_ xor not_ neg pos truth
    itemgetter eq ne lt le gt ge sub mul truediv floordiv countOf indexOf contains getitem setitem
    is_ is_not lshift rshift inv invert concat ceil comb copysign cos dist degrees exp factorial
    fabs floor fmod fsum gcd hypot isclose isfinite isinf isnan isqrt lcm log log10 log1p log2 perm
    pow prod radians sin sqrt tan tau trunc acos asin atan atan2 modf deepcopy heapify heappop
    heappush heappushpop heapreplace nlargest nsmallest merge bisect bisect_left bisect_right insort
    insort_left insort_right ascii_letters ascii_lowercase ascii_uppercase digits punctuation
    setrecursionlimit getrecursionlimit maxsize List Tuple Dict Set FrozenSet Optional Union Any
    Deque DefaultDict Literal Type TypeVar TypeAlias Final NamedTuple Annotated Never NoReturn cast
    annotations
"""
_RANDOM = """
    random seed randint randrange choice choices uniform shuffle sample gauss getrandbits Random
    RandomState default_rng integers permutation permuted rand randn normal poisson binomial
"""
_EXPRESSIONS = """
    findall finditer match fullmatch search sub subn group groups groupdict span start end escape
    IGNORECASE MULTILINE DOTALL compile
"""
_CLOCKS = """
    time perf_counter perf_counter_ns monotonic monotonic_ns process_time time_ns
"""
_NDIMAGE = """
    ndimage label find_objects binary_closing binary_dilation binary_erosion binary_fill_holes
    binary_hit_or_miss binary_opening binary_propagation center_of_mass convolve convolve1d
    correlate correlate1d distance_transform_cdt distance_transform_edt distance_transform_bf
    extrema generate_binary_structure generic_filter grey_dilation grey_erosion iterate_structure
    labeled_comprehension maximum maximum_filter maximum_position mean median minimum minimum_filter
    minimum_position rotate shift sum sum_labels uniform_filter value_indices zoom
"""

# Modules that may be imported.
MODULES = frozenset(_MODULES.split())
# Modules whose whole public contents may be spread into a program.
SPREADABLE = frozenset(["common", "dsl", "rearc_dsl", "itertools", "math", "typing"])
# Builtins, besides the exceptions.
BUILTINS = frozenset(_BUILTINS.split())
# Attributes and names imported from modules.
ATTRIBUTES = frozenset(
    " ".join((_NUMPY, _TYPES, _STANDARD, _RANDOM, _EXPRESSIONS, _CLOCKS, _NDIMAGE)).split()
)
# Dunder names that a program may read or set as its own globals.
GLOBAL_DUNDERS = frozenset(["__name__", "__annotations__", "__doc__", "__all__", "__author__", "__version__"])
# Source text that plain programs hardly ever hold: with it, trying a batch first is not worth the while.
TELLTALES = (b"\nclass ", b".format(", b"import os", b"getattr(")
