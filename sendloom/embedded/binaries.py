"""Where the servers' programs are. Found without importing their packages, whose clients start servers behind our back."""

import importlib.util
import shutil
import sys
from pathlib import Path

from sendloom.errors import ConfigurationError

_FIX = "install what requirements.lock lists (`make up` does)"


def in_wheel(package: str, pattern: str) -> Path:
    """A file or directory inside an installed package.

    Raises:
        ConfigurationError: the package is not installed, or its wheel is for another platform.
    """
    spec = importlib.util.find_spec(package)
    for location in (spec and spec.submodule_search_locations) or ():
        if found := next(Path(location).glob(pattern), None):
            return found
    raise ConfigurationError(f"the package `{package}` with {pattern} is missing: {_FIX}")


def beside_python(name: str) -> str:
    """A program that a wheel put beside our Python.

    Raises:
        ConfigurationError: it is not installed.
    """
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return str(beside)
    if found := shutil.which(name):
        return found
    raise ConfigurationError(f"the program `{name}` is missing: {_FIX}")
