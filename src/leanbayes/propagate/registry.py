"""One table of rules: what an operation does when it meets a random weight."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Registry", "Rule"]


@dataclass(frozen=True)
class Rule:
    """A rule and what is known of its exactness, which feeds the documentation and the tests."""

    function: Callable[..., Any]
    exact: bool
    assumes: str


class Registry:
    """Rules by operation. Every spelling of an operation goes into one decorator; a second rule for one raises.

    >>> rules = Registry("example")
    >>> @rules.rule(len, exact=True)
    ... def length(operation, value):
    ...     return operation(value)
    >>> rules.find(len).exact, rules.find(max)
    (True, None)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.rules: dict[Any, Rule] = {}

    def rule(
        self, *operations: Any, exact: bool, assumes: str = ""
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a function ``f(operation, *args, **kwargs)`` for each of ``operations``."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            for operation in operations:
                if operation in self.rules:
                    known = self.rules[operation].function.__name__
                    spelling = getattr(operation, "__name__", operation)
                    raise ValueError(f"{self.name} has a rule for {spelling} already ({known}); change that one")
                self.rules[operation] = Rule(function, exact, assumes)
            return function

        return register

    def find(self, operation: Any) -> Rule | None:
        """The rule for an operation, if there is one."""
        return self.rules.get(operation)
