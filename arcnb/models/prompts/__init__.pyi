from . import lengths as lengths
