"""Compile the libraries of the wheel. ``make wheel`` enables this hook; all other builds make a wheel without them."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags


class PrebuiltHook(BuildHookInterface):
    """Add the prebuilt libraries, and name the system that they are for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the libraries into ``build/prebuilt``, or take those that are there already.

        The sources of the kernel include no header of Python or PyTorch, so any version of both can load it.
        """
        sys.path.insert(0, str(Path(self.root) / "src"))
        from cru.native.prebuilt import build_prebuilt

        if files := build_prebuilt(Path(self.root) / "build" / "prebuilt"):
            build_data["pure_python"] = False
            # manylinux_2_36 or musllinux_1_2, for example: the C library of this machine, or a newer one.
            system = next(tag for tag in platform_tags() if tag.startswith(("manylinux", "musllinux")))
            build_data["tag"] = f"py3-none-{system}"
            build_data["force_include"] |= {str(file): f"cru/native/prebuilt/{file.name}" for file in files}
