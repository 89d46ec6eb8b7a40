"""Adapters for the tools that people already train with, one module for each tool.

An adapter needs its tool, and LeanBayes does not: `leanbayes.integrations` imports an adapter when it is first used,
and an adapter whose tool is not installed says which extra installs it.
"""

import pkgutil
from importlib import import_module
from types import ModuleType

_ADAPTERS = tuple(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def __getattr__(name: str) -> ModuleType:
    if name in _ADAPTERS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"leanbayes.integrations has no adapter {name!r}; it has {', '.join(_ADAPTERS)}")


def __dir__() -> list[str]:
    return sorted((*globals(), *_ADAPTERS))
