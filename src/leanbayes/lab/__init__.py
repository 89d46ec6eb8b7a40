"""The laboratory behind the command `leanbayes`: data, models, recipes, comparisons, reports and tuning."""

__all__ = ["main"]


def main() -> int:
    """Run the command `leanbayes`, or say which extra it needs."""
    try:
        from leanbayes.lab.cli import main as run
    except ModuleNotFoundError as error:
        needs = f"leanbayes: the command needs the package {error.name}"
        raise SystemExit(f"{needs}; install it with: pip install 'leanbayes[lab]'") from None
    return run()
