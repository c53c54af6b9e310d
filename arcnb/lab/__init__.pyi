from . import plots as plots
from .execution.sessions import open_run as open_run
from .explorer import launcher as launcher
from .explorer.live import Explorer as Explorer
from .pages.opening import opening as opening
from .plots import comparison as comparison
from .plots.live_curves import live_curves as live_curves
