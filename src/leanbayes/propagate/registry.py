"""One table of rules: what an operation does when it meets a random weight."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Registry", "Rule", "spelling"]


@dataclass(frozen=True)
class Rule:
    """A rule and what is known of its exactness, which feeds the documentation and the tests."""

    function: Callable[..., Any]
    exact: bool
    assumes: str


def spelling(operation: Any) -> str:
    """The short name of an operation, without where it lives: "relu" for F.relu, torch.relu and Tensor.relu.

    >>> spelling(torch.nn.functional.relu), spelling(torch.Tensor.T.__get__)
    ('relu', 'T')
    """
    name = getattr(operation, "__name__", str(operation))
    if name == "__get__":
        name = getattr(operation.__self__, "__name__", name)
    return str(name)


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

    def table(self) -> str:
        """What every rule covers and assumes, as Markdown: the documentation's table."""
        operations: dict[int, list[str]] = {}
        known = {id(rule.function): rule for rule in self.rules.values()}
        for operation, rule in self.rules.items():
            operations.setdefault(id(rule.function), []).append(spelling(operation))
        lines = ["| operations | exact | assumes |", "|---|---|---|"]
        for key, names in operations.items():
            rule = known[key]
            spelled = ", ".join(f"`{name}`" for name in sorted(set(names)))
            lines.append(f"| {spelled} | {'yes' if rule.exact else 'no'} | {rule.assumes or 'nothing'} |")
        return "\n".join(lines) + "\n"

    def find(self, operation: Any) -> Rule | None:
        """The rule for an operation, if there is one."""
        return self.rules.get(operation)
