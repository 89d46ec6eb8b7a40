"""A table of rules, which say what an operation does when it meets a random weight."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Registry", "Rule", "spelling"]


@dataclass(frozen=True)
class Rule:
    """A rule, whether it is exact, and what it assumes. The documentation and the tests read this.

    A composite rule is made of operations that meet rules of their own.
    """

    function: Callable[..., Any]
    exact: bool
    assumes: str
    composite: bool = False


def spelling(operation: Any) -> str:
    """Return the short name of an operation without its module: "relu" for F.relu, torch.relu and Tensor.relu.

    >>> spelling(torch.nn.functional.relu), spelling(torch.Tensor.T.__get__)
    ('relu', 'T')
    """
    name = getattr(operation, "__name__", str(operation))
    if name == "__get__":
        name = getattr(operation.__self__, "__name__", name)
    return str(name)


class Registry:
    """The rules of one propagation, by operation. All spellings of an operation go into one decorator.

    >>> rules = Registry("example")
    >>> @rules.rule(len, exact=True)
    ... def length(operation, value):
    ...     return operation(value)
    >>> rules.find(len).exact, rules.find(max)
    (True, None)
    """

    def __init__(self, name: str, *, agree: bool = False, by_example: bool = False) -> None:
        """Make an empty table.

        Args:
            name: the name of the propagation.
            agree: whether a weight that meets two rules in one pass shows the same draw to both.
            by_example: whether the rules rely on the examples lying along the first axis of an operation's input.
        """
        self.name, self.agree, self.by_example = name, agree, by_example
        self.rules: dict[Any, Rule] = {}

    def rule(
        self, *operations: Any, exact: bool, assumes: str = "", composite: bool = False
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a function ``f(operation, *args, **kwargs)`` for operations that have no rule yet."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            for operation in operations:
                if operation in self.rules:
                    known = self.rules[operation].function.__name__
                    spelling = getattr(operation, "__name__", operation)
                    raise ValueError(f"{self.name} already has a rule for {spelling} ({known}); change that one")
                self.rules[operation] = Rule(function, exact, assumes, composite)
            return function

        return register

    def table(self) -> str:
        """Return a Markdown table of what every rule covers and assumes, for the documentation."""
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
        """Return the rule for an operation, or None."""
        return self.rules.get(operation)
