"""Whether a picture can be written, asked before the work is done. Needs matplotlib, an extra."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg

from dartspec.services.common.errors import InvalidArgument


def check_plot(path: Path) -> None:
    """Raise InvalidArgument when a plot cannot be written there."""
    known = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise InvalidArgument("--plot", f"{path} must end in one of {', '.join('.' + kind for kind in known)}")
    if not path.resolve().parent.is_dir():
        raise InvalidArgument("--plot", f"{path.parent} is no directory")
    if path.is_dir() or not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
        raise InvalidArgument("--plot", f"{path} cannot be written")
