"""Generates the modules of the protocol before the package is built."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Generate(BuildHookInterface):  # type: ignore[type-arg]
    """Calls generate.py; in a source distribution, which has no `.proto` files, its modules are there already."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Runs before files are collected."""
        script = pathlib.Path(self.root) / "generate.py"
        spec = importlib.util.spec_from_file_location("generate", script)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.generate()
